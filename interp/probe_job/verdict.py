"""The answer of a job in sentences, from its figures alone.

The verdict is about the kind that stands first in the specification: the best of several, found afterwards, would be
partly luck. Its first words are the conclusion. "Decodable beyond the text" asks three things of the figure: above chance,
above what the text alone gives, above what permuted labels give. The model's log-likelihood of a text is a figure of the
model: it stands beside the probe and takes no part in what the text alone gives. "Used" asks whether adding the direction
moves the model's own judgement more than random directions of the same size do. Neither follows from the other.
"""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from interp.probe_job.fields import rows_where, rows_words

SMALL_P = 0.05
BASELINES = {
    "bag_of_words": "a bag of words",
    "text_length": "the length of the text",
    "log_likelihood": "the model's log-likelihood of the text",
    "majority": "always the larger class",
}
"""Baselines in words."""
OF_MODEL = "log_likelihood"
"""The baseline that comes from the model and not from the text alone."""


def job_verdict(
    job: dict[str, Any],
    selected: pd.DataFrame,
    baselines: pd.DataFrame,
    effect: str | None,
    card: Mapping[str, Any] | None = None,
    figures: pd.DataFrame | None = None,
    parts: pd.DataFrame | None = None,
) -> tuple[str, ...]:
    """The sentences that a report begins with.

    Args:
        job: the specification.
        selected: a row for each kind and seed.
        baselines: a row for each seed and baseline.
        effect: what the causal check found, None where it was not asked for.
        card: of the report, for how many texts there are where every token is a row.
        figures: a row for each place, kind and seed, for the control task; None says nothing of it.
        parts: the selected figures part by part. A probe that does not hold on each polarity is not called decodable
            without that; None says nothing of parts.
    """
    seed, kind = job["seeds"][0], job["kinds"][0]
    own = rows_where(selected, seed=seed, kind=kind).iloc[0]
    beside = rows_where(baselines, seed=seed)
    texts = beside[beside["name"] != OF_MODEL]
    best = texts.iloc[int(texts["auroc"].argmax())]
    told = bool(own["low"] > 0.5 and own["p_permuted"] <= SMALL_P)
    answer = _answer(own, best, told)
    if told and _above(own, best):
        answer += _weak_parts(kind, seed, parts)
    lines = [
        f"{answer}: {kind} has AUROC {_interval(own)} on {rows_words(own, card)} that neither the fit nor any choice saw; "
        f"accuracy {own['accuracy']:.3f}.",
        f"The best figure of the text alone is {_words(best['name'])} with {_interval(best)}: {_beside(own, best)}",
    ]
    lines += [_of_model(own, row) for row in rows_where(beside, name=OF_MODEL).to_dict("records")]
    lines.append(
        f"Probes fitted to permuted labels reach {own['permuted_max']:.3f} at most (p = {own['p_permuted']:.2f})."
    )
    lines += _control_task(own, kind, seed, figures)
    if len(job["seeds"]) > 1:
        found = rows_where(selected, kind=kind)["auroc"]
        lines.append(
            f"Over {len(found)} seeds of the folds the AUROC goes from {found.min():.3f} to {found.max():.3f}."
        )
    lines.append(effect or "Whether the model uses what can be decoded was not asked: add [causal] to the job.")
    return tuple(lines)


def _answer(own: Any, best: Any, told: bool) -> str:
    """The conclusion, before any figure."""
    if not told:
        return "Not shown to be decodable"
    return "Decodable beyond the text" if _above(own, best) else "Not shown beyond the text"


def _weak_parts(kind: str, seed: int, parts: pd.DataFrame | None) -> str:
    """The polarities whose interval does not lie above 1/2, in words; "" where there are none."""
    if parts is None or parts.empty:
        return ""
    rows = rows_where(parts, kind=kind, seed=seed, part="polarity").to_dict("records")
    weak = [str(row["value"]) for row in rows if row["low"] <= 0.5]
    return f" on average, but not on {' and '.join(weak)} statements alone" if weak else ""


def _above(own: Any, best: Any) -> bool:
    """Whether the probe's interval lies above the other one, and above chance."""
    return bool(own["low"] > max(best["high"], 0.5) if best["high"] > 0.5 else own["low"] > 0.5)


def _beside(own: Any, best: Any) -> str:
    if _above(own, best):
        return "the probe's interval lies above it."
    if own["auroc"] > best["auroc"]:
        return "the probe is above it, but the intervals overlap, so it may read no more than the text says."
    return "the probe is no better, so it shows nothing about the model that the text does not."


def _of_model(own: Any, row: Any) -> str:
    if _above(own, row):
        said = "lies below the probe's interval."
    elif row["low"] <= 0.5 <= row["high"]:
        said = "covers 1/2: how likely a text is says nothing of its label here."
    else:
        said = "does not lie below the probe's interval: the probe may read how likely a text is."
    what = f"{_words(row['name']).capitalize()} has {_interval(row)}"
    return f"{what}. It is a figure of the model, not of the text alone, and {said}"


def _control_task(own: Any, kind: str, seed: int, figures: pd.DataFrame | None) -> list[str]:
    """How well the same kind learns labels that mean nothing."""
    if figures is None or "control_accuracy" not in figures:
        return []
    there = rows_where(figures, seed=seed, kind=kind, site=own["site"])
    control = float(there["control_accuracy"].iloc[0]) if len(there) else float("nan")
    if control != control:
        return []
    gap = own["accuracy"] - control
    meaning = (
        "it learns them no worse, so its accuracy is no evidence; the AUROC on unseen groups is"
        if gap <= 0
        else "the difference is what it owes to the label and not to its own capacity"
    )
    return [
        f"Control task: on labels that were dealt out to the groups at random {kind} is right in {control:.3f} "
        f"(selectivity {gap:+.3f}); {meaning}."
    ]


def _interval(row: Any) -> str:
    return f"{row['auroc']:.3f} (95 % {row['low']:.3f} to {row['high']:.3f})"


def _words(name: str) -> str:
    return BASELINES.get(name, name.replace("_", " "))
