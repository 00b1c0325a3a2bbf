"""Calibration of a language model on text: by layer, by position, and small reliability diagrams by kind of token."""

from collections.abc import Sequence

import altair as alt
import pandas as pd

from interp.plot.curves import _layer_axis
from interp.plot.style import BLUE, GREY, ORANGE, layered, need, rows, token_label, words

STATES = {"before": "at T = 1", "after": "after temperature scaling"}
"""State in a column's name -> what a reader sees."""
COLOURS = (ORANGE, BLUE)
COLUMNS = 3
"""Small diagrams beside one another."""


def calibration_by_layer(frame: pd.DataFrame) -> alt.VConcatChart:
    """Calibration error before and after a layer's own temperature, over the temperatures that were fitted.

    Args:
        frame: a row per layer: `layer` (-1 the embedding), `ece_before` and `ece_after` with `_low`, `_high` (interval), and
            `null_before_low`, `null_before_high` and so on (band of a calibrated source), `temperature` with `_low`, `_high`,
            `n`. NaN where a layer has no temperature.
    """
    table = _both(frame, ["layer", "n"])
    need(frame, "temperature", "temperature_low", "temperature_high")
    first, last = min(map(int, frame["layer"])), max(map(int, frame["layer"]))
    x = alt.X("layer:Q", title="layer", axis=_layer_axis(first, last)).scale(
        domain=[first, max(last, first + 1)], nice=False, padding=8
    )
    panels = [
        _errors_by_layer(
            table.loc[table["state"] == state],
            x.copy().title(None),
            colour,
            f"{words('ece')} {state}; grey: a calibrated source",
        )
        for state, colour in zip(STATES.values(), COLOURS)
    ]
    known = frame.dropna(subset=["temperature"])
    if len(known):
        panels.append(_temperatures(known, x))
    both = alt.vconcat(*panels, spacing=12)
    return both.properties(background="transparent")


def _errors_by_layer(table: pd.DataFrame, x: alt.X, colour: str, title: str) -> alt.LayerChart:
    y = alt.Y("ece:Q", title="ECE").scale(domainMin=0)
    base = alt.Chart(rows(table.dropna(subset=["ece"])), title=alt.TitleParams(title, fontWeight="normal")).encode(x=x)
    tips = [alt.Tooltip("layer:Q", format="d"), *_tips()]
    marks = [
        base.mark_area(color=GREY, opacity=0.35).encode(y=alt.Y("null_low:Q"), y2="null_high:Q"),
        base.mark_area(color=colour, opacity=0.18).encode(y="low:Q", y2="high:Q"),
        base.mark_line(color=colour, strokeWidth=2).encode(y=y),
        base.mark_point(color=colour, filled=True, opacity=1, size=28).encode(y=y, tooltip=tips),
    ]
    return _panel(marks, 620, 130)


def _temperatures(known: pd.DataFrame, x: alt.X) -> alt.LayerChart:
    columns = ["layer", "temperature", "temperature_low", "temperature_high"]
    table = known.loc[:, columns].copy()
    table["temperature_low"] = table["temperature_low"].clip(lower=0.05)  # the axis is logarithmic
    base = alt.Chart(rows(table), title=alt.TitleParams("Temperature of the layer", fontWeight="normal")).encode(x=x)
    y = alt.Y("temperature:Q", title="T", axis=alt.Axis(format="~g", tickCount=5)).scale(type="log", base=2)
    tips = [alt.Tooltip("layer:Q", format="d")]
    tips += [alt.Tooltip(f"{name}:Q", title=words(name), format=".3f") for name in columns[1:]]
    one = alt.Chart(pd.DataFrame({"one": [1.0]})).mark_rule(color=GREY, strokeDash=[4, 4]).encode(y="one:Q")
    marks = [
        one,
        base.mark_area(color=BLUE, opacity=0.18).encode(y="temperature_low:Q", y2="temperature_high:Q"),
        base.mark_line(color=BLUE, strokeWidth=2).encode(y=y),
        base.mark_point(color=BLUE, filled=True, opacity=1, size=28).encode(y=y, tooltip=tips),
    ]
    return _panel(marks, 620, 100)


def calibration_by_part(frame: pd.DataFrame, part: str) -> alt.LayerChart:
    """Calibration error of each part of the tokens before and after the temperature, beside a calibrated source's band.

    Args:
        frame: a row per part, with the columns of `calibration_by_layer` but `temperature`.
        part: column with the names of the parts, in the order of the rows.
    """
    table = _both(frame, [part, "n"])
    table["name"] = [f"{token_label(str(name), 24)} (n = {n:,})" for name, n in zip(table[part], table["n"])]
    order, states = list(dict.fromkeys(table["name"])), list(STATES.values())
    shown = table.dropna(subset=["ece"]).drop(columns=[part])
    y = alt.Y("name:N", sort=order, title=None, axis=alt.Axis(labelLimit=240, ticks=False, domain=False, grid=True))
    scale = alt.Scale(domain=states, range=list(COLOURS))
    base = alt.Chart(rows(shown)).encode(
        y=y,
        yOffset=alt.YOffset("state:N", sort=states).scale(domain=states, paddingOuter=0.5),
        color=alt.Color(
            "state:N", sort=states, title=None, scale=scale, legend=alt.Legend(orient="top", symbolOpacity=1)
        ),
    )
    x = alt.X("ece:Q", title="ECE with its 95 % interval; grey: a calibrated source of this n").scale(domainMin=0)
    marks = [
        base.mark_rule(strokeWidth=9, opacity=0.35).encode(
            x=alt.X("null_low:Q"), x2="null_high:Q", color=alt.value(GREY)
        ),
        base.mark_rule(strokeWidth=2).encode(x="low:Q", x2="high:Q"),
        base.mark_point(filled=True, size=60, opacity=1).encode(x=x, tooltip=["name:N", "state:N", *_tips()]),
    ]
    return layered(marks, 460, 44 * len(order))


