"""Probes: transfer matrices, and AUROC over layers, kinds and heads.

AUROC is coloured on one scale in every chart: nothing at 1/2, where nothing is told, blue above, vermilion below.
"""

from collections.abc import Mapping, Sequence

import altair as alt
import pandas as pd

from interp.plot.patching import FROM_TO
from interp.plot.style import (
    CATEGORIES,
    GREY,
    INK,
    ORANGE,
    clamp,
    layered,
    need,
    rows,
    token_label,
    words,
)

BOUNDS = ("low", "high")
_WHITE_FROM = 0.29
"""Text turns white on cells further than this from 1/2: there black and white read alike."""
_WIDTH = 24
"""Longest name of a set, in characters."""
ROW_WIDTH = 34
"""Longest name of a row that stands alone at the left."""


def transfer_matrix(
    frame: pd.DataFrame,
    *,
    value: str = "auroc",
    train_order: Sequence[str] | None = None,
    test_order: Sequence[str] | None = None,
) -> alt.LayerChart:
    """Trained on (down), tested on (across). A dashed frame: the interval covers 1/2, the cell is not told from chance.

    Args:
        frame: a row per cell: `train`, `test` and the value; with `low`, `high`, `accuracy`, `n`, `n_groups`, `n_train`,
            `bag_of_words`, `recovered` and `place` where they are known.
        value: column between 0 and 1 that colours the cells.
        train_order: train sets from top to bottom, None for the frame's order.
        test_order: test sets from left to right.
    """
    need(frame, "train", "test", value)
    if frame.duplicated(["train", "test"]).any():
        raise ValueError("the frame has several rows for one pair of sets: pass one kind and one place")
    extra = ("low", "high", "accuracy", "bag_of_words", "recovered", "n", "n_groups", "n_train", "place")
    table = frame.loc[:, ["train", "test", value, *[name for name in extra if name in frame and name != value]]].copy()
    down, across = _named(table, "train", train_order), _named(table, "test", test_order)
    table["said"] = [f"{number:.2f}" for number in table[value]]
    table["chance"] = _covers_half(table)
    wide, high = clamp(560 / len(across), 34, 84), clamp(420 / len(down), 24, 44)
    x = alt.X("test:N", sort=across, title="tested on", axis=_set_axis(across, wide)).scale(padding=0.05)
    y = alt.Y("train:N", sort=down, title="trained on", axis=alt.Axis(labelLimit=190, ticks=False, domain=False)).scale(
        padding=0.05
    )
    base = alt.Chart(rows(table)).encode(x=x, y=y)
    cells = base.mark_rect(cornerRadius=2).encode(
        color=_auroc_colour(value, f"{words(value)} on groups that were not trained on"),
        tooltip=cell_tips(table, value),
    )
    white = f"abs(datum['{value}'] - 0.5) > {_WHITE_FROM}"
    size = 11 if wide >= 44 else 9
    text = base.mark_text(fontSize=size, tooltip=None).encode(
        text="said:N", color=alt.when(white).then(alt.value("white")).otherwise(alt.value(INK))
    )
    unsure = base.transform_filter("datum.chance")
    unsure = unsure.mark_rect(
        filled=False, stroke=GREY, strokeDash=[3, 3], strokeWidth=1.4, cornerRadius=2, tooltip=None
    )
    return layered([cells, unsure, text], wide * len(across), high * len(down))


def layer_transfer(
    frame: pd.DataFrame,
    *,
    train_order: Sequence[str] | None = None,
    test_order: Sequence[str] | None = None,
    columns: int = 2,
) -> alt.VConcatChart:
    """AUROC over layers: a panel for each test set, a line for each train set, chance dashed.

    Args:
        frame: a row per layer, train set and test set: `layer`, `train`, `test`, `auroc`, and `low` and `high`. One kind.
        train_order: train sets as the legend lists them.
        test_order: test sets as the panels follow.
        columns: panels side by side.
    """
    need(frame, "layer", "train", "test", "auroc")
    if frame.duplicated(["layer", "train", "test"]).any():
        raise ValueError("the frame has several rows for one layer and pair of sets: pass one kind, and one site")
    bounds = [name for name in BOUNDS if name in frame]
    table = rows(frame.loc[:, ["layer", "train", "test", "auroc", *bounds]].copy())
    trained, tested = _named(table, "train", train_order), _named(table, "test", test_order)
    if len(trained) > len(CATEGORIES):
        raise ValueError(
            f"{len(trained)} train sets are more lines than {len(CATEGORIES)} colours tell apart: show fewer"
        )
    across = min(columns, len(tested))
    size = {"width": 560 if across == 1 else 300, "height": 190}
    panels = [_panel(table.loc[table["test"] == name], name, trained, bool(i), size) for i, name in enumerate(tested)]
    lines = [alt.hconcat(*panels[i : i + across], spacing=24) for i in range(0, len(panels), across)]
    return alt.vconcat(*lines, spacing=18).properties(background="transparent")


