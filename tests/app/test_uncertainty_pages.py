"""The pages Uncertainty and Behaviour: what they say is what the library says."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hostile import HOSTILE
from page_words import fine, words
from streamlit.testing.v1 import AppTest
from tiny import tiny_model

import interp
from interp.model import HookedTransformer
from ui.services import uncertainty_file
from ui.services.uncertainty_file import Chosen

Open = Callable[..., AppTest]
TEXT = "abc abd cab"


@pytest.fixture(scope="module")
def model() -> HookedTransformer:
    return tiny_model(n_layers=3, n_heads=4, n_ctx=512)


@pytest.fixture(scope="module")
def space(model: HookedTransformer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("behaviour")
    interp.hallucination_trace(model, TEXT, max_new_tokens=2, stop=None).save(folder / "own.json")
    return folder


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERP_HOME", str(tmp_path / "home"))


SIGNS = {
    "run": "Next-token predictions",
    "prompt": "Python that makes this",
    "answers": "No answers yet",
    "file": "No table yet",
}


@pytest.mark.parametrize("part", ["run", "prompt", "answers", "file"])
def test_every_part_of_uncertainty_opens(open_page: Open, model: HookedTransformer, part: str) -> None:
    page = fine(open_page("calibration", model=model, prompt=TEXT))
    page.segmented_control(key="uncertainty_part").set_value(part).run()
    said = words(fine(page))
    assert SIGNS[part] in said, said


def test_a_report_is_shown_with_the_words_of_the_library(
    open_page: Open, model: HookedTransformer, space: Path
) -> None:
    said = words(fine(open_page("behavior", run=None, model=model, workspace=space, prompt=TEXT)))
    report = interp.load_behavior_report(space / "own.json")
    assert report.summary().split("\n")[0][:40] in said
    assert all(f"Table: {name.replace('_', ' ')}" in said for name in report.tables)


def test_a_damaged_report_says_what_to_do(open_page: Open, model: HookedTransformer, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text('{"kind": "answer trace", "format": 1}')
    said = words(open_page("behavior", run=None, model=model, workspace=tmp_path, prompt=TEXT))
    assert "This report cannot be shown" in said
    assert "make it again" in said


def test_no_report_is_an_empty_state(open_page: Open, model: HookedTransformer, tmp_path: Path) -> None:
    said = words(fine(open_page("behavior", run=None, model=model, workspace=tmp_path, prompt=TEXT)))
    assert "There is no behaviour report" in said


def test_the_prompt_is_traced_behind_a_button(open_page: Open, model: HookedTransformer, space: Path) -> None:
    page = open_page("behavior", run=None, model=model, workspace=space, prompt=TEXT)
    page.segmented_control(key="behavior_part").set_value("trace").run()
    assert "Not traced yet" in words(fine(page))
    page.text_input(key="behavior_answer").set_value("d")
    page.button(key="behavior_run").click().run()
    own = interp.hallucination_trace(model, TEXT, answer="d", max_new_tokens=8)
    assert own.summary().split("\n")[0][:40] in words(fine(page))


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("a.xlsx", b"p,y\n1,1\n", "only .csv"),
        ("a.csv", b"x" * (uncertainty_file.MOST_MB * 2**20 + 1), "MB"),
        ("a.csv", b"\xff\xfe", "UTF-8"),
    ],
)
def test_files_that_are_refused(name: str, data: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        uncertainty_file.read_table(name, data)


def test_a_missing_probability_is_refused_with_its_row() -> None:
    table = uncertainty_file.read_table("a.csv", b"p,y\n0.5,1\n,0\n0.3,1\n")
    with pytest.raises(ValueError, match="first in row 1: drop"):
        uncertainty_file.judge(table, Chosen("p", "y", None))


def test_outcomes_of_one_kind_leave_ranking_and_temperature_out_and_say_why() -> None:
    found = uncertainty_file.judge(
        uncertainty_file.read_table("a.csv", b"p,y\n0.5,1\n0.4,1\n0.3,1\n"), Chosen("p", "y", None)
    )
    assert found.selective is None
    assert "nothing to rank" in found.unranked
    assert found.temperature is None
    assert "all 3 values of y are 1" in found.untempered


def test_a_table_is_judged_as_the_library_does_whatever_its_columns_are_called() -> None:
    rng = np.random.default_rng(0)
    p = rng.random(60).round(4)
    y = (rng.random(60) < p).astype(int)
    hostile = "<img src=x onerror=alert(1)>"
    table = uncertainty_file.read_table("a.csv", pd.DataFrame({hostile: p, "y": y}).to_csv(index=False).encode())
    found = uncertainty_file.judge(table, Chosen(hostile, "y", None))
    draws = uncertainty_file.DRAWS
    own = interp.calibration_report(p_true=p, y=y, n_boot=draws, n_null=draws).to_frame()
    shown = found.figures.set_index("figure")["value"]
    assert float(shown.to_dict()["ece"]) == pytest.approx(own.set_index("figure")["value"].to_dict()["ece"])


def upload(page: AppTest, name: str, data: bytes) -> AppTest:
    """The page with the file; the widget itself refuses other endings before the page sees them."""
    page.segmented_control(key="uncertainty_part").set_value("file").run()
    return page.file_uploader[0].set_value((name, data, "text/plain")).run()


def table(n: int = 60) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    p = rng.random(n).round(4)
    return p, (rng.random(n) < p).astype(int)


def test_an_uploaded_table_is_judged_and_its_names_are_text(open_page: Open) -> None:
    p, y = table()
    lines = "".join(json.dumps({"<img src=x onerror=alert(1)>": a, "y": int(b)}) + "\n" for a, b in zip(p, y))
    page = upload(open_page("calibration"), "a.jsonl", lines.encode())
    assert not page.exception
    said = words(page)
    draws = uncertainty_file.DRAWS
    assert interp.calibration_report(p_true=p, y=y, n_boot=draws, n_null=draws).verdict in said
    assert (
        interp.selective_report(confidence=np.maximum(p, 1 - p), y=(p > 0.5) == (y == 1), n_boot=draws).verdict in said
    )
    picked = next(box for box in page.selectbox if box.label == "Probability")
    assert picked.value == "<img src=x onerror=alert(1)>"
    assert not list(Path.cwd().glob("a.jsonl"))


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("a.csv", b"p,y\n0.5,1\n,0\n0.3,1\n", "NaN in 1 of 3 rows"),
        ("a.csv", b"p,y\n1.5,1\n0.2,0\n", "must lie in"),
        ("a.csv", b"word,other\na,b\n", "not two columns of numbers"),
        ("a.csv", b"p,y\n", "no rows"),
        ("a.jsonl", b'{"p": 0.1, "y": 1}\n[1]\n', "line 2 is no JSON object"),
        ("a.jsonl", b"{\n", "line 1 is no JSON"),
        ("a.csv", b"p,y\n0.5,\x00\n", "NUL"),
    ],
)
def test_a_table_that_cannot_be_judged_says_why(open_page: Open, name: str, data: bytes, said: str) -> None:
    page = upload(open_page("calibration"), name, data)
    assert not page.exception
    assert said.lower() in words(page).replace("\\", "").lower()


def test_a_table_of_one_class_keeps_its_calibration(open_page: Open) -> None:
    page = upload(open_page("calibration"), "a.csv", b"p,y\n0.5,1\n0.4,1\n0.3,1\n")
    assert not page.exception
    said = words(page)
    assert "There is nothing to rank" in said
    assert "There is no temperature for these rows" in said
    assert "ECE 0.600" in said


def test_sampled_answers_are_the_librarys(open_page: Open, model: HookedTransformer) -> None:
    page = open_page("calibration", run=None, model=model, prompt=TEXT, query={"seed": "3"})
    page.segmented_control(key="uncertainty_part").set_value("answers").run()
    assert "No answers yet" in words(fine(page))
    page.button(key="uncertainty_sample").click().run()
    words(fine(page))
    samples = interp.sample_answers(model, TEXT, 8, max_new_tokens=8, temperature=1.0, seed=3)
    own = interp.semantic_entropies(samples)[0]
    values = {metric.label: metric.value for metric in page.metric}
    assert values["Semantic entropy"] == f"{own.discrete:.2f}"
    assert values["Self-consistency"] == f"{own.self_consistency:.0%}"
    assert values["EigenScore"] == f"{interp.answer_eigenscores(model, samples)[0]:.2f}"
    assert "equal once case" in words(page)


def test_figures_of_the_prompt_are_the_librarys(open_page: Open, model: HookedTransformer) -> None:
    page = open_page("calibration", run=None, model=model, prompt=TEXT)
    page.segmented_control(key="uncertainty_part").set_value("prompt").run()
    words(fine(page))
    frame = interp.token_uncertainty(model, TEXT).to_frame()
    mean = -frame["logprob"].dropna().astype(float).mean()
    assert f"{mean:.2f} nats" in [metric.value for metric in page.metric]
    assert len(page.dataframe[0].value) == len(frame)


def test_a_long_prompt_is_drawn_in_a_window_and_sampling_it_is_refused(open_page: Open) -> None:
    model = tiny_model(n_layers=1, n_heads=2, n_ctx=1024)
    page = open_page("calibration", run=None, model=model, prompt="ab " * 300)
    page.segmented_control(key="uncertainty_part").set_value("prompt").run()
    assert "are drawn, those around the chosen one" in words(fine(page))
    assert len(page.dataframe[0].value) == 48
    page.segmented_control(key="uncertainty_part").set_value("answers").run()
    page.button(key="uncertainty_sample").click().run()
    assert "samples answers to at most 512" in words(page)


def test_a_report_of_another_model_is_marked(
    open_page: Open, model: HookedTransformer, space: Path, tmp_path: Path
) -> None:
    assert not open_page("behavior", run=None, model=model, workspace=space, prompt=TEXT).warning
    other = json.loads((space / "own.json").read_text("utf-8"))
    other["card"]["fingerprint"] = "0" * 32
    (tmp_path / "other.json").write_text(json.dumps(other), "utf-8")
    page = open_page("behavior", run=None, model=model, workspace=tmp_path, prompt=TEXT)
    words(fine(page))
    assert "another model" in page.warning[0].value


def test_texts_of_a_report_are_never_markup(
    open_page: Open, model: HookedTransformer, space: Path, tmp_path: Path
) -> None:
    hostile = json.loads((space / "own.json").read_text("utf-8"))
    hostile["notes"] = list(HOSTILE)
    hostile["values"]["answer"] = HOSTILE[0] + HOSTILE[6]
    for number, row in enumerate(hostile["tables"]["tokens"]):
        row["token"] = HOSTILE[number % len(HOSTILE)]
    (tmp_path / "x.json").write_text(json.dumps(hostile), "utf-8")
    page = open_page("behavior", run=None, model=model, workspace=tmp_path, prompt=TEXT)
    words(fine(page))
    for part in (*page.markdown, *page.caption):
        assert "<img" not in str(part.value)
        assert ":red[" not in str(part.value)
