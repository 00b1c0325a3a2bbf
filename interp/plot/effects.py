"""Effects of ablated heads: the largest ones, effect against score, and a set against random sets."""

import altair as alt
import numpy as np
import pandas as pd
from jaxtyping import Float

from interp.plot.style import BLUE, CATEGORIES, GREY, INK, layered, need, rows, zero_line

_EFFECT = "rise of the second-copy loss (nats)"
_VERDICTS = ("induction", "redundant", "upstream", "none")


def effect_bars(frame: pd.DataFrame, *, top: int = 20) -> alt.LayerChart:
    """The heads without which the model loses most.

    Args:
        frame: a line for each head: `layer`, `head`, `effect`, `effect_low`, `effect_high`; with `verdict`, the colour.
        top: heads drawn.
    """
    need(frame, "layer", "head", "effect", "effect_low", "effect_high")
    table = _named(frame).nlargest(top, "effect")
    base = alt.Chart(rows(table)).encode(
        y=alt.Y("name:N", sort=table["name"].tolist(), title=None), tooltip=_tooltip(table)
    )
    bars = base.mark_bar(cornerRadiusEnd=2).encode(
        x=alt.X("effect:Q", title=_EFFECT).stack(False), color=_colour() if "verdict" in table else alt.value(BLUE)
    )
    lines = base.mark_rule(color=INK, opacity=0.7).encode(x="effect_low:Q", x2="effect_high:Q")
    return layered([bars, lines], 460, 20 * len(table))


def score_against_effect(frame: pd.DataFrame, score: str = "induction", *, named: int = 12) -> alt.LayerChart:
    """Where heads look against what the model loses without them: a point for each head.

    Args:
        frame: `layer`, `head`, `effect`, `verdict` and the score.
        score: column across.
        named: heads whose name is written, those of largest score or effect.
    """
    need(frame, "layer", "head", "effect", "verdict", score)
    table = _named(frame)
    best = table.loc[:, [score, "effect"]].rank(ascending=False).min(axis=1)
    table["label"] = np.where(best <= max(1, named // 2), table["name"], "")
    base = alt.Chart(rows(table)).encode(
        x=alt.X(f"{score}:Q", title=score.replace("_", " ")).scale(domain=[0, 1]),
        y=alt.Y("effect:Q", title=_EFFECT),
        tooltip=_tooltip(table, score),
    )
    points = base.mark_point(filled=True, size=55, opacity=0.85).encode(color=_colour())
    text = base.mark_text(align="left", dx=7, fontSize=10, color=INK).encode(text="label:N")
    return layered([zero_line(), points, text], 520, 320)


def set_against_random(parts: pd.DataFrame, effect: float, random_effects: Float[np.ndarray, "draw"]) -> alt.LayerChart:
    """What a set of heads costs, what each of its heads does alone and in it, and what random sets cost.

    Args:
        parts: a line for each head: `name`, `alone`, `in_set`, in nats.
        effect: of the whole set.
        random_effects: of the random sets; may be empty.
    """
    need(parts, "name", "alone", "in_set")
    found = [
        ("the set", effect, "the set"),
        *[("random sets", float(value), "random sets") for value in random_effects],
    ]
    for kind, column in (("alone", "alone"), ("added to the others", "in_set")):
        found += [(str(name), float(value), kind) for name, value in zip(parts["name"], parts[column], strict=True)]
    table = pd.DataFrame(found, columns=["line", "effect", "kind"])
    kinds = ["the set", "random sets", "alone", "added to the others"]
    colour = alt.Color("kind:N", title=None, sort=kinds, legend=alt.Legend(orient="top", symbolOpacity=1))
    base = alt.Chart(rows(table)).encode(
        x=alt.X("effect:Q", title=_EFFECT),
        y=alt.Y("line:N", sort=list(dict.fromkeys(table["line"])), title=None),
        color=colour.scale(domain=kinds, range=[CATEGORIES[0], GREY, CATEGORIES[1], CATEGORIES[2]]),
        tooltip=["line:N", "kind:N", alt.Tooltip("effect:Q", format="+.3f")],
    )
    return layered([base.mark_point(filled=True, size=60, opacity=0.85)], 460, 24 * len(set(table["line"])))


def _named(frame: pd.DataFrame) -> pd.DataFrame:
    names = [f"L{layer}H{head}" for layer, head in zip(frame["layer"], frame["head"])]
    return frame.assign(name=names)


def _colour() -> alt.Color:
    legend = alt.Legend(orient="top", symbolOpacity=1)
    colours = [CATEGORIES[0], CATEGORIES[5], CATEGORIES[1], GREY]
    return alt.Color("verdict:N", title=None, sort=list(_VERDICTS), legend=legend).scale(
        domain=list(_VERDICTS), range=colours
    )


def _tooltip(table: pd.DataFrame, *more: str) -> list[alt.Tooltip]:
    found = [alt.Tooltip("name:N", title="head"), alt.Tooltip("effect:Q", format="+.3f")]
    bounds = [column for column in ("effect_low", "effect_high", *more) if column in table]
    found += [alt.Tooltip(f"{column}:Q", title=column.replace("_", " "), format=".3f") for column in bounds]
    return found + [alt.Tooltip(f"{word}:N") for word in ("verdict", "role") if word in table]