def place_grid(
    frame: pd.DataFrame,
    *,
    row: str | Sequence[str] = "kind",
    value: str = "auroc",
    selected: Mapping[str, int] | None = None,
) -> alt.LayerChart:
    """AUROC of a sweep at a glance: layers across, kinds (or sites and kinds) down.

    Args:
        frame: `layer`, the columns of `row`, the value, and `low`, `high` and `place` where they are known.
        row: column, or several, whose combinations are the rows of the grid.
        value: column between 0 and 1 that colours the cells.
        selected: name of a row of the grid ("ttpd", or "ttpd · mlp_out" of two columns) -> layer to mark.
    """
    columns = [row] if isinstance(row, str) else list(row)
    need(frame, "layer", value, *columns)
    table = frame.loc[:, [c for c in dict.fromkeys(["layer", value, *BOUNDS, "place", "n"]) if c in frame]].copy()
    table["row"] = [
        token_label(" · ".join(map(str, line)), ROW_WIDTH) for line in frame[columns].itertuples(index=False)
    ]
    if table.duplicated(["layer", "row"]).any():
        raise ValueError("the frame has several rows for one cell: name the columns that tell them apart in row=")
    order, layers = list(dict.fromkeys(table["row"])), sorted({int(layer) for layer in table["layer"]})
    base = alt.Chart(rows(table)).encode(
        x=alt.X(
            "layer:O", title="layer", axis=alt.Axis(labelAngle=0, labelOverlap=True, ticks=False, domain=False)
        ).scale(padding=0.05),
        y=alt.Y("row:N", sort=order, title=None, axis=alt.Axis(labelLimit=240, ticks=False, domain=False)).scale(
            padding=0.05
        ),
    )
    tips = [
        alt.Tooltip("row:N", title=" · ".join(columns)),
        alt.Tooltip("layer:O"),
        *cell_tips(table, value, sets=False),
    ]
    cells = base.mark_rect(cornerRadius=2).encode(color=_auroc_colour(value, words(value)), tooltip=tips)
    drawn = [cells]
    if selected:
        marks = {token_label(name, ROW_WIDTH): layer for name, layer in selected.items()}
        strange = [name for name in marks if name not in order]
        if strange:
            raise ValueError(f"selected names {strange[0]!r}, which is no row of the grid: it has {', '.join(order)}")
        table["chosen"] = [marks.get(name) == layer for name, layer in zip(table["row"], table["layer"])]
        chosen = base.properties(data=table).transform_filter("datum.chosen")
        drawn.append(chosen.mark_rect(filled=False, stroke=ORANGE, strokeWidth=2.2, cornerRadius=2, tooltip=None))
    return layered(drawn, len(layers) * clamp(640 / len(layers), 14, 44), len(order) * clamp(360 / len(order), 18, 34))


def probed_heads(
    frame: pd.DataFrame, *, value: str = "auroc", selected: tuple[int, int] | None = None
) -> alt.LayerChart:
    """AUROC of a probe on every single head: layers down, heads across.

    Args:
        frame: a row per head: `layer`, `head`, the value, and `low` and `high` where they are known. One kind.
        value: column between 0 and 1 that colours the cells.
        selected: (layer, head) to mark.
    """
    need(frame, "layer", "head", value)
    if frame.duplicated(["layer", "head"]).any():
        raise ValueError("the frame has several rows for one head: pass one kind and one site")
    table = frame.loc[:, [c for c in dict.fromkeys(["layer", "head", value, *BOUNDS, "n"]) if c in frame]].copy()
    table["name"] = [f"L{layer}H{head}" for layer, head in zip(table["layer"], table["head"])]
    across, down = len(set(table["head"])), len(set(table["layer"]))
    axis = alt.Axis(orient="top", labelAngle=0, ticks=False, domain=False)
    base = alt.Chart(rows(table)).encode(
        x=alt.X("head:O", title="head", axis=axis).scale(padding=0.06),
        y=alt.Y("layer:O", title="layer", axis=alt.Axis(ticks=False, domain=False)).scale(padding=0.06),
    )
    tips = [alt.Tooltip("name:N", title="head"), *cell_tips(table, value, sets=False)]
    layers = [base.mark_rect(cornerRadius=2).encode(color=_auroc_colour(value, words(value)), tooltip=tips)]
    if selected is not None:
        chosen = base.transform_filter(f"datum.layer == {int(selected[0])} && datum.head == {int(selected[1])}")
        layers.append(chosen.mark_rect(filled=False, stroke=ORANGE, strokeWidth=2.5, cornerRadius=2, tooltip=None))
    return layered(layers, across * clamp(480 / across, 14, 40), down * clamp(460 / down, 12, 28))


