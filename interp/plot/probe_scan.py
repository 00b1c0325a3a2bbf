"""Probes on one text, token by token and layer by layer; and what a threshold trades."""

import math

import altair as alt
import pandas as pd

from interp.plot.patching import signed
from interp.plot.style import BLUE, GREY, INK, ORANGE, clamp, layered, need, rows, token_label


def probe_scan(frame: pd.DataFrame, *, limit: float = 4.0, selected: int | None = None) -> alt.LayerChart:
    """Log-odds of each probe at each token: no colour at its threshold, blue above it, vermilion below.

    Cells beyond the limit have full colour and a dot, so that nothing is clipped unseen. Empty cells: tokens that no probe
    was fitted on.

    Args:
        frame: a row per token and probe: `pos`, `token`, `probe`, `logit` (from the threshold, NaN for an empty cell), and
            `layer`, `probability` and `threshold` where they are known. Rows stand in the order of layers, the last on top.
        limit: log-odds of full colour.
        selected: position to frame.
    """
    need(frame, "pos", "token", "probe", "logit")
    order = frame.drop_duplicates("probe")
    order = order.sort_values("layer", ascending=False, kind="stable") if "layer" in order else order
    names = {str(name): token_label(str(name), 34) for name in order["probe"]}
    known = [name for name in ("layer", "probability", "threshold") if name in frame]
    table = frame.loc[:, ["pos", "logit", *known]].dropna(subset=["logit"])
    table["token"] = [token_label(str(token), 16) for token in frame.loc[table.index, "token"]]
    table["row"] = [names[str(name)] for name in frame.loc[table.index, "probe"]]
    table["clipped"] = table["logit"].abs() > limit
    tokens = frame.drop_duplicates("pos").sort_values("pos")
    labels = {int(p): token_label(str(t), 12) for p, t in zip(tokens["pos"], tokens["token"])}
    step = clamp(680 / max(1, len(labels)), 12, 44)
    axis = alt.Axis(
        labelExpr=" : ".join(f"datum.value == {p} ? {_quoted(label)}" for p, label in labels.items()) + " : ''",
        labelAngle=-55, labelLimit=90, labelOverlap=True, ticks=False, domain=False,
    )  # fmt: skip
    x = alt.X("pos:O", title="token", sort=list(labels), axis=axis).scale(domain=list(labels), padding=0.04)
    y = alt.Y("row:N", title=None, sort=list(names.values()), axis=alt.Axis(labelLimit=240, ticks=False, domain=False))
    base = alt.Chart(rows(table)).encode(x=x, y=y.scale(domain=list(names.values()), padding=0.06))
    tips = [alt.Tooltip("pos:O"), alt.Tooltip("token:N"), alt.Tooltip("row:N", title="probe")]
    tips += [alt.Tooltip("logit:Q", title="log-odds from the threshold", format="+.3f")]
    tips += [alt.Tooltip(f"{name}:Q", format=".3~f") for name in known]
    colour = signed("logit", "log-odds from the threshold", limit)
    layers = [base.mark_rect(cornerRadius=2).encode(color=colour, tooltip=tips)]
    clipped = base.transform_filter("datum.clipped")
    layers.append(clipped.mark_point(filled=True, size=9, color="white", opacity=0.9, tooltip=None))
    if selected is not None:
        chosen = base.transform_filter(f"datum.pos == {int(selected)}")
        layers.append(chosen.mark_rect(filled=False, stroke=ORANGE, strokeWidth=1.8, cornerRadius=2, tooltip=None))
    return layered(layers, step * len(labels), 26 * len(names))


def roc_curve(
    frame: pd.DataFrame, *, at: tuple[float, float] | None = None, title: str = "false ones called true"
) -> alt.LayerChart:
    """What a threshold trades: true rows called true over false rows called true, guessing dashed.

    Args:
        frame: a row per threshold: `threshold`, `false_positives` and `true_positives`, shares from 0 to 1.
        at: (false positives, true positives) of the threshold in use, marked.
        title: of the axis across.
    """
    need(frame, "threshold", "false_positives", "true_positives")
    if at is not None and not all(math.isfinite(each) for each in at):
        raise ValueError(f"the point to mark is {at}")
    share = alt.Axis(format=".0%", tickCount=5)
    scale = alt.Scale(domain=[0, 1], nice=False)
    x = alt.X("false_positives:Q", title=title, scale=scale, axis=share)
    y = alt.Y("true_positives:Q", title="true ones called true", scale=scale, axis=share)
    tips = [alt.Tooltip("threshold:Q", format=".3f")]
    tips += [alt.Tooltip(f"{name}:Q", format=".1%") for name in ("false_positives", "true_positives")]
    line = alt.Chart(rows(frame.loc[:, ["threshold", "false_positives", "true_positives"]])).encode(x=x, y=y)
    half = alt.Chart(pd.DataFrame({"false_positives": [0.0, 1.0], "true_positives": [0.0, 1.0]}))
    layers = [
        half.mark_line(color=GREY, strokeDash=[5, 4], strokeWidth=1).encode(x=x, y=y),
        line.mark_line(color=BLUE, strokeWidth=2, interpolate="step-after", tooltip=None),
        line.mark_point(color=BLUE, filled=True, size=40, opacity=0.01).encode(tooltip=tips),
    ]
    if at is not None:
        point = alt.Chart(pd.DataFrame({"false_positives": [at[0]], "true_positives": [at[1]]}))
        layers.append(point.mark_point(filled=True, size=110, color=ORANGE, stroke=INK, opacity=1).encode(x=x, y=y))
    return layered(layers, 300, 220)


def _quoted(text: str) -> str:
    """As a string of Vega's expressions: signs that could end it are written by their code."""
    held = "".join(c if c.isalnum() or c in " ·" else f"\\u{ord(c):04x}" if ord(c) < 65536 else "?" for c in text)
    return f"'{held}'"
