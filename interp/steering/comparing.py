"""Two steering reports side by side: which figures came out the same, which within the interval, which moved."""

import math
from collections.abc import Iterator

import pandas as pd

from interp.steering.fields import INSTRUCTION, VECTOR, SteeringTables

COMPARED = ("figure", "direction", "strength", "ours", "theirs", "low", "high", "verdict")
TOLERANCE = 1e-4
"""Relative difference that another machine's arithmetic may make."""

_DAMAGE = {"loss_rise": ("loss_low", "loss_high"), "accuracy": ("accuracy_low", "accuracy_high")}
_DAMAGE |= dict.fromkeys(("kl_last", "kl_mean", "distinct_1", "distinct_2", "distinct_3", "repetition"), None)


def compare_reports(ours: SteeringTables, theirs: SteeringTables, tolerance: float = TOLERANCE) -> pd.DataFrame:
    """A row for each figure that both reports have, of the vector and the instruction.

    Returns:
        figure ("effect: preference", "loss_rise" ..., and "text", where `ours` counts the prompts of both and `theirs` those
        that were continued alike), direction, strength, ours, theirs, low and high (our interval), and the verdict: `same`
        (equal but for rounding), `within` (our interval holds theirs), `moved`, or `only ours`, `only theirs`.

    Raises:
        ValueError: nothing in common.
    """
    rows = []
    left, right = _figures(ours), _figures(theirs)
    if not set(left) & set(right):
        raise ValueError("the two reports have no measure and strength in common: there is nothing to compare")
    for key in dict.fromkeys([*left, *right]):
        (own, low, high), other = left.get(key, (math.nan,) * 3), right.get(key, (math.nan,))[0]
        rows.append((*key, own, other, low, high, _verdict(own, other, low, high, tolerance)))
    return pd.DataFrame([*rows, *_texts(ours, theirs)], columns=pd.Index(COMPARED))


def _verdict(own: float, other: float, low: float, high: float, tolerance: float) -> str:
    if math.isnan(own) or math.isnan(other):
        return "only theirs" if math.isnan(own) else "only ours"
    if math.isclose(own, other, rel_tol=tolerance, abs_tol=1e-6):
        return "same"
    return "within" if low <= other <= high else "moved"


def _figures(report: SteeringTables) -> dict[tuple[str, str, float], tuple[float, float, float]]:
    """(figure, direction, strength) -> value and its interval, of all that was measured."""
    return {key: ends for key, ends in _all_figures(report) if not math.isnan(ends[0])}


def _all_figures(report: SteeringTables) -> Iterator[tuple[tuple[str, str, float], tuple[float, float, float]]]:
    for row in report.effects.to_dict("records"):
        if row["direction"] in (VECTOR, INSTRUCTION):
            key = f"effect: {row['measure']}", row["direction"], float(row["strength"])
            yield key, (float(row["effect"]), float(row["low"]), float(row["high"]))
    for row in report.damage.to_dict("records"):
        if row["direction"] in (VECTOR, INSTRUCTION):
            for name, bounds in _DAMAGE.items():
                low, high = (float(row[end]) for end in bounds) if bounds else (math.nan, math.nan)
                yield (name, row["direction"], float(row["strength"])), (float(row[name]), low, high)


def _texts(
    ours: SteeringTables, theirs: SteeringTables
) -> Iterator[tuple[str, str, float, float, float, float, float, str]]:
    """For each direction and strength of both, how many of their common prompts were continued alike."""
    keys = ["direction", "strength", "prompt"]
    left, right = (
        # A prompt may stand there twice, so each is counted.
        report.generations.assign(turn=report.generations.groupby(keys).cumcount())
        for report in (ours, theirs)
    )
    both = left.merge(right, on=[*keys, "turn"], suffixes=("", "_theirs"))
    for key, part in both.groupby(["direction", "strength"], sort=False):
        assert isinstance(key, tuple)
        alike = sum(own == other for own, other in zip(part["text"], part["text_theirs"]))
        verdict = "same" if alike == len(part) else "moved"
        yield "text", key[0], float(key[1]), float(len(part)), float(alike), math.nan, math.nan, verdict
