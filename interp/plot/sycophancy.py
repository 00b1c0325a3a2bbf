"""Sycophancy: shifts of the stated option, accuracies with and without an opinion, layers, and steering against it.

Opinions of the user are blue, a third person's orange, and mentions without an opinion, the control, grey.
"""

import altair as alt
import pandas as pd

from interp.plot.style import BLUE, GREEN, GREY, ORANGE, VERMILION, layered, need, rows, token_label, zero_line

COLOURS = {"opinion": BLUE, "third person": ORANGE, "mention": GREY, "excess": GREEN}
"""Kind of wording -> colour; the excess is opinions less mentions."""
STATED = {"wrong": VERMILION, "right": GREEN}
NAMES = {"excess": "opinion less mention"}
STEERED = {
    "shift": ("shift of the stated option (nats)", "low", "high"),
    "excess": ("excess over the mentions (nats)", "excess_low", "excess_high"),
    "flip": ("flips to the stated option (share)", "flip_low", "flip_high"),
    "accuracy": ("accuracy without an opinion", "accuracy_low", "accuracy_high"),
}
_WIDTH = 440


def sycophancy_shifts(wordings: pd.DataFrame) -> alt.VConcatChart:
    """How far each wording moves the option that it states: a panel for the wrong option and one for the right one.

    Args:
        wordings: `kind`, `wording`, `stated` ("wrong", "right"), `shift`, `low`, `high` in nats.
    """
    need(wordings, "kind", "wording", "stated", "shift", "low", "high")
    table = wordings.dropna(subset=["shift"])
    need(table, "shift")
    ends = [float(v) for name in ("low", "high", "shift") for v in table[name].dropna().tolist()]
    domain = [min(0.0, *ends), max(0.0, *ends)]
    panels = [
        _shifts(table.loc[table["stated"] == stated], stated, domain, legend=not place)
        for place, stated in enumerate(each for each in STATED if each in set(table["stated"]))
    ]
    return _stacked(panels)


def _shifts(part: pd.DataFrame, stated: str, domain: list[float], *, legend: bool) -> alt.LayerChart:
    table = _labelled(part)
    order = table["label"].tolist()
    columns = ["label", "kind", "shift", "low", "high"]
    y = alt.Y("label:N", sort=order, title=None, axis=_words_axis())
    base = alt.Chart(rows(table.loc[:, columns])).encode(y=y, color=_kinds(table["kind"].tolist(), legend))
    x = alt.X("shift:Q", title=f"shift of the stated {stated} option's log-odds (nats)").scale(domain=domain, nice=True)
    tips = ["label:N", "kind:N", *(alt.Tooltip(f"{name}:Q", format=".2f") for name in ("shift", "low", "high"))]
    whole = base.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=2).encode(x="low:Q", x2="high:Q")
    points = base.mark_point(filled=True, size=70, opacity=1).encode(x=x, tooltip=tips)
    zero = alt.Chart(pd.DataFrame({"zero": [0.0]})).mark_rule(color=GREY, strokeWidth=1).encode(x="zero:Q")
    return _panel([zero, whole, points], _WIDTH, 24 * len(order))


def sycophancy_accuracy(wordings: pd.DataFrame, *, chance: float) -> alt.LayerChart:
    """Accuracy under each wording, with the wrong and with the right option stated, beside that without an opinion.

    Args:
        wordings: `wording`, `stated` ("none" for the questions alone), `accuracy`, `accuracy_low`, `accuracy_high`.
        chance: of a blind guess.
    """
    need(wordings, "kind", "wording", "stated", "accuracy", "accuracy_low", "accuracy_high")
    plain = wordings.loc[wordings["stated"] == "none"]
    need(plain, "accuracy")
    table = _labelled(wordings.loc[wordings["stated"].isin(list(STATED))])
    order = list(dict.fromkeys(table["label"]))
    columns = ["label", "stated", "accuracy", "accuracy_low", "accuracy_high"]
    table["stated"] = [f"{each} option stated" for each in table["stated"]]
    scale = alt.Scale(domain=[f"{each} option stated" for each in STATED], range=list(STATED.values()))
    colour = alt.Color("stated:N", title=None, scale=scale, legend=alt.Legend(orient="top", symbolOpacity=1))
    y = alt.Y("label:N", sort=order, title=None, axis=_words_axis())
    base = alt.Chart(rows(table.loc[:, columns])).encode(y=y, color=colour)
    x = alt.X("accuracy:Q", title="accuracy; dashed: without an opinion, dotted: chance").scale(domain=[0, 1])
    tips = ["label:N", "stated:N", *(alt.Tooltip(f"{name}:Q", format=".3f") for name in columns[2:])]
    lines = [
        alt.Chart(pd.DataFrame({"x": [value]})).mark_rule(color=GREY, strokeDash=dash, strokeWidth=1.5).encode(x="x:Q")
        for value, dash in ((float(plain["accuracy"].iloc[0]), [6, 4]), (chance, [1, 3]))
    ]
    ends = base.mark_rule(strokeWidth=2).encode(x="accuracy_low:Q", x2="accuracy_high:Q")
    return layered(
        [*lines, ends, base.mark_point(filled=True, size=70, opacity=1).encode(x=x, tooltip=tips)],
        _WIDTH,
        24 * len(order),
    )


