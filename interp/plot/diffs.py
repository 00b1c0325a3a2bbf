"""Charts of two models side by side: by layer, by head, by token, and one score against the other."""

from collections.abc import Mapping

import altair as alt
import numpy as np
import pandas as pd

from interp.plot.curves import layer_curve
from interp.plot.grids import head_grid
from interp.plot.style import BLUE, GREY, clamp, layered, need, rows, token_label, words


def layer_differences(frame: pd.DataFrame, figures: Mapping[str, str]) -> alt.LayerChart:
    """Relative differences by layer, a line for each figure, with its interval where there is one.

    Args:
        frame: `layer` (-1 is the embedding), and for each figure a column with `_low` and `_high`; NaN is left out.
        figures: column -> name of the line.
    """
    need(frame, "layer", *figures)
    parts = []
    for column, name in figures.items():
        part = frame.loc[:, ["layer", column, f"{column}_low", f"{column}_high"]].dropna(subset=[column])
        parts.append(part.set_axis(["layer", "difference", "low", "high"], axis=1).assign(line=name))
    table = pd.concat(parts)
    low, high = ("low", "high") if not np.isnan(table["low"].to_numpy()).any() else (None, None)
    return layer_curve(
        table, "difference", low=low, high=high, colour="line", domain=None, title="relative difference |a - b| / |a|"
    )


def head_differences(frame: pd.DataFrame, metric: str) -> alt.LayerChart:
    """A difference of every head, layer by head. The scale ends at the largest value, so that small ones show.

    Args:
        frame: `layer`, `head`, the metric, and other figures, which the tooltip shows.
        metric: column that colours the cells.
    """
    need(frame, "layer", "head", metric)
    table = frame.dropna(subset=[metric])
    need(table, metric)
    return head_grid(table, metric, domain=(0.0, max([1e-9, *table[metric].tolist()])))


def token_differences(frame: pd.DataFrame, n: int = 20) -> alt.LayerChart:
    """The tokens at which two models differ most: bars of KL, with what each predicts.

    Args:
        frame: `text`, `pos`, `token`, `context`, `next`, `kl`, `top_a`, `p_a`, `top_b`, `p_b`, the largest KL first.
        n: most bars.
    """
    need(frame, "text", "pos", "context", "kl", "top_a", "p_a", "top_b", "p_b")
    table = frame.head(n).copy()
    table["place"] = [
        f"{text}:{pos} {token_label(context, 28)}"
        for text, pos, context in zip(table["text"], table["pos"], table["context"])
    ]
    table["said"] = [f"{token_label(a, 14)} → {token_label(b, 14)}" for a, b in zip(table["top_a"], table["top_b"])]
    tooltip = [alt.Tooltip("place:N"), alt.Tooltip("kl:Q", title="KL(a || b)", format=".3f"), "top_a:N", "p_a:Q"]
    base = alt.Chart(rows(table)).encode(
        y=alt.Y("place:N", sort=None, title=None, axis=alt.Axis(labelLimit=260, ticks=False, domain=False)),
        x=alt.X("kl:Q", title="KL(a || b) (nats)").scale(domain=[0, 1.35 * max([1e-9, *table["kl"].tolist()])]),
    )
    bars = base.mark_bar(color=BLUE, opacity=0.8).encode(tooltip=[*tooltip, "top_b:N", "p_b:Q"])
    text = base.mark_text(align="left", dx=4).encode(text="said:N")
    return layered([bars, text], 420, clamp(22 * len(table), 44, 600))


def score_pairs(frame: pd.DataFrame, metric: str) -> alt.LayerChart:
    """A score of every head in two models, one against the other; heads on the line kept theirs.

    Args:
        frame: `layer`, `head`, and the metric with `_a` and `_b`.
        metric: name of the score.
    """
    first, second = f"{metric}_a", f"{metric}_b"
    need(frame, "layer", "head", first, second)
    table = frame.loc[:, ["layer", "head", first, second]].copy()
    table["name"] = [f"L{layer}H{head}" for layer, head in zip(table["layer"], table["head"])]
    top = max(1.0, float(table[[first, second]].to_numpy().max()))
    line = alt.Chart(pd.DataFrame({"x": [0.0, top], "y": [0.0, top]})).mark_line(color=GREY, strokeDash=[4, 4])
    points = alt.Chart(rows(table)).mark_point(filled=True, size=40, opacity=0.7, color=BLUE)
    points = points.encode(
        x=alt.X(f"{first}:Q", title=f"{words(metric)} in a").scale(domain=[0, top]),
        y=alt.Y(f"{second}:Q", title=f"{words(metric)} in b").scale(domain=[0, top]),
        tooltip=["name:N", alt.Tooltip(f"{first}:Q", format=".3f"), alt.Tooltip(f"{second}:Q", format=".3f")],
    )
    return layered([line.encode(x="x:Q", y="y:Q"), points], 340, 340)
