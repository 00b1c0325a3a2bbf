"""Bars and curves: next tokens, numbers per token, layer sweeps, calibration, sparse autoencoders."""

import json
from collections.abc import Mapping

import altair as alt
import pandas as pd

from interp.plot.style import (
    BLUE,
    CATEGORIES,
    GREY,
    INK,
    MONO,
    ORANGE,
    clamp,
    layered,
    need,
    row_labels,
    rows,
    rules,
    sized,
    token_label,
    words,
)


def next_token_bars(frame: pd.DataFrame, *, top: int = 10) -> alt.LayerChart:
    """The most probable next tokens. `frame`: `token` and `prob` (0 to 1), most probable first or not."""
    need(frame, "token", "prob")
    table = frame.nlargest(top, "prob").reset_index(drop=True)
    table["name"] = [f"{i + 1}: {token_label(t, 18)}" for i, t in enumerate(table["token"])]
    table["said"] = [f"{p:.3f}" for p in table["prob"]]
    base = alt.Chart(rows(table.loc[:, ["name", "prob", "said"]])).encode(
        x=alt.X("prob:Q", title="probability of the next token").scale(domain=[0, 1]).stack(False),
        y=alt.Y("name:N", sort=table["name"].tolist(), title=None, axis=alt.Axis(labelFont=MONO, labelLimit=180)),
        tooltip=[alt.Tooltip("name:N", title="token"), alt.Tooltip("prob:Q", title="probability", format=".4f")],
    )
    bars = base.mark_bar(color=BLUE, cornerRadiusEnd=2)
    text = base.mark_text(align="left", dx=4, color=INK).encode(text="said:N")
    return layered([bars, text], 420, 22 * len(table))


def token_bars(
    frame: pd.DataFrame, y: str = "entropy", *, unit: str = "nats", selected: int | None = None
) -> alt.Chart:
    """One number per token of a text, in reading order. `frame`: `pos`, `token` and the column `y`."""
    need(frame, "pos", "token", y)
    table = frame.loc[:, ["pos"]].assign(**{y: frame[y].astype(float)})
    table["row"] = row_labels(frame["pos"], frame["token"])
    order = table.sort_values("pos")["row"].tolist()
    chosen = "false" if selected is None else f"datum.pos == {int(selected)}"
    chart = alt.Chart(rows(table)).mark_bar(color=BLUE, cornerRadiusEnd=2)
    chart = chart.encode(
        x=alt.X("row:N", sort=order, title=None, axis=alt.Axis(labelAngle=-90, labelFont=MONO, labelLimit=90)),
        y=alt.Y(f"{y}:Q", title=f"{words(y)} ({unit})").stack(False),
        color=alt.when(chosen).then(alt.value(ORANGE)).otherwise(alt.value(BLUE)),
        tooltip=[alt.Tooltip("row:N", title="token"), alt.Tooltip(f"{y}:Q", title=words(y), format=".3f")],
    )
    return sized(chart, len(table) * clamp(760 / len(table), 12, 34), 150)


