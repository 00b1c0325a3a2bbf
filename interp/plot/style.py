"""The look of every chart: colours, labels of tokens, checks of frames, and the way to SVG, PNG and HTML."""

import html
import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
import vl_convert

from interp import artifact
from interp.tokenview import token_label as token_label

Chart = alt.Chart | alt.LayerChart | alt.VConcatChart

BLUE, ORANGE, GREEN, PURPLE, VERMILION, SKY = "#1f7ac8", "#d98a00", "#009e73", "#b3629a", "#d55e00", "#56b4e9"
CATEGORIES = (BLUE, ORANGE, GREEN, PURPLE, VERMILION, SKY)
GREY = "#808894"
INK = "currentColor"
"""Colour of text marks: in a page the surrounding text's, on canvas and in SVG alike."""
FILL = ["rgba(23,101,173,0.06)", "rgba(23,101,173,1)"]
MONO = "DejaVu Sans Mono, ui-monospace, Menlo, Consolas, monospace"
LIMIT = 5000
"""Most marks in one chart: beyond it a browser stutters, and nobody reads it."""

DARK = "#1f2328"
_FONT = "Arial, Helvetica, sans-serif"
_SHORT = {"auroc": "AUROC", "kl": "KL", "fvu": "FVU", "ece": "ECE", "brier": "Brier score"}
_CSP = "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data:"


# ----------------------------------------------------------------------------------------------------------- labels


def row_labels(positions: Iterable[int], tokens: Iterable[str], width: int = 14) -> list[str]:
    """`12: ·Paris`: the index keeps two equal tokens apart, which a chart would otherwise merge."""
    return [f"{pos}: {token_label(token, width)}" for pos, token in zip(positions, tokens)]


def words(column: str) -> str:
    """A column name as a reader knows it."""
    return _SHORT.get(column, column.replace("_", " "))


# ----------------------------------------------------------------------------------------------------------- pieces


def need(frame: pd.DataFrame, *columns: str) -> None:
    """ValueError where the frame is empty or lacks a column."""
    missing = [column for column in columns if column not in frame]
    if missing:
        raise ValueError(f"the frame has no column {', '.join(missing)}; it has {', '.join(map(str, frame))}")
    if frame.empty:
        raise ValueError("the frame has no rows: there is nothing to draw")


