"""Charts of steering: a panel for each measure, the random band, what was not measured, and damage over a bound."""

import json
import math
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

from interp import plot
from interp.plot.steering import steering_damage, steering_effect, steering_slopes, strength_map

HOSTILE = "</script><b>\u202e{{7*7}} url(x)"
GRID = (-0.1, 0.0, 0.1)


def effects(**columns: object) -> pd.DataFrame:
    rows = [("vector", s, 20 * s) for s in GRID]
    rows += [(f"random {i} (isotropic)", s, (i - 2) * s) for i in range(5) for s in GRID if s]
    frame = pd.DataFrame(rows, columns=["direction", "strength", "effect"])
    return frame.assign(low=frame["effect"] - 0.5, high=frame["effect"] + 0.5, n=18).assign(**columns)


def damage(**columns: object) -> pd.DataFrame:
    frame = effects()[["direction", "strength"]]
    frame = frame.assign(loss_rise=8 * frame["strength"] ** 2, accuracy=0.7, kl_mean=math.nan, n_texts=5)
    return frame.assign(loss_low=frame["loss_rise"] * 0.9, loss_high=frame["loss_rise"] * 1.1).assign(**columns)


def cells(**columns: object) -> pd.DataFrame:
    rows = [(layer, s, 10 * s * layer, 4 * abs(s) * layer) for layer in range(4) for s in (-0.1, 0.1)]
    return pd.DataFrame(rows, columns=["layer", "strength", "effect", "loss_rise"]).assign(**columns)


def drawn(chart: plot.Chart) -> list[dict]:
    """All rows that the chart draws."""
    return [row for rows in chart.to_dict()["datasets"].values() for row in rows]


def test_the_band_reaches_from_the_least_to_the_most_and_meets_the_vector_at_0() -> None:
    band = [row for row in drawn(steering_effect(effects())) if "least" in row]
    expected = [(-0.1, -0.2, 0.2), (0.0, 0.0, 0.0), (0.1, -0.2, 0.2)]
    np.testing.assert_allclose([(row["strength"], row["least"], row["most"]) for row in band], expected)


def test_random_directions_at_strength_0_are_left_out() -> None:
    frame = effects()
    zero = frame.loc[frame["direction"] != "vector"].assign(strength=0.0)
    kinds = [row["kind"] for row in drawn(steering_effect(pd.concat([frame, zero]))) if "kind" in row]
    assert kinds.count("random directions") == 10


def test_a_panel_for_each_measure_with_its_unit() -> None:
    both = pd.concat([effects(measure="preference", unit="nats"), effects(measure="probe", unit="logit")])
    spec = steering_effect(both).to_dict()
    assert len(spec["vconcat"]) == 2
    assert "effect on probe (logit)" in json.dumps(spec["vconcat"][1])
    assert "layer" in steering_effect(both.query("measure == 'probe'")).to_dict()


def test_an_instruction_is_a_line_without_a_strength() -> None:
    told = pd.DataFrame([{"direction": "instruction", "strength": 0.0, "effect": 1.5, "low": 1.0, "high": 2.0}])
    spec = steering_effect(pd.concat([effects(), told])).to_dict()
    line = next(layer for layer in spec["layer"] if layer["mark"]["type"] == "rule" and "strokeDash" in layer["mark"])
    assert set(line["encoding"]) >= {"y", "tooltip"}
    assert "x" not in line["encoding"]


def test_only_damage_that_was_measured_is_drawn() -> None:
    spec = steering_damage(damage(), bound=0.06).to_dict()
    text = json.dumps(spec)
    assert "rise of the loss" in text
    assert "accuracy" in text
    assert "KL" not in text
    assert [row["bound"] for row in drawn(steering_damage(damage(), bound=0.06)) if "bound" in row] == [0.06]
    assert "layer" in steering_damage(damage(accuracy=math.nan)).to_dict()
    with pytest.raises(ValueError, match="no damage was measured"):
        steering_damage(damage(accuracy=math.nan, loss_rise=math.nan))


def test_slopes_are_sorted_and_say_their_way() -> None:
    chart = steering_slopes(pd.DataFrame({"slope": [3.0, -1.0, 2.0], "prompt": ["a", "b", "c"]}))
    rows = [row for row in drawn(chart) if "place" in row]
    assert [(row["place"], row["slope"], row["prompt"]) for row in rows] == [
        (1, -1.0, "b"),
        (2, 2.0, "c"),
        (3, 3.0, "a"),
    ]
    assert [row["way"] for row in rows] == ["against the vector", *["with the vector"] * 2]


def test_the_map_crosses_what_is_over_the_bound() -> None:
    over = {(r["layer"], r["strength"]) for r in drawn(strength_map(cells(), bound=0.5)) if r.get("over")}
    assert over == {(2, -0.1), (2, 0.1), (3, -0.1), (3, 0.1)}
    assert not any(row.get("over") for row in drawn(strength_map(cells())))
    with pytest.raises(ValueError, match="not measured in every cell"):
        strength_map(cells(loss_rise=math.nan), bound=0.5)


def test_the_map_keeps_kinds_of_sites_apart() -> None:
    names = [f"blocks.{layer}.hook_resid_post" for layer in cells()["layer"]]
    both = pd.concat([cells(site=names), cells(site=[name.replace("post", "mid") for name in names])])
    rows = {row["row"] for row in drawn(strength_map(both))}
    assert rows == {f"{kind} {s}" for kind in ("resid_post", "resid_mid") for s in ("+0.1", "-0.1")}
    with pytest.raises(ValueError, match="several rows for one layer"):
        strength_map(pd.concat([cells(), cells()]))


def test_the_map_has_the_largest_strength_on_top() -> None:
    spec = strength_map(cells(), bound=0.5, selected=(1, 0.1)).to_dict()
    assert spec["layer"][0]["encoding"]["y"]["sort"] == ["+0.1", "-0.1"]
    assert "× loss rise over 0.5" in json.dumps(spec, ensure_ascii=False)


@pytest.mark.parametrize(
    "chart",
    [
        steering_effect(
            effects(measure=HOSTILE, unit=HOSTILE, direction=["vector"] * 3 + [HOSTILE] * 10), dose=HOSTILE
        ),
        steering_slopes(
            pd.DataFrame({"slope": np.arange(3.0) - 1, "prompt": HOSTILE, "group": HOSTILE, "measure": HOSTILE})
        ),
        steering_damage(damage()),
        strength_map(cells(), bound=0.5, selected=(1, 0.1)),
    ],
    ids=["effect", "slopes", "damage", "map"],
)
def test_hostile_names_stay_text_and_the_paper_shows_through(chart: plot.Chart) -> None:
    spec = chart.to_dict()
    assert spec["background"] == "transparent"
    assert "tooltip" in json.dumps(spec)
    root = ElementTree.fromstring(plot.to_svg(chart))
    tags = {element.tag.split("}")[1] for element in root.iter()}
    assert tags <= {"svg", "g", "path", "text", "tspan", "line", "rect", "title", "defs", "clipPath"}
    assert "\u202e" not in "".join(root.itertext())


def test_strengths_stand_at_the_axis_as_they_are() -> None:
    frame = effects()
    shown = plot.to_svg(steering_effect(frame.assign(strength=frame["strength"] * 1.25)))
    assert ">0.125<" in shown
    assert ">−0.125<" in shown
