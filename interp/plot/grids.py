"""Grids: heads by layer, tokens by layer, tokens by tokens. Every cell has a tooltip with its exact numbers."""

import math
from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
from jaxtyping import Num

from interp.plot.style import (
    INK,
    MONO,
    ORANGE,
    ceiling,
    clamp,
    fill,
    layered,
    need,
    row_axis,
    row_labels,
    rows,
    sized,
    token_label,
    words,
)

STATISTICS = {
    "p_top1": ("probability of the top token", ".3f"),
    "entropy": ("entropy (nats)", ".2f"),
    "kl": ("KL(final || layer) (nats)", ".2f"),
    "rank": ("rank of the final token", ",d"),
    "loss": ("-log p of the true next token (nats)", ".2f"),
}
"""What `lens_grid` can colour by: title and number format."""

_NO_SCORE = ("layer", "head", "n", "n_sequences")
_BOUNDS = ("_low", "_high")
_ON_TOP = alt.Axis(orient="top", labelAngle=0, ticks=False, domain=False)
_LAYERS = alt.Axis(
    orient="top", labelAngle=0, ticks=False, domain=False, labelExpr="datum.value < 0 ? 'embed' : datum.label"
)
_WHITE_FROM = 0.79
"""Text turns white on cells above this share of full colour: there black and white read alike, about 4 to 1."""


def head_grid(
    frame: pd.DataFrame,
    metric: str = "induction",
    *,
    domain: tuple[float, float] | None = None,
    selected: tuple[int, int] | None = None,
) -> alt.LayerChart:
    """Scores of all heads, layer by head; a click selects one (selection `head` with fields layer and head).

    Args:
        frame: a row per head: `layer`, `head`, the metric, and other scores, which the tooltip shows with their rank
            ("0.913 (3 of 270)"). Bounds are columns named like the score with `_low` and `_high`.
        metric: column that colours the cells.
        domain: ends of the colour scale; a value beyond takes the end's colour. None is 0 to 1, and for larger values
            (an entropy) 0 to the next whole number.
        selected: (layer, head) to mark; None marks the one that is clicked.
    """
    need(frame, "layer", "head", metric)
    table = frame.loc[:, ["layer", "head", metric]].copy()
    table["name"] = [f"L{layer}H{head}" for layer, head in zip(frame["layer"], frame["head"])]
    scores = [c for c in frame.select_dtypes("number") if c not in _NO_SCORE and not str(c).endswith(_BOUNDS)]
    for column in scores:
        table[f"said {column}"] = _ranked(frame, str(column))
    tooltip = [alt.Tooltip("name:N", title="head")]
    tooltip += [alt.Tooltip(f"said {c}:N", title=words(c)) for c in sorted(scores, key=lambda c: c != metric)]
    click = alt.selection_point(name="head", fields=["layer", "head"], on="click", clear="dblclick")
    base = alt.Chart(rows(table)).encode(
        x=alt.X("head:O", title="head", axis=_ON_TOP).scale(padding=0.06),
        y=alt.Y("layer:O", title="layer", axis=alt.Axis(ticks=False, domain=False)).scale(padding=0.06),
    )
    cells = base.mark_rect(cornerRadius=2, cursor="pointer").encode(
        color=fill(metric, words(metric), domain or (0.0, ceiling(frame[metric]))), tooltip=tooltip
    )
    layers: list[alt.Chart] = [cells.add_params(click)]
    if selected is None:
        chosen = base.transform_filter({"param": "head", "empty": False})
    else:
        chosen = base.transform_filter(f"datum.layer == {int(selected[0])} && datum.head == {int(selected[1])}")
    layers.append(chosen.mark_rect(filled=False, stroke=ORANGE, strokeWidth=2.5, cornerRadius=2, tooltip=None))
    across, down = len(set(frame["head"])), len(set(frame["layer"]))
    return layered(layers, across * clamp(480 / across, 14, 40), down * clamp(460 / down, 12, 28))


