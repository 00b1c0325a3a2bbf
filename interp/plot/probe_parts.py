"""Behind a figure: scores by label, parts of the rows, and what is decodable beside what is used."""

from collections.abc import Sequence

import altair as alt
import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from interp.plot.probes import BOUNDS, ROW_WIDTH, cell_tips, layer_ticks
from interp.plot.style import (
    BLUE,
    CATEGORIES,
    GREY,
    INK,
    ORANGE,
    VERMILION,
    layered,
    need,
    rows,
    token_label,
    words,
    zero_line,
)


def probe_scores(
    probability: Float[np.ndarray, "row"],
    label: Int[np.ndarray, "row"],
    *,
    threshold: float | None = None,
    names: tuple[str, str] = ("false", "true"),
    n_bins: int = 30,
) -> alt.LayerChart:
    """How a probe scores rows of each label: the true ones up, the false ones down, the threshold dashed.

    Args:
        probability: held-out probabilities, 0 to 1.
        label: 0 or 1 for each.
        threshold: probability above which the answer is "true".
        names: of the labels 0 and 1.
        n_bins: bins of equal width.
    """
    p, y = np.asarray(probability), np.asarray(label)
    if not len(p) or p.shape != y.shape or not ((p >= 0) & (p <= 1)).all() or not np.isin(y, (0, 1)).all():
        raise ValueError(f"give probabilities in [0, 1] and a label 0 or 1 for each; got {p.shape} and {y.shape}")
    edges = np.linspace(0, 1, n_bins + 1)
    lines = []
    for number, name in enumerate(names):
        counts, _ = np.histogram(p[y == number], edges)
        share = counts / max(1, counts.sum())
        part = pd.DataFrame({"low": edges[:-1], "high": edges[1:], "n": counts, "share": share})
        lines.append(part.assign(label=name, signed=share if number else -share, zero=0.0))
    table = pd.concat(lines)
    end = 1.05 * max(table["share"].tolist())
    share = alt.Axis(labelExpr="format(abs(datum.value), '.0%')", tickCount=6)
    base = alt.Chart(rows(table.loc[table["n"] > 0])).encode(
        x=alt.X("low:Q", title="held-out probability").scale(domain=[0, 1], nice=False),
        x2="high:Q",
        color=_colour("label", list(names[::-1]), [BLUE, ORANGE]),
        tooltip=["label:N", alt.Tooltip("low:Q", format=".2f"), alt.Tooltip("high:Q", format=".2f"), "n:Q"],
    )
    bars = base.mark_rect(opacity=0.85).encode(
        y=alt.Y("signed:Q", title="share of the label's rows", axis=share).scale(domain=[-end, end], nice=False),
        y2="zero:Q",
    )
    layers = [bars, zero_line()]
    if threshold is not None:
        line = alt.Chart(pd.DataFrame({"threshold": [float(threshold)]}))
        layers.append(line.mark_rule(color=INK, strokeDash=[5, 4], opacity=0.75).encode(x="threshold:Q"))
    return layered(layers, 520, 220)


def part_intervals(frame: pd.DataFrame, *, value: str = "auroc", colour: str = "kind") -> alt.LayerChart:
    """A figure in each part of the rows, with its interval, chance dashed.

    Args:
        frame: a row per part and line: `part` (what divides: polarity, topic ...), `value` (which), the figure, `low`
            and `high`, the column of `colour`, and `n` where it is known.
        value: the column with the figure, between 0 and 1.
        colour: column that tells points of one part apart; a frame without it has one colour.
    """
    need(frame, "part", "value", value, *BOUNDS)
    names = [c for c in dict.fromkeys(["part", value, *BOUNDS, "n", "n_groups"]) if c in frame]
    table = frame.loc[:, names].copy()
    table["name"] = [
        token_label(f"{part}: {which}" if part != which else str(part), ROW_WIDTH)
        for part, which in zip(frame["part"], frame["value"])
    ]
    table["line"] = [token_label(str(v)) for v in frame[colour]] if colour in frame else words(value)
    order, lines = list(dict.fromkeys(table["name"])), list(dict.fromkeys(table["line"]))
    if len(lines) > len(CATEGORIES):
        raise ValueError(
            f"{len(lines)} values of {colour!r} are more than {len(CATEGORIES)} colours tell apart: show fewer"
        )
    step = 13 * len(lines) + 9
    base = alt.Chart(rows(table)).encode(
        y=alt.Y("name:N", sort=order, title=None, axis=alt.Axis(labelLimit=240, ticks=False, domain=False)),
        yOffset=alt.YOffset("line:N", sort=lines).scale(paddingOuter=0.35),
        color=_colour("line", lines, list(CATEGORIES)),
        tooltip=[
            "name:N",
            *([alt.Tooltip("line:N", title=colour)] if len(lines) > 1 else []),
            *cell_tips(table, value, sets=False),
        ],
    )
    low, high = min(0.5, min(table["low"].tolist())), max(0.5, max(table["high"].tolist()))
    scale = alt.Scale(domain=[max(0.0, low - 0.03), min(1.0, high + 0.03)], nice=False)
    half = alt.Chart(pd.DataFrame({"half": [0.5]})).mark_rule(color=GREY, strokeDash=[5, 4])
    half = half.encode(x=alt.X("half:Q", scale=scale))
    bars = base.mark_rule(strokeWidth=2, opacity=0.55).encode(x=alt.X("low:Q", scale=scale), x2="high:Q")
    points = base.mark_point(filled=True, size=55, opacity=1)
    points = points.encode(
        x=alt.X(f"{value}:Q", title=f"{words(value)} (95 % interval)", scale=scale, axis=alt.Axis(tickCount=6))
    )
    return layered([half, bars, points], 460, step * len(order))


