"""The page of a steering report: what was found, the curves behind it, single items, the text, and the way to run it again."""

import json
import math
import re
from typing import Any

import numpy as np
import pandas as pd

from interp.plot import to_svg
from interp.plot.steering import DOSE, steering_damage, steering_effect, steering_slopes
from interp.plot.style import INK
from interp.report import Figure, Section, Spans, Table
from interp.steering.fields import INSTRUCTION, RANDOM, VECTOR, SteeringTables
from interp.steering.words import COSTS, largest_strength, summary_text

MOST_PROMPTS = 20
"""Prompts whose texts are printed."""
MOST_ITEMS = 5
"""Items of a measure that are listed, the least moved ones."""
UNITS = {
    "norm": DOSE,
    "sd": "standard deviations along the direction",
    "raw": "lengths of the vector",
    "share": "share taken out",
}
"""Unit of the strength -> what stands at the axis."""
SIGNED = {"strength": "+g"}
"""Format of a column of tables."""
COUNTS = {"n_texts": "texts", "n_tokens": "tokens", "n_choices": "questions"}


def title(report: SteeringTables) -> str:
    """Of the page."""
    return f"Steering {report.card['model']}" if "model" in report.card else "Steering"


def header(report: SteeringTables) -> str:
    """The paragraphs before the first section."""
    return summary_text(report)


def facts(report: SteeringTables) -> dict[str, Any]:
    """What stands at the end of the page."""
    chosen = {name: report.inputs[name] for name in ("options", "settings") if report.inputs.get(name)}
    return {**report.card, **chosen}


def dose(report: SteeringTables) -> str:
    """What a strength of 1 is, for an axis."""
    return UNITS.get(report.card.get("unit", "norm"), DOSE)


def sections(report: SteeringTables) -> list[Section]:
    """Those that have something to show; the last one says how to run it again."""
    found = [_effect(report), _damage(report), _items(report), _texts(report)]
    return [*[section for section in found if section is not None], _again(report)]


def _svg(chart: Any) -> str:
    return to_svg(chart, ink=INK)


def _effect(report: SteeringTables) -> Section | None:
    if not report.measures:
        return None
    columns = ["measure", "strength", "effect", "low", "high", "wrong_way", "n"]
    own = _known(pd.concat([report.of_vector(measure) for measure in report.measures]).loc[:, columns], "wrong_way")
    told = pd.concat([report.of_instruction(measure) for measure in report.measures])
    bands = _bands(report)
    caption = "Blue: the vector with its 95 % interval. Grey: random directions of the same norm."
    share = ", and the share of items that move the wrong way" if "wrong_way" in own else ""
    tables = [Table(own, f"The vector: effect with its 95 % interval{share}.", SIGNED)]
    if len(bands):
        words = (
            "Random directions at the largest strength; p = (1 + as large) / (n + 1), z in their standard deviations."
        )
        tables.append(Table(bands, words, {**SIGNED, "p": ".2g", "z": ".1f"}))
    if len(told):
        shown = told.loc[:, ["measure", "effect", "low", "high", "n"]]
        tables.append(Table(shown, "The instruction, without the vector."))
        caption += " Orange: the instruction, without the vector."
    return Section(
        "Effect",
        "The effect is the mean over items of the value with the vector less the value without it. Random directions, half of "
        "them isotropic and half with the covariance of the activations, say what a push of this size does by itself.",
        [Figure(_svg(steering_effect(report.effects, dose=dose(report))), caption)],
        tables,
        code='report = interp.load_steering_report("report.json")\nreport.plot()\nreport.band',
    )


def _bands(report: SteeringTables) -> pd.DataFrame:
    """The random directions at each measure's largest strength, all together and each kind apart."""
    kinds = {"both": report.band, **{kind: report.random_band(kind) for kind in RANDOM}}
    parts = []
    for measure in report.measures:
        for kind, band in kinds.items():
            at = (band["measure"] == measure) & (band["strength"] == largest_strength(report, measure))
            parts.append(band.loc[at].assign(kind=kind))
    found = pd.concat([part for part in parts if len(part)] or parts[:1])
    return found.loc[:, ["measure", "strength", "kind", "n", "mean", "std", "low", "high", "p", "z"]]


def _damage(report: SteeringTables) -> Section | None:
    known = [name for name in COSTS if np.isfinite(report.damage[name].to_numpy(float)).any()]
    if not known:
        return None
    bounds = [name for name in ("loss_low", "loss_high") if "loss_rise" in known]
    shown = report.damage.loc[
        report.damage["direction"].isin([VECTOR, INSTRUCTION]),
        ["direction", "strength", *[name for name in report.damage if name in (*known, *bounds)]],
    ]
    counts = {words: max(report.damage[name].fillna(0).tolist()) for name, words in COUNTS.items()}
    held = ", ".join(f"{count:,.0f} {words}" for words, count in counts.items() if count)
    return Section(
        "Damage",
        "Losses and KL are of fixed texts that have nothing to do with the vector; distinct and repeated n-grams are of the "
        "continuations. A vector that breaks the model is no finding, however strong.",
        [
            Figure(
                _svg(steering_damage(report.damage, dose=dose(report))),
                f"What each strength costs{held and f': {held}'}.",
            )
        ],
        [Table(shown, "The vector's damage, and the instruction's where it stands.", SIGNED)],
        code="report.largest(0.06)  # the largest strength whose loss rises by at most 0.06 nats a token",
    )


