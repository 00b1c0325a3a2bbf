"""Bars of effects on one prompt, either way from zero, with intervals where they are known. Blue supports, vermilion opposes."""

import altair as alt
import pandas as pd

from interp.plot.style import BLUE, INK, MONO, VERMILION, layered, need, rows


def lead_bars(frame: pd.DataFrame, title: str) -> alt.LayerChart:
    """A bar for each row, in the order of the frame.

    Args:
        frame: `part` (its name), `effect`, and `low` and `high`, NaN where there is no interval.
        title: of the horizontal axis, with the unit.
    """
    need(frame, "part", "effect", "low", "high")
    table = frame.loc[:, ["part", "effect", "low", "high"]]
    axis = alt.Axis(labelFont=MONO, labelLimit=170, labelOverlap=False)
    base = alt.Chart(rows(table)).encode(y=alt.Y("part:N", sort=table["part"].tolist(), title=None, axis=axis))
    colour = alt.when("datum.effect >= 0").then(alt.value(BLUE)).otherwise(alt.value(VERMILION))
    tips = [alt.Tooltip("part:N"), *[alt.Tooltip(f"{c}:Q", format="+.3f") for c in ("effect", "low", "high")]]
    bars = base.mark_bar(cornerRadiusEnd=2).encode(x=alt.X("effect:Q", title=title), color=colour, tooltip=tips)
    lines = base.transform_filter("isValid(datum.low)").mark_rule(color=INK, opacity=0.75)
    return layered([bars, lines.encode(x=alt.X("low:Q", title=title), x2="high:Q")], 460, 19 * len(table))
