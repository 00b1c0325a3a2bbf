"""Steering: dose and response beside random directions, what it damages, slopes of single items, and layer x strength.

In every chart the vector is blue with its 95 % interval, random directions of its norm are grey ticks in a grey band from the
smallest to the largest, and an instruction in the prompt, which has no strength, is a dashed orange line.
"""

from collections.abc import Sequence

import altair as alt
import numpy as np
import pandas as pd

from interp import sites
from interp.plot.patching import signed
from interp.plot.style import (
    BLUE,
    GREY,
    INK,
    ORANGE,
    VERMILION,
    clamp,
    layered,
    need,
    rows,
    token_label,
    words,
    zero_line,
)

DOSE = "typical norms of the site"
"""The unit of strength where nothing else is said."""
DAMAGE = {
    "loss_rise": "rise of the loss (nats a token)",
    "kl_mean": "KL, all positions (nats)",
    "kl_last": "KL, last position (nats)",
    "accuracy": "accuracy on multiple choice",
    "distinct_2": "distinct pairs of tokens (share)",
    "repetition": "repeated 4-grams (share)",
}
"""Columns of damage that are drawn, and what stands at their axis."""

_BOUNDS = {
    "effect": ("low", "high"),
    "loss_rise": ("loss_low", "loss_high"),
    "accuracy": ("accuracy_low", "accuracy_high"),
}
_SHARES = ("accuracy", "distinct_2", "repetition")
_COLOURS = {"vector": BLUE, "random directions": GREY, "instruction": ORANGE}
_COUNTS = ("n", "n_texts", "n_tokens", "n_choices")
_WIDTH = 60
_WAYS = {False: "with the vector", True: "against the vector", None: "no wrong way"}
"""Whether an item goes the wrong way -> what the legend says."""
"""Longest name of a measure or unit, in characters."""


def steering_effect(
    effects: pd.DataFrame, *, unit: str = "nats", dose: str = DOSE
) -> alt.LayerChart | alt.VConcatChart:
    """Dose and response of a steering vector, and what random directions of the same length do.

    Args:
        effects: a row for each direction and strength: `direction` ("vector", "instruction", or another name for a random
            one), `strength`, `effect`, and `low` and `high` where there is an interval. With `measure`, a panel for each;
            with `unit`, the measure's own.
        unit: of the effect, where the frame does not say.
        dose: unit of the strength.
    """
    need(effects, "direction", "strength", "effect")
    table = effects.dropna(subset=["effect"])
    need(table, "effect")
    panels = []
    for name, part in _by_measure(table):
        own = token_label(str(part["unit"].tolist()[0] if "unit" in part else unit), _WIDTH)
        title = f"effect{f' on {name}' if name else ''} ({own})"
        panels.append(_response(part, "effect", title, dose, size=(520, 260), among=table, legend=not panels))
    return _stacked([[panel] for panel in panels])


def steering_damage(
    damage: pd.DataFrame, *, bound: float | None = None, dose: str = DOSE, columns: int = 2
) -> alt.LayerChart | alt.VConcatChart:
    """What steering breaks: a panel for each kind of damage that was measured.

    Args:
        damage: a row for each direction and strength: `direction`, `strength`, and columns of `DAMAGE`, with `loss_low` and
            `loss_high`, `accuracy_low` and `accuracy_high` where there are intervals.
        bound: most rise of the loss that is accepted, drawn as a line.
        dose: unit of the strength.
        columns: panels side by side.
    """
    need(damage, "direction", "strength")
    shown = [name for name in DAMAGE if _measured(damage, name)]
    if not shown:
        raise ValueError(f"no damage was measured: the frame has none of {', '.join(DAMAGE)}")
    size = (520, 240) if len(shown) == 1 else (330, 180)
    panels = [
        _response(
            damage.dropna(subset=[name]), name, DAMAGE[name], dose, size=size, among=damage.dropna(subset=shown, how="all"),
            legend=not place, bound=bound if name == "loss_rise" else None,
        )
        for place, name in enumerate(shown)
    ]  # fmt: skip
    return _stacked([panels[i : i + columns] for i in range(0, len(panels), columns)])


