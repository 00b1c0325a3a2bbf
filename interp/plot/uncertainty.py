"""Answering only when sure: risk against coverage, and signals of doubt by how well they find wrong answers.

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
    VERMILION,
    clamp,
    layered,
    need,
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
    side = alt.Axis(labelLimit=190, ticks=False, domain=False)
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
