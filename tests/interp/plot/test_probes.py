"""Charts of probes: what is drawn, what is marked, and what is refused."""

import json
from collections.abc import Callable
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
import pytest

from interp.plot.probe_parts import decodable_and_used, part_intervals, probe_scores
from interp.plot.probes import layer_transfer, place_grid, probed_heads, transfer_matrix
from interp.plot.style import Chart, to_svg

MATRIX = pd.DataFrame(
    [("plain", "plain", 0.94, 0.02), ("plain", "<b>", 0.08, 0.02), ("<b>", "plain", 0.52, 0.05), ("<b>", "<b>", 0.9, 0.02)],
    columns=["train", "test", "auroc", "width"],
)  # fmt: skip
MATRIX = MATRIX.assign(
    low=MATRIX["auroc"] - MATRIX["width"], high=MATRIX["auroc"] + MATRIX["width"], n=100, n_groups=50
)
LAYERS = pd.concat([MATRIX.assign(layer=layer, auroc=MATRIX["auroc"] - 0.01 * layer) for layer in range(-1, 5)])
SWEEP = pd.DataFrame(
    [(layer, kind, 0.5 + 0.05 * layer) for kind in ("logistic", "ttpd") for layer in range(5)],
    columns=["layer", "kind", "auroc"],
)
SWEEP = SWEEP.assign(low=SWEEP["auroc"] - 0.02, high=SWEEP["auroc"] + 0.02)
HEADS = pd.DataFrame([(layer, head, 0.3 + 0.1 * layer) for layer in range(4) for head in range(3)])
HEADS.columns = ["layer", "head", "auroc"]
PARTS = pd.DataFrame(
    [("polarity", "affirmative", 0.9), ("polarity", "negated", 0.4), ("topic", "<b>", 0.8)],
    columns=["part", "value", "auroc"],
)
PARTS = PARTS.assign(low=PARTS["auroc"] - 0.05, high=PARTS["auroc"] + 0.05, kind="logistic", n=100)
USED = pd.DataFrame({"layer": range(4), "auroc": [0.5, 0.7, 0.9, 0.9], "effect": [0.1, np.nan, 2.0, 0.1]})
USED = USED.assign(low=USED["auroc"] - 0.05, high=USED["auroc"] + 0.05, random_low=-0.3, random_high=0.3)
PROBABILITY, LABEL = np.array([0.1, 0.2, 0.2, 0.9, 0.8, 1.0]), np.array([0, 0, 1, 1, 1, 1])

CHARTS: dict[str, Callable[[], Chart]] = {
    "matrix": lambda: transfer_matrix(MATRIX),
    "curves": lambda: layer_transfer(LAYERS),
    "places": lambda: place_grid(SWEEP, selected={"ttpd": 3}),
    "heads": lambda: probed_heads(HEADS, selected=(1, 2)),
    "scores": lambda: probe_scores(PROBABILITY, LABEL, threshold=0.5),
    "parts": lambda: part_intervals(PARTS),
    "used": lambda: decodable_and_used(USED, selected=2),
}


def data_of(chart: Chart) -> list[dict[str, Any]]:
    return [row for rows in chart.to_dict()["datasets"].values() for row in rows]


@pytest.mark.parametrize("name", CHARTS)
def test_every_chart_is_valid_has_no_background_and_keeps_names_as_text(name: str) -> None:
    chart = CHARTS[name]()
    spec = chart.to_dict()  # Altair checks it against the Vega-Lite schema
    assert spec["background"] == "transparent"
    assert "tooltip" in json.dumps(spec)
    svg = to_svg(chart)
    assert "<b>" not in svg
    assert "url(" not in svg


def test_a_matrix_marks_what_is_not_told_from_chance() -> None:
    chart = transfer_matrix(MATRIX, train_order=["<b>", "plain"])
    cells = {(row["train"], row["test"]): row for row in data_of(chart)}
    assert cells["plain", "<b>"]["said"] == "0.08"
    assert [pair for pair, row in cells.items() if row["chance"]] == [("<b>", "plain")]
    assert to_svg(chart).count("stroke-dasharray") == 1
    spec = chart.to_dict()
    assert spec["layer"][0]["encoding"]["y"]["sort"] == ["<b>", "plain"]
    # The colour is nothing at one half, whatever the cells hold.
    assert spec["layer"][0]["encoding"]["color"]["scale"]["domain"][1:3] == pytest.approx([0.5, 0.5], abs=1e-6)
    bare = transfer_matrix(MATRIX[["train", "test", "auroc"]])
    assert "stroke-dasharray" not in to_svg(bare)


