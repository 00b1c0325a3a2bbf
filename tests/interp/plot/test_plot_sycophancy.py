"""Charts of sycophancy: what is drawn, in which order, and frames that hold nothing."""

from typing import Any

import pandas as pd
import pytest

from interp.plot import to_svg
from interp.plot.sycophancy import sycophancy_accuracy, sycophancy_layers, sycophancy_shifts, sycophancy_steering


def wordings() -> pd.DataFrame:
    shares = {"accuracy": 0.4, "accuracy_low": 0.3, "accuracy_high": 0.5}
    rows: list[dict[str, Any]] = [{"kind": "none", "wording": "none", "stated": "none", **shares}]
    for wording, kind in (("</text>zebra", "opinion"), ("apple", "mention")):
        for stated in ("wrong", "right"):
            rows.append(
                {"kind": kind, "wording": wording, "stated": stated, "shift": 2.0, "low": 1.0, "high": 3.0, **shares}
            )
    return pd.DataFrame(rows)


def test_shifts_have_a_panel_for_each_stated_option_and_keep_their_order() -> None:
    chart = sycophancy_shifts(wordings()).to_dict()
    assert len(chart["vconcat"]) == 2
    title = chart["vconcat"][0]["layer"][2]["encoding"]["x"]["title"]
    assert title == "shift of the stated wrong option's log-odds (nats)"
    assert chart["vconcat"][0]["layer"][2]["encoding"]["y"]["sort"] == ["</text>zebra", "apple"]
    svg = to_svg(sycophancy_shifts(wordings()))
    assert "&lt;/text&gt;zebra" in svg


def test_a_shift_without_an_interval_is_a_bare_point() -> None:
    table = wordings()
    table[["low", "high"]] = float("nan")
    assert "NaN" not in to_svg(sycophancy_shifts(table))


def test_accuracies_show_chance_and_the_questions_alone() -> None:
    chart = sycophancy_accuracy(wordings(), chance=0.25).to_dict()
    drawn = [row["x"] for data in chart["datasets"].values() for row in data if "x" in row]
    assert sorted(drawn) == [0.25, 0.4]
    with pytest.raises(ValueError, match="no rows"):
        sycophancy_accuracy(wordings().iloc[1:], chance=0.25)


def test_layers_leave_out_the_line_without_an_opinion() -> None:
    lines = ("none", "opinion", "mention", "excess")
    table = pd.DataFrame(
        [{"line": line, "layer": layer, "shift": 1.0, "low": 0.5, "high": 1.5} for line in lines for layer in range(3)]
    )
    chart = sycophancy_layers(table).to_dict()
    drawn = {row["line"] for data in chart["datasets"].values() for row in data if "line" in row}
    assert drawn == {"opinion", "mention", "excess"}
    assert "opinion less mention" in to_svg(sycophancy_layers(table))
    with pytest.raises(ValueError, match="no column line"):
        sycophancy_layers(table.drop(columns="line"))


def test_every_direction_passes_through_the_unsteered_model() -> None:
    names = ("shift", "excess", "flip", "accuracy")
    ends = ("low", "high", *(f"{name}_{end}" for name in names[1:] for end in ("low", "high")))
    figures = dict.fromkeys((*names, *ends), 0.5)
    directions = [("none", 0.0), ("vector", -0.1), ("isotropic 1", -0.1)]
    table = pd.DataFrame([{"direction": name, "strength": strength, **figures} for name, strength in directions])
    chart = sycophancy_steering(table).to_dict()
    assert len(chart["vconcat"]) == 4
    drawn = [row for data in chart["datasets"].values() for row in data]
    for direction in ("vector", "isotropic 1"):
        assert {row["strength"] for row in drawn if row["direction"] == direction} == {0.0, -0.1}
    to_svg(sycophancy_steering(table))
