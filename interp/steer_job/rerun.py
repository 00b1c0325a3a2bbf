"""A finished report measured once more, from what it holds itself, and what stayed the same.

1. The report's `inputs` hold vector, pairs, texts, questions and settings. Functions and probes of its author they only name:
   these are given again, or left out on request, never in silence.
2. The model is the one that the report's card names, or one that is given. Other weights are refused: what differed would be
   the model, not the measurement. Where that is what is asked, `other_model` allows it.
3. Everything runs again with the same seed, and `SteeringReport.compare` says of each figure: same, within the interval, moved.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from interp.model import HookedTransformer
from interp.steering.experiment import steering_experiment
from interp.steering.measures import Measure, measure_of
from interp.steering.report import SteeringReport, load_steering_report
from interp.steering.saved import experiment_arguments
from interp.weights.load import load

_VERSIONS = ("interp", "torch", "python")


@dataclass(frozen=True, eq=False)
class RerunReport:
    """A report, the same experiment again, and both side by side."""

    before: SteeringReport = field(repr=False)
    """The report as it was read."""
    after: SteeringReport = field(repr=False)
    """What was measured now."""
    comparison: pd.DataFrame = field(repr=False)
    """`before.compare(after)`."""
    notes: list[str]
    """What differs in the circumstances: versions, weights, measures that were left out."""

    @property
    def moved(self) -> int:
        """Figures that lie outside the interval of before."""
        return self._verdicts.count("moved")

    @property
    def _verdicts(self) -> list[str]:
        return [str(each) for each in self.comparison["verdict"].tolist()]

    def to_frame(self) -> pd.DataFrame:
        """The comparison."""
        return self.comparison.copy()

    def summary(self) -> str:
        """How many figures are the same, and what differs around them."""
        said = ", ".join(f"{self._verdicts.count(word)} {words}" for word, words in _WORDS.items())
        return "\n".join([f"Of {len(self.comparison)} figures {said}.", *(f"Note: {note}" for note in self.notes)])


_WORDS = {"same": "are the same", "within": "lie within the interval", "moved": "moved"}


def own_measures(report: SteeringReport) -> list[str]:
    """Names of the measures that no file holds: functions and probes of the report's author."""
    found = []
    for described in report.inputs.get("measures", ()):
        try:
            measure_of(described)
        except ValueError:
            found.append(str(described.get("name")))
    return found


def rerun_steering(
    report: SteeringReport | str | Path | Any,
    model: HookedTransformer | str | None = None,
    *,
    measures: Mapping[str, Measure | Callable[..., Any]] | None = None,
    leave_out: bool = False,
    other_model: bool = False,
    progress: Callable[[int, int], Any] | None = None,
) -> RerunReport:
    """Run a report's experiment again and compare.

    Args:
        report: the report, or its JSON file.
        model: a model or what `interp.load` reads; None for the one that the report's card names.
        measures: name -> measure, for those that no file holds.
        leave_out: run without those that are not given, instead of refusing.
        other_model: allow other weights than those of the report.
        progress: called with (done, in all) settings.

    Raises:
        ValueError: a file that is no report, or one of before format 2, which does not hold what runs it again; a measure
            that is not given; another model.
    """
    if not isinstance(report, SteeringReport):
        report = load_steering_report(report)
    if not report.inputs:
        raise ValueError("this report is of an older version and does not hold what runs it again: measure anew")
    given = dict(measures or {})
    strange = sorted(set(given) - {str(each.get("name")) for each in report.inputs["measures"]})
    if strange:
        raise ValueError(f"the report has no measure {strange[0]!r}: it has {', '.join(report.measures) or 'none'}")
    lacking = [name for name in own_measures(report) if name not in given]
    if lacking and not leave_out:
        raise ValueError(
            f"the report does not hold the measure {', '.join(map(repr, lacking))}, a function or a probe of its author's: give "
            "it again, or leave it out on purpose (--leave-out)"
        )
    wanted, notes = _without(report, lacking)
    loaded = _model(report, model)
    wanted, said = _for_model(wanted, loaded, other_model=other_model)
    arguments = experiment_arguments(wanted, loaded, given or None)
    after = steering_experiment(loaded, **arguments, progress=progress)
    return RerunReport(report, after, report.compare(after), [*notes, *said, *_versions(report, after)])


def _without(report: SteeringReport, lacking: list[str]) -> tuple[SteeringReport, list[str]]:
    """The report with fewer measures to run."""
    if not lacking:
        return report, []
    left = [each for each in report.inputs["measures"] if str(each.get("name")) not in lacking]
    return replace(report, inputs={**report.inputs, "measures": left}), [f"left out: {', '.join(lacking)}"]


def _model(report: SteeringReport, model: HookedTransformer | str | None) -> HookedTransformer:
    if isinstance(model, HookedTransformer):
        return model
    named = report.card.get("job", {}).get("spec", {}).get("model") or report.card.get("model")
    if model is None and not named:
        raise ValueError("the report does not name its model: give one")
    return load(str(model or named))


def _for_model(
    report: SteeringReport, model: HookedTransformer, *, other_model: bool
) -> tuple[SteeringReport, list[str]]:
    """The report as one of this model, and a note where it was measured on another one."""
    known = report.card.get("fingerprint")
    if known in (None, model.fingerprint):
        return report, []
    if not other_model:
        raise ValueError(
            f"the report was measured on other weights ({report.card.get('model')}, fingerprint {str(known)[:12]}) than those of "
            f"{model.cfg.name} ({model.fingerprint[:12]}): load the same ones, or compare the two models on purpose "
            "(--other-model)"
        )
    said = (
        f"other weights: {report.card.get('model')} ({str(known)[:12]}) -> {model.cfg.name} ({model.fingerprint[:12]})"
    )
    moved = {"inputs": _renamed(report.inputs, str(known), model.fingerprint)}
    return replace(report, card={**report.card, "fingerprint": model.fingerprint}, **moved), [said]


def _renamed(value: Any, known: str, now: str) -> Any:
    """The same inputs with the vector's card saying that it is for this model."""
    if isinstance(value, dict):
        return {
            key: now if key == "fingerprint" and each == known else _renamed(each, known, now)
            for key, each in value.items()
        }
    return [_renamed(each, known, now) for each in value] if isinstance(value, list) else value


def _versions(before: SteeringReport, after: SteeringReport) -> list[str]:
    """Versions that differ: another torch may compute other last bits."""
    changed = [name for name in _VERSIONS if before.card.get(name) not in (None, after.card.get(name))]
    return [f"{name} {before.card[name]} -> {after.card[name]}" for name in changed]
