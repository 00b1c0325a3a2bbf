"""`interp steer`: vectors, sweeps, maps and reruns; what is wrong is one line and status 2."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from model_folder import write_model_folder
from steer_jobs import plain_page, run_small, write_job
from tiny import tiny_model

import interp
from interp.cli.group import status
from interp.intervene.writes import write_sites
from interp.probe import fit_probe
from interp.sites import short_name
from interp.steer_job import load_vector
from interp.steering.report import SteeringReport, load_steering_report

SITE = "resid_post:0"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data, and a finished sweep."""
    folder = tmp_path_factory.mktemp("steer")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SteeringReport, "write_html", plain_page)
        run_small(write_job(folder), folder / "done")
    return folder


@pytest.fixture(autouse=True)
def tiny_loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """`interp.load` gives the tiny model, whatever it is asked for. The names that were."""
    asked: list[str] = []

    def load(name: str) -> Any:
        asked.append(name)
        return tiny_model(seed=1) if name == "other" else tiny_model()

    for place in ("interp.steer_job.run.load", "interp.steer_job.rerun.load"):
        monkeypatch.setattr(place, load)
    monkeypatch.setattr(interp, "load", load, raising=False)
    return asked


@pytest.fixture(autouse=True)
def plain_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages without charts, which take seconds; `steer_job` and the report have tests of whole ones."""
    monkeypatch.setattr(SteeringReport, "write_html", plain_page)


def run(capsys: pytest.CaptureFixture[str], *words: Any, code: int = 0) -> Any:
    """A command with --json; what it printed."""
    assert status(["steer", *map(str, words), "--json"]) == code, capsys.readouterr().err
    out, err = capsys.readouterr()
    assert err == ""
    return json.loads(out)


def made(folder: Path, files: Path, *options: str) -> Path:
    """A vector of the pairs."""
    path = folder / "v.safetensors"
    assert (
        status(["steer", "make", "tiny", str(files / "pairs.csv"), "--site", SITE, "--out", str(path), *options]) == 0
    )
    return path


def test_make_holds_pairs_out_and_a_sweep_measures_those(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vector = made(tmp_path, files, "--held-out", "0.25", "--seed", "3")
    assert "Kept apart: 4 pairs" in capsys.readouterr().out
    assert load_vector(vector).card["kept_apart"] == {"share": 0.25, "pairs": 4, "seed": 3}
    call = ["sweep", "tiny", vector, "--pairs", files / "pairs.csv", "--n-random", "1", "--strengths=-0.5,0.5"]
    found = run(capsys, *call, "--out", tmp_path / "out", "--texts", files / "texts.csv")
    assert {row["n"] for row in found["effects"]} == {4}
    assert found["card"]["job"]["notes"] == [
        "12 of 16 pairs were left out: the vector was fitted on them or their groups"
    ]
    assert status([*map(str, ["steer", *call, "--out", tmp_path / "out", "--texts", files / "texts.csv"])]) == 0
    out = capsys.readouterr().out
    assert "Effects" in out
    assert "Note: 12 of 16" in out
    assert str(tmp_path / "out" / "report.html") in out
    assert status([*map(str, ["steer", *call, "--out", tmp_path / "out", "--no-resume"])]) == 2
    assert "holds a job already" in capsys.readouterr().err
    assert status([*map(str, ["steer", *call, "--out", tmp_path / "out", "--seed", "5"])]) == 2
    assert "seed: 0 -> 5" in capsys.readouterr().err


@pytest.mark.parametrize("method", ["mean_difference", "pca", "logistic", "mass_mean", "lda"])
def test_every_method_and_a_range_of_layers(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], method: str
) -> None:
    out = tmp_path / "v.safetensors"
    words = ["--site", "resid_post:0-1", "--method", method, "--tokens", "last", "--out", out]
    found = run(capsys, "make", "tiny", files / "pairs.csv", *words)
    assert found["sites"] == ["blocks.0.hook_resid_post", "blocks.1.hook_resid_post"]
    assert load_vector(out).card["method"] == method


def test_make_reads_labelled_texts_stores_and_probes(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = interp.load_dataset(files / "labelled.csv")
    store = interp.record(tiny_model(), data, SITE, "last", path=tmp_path / "store")
    X, frame = store.pooled(SITE, tokens="last")
    fit_probe(X, frame["label"], "mass_mean", site=store.sites[0], groups=frame["group"]).save(
        tmp_path / "p.safetensors"
    )
    for source, words in (
        (files / "labelled.csv", ["--site", SITE]),
        (tmp_path / "store", ["--site", SITE]),
        (tmp_path / "p.safetensors", ["--reference", str(files / "texts.csv")]),
    ):
        found = run(capsys, "make", "tiny", source, *words, "--out", tmp_path / "v.safetensors")
        assert found["sites"] == ["blocks.0.hook_resid_post"]
        assert found["card"]["data"] == source.name
    call = ["make", "tiny", files / "labelled.csv", "--heads", "2", "--out", tmp_path / "v.safetensors"]
    for words in (call, ["show", tmp_path / "v.safetensors"]):
        assert status(["steer", *map(str, words)]) == 0
        shown = capsys.readouterr().out
        assert "2 of" in shown
        assert "held-out groups" in shown
        assert all(column in shown for column in ("layer", "head", "accuracy"))
    found = run(capsys, "show", tmp_path / "v.safetensors")
    assert len(found["sites"]) == 2
    assert all(site.endswith("attn.hook_z") for site in found["sites"])
    call = [
        "sweep",
        "tiny",
        tmp_path / "v.safetensors",
        "--target",
        "a",
        "--prompt",
        "one",
        "--prompt",
        "two",
        "--n-random",
        "1",
    ]
    assert run(capsys, *call, "--strengths=2", "--out", tmp_path / "out")["card"]["unit"] == "sd"


def test_make_takes_the_direction_of_a_latent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    width, path = tiny_model().cfg.d_model, tmp_path / "sae.safetensors"
    rows = torch.randn(8, width, generator=torch.Generator().manual_seed(0))
    card = {"site": "blocks.1.hook_resid_post", "typical_norm": 3.0, "kind": "sae"}
    interp.SAE(rows.T.contiguous(), torch.zeros(8), rows, torch.zeros(width), k=2, card=card).save(path)
    found = run(capsys, "make", "tiny", path, "--latent", "5", "--out", tmp_path / "v.safetensors")
    assert found["sites"] == [card["site"]]
    (target,) = load_vector(tmp_path / "v.safetensors").targets()
    torch.testing.assert_close(target.direction.float(), rows[5] / rows[5].norm())
    assert status(["steer", "make", "tiny", str(path), "--out", str(tmp_path / "w.safetensors")]) == 2
    assert "say which latent (--latent" in capsys.readouterr().err


def test_apply_continues_side_by_side_and_shows_what_was_changed(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vector = made(tmp_path, files)
    capsys.readouterr()
    words = ["apply", "tiny", f"{vector}:2", "some text", "and more", "--strength", "3", "--tokens", "4"]
    found = run(capsys, *words, "--vector", f"{vector}:-2")
    rows = pd.DataFrame(found["generations"])
    assert list(rows["strength"].isna()) == [True, True, False, False]
    assert rows["first_difference"].isna().all()  # the two vectors cancel each other
    found = run(capsys, *words, "--where", "generated", "--show-applied")
    model, loaded = tiny_model(), load_vector(vector) * 2
    with model.intervene(interp.Steer(loaded, 3.0, where="generated")):
        expected = model.generate(["some text", "and more"], 4).text
    assert [row["text"] for row in found["generations"]][2:] == expected
    plain = model.generate(["some text", "and more"], 4).rows
    with model.intervene(interp.Steer(loaded, 3.0, where="generated")):
        steered = model.generate(["some text", "and more"], 4).rows
    for row, before, now in zip(found["generations"][2:], plain, steered):
        same = [a == b for a, b in zip(before.tokens, now.tokens)]
        assert row["first_difference"] == (None if all(same) else same.index(False))
    assert {row["row"] for row in found["applied"]["3"]} == {0, 1}
    assert status(["steer", *map(str, words), "--show-applied"]) == 0
    assert "Applied at strength +3" in capsys.readouterr().out


def test_apply_and_sweep_take_a_place(files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vector = made(tmp_path, files)
    capsys.readouterr()
    edit = ["--kind", "ablate", "--site", "writes"]
    found = run(capsys, "apply", "tiny", vector, "some text", "--tokens", "4", "--show-applied", *edit)
    model = tiny_model()
    assert {row["site"] for row in found["applied"]["1"]} == set(map(short_name, write_sites(model)))
    with model.intervene(interp.Steer(load_vector(vector), site="writes", kind="ablate")):
        assert found["generations"][1]["text"] == model.generate("some text", 4).text
    words = ["sweep", "tiny", vector, "--prompt", "one", "--tokens", "1", *edit, "--out", tmp_path / "out"]
    found = run(capsys, *words)
    assert found["inputs"]["options"]["site"] == "writes"
    assert found["inputs"]["settings"]["strengths"] == [0.0, 1.0]
    assert status(["steer", "apply", "tiny", str(vector), "some text", "--site", "resid_past:0"]) == 2
    assert "resid_past" in capsys.readouterr().err


def test_a_sweep_of_a_specification_and_of_other_measures(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = write_job(tmp_path / "job")
    found = run(
        capsys, "sweep", spec, "--set", "n_random=1", "--set", "choices=choices.jsonl", "--out", tmp_path / "out"
    )
    assert found["card"]["job"]["spec"]["n_random"] == 1
    words = [
        "--target",
        "a",
        "--against",
        "b",
        "--prompt",
        "one",
        "--prompt",
        "two",
        "--phrase",
        "e",
        "--n-random",
        "0",
    ]
    vector = made(tmp_path, files)
    capsys.readouterr()
    found = run(capsys, "sweep", "tiny", vector, *words, "--tokens", "3", "--out", tmp_path / "other")
    assert {row["measure"] for row in found["effects"]} == {"target tokens", "phrases"}


def test_map_shows_every_place(files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["map", "tiny", files / "pairs.csv", "--strengths=0.5", "--texts", files / "texts.csv", "--bound", "100"]
    out = tmp_path / "map.json"
    found = run(capsys, *words, "--out", out)
    assert {row["site"] for row in found["table"]} == {"resid_post:0", "resid_post:1"}
    assert {row["n"] for row in found["table"]} == {2}  # a part of what make would see
    assert status(["steer", *map(str, words)]) == 0
    assert "It was chosen: measure it on other pairs" in capsys.readouterr().out
    words[words.index("--strengths=0.5")] = "--strengths=-0.5"
    assert status(["steer", *map(str, words[:-1]), "0"]) == 0
    assert "No place to choose: no cell keeps the rise of loss within 0" in capsys.readouterr().out
    assert run(capsys, "show", out)["table"] == found["table"]


def test_rerun_says_of_each_figure_whether_it_is_the_same(
    files: Path, tmp_path: Path, tiny_loads: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    new = tmp_path / "new.json"
    found = run(capsys, "rerun", files / "done", "--out", new)
    assert tiny_loads == ["tiny"]
    assert found["moved"] == 0
    assert {row["verdict"] for row in found["figures"]} == {"same"}
    before, after = load_steering_report(files / "done" / "report.json"), load_steering_report(new)
    pd.testing.assert_frame_equal(before.effects, after.effects)
    assert status(["steer", "rerun", str(files / "done"), "other"]) == 2
    assert "--other-model" in capsys.readouterr().err
    found = run(capsys, "rerun", files / "done", "other", "--other-model", code=1)
    assert found["moved"] > 0
    assert found["notes"][0].startswith("other weights")


def test_rerun_names_measures_that_no_file_holds(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vector = load_vector(files / "done" / "vector.safetensors")

    def longer(model: Any, prompts: Any) -> list[float]:
        return [float(model(prompt)[0, -1, 0]) for prompt in prompts]

    path = tmp_path / "own.json"
    interp.steering_experiment(
        tiny_model(), vector, ["one", "two"], measure=[longer], n_random=1, max_new_tokens=2, texts=["more text"]
    ).save(path)
    assert status(["steer", "rerun", str(path)]) == 2
    assert "the measure 'longer', a function or a probe" in capsys.readouterr().err
    found = run(capsys, "rerun", path, "--leave-out")
    assert found["notes"][0] == "left out: longer"
    assert found["moved"] == 0


def test_show_prints_reports_and_vectors(files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    assert status(["steer", "show", str(files / "done"), "--html", str(page)]) == 0
    assert "preference" in capsys.readouterr().out
    assert page.read_bytes() == (files / "done" / "report.html").read_bytes()
    assert run(capsys, "show", files / "done" / "report.json")["card"]["model"] == "tiny-llama"
    assert run(capsys, "show", files / "done" / "vector.safetensors")["sites"] == ["blocks.0.hook_resid_post"]
    assert status(["steer", "show", str(files / "done" / "vector.safetensors")]) == 0
    assert "resid_post:0" in capsys.readouterr().out


def test_convert_to_gguf_and_back(files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, gguf, back = (tmp_path / name for name in ("v.safetensors", "v.gguf", "back.safetensors"))
    words = ["--site", "resid_post:1", "--out", first]
    run(capsys, "make", "tiny", files / "pairs.csv", *words)
    run(capsys, "convert", first, gguf, "--model", "tiny", "--strength", "0.2")
    assert run(capsys, "convert", gguf, back, "--model", "tiny")["sites"] == ["blocks.1.hook_resid_post"]
    (own,), (read,) = load_vector(first).targets(), load_vector(back).targets()
    assert abs(float(own.direction.double() @ read.direction.double()) - 1) < 1e-6
    assert read.raw == pytest.approx(0.2 * own.norm, rel=1e-6)


def test_a_folder_model_and_a_vector_of_another_one(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from interp.weights.load import load

    model = str(write_model_folder(tmp_path / "model"))
    capsys.readouterr()  # transformers has a bar of its own
    for place in ("interp.steer_job.run.load", "interp.steer_job.rerun.load"):
        monkeypatch.setattr(place, load)
    monkeypatch.setattr(interp, "load", load, raising=False)
    vector, out = tmp_path / "v.safetensors", tmp_path / "out"
    run(capsys, "make", model, files / "pairs.csv", "--site", SITE, "--out", vector)
    run(capsys, "sweep", model, vector, "--pairs", files / "pairs.csv", "--n-random", "0", "--out", out)
    assert run(capsys, "rerun", out)["moved"] == 0
    other = str(files / "done" / "vector.safetensors")
    assert status(["steer", "apply", model, other, "text"]) == 2
    assert "fitted on another model" in capsys.readouterr().err
    assert status(["steer", "sweep", model, other, "--prompt", "text", "--out", str(tmp_path / "no")]) == 2
    assert "fitted on another model" in capsys.readouterr().err
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["make", "m", "sentiment", "--out", "v"], "--site is missing"),
        (["make", "m", "sentiment", "--heads", "4", "--out", "v"], "heads are found with labelled texts"),
        (["make", "m", "nowhere.csv", "--site", SITE, "--out", "v"], "nowhere.csv"),
        (["make", "m", "questions", "--site", SITE, "--out", "v"], "questions"),
        (["make", "m", "sentiment", "--site", SITE, "--out", "v", "--method", "pcs"], "pca"),
        (["make", "m", "sentiment", "--site", SITE, "--out", "v", "--held-out", "2"], "held_out is a share"),
        (
            ["make", "m", "sentiment", "--site", SITE, "--out", "v", "--reference", "t.csv"],
            "--reference goes with a probe",
        ),
        (["apply", "m", "v.safetensors", "text"], "there is no file v.safetensors"),
        (["apply", "m", "DONE", "text", "--kind", "clamp"], "--kind clamp needs --strength"),
        (["apply", "m", "DONE", "text", "--strength", "nan"], "finite"),
        (["apply", "m", "pairs.csv", "text"], "no card that says what it is"),
        (["sweep", "m"], "VECTOR is missing"),
        (["sweep", "m", "DONE"], "nothing is measured"),
        (["sweep", "m", "DONE", "--pairs", "sentimant"], "sentiment"),
        (["sweep", "m", "DONE", "--strengths=a,b", "--prompt", "x"], "--strengths=-0.1,0.1"),
        (["sweep", "m", "DONE", "--prompt", "x", "--kind", "clamp"], "cannot be swept"),
        (["sweep", "m", "DONE", "--prompt", "x", "--against", "b"], "give that too"),
        (["sweep", "m", "DONE", "--pairs", "sentiment", "--phrase", "b"], "give --prompt"),
        (["sweep", "m", "DONE", "--prompt", "x", "--set", "seed=1"], "here every value has its own option"),
        (["sweep", "small.toml", "DONE"], "says all of the sweep"),
        (["sweep", "small.toml", "--seed", "1"], "--seed"),
        (["sweep", "small.toml", "--set", "n_rndom=1"], "did you mean 'n_random'"),
        (["sweep", "m", "DONE", "--prompt", "x", "--engine", "rya"], "did you mean 'ray'"),
        (["map", "m", "cities"], "a map is made of contrast pairs"),
        (["rerun", "nowhere.json"], "nowhere.json"),
        (["rerun", "done", "--probe", "p"], "is not NAME=FILE"),
        (["show", "nowhere.json"], "nowhere.json"),
        (["show", "."], "holds no sweep"),
        (["show", "DONE", "--html", "x.html"], "--html writes the page of a report"),
        (["convert", "a.safetensors", "b.safetensors"], ".gguf"),
        (["convert", "a.gguf", "b.safetensors"], "--model is missing"),
        (["convert", "DONE", "b.gguf"], "--model-hint"),
    ],
)
def test_a_wrong_call_is_one_line_and_status_2_before_a_model_is_loaded(
    files: Path,
    tiny_loads: list[str],
    words: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(files)
    before = sorted(files.rglob("*"))
    assert status(["steer", *("done/vector.safetensors" if word == "DONE" else word for word in words)]) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert err.count("\n") == 1
    assert out == ""
    assert tiny_loads == []
    assert sorted(files.rglob("*")) == before