def reliability_panels(bins: pd.DataFrame, part: str = "part") -> alt.VConcatChart:
    """A small reliability diagram for each part, before and after the temperature.

    Args:
        bins: a row per bin: `part`, `state` ("before", "after"), `n`, `confidence`, `accuracy`, `accuracy_low`,
            `accuracy_high`. Bins of few tokens are drawn small.
        part: column with the names of the parts, in the order of the rows.
    """
    need(bins, part, "state", "n", "confidence", "accuracy", "accuracy_low", "accuracy_high")
    table = bins.assign(state=[STATES[state] for state in bins["state"]])
    parts = list(dict.fromkeys(table[part]))
    largest = max(map(int, table["n"]))
    panels = [
        _reliability(table.loc[table[part] == name].drop(columns=[part]), str(name), largest, edge=not place % COLUMNS)
        for place, name in enumerate(parts)
    ]
    lines = [alt.hconcat(*panels[start : start + COLUMNS], spacing=18) for start in range(0, len(panels), COLUMNS)]
    return alt.vconcat(*lines, spacing=14).properties(background="transparent")


def _reliability(table: pd.DataFrame, name: str, largest: int, *, edge: bool) -> alt.LayerChart:
    states = list(STATES.values())
    n = int(table.loc[table["state"] == states[0], "n"].sum())
    columns = ["state", "n", "confidence", "accuracy", "accuracy_low", "accuracy_high"]
    title = alt.TitleParams(f"{token_label(name, 24)} (n = {n:,})", fontWeight="normal", fontSize=11)
    ticks = alt.Axis(values=[0, 0.5, 1], format="~g")
    x = alt.X("confidence:Q", title="said", axis=ticks).scale(domain=[0, 1])
    y = alt.Y("accuracy:Q", title="came true" if edge else None, axis=ticks).scale(domain=[0, 1])
    colour = alt.Color("state:N", sort=states, title=None, legend=alt.Legend(orient="top", symbolOpacity=1))
    base = alt.Chart(rows(table.loc[:, columns]), title=title).encode(
        color=colour.scale(domain=states, range=list(COLOURS))
    )
    diagonal = alt.Chart(pd.DataFrame({"confidence": [0.0, 1.0], "accuracy": [0.0, 1.0]}))
    size = alt.Size("n:Q", legend=None).scale(type="sqrt", domain=[0, largest], range=[8, 90])
    tips = [alt.Tooltip(f"{c}:Q", title=words(c), format=".3f") for c in columns[2:]]
    marks = [
        diagonal.mark_line(color=GREY, strokeDash=[4, 4], strokeWidth=1.2).encode(x=x, y=y),
        base.mark_rule(opacity=0.5).encode(x=x, y="accuracy_low:Q", y2="accuracy_high:Q"),
        base.mark_line(strokeWidth=1.5).encode(x=x, y=y),
        base.mark_point(filled=True, opacity=1).encode(x=x, y=y, size=size, tooltip=["state:N", "n:Q", *tips]),
    ]
    return _panel(marks, 168, 150)


def _panel(marks: Sequence[alt.Chart], width: int, height: int) -> alt.LayerChart:
    """Marks over one another, as a part of a chart: the whole has the background."""
    chart = alt.layer(*marks)
    assert isinstance(chart, alt.LayerChart), "no panel has facets"
    return chart.properties(width=width, height=height)


def _both(frame: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """A row for each row of the frame and state, with ece, low, high, null_low, null_high."""
    parts = []
    for state, name in STATES.items():
        names = {f"ece_{state}": "ece", f"ece_{state}_low": "low", f"ece_{state}_high": "high"}
        names |= {f"null_{state}_low": "null_low", f"null_{state}_high": "null_high"}
        need(frame, *keys, *names)
        parts.append(frame.loc[:, [*keys, *names]].rename(columns=names).assign(state=name))
    return pd.concat(parts, ignore_index=True)


def _tips() -> list[alt.Tooltip]:
    names = {"ece": "ECE", "low": "interval from", "high": "to", "null_low": "calibrated from", "null_high": "to "}
    return [*(alt.Tooltip(f"{c}:Q", title=title, format=".4f") for c, title in names.items()), alt.Tooltip("n:Q")]
