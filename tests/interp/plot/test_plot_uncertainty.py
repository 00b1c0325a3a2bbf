"""Charts of risk against coverage and of signals: what is drawn, in which order, and what is said where nothing is known."""

import json
import math
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

from interp import plot
from interp.plot.uncertainty import REVERSED, SURE, UNSURE, risk_coverage, signal_ranking

HOSTILE = "</script><b>\u202e{{7*7}} url(x)"


def curve(n: int = 50, **columns: object) -> pd.DataFrame:
    coverage = np.arange(1, n + 1) / n
    frame = pd.DataFrame({"coverage": coverage, "risk": 0.3 * coverage, "threshold": -coverage})
    return frame.assign(low=frame["risk"] * 0.8, high=frame["risk"] * 1.2 + 0.02, n_answered=range(1, n + 1)).assign(
        **columns
    )


def ranking(**columns: object) -> pd.DataFrame:
    rows = [("b", 0.8, 0.7, 0.9, True, ""), ("a", 0.55, 0.4, 0.7, False, ""), ("c", 0.3, 0.2, 0.4, False, "turn")]
    rows.append(("none", math.nan, math.nan, math.nan, False, "all 12 rows that have a value are right"))
    frame = pd.DataFrame(rows, columns=["signal", "auroc", "low", "high", "reliable", "note"])
    return frame.assign(n=40, n_missing=2, aurc=0.1, excess_aurc=0.05).assign(**columns)


def drawn(chart: plot.Chart) -> list[dict]:
    """All rows that the chart draws."""
    return [row for rows in chart.to_dict()["datasets"].values() for row in rows]


def marks(chart: plot.Chart) -> list[str]:
    return [layer["mark"]["type"] for layer in chart.to_dict()["layer"]]


def test_one_curve_has_its_band_and_the_risk_of_answering_all() -> None:
    chart = risk_coverage(curve())
    assert marks(chart)[0] == "area"
    named = [row["name"] for row in drawn(chart) if "name" in row]
    assert named == ["answer all 0.300"]
    assert {row["line"] for row in drawn(chart) if "line" in row} == {"all rows"}
    tips = json.dumps(chart.to_dict())
    assert "n answered" in tips


def test_lines_are_told_apart_and_many_have_no_bands() -> None:
    lines = pd.concat([curve(signal=name) for name in ("one", "two", "three")])
    chart = risk_coverage(lines)
    assert "area" not in marks(chart)
    assert [row["name"] for row in drawn(chart) if "name" in row] == ["answer all 0.300"]
    assert "area" in marks(risk_coverage(lines.loc[lines["signal"] != "three"]))
    other = pd.concat([curve(signal="one"), curve(signal="two").assign(risk=lambda f: f["risk"] / 3)])
    assert len([row for row in drawn(risk_coverage(other)) if "name" in row]) == 2
    assert {row["line"] for row in drawn(risk_coverage(lines, colour=None)) if "line" in row} == {"all rows"}


def test_a_few_thresholds_are_points_and_many_rows_are_thinned() -> None:
    def opacity(chart: plot.Chart) -> float:
        return next(layer["mark"]["opacity"] for layer in chart.to_dict()["layer"] if layer["mark"]["type"] == "point")

    assert opacity(risk_coverage(curve(5))) == 1
    assert opacity(risk_coverage(curve(200))) == 0
    many = pd.concat([curve(4000, signal=name) for name in "abc"])
    points = [row for row in drawn(risk_coverage(many)) if "line" in row]
    assert len(points) <= 5000
    assert max(row["coverage"] for row in points) == 1.0


def test_no_text_of_the_curve_stands_on_another() -> None:
    other = pd.concat([curve(signal="one"), curve(signal="two").assign(risk=lambda f: f["risk"] * 1.01)])
    at = sorted(row["at"] for row in drawn(risk_coverage(other)) if "at" in row)
    assert at[1] - at[0] > 0.01  # the lines are 0.003 apart


def test_signals_stand_in_the_order_of_the_frame_and_say_what_they_are() -> None:
    chart = signal_ranking(ranking())
    rows = [row for row in drawn(chart) if "said" in row]
    assert [row["name"] for row in rows] == ["b", "a", "c", "none"]
    assert [row["kind"] for row in rows[:3]] == [SURE, UNSURE, REVERSED]
    assert rows[0]["said"] == "0.800 (n = 40)"
    assert rows[3]["auroc"] is None
    assert rows[3]["missing"] == "all 12 rows that have a value are right"
    spec = json.dumps(chart.to_dict())
    assert '"domain": [0.2, 1]' in spec
    bare = signal_ranking(ranking()[["signal", "auroc"]].head(3))
    assert {row["kind"] for row in drawn(bare) if "kind" in row} == {SURE}


@pytest.mark.parametrize(
    "chart",
    [
        risk_coverage(pd.concat([curve(signal=HOSTILE), curve(signal="b")])),
        signal_ranking(ranking(signal=[HOSTILE, "a", "b", "c"], note=HOSTILE)),
    ],
)
def test_names_are_never_markup(chart: plot.Chart) -> None:
    svg = plot.to_svg(chart)
    ElementTree.fromstring(svg)
    assert "</script>" not in svg
    assert "\u202e" not in svg
    assert plot.to_png(chart).startswith(b"\x89PNG")


def test_bad_frames_are_refused() -> None:
    with pytest.raises(ValueError, match="no column risk"):
        risk_coverage(pd.DataFrame({"coverage": [1.0]}))
    with pytest.raises(ValueError, match="no rows"):
        risk_coverage(curve().assign(risk=math.nan))
    with pytest.raises(ValueError, match="no column auroc"):
        signal_ranking(pd.DataFrame({"signal": ["a"]}))
    with pytest.raises(ValueError, match="two signals have one name"):
        signal_ranking(pd.concat([ranking(), ranking()]))
