"""Patches by layer and place: what each one brought back, or lost."""

import math

import altair as alt
import pandas as pd

from interp.plot.style import MONO, clamp, layered, need, row_labels, rows, words

FROM_TO = ["rgba(213,94,0,1)", "rgba(213,94,0,0.05)", "rgba(23,101,173,0.05)", "rgba(23,101,173,1)"]
"""Vermilion below zero, blue above; nothing at zero, so that both show on white and on black."""
MOST_LABELS = 48
"""Most labels across that are all drawn."""


def patch_grid(frame: pd.DataFrame, *, mode: str = "denoise", value: str = "effect") -> alt.LayerChart:
    """Effects of patches: layers down, positions or heads across. 0 is the corrupted run, 1 the clean one.

    A click selects a patch (selection `cell` with fields layer, and pos or head).

    Args:
        frame: a row per patch: `layer`, `pos` or `head` (both: give one head), the value, and `token`, `low`, `high`, `n`
            where they are known.
        mode: "denoise" colours what came back; "noise" colours what was lost, 1 less the effect.
        value: column that colours the cells.
    """
    across = "pos" if "pos" in frame else "head" if "head" in frame else "part"
    table = frame if across in frame else frame.assign(part="all")
    need(table, "layer", across, value)
    if len(table.drop_duplicates(["layer", across])) < len(table):
        raise ValueError("the frame has several rows for one layer and place: pass one head, or one site")
    shown = [v if mode == "denoise" else 1.0 - v for v in table[value].tolist()]
    names = [str(name) for name in table[across].tolist()]
    if across == "pos":
        names = row_labels(table["pos"].tolist(), table["token"].tolist() if "token" in table else names)
    table = table.assign(shade=shown, name=names)
    end = max([1.0, *map(abs, shown)])
    title = "share of the gap brought back" if mode == "denoise" else "share of the gap lost"
    tips = [alt.Tooltip("layer:O"), alt.Tooltip("name:N", title=words(across)), alt.Tooltip(f"{value}:Q", format=".3f")]
    tips += [
        alt.Tooltip(f"{c}:Q", format=".3f")
        for c in ("low", "high")
        if c in table and not any(map(math.isnan, table[c].tolist()))
    ]
    tips += [alt.Tooltip("n:Q", title="pairs")] if "n" in table else []
    kept = [
        "layer",
        *([across] if across != "part" else []),
        "name",
        "shade",
        value,
        *[c for c in ("low", "high", "n") if c in table],
    ]
    # Every token keeps its label, as long as they fit: the one that differs would else be the one left out.
    axis = alt.Axis(
        orient="top", labelAngle=-55 if across == "pos" else 0, labelFont=MONO, ticks=False, domain=False,
        labelOverlap=len(set(names)) > MOST_LABELS,
    )  # fmt: skip
    fields = ["layer", *([across] if across != "part" else [])]
    click = alt.selection_point(name="cell", fields=fields, on="click", clear="dblclick")
    cells = alt.Chart(rows(table.loc[:, kept])).mark_rect(cornerRadius=2, cursor="pointer").add_params(click)
    cells = cells.encode(
        x=alt.X(
            "name:N", sort=table["name"].unique().tolist(), title="position" if across == "pos" else across, axis=axis
        ),
        y=alt.Y("layer:O", title="layer", axis=alt.Axis(ticks=False, domain=False)).scale(padding=0.06),
        color=signed("shade", title, end),
        tooltip=tips,
    )
    wide, down = len(set(table["name"])), len(set(table["layer"]))
    return layered([cells], wide * clamp(620 / wide, 16, 44), down * clamp(460 / down, 12, 28))


def signed(field: str, title: str, end: float) -> alt.Color:
    """Colour of a signed value, the same on both sides of zero."""
    legend = alt.Legend(
        type="symbol", orient="top", direction="horizontal", symbolType="square", symbolSize=150, symbolStrokeWidth=0,
        symbolOpacity=1, titleLimit=300, values=[-end, -end / 2, 0.0, end / 2, end], labelExpr="format(datum.value, '.2~f')",
    )  # fmt: skip
    scale = alt.Scale(domain=[-end, -1e-9, 1e-9, end], range=FROM_TO, clamp=True)
    return alt.Color(f"{field}:Q", title=title, scale=scale, legend=legend)
