"""Charts of grounding: what is drawn is what the frames say, and nothing hostile gets into them."""

import math

import pandas as pd
import pytest

from interp import plot
from interp.plot.grounding import abstention_curve, attention_reach, grounding_errors, grounding_signals

HOSTILE = "</script><b>\u202e{{7*7}} url(x)"


def conditions() -> pd.DataFrame:
    rows = [("none", 0.5, 0.4, 0.6, math.nan), ("retrieved", 0.1, 0.05, 0.2, -0.4), (HOSTILE, 0.3, 0.2, 0.4, -0.2)]
    return pd.DataFrame(rows, columns=["condition", "error", "error_low", "error_high", "change"]).assign(n=40)


def curve() -> pd.DataFrame:
    rows = [(part, t, 1 - t, 0.4 - 0.3 * t, int(40 * (1 - t))) for part in ("choose", "check") for t in (0.0, 0.5, 0.9)]
    rows.append(("check", 1.0, 0.0, math.nan, 0))
    return pd.DataFrame(rows, columns=["part", "threshold", "answered", "error", "n_answered"])


def signals() -> pd.DataFrame:
    rows = [
        ("score", 0.9, 0.8, 0.95, 40, True),
        (HOSTILE, 0.5, 0.4, 0.6, 40, False),
        ("gap", math.nan, math.nan, math.nan, 0, False),
    ]
    return pd.DataFrame(rows, columns=["signal", "auroc", "low", "high", "n", "reliable"])


def layers() -> pd.DataFrame:
    rows = [
        (name, layer, 0.1 * layer, 0.1 * layer - 0.02, 0.1 * layer + 0.02, 0.6, 40)
        for name in ("retrieved", "gold")
        for layer in range(4)
    ]
    return pd.DataFrame(rows, columns=["condition", "layer", "share", "low", "high", "even", "n"])


def drawn(chart: plot.Chart) -> list[dict]:
    """All rows that the chart draws."""
    return [row for rows in chart.to_dict()["datasets"].values() for row in rows]


def test_errors_stand_beside_the_rate_without_evidence() -> None:
    found = drawn(grounding_errors(conditions()))
    assert [row["error"] for row in found if set(row) == {"error"}] == [0.5]
    points = {row["name"]: row["error"] for row in found if "name" in row}
    assert points["no evidence"] == 0.5
    assert points["retrieved"] == 0.1
    assert len(points) == 3


def test_the_curve_has_both_halves_and_the_chosen_point() -> None:
    chosen = {
        "threshold": 0.5,
        "answered": 0.5,
        "error": 0.25,
        "error_low": 0.1,
        "error_high": 0.4,
        "target": 0.2,
        "n": 20,
    }
    found = drawn(abstention_curve(curve(), chosen=chosen))
    halves = [row for row in found if "half" in row]
    assert len(halves) == 6  # what nobody is answered at has no error
    assert {row["half"] for row in halves} == {"the half that chooses", "the half that checks"}
    assert [row["answered"] for row in found if "target" in row] == [0.5]
    assert abstention_curve(curve()).to_dict()


def test_signals_that_may_be_chance_are_grey() -> None:
    found = {
        row["signal"]: row
        for row in drawn(grounding_signals(signals(), names={"score": "score of the best passage"}))
        if "signal" in row
    }
    assert len(found) == 2
    assert found["score"]["name"] == "score of the best passage"
    assert found["score"]["colour"] != found[HOSTILE]["colour"]


def test_attention_has_a_line_for_each_kind_of_evidence() -> None:
    found = drawn(attention_reach(layers()))
    assert {row["line"] for row in found if "line" in row} == {"retrieved", "the right passage"}
    assert next(row["value"] for row in found if "value" in row) == pytest.approx(0.6)


@pytest.mark.parametrize("make", [grounding_errors, abstention_curve, grounding_signals, attention_reach])
def test_every_chart_becomes_a_safe_picture_and_refuses_what_it_cannot_draw(make) -> None:
    frame = {
        grounding_errors: conditions,
        abstention_curve: curve,
        grounding_signals: signals,
        attention_reach: layers,
    }[make]()
    svg = plot.to_svg(make(frame))
    assert "<script" not in svg
    assert "</script><b>" not in svg
    assert "\u202e" not in svg
    with pytest.raises(ValueError, match="no column"):
        make(frame.iloc[:, :1])
    with pytest.raises(ValueError, match="no rows"):
        make(frame.iloc[:0])
