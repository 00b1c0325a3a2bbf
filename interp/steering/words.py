"""What a steering report says in plain words: effect, random band, cost, instruction, and what to be careful about."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from interp.steering.fields import RANDOM, VECTOR, SteeringTables

ENOUGH = 19
"""Random directions that make p = .05 possible."""
COSTS = ("loss_rise", "kl_mean", "kl_last", "accuracy")
"""Damage on other text or questions; any of them counts as measured. What is written by the way does not."""


def summary_text(report: SteeringTables) -> str:
    """A paragraph for each measure, one for the cost and one for the warnings, parted by blank lines."""
    parts = [measure_text(report, measure) for measure in report.measures] or ["No effect was measured."]
    parts.append(cost_text(report))
    careful = " ".join(warnings_of(report))
    parts.append(f"Careful: {careful}" if careful else "")
    return "\n\n".join(part for part in parts if part)


def largest_strength(report: SteeringTables, measure: str | None = None) -> float:
    """The vector's strength farthest from 0, the positive of two; 0.0 where there is none but 0.

    Args:
        report: its tables.
        measure: of the effects on this measure; None for those of the damage.
    """
    if measure is not None:
        grid = report.of_vector(measure)["strength"]
    else:
        grid = report.damage.loc[report.damage["direction"] == VECTOR, "strength"]
    return max(map(float, grid), key=lambda strength: (abs(strength), strength), default=0.0)


def measure_text(report: SteeringTables, measure: str) -> str:
    """The effect on one measure at its largest strength, beside random directions and the instruction."""
    unit, strength = report.unit(measure), largest_strength(report, measure)
    if not strength:
        return f"{measure}: only strength 0 was measured."
    own = effect_at(report, measure, strength)
    said = [
        f"{measure}: at strength {strength:+g} {_cause(report)} changes it by {_interval(own)} {unit}, n = {own['n']:.0f}."
    ]
    said += [_band_text(own, band) for band in _rows_at(report.band, measure, strength)]
    slopes = report.steerability
    wrong = slopes.loc[slopes["measure"] == measure].dropna(subset=["wrong_way"]).to_dict("records")
    if wrong:
        ends = f"{wrong[0]['wrong_low']:.0%} to {wrong[0]['wrong_high']:.0%}"
        several = sum(value != 0 for value in report.of_vector(measure)["strength"].tolist()) > 1
        there = f"{own['wrong_way']:.0%} of the items move the wrong way there; over the whole grid, by their slopes, "
        rest = f"{wrong[0]['wrong_way']:.0%} ({ends})"
        said.append(f"{there}{rest} do." if several else f"{rest} of the items move the wrong way.")
    elif not math.isnan(own["wrong_way"]):
        said.append(f"{own['wrong_way']:.0%} of the items move the wrong way.")
    for told in report.of_instruction(measure).to_dict("records"):
        said.append(
            f"The instruction in its place changes it by {_interval(told)}, against the same context without it."
        )
    return " ".join(said)


def _cause(report: SteeringTables) -> str:
    return "taking the vector out" if report.card.get("kind") == "ablate" else "the vector"


def effect_at(report: SteeringTables, measure: str, strength: float) -> dict[Any, Any]:
    """The vector's row of one measure and strength."""
    own = report.of_vector(measure)
    return own.loc[own["strength"] == strength].to_dict("records")[0]


def _rows_at(frame: Any, measure: str, strength: float) -> list[dict[Any, Any]]:
    return frame.loc[(frame["measure"] == measure) & (frame["strength"] == strength)].to_dict("records")


def _band_text(own: Mapping[Any, Any], band: Mapping[Any, Any]) -> str:
    if math.isnan(own["low"]):
        place = "a single item or group has no interval to hold against them"
    elif inside(own, band):
        place = "the interval reaches into them, so a push of this size in any direction may do as much"
    else:
        place = "the interval lies outside them"
        if not math.isnan(band["z"]):
            place += f", its near end {abs(band['z']):.1f} of their standard deviations from their mean"
    reach = f"{_signed(band['low'])} to {_signed(band['high'])}"
    several = "random directions of that norm reach" if band["n"] > 1 else "random direction of that norm reaches"
    return f"{band['n']:.0f} {several} {reach}: {place} (p = {band['p']:.2g})."


