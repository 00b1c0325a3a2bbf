"""Grounding: error rates with and without evidence, when to say nothing, signals of a wrong answer, and attention by layer."""

from collections.abc import Mapping

import altair as alt
import numpy as np
import pandas as pd

from interp.plot.curves import layer_curve
from interp.plot.style import (
    BLUE,
    GREY,
    INK,
    ORANGE,
    VERMILION,
    clamp,
    layered,
    need,
    rows,
    token_label,
    words,
)

NAMES = {
    "none": "no evidence",
    "retrieved": "retrieved",
    "missing": "retrieved, its document missing",
    "gold": "the right passage",
    "distractor": "unrelated, of equal length",
    "misleading": "the right passage, another answer",
}
"""Condition -> what the chart calls it."""
_COLOURS = {
    "none": GREY,
    "retrieved": BLUE,
    "gold": BLUE,
    "missing": ORANGE,
    "distractor": ORANGE,
    "misleading": VERMILION,
}


def grounding_errors(conditions: pd.DataFrame) -> alt.LayerChart:
    """Error rate with its interval for each kind of evidence; the dashed line is the rate without any.

    Args:
        conditions: a row per condition: `condition`, `error`, `error_low`, `error_high`, and `n`, `change` where known.
    """
    need(conditions, "condition", "error", "error_low", "error_high")
    known = [name for name in ("n", "change", "change_low", "change_high", "tokens") if name in conditions]
    table = conditions.loc[:, ["condition", "error", "error_low", "error_high", *known]].copy()
    table["name"] = [token_label(NAMES.get(str(name), str(name)), 60) for name in table["condition"]]
    table["colour"] = [_COLOURS.get(name, BLUE) for name in table["condition"]]
    formats = {"n": ",d", "tokens": ".0f", "error": ".3f"}
    tips = [alt.Tooltip("name:N", title="evidence")]
    tips += [alt.Tooltip(f"{c}:Q", title=words(c), format=formats.get(c, "+.3f")) for c in ("error", *known)]
    top = max(0.1, float(np.nanmax(table["error_high"])))
    base = alt.Chart(rows(table)).encode(
        y=alt.Y("name:N", sort=None, title=None, axis=alt.Axis(labelLimit=260, ticks=False, domain=False)),
        color=alt.Color("colour:N", scale=None),
        tooltip=tips,
    )
    x = alt.X("error:Q", title="error rate").scale(domain=[0, min(1.0, top * 1.05)], nice=False)
    layers = []
    plain = table.loc[table["condition"] == "none", "error"].tolist()
    if plain:
        line = alt.Chart(pd.DataFrame({"error": plain[:1]})).mark_rule(color=GREY, strokeDash=[5, 4])
        layers.append(line.encode(x=x, tooltip=alt.Tooltip("error:Q", title="without evidence", format=".3f")))
    layers.append(base.mark_rule(strokeWidth=2).encode(x=alt.X("error_low:Q", title="error rate"), x2="error_high:Q"))
    layers.append(base.mark_point(filled=True, size=80, opacity=1).encode(x=x))
    return layered(layers, 480, clamp(34 * len(table), 80, 400))


