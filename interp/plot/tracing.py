"""Effects by layer and token, of causal tracing and of attention knockout."""

import math

import altair as alt
import pandas as pd

from interp.plot.patching import signed
from interp.plot.style import MONO, clamp, need, row_labels, rows, sized


def trace_grid(frame: pd.DataFrame, title: str = "effect") -> alt.Chart:
    """Tokens down, layers across; blue where the effect is positive, vermilion where it is negative.

    A click selects a cell (selection `cell` with fields layer and pos).

    Args:
        frame: a row per cell: `layer`, `pos`, `token`, `effect`, and `low`, `high`, `n` where they are known.
        title: of the colour.
    """
    need(frame, "layer", "pos", "token", "effect")
    if frame.empty:
        raise ValueError("the frame has no row")
    if frame.duplicated(["layer", "pos"]).any():
        raise ValueError("the frame has several rows for one layer and position: pass one site")
    table = frame.sort_values(["pos", "layer"])
    table = table.assign(name=row_labels(table["pos"].tolist(), table["token"].tolist()))
    tips = [alt.Tooltip("layer:O"), alt.Tooltip("name:N", title="token"), alt.Tooltip("effect:Q", format=".4f")]
    bounds = [c for c in ("low", "high") if c in table and not any(map(math.isnan, table[c].tolist()))]
    tips += [alt.Tooltip(f"{c}:Q", format=".4f") for c in bounds]
    tips += [alt.Tooltip("n:Q")] if "n" in table else []
    kept = ["layer", "pos", "name", "effect", *bounds, *(["n"] if "n" in table else [])]
    end = max(1e-6, *map(abs, table["effect"].tolist()))
    names = table["name"].unique().tolist()
    flat = alt.Axis(ticks=False, domain=False)
    chart = alt.Chart(rows(table.loc[:, kept])).mark_rect(cornerRadius=2, cursor="pointer")
    chart = chart.encode(
        x=alt.X("layer:O", title="layer", axis=alt.Axis(orient="top", labelAngle=0, ticks=False, domain=False)),
        y=alt.Y("name:N", sort=names, title=None, axis=alt.Axis(labelFont=MONO, **flat.to_dict())),
        color=signed("effect", title, end),
        tooltip=tips,
    )
    chart = chart.add_params(alt.selection_point(name="cell", fields=["layer", "pos"], on="click", clear="dblclick"))
    across = len(set(table["layer"]))
    return sized(chart, across * clamp(560 / across, 14, 44), len(names) * clamp(420 / len(names), 14, 26))