def steering_slopes(slopes: pd.DataFrame, *, dose: str = "unit of strength") -> alt.LayerChart | alt.VConcatChart:
    """How far each item moves for one unit of strength, in order.

    Args:
        slopes: a row for each item: `slope`, and `prompt`, `group` and `measure` where they are known; a panel for each
            measure. `wrong` says which items move against the vector, NaN where none does; without it those below zero do.
        dose: what one unit is.
    """
    need(slopes, "slope")
    panels = []
    for name, part in _by_measure(slopes):
        table = part.loc[:, [c for c in ("slope", "group", "wrong") if c in part]].sort_values(
            "slope", ignore_index=True
        )
        if "prompt" in part:
            table["prompt"] = [token_label(str(p), 80) for p in part.sort_values("slope")["prompt"]]
        table["place"] = np.arange(1, len(table) + 1)
        wrong = table.pop("wrong") if "wrong" in table else table["slope"] < 0
        table["way"] = [_WAYS[None if pd.isna(each) else bool(each)] for each in wrong]
        panels.append(
            _dots(table, f"slope{f' of {name}' if name else ''} per {token_label(dose, _WIDTH)}", legend=not panels)
        )
    return _stacked([[panel] for panel in panels])


def strength_map(
    frame: pd.DataFrame,
    *,
    value: str = "effect",
    unit: str = "nats",
    bound: float | None = None,
    damage: str = "loss_rise",
    selected: tuple[int, float] | None = None,
) -> alt.LayerChart:
    """Effect at each layer and strength, layers across. Cells whose damage is over the bound are muted and crossed.

    Args:
        frame: a row for each layer and strength: `layer`, `strength`, the value, and `site`, `low`, `high`, `wrong_way`,
            `n` and the damage where they are known. Sites of several kinds have rows of their own.
        value: column that colours the cells.
        unit: of the value.
        bound: most damage that is accepted.
        damage: column that is held against it.
        selected: (layer, strength) to frame.

    Raises:
        ValueError: two rows for one cell, or a bound where some damage was not measured.
    """
    need(frame, "layer", "strength", value, *([damage] if bound is not None else []))
    known = [c for c in ("low", "high", "wrong_way", "n", damage) if c in frame and frame[c].notna().to_numpy().all()]
    table = frame.loc[:, list(dict.fromkeys(["layer", "strength", value, *known]))].copy()
    if bound is not None and damage not in known:
        raise ValueError(f"{damage} was not measured in every cell: it cannot be held against the bound")
    named = frame["site"].tolist() if "site" in frame else ["resid_post:0"] * len(frame)
    kinds = [sites.short_name(sites.full_name(site)).split(":")[0] for site in named]
    many = len(set(kinds)) > 1
    table["row"] = [f"{kind if many else ''} {s:+g}".strip() for kind, s in zip(kinds, frame["strength"])]
    if table.duplicated(["layer", "row"]).any():
        raise ValueError("the frame has several rows for one layer and strength: pass one measure")
    table["over"] = table[damage] > bound if bound is not None else False
    keys = dict.fromkeys(sorted(zip(kinds, -frame["strength"], table["row"]), key=lambda key: key[:2]))
    base = alt.Chart(rows(table)).encode(
        x=alt.X(
            "layer:O", title="layer", axis=alt.Axis(labelAngle=0, labelOverlap=True, ticks=False, domain=False)
        ).scale(padding=0.05),
        y=alt.Y("row:N", sort=[key[2] for key in keys], title="strength", axis=_plain_axis()).scale(padding=0.05),
    )
    end = max([1e-9, *np.abs(table[value].to_numpy(float)).tolist()])
    tips = [alt.Tooltip("layer:O"), alt.Tooltip("strength:Q", format="+.3~g"), *_tips([value, *known])]
    cells = base.mark_rect(cornerRadius=2).encode(
        color=signed(value, f"{words(value)} ({token_label(unit, _WIDTH)})", end),
        opacity=alt.when("datum.over").then(alt.value(0.3)).otherwise(alt.value(1)),
        tooltip=tips,
    )
    layers = [cells]
    if bound is not None:
        crossed = base.transform_filter("datum.over")
        layers.append(crossed.mark_text(color=INK, opacity=0.7, fontSize=12, tooltip=None).encode(text=alt.datum("×")))
    if selected is not None:
        chosen = base.transform_filter(f"datum.layer == {int(selected[0])} && datum.strength == {float(selected[1])}")
        layers.append(chosen.mark_rect(filled=False, stroke=ORANGE, strokeWidth=2.2, cornerRadius=2, tooltip=None))
    across, down = len(set(table["layer"])), len(keys)
    chart = layered(layers, across * clamp(640 / across, 16, 44), down * clamp(360 / down, 20, 30))
    if bound is None:
        return chart
    note = alt.TitleParams(
        f"× {words(damage)} over {bound:g}", fontSize=11, fontWeight="normal", anchor="start", frame="group"
    )
    return chart.properties(title=note)


