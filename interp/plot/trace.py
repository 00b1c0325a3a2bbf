"""One answer traced: the lens' top guess at each layer and token, and numbers along the tokens one under the other."""

from collections.abc import Mapping

import altair as alt
import pandas as pd

from interp.plot.grids import kept_layers
from interp.plot.style import BLUE, GREY, INK, MONO, ORANGE, clamp, fill, layered, need, row_labels, rows, token_label

_LAYERS = alt.Axis(
    orient="top", labelAngle=0, ticks=False, domain=False, labelExpr="datum.value < 0 ? 'embed' : datum.label"
)
_WHITE_FROM = 0.79
MOST_TOKENS = 80
"""Tokens along an axis that can still be read."""


def answer_layers(frame: pd.DataFrame, *, answer_from: int | None = None, columns: int = 14) -> alt.LayerChart:
    """A row for each token, a column for each layer: the layer's top guess for that token is written in the cell.

    Colour is the probability that the layer gives to the token that does stand there. Cells whose top guess is that token
    have an orange edge: a row without one at its end is a token that the model itself would not have said, and an edge that
    ends before the last layer is an answer that was there and was lost.

    Args:
        frame: a row per token and layer: `pos`, `token`, `layer` (-1 is the embedding), `top1` (the guess), `p_top1`,
            `p_token`, and `said` (whether the guess is the token).
        answer_from: position from which row labels are bold.
        columns: most layers shown; the last one always is.

    Raises:
        ValueError: a missing column, no row, two rows for one token and layer, or more than 5,000 cells.
    """
    need(frame, "pos", "token", "layer", "top1", "p_top1", "p_token", "said")
    if frame.duplicated(["pos", "layer"]).any():
        raise ValueError("the frame has several rows for one token and layer: pass one text and one site per layer")
    kept = kept_layers(frame["layer"].tolist(), columns)
    table = frame.loc[frame["layer"].isin(kept)].sort_values(["pos", "layer"], kind="stable")
    table = table.assign(
        row=row_labels(table["pos"], table["token"]),
        cell=[token_label(text, 24)[:12] for text in table["top1"]],
        top=[token_label(text) for text in table["top1"]],
        said=table["said"].astype(bool),
    )
    bold = "false" if answer_from is None else f"toNumber(split(datum.label, ':')[0]) >= {int(answer_from)}"
    weight = alt.condition(bold, alt.value("bold"), alt.value("normal"))
    axis = alt.Axis(labelFont=MONO, labelLimit=150, labelFontWeight=weight, ticks=False, domain=False)
    drawn = ["layer", "row", "cell", "top", "p_top1", "p_token", "said"]
    base = alt.Chart(rows(table.loc[:, drawn])).encode(
        x=alt.X("layer:O", title="layer", axis=_LAYERS).scale(padding=0.04),
        y=alt.Y("row:N", sort=table["row"].unique().tolist(), title=None, axis=axis).scale(padding=0.08),
        tooltip=[
            alt.Tooltip("row:N", title="token"),
            alt.Tooltip("layer:O"),
            alt.Tooltip("top:N", title="top guess"),
            alt.Tooltip("p_top1:Q", title="its probability", format=".3f"),
            alt.Tooltip("p_token:Q", title="probability of the token", format=".4f"),
        ],
    )
    cells = base.mark_rect(cornerRadius=2).encode(
        color=fill("p_token", "probability of the token that stands there", (0.0, 1.0)),
        stroke=alt.when("datum.said").then(alt.value(ORANGE)),
        strokeWidth=alt.when("datum.said").then(alt.value(1.8)).otherwise(alt.value(0)),
    )
    text = base.mark_text(fontSize=10, font=MONO, limit=alt.ExprRef("bandwidth('x') - 3")).encode(
        text="cell:N",
        color=alt.when(f"datum.p_token > {_WHITE_FROM}").then(alt.value("white")).otherwise(alt.value(INK)),
    )
    return layered([cells, text], len(kept) * clamp(800 / len(kept), 44, 62), 23 * len(set(table["pos"])))


