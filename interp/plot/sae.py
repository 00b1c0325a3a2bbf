"""Charts of sparse autoencoders: how often latents fire, error against sparsity, one latent's page, and training runs."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from interp.plot.style import (
    BLUE,
    CATEGORIES,
    GREY,
    INK,
    MONO,
    ORANGE,
    VERMILION,
    layered,
    need,
    rows,
    token_label,
    words,
)

_BINS_PER_DECADE = 5


def latent_densities(density: Any, *, dense: float = 0.1) -> alt.LayerChart:
    """How many latents fire on which share of the rows, on a log scale; the title counts the dead and the dense ones.

    Args:
        density: share of the rows on which each latent fires, 0 for a dead one.
        dense: share above which a latent counts as dense, marked by a line.

    Raises:
        ValueError: no latent, all dead, or a share outside 0 ... 1.
    """
    share = np.asarray(density, dtype=float).ravel()
    alive = share[share > 0]
    if not ((share >= 0) & (share <= 1)).all() or not len(share):
        raise ValueError(
            "density is the share of the rows on which each latent fires: numbers from 0 to 1, at least one"
        )
    if not len(alive):
        raise ValueError(f"all {len(share)} latents are dead: there is nothing to draw")
    steps = np.floor(np.log10(alive) * _BINS_PER_DECADE + 1e-9)
    first = int(steps.min())
    counts = np.bincount(np.minimum(steps, -1).astype(int) - first, minlength=-first)
    low = (np.arange(len(counts)) + first) / _BINS_PER_DECADE
    table = pd.DataFrame({"low": low, "high": low + 1 / _BINS_PER_DECADE, "latents": counts})
    labels = "datum.value < -3 ? '1e' + datum.value : '' + pow(10, datum.value)"
    x = alt.X(
        "low:Q", title="share of the rows on which a latent fires", axis=alt.Axis(labelExpr=labels, tickMinStep=1)
    )
    bars = alt.Chart(rows(table)).mark_rect(color=BLUE)
    bars = bars.encode(
        x=x.scale(domain=[math.floor(low[0]), 0], nice=False),
        x2="high:Q",
        y=alt.Y("latents:Q", title="latents"),
        y2=alt.datum(0),
        tooltip=[
            alt.Tooltip("low:Q", title="log10 from", format=".1f"),
            alt.Tooltip("high:Q", title="log10 to", format=".1f"),
            alt.Tooltip("latents:Q", format=",d"),
        ],
    )
    mark = (
        alt.Chart(pd.DataFrame({"low": [math.log10(dense)]}))
        .mark_rule(color=ORANGE, strokeDash=[5, 4])
        .encode(x="low:Q")
    )
    note = f"{len(share):,} latents: {int((share == 0).sum()):,} dead, {int((share > dense).sum()):,} on more than {dense:.0%}"
    return _noted(layered([bars, mark], 460, 200), note)


def sae_frontier(frame: pd.DataFrame, pca: pd.DataFrame | None = None) -> alt.LayerChart:
    """Unexplained variance against active latents: a point for each SAE, with intervals, and what PCA does.

    Args:
        frame: a row per SAE: `name`, `l0`, `fvu`; where there are intervals `fvu_low`, `fvu_high`, `l0_low`, `l0_high`; with
            `kind`, the colour.
        pca: `rank` and `fvu`: PCA with as many components, drawn as a line.

    Raises:
        ValueError: a missing column, no row, or an L0 that is not above 0.
    """
    need(frame, "name", "l0", "fvu")
    if not bool((frame["l0"] > 0).all()):
        raise ValueError("an SAE whose latents never fire has no place on a log scale of L0: leave it out")
    bounds = [c for c in ("fvu_low", "fvu_high", "l0_low", "l0_high") if c in frame]
    table = frame.loc[:, ["name", "l0", "fvu", *bounds]].copy()
    table["name"] = [token_label(str(name), 40) for name in frame["name"]]
    table["kind"] = [token_label(str(kind), 24) for kind in frame["kind"]] if "kind" in frame else "SAE"
    kinds = list(dict.fromkeys(table["kind"]))
    x = alt.X("l0:Q", title="active latents per row (L0), or PCA's rank").scale(
        type="log", base=2, nice=False, padding=24
    )
    y = alt.Y("fvu:Q", title="fraction of variance unexplained").scale(domainMin=0)
    legend = alt.Legend(orient="top", symbolOpacity=1) if len(kinds) > 1 else None
    colours = [CATEGORIES[i % len(CATEGORIES)] for i in range(len(kinds))]
    base = alt.Chart(rows(table)).encode(
        color=alt.Color("kind:N", sort=kinds, title=None, legend=legend).scale(domain=kinds, range=colours),
        tooltip=[
            "name:N",
            "kind:N",
            *[alt.Tooltip(f"{c}:Q", title=words(c), format=".4~g") for c in ("l0", "fvu", *bounds)],
        ],
    )
    layers: list[alt.Chart] = []
    if pca is not None:
        need(pca, "rank", "fvu")
        rival = pca.loc[:, ["fvu"]].assign(l0=pca["rank"].astype(float), name="PCA").sort_values("l0")
        line = alt.Chart(rows(rival)).encode(x=x, y=y, tooltip=["name:N", "l0:Q", alt.Tooltip("fvu:Q", format=".3f")])
        layers.append(line.mark_line(color=GREY, strokeWidth=2, point=alt.OverlayMarkDef(color=GREY, size=30)))
        last = pd.DataFrame([{**rival.iloc[-1].to_dict(), "label": "PCA"}])
        text = alt.Chart(last).mark_text(align="left", dx=8, color=GREY)
        layers.append(text.encode(x=x, y=y, text="label:N"))
    if {"fvu_low", "fvu_high"} <= set(table):
        layers.append(
            base.mark_rule(opacity=0.7).encode(
                x=x, y=alt.Y("fvu_low:Q").title("fraction of variance unexplained"), y2="fvu_high:Q"
            )
        )
    if {"l0_low", "l0_high"} <= set(table):
        layers.append(
            base.mark_rule(opacity=0.7).encode(
                y=y, x=alt.X("l0_low:Q").title("active latents per row (L0), or PCA's rank"), x2="l0_high:Q"
            )
        )
    layers.append(base.mark_point(filled=True, size=60, opacity=1).encode(x=x, y=y))
    if len(table) <= 12:
        text = base.mark_text(align="left", dx=8, dy=-6, fontSize=10, color=INK)
        layers.append(text.encode(x=x, y=y, text="name:N", color=alt.value(INK)))
    return layered(layers, 520, 300)


def latent_activations(edges: Any, counts: Any, *, log: bool = True) -> alt.LayerChart:
    """How strongly one latent fires where it fires: a bar for each bin of its activations.

    Args:
        edges: ends of the bins, ascending, one more than there are bins; the last may be infinite.
        counts: rows in each bin.
        log: logarithmic axis of the activation; its first end above 0 is then where the axis begins.

    Raises:
        ValueError: another number of counts than bins, edges that do not ascend, or no row in any bin.
    """
    ends, n = np.asarray(edges, dtype=float), np.asarray(counts)
    if ends.ndim != 1 or n.shape != (len(ends) - 1,) or not (np.diff(ends) > 0).all():
        raise ValueError(f"{n.size} counts need {n.size + 1} ascending edges, got {list(ends.shape)}")
    if not (n > 0).any():
        raise ValueError("the latent fires nowhere: there is nothing to draw")
    filled = np.flatnonzero(n)
    shown = slice(filled[0], filled[-1] + 1)
    low, high = ends[:-1][shown].copy(), ends[1:][shown].copy()
    step = high[0] / low[0] if log and low[0] > 0 and math.isfinite(high[0]) else 2.0
    if log and low[0] <= 0:
        low[0] = high[0] / step
    if math.isinf(high[-1]):
        high[-1] = low[-1] * step
    table = pd.DataFrame({"low": low, "high": high, "rows": n[shown]})
    scale = alt.Scale(type="log", base=10, nice=False) if log else alt.Scale(nice=False, zero=False)
    chart = alt.Chart(rows(table)).mark_rect(color=BLUE)
    chart = chart.encode(
        x=alt.X("low:Q", title="activation", axis=alt.Axis(grid=False)).scale(scale),
        x2="high:Q",
        y=alt.Y("rows:Q", title="rows"),
        y2=alt.datum(0),
        tooltip=[
            alt.Tooltip("low:Q", title="from", format=".3~g"),
            alt.Tooltip("high:Q", title="to", format=".3~g"),
            alt.Tooltip("rows:Q", format=",d"),
        ],
    )
    return _noted(layered([chart], 420, 160), f"fires on {int(n.sum()):,} rows")


def latent_logits(frame: pd.DataFrame, *, top: int = 10, title: str = "change of the logit") -> alt.LayerChart:
    """The tokens that a direction makes more likely, and those that it makes less likely.

    Args:
        frame: a row per token: `token`, `value`; the order does not matter.
        top: bars of each sign.
        title: of the axis.
    """
    need(frame, "token", "value")
    if top < 1:
        raise ValueError(f"top must be at least 1, got {top}")
    up = frame.loc[frame["value"] > 0].nlargest(top, "value")
    down = frame.loc[frame["value"] <= 0].nsmallest(top, "value").iloc[::-1]
    table = pd.concat([up, down]).loc[:, ["token", "value"]].reset_index(drop=True)
    # The rank keeps two tokens that look alike apart.
    table["name"] = [f"{i + 1}: {token_label(str(token), 18)}" for i, token in enumerate(table["token"])]
    table["said"] = [f"{value:+.2f}" for value in table["value"]]
    table = table.drop(columns="token")
    base = alt.Chart(rows(table)).encode(
        y=alt.Y("name:N", sort=table["name"].tolist(), title=None, axis=alt.Axis(labelFont=MONO, labelLimit=180)),
        x=alt.X("value:Q", title=title).stack(False).scale(padding=34),
        tooltip=[alt.Tooltip("name:N", title="token"), alt.Tooltip("value:Q", title=title, format="+.4f")],
    )
    sign = alt.when("datum.value > 0").then(alt.value(BLUE)).otherwise(alt.value(VERMILION))
    bars = base.mark_bar(cornerRadiusEnd=2).encode(color=sign)
    right = base.transform_filter("datum.value > 0").mark_text(align="left", dx=4, color=INK)
    left = base.transform_filter("datum.value <= 0").mark_text(align="right", dx=-4, color=INK)
    return layered([bars, right.encode(text="said:N"), left.encode(text="said:N")], 380, 20 * len(table))


def training_curves(
    frame: pd.DataFrame,
    y: Sequence[str] = ("fvu", "l0", "dead_share"),
    *,
    colour: str | None = None,
    baselines: Mapping[str, float] | None = None,
) -> alt.VConcatChart:
    """What a training run logged, one chart above the other over the same steps.

    Args:
        frame: a row per logged step: `step` and the columns of `y`; missing values leave a gap.
        y: the columns; those that the frame lacks are left out, as long as one is there.
        colour: column that tells several runs apart.
        baselines: column -> value of a dashed line, such as {"l0": 32}.
    """
    shown = [name for name in y if name in frame]
    need(frame, "step", *(shown or y), *([colour] if colour else []))
    table = frame.loc[:, ["step", *shown]].copy()
    table["run"] = [token_label(str(value), 40) for value in frame[colour]] if colour else "run"
    runs = list(dict.fromkeys(table["run"]))
    legend = alt.Legend(orient="top", symbolOpacity=1) if len(runs) > 1 else None
    colours = [CATEGORIES[i % len(CATEGORIES)] for i in range(len(runs))]
    last = max(table["step"])
    charts = []
    for number, name in enumerate(shown):
        part = rows(table.loc[:, ["step", "run", name]].dropna())
        need(part, name)
        axis = alt.Axis(labels=number == len(shown) - 1, grid=False)
        base = alt.Chart(part).encode(
            x=alt.X("step:Q", title="step" if number == len(shown) - 1 else None, axis=axis).scale(domain=[0, last]),
            y=alt.Y(f"{name}:Q", title={"l0": "L0"}.get(name, words(name))).scale(zero=name != "loss"),
            color=alt.Color("run:N", sort=runs, title=None, legend=legend).scale(domain=runs, range=colours),
            tooltip=["run:N", alt.Tooltip("step:Q", format=",d"), alt.Tooltip(f"{name}:Q", format=".4~g")],
        )
        layers = [base.mark_line(strokeWidth=1.8)]
        if baselines and name in baselines:
            rule = alt.Chart(pd.DataFrame({name: [float(baselines[name])]}))
            layers.append(rule.mark_rule(color=GREY, strokeDash=[5, 4]).encode(y=f"{name}:Q"))
        charts.append(alt.layer(*layers).properties(width=520, height=130))
    return alt.vconcat(*charts, spacing=10).properties(background="transparent")


def _noted(chart: alt.LayerChart, note: str) -> alt.LayerChart:
    title = alt.TitleParams(note, fontSize=11, fontWeight="normal", anchor="start")
    return chart.properties(title=title)
