"""Charts of lenses: the right numbers, bounds only where there are some, nothing that a token can break."""

import numpy as np
import pandas as pd
import pytest
from tiny import tiny_model

from interp import plot
from interp.lens import logit_lens
from interp.plot.lenses import followed_tokens, lens_comparison


def compared(**columns: object) -> pd.DataFrame:
    lines = [(layer, lens) for lens in ("tuned", "logit") for layer in range(-1, 5)]
    frame = pd.DataFrame(lines, columns=["layer", "lens"])
    frame["kl"] = np.where(frame["lens"] == "tuned", 4.0, 13.0) / (frame["layer"] + 2)
    return frame.assign(low=frame["kl"] * 0.9, high=frame["kl"] * 1.1, n=200).assign(**columns)


def drawn(chart: plot.Chart) -> list[dict]:
    """All rows that the chart draws."""
    return [row for rows in chart.to_dict()["datasets"].values() for row in rows]


def test_a_line_for_each_lens() -> None:
    chart = lens_comparison(compared())
    rows = drawn(chart)
    assert {(row["line"], row["layer"], row["kl"]) for row in rows} == {
        (row.lens, row.layer, row.kl) for row in compared().itertuples()
    }
    area = next(layer for layer in chart.to_dict()["layer"] if layer["mark"]["type"] == "area")
    assert area["encoding"]["y"]["field"] == "low"
    assert area["encoding"]["y"]["scale"]["domain"] == [0.0, 15.0]  # 14.3 is the highest bound


def test_bounds_that_are_not_there_draw_no_band() -> None:
    for frame in (compared(low=np.nan), compared().drop(columns=["low", "high"])):
        marks = [layer["mark"]["type"] for layer in lens_comparison(frame).to_dict()["layer"]]
        assert "area" not in marks
    flat = compared(kl=0.0).drop(columns=["low", "high"])
    assert lens_comparison(flat)


def test_summaries_of_lens_results_are_drawn() -> None:
    summary = logit_lens(tiny_model(), ["hello there", "abc"]).summary()
    chart = lens_comparison(summary.rename(columns={"kl_low": "low", "kl_high": "high"}))
    assert len({(row["line"], row["layer"]) for row in drawn(chart)}) == 3
    assert plot.to_svg(chart).startswith("<svg")


@pytest.mark.parametrize("statistic", ["probability", "rank"])
def test_followed_tokens(statistic: str) -> None:
    frame = logit_lens(tiny_model(), "hello there", answer=["a", "b", "c"]).followed()
    frame = frame[frame["pos"] == 5]
    rows = drawn(followed_tokens(frame, statistic))
    column = "probability" if statistic == "probability" else "rank_log"
    found = {(row["line"], row["layer"]): row[column] for row in rows if column in row}
    assert len(found) == 9
    for line in frame.itertuples():
        expected = line.probability if statistic == "probability" else np.log10(line.rank + 1)
        assert found[line.answer, line.layer] == pytest.approx(expected)


def test_hostile_tokens_stay_text() -> None:
    frame = pd.DataFrame({"layer": [0, 1], "answer": "</script><script>alert(1)</script>", "probability": [0.1, 0.9]})
    assert "<script>alert" not in plot.to_svg(followed_tokens(frame))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: lens_comparison(pd.concat([compared(), compared()])), "several rows for one layer and lens"),
        (lambda: lens_comparison(compared().drop(columns="kl")), "no column kl"),
        (lambda: lens_comparison(compared().iloc[:0]), "no rows"),
        (lambda: followed_tokens(compared(answer="a"), "entropy"), "statistic must be"),
        (lambda: followed_tokens(compared(answer="a", probability=0.5)), "several rows for one layer and answer"),
    ],
)
def test_bad_frames(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