def token_lines(
    frame: pd.DataFrame, lines: Mapping[str, str], *, answer_from: int | None = None, height: int = 88
) -> alt.VConcatChart:
    """Numbers along the tokens of a text, a panel for each, one under the other; what is not known is left out.

    Args:
        frame: a row per token: `pos`, `token` and the columns of `lines`.
        lines: column -> title of its axis, with the unit. A title that ends in "0 to 1" fixes the axis to that.
        answer_from: position from which the tokens are the answer's, drawn orange behind a dashed line.
        height: of a panel, pixels.

    Raises:
        ValueError: no line, a missing column, no row, or over 80 tokens.
    """
    if not lines:
        raise ValueError("there are no lines to draw: name at least one column")
    need(frame, "pos", "token", *lines)
    if len(frame) > MOST_TOKENS:
        raise ValueError(f"{len(frame)} tokens are too many to read along an axis: pass at most {MOST_TOKENS}")
    table = frame.sort_values("pos")
    table = table.assign(row=row_labels(table["pos"], table["token"]))
    start = 1 + max(table["pos"].tolist()) if answer_from is None else answer_from
    order = table["row"].tolist()
    width = len(order) * clamp(760 / len(order), 15, 34)
    panels = [
        _panel(table, column, title, order, start, last=index == len(lines) - 1).properties(width=width, height=height)
        for index, (column, title) in enumerate(lines.items())
    ]
    return alt.vconcat(*panels, spacing=10).properties(background="transparent")


def _panel(table: pd.DataFrame, column: str, title: str, order: list[str], start: int, *, last: bool) -> alt.LayerChart:
    # Under a name of our own: Vega reads the dots and brackets of others as a path, and draws nothing.
    known = table.loc[table[column].notna(), ["row", "pos", column]].rename(columns={column: "value"}).assign(part=1)
    known["part"] = ["answer" if pos >= start else "prompt" for pos in known["pos"]]
    axis = alt.Axis(
        labels=last, ticks=False, labelAngle=-90, labelFont=MONO, labelLimit=110, domainColor=GREY, labelOverlap=False
    )
    share = title.endswith("0 to 1")
    scale = alt.Scale(domain=[0, 1]) if share else alt.Scale(zero=True)
    values = alt.Axis(tickCount=3, grid=True, gridOpacity=0.25, titleLimit=200)
    base = alt.Chart(rows(known)).encode(
        x=alt.X("row:N", sort=order, title=None, axis=axis, scale=alt.Scale(domain=order)),
        y=alt.Y("value:Q", title=_wrapped(title), scale=scale, axis=values),
    )
    line = base.mark_line(color=GREY, strokeWidth=1.2, opacity=0.7)
    points = base.mark_point(filled=True, opacity=1, size=38).encode(
        color=alt.Color("part:N", title=None, legend=None).scale(domain=["prompt", "answer"], range=[BLUE, ORANGE]),
        tooltip=[
            alt.Tooltip("row:N", title="token"),
            alt.Tooltip("value:Q", title=title, format=".3f"),
            alt.Tooltip("part:N", title="part"),
        ],
    )
    first = [row for row, pos in zip(table["row"], table["pos"]) if pos == start]
    marks = [line, points]
    if first:
        edge = alt.Chart(pd.DataFrame({"row": first})).mark_rule(color=ORANGE, strokeDash=[4, 4], strokeWidth=1)
        marks.insert(0, edge.encode(x=alt.X("row:N", sort=order, scale=alt.Scale(domain=order), bandPosition=0)))
    chart = alt.layer(*marks)
    assert isinstance(chart, alt.LayerChart)
    return chart


def _wrapped(title: str, width: int = 17) -> list[str]:
    """A title in short lines: panels are low."""
    lines = [""]
    for word in title.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip()
    return lines
