"""Charts of a head on ordinary text: how strongly it looks, and how far back."""

import altair as alt
import numpy as np
import pandas as pd

from interp.plot.style import BLUE, need, rows, sized


def attention_maxima(frame: pd.DataFrame, *, bins: int = 50) -> alt.Chart:
    """How many queries look how strongly at their strongest key. `frame`: `weight`, 0 to 1, a row per query."""
    need(frame, "weight")
    counts, edges = np.histogram(frame["weight"].clip(0, 1), bins=bins, range=(0.0, 1.0))
    table = pd.DataFrame({"start": edges[:-1], "end": edges[1:], "queries": counts})
    chart = alt.Chart(rows(table)).mark_bar(color=BLUE)
    chart = chart.encode(
        x=alt.X("start:Q", title="largest attention of a query, position 0 left out").scale(domain=[0, 1]),
        x2="end:Q",
        y=alt.Y("queries:Q", title="queries"),
        y2=alt.datum(0),
        tooltip=[alt.Tooltip("start:Q", format=".2f"), alt.Tooltip("end:Q", format=".2f"), "queries:Q"],
    )
    return sized(chart, 420, 170)


def attention_distances(frame: pd.DataFrame) -> alt.Chart:
    """How far back the strongest key lies, in bins that double. `frame`: `distance` in tokens (0: itself)."""
    need(frame, "distance")
    most = max(frame["distance"].tolist())
    edges = [0, 1, 2]
    while edges[-1] <= most:
        edges.append(2 * edges[-1])
    counts, _ = np.histogram(frame["distance"], bins=[edge - 0.5 for edge in [*edges]] + [edges[-1] + 0.5])
    names = [str(a) if b - a == 1 else f"{a}–{b - 1}" for a, b in zip(edges, [*edges[1:], edges[-1] + 1])]
    table = pd.DataFrame({"distance": names, "queries": counts})
    table = table.iloc[: int(np.flatnonzero(counts)[-1]) + 1]
    chart = alt.Chart(rows(table)).mark_bar(color=BLUE)
    chart = chart.encode(
        x=alt.X("distance:N", sort=names, title="tokens back (0: itself)", axis=alt.Axis(labelAngle=0)),
        y=alt.Y("queries:Q", title="queries"),
        tooltip=["distance:N", "queries:Q"],
    )
    return sized(chart, 420, 170)