def inside(own: Mapping[Any, Any], band: Mapping[Any, Any]) -> bool:
    """Whether the vector's interval overlaps the range of the random directions."""
    return bool(own["low"] <= band["high"] and own["high"] >= band["low"])


def cost_text(report: SteeringTables) -> str:
    """What the largest strength costs, and what random directions of that norm cost; empty where it was not measured."""
    strength = largest_strength(report)
    if not strength:
        return ""
    rows = report.damage.to_dict("records")
    own = next(row for row in rows if row["direction"] == VECTOR and row["strength"] == strength)
    start = next((row for row in rows if row["direction"] == VECTOR and row["strength"] == 0), {})
    random = [row for row in rows if row["kind"] in RANDOM and row["strength"] == strength]
    said = []
    if not math.isnan(own["loss_rise"]):
        ends = "" if math.isnan(own["loss_low"]) else f" ({own['loss_low']:+.3f} to {own['loss_high']:+.3f})"
        beside = _beside(random, "loss_rise", "+.3f")
        said.append(f"the loss on other text changes by {own['loss_rise']:+.3f}{ends} nats a token{beside}")
    for name, words in (("kl_mean", "over all positions"), ("kl_last", "at the last position")):
        if not math.isnan(own[name]):
            beside = _beside(random, name, ".3f")
            said.append(f"the KL to the unsteered model {words} is {own[name]:.3f} nats{beside}")
    for name, words in (
        ("accuracy", "accuracy on multiple choice"),
        ("distinct_2", "the share of distinct pairs of tokens"),
        ("repetition", "the share of repeated 4-grams"),
    ):
        if not math.isnan(own[name]):
            before = start.get(name, math.nan)
            origin = "" if math.isnan(before) else f" from {before:.2f}"
            said.append(f"{words} goes{origin} to {own[name]:.2f}{_beside(random, name, '.2f')}")
    return f"Cost at strength {strength:+g}: {'; '.join(said)}." if said else ""


def _beside(random: list[dict[Any, Any]], name: str, form: str) -> str:
    known = [row[name] for row in random if not math.isnan(row[name])]
    if not known:
        return ""
    return f" (random directions: {min(known):{form}} to {max(known):{form}})"


def warnings_of(report: SteeringTables) -> Iterator[str]:
    """Reasons not to believe the figures as they stand; those that the card notes first."""
    yield from report.card.get("notes", ())
    n_random = len(set(report.effects.loc[report.effects["kind"].isin(RANDOM), "direction"]))
    if report.measures and not n_random:
        yield f"No random directions stand beside the vector, and p = .05 needs {ENOUGH}."
    elif report.measures and n_random < ENOUGH:
        yield f"Fewer random directions ({n_random}) stand beside the vector than the {ENOUGH} that p = .05 needs."
    if report.measures and not report.damage[list(COSTS)].notna().to_numpy().any():
        yield "No damage was measured: a vector that breaks the model can look strong."
    for measure in report.measures:
        own = report.of_vector(measure)
        moved = own.loc[own["strength"] != 0, "effect"]
        if not len(moved):
            continue
        strength = largest_strength(report, measure)
        if not moved.to_numpy().any():
            yield f"{measure} did not move at all: what it reads may not see the intervention."
        elif any(
            inside(effect_at(report, measure, strength), band) for band in _rows_at(report.band, measure, strength)
        ):
            yield f"The effect on {measure} is not told from that of random directions."


def _interval(row: Mapping[Any, Any]) -> str:
    """`+2.26 (+1.60 to +2.94)`"""
    ends = "" if math.isnan(row["low"]) else f" ({_signed(row['low'])} to {_signed(row['high'])})"
    return _signed(row["effect"]) + ends


def _signed(number: float) -> str:
    """Three digits with their trailing zeros, and the sign."""
    return f"{number:+#.3g}".rstrip(".")
