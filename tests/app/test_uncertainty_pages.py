"""The pages Uncertainty and Behaviour: what they say is what the library says."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
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


def words(page: AppTest) -> str:
    parts = [*page.text, *page.markdown, *page.caption, *page.title, *page.header, *page.subheader, *page.code]
    return "\n".join(str(part.value) for part in parts)


def fine(page: AppTest) -> str:
    assert not page.exception
    said = words(page)
    assert "cannot be" not in said, said
    assert "this should not happen" not in said, said
    return said


def fine_page(page: AppTest) -> AppTest:
    fine(page)
    return page


SIGNS = {
    "run": "Next-token predictions",
    "prompt": "Python that makes this",
    "answers": "No answers yet",
    "file": "No table yet",
}


@pytest.mark.parametrize("part", ["run", "prompt", "answers", "file"])
def test_every_part_of_uncertainty_opens(open_page: Open, model: HookedTransformer, part: str) -> None:
    page = fine_page(open_page("calibration", model=model, prompt=TEXT))
    page.segmented_control(key="uncertainty_part").set_value(part).run()
    said = fine(page)
    assert SIGNS[part] in said, said


def test_a_report_is_shown_with_the_words_of_the_library(
    open_page: Open, model: HookedTransformer, space: Path
) -> None:
    said = fine(open_page("behavior", run=None, model=model, workspace=space, prompt=TEXT))
    report = interp.load_behavior_report(space / "own.json")
    assert report.summary().split("\n")[0][:40] in said
    assert all(f"Table: {name.replace('_', ' ')}" in said for name in report.tables)


def test_a_damaged_report_says_what_to_do(open_page: Open, model: HookedTransformer, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text('{"kind": "answer trace", "format": 1}')
    said = words(open_page("behavior", run=None, model=model, workspace=tmp_path, prompt=TEXT))
    assert "This report cannot be shown" in said
    assert "make it again" in said


def test_no_report_is_an_empty_state(open_page: Open, model: HookedTransformer, tmp_path: Path) -> None:
    said = fine(open_page("behavior", run=None, model=model, workspace=tmp_path, prompt=TEXT))
    assert "There is no behaviour report" in said


def test_the_prompt_is_traced_behind_a_button(open_page: Open, model: HookedTransformer, space: Path) -> None:
    page = open_page("behavior", run=None, model=model, workspace=space, prompt=TEXT)
    page.segmented_control(key="behavior_part").set_value("trace").run()
    assert "Not traced yet" in fine(page)
    page.text_input(key="behavior_answer").set_value("d")
    page.button(key="behavior_run").click().run()
    own = interp.hallucination_trace(model, TEXT, answer="d", max_new_tokens=8)
    assert own.summary().split("\n")[0][:40] in fine(page)


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