def layer_curve(
    frame: pd.DataFrame,
    y: str,
    *,
    low: str | None = None,
    high: str | None = None,
    colour: str | None = None,
    baselines: Mapping[str, float] | None = None,
    selected: Mapping[str, int] | int | None = None,
    domain: tuple[float, float] | None = (0.0, 1.0),
    title: str | None = None,
) -> alt.LayerChart:
    """A quantity over layers, with intervals where there are some and dashed lines for what it must beat.

    Args:
        frame: `layer` (-1 is the embedding), `y`, and the columns that follow.
        y: column on the vertical axis.
        low: column with the lower end of the interval, with `high`.
        high: column with its upper end.
        colour: column that tells the lines apart; its values are shown as token labels.
        baselines: name -> value of horizontal lines.
        selected: layer to mark, or one layer for each value of `colour`.
        domain: ends of the vertical axis; None fits them to the data.
        title: of the vertical axis, None for the column's name.
    """
    need(frame, "layer", y, *[c for c in (low, high, colour) if c])
    table = frame.loc[:, [c for c in dict.fromkeys(["layer", y, low, high, "n", "n_groups"]) if c in frame]].copy()
    table["line"] = [token_label(str(v)) for v in frame[colour]] if colour else words(y)
    marks = selected if isinstance(selected, Mapping) else dict.fromkeys(table["line"], selected)
    table["chosen"] = [marks.get(line) == layer for line, layer in zip(table["line"], table["layer"])]
    lines = list(dict.fromkeys(table["line"]))
    scale = alt.Scale(zero=False) if domain is None else alt.Scale(domain=list(domain), clamp=True)
    vertical = alt.Y(f"{y}:Q", title=title or words(y), scale=scale)
    first, last = min(map(int, table["layer"])), max(map(int, table["layer"]))
    edge = last + (0.26 * (last - first) if baselines else 0)
    base = alt.Chart(rows(table)).encode(
        x=alt.X("layer:Q", title="layer", axis=_layer_axis(first, last)).scale(
            domain=[first, edge], nice=False, padding=8
        ),
        color=alt.Color(
            "line:N",
            sort=lines,
            title=None,
            legend=_top_legend(len(lines)),
        ).scale(domain=lines, range=CATEGORIES[: len(lines)] if len(lines) <= len(CATEGORIES) else alt.Undefined),
    )
    tooltip = [alt.Tooltip("line:N", title=colour or "line"), alt.Tooltip("layer:Q", format="d")]
    tooltip += [alt.Tooltip(f"{c}:Q", title=words(c), format=".3f") for c in (y, low, high) if c]
    tooltip += [alt.Tooltip(f"{c}:Q", title=c, format=",d") for c in ("n", "n_groups") if c in table]
    layers: list[alt.Chart] = []
    if low and high:
        layers.append(base.mark_area(opacity=0.18).encode(y=alt.Y(f"{low}:Q", scale=scale), y2=f"{high}:Q"))
    layers += rules(baselines or {}, domain or (min(table[y]), max(table[y])), first, last)
    layers.append(base.mark_line(strokeWidth=2).encode(y=vertical))
    points = base.mark_point(filled=True, opacity=1).encode(y=vertical, tooltip=tooltip)
    layers.append(points.encode(size=alt.when("datum.chosen").then(alt.value(130)).otherwise(alt.value(28))))
    return layered(layers, 620, 300)


def reliability(
    bins: pd.DataFrame, *, state: str | None = None, null_band: tuple[float, float] | None = None
) -> alt.VConcatChart:
    """Reliability diagram over a histogram: on the diagonal, what is said with probability p is right p of the time.

    Args:
        bins: a row per bin: `low` and `high` (edges), `n`, `confidence` (mean p), `accuracy` (share right), and
            `accuracy_low` and `accuracy_high` where there is an interval.
        state: column that tells several diagrams apart, for example before and after temperature scaling.
        null_band: 95 % band of the ECE of a calibrated source with this n; stands in the title.
    """
    need(bins, "low", "high", "n", "confidence", "accuracy", *([state] if state else []))
    table = bins.loc[bins["n"] > 0].copy()
    need(table, "n")
    table["state"] = [token_label(str(value)) for value in table[state]] if state else "model"
    states = list(dict.fromkeys(table["state"]))
    colour = alt.Color("state:N", sort=states, title=None, legend=_top_legend(len(states)))
    colour = colour.scale(domain=states, range=([ORANGE, BLUE, *CATEGORIES[2:]] if state else [BLUE])[: len(states)])
    x = alt.X("confidence:Q", title=None).scale(domain=[0, 1])
    y = alt.Y("accuracy:Q", title="share that was right").scale(domain=[0, 1])
    columns = [c for c in ("low", "high", "confidence", "accuracy", "accuracy_low", "accuracy_high") if c in table]
    tooltip = ["state:N", *[alt.Tooltip(f"{c}:Q", title=words(c), format=".3f") for c in columns], "n:Q"]
    base = alt.Chart(rows(table.loc[:, ["state", "n", *columns]])).encode(color=colour, tooltip=tooltip)
    diagonal = alt.Chart(pd.DataFrame({"confidence": [0.0, 1.0], "accuracy": [0.0, 1.0]}))
    layers: list[alt.Chart] = [diagonal.mark_line(color=GREY, strokeDash=[4, 4], strokeWidth=1.2).encode(x=x, y=y)]
    if {"accuracy_low", "accuracy_high"} <= set(table):
        layers.append(base.mark_rule(opacity=0.6).encode(x=x, y="accuracy_low:Q", y2="accuracy_high:Q"))
    layers.append(base.mark_line(strokeWidth=2).encode(x=x, y=y))
    layers.append(base.mark_point(filled=True, size=50, opacity=1).encode(x=x, y=y))
    upper = alt.layer(*layers).properties(width=380, height=300)
    if null_band is not None:
        note = f"a calibrated source with this n has an ECE of {null_band[0]:.3f} to {null_band[1]:.3f}"
        upper = upper.properties(title=alt.TitleParams(note, fontSize=11, fontWeight="normal", anchor="start"))
    counts = base.mark_rect(opacity=0.6).encode(
        x=alt.X("low:Q", title="predicted probability").scale(domain=[0, 1]),
        x2="high:Q",
        y=alt.Y("n:Q", title="n", axis=alt.Axis(tickCount=2)),
        y2=alt.datum(0),
    )
    both = alt.vconcat(upper, counts.properties(width=380, height=60), spacing=8)
    return both.properties(background="transparent")


