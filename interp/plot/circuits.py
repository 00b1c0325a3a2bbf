"""A circuit as a graph: layers up, heads and MLPs side by side, edges as lines."""

import altair as alt
import numpy as np
import pandas as pd

from interp.plot.style import BLUE, GREY, INK, VERMILION, clamp, layered, need, rows

COLUMNS = ("sender", "receiver", "sender_layer", "sender_head", "receiver_layer", "receiver_head", "score")
HARMS, HELPS = "corrupting it raises the metric", "corrupting it lowers the metric"


def circuit_graph_chart(
    frame: pd.DataFrame, *, n_layers: int, n_heads: int, top: int = 60, left_out: int = 0
) -> alt.LayerChart:
    """Edges of a circuit, the strongest ones; the caption says how many are left out.

    Args:
        frame: a row per edge: sender, receiver, their layers and heads (head -1: an MLP; layer -1: the input; layer
            n_layers: the output) and score, whose size is the line's width and whose sign its colour.
        n_layers: blocks of the model.
        n_heads: heads of each.
        top: most edges drawn.
        left_out: edges of the circuit that are not in the frame.
    """
    need(frame, *COLUMNS)
    if top < 1:
        raise ValueError(f"top={top}: draw at least one edge")
    order = np.argsort(-np.abs(frame["score"].to_numpy(dtype=float)), kind="stable")[:top]
    table = frame.iloc[order].loc[:, list(COLUMNS)]
    ends = {}
    for end in ("sender", "receiver"):
        layers, heads = table[f"{end}_layer"].to_numpy(), table[f"{end}_head"].to_numpy()
        middle = (layers < 0) | (layers >= n_layers)
        # MLPs stand to the right of the heads, and a little higher, since they come after them.
        x = np.where(middle, (n_heads - 1) / 2, np.where(heads < 0, n_heads + 0.5, heads))
        y = np.where(middle, layers, np.where(heads < 0, layers + 0.35, layers))
        ends[end] = (x.astype(float), y.astype(float))
    lines = table.assign(
        x=ends["sender"][0], y=ends["sender"][1], x2=ends["receiver"][0], y2=ends["receiver"][1],
        size=table["score"].abs(), sign=np.where(table["score"] < 0, HELPS, HARMS),
    )  # fmt: skip
    missing = left_out + len(frame) - len(table)
    title = f"{len(table)} strongest edges" + (f"; {missing:,} more are not drawn" if missing else "")
    axis = alt.Axis(ticks=False, domain=False, grid=False, labels=False)
    across = alt.X("x:Q", title="heads | MLP", axis=axis).scale(domain=[-0.5, n_heads + 1.2])
    up = alt.Y("y:Q", title="layer", axis=alt.Axis(grid=False, ticks=False, domain=False, tickMinStep=1)).scale(
        domain=[-1.5, n_layers + 0.5], nice=False
    )
    tips = [alt.Tooltip("sender:N"), alt.Tooltip("receiver:N"), alt.Tooltip("score:Q", format="+.4f")]
    colour = alt.Color("sign:N", title=None, legend=alt.Legend(orient="top", labelLimit=0)).scale(
        domain=[HELPS, HARMS], range=[BLUE, VERMILION]
    )
    drawn = alt.Chart(rows(lines)).mark_rule(opacity=0.6)
    drawn = drawn.encode(
        x=across, y=up, x2="x2:Q", y2="y2:Q", color=colour, tooltip=tips,
        strokeWidth=alt.StrokeWidth("size:Q", legend=None).scale(range=[0.6, 5.0], zero=True),
    )  # fmt: skip
    nodes = alt.Chart(_nodes(table, ends, n_layers))
    dots = nodes.mark_circle(size=46, color=GREY, opacity=1).encode(x=across, y=up, tooltip=alt.Tooltip("name:N"))
    names = nodes.mark_text(dy=-8, fontSize=8, color=INK).encode(x=across, y=up, text="name:N")
    chart = layered([drawn, dots, names], clamp(46 * (n_heads + 2), 260, 720), clamp(24 * (n_layers + 2), 160, 860))
    return chart.properties(title=title)


def _nodes(table: pd.DataFrame, ends: dict[str, tuple[np.ndarray, np.ndarray]], n_layers: int) -> pd.DataFrame:
    """The nodes that an edge touches, once each."""
    parts = []
    for end, (x, y) in ends.items():
        layers, heads = table[f"{end}_layer"], table[f"{end}_head"]
        shared = table[end].str.contains("KV")
        kind = [
            "input"
            if layer < 0
            else "output"
            if layer >= n_layers
            else f"MLP {layer}"
            if head < 0
            else f"L{layer}H{head}"
            for layer, head in zip(layers, heads)
        ]
        names = [name.split(".")[0] if kv else plain for name, plain, kv in zip(table[end], kind, shared)]
        parts.append(pd.DataFrame({"x": x, "y": y, "name": names}))
    return pd.concat(parts).drop_duplicates(["x", "y"]).reset_index(drop=True)