def lens_grid(
    frame: pd.DataFrame,
    statistic: str = "p_top1",
    *,
    columns: int = 16,
    d_vocab: int | None = None,
    selected: int | None = None,
) -> alt.LayerChart:
    """The logit lens of one text: a row per token, a column per layer, the layer's top token written in the cell.

    A click selects a cell (selection `cell` with fields layer and pos).

    Args:
        frame: `layer` (-1 is the embedding), `pos`, `token`, `top1` and the statistics, as
            `logit_lens(...).to_frame()` gives them. With `settle_layer`, the cell from which the answer stays the final
            one has an orange edge.
        statistic: what colours the cells, a key of `STATISTICS`. Full colour always means near the final answer or
            certain: the scales of all but the probability are turned round. What is not known has no colour.
        columns: most layers shown; every k-th beyond that (see `kept_layers`).
        d_vocab: vocabulary size, for the fixed ends of entropy and rank; None takes them from the frame.
        selected: position whose row label is bold.
    """
    if statistic not in STATISTICS:
        raise ValueError(f"statistic must be one of {', '.join(STATISTICS)}, got {statistic!r}")
    need(frame, "layer", "pos", "token", "top1", statistic)
    kept = kept_layers(frame["layer"].unique().tolist(), columns)
    table = frame.loc[frame["layer"].isin(kept)].sort_values(["pos", "layer"])
    if table.duplicated(["pos", "layer"]).any():
        raise ValueError("the frame has several rows for one layer and position: pass one text and one site per layer")
    table = table.assign(
        row=row_labels(table["pos"], table["token"]),
        cell=[token_label(text, 24)[:12] for text in table["top1"]],
        top=[token_label(text) for text in table["top1"]],
        settles=_first_settled(table, kept),
    )
    table["shade"], end, label = _shade(table.loc[:, statistic], statistic, d_vocab)
    present = [name for name in STATISTICS if name in table]
    for name in present:
        table[f"said {name}"] = ["unknown" if pd.isna(v) else format(v, STATISTICS[name][1]) for v in table[name]]
    drawn = ["layer", "pos", "row", "cell", "top", "shade", "settles", *[f"said {name}" for name in present]]
    base = alt.Chart(rows(table.loc[:, drawn])).encode(
        x=alt.X("layer:O", title="layer", axis=_LAYERS).scale(padding=0.04),
        y=alt.Y("row:N", sort=table["row"].unique().tolist(), title=None, axis=row_axis(selected)).scale(padding=0.06),
        tooltip=[
            alt.Tooltip("row:N", title="token"),
            alt.Tooltip("layer:O"),
            alt.Tooltip("top:N", title="top token"),
            *[alt.Tooltip(f"said {n}:N", title=STATISTICS[n][0]) for n in present],
        ],
    )
    click = alt.selection_point(name="cell", fields=["layer", "pos"], on="click", clear="dblclick")
    cells = base.mark_rect(cornerRadius=2).encode(
        color=fill("shade", STATISTICS[statistic][0], (0.0, end), label),
        stroke=alt.when("datum.settles").then(alt.value(ORANGE)),
        strokeWidth=alt.when("datum.settles").then(alt.value(1.8)).otherwise(alt.value(0)),
    )
    text = base.mark_text(fontSize=10, font=MONO, limit=alt.ExprRef("bandwidth('x') - 3")).encode(
        text="cell:N",
        color=alt.when(f"datum.shade > {_WHITE_FROM * end}").then(alt.value("white")).otherwise(alt.value(INK)),
    )
    # The words would take the clicks: a clear cell lies over them.
    cover = base.mark_rect(opacity=0, cursor="pointer").add_params(click)
    return layered([cells, text, cover], len(kept) * clamp(760 / len(kept), 40, 60), 22 * len(set(table["pos"])))