# ------------------------------------------------------------------------------------------------------------ pieces


def _response(
    table: pd.DataFrame,
    value: str,
    title: str,
    dose: str,
    *,
    size: tuple[int, int],
    among: pd.DataFrame,
    legend: bool,
    bound: float | None = None,
) -> alt.LayerChart:
    """One quantity over strength: the vector, the random directions, the instruction. `among`: all that the legend names."""
    low, high = _BOUNDS.get(value, ("low", "high"))
    shown = [c for c in ("direction", "strength", value, low, high, *_COUNTS) if _measured(table, c)]
    table = table.loc[:, shown].assign(kind=_kinds(table), direction=[token_label(str(d)) for d in table["direction"]])
    table = table.loc[(table["kind"] != "random directions") | (table["strength"] != 0)]
    present = [kind for kind in _COLOURS if kind in set(_kinds(among))]
    colour = alt.Color("kind:N", title=None, legend=alt.Legend(orient="top", symbolOpacity=1) if legend else None)
    scale = alt.Scale(domain=[0, 1]) if value in _SHARES else alt.Scale(zero=True)
    side = alt.Axis(minExtent=34)  # so that panels under one another stand in line
    y = alt.Y(f"{value}:Q", title=title, scale=scale, axis=side)
    ticks = sorted({0.0, *table["strength"].tolist()})
    x = alt.X(
        "strength:Q",
        title=f"strength ({token_label(dose, _WIDTH)})",
        # A format of the axis would round to the distance of the ticks, and 0.15 would read 0.1.
        axis=alt.Axis(grid=False, values=ticks, labelExpr="format(datum.value, '.4~g')", labelOverlap=True),
    )
    x = x.scale(padding=14, nice=False)
    base = alt.Chart(rows(table)).encode(
        color=colour.scale(domain=present, range=[_COLOURS[kind] for kind in present]),
        tooltip=[alt.Tooltip("direction:N"), *_tips([c for c in table if c not in ("direction", "kind")])],
    )
    vector, random, told = (base.transform_filter(f"datum.kind == '{kind}'") for kind in _COLOURS)
    vector, random = vector.encode(x=x), random.encode(x=x)
    layers: list[alt.Chart] = [] if value in _SHARES else [zero_line()]
    band = _random_band(table, value)
    if len(band) > 1:
        area = alt.Chart(band).mark_area(color=GREY, opacity=0.2)
        layers.append(area.encode(x=x, y=alt.Y("least:Q", title=title, scale=scale, axis=side), y2="most:Q"))
    if {low, high} <= set(table):
        ends = {"y": alt.Y(f"{low}:Q", title=title, scale=scale, axis=side), "y2": f"{high}:Q"}
        layers += [told.mark_rect(opacity=0.1).encode(**ends), vector.mark_area(opacity=0.18).encode(**ends)]
    layers.append(random.mark_tick(orient="horizontal", thickness=1.5, width=18, opacity=0.75).encode(y=y))
    layers.append(told.mark_rule(strokeWidth=2, strokeDash=[6, 4]).encode(y=y))
    layers.append(vector.mark_line(strokeWidth=2).encode(y=y))
    layers.append(vector.mark_point(filled=True, size=60, opacity=1).encode(y=y))
    if bound is not None:
        limit = alt.Chart(pd.DataFrame({"bound": [float(bound)]})).mark_rule(color=VERMILION, strokeDash=[2, 3])
        layers.append(limit.encode(y="bound:Q", tooltip=alt.Tooltip("bound:Q", title="bound")))
    return _panel(layers, *size)