def _items(report: SteeringTables) -> Section | None:
    slopes = report.slopes
    if slopes.empty:
        return None
    has_way = not math.isnan(report.way)
    order = slopes["slope"] * report.way if has_way else slopes["slope"].abs()
    least = slopes.assign(order=order).sort_values("order").groupby("measure", sort=False).head(MOST_ITEMS)
    least = least.sort_values(["measure", "order"]).loc[:, ["measure", "prompt", "slope", "wrong"]]
    steerability = _known(report.steerability, "wrong_way", "wrong_low", "wrong_high")
    share, which = ("; share of wrong-way items with its own", ", or the wrong way") if has_way else ("", "")
    return Section(
        "Items one by one",
        "The slope of each item's value over the strength. A mean can hide that a vector moves many items the wrong way.",
        [Figure(_svg(steering_slopes(slopes)), "A point for each item; the dashed line is the mean.")],
        [
            Table(steerability, f"Mean slope with its 95 % interval{share}."),
            Table(_known(least, "wrong"), f"The items that move least{which}; at most {MOST_ITEMS} of a measure."),
        ],
        code="report.slopes",
    )


def _known(table: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """Without those of the columns that hold nothing."""
    return table.drop(columns=[name for name in columns if table[name].isna().to_numpy().all()])


def _texts(report: SteeringTables) -> Section | None:
    texts = report.generations
    if texts.empty:
        return None
    prompts = list(dict.fromkeys(texts["prompt"]))
    tables = [_prompt_table(prompt, texts.loc[texts["prompt"] == prompt]) for prompt in prompts[:MOST_PROMPTS]]
    left = f" The first {MOST_PROMPTS} of {len(prompts)} prompts." if len(prompts) > MOST_PROMPTS else ""
    return Section(
        "Side by side",
        "Continuations from the same seed. What a text shares with the unsteered one is grey, and the first word that differs "
        f"is underlined.{left}",
        tables=tables,
        code='report.generations.loc[:, ["prompt", "strength", "direction", "text"]]',
    )


def _prompt_table(prompt: str, part: pd.DataFrame) -> Table:
    part = part.assign(order=part["direction"] == INSTRUCTION).sort_values(["order", "strength"], kind="stable")
    rows = [
        (_setting(row["direction"], float(row["strength"])), told(row["same"], row["differs"], plain=_is_plain(row)))
        for row in part.to_dict("records")
    ]
    return Table(pd.DataFrame(rows, columns=pd.Index(["strength", "continuation"])), f"“{prompt}”")


def _is_plain(row: dict[str, Any]) -> bool:
    # An instruction's text follows another prompt, so it shares nothing with the unsteered one.
    return row["direction"] != VECTOR or row["strength"] == 0


def _setting(direction: str, strength: float) -> str:
    if direction != VECTOR:
        return direction
    return f"{strength:+g}" if strength else "0 (unsteered)"


def told(same: str, differs: str, *, plain: bool = False) -> Spans:
    """A continuation whose shared beginning is quiet and whose first word of its own is marked.

    Args:
        same: the text up to the first token that differs from the unsteered.
        differs: the rest.
        plain: for the unsteered text and what is not held against it.
    """
    if plain:
        return Spans([(same + differs, "")])
    space = differs[: len(differs) - len(differs.lstrip())]
    found = re.match(r"\S+", differs[len(space) :])
    word = found[0] if found else ""
    parts = [(same + space, "quiet"), (word, "marked"), (differs[len(space + word) :], "")]
    return Spans([(text, style) for text, style in parts if text])


def _again(report: SteeringTables) -> Section:
    name = json.dumps(str(report.card.get("model", "MODEL")), ensure_ascii=False)
    whole = (
        "The file that report.save writes holds the vector, the prompts, pairs and texts, and every setting. "
        "The command “interp steer rerun report.json” runs all of it again and says which figures came out the same."
    )
    if not report.inputs:
        whole = "The report was made by an earlier version, which did not keep what it takes to run it again."
    return Section(
        "Run it again",
        whole,
        code=f"import interp\n\nmodel = interp.load({name})\n"
        'report = interp.load_steering_report("report.json")\n'
        "report.compare(interp.steering.steering_experiment_again(report, model))",
    )
