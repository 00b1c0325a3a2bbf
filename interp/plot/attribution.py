"""Shares of a logit: bars, a grid of heads, sources by head, and the sum as it grows by layer. Blue adds, vermilion takes."""

import math
from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas as pd

from interp.plot.patching import signed
from interp.plot.style import (
    BLUE,
    INK,
    MONO,
    VERMILION,
    clamp,
    layered,
    need,
    row_labels,
    rows,
    token_label,
    words,
    zero_line,
)

_SIGN = alt.when("datum.mean >= 0").then(alt.value(BLUE)).otherwise(alt.value(VERMILION))
_TITLE = "share of the logit"


def attribution_bars(frame: pd.DataFrame, *, k: int = 30) -> alt.LayerChart:
    """The k largest shares of either sign, in the order of the frame, with intervals where they are known.

    A click selects a bar (selection `part` with the field part).

    Args:
        frame: a row per part: `part`, `mean`, and `low` and `high` where there are intervals.
        k: bars.
    """
    need(frame, "part", "mean")
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    shares = frame["mean"].tolist()
    largest = sorted(range(len(shares)), key=lambda i: -abs(shares[i]))[:k]
    kept = frame.iloc[sorted(largest)]
    columns = ["part", "mean", *[c for c in ("low", "high") if c in kept]]
    table = rows(kept.loc[:, columns])
    base = alt.Chart(table).encode(
        y=alt.Y("part:N", sort=table["part"].tolist(), title=None, axis=alt.Axis(labelOverlap=False))
    )
    tips = [alt.Tooltip("part:N"), *[alt.Tooltip(f"{c}:Q", format=".3f") for c in columns[1:]]]
    click = alt.selection_point(name="part", fields=["part"], on="click", clear="dblclick")
    bars = base.mark_bar(cursor="pointer").add_params(click)
    layers = [bars.encode(x=alt.X("mean:Q", title=_TITLE), color=_SIGN, tooltip=tips)]
    if {"low", "high"} <= set(table) and not all(map(math.isnan, table["low"].tolist())):
        layers.append(base.mark_rule(color=INK).encode(x=alt.X("low:Q", title=_TITLE), x2="high:Q"))
    return layered(layers, 420, 18 * len(table))


def attribution_heads(frame: pd.DataFrame) -> alt.LayerChart:
    """Heads across, layers down. Rows that are no head are left out.

    Args:
        frame: a row per part: `layer`, `head` (-1 for what is no head) and `mean`.
    """
    need(frame, "layer", "head", "mean")
    table = frame.loc[frame["head"] >= 0].copy()
    need(table, "mean")
    if table.duplicated(["layer", "head"]).any():
        raise ValueError("the frame has several rows for one head: sum over sources first")
    table["name"] = [f"L{layer}H{head}" for layer, head in zip(table["layer"], table["head"])]
    return _grid(table, "head", table["head"].drop_duplicates().sort_values().tolist(), 0)


def attribution_sources(frame: pd.DataFrame, tokens: Sequence[str] | None = None, *, k: int = 20) -> alt.LayerChart:
    """The k heads with the most to add or take, and the tokens that they read it from.

    Args:
        frame: a row per head and source: `layer`, `head`, `source` (-1 for what has none) and `mean`.
        tokens: text of each source position, for labels.
        k: heads shown.
    """
    need(frame, "layer", "head", "source", "mean")
    table = frame.loc[frame["source"] >= 0].copy()
    need(table, "mean")
    table["name"] = [f"L{layer}H{head}" for layer, head in zip(table["layer"], table["head"])]
    size = table["mean"].abs().groupby(table["name"]).sum().sort_values(ascending=False, kind="stable")
    table = table.loc[table["name"].isin(size.index[:k].tolist())]
    positions = sorted(set(table["source"].tolist()))
    names = (
        [str(p) for p in positions] if tokens is None else row_labels(positions, [str(tokens[p]) for p in positions])
    )
    table["token"] = table["source"].map(dict(zip(positions, names)))
    return _grid(table, "token", names, -55, down="name")


def attribution_waterfall(frame: pd.DataFrame) -> alt.LayerChart:
    """The sum as it grows: each part's bar begins where the one before ended; the last bar is the logit itself.

    Args:
        frame: a row per part in the order of computation: `part` and `mean`.
    """
    need(frame, "part", "mean")
    names, shares = [token_label(name) for name in frame["part"]], frame["mean"].tolist()
    ends = frame["mean"].cumsum().tolist()
    table = pd.DataFrame({"part": names, "mean": shares, "start": [0.0, *ends[:-1]], "end": ends})
    table.loc[len(table)] = ["logit", ends[-1], 0.0, ends[-1]]
    order = table["part"].tolist()
    base = alt.Chart(rows(table)).encode(x=alt.X("part:N", sort=order, title=None, axis=alt.Axis(labelAngle=-55)))
    tips = [alt.Tooltip("part:N")]
    tips += [alt.Tooltip(f"{c}:Q", title=t, format=".3f") for c, t in (("mean", "share"), ("end", "sum so far"))]
    bars = base.mark_bar().encode(y=alt.Y("start:Q", title="logit so far"), y2="end:Q", color=_SIGN, tooltip=tips)
    return layered([bars, zero_line()], len(table) * clamp(680 / len(table), 14, 40), 300)


def _grid(table: pd.DataFrame, across: str, order: Sequence[Any], angle: int, down: str = "layer") -> alt.LayerChart:
    axis = alt.Axis(orient="top", labelAngle=angle, labelFont=MONO, ticks=False, domain=False)
    end = max(1e-6, *map(abs, table["mean"].tolist()))
    kept = list(dict.fromkeys(["name", down, across, "mean", *[c for c in ("low", "high") if c in table]]))
    tips = [alt.Tooltip("name:N", title="head"), alt.Tooltip("mean:Q", title=_TITLE, format=".3f")]
    if across != "head":
        tips.append(alt.Tooltip(f"{across}:N"))
    elif "low" in table and not any(map(math.isnan, table["low"].tolist())):
        tips += [alt.Tooltip(f"{c}:Q", format=".3f") for c in ("low", "high")]
    cells = alt.Chart(rows(table.loc[:, kept])).mark_rect(cornerRadius=2)
    rank = "O" if down == "layer" else "N"
    rows_in_order = table[down].drop_duplicates().tolist()
    cells = cells.encode(
        x=alt.X(f"{across}:N", sort=list(order), title=words(across), axis=axis),
        y=alt.Y(f"{down}:{rank}", sort=rows_in_order, title="layer" if rank == "O" else "head").scale(padding=0.06),
        color=signed("mean", _TITLE, end),
        tooltip=tips,
    )
    wide, high = len(order), len(rows_in_order)
    return layered([cells], wide * clamp(620 / wide, 16, 44), high * clamp(460 / high, 12, 28))