def test_long_names_that_differ_in_their_middle_stay_apart() -> None:
    names = [f"statements about {word} and their names" for word in ("rivers", "towns")]
    frame = MATRIX.assign(train=[names[0], names[0], names[1], names[1]])
    assert len({row["train"] for row in data_of(transfer_matrix(frame))}) == 2


def test_curves_have_a_panel_for_each_test_set_and_a_line_for_each_train_set() -> None:
    spec = layer_transfer(LAYERS, test_order=["<b>", "plain"], columns=1).to_dict()
    assert [panel["hconcat"][0]["title"]["text"] for panel in spec["vconcat"]] == ["tested on <b>", "tested on plain"]
    legends = [panel["hconcat"][0]["layer"][1]["encoding"]["color"]["legend"] for panel in spec["vconcat"]]
    assert legends[0] is not None
    assert legends[1] is None
    assert "embed" in to_svg(layer_transfer(LAYERS))


def test_a_grid_marks_the_chosen_layer_of_its_row_alone() -> None:
    chosen = [row for row in data_of(place_grid(SWEEP, selected={"ttpd": 3})) if row.get("chosen")]
    assert [(row["row"], row["layer"]) for row in chosen] == [("ttpd", 3)]
    several = pd.concat([SWEEP.assign(site="attn_out"), SWEEP.assign(site="mlp_out")])
    assert "ttpd · mlp_out" in to_svg(place_grid(several, row=["kind", "site"]))
    with pytest.raises(ValueError, match="no row of the grid: it has logistic, ttpd"):
        place_grid(SWEEP, selected={"lda": 3})


def test_scores_are_shares_of_each_label() -> None:
    rows = [row for row in data_of(probe_scores(PROBABILITY, LABEL, n_bins=10)) if "share" in row]
    for label, sign in (("false", -1), ("true", 1)):
        mine = [row for row in rows if row["label"] == label]
        assert sum(row["share"] for row in mine) == pytest.approx(1)
        assert all(row["signed"] * sign > 0 for row in mine)
    assert sum(row["n"] for row in rows) == 6
    with pytest.raises(ValueError, match=r"in \[0, 1\]"):
        probe_scores(PROBABILITY * 2, LABEL)
    with pytest.raises(ValueError, match="label 0 or 1"):
        probe_scores(PROBABILITY, LABEL + 1)


def test_parts_stand_one_below_the_other_for_each_kind() -> None:
    both = pd.concat([PARTS, PARTS.assign(kind="ttpd")])
    svg = to_svg(part_intervals(both))
    assert "polarity: negated" in svg
    assert "ttpd" in svg
    assert len(data_of(part_intervals(both))) == 6 + 1


def test_effects_are_drawn_where_they_were_measured() -> None:
    chart = decodable_and_used(USED)
    effects = {row["layer"] for row in data_of(chart) if row.get("effect") is not None and "auroc" in row}
    assert effects == {0, 2, 3}
    assert isinstance(chart, alt.VConcatChart)
    with pytest.raises(ValueError, match="no effect that was measured"):
        decodable_and_used(USED.assign(effect=np.nan))


@pytest.mark.parametrize(
    ("draw", "frame", "message"),
    [
        (transfer_matrix, pd.concat([MATRIX, MATRIX]), "several rows for one pair"),
        (layer_transfer, pd.concat([LAYERS, LAYERS]), "several rows for one layer"),
        (layer_transfer, LAYERS.assign(train=range(len(LAYERS))), "24 train sets are more lines"),
        (place_grid, pd.concat([SWEEP, SWEEP]), "several rows for one cell"),
        (probed_heads, pd.concat([HEADS, HEADS]), "several rows for one head"),
        (part_intervals, PARTS.assign(kind="k").loc[[0] * 7].assign(kind=range(7)), "7 values of 'kind'"),
    ],
)
def test_frames_that_cannot_be_told_apart_are_refused(draw: Any, frame: pd.DataFrame, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draw(frame)


@pytest.mark.parametrize(
    "draw", [transfer_matrix, layer_transfer, place_grid, probed_heads, part_intervals, decodable_and_used]
)
def test_frames_without_columns_or_rows_are_refused(draw: Any) -> None:
    with pytest.raises(ValueError, match="no column"):
        draw(pd.DataFrame({"x": [1]}))