def _panel(table: pd.DataFrame, name: str, trained: list[str], later: bool, size: dict[str, int]) -> alt.LayerChart:
    """The curves of one test set."""
    first, last = min(map(int, table["layer"])), max(map(int, table["layer"]))
    legend = None if later else alt.Legend(orient="top", title="trained on", symbolOpacity=1, columns=3, labelLimit=190)
    base = alt.Chart(table).encode(
        x=alt.X("layer:Q", title="layer", axis=layer_ticks(first, last)).scale(
            domain=[first, last], nice=False, padding=6
        ),
        color=alt.Color("train:N", sort=trained, legend=legend).scale(domain=trained, range=CATEGORIES[: len(trained)]),
    )
    scale = alt.Scale(domain=[0, 1])
    y = alt.Y("auroc:Q", title="AUROC", scale=scale)
    half = alt.Chart(pd.DataFrame({"half": [0.5]})).mark_rule(color=GREY, strokeDash=[5, 4]).encode(y="half:Q")
    tips = [alt.Tooltip("train:N", title="trained on"), alt.Tooltip("layer:O"), *cell_tips(table, "auroc", sets=False)]
    layers = [half]
    if set(BOUNDS) <= set(table):
        layers.append(base.mark_area(opacity=0.16).encode(y=alt.Y("low:Q", scale=scale), y2="high:Q"))
    layers += [
        base.mark_line(strokeWidth=2).encode(y=y),
        base.mark_point(filled=True, size=22, opacity=1).encode(y=y, tooltip=tips),
    ]
    title = alt.TitleParams(f"tested on {name}", anchor="start", fontSize=12, fontWeight="normal")
    chart = alt.layer(*layers)
    assert isinstance(chart, alt.LayerChart), "no panel has facets"
    return chart.properties(title=title, **size)


def _named(table: pd.DataFrame, column: str, order: Sequence[str] | None) -> list[str]:
    """Shorten the names in a column, in place, and give them in order."""
    found = list(dict.fromkeys(map(str, table[column])))
    names = {name: token_label(name, _WIDTH) for name in found}
    if len(set(names.values())) < len(names):  # two long names that differ in their middle
        names = {name: f"{number}: {token_label(name, _WIDTH)}" for number, name in enumerate(found)}
    table[column] = [names[str(name)] for name in table[column]]
    return [names[str(name)] for name in (found if order is None else order) if str(name) in names]


def _covers_half(table: pd.DataFrame) -> list[bool]:
    if not set(BOUNDS) <= set(table):
        return [False] * len(table)
    return [bool(low <= 0.5 <= high) for low, high in zip(table["low"], table["high"])]


def _auroc_colour(field: str, title: str) -> alt.Color:
    """Colour of a figure between 0 and 1, nothing at 1/2."""
    legend = alt.Legend(
        type="symbol", orient="top", direction="horizontal", symbolType="square", symbolSize=150, symbolStrokeWidth=0,
        symbolOpacity=1, titleLimit=400, values=[0.0, 0.25, 0.5, 0.75, 1.0], labelExpr="format(datum.value, '.2~f')",
    )  # fmt: skip
    scale = alt.Scale(domain=[0.0, 0.5 - 1e-9, 0.5 + 1e-9, 1.0], range=FROM_TO, clamp=True)
    return alt.Color(f"{field}:Q", title=title, scale=scale, legend=legend)


def _set_axis(names: list[str], width: float) -> alt.Axis:
    """Names across: level where they fit, else slanted."""
    fits = max(map(len, names)) * 6.2 < width
    return alt.Axis(
        orient="top", labelAngle=0 if fits else -35, labelLimit=190, labelOverlap=False, ticks=False, domain=False
    )


def layer_ticks(first: int, last: int) -> alt.Axis:
    step = max(1, round((last - first) / 10))
    label = "datum.value < 0 ? 'embed' : datum.label"
    return alt.Axis(values=list(range(first, last + 1, step)), format="d", grid=False, labelExpr=label)


def cell_tips(table: pd.DataFrame, value: str, sets: bool = True) -> list[alt.Tooltip]:
    """What the tooltip says of a cell."""
    found = [alt.Tooltip("train:N", title="trained on"), alt.Tooltip("test:N", title="tested on")] if sets else []
    numbers = [c for c in (value, "low", "high", "accuracy", "bag_of_words", "recovered") if c in table]
    found += [alt.Tooltip(f"{c}:Q", title=words(c), format=".3f") for c in numbers]
    found += [alt.Tooltip(f"{c}:Q", title=words(c), format=",d") for c in ("n", "n_groups", "n_train") if c in table]
    return found + ([alt.Tooltip("place:N")] if "place" in table else [])