def abstention_curve(curve: pd.DataFrame, *, chosen: Mapping[str, float] | None = None) -> alt.LayerChart:
    """Error rate among what is answered, over the share that is answered: one line for each half of the groups.

    Args:
        curve: `part` ("choose" or "check"), `threshold`, `answered`, `error`, `n_answered`.
        chosen: `answered` and `error` of the threshold on the checking half, with `error_low` and `error_high`, and `target`.
    """
    need(curve, "part", "threshold", "answered", "error")
    table = curve.dropna(subset=["error"]).copy()
    need(table, "error")
    told = {"choose": "the half that chooses", "check": "the half that checks"}
    table["half"] = [told.get(part, part) for part in table["part"]]
    colour = alt.Color("half:N", title=None, legend=alt.Legend(orient="top", symbolOpacity=1)).scale(
        domain=list(told.values()), range=[GREY, BLUE]
    )
    tips = [alt.Tooltip("half:N"), alt.Tooltip("threshold:Q", format=".3~g")]
    tips += [alt.Tooltip("answered:Q", title="share answered", format=".3f"), alt.Tooltip("error:Q", format=".3f")]
    x = alt.X("answered:Q", title="share of the questions that is answered").scale(domain=[0, 1], nice=False, padding=6)
    top = max(0.1, max(table["error"].tolist()))
    if chosen and chosen.get("error_high") is not None:
        top = max(top, float(chosen["error_high"]))
    y = alt.Y("error:Q", title="error rate of the answers").scale(domain=[0, min(1.0, top * 1.05)], nice=False)
    base = alt.Chart(rows(table)).encode(x=x, y=y, color=colour, tooltip=tips)
    layers = [base.mark_line(strokeWidth=2, interpolate="step-after"), base.mark_point(filled=True, size=24, opacity=1)]
    if chosen and chosen.get("target") is not None:
        line = alt.Chart(pd.DataFrame({"error": [chosen["target"]]})).mark_rule(color=GREY, strokeDash=[5, 4])
        layers.insert(0, line.encode(y=y, tooltip=alt.Tooltip("error:Q", title="aimed at", format=".3f")))
    if chosen and chosen.get("error") is not None and chosen.get("answered") is not None:
        mark = alt.Chart(pd.DataFrame([{key: v for key, v in chosen.items() if isinstance(v, int | float)}]))
        if chosen.get("error_low") is not None:
            ends = {"y": alt.Y("error_low:Q", title="error rate of the answers"), "y2": "error_high:Q"}
            layers.append(mark.mark_rule(color=VERMILION, strokeWidth=2).encode(x=x, **ends))
        tip = [alt.Tooltip(f"{c}:Q", format=".3~f") for c in ("threshold", "answered", "error") if c in chosen]
        point = mark.mark_point(filled=True, size=120, color=VERMILION, opacity=1, shape="diamond")
        layers.append(point.encode(x=x, y=y, tooltip=tip))
    return layered(layers, 520, 260)


def grounding_signals(signals: pd.DataFrame, *, names: Mapping[str, str] | None = None) -> alt.LayerChart:
    """How well each signal tells wrong answers from right ones: AUROC with its interval; at the dashed line it tells nothing.

    Args:
        signals: `signal`, `auroc`, `low`, `high`, and `n` and `reliable` where known.
        names: signal -> what the chart calls it.
    """
    need(signals, "signal", "auroc", "low", "high")
    table = (
        signals.loc[:, [c for c in ("signal", "auroc", "low", "high", "n") if c in signals]]
        .dropna(subset=["auroc"])
        .copy()
    )
    need(table, "auroc")
    sure = signals.loc[table.index, "reliable"] if "reliable" in signals else table["low"] > 0.5
    table["colour"] = [BLUE if each else GREY for each in sure]
    table["name"] = [token_label((names or {}).get(str(name), str(name)), 60) for name in table["signal"]]
    low = min(0.5, float(np.nanmin(table[["low", "auroc"]].to_numpy(float))))
    tips = [alt.Tooltip("name:N", title="signal")]
    tips += [
        alt.Tooltip(f"{c}:Q", title=words(c), format=",d" if c == "n" else ".3f")
        for c in ("auroc", "low", "high", "n")
        if c in table
    ]
    base = alt.Chart(rows(table)).encode(
        y=alt.Y("name:N", sort=None, title=None, axis=alt.Axis(labelLimit=260, ticks=False, domain=False)),
        color=alt.Color("colour:N", scale=None),
        tooltip=tips,
    )
    x = alt.X("auroc:Q", title="AUROC: wrong answers above right ones", axis=alt.Axis(tickCount=6)).scale(
        domain=[max(0.0, low - 0.02), 1], nice=False
    )
    half = alt.Chart(pd.DataFrame({"auroc": [0.5]})).mark_rule(color=INK, opacity=0.5, strokeDash=[5, 4])
    ends = base.mark_rule(strokeWidth=2).encode(
        x=alt.X("low:Q", title="AUROC: wrong answers above right ones"), x2="high:Q"
    )
    points = base.mark_point(filled=True, size=80, opacity=1).encode(x=x)
    return layered([half.encode(x=x, tooltip=alt.value(None)), ends, points], 480, clamp(30 * len(table), 60, 400))


def attention_reach(layers: pd.DataFrame) -> alt.LayerChart:
    """Share of the answer's attention that reaches the evidence, over layers, a line for each condition; dashed: even attention.

    Args:
        layers: `condition`, `layer`, `share`, `low`, `high`, `even`, and `n` where known.
    """
    need(layers, "condition", "layer", "share", "low", "high", "even")
    table = layers.assign(evidence=[NAMES.get(name, name) for name in layers["condition"]])
    even = float(np.mean(layers["even"].to_numpy(float)))
    return layer_curve(
        table, "share", low="low", high="high", colour="evidence", baselines={"even attention": even},
        title="share of attention on the evidence",
    )  # fmt: skip
