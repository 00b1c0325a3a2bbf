"""Charts of two prompts side by side: next tokens of either, and distances by layer."""

import altair as alt
import pandas as pd

from interp.plot.curves import layer_curve
from interp.plot.style import BLUE, GREY, MONO, ORANGE, layered, need, rows, token_label

DISTANCES = {"js": "Jensen-Shannon (nats)", "tv": "total variation"}


def next_token_pairs(frame: pd.DataFrame, *, top: int = 10) -> alt.LayerChart:
    """Next-token probabilities after two prompts: a dot for each, joined, a row for each token.

    Args:
        frame: `token`, `p_a`, `p_b`, the tokens to show first.
        top: most rows.
    """
    need(frame, "token", "p_a", "p_b")
    table = frame.loc[:, ["token", "p_a", "p_b"]].head(top).reset_index(drop=True)
    table["name"] = [f"{i + 1}: {token_label(str(token), 18)}" for i, token in enumerate(table["token"])]
    long = pd.concat([table.assign(prompt=side, prob=table[f"p_{side.lower()}"]) for side in ("A", "B")])
    y = alt.Y(
        "name:N", sort=table["name"].tolist(), title=None, axis=alt.Axis(labelFont=MONO, labelLimit=180, grid=True)
    )
    scale = alt.Scale(domain=[0, 1])
    lines = alt.Chart(rows(table)).mark_rule(color=GREY, strokeWidth=2, opacity=0.6)
    lines = lines.encode(y=y, x=alt.X("p_a:Q", scale=scale), x2="p_b:Q")
    dots = alt.Chart(rows(long)).mark_point(filled=True, size=90, opacity=1)
    dots = dots.encode(
        y=y,
        x=alt.X("prob:Q", title="probability of the next token", scale=scale),
        color=alt.Color("prompt:N", title=None, legend=alt.Legend(orient="top")).scale(
            domain=["A", "B"], range=[BLUE, ORANGE]
        ),
        shape=alt.Shape("prompt:N", title=None).scale(domain=["A", "B"], range=["circle", "diamond"]),
        tooltip=[
            alt.Tooltip("name:N", title="token"),
            alt.Tooltip("p_a:Q", title="A", format=".4f"),
            alt.Tooltip("p_b:Q", title="B", format=".4f"),
        ],
    )
    return layered([lines, dots], 420, 22 * len(table))


def prompt_distances(frame: pd.DataFrame) -> alt.LayerChart:
    """How far what two prompts predict is apart after each layer. `frame`: `layer` (-1 is the embedding), `js`, `tv`."""
    need(frame, "layer", *DISTANCES)
    parts = [frame.loc[:, ["layer"]].assign(distance=frame[column], line=name) for column, name in DISTANCES.items()]
    return layer_curve(pd.concat(parts), "distance", colour="line", domain=(0.0, 1.0), title="distance of A and B")
