"""The demo: its specification, a small run on the real model, an interruption, and a rerun that does nothing."""

import json
import re
from pathlib import Path

import pytest

import interp
from interp.demo import run, steps
from interp.demo.spec import load_demo_spec
from interp.store import open_store

SMALL = """
model = "smollm2-135m"
prompt = "The Eiffel Tower is located in the city of"
answer = " Paris"
seed = 0
[truth]
datasets = ["elements"]
sites = "resid_post:10-11"
kinds = ["mass_mean"]
seconds = { record = 1, probes = 1 }
[corpus]
name = "python_docs"
site = "resid_post:2"
max_length = 64
max_documents = 12
seconds = 1
[sae]
k = 8
width = 128
batch_size = 512
epochs = 1
lr = 1e-3
held_out = 0.25
pca_ranks = [2, 8]
seconds = 1
[steering]
concept = "sentiment"
site = "resid_post:12"
strengths = [0.1]
n_random = 2
held_out = 0.1
prompts = ["My week has been"]
max_new_tokens = 5
seconds = 1
[uncertainty]
documents = 4
max_tokens = 48
questions = "questions"
n_questions = 8
seconds = 1
"""


@pytest.fixture
def spec_file(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path


def test_the_bundled_specification_reads() -> None:
    spec = load_demo_spec()
    assert set(spec.truth.datasets) <= set(interp.datasets()["name"])
    assert next(step.name for step in steps.all_steps(spec)) == "lens"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("k = 8", "kk = 8", r"\[sae\].*'kk'.*'k'"),
        ("k = 8\n", "", r"\[sae\].*'k' is missing"),
        ("[sae]", "[sea]", "'sea'.*'sae'"),
        ("seed = 0", "seed = ", "no TOML"),
    ],
)
def test_a_wrong_specification_names_the_key(spec_file: Path, old: str, new: str, message: str) -> None:
    spec_file.write_text(SMALL.replace(old, new, 1))
    with pytest.raises(ValueError, match=message):
        load_demo_spec(spec_file)


@pytest.mark.slow
def test_a_small_run_interrupted_and_run_again(
    spec_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, folder = load_demo_spec(spec_file), tmp_path / "run"

    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    real = steps._sae
    monkeypatch.setattr(steps, "_sae", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.run_demo(folder, spec=spec)
    books = json.loads((folder / "demo.json").read_text())
    assert [each["name"] for each in books["steps"]] == ["lens", "heads", "truth", "probes", "corpus"]
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.safetensors")}

    monkeypatch.setattr(steps, "_sae", real)
    books = run.run_demo(folder, spec=spec)
    assert len(books["steps"]) == 8
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())
    for step in books["steps"]:
        assert step["state"] == "done"
        assert all((folder / name).exists() for name in step["files"])
    assert open_store(folder / "stores" / "elements").verify().empty
    assert "0.70" in next(each["figure"] for each in books["findings"] if "answer" in each["what"])

    page = (folder / "report.html").read_text("utf-8")
    assert page.count("<svg") >= 7
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", page)

    spec_file.write_text(SMALL.replace("max_documents = 12", "max_documents = 11"))
    stale = next(step for step in steps.all_steps(load_demo_spec(spec_file)) if step.name == "corpus")
    run._set_aside(books, stale, "another key", folder)
    assert open_store(folder / "stores" / "python_docs.before-1").verify().empty
    (folder / "stores" / "python_docs.before-1").rename(folder / "stores" / "python_docs")

    def never(*args: object) -> None:
        raise AssertionError("a finished step ran again")

    for name in ("_lens", "_heads", "_truth", "_probes", "_corpus", "_sae", "_steering", "_calibration"):
        monkeypatch.setattr(steps, name, never)
    assert run.run_demo(folder, spec=spec)["steps"] == books["steps"]