def fvu_curve(pca: pd.DataFrame, *, fvu: float, l0: float, name: str = "SAE") -> alt.LayerChart:
    """Unexplained variance of a sparse autoencoder beside PCA's, at equal numbers of components for each token.

    Args:
        pca: `rank` and `fvu` (fraction of variance unexplained, 0 is perfect).
        fvu: of the autoencoder on the same rows.
        l0: mean number of its active latents, which is where it stands on the horizontal axis.
        name: label of its point.
    """
    need(pca, "rank", "fvu")
    table = pd.concat([pca.assign(model="PCA"), pd.DataFrame([{"rank": l0, "fvu": fvu, "model": name}])])
    colour = alt.Color("model:N", title=None, legend=None).scale(domain=["PCA", name], range=[GREY, BLUE])
    base = alt.Chart(rows(table.loc[:, ["rank", "fvu", "model"]])).encode(
        x=alt.X("rank:Q", title="components for each token: PCA's rank, the SAE's L0").scale(
            type="log", base=2, nice=False, padding=24
        ),
        y=alt.Y("fvu:Q", title="fraction of variance unexplained").scale(domain=[0, 1]),
        color=colour,
        tooltip=["model:N", alt.Tooltip("rank:Q", format=".3~g"), alt.Tooltip("fvu:Q", format=".3f")],
    )
    line = base.transform_filter("datum.model == 'PCA'").mark_line(strokeWidth=2)
    points = base.mark_point(filled=True, opacity=1, size=70)
    text = base.mark_text(align="left", dx=9, dy=-7).encode(text="label:N")
    last = "datum.model != 'PCA' || datum.rank == " + json.dumps(float(max(pca["rank"])))
    text = text.transform_filter(last).transform_calculate(label="datum.model + ' ' + format(datum.fvu, '.3f')")
    return layered([line, points, text], 520, 280)


def _layer_axis(first: int, last: int) -> alt.Axis:
    """Whole layers only, none beyond the last, and -1 by its name."""
    step = max(1, -(-(last - first) // 15))
    # Beside the word "embed" there is no room for the next label.
    near = first + 1 if first < 0 else first
    values = [layer for layer in range(first, last + 1) if layer == first or (layer % step == 0 and layer > near)]
    return alt.Axis(values=values, format="d", grid=False, labelExpr="datum.value < 0 ? 'embed' : datum.label")


def _top_legend(entries: int) -> alt.Legend | None:
    """A legend above the chart where there is something to tell apart."""
    return alt.Legend(orient="top", symbolOpacity=1) if entries > 1 else None