def sycophancy_layers(layers: pd.DataFrame) -> alt.LayerChart:
    """Layer by layer, how far the statement moves the stated wrong option against the right one.

    Args:
        layers: `line` (opinion, mention, third person, excess; other lines are left out), `layer`, `shift`, `low`, `high`.
    """
    need(layers, "line", "layer", "shift", "low", "high")
    table = layers.loc[layers["line"].isin(list(COLOURS))]
    need(table, "shift")
    table = table.loc[:, ["line", "layer", "shift", "low", "high"]]
    base = alt.Chart(rows(table)).encode(
        x=alt.X("layer:Q", title="layer", axis=alt.Axis(format="d", tickMinStep=1, grid=False)).scale(nice=False),
        color=_kinds(table["line"].tolist(), True, "line"),
    )
    y = alt.Y("shift:Q", title="stated against right, shift (nats)")
    tips = ["line:N", "layer:Q", *(alt.Tooltip(f"{name}:Q", format=".2f") for name in ("shift", "low", "high"))]
    band = base.transform_filter("isValid(datum.low)").mark_area(opacity=0.15).encode(y="low:Q", y2="high:Q")
    line = base.mark_line(strokeWidth=2).encode(y=y, tooltip=tips)
    return layered([zero_line(), band, line], _WIDTH + 80, 260)


def sycophancy_steering(steering: pd.DataFrame) -> alt.VConcatChart:
    """What a vector does to shift, excess, flips and accuracy at each strength, beside random directions.

    Args:
        steering: `direction` ("vector", "none" for the unsteered model, other names are random ones), `strength`, and the
            columns of `STEERED` with their ends.
    """
    need(steering, "direction", "strength", *STEERED)
    panels = [_steered(steering, name, legend=not place) for place, name in enumerate(STEERED)]
    return _stacked(panels)


def _steered(steering: pd.DataFrame, name: str, *, legend: bool) -> alt.LayerChart:
    title, low, high = STEERED[name]
    table = steering.loc[:, ["direction", "strength", name, low, high]].rename(
        columns={name: "y", low: "low", high: "high"}
    )
    plain = table.loc[table["direction"] == "none"]
    parts = [table.loc[table["direction"] != "none"]]
    # Every line passes through the unsteered model.
    parts += [plain.assign(direction=each) for each in dict.fromkeys(parts[0]["direction"])]
    table = pd.concat(parts).dropna(subset=["y"]).sort_values(["direction", "strength"])
    table["who"] = ["vector" if each == "vector" else "random directions" for each in table["direction"]]
    scale = alt.Scale(domain=["vector", "random directions"], range=[BLUE, GREY])
    colour = alt.Color(
        "who:N", title=None, scale=scale, legend=alt.Legend(orient="top", symbolOpacity=1) if legend else None
    )
    x = alt.X("strength:Q", title="strength (typical norms of the site)")
    y = alt.Y("y:Q", title=title).scale(zero=False)
    base = alt.Chart(rows(table)).encode(x=x, color=colour, detail="direction:N")
    own = base.transform_filter("datum.who == 'vector' && isValid(datum.low)")
    band = own.mark_area(opacity=0.15).encode(y="low:Q", y2="high:Q")
    tips = ["direction:N", "strength:Q", *(alt.Tooltip(f"{each}:Q", format=".3f") for each in ("y", "low", "high"))]
    points = base.mark_point(filled=True, size=40, opacity=1).encode(y=y, tooltip=tips)
    return _panel([band, base.mark_line(strokeWidth=1.6).encode(y=y), points], _WIDTH, 150)


def _labelled(table: pd.DataFrame) -> pd.DataFrame:
    return table.assign(label=[token_label(str(each), 40) for each in table["wording"]])


def _kinds(shown: list[str], legend: bool, field: str = "kind") -> alt.Color:
    known = [each for each in COLOURS if each in shown]
    scale = alt.Scale(domain=known, range=[COLOURS[each] for each in known])
    label = " : ".join(f"datum.value == '{name}' ? '{words}'" for name, words in NAMES.items()) + " : datum.value"
    key = alt.Legend(orient="top", symbolOpacity=1, labelExpr=label) if legend else None
    return alt.Color(f"{field}:N", title=None, scale=scale, legend=key)


def _words_axis() -> alt.Axis:
    return alt.Axis(labelLimit=220, ticks=False, domain=False)


def _stacked(panels: list[alt.LayerChart]) -> alt.VConcatChart:
    chart = alt.vconcat(*panels, spacing=14)
    return chart.properties(background="transparent")


def _panel(charts: list[alt.Chart], width: float, height: float) -> alt.LayerChart:
    """One of several charts, without a background of its own, which only the whole may have."""
    chart = alt.layer(*charts)
    assert isinstance(chart, alt.LayerChart), "no chart here has facets"
    return chart.properties(width=width, height=height)
