"""Uncertainty: risk against coverage, signals of doubt, entropy by layer, smooth reliability, temperatures, ways to ask.

A dashed line is what chance does: the share wrong where everything is answered (the risk of a random order at every coverage),
and an AUROC of one half.
"""

import math

import altair as alt
import numpy as np
import pandas as pd

from interp.plot.style import (
    BLUE,
    CATEGORIES,
    GREY,
    INK,
    LIMIT,
    MONO,
    ORANGE,
    VERMILION,
    ceiling,
    clamp,
    fill,
    layered,
    need,
    row_labels,
    rows,
    rules,
    token_label,
    words,
)

BANDS = 2
"""Most lines that have their intervals drawn: more areas over one another say nothing."""
FEW = 30
"""Most points of a line that are drawn as points."""
SURE, UNSURE, REVERSED = "interval above one half", "cannot be told from chance", "the wrong way round"
_KINDS = {SURE: BLUE, UNSURE: GREY, REVERSED: VERMILION}
_WIDTH, _HEIGHT = 520, 300
_NAME = 28
"""Longest name of a signal, in characters."""


def risk_coverage(frame: pd.DataFrame, *, colour: str | None = "signal") -> alt.LayerChart:
    """The share of wrong answers among the most confident ones, a line for each signal; lower is better.

    Args:
        frame: `coverage` (0 to 1) and `risk`, and `low` and `high` where there is an interval, `threshold` and `n_answered`
            where they are known: `SelectiveReport.curve`, several of them under one another for several lines.
        colour: column that tells the lines apart; without it in the frame, or with None, there is one.
    """
    need(frame, "coverage", "risk")
    table = frame.loc[:, [c for c in ("coverage", "risk", "low", "high", "threshold", "n_answered") if c in frame]]
    table = table.assign(line=_lines(frame, colour)).dropna(subset=["coverage", "risk"])
    need(table, "risk")
    lines = list(dict.fromkeys(table["line"]))
    table = pd.concat([_thinned(part, LIMIT // len(lines)) for _, part in table.groupby("line", sort=False)])
    bands = {"low", "high"} <= set(table) and len(lines) <= BANDS
    top = _top(table, bands)
    x = alt.X("coverage:Q", title="coverage (share of questions that are answered)", axis=_share_axis())
    x = x.scale(domain=[0, 1.3], nice=False)
    scale = alt.Scale(domain=[0, top], clamp=True)
    legend = alt.Legend(orient="top", columns=4, symbolOpacity=1, labelLimit=150) if len(lines) > 1 else None
    tint = alt.Color("line:N", sort=lines, title=None, legend=legend)
    tint = tint.scale(domain=lines, range=CATEGORIES[: len(lines)] if len(lines) <= len(CATEGORIES) else alt.Undefined)
    numbers = [c for c in ("coverage", "risk", "low", "high", "threshold") if c in table]
    tips = [alt.Tooltip("line:N", title=colour or "line"), *[alt.Tooltip(f"{c}:Q", format=".3~f") for c in numbers]]
    tips += [alt.Tooltip("n_answered:Q", title="n answered", format=",d")] if "n_answered" in table else []
    base = alt.Chart(rows(table)).encode(x=x, color=tint)
    title = "risk (share of the answers that are wrong)"
    layers: list[alt.Chart] = []
    if bands:
        area = base.mark_area(opacity=0.16)
        layers.append(area.encode(y=alt.Y("low:Q", title=title, scale=scale), y2="high:Q"))
    layers += rules(_answer_all(table), (0.0, top), 0.0, 1.0)
    y = alt.Y("risk:Q", title=title, scale=scale)
    layers.append(base.mark_line(strokeWidth=2).encode(y=y))
    # Where thresholds are few, only the points can be had, and not what lies on the line between them.
    few = len(table) <= FEW * len(lines)
    layers.append(base.mark_point(filled=True, size=45, opacity=1 if few else 0).encode(y=y, tooltip=tips))
    return layered(layers, _WIDTH, _HEIGHT)


def signal_ranking(frame: pd.DataFrame) -> alt.LayerChart:
    """How well each signal of doubt finds wrong answers: AUROC with its interval, in the order of the frame.

    Args:
        frame: `rank_signals`' table: `signal` and `auroc`, and `low`, `high`, `reliable`, `n`, `note`, `aurc`, `excess_aurc`,
            `n_missing` where they are known. A signal without an AUROC has its note in its line.
    """
    need(frame, "signal", "auroc")
    optional = ("low", "high", "aurc", "excess_aurc", "n", "n_missing")
    table = frame.loc[:, ["auroc", *[c for c in optional if c in frame]]].reset_index(drop=True)
    table["name"] = [token_label(str(name), _NAME) for name in frame["signal"]]
    if table["name"].duplicated().any():
        raise ValueError("two signals have one name: pass one frame of rank_signals")
    known = table["auroc"].notna()
    sure = frame["reliable"].to_numpy(bool) if "reliable" in frame else np.ones(len(frame), bool)
    table["kind"] = np.where(sure, SURE, UNSURE)
    if "high" in table:
        table.loc[~sure & (table["high"] < 0.5), "kind"] = REVERSED
    notes = frame["note"].tolist() if "note" in frame else [""] * len(frame)
    table["said"] = [
        _said(value, n) for value, n in zip(table["auroc"], table["n"] if "n" in table else [None] * len(table))
    ]
    table["missing"] = [token_label(str(note), 70) if note else "no figure" for note in notes]
    kinds = [kind for kind in _KINDS if kind in set(table.loc[known, "kind"])]
    low = float(np.nanmin([0.4, *table["auroc"], *table.get("low", [])]))
    start = math.floor(low * 10) / 10
    side = alt.Axis(labelLimit=190, ticks=False, domain=False, labelOverlap=False)
    y = alt.Y("name:N", sort=table["name"].tolist(), title=None, axis=side)
    legend = alt.Legend(orient="top", symbolOpacity=1, labelLimit=200) if len(kinds) > 1 else None
    tint = alt.Color("kind:N", title=None, legend=legend).scale(domain=kinds, range=[_KINDS[kind] for kind in kinds])
    tips = [alt.Tooltip("name:N", title="signal")]
    tips += [alt.Tooltip(f"{c}:Q", title=words(c), format=".3~f") for c in ("auroc", *optional[:4]) if c in table]
    tips += [alt.Tooltip(f"{c}:Q", title=words(c), format=",d") for c in optional[4:] if c in table]
    base = alt.Chart(rows(table)).encode(y=y, tooltip=tips)
    base = base.transform_calculate(chance="0.5")
    shown, blank = base.transform_filter("isValid(datum.auroc)"), base.transform_filter("!isValid(datum.auroc)")
    chance = alt.Chart(pd.DataFrame({"chance": [0.5]})).mark_rule(color=GREY, strokeDash=[5, 4])
    title, scale = "AUROC for wrong answers (0.5 is chance)", alt.Scale(domain=[start, 1], nice=False, zero=False)
    x, ends, half = (alt.X(f"{column}:Q", title=title, scale=scale) for column in ("auroc", "low", "chance"))
    layers: list[alt.Chart] = [chance.encode(x=half)]
    if {"low", "high"} <= set(table):
        layers.append(shown.mark_rule(strokeWidth=2, opacity=0.7).encode(x=ends, x2="high:Q", color=tint))
    layers.append(shown.mark_point(filled=True, size=64, opacity=1).encode(x=x, color=tint))
    # The numbers stand in a column of their own, beyond the scale, where no interval reaches.
    said = shown.mark_text(align="left", color=INK, tooltip=None).encode(x=alt.value(_WIDTH * 0.8 + 10), text="said:N")
    layers.append(said)
    if not bool(known.all()):
        layers.append(blank.mark_text(align="left", dx=8, color=INK, opacity=0.65).encode(x=half, text="missing:N"))
    return layered(layers, _WIDTH * 0.8, len(table) * clamp(300 / len(table), 18, 28))


def entropy_map(frame: pd.DataFrame, value: str = "entropy", *, selected: int | None = None) -> alt.LayerChart:
    """How unsure each layer is after each token: tokens from left to right, layers up, the lens' number as colour.

    A click selects a cell (selection `cell` with fields layer and pos).

    Args:
        frame: a row per layer (-1 is the embedding) and token of one text: `layer`, `pos`, `token` and the value, nats from 0
            on; a lens' frame has them. NaN is left open.
        value: column that is drawn.
        selected: position whose label is bold.

    Raises:
        ValueError: a missing column, two rows for one cell, or more than 5,000 cells.
    """
    need(frame, "layer", "pos", "token", value)
    if frame.duplicated(["layer", "pos"]).any():
        raise ValueError("the frame has several rows for one layer and token: pass one text and one site per layer")
    extra = [c for c in ("top1", "p_top1") if c in frame]
    table = frame.loc[:, ["layer", "pos", value, *extra]].sort_values(["pos", "layer"])
    table["column"] = row_labels(frame.loc[table.index, "pos"], frame.loc[table.index, "token"], width=10)
    if "top1" in table:
        table["top1"] = [token_label(str(text), 24) for text in table["top1"]]
    table[value] = table[value].astype(float)
    names, end = table["column"].unique().tolist(), ceiling(table[value].dropna())
    n, layers = len(names), len(set(table["layer"]))
    test = "false" if selected is None else f"indexof(datum.label, '{int(selected)}:') === 0"
    weight = alt.condition(test, alt.value("bold"), alt.value("normal"))
    down = alt.Axis(
        labelAngle=-90,
        labelFont=MONO,
        labelLimit=90,
        ticks=False,
        domain=False,
        labelFontWeight=weight,
    )
    up = alt.Axis(ticks=False, domain=False, labelOverlap=True, labelExpr="datum.value < 0 ? 'embed' : datum.label")
    tips = [alt.Tooltip("column:N", title="token"), alt.Tooltip("layer:O")]
    tips.append(alt.Tooltip(f"{value}:Q", title=f"{words(value)} (nats)", format=".3f"))
    tips += [alt.Tooltip("top1:N", title="top token")] if "top1" in table else []
    tips += [alt.Tooltip("p_top1:Q", title="its probability", format=".3f")] if "p_top1" in table else []
    base = alt.Chart(rows(table)).encode(
        x=alt.X("column:N", sort=names, title=None, axis=down).scale(padding=0.03),
        y=alt.Y("layer:O", sort="descending", title="layer", axis=up).scale(padding=0.03),
        tooltip=tips,
    )
    click = alt.selection_point(name="cell", fields=["layer", "pos"], on="click", clear="dblclick")
    cells = base.mark_rect(cursor="pointer").encode(color=fill(value, f"{words(value)} (nats)", (0.0, end)))
    return layered([cells.add_params(click)], n * clamp(760 / n, 14, 34), layers * clamp(330 / layers, 11, 26))


def smooth_reliability(curve: pd.DataFrame, bins: pd.DataFrame | None = None, *, title: str = "") -> alt.LayerChart:
    """Reliability as a curve whose thickness is how many rows lie there, with its band; and bins as points over it.

    Args:
        curve: `p`, `observed`, `density`, and `low`, `high` where there is a band: `reliability_curve`.
        bins: `n`, `confidence`, `accuracy`, and `accuracy_low`, `accuracy_high`: `reliability_bins`.
        title: small text above, as "smooth ECE 0.03, n = 500".
    """
    need(curve, "p", "observed", "density")
    table = curve.dropna(subset=["observed"]).copy()
    need(table, "observed")
    table["weight"] = (table["density"] / table["density"].max()).clip(lower=0.02)
    x = alt.X("p:Q", title="predicted probability").scale(domain=[0, 1])
    scale = alt.Scale(domain=[0, 1])
    y = alt.Y("observed:Q", title="share that came true", scale=scale)
    base = alt.Chart(rows(table)).encode(x=x)
    ends = alt.Chart(pd.DataFrame({"p": [0.0, 1.0], "observed": [0.0, 1.0]}))
    layers: list[alt.Chart] = []
    if {"low", "high"} <= set(table):
        known = base.transform_filter("isValid(datum.low)")
        layers.append(known.mark_area(color=GREY, opacity=0.25).encode(y=alt.Y("low:Q", scale=scale), y2="high:Q"))
    layers.append(ends.mark_line(color=GREY, strokeDash=[4, 4], strokeWidth=1.2).encode(x=x, y=y))
    width = alt.Size("weight:Q", legend=None).scale(domain=[0, 1], range=[0.6, 9])
    tips = [alt.Tooltip(f"{c}:Q", format=".3f") for c in ("p", "observed", "low", "high", "density") if c in table]
    layers.append(base.mark_trail(color=VERMILION, opacity=0.85).encode(y=y, size=width, tooltip=tips))
    if bins is not None:
        need(bins, "n", "confidence", "accuracy")
        columns = [c for c in ("n", "confidence", "accuracy", "accuracy_low", "accuracy_high") if c in bins]
        points = alt.Chart(rows(bins.loc[bins["n"] > 0, columns])).encode(x=alt.X("confidence:Q").scale(domain=[0, 1]))
        if {"accuracy_low", "accuracy_high"} <= set(columns):
            whole = points.mark_rule(color=BLUE, opacity=0.6)
            layers.append(whole.encode(y=alt.Y("accuracy_low:Q", scale=scale), y2="accuracy_high:Q"))
        tips = [
            alt.Tooltip("n:Q", format=",d"),
            *[alt.Tooltip(f"{c}:Q", title=words(c), format=".3f") for c in columns[1:]],
        ]
        dots = points.mark_point(color=BLUE, filled=True, size=46, opacity=1)
        layers.append(dots.encode(y=alt.Y("accuracy:Q", scale=scale), tooltip=tips))
    chart = layered(layers, 420, 340)
    return (
        chart.properties(title=alt.TitleParams(title, fontSize=11, fontWeight="normal", anchor="start"))
        if title
        else chart
    )


def temperature_curve(
    frame: pd.DataFrame, y: str = "ece", *, fitted: float | None = None, chosen: float | None = None
) -> alt.LayerChart:
    """A figure of calibration over the temperature that divides the logits.

    Args:
        frame: `temperature` (above 0), the column `y` and `n`.
        y: `ece`, `smooth_ece` or `nll`.
        fitted: temperature that was fitted, a dashed line.
        chosen: temperature whose point is large.
    """
    need(frame, "temperature", y)
    table = frame.loc[:, [c for c in ("temperature", y, "confidence", "accuracy", "n") if c in frame]].copy()
    at = None if chosen is None else (table["temperature"] - chosen).abs().idxmin()
    table["chosen"] = [index == at for index in table.index]
    x = alt.X("temperature:Q", title="temperature T (1 is the model as it is)", axis=alt.Axis(format="~g", grid=False))
    x = x.scale(type="log", nice=False, padding=12)
    name = {"nll": "NLL of the true token (nats)", "smooth_ece": "smooth ECE"}.get(y, words(y))
    vertical = alt.Y(f"{y}:Q", title=name).scale(zero=y != "nll")
    tips = [alt.Tooltip(f"{c}:Q", title=words(c), format=".3f") for c in table if c not in ("n", "chosen")]
    tips += [alt.Tooltip("n:Q", format=",d")] if "n" in table else []
    base = alt.Chart(rows(table)).encode(x=x, y=vertical)
    layers: list[alt.Chart] = []
    if fitted is not None:
        mark = alt.Chart(pd.DataFrame({"temperature": [float(fitted)], "name": [f"fitted T {fitted:.2f}"]})).encode(x=x)
        layers.append(mark.mark_rule(color=ORANGE, strokeDash=[5, 4], strokeWidth=1.5).encode(tooltip="name:N"))
        layers.append(mark.mark_text(align="left", dx=5, color=INK).encode(y=alt.value(8), text="name:N"))
    layers.append(base.mark_line(color=BLUE, strokeWidth=2))
    size = alt.when("datum.chosen").then(alt.value(150)).otherwise(alt.value(34))
    layers.append(base.mark_point(color=BLUE, filled=True, opacity=1).encode(size=size, tooltip=tips))
    return layered(layers, 420, 240)


def format_accuracies(frame: pd.DataFrame) -> alt.LayerChart:
    """Accuracy of each way to ask with its interval, beside what a blind guess reaches.

    Args:
        frame: a row per way: `format`, `accuracy`, `low`, `high`, `chance`, and `by`, `n`, `informative` where they are known.
            A way that is not informative (its interval covers chance) is grey.
    """
    need(frame, "format", "accuracy", "low", "high", "chance")
    table = frame.loc[:, [c for c in ("accuracy", "low", "high", "chance", "n") if c in frame]].reset_index(drop=True)
    by = frame["by"].tolist() if "by" in frame else [None] * len(frame)
    said = [f"{name} ({how})" if isinstance(how, str) and how else str(name) for name, how in zip(frame["format"], by)]
    table["name"] = [token_label(each, _NAME) for each in said]
    if table["name"].duplicated().any():
        raise ValueError("two rows have one name: pass a row for each way to ask")
    known = frame["informative"].fillna(True).astype(bool) if "informative" in frame else pd.Series(True, frame.index)
    table["kind"] = ["told from chance" if each else "not informative" for each in known]
    table = table.dropna(subset=["accuracy"])
    need(table, "accuracy")
    kinds = [kind for kind in ("told from chance", "not informative") if kind in set(table["kind"])]
    tint = {"told from chance": BLUE, "not informative": GREY}
    legend = alt.Legend(orient="top", symbolOpacity=1) if len(kinds) > 1 else None
    colour = alt.Color("kind:N", title=None, legend=legend).scale(domain=kinds, range=[tint[kind] for kind in kinds])
    side = alt.Axis(labelLimit=190, ticks=False, domain=False, labelOverlap=False)
    tips = [
        alt.Tooltip("name:N", title="asked"),
        *[alt.Tooltip(f"{c}:Q", format=".3f") for c in table if c not in ("n", "name", "kind")],
    ]
    tips += [alt.Tooltip("n:Q", format=",d")] if "n" in table else []
    y = alt.Y("name:N", sort=table["name"].tolist(), title=None, axis=side)
    base = alt.Chart(rows(table)).encode(y=y, tooltip=tips)
    title = "share of right answers; the small line is a blind guess"
    x = {c: alt.X(f"{c}:Q", title=title).scale(domain=[0, 1]) for c in ("accuracy", "low", "chance")}
    layers = [
        base.mark_rule(strokeWidth=2, opacity=0.7).encode(x=x["low"], x2="high:Q", color=colour),
        base.mark_tick(color=VERMILION, thickness=2, size=16).encode(x=x["chance"]),
        base.mark_point(filled=True, size=70, opacity=1).encode(x=x["accuracy"], color=colour),
    ]
    return layered(layers, 420, 30 * len(table))


# ------------------------------------------------------------------------------------------------------------ pieces


def _lines(frame: pd.DataFrame, colour: str | None) -> list[str]:
    """The line of each row, as the legend names it."""
    if colour is None or colour not in frame:
        return ["all rows"] * len(frame)
    return [token_label(str(value), _NAME) for value in frame[colour]]


def _thinned(part: pd.DataFrame, most: int) -> pd.DataFrame:
    """At most so many points, first and last among them, in order of coverage."""
    part = part.sort_values("coverage", kind="stable")
    kept = np.unique(np.linspace(0, len(part) - 1, min(most, len(part))).round().astype(int))
    return part.iloc[kept]


def _top(table: pd.DataFrame, bands: bool) -> float:
    """End of the scale of risk: over the lines, and over their intervals where more than a few rows are answered."""
    most = [0.05, *table.loc[table["coverage"] >= 0.05, "risk"]]
    if bands:
        most += table.loc[table["coverage"] >= 0.25, "high"].dropna().tolist()
    return min(1.0, math.ceil(20 * max(most) * 1.05) / 20)


def _answer_all(table: pd.DataFrame) -> dict[str, float]:
    """The risk of answering everything: one dashed line where all lines end together."""
    last = table.sort_values("coverage").groupby("line", sort=False).tail(1)
    last = last.loc[last["coverage"] > 1 - 1e-9]
    ends = dict(zip(last["line"], last["risk"]))
    if not ends:
        return {}
    if max(ends.values()) - min(ends.values()) < 1e-9:
        return {"answer all": float(next(iter(ends.values())))}
    return {f"all, {token_label(str(line), 14)}": float(risk) for line, risk in ends.items()}


def _said(value: float, n: float | None) -> str:
    return f"{value:.3f}" + ("" if n is None or math.isnan(n) else f" (n = {int(n):,})")


def _share_axis() -> alt.Axis:
    return alt.Axis(values=[0, 0.2, 0.4, 0.6, 0.8, 1.0], format=".1f", grid=False)
