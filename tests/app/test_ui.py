"""The parts that pages share: exports, the strip's data, windows, escaping, results."""

import csv
import io
import math
from pathlib import Path

import pandas as pd
import pytest

from ui import export, results, state
from ui.strip import Track, strip_data
from ui.text import plain

HOSTILE = ["=1+1", "+a", "-b", "@c", "\td", "\re", "\nf", '"quoted", text', "plain", " =spaced", "a=b"]


def test_csv_defuses_formulas_and_keeps_the_rest() -> None:
    frame = pd.DataFrame({"=head": HOSTILE, "n": range(len(HOSTILE)), "x": [-0.5] * len(HOSTILE)})
    header, *rows = list(csv.reader(io.StringIO(export.csv(frame).decode("utf-8"), newline="")))
    assert header == ["'=head", "n", "x"]
    for text, row in zip(HOSTILE, rows, strict=True):
        assert row[0] == (f"'{text}" if text[0] in "=+-@\t\r\n" else text)
        assert row[2] == "-0.5"  # a number is no formula
    assert list(frame["=head"]) == HOSTILE, "the caller's frame was changed"


def test_csv_of_equal_column_names_and_missing_values() -> None:
    frame = pd.DataFrame([["=a", None], [None, "b"]], columns=["x", "x"])
    assert export.csv(frame) == b'"x","x"\n"\'=a",""\n"","b"\n'


def test_strip_data_is_json_with_nulls_for_what_is_missing() -> None:
    frame = pd.DataFrame(
        {"pos": [0, 1], "token": ["a", "b\n"], "surprisal": pd.array([None, 1.23456789], dtype="Float64")}
    )
    data = strip_data(frame.assign(bad=[math.inf, math.nan]), [Track("surprisal", "s"), Track("bad", "b")], selected=1)
    assert [chip["values"] for chip in data["tokens"]] == [[None, None], [1.2346, None]]
    assert [chip["breaks"] for chip in data["tokens"]] == [False, True]
    assert data["selected"] == 1
    assert data["tracks"][0] == {"column": "surprisal", "title": "s", "unit": "", "low": 0.0, "high": 1.0, "mid": None}


@pytest.mark.parametrize(
    ("n", "at", "size"), [(5, 0, 10), (5, 4, 10), (100, 0, 48), (100, 99, 48), (100, 50, 48), (1, 0, 48)]
)
def test_a_window_has_its_size_and_holds_the_position(n: int, at: int, size: int) -> None:
    shown = state.window(n, at, size)
    assert at in shown
    assert len(shown) == min(n, size)
    assert shown.start >= 0
    assert shown.stop <= n


@pytest.mark.parametrize(
    "text", ["**b**", "$x$", ":red[x]", "[a](javascript:b)", "<img>", "# h", "- l", "`c`", "~~s~~", "a|b", "&lt;"]
)
def test_plain_leaves_no_sign_that_markdown_reads(text: str) -> None:
    import re

    escaped = plain(text)
    assert not re.search(r"(?<!\\)[*$:\[\]()<>#`~|&-]", escaped)
    assert escaped.replace("\\", "").replace("\u2060", "") == text


def test_plain_is_one_line() -> None:
    assert plain("a\n\n# b\tc") == "a \\# b c"


def test_a_run_refuses_what_lies_outside(run_folder: Path, tmp_path: Path) -> None:
    run = results.open_run(run_folder)
    for name in ("../demo.json", "/etc/passwd", "x/../../y"):
        with pytest.raises(ValueError, match=r"lies outside|has no"):
            run.file(name)
        assert not run.has(name)
    assert run.has("lens.parquet")


def test_a_run_says_which_step_is_missing(run_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "demo.json").write_bytes((run_folder / "demo.json").read_bytes())
    with pytest.raises(ValueError, match=r"has no lens.parquet, though its step “Logit lens” is done"):
        results.open_run(tmp_path).frame("lens")
    with pytest.raises(ValueError, match=r"has no other.json: that step is not done yet"):
        results.open_run(tmp_path).json("other")


def test_a_run_with_other_columns_is_refused(run_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "demo.json").write_bytes((run_folder / "demo.json").read_bytes())
    pd.read_parquet(run_folder / "lens.parquet").drop(columns=["kl"]).to_parquet(tmp_path / "lens.parquet")
    with pytest.raises(ValueError, match="has no column kl"):
        results.open_run(tmp_path).frame("lens")


def test_a_file_that_is_too_large_is_not_read(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "MOST_BYTES", 100)
    with pytest.raises(ValueError, match="more than a page reads"):
        results.open_run(run_folder).frame("lens")
