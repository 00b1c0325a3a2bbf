"""The answer of a job in sentences, from its figures alone.

The verdict is about the kind that stands first in the specification: the best of several, found afterwards, would be
partly luck. "Decodable" asks three things of its figure: above chance, above what the text alone gives, above what
permuted labels give. "Used" asks whether adding the direction moves the model's own judgement more than random directions
of the same size do. Neither follows from the other.
"""

from typing import Any

import pandas as pd

from interp.probe_job.fields import rows_where

SMALL_P = 0.05
BASELINES = {
    "bag_of_words": "a bag of words",
    "text_length": "the length of the text",
    "log_likelihood": "the model's log-likelihood of the text",
    "majority": "always the larger class",
}
"""Baselines in words."""


def job_verdict(
    job: dict[str, Any], selected: pd.DataFrame, baselines: pd.DataFrame, effect: str | None
) -> tuple[str, ...]:
    """The sentences that a report begins with.

    Args:
        job: the specification.
        selected: a row for each kind and seed.
        baselines: a row for each seed and baseline.
        effect: what the causal check found, None where it was not asked for.
    """
    seed, kind = job["seeds"][0], job["kinds"][0]
    own = rows_where(selected, seed=seed, kind=kind).iloc[0]
    beside = rows_where(baselines, seed=seed)
    best = beside.iloc[int(beside["auroc"].argmax())]
    above_text = own["low"] > best["high"] if best["high"] > 0.5 else own["low"] > 0.5
    told = bool(own["low"] > 0.5 and own["p_permuted"] <= SMALL_P)
    answer = (
        "Decodable beyond the text" if told and above_text else "Decodable" if told else "Not shown to be decodable"
    )
    lines = [
        f"{answer}: {kind} has AUROC {_interval(own)} on {own['n']:,} texts in {own['n_groups']:,} groups that neither the fit "
        f"nor any choice saw; accuracy {own['accuracy']:.3f}.",
        f"The best figure without a probe is {_words(best['name'])} with {_interval(best)}: "
        + (
            "the probe's interval lies above it."
            if above_text
            else "the probe is above it, but the intervals overlap."
            if own["auroc"] > best["auroc"]
            else "the probe is no better, so it shows nothing about the model that the text does not."
        ),
        f"Probes fitted to permuted labels reach {own['permuted_max']:.3f} at most (p = {own['p_permuted']:.2f}).",
    ]
    if len(job["seeds"]) > 1:
        found = rows_where(selected, kind=kind)["auroc"]
        lines.append(
            f"Over {len(found)} seeds of the folds the AUROC goes from {found.min():.3f} to {found.max():.3f}."
        )
    lines.append(effect or "Whether the model uses what can be decoded was not asked: add [causal] to the job.")
    return tuple(lines)


def _interval(row: Any) -> str:
    return f"{row['auroc']:.3f} (95 % {row['low']:.3f} to {row['high']:.3f})"


def _words(name: str) -> str:
    return BASELINES.get(name, name.replace("_", " "))