def rows(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame, if it is small enough to draw."""
    if len(frame) > LIMIT:
        raise ValueError(f"{len(frame):,} marks are more than the {LIMIT:,} of one chart: show fewer tokens or layers")
    return frame


def fill(field: str, title: str, domain: Sequence[float], label: str | None = None) -> alt.Color:
    """Colour of a cell: one hue from transparent to full, so that it reads on white and on black.

    The legend stands above the chart, where it costs no width, and is made of squares: a gradient is an SVG reference to
    the page's address, and vanishes when a dashboard changes its address. `label` is a Vega expression for its numbers.
    """
    low, high = domain
    legend = alt.Legend(
        type="symbol",
        orient="top",
        direction="horizontal",
        symbolType="square",
        symbolSize=150,
        symbolStrokeWidth=0,
        symbolOpacity=1,
        titleLimit=300,
        values=[low + (high - low) * share for share in (0.0, 0.25, 0.5, 0.75, 1.0)],
        labelExpr=label or "format(datum.value, '.3~g')",
    )
    scale = alt.Scale(domain=[low, high], range=FILL, clamp=True)
    return alt.Color(f"{field}:Q", title=title, scale=scale, legend=legend)


def row_axis(selected: int | None = None) -> alt.Axis:
    """Axis of `row_labels`, the selected position in bold."""
    weight: Any = "normal"
    if selected is not None:
        test = f"indexof(datum.label, '{int(selected)}:') === 0"
        weight = alt.condition(test, alt.value("bold"), alt.value("normal"))
    return alt.Axis(labelFont=MONO, labelLimit=130, labelFontWeight=weight, ticks=False, domain=False)


def rules(baselines: Mapping[str, float], domain: Sequence[float], start: float, end: float) -> list[alt.Chart]:
    """Dashed lines from x = start to end at each baseline, named in the margin beyond, where the names are spread."""
    if not baselines:
        return []
    gap, margin = 0.058 * (domain[1] - domain[0]), 0.02 * (end - start)
    named = sorted(baselines.items(), key=lambda pair: pair[1])
    value = np.array([v for _, v in named], dtype=float)
    at = value.copy()
    for i in range(1, len(at)):
        at[i] = max(at[i], at[i - 1] + gap)
    at += value.mean() - at.mean()
    at += max(0.0, domain[0] - at[0]) - max(0.0, at[-1] - domain[1])
    table = pd.DataFrame({"value": value, "at": at, "start": start, "end": end, "label": end + margin})
    table["name"] = [f"{token_label(words(name), 24)} {v:.3f}" for name, v in named]
    base = alt.Chart(table)
    line = base.mark_rule(color=GREY, strokeDash=[5, 4]).encode(x="start:Q", x2="end:Q", y="value:Q", tooltip="name:N")
    lead = base.mark_rule(color=GREY, strokeWidth=0.7).encode(x="end:Q", x2="label:Q", y="value:Q", y2="at:Q")
    text = base.mark_text(align="left", dx=3, fontSize=10, color=INK).encode(x="label:Q", y="at:Q", text="name:N")
    return [line, lead, text]


def zero_line() -> alt.Chart:
    """A thin horizontal line at zero."""
    return alt.Chart(pd.DataFrame({"zero": [0.0]})).mark_rule(color=GREY, strokeWidth=1).encode(y="zero:Q")


def sized(chart: alt.Chart, width: float, height: float) -> alt.Chart:
    """Size, and a transparent background: the page's own shows through."""
    return chart.properties(width=width, height=height, background="transparent")


def layered(charts: Sequence[alt.Chart], width: float, height: float) -> alt.LayerChart:
    """Charts over one another, the first one lowest, with one size."""
    chart = alt.layer(*charts)
    assert isinstance(chart, alt.LayerChart), "no chart here has facets"
    return chart.properties(width=width, height=height, background="transparent")


def clamp(value: float, low: float, high: float) -> float:
    """`value`, at least `low` and at most `high`."""
    return max(low, min(high, value))


def ceiling(values: Iterable[float]) -> float:
    """The next whole number at or above the largest value, at least 1: a scale's end that moves seldom."""
    return float(math.ceil(max([1.0, *(value for value in values if not math.isnan(value))])))


# ----------------------------------------------------------------------------------------------------------- output


def to_svg(chart: Chart, ink: str = DARK) -> str:
    """A chart as SVG text, without network.

    Args:
        chart: any chart of this package.
        ink: colour of text and axes; `currentColor` takes the surrounding page's, for SVG inside HTML.
    """
    svg = vl_convert.vegalite_to_svg(chart.to_dict(), config=_config(ink), allowed_base_urls=[])
    if ink != INK:
        svg = svg.replace("<svg ", f'<svg color="{html.escape(ink)}" ', 1)
    # Half of the file are digits beyond a hundredth of a pixel. Only in attributes: a text may be any number.
    return re.sub(r' (?:d|transform)="[^"]*"', lambda found: re.sub(r"\d+\.\d{3,}", _hundredth, found[0]), svg)


def to_png(chart: Chart, scale: float = 2.0) -> bytes:
    """A chart as PNG on white, `scale` device pixels for each CSS pixel."""
    return vl_convert.svg_to_png(to_svg(chart.properties(background="white")), scale=scale)


def to_html(chart: Chart, title: str = "Chart") -> str:
    """A page of its own with tooltips, about 1 MB, which needs no network.

    The chart is data in the script: `<` is escaped, since `</script>` in a token would otherwise end it.
    """
    spec = json.dumps({**chart.to_dict(), "background": "white", "config": _config(DARK)}).replace("<", "\\u003c")
    options = json.dumps({"renderer": "svg", "actions": False})
    libraries = vl_convert.javascript_bundle()  # pyright: ignore[reportCallIssue] (its stub forgets the default)
    assert "</script" not in libraries.lower(), "the bundled libraries would end their own script element"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_CSP}"></head>\n'
        f'<body style="color: {DARK}"><div id="chart"></div>\n<script>{libraries}</script>\n'
        f"<script>vegaEmbed('#chart', {spec}, {options});</script></body></html>\n"
    )


def save_chart(chart: Chart, path: str | os.PathLike[str]) -> Path:
    """Write a chart as .svg, .png or .html by the file's ending, whole or not at all.

    Raises:
        ValueError: another ending.
    """
    path = Path(path)
    made = {".svg": to_svg, ".png": to_png, ".html": to_html}.get(path.suffix.lower())
    if made is None:
        raise ValueError(f"{path.name}: a chart is saved as .svg, .png or .html")
    return artifact.atomic_write(path, made(chart))


def _hundredth(number: re.Match[str]) -> str:
    return f"{float(number[0]):.2f}"


def _config(ink: str) -> dict[str, Any]:
    quiet = {"labelColor": ink, "titleColor": ink, "labelFontSize": 11, "titleFontSize": 11, "titleFontWeight": 500}
    lines = {"domainColor": ink, "tickColor": ink, "gridColor": ink}
    opacity = {"domainOpacity": 0.35, "tickOpacity": 0.35, "gridOpacity": 0.12, "labelOpacity": 0.9}
    return {
        "aria": False,  # a quarter of the size; whoever embeds the picture gives it one label
        "font": _FONT,
        "axis": {**quiet, **lines, **opacity, "titlePadding": 8},
        "legend": quiet,
        "title": {"color": ink, "fontSize": 12, "anchor": "start"},
        "text": {"color": ink, "fontSize": 11},
        "view": {"stroke": None},
    }