def decodable_and_used(
    frame: pd.DataFrame,
    *,
    unit: str = "nats",
    selected: int | None = None,
    title: str = "effect of adding the direction",
) -> alt.VConcatChart:
    """What a probe reads at each layer, over what the model does when the direction is added there.

    A layer whose effect lies inside the band of random directions is decodable and not seen to be used.

    Args:
        frame: a row per layer: `layer`, `auroc`, `low`, `high`; `effect`, with `effect_low` and `effect_high` where there
            is an interval; `random_low` and `random_high`, what random directions of the same norm do. The effect is NaN
            in layers where it was not measured.
        unit: of the effect.
        selected: layer to mark.
        title: of the lower axis.
    """
    need(frame, "layer", "auroc", "low", "high", "effect", "random_low", "random_high")
    table = rows(frame.sort_values("layer").reset_index(drop=True))
    measured = table.dropna(subset=["effect"])
    if measured.empty:
        raise ValueError("the frame has no effect that was measured: draw the AUROC alone, with layer_curve")
    first, last = min(map(int, table["layer"])), max(map(int, table["layer"]))
    scale = alt.Scale(domain=[first, last], nice=False, padding=8)
    x = alt.X("layer:Q", title="layer", axis=layer_ticks(first, last), scale=scale)
    marks = []
    if selected is not None:
        mark = alt.Chart(pd.DataFrame({"layer": [int(selected)]}))
        marks = [mark.mark_rule(color=ORANGE, strokeWidth=1.6, opacity=0.9).encode(x=x)]
    panels = [
        _decodable(alt.Chart(table).encode(x=x), table),
        _used(alt.Chart(measured).encode(x=x), measured, title, unit),
    ]
    charts = [alt.layer(*marks, *panel).properties(width=600, height=170) for panel in panels]
    note = alt.TitleParams(
        "grey band: random directions of the same norm", fontSize=11, fontWeight="normal", anchor="start"
    )
    charts[1] = charts[1].properties(title=note)
    return alt.vconcat(*charts, spacing=10).properties(background="transparent")


def _decodable(base: alt.Chart, table: pd.DataFrame) -> list[alt.Chart]:
    scale = alt.Scale(domain=[min(0.4, min(table["low"].tolist())), 1.0], nice=False, zero=False)
    y = alt.Y("auroc:Q", title="decodable: AUROC", scale=scale)
    half = alt.Chart(pd.DataFrame({"half": [0.5]})).mark_rule(color=GREY, strokeDash=[5, 4])
    tips = [alt.Tooltip("layer:O"), *cell_tips(table, "auroc", sets=False)]
    return [
        half.encode(y=alt.Y("half:Q", scale=scale)),
        base.mark_area(opacity=0.18, color=BLUE).encode(y=alt.Y("low:Q", scale=scale), y2="high:Q"),
        base.mark_line(strokeWidth=2, color=BLUE).encode(y=y),
        base.mark_point(filled=True, size=30, opacity=1, color=BLUE).encode(y=y, tooltip=tips),
    ]


def _used(base: alt.Chart, table: pd.DataFrame, title: str, unit: str) -> list[alt.Chart]:
    y = alt.Y("effect:Q", title=[f"used: {title}", f"({unit})"])
    numbers = ("effect", "effect_low", "effect_high", "random_low", "random_high")
    tips = [alt.Tooltip(f"{name}:Q", title=words(name), format="+.3f") for name in numbers if name in table]
    bars = []
    if {"effect_low", "effect_high"} <= set(table):
        bars = [base.mark_rule(color=VERMILION, opacity=0.6).encode(y="effect_low:Q", y2="effect_high:Q")]
    return [
        zero_line(),
        base.mark_area(opacity=0.3, color=GREY).encode(y="random_low:Q", y2="random_high:Q"),
        *bars,
        base.mark_line(strokeWidth=2, color=VERMILION).encode(y=y),
        base.mark_point(filled=True, size=30, opacity=1, color=VERMILION).encode(
            y=y, tooltip=[alt.Tooltip("layer:O"), *tips]
        ),
    ]


def _colour(field: str, values: list[str], colours: Sequence[str]) -> alt.Color:
    legend = alt.Legend(orient="top", symbolOpacity=1) if len(values) > 1 else None
    return alt.Color(f"{field}:N", title=None, sort=values, legend=legend).scale(
        domain=values, range=list(colours)[: len(values)]
    )