def _measured(frame: pd.DataFrame, column: str) -> bool:
    """Whether the column is there and holds anything."""
    return column in frame and bool(frame[column].notna().to_numpy().any())


def _kinds(table: pd.DataFrame) -> list[str]:
    """What each row is, in the legend's words."""
    return [str(name) if name in ("vector", "instruction") else "random directions" for name in table["direction"]]


def _random_band(table: pd.DataFrame, value: str) -> pd.DataFrame:
    """strength -> least and most of the random directions, which meet the vector at strength 0."""
    random = table.loc[table["kind"] == "random directions"].groupby("strength")[value]
    band = pd.DataFrame({"least": random.min(), "most": random.max()}).reset_index()
    start = table.loc[(table["kind"] == "vector") & (table["strength"] == 0), value]
    if len(band) and len(start):
        zero = {"strength": 0.0, "least": start.tolist()[0], "most": start.tolist()[0]}
        band = pd.concat([band, pd.DataFrame([zero])]).sort_values("strength", ignore_index=True)
    return band


def _dots(table: pd.DataFrame, title: str, *, legend: bool) -> alt.LayerChart:
    ways = [way for way in _WAYS.values() if way in set(table["way"])]
    colour = alt.Color("way:N", title=None, legend=alt.Legend(orient="top", symbolOpacity=1) if legend else None)
    found = np.asarray(table["slope"], float)
    ends = [min(0.0, found.min()), max(0.0, found.max())]
    tips = [alt.Tooltip("slope:Q", format=".3~f"), *[alt.Tooltip(f"{c}:N") for c in ("prompt", "group") if c in table]]
    base = alt.Chart(rows(table)).encode(
        x=alt.X("place:Q", title="items, by slope", axis=alt.Axis(grid=False, tickMinStep=1)).scale(
            domain=[1, max(2, len(table))], nice=False, padding=8
        ),
        color=colour.scale(domain=ways, range=[VERMILION if way == _WAYS[True] else BLUE for way in ways]),
        tooltip=tips,
    )
    y = alt.Y("slope:Q", title=title, axis=alt.Axis(minExtent=34)).scale(domain=ends)
    mean = alt.Chart(pd.DataFrame({"mean": [found.mean()]})).mark_rule(color=GREY, strokeDash=[5, 4])
    mean = mean.encode(y="mean:Q", tooltip=alt.Tooltip("mean:Q", title="mean slope", format=".3~f"))
    stems = base.mark_rule(strokeWidth=1, opacity=0.35).encode(y=y, y2=alt.datum(0))
    points = base.mark_point(filled=True, size=42, opacity=1).encode(y=y)
    return _panel([zero_line(), mean, stems, points], 520, 220)


def _by_measure(table: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """(name of the measure, its rows); one nameless part where the frame has no such column."""
    if "measure" not in table:
        return [("", table)]
    return [(token_label(str(name), _WIDTH), part) for name, part in table.groupby("measure", sort=False)]


def _panel(layers: Sequence[alt.Chart], width: int, height: int) -> alt.LayerChart:
    """Layers with a size, and no background, which only the whole chart may have."""
    chart = alt.layer(*layers)
    assert isinstance(chart, alt.LayerChart), "no panel has facets"
    return chart.properties(width=width, height=height)


def _stacked(lines: Sequence[Sequence[alt.LayerChart]]) -> alt.LayerChart | alt.VConcatChart:
    """One panel as it is, several in lines under one another."""
    if len(lines) == len(lines[0]) == 1:
        return lines[0][0].properties(background="transparent")
    parts = [alt.hconcat(*line, spacing=30) if len(line) > 1 else line[0] for line in lines]
    return alt.vconcat(*parts, spacing=22).properties(background="transparent")


def _tips(columns: Sequence[str]) -> list[alt.Tooltip]:
    return [alt.Tooltip(f"{c}:Q", title=words(c), format=",d" if c in _COUNTS else ".3~f") for c in columns]


def _plain_axis() -> alt.Axis:
    return alt.Axis(labelLimit=240, ticks=False, domain=False)
