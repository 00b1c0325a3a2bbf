"""The logit lens on its side: a column per token, layers up, for a short text that reads from left to right."""

import altair as alt
import pandas as pd

from interp.plot.grids import STATISTICS, kept_layers
from interp.plot.style import INK, MONO, ceiling, clamp, fill, layered, need, row_labels, rows, token_label

MOST = 24
"""Tokens that fit side by side with the words of their cells still readable."""


def lens_columns(frame: pd.DataFrame, statistic: str = "p_top1", *, columns: int = 16) -> alt.LayerChart:
    """A column per token and a row per layer, the first layer at the bottom; the top token stands in the cell.

    A click selects a cell (selection `cell` with fields layer and pos).

    Args:
        frame: of one text, as `lens_grid` takes it.
        statistic: what colours the cells, a key of `STATISTICS`. Full colour is the largest value, also of entropy, KL and
            rank.
        columns: most layers shown (see `kept_layers`).

    Raises:
        ValueError: an unknown statistic, a missing column, several rows for one cell, or more than `MOST` tokens.
    """
    if statistic not in STATISTICS:
        raise ValueError(f"statistic must be one of {', '.join(STATISTICS)}, got {statistic!r}")
    need(frame, "layer", "pos", "token", "top1", statistic)
    kept = kept_layers(frame["layer"].unique().tolist(), columns)
    table = frame.loc[frame["layer"].isin(kept)].sort_values(["pos", "layer"])
    if table.duplicated(["pos", "layer"]).any():
        raise ValueError("the frame has several rows for one layer and position: pass one text and one site per layer")
    n = len(set(table["pos"]))
    if n > MOST:
        raise ValueError(f"{n} tokens are too many side by side: pass at most {MOST}")
    values = table[statistic].astype(float)
    end = 1.0 if statistic == "p_top1" else ceiling(values.dropna()) if values.notna().any() else 1.0
    table = pd.DataFrame(
        {
            "layer": table["layer"],
            "pos": table["pos"],
            "column": row_labels(table["pos"], table["token"], width=10),
            "cell": [token_label(text, 24)[:12] for text in table["top1"]],
            "top": [token_label(text) for text in table["top1"]],
            "shade": values,
            "said": ["unknown" if pd.isna(v) else format(int(v) if statistic == "rank" else v, STATISTICS[statistic][1])
                     for v in values],
        }
    )  # fmt: skip
    names = table["column"].unique().tolist()
    axis = alt.Axis(labelAngle=-45, labelFont=MONO, ticks=False, domain=False, labelOverlap=False)
    up = alt.Axis(ticks=False, domain=False, labelExpr="datum.value < 0 ? 'embed' : datum.label")
    base = alt.Chart(rows(table)).encode(
        x=alt.X("column:N", sort=names, title=None, axis=axis).scale(padding=0.04),
        y=alt.Y("layer:O", sort="descending", title="layer", axis=up).scale(padding=0.06),
        tooltip=[
            alt.Tooltip("column:N", title="token"),
            alt.Tooltip("layer:O"),
            alt.Tooltip("top:N", title="top token"),
            alt.Tooltip("said:N", title=STATISTICS[statistic][0]),
        ],
    )
    click = alt.selection_point(name="cell", fields=["layer", "pos"], on="click", clear="dblclick")
    cells = base.mark_rect(cornerRadius=2).encode(color=fill("shade", STATISTICS[statistic][0], (0.0, end)))
    text = base.mark_text(fontSize=10, font=MONO, limit=alt.ExprRef("bandwidth('x') - 3")).encode(
        text="cell:N",
        color=alt.when(f"datum.shade > {0.79 * end}").then(alt.value("white")).otherwise(alt.value(INK)),
    )
    # The words would take the clicks: a clear cell lies over them.
    cover = base.mark_rect(opacity=0, cursor="pointer").add_params(click)
    return layered([cells, text, cover], n * clamp(760 / n, 34, 70), 22 * len(kept))