def attention_matrix(
    weights: Num[np.ndarray, "..."],
    tokens: Sequence[str],
    *,
    start: int = 0,
    title: str = "attention",
    end: float = 1.0,
) -> alt.Chart:
    """One head's attention: rows look (and predict the next token), columns are looked at. Colour is fixed to 0 to `end`.

    Args:
        weights: attention [query key]; keys after their query are masked in a causal model and left empty.
        tokens: the token of each position, for the labels.
        start: position of the first token, for a window of a longer text.
        title: what the weights are.
        end: value of full colour, where they are no attention.

    Raises:
        ValueError: `weights` without one row and one column per token, or over 64 tokens.
    """
    n = len(tokens)
    if n == 0 or weights.shape != (n, n):
        raise ValueError(f"weights {weights.shape} need one row and one column for each of the {n} tokens")
    if n > 64:
        raise ValueError(f"{n} tokens are too many to read as a matrix: pass a window of at most 64")
    names = row_labels(range(start, start + n), tokens, width=12)
    query, key = np.tril_indices(n)
    table = pd.DataFrame({"weight": weights[query, key].astype(float)})
    table["query"], table["key"] = [names[q] for q in query], [names[k] for k in key]
    axis = {"labelFont": MONO, "ticks": False, "domain": False, "labelFontSize": 11 if n <= 40 else 9}
    chart = alt.Chart(rows(table)).mark_rect(cornerRadius=1)
    chart = chart.encode(
        x=alt.X("key:N", sort=names, title="source: is looked at", axis=alt.Axis(labelAngle=-90, **axis)),
        y=alt.Y("query:N", sort=names, title="destination: looks, and predicts the next token", axis=alt.Axis(**axis)),
        color=fill("weight", title, (0.0, end)),
        tooltip=[
            alt.Tooltip("query:N", title="destination"),
            alt.Tooltip("key:N", title="source"),
            alt.Tooltip("weight:Q", title=title, format=".3f"),
        ],
    )
    size = n * clamp(560 / n, 10, 30)
    return sized(chart, size, size)


def kept_layers(layers: Sequence[int], columns: int = 16) -> list[int]:
    """Every k-th layer, k as small as fits into `columns`; the last layer and the embedding (-1) always stay."""
    inner = sorted({int(layer) for layer in layers if layer >= 0})
    stride = max(1, math.ceil(len(inner) / max(1, columns)))
    return [-1] * (-1 in layers) + inner[::-1][::stride][::-1]


def _ranked(frame: pd.DataFrame, column: str) -> list[str]:
    """`0.913 [0.90, 0.93] (3 of 270)` for each row."""
    ranks = frame[column].rank(ascending=False, method="min")
    said = [f"{value:.3f}" for value in frame[column]]
    if {f"{column}_low", f"{column}_high"} <= set(frame):
        bounds = zip(said, frame[f"{column}_low"], frame[f"{column}_high"])
        said = [f"{value} [{low:.3f}, {high:.3f}]" for value, low, high in bounds]
    return ["not measured" if pd.isna(r) else f"{s} ({r:.0f} of {len(frame)})" for s, r in zip(said, ranks)]


def _first_settled(table: pd.DataFrame, kept: Sequence[int]) -> list[bool]:
    """Whether each cell is the first one shown from which its row's answer stays."""
    if "settle_layer" not in table:
        return [False] * len(table)
    shown = [next((k for k in kept if k >= layer), kept[-1]) for layer in table["settle_layer"]]
    return (table["layer"] == shown).tolist()


def _shade(values: pd.Series, statistic: str, d_vocab: int | None) -> tuple[pd.Series, float, str | None]:
    """Amount of colour of each cell, the amount that is full, and legend numbers of the statistic itself."""
    if statistic == "p_top1":
        return values, 1.0, None
    shown = pd.Series(np.log10(values + 1.0)) if statistic == "rank" else values
    ends: dict[str, Any] = {} if d_vocab is None else {"entropy": math.log(d_vocab), "rank": math.log10(d_vocab)}
    end = ends.get(statistic, ceiling(shown))
    said = f"{end} - datum.value"
    label = f"format(round(pow(10, {said}) - 1), ',d')" if statistic == "rank" else f"format({said}, '.2~f')"
    return end - shown, end, label
