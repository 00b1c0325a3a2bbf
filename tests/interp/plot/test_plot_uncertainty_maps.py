"""Charts of entropy by layer, smooth reliability, temperatures and ways to ask."""

import json
import math

import pandas as pd
import pytest
from hostile import HOSTILE

from interp import plot
from interp.calibration.curve import reliability_bins, reliability_curve
from interp.plot.uncertainty import entropy_map, format_accuracies, smooth_reliability, temperature_curve


def lens(n: int = 4, layers: int = 3) -> pd.DataFrame:
    rows = [
        {"layer": layer, "pos": pos, "token": HOSTILE[pos % len(HOSTILE)], "top1": HOSTILE[-1 - pos % len(HOSTILE)],
         "p_top1": 0.5, "entropy": float(layer + pos)}
        for layer in range(-1, layers) for pos in range(n)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def drawn(chart: plot.Chart) -> list[dict]:
    return [row for rows in chart.to_dict()["datasets"].values() for row in rows]


def test_the_map_has_a_cell_for_each_layer_and_token_and_can_be_clicked() -> None:
    chart = entropy_map(lens(), selected=2)
    rows = drawn(chart)
    assert len(rows) == 16
    assert {row["entropy"] for row in rows} == {float(v) for v in range(-1, 6)}
    assert next(each for each in chart.to_dict()["params"] if each["name"] == "cell")["select"]["fields"] == [
        "layer",
        "pos",
    ]
    plot.to_svg(chart)
    plot.to_html(chart)


def test_the_map_refuses_two_texts_and_too_many_cells() -> None:
    with pytest.raises(ValueError, match="several rows"):
        entropy_map(pd.concat([lens(), lens()]))
    with pytest.raises(ValueError, match="marks are more"):
        entropy_map(lens(n=1300))
    with pytest.raises(ValueError, match="no column kl"):
        entropy_map(lens(), "kl")


def test_the_curve_is_thick_where_rows_lie() -> None:
    p, y = [0.2] * 30 + [0.8] * 3, [0, 1, 0] * 11
    curve, bins = reliability_curve(p, y, sigma=0.1), reliability_bins(p, y)
    chart = smooth_reliability(curve, bins, title="n = 33")
    weights = {round(row["p"], 2): row["weight"] for row in drawn(chart) if "weight" in row}
    assert weights[0.2] > 5 * weights[0.8]
    assert weights[0.2] > 0.95
    types = [layer["mark"]["type"] for layer in chart.to_dict()["layer"]]
    assert types == ["area", "line", "trail", "rule", "point"]
    assert [layer["mark"]["type"] for layer in smooth_reliability(curve.drop(columns=["low", "high"])).to_dict()["layer"]] == [
        "line", "trail",
    ]  # fmt: skip
    plot.to_svg(chart)


def test_temperatures_mark_the_fitted_and_the_chosen_one() -> None:
    frame = pd.DataFrame({"temperature": [0.5, 1.0, 2.0], "ece": [0.2, 0.05, 0.1], "n": 10})
    chart = temperature_curve(frame, fitted=1.2, chosen=1.01)
    assert [row["chosen"] for row in drawn(chart) if "chosen" in row] == [False, True, False]
    assert "fitted T 1.20" in json.dumps(chart.to_dict())
    assert "fitted" not in json.dumps(temperature_curve(frame).to_dict())
    plot.to_svg(chart)


def test_ways_to_ask_stand_beside_chance() -> None:
    row = {"accuracy": 0.6, "low": 0.5, "high": 0.7, "chance": 0.25, "n": 40}
    frame = pd.DataFrame(
        [
            {"format": "text", "by": "sum", "informative": True, **row},
            {"format": HOSTILE[0], "by": None, "informative": False, **row},
            {"format": "letter", "by": "sum", "informative": None, **row, "accuracy": math.nan},
        ]
    )
    rows = drawn(format_accuracies(frame))
    assert (rows[0]["name"], rows[0]["kind"]) == ("text (sum)", "told from chance")
    assert rows[1]["kind"] == "not informative"
    assert len(rows) == 2
    with pytest.raises(ValueError, match="one name"):
        format_accuracies(pd.concat([frame, frame]))
    plot.to_svg(format_accuracies(frame))
