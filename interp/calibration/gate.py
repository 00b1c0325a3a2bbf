"""A gate that answers or abstains, with a guarantee about the errors that pass: answer where doubt <= threshold.

Doubt is one signal (higher is more doubtful), or P(wrong) from a logistic regression over several.

1. The rows are divided by group at random. The first part fits the regression, and fixes a list of thresholds and where in
   it to start; nothing of it is used again. The second part decides.
2. **selective**: with probability `confidence` over the second part, the error rate *among answered* is at most `risk`. For one
   fixed threshold the errors among the answered rows are binomial, so the exact tail P(Bin(n, risk) <= errors) is a p-value
   of "the error rate is over risk" (Geifman & El-Yaniv 2017). The thresholds are tested in one fixed order, upwards from the
   start, up to the first that fails: fixed-sequence testing needs no correction for their number (Angelopoulos et al.
   2021, Learn then Test). The start is where the first part has the strongest evidence.
3. **marginal**: the expected share of rows that are answered *and* wrong is at most `risk`, on average over second parts:
   conformal risk control (Angelopoulos et al. 2022), the largest threshold with (errors + 1) / (n + 1) <= risk.

**Groups.** Rows of a group are not independent, and a binomial bound over them promises too much. The independent unit is the
group, so the guarantee is about *a random row of a new group*: "selective" draws one row of each group of the second part and
is exact for these; "marginal" takes each group's mean loss, which is exchangeable and in [0, 1]. In both n is the number of
groups. Rows of large groups count for less than in a mean over rows; `GateCheck` shows both.

The guarantee is about questions like those of the second part. Other questions can have any error rate.
"""

import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from interp import artifact
from interp.calibration.checked import both_classes, group_codes, same_rows, signal_matrix, zero_one
from interp.calibration.gate_check import GateCheck, check_answers
from interp.calibration.gate_thresholds import PATH, fixed_sequence, risk_control, typed_path, why_nothing
from interp.calibration.recalibration import read_kind
from interp.calibration.stacking import WRONG, SignalStack, fit_stack, make_folds, out_of_fold

KINDS = ("selective", "marginal")
FILE, FORMAT = "abstention_gate", 1
FOLDS = 3
"""Of the first part, so that the thresholds suit scores of rows that the regression has not seen."""


@dataclass(frozen=True, eq=False)
class AbstentionGate:
    """Says which rows to answer; made by `fit_gate`."""

    kind: str
    """"selective" or "marginal"."""
    risk: float
    """The named error rate."""
    confidence: float | None
    """Probability of the guarantee over the rows that decided; None for "marginal", which is an average."""
    signals: tuple[str, ...]
    stack: SignalStack | None = field(repr=False)
    """None where a single signal is the doubt itself."""
    threshold: float
    """Answer where doubt <= threshold; -inf for nothing, inf for every row whose doubt is known."""
    path: pd.DataFrame = field(repr=False)
    """The thresholds tested in order ("selective") or looked at ("marginal") on the deciding rows: threshold, coverage, n
    (answered), wrong, risk, upper (exact one-sided bound of the risk at `confidence`), p_value, passed."""
    card: dict[str, Any] = field(repr=False)
    """n_fit, n_calibrate, n_units (rows or groups that decided), coverage, seed."""
    notes: tuple[str, ...] = ()

    @property
    def answers_nothing(self) -> bool:
        """No threshold could be certified."""
        return self.threshold == -math.inf

    @property
    def guarantee(self) -> str:
        """What is promised, as a sentence."""
        what = "a random row of a new group" if self.card["grouped"] else "a new row"
        if self.kind == "marginal":
            return f"The probability that {what} is answered and wrong is at most {self.risk:g}, on average over such gates."
        return f"With probability {self.confidence:g}, the error rate of {what} among those answered is at most {self.risk:g}."

    @property
    def verdict(self) -> str:
        """What the gate does, in plain sentences."""
        units = f"{self.card['n_units']} {'groups' if self.card['grouped'] else 'rows'}"
        if self.answers_nothing:
            return f"The gate answers nothing: {self.card['reason']} It decided on {units}."
        at = "every row" if self.threshold == math.inf else f"rows with {self.doubt_name} <= {self.threshold:.4g}"
        return f"The gate answers {at}, {self.card['coverage']:.1%} of the {units} it decided on. {self.guarantee}"

    @property
    def doubt_name(self) -> str:
        """The signal, or P(wrong)."""
        return self.signals[0] if self.stack is None else "P(wrong)"

    def doubt(self, signals: Any) -> Float[np.ndarray, " row"]:
        """The number that is held against the threshold; NaN where no signal of the row was measured."""
        return self._doubt(signal_matrix(signals, self.signals, empty=True)[1])

    def _doubt(self, values: Float[np.ndarray, "row signal"]) -> Float[np.ndarray, " row"]:
        if self.stack is None:
            return values[:, 0]
        return np.where(np.isnan(values).all(1), np.nan, self.stack.of(values))

    def __call__(self, signals: Any) -> Bool[np.ndarray, " row"]:
        """True where to answer; a row without any measured signal is never answered; no rows give no answers.

        Raises:
            ValueError: a signal that is missing as a column, infinite or no number.
        """
        return self.doubt(signals) <= self.threshold  # NaN compares as False

    def check(self, signals: Any, wrong: Any, *, groups: Any = None, n_boot: int = 1000, seed: int = 0) -> GateCheck:
        """Coverage and errors on rows that had no part in the gate.

        Args:
            signals: a column for each signal of the gate.
            wrong: [n] 1 where the answer was wrong.
            groups: [n] which rows belong together.
            n_boot: draws of groups for the intervals; without groups they are exact.
            seed: of the draws.
        """
        answered = self(signals)
        same_rows(signals=signals, wrong=wrong, groups=groups)
        y = zero_one("wrong", wrong, len(answered), WRONG)
        codes = group_codes(groups, len(y))
        return check_answers(answered, y, codes, kind=self.kind, named=self.risk, n_boot=n_boot, seed=seed)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready (an infinite threshold is "inf" or "-inf"); `from_dict` reads it."""
        path = self.path.assign(threshold=[_said(value) for value in self.path["threshold"]])
        return {
            "kind": self.kind,
            "risk": self.risk,
            "confidence": self.confidence,
            "signals": list(self.signals),
            "stack": None if self.stack is None else self.stack.to_dict(),
            "threshold": _said(self.threshold),
            "path": artifact.records(path),
            "card": self.card,
            "notes": list(self.notes),
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "AbstentionGate":
        """The inverse of `to_dict`. ValueError for anything else."""
        try:
            rest = dict(values)
            rest["signals"], rest["notes"] = tuple(rest["signals"]), tuple(rest["notes"])
            rest["stack"] = None if rest["stack"] is None else SignalStack.from_dict(rest["stack"])
            rest["threshold"] = float(rest["threshold"])
            path = pd.DataFrame(rest["path"], columns=pd.Index(PATH))
            rest["path"] = typed_path(path)
            return cls(**rest)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"this describes no gate ({error}): fit it again") from None

    def save(self, path: str | os.PathLike[str]) -> Path:
        """One JSON file, whole or not at all; `load_gate` reads it."""
        made = {"kind": FILE, "format": FORMAT, "provenance": artifact.provenance(), "gate": self.to_dict()}
        return artifact.write_json(path, made)


def load_gate(path: str | os.PathLike[str]) -> AbstentionGate:
    """Read what `AbstentionGate.save` wrote. ValueError for another kind of file or a newer format."""
    return AbstentionGate.from_dict(read_kind(path, FILE, FORMAT)["gate"])


def _said(threshold: float) -> float | str:
    return float(threshold) if math.isfinite(threshold) else str(float(threshold))


# --------------------------------------------------------------------------------------------------------------- fits


def fit_gate(
    signals: Any,
    wrong: Any,
    *,
    risk: float = 0.1,
    confidence: float = 0.9,
    kind: str = "selective",
    groups: Any = None,
    fractions: tuple[float, float] = (0.4, 0.6),
    seed: int = 0,
) -> AbstentionGate:
    """A gate whose errors are bounded; `check` it on rows that are not among these.

    Args:
        signals: frame of one signal, which is the doubt (higher is more doubtful), or of several, which a logistic regression
            makes into P(wrong). NaN where a signal was not measured.
        wrong: [n] 1 where the answer was wrong, else 0.
        risk: the error rate to keep, over 0 and under 1; name it before looking at results.
        confidence: of "selective".
        kind: "selective" bounds the error rate among answered; "marginal" the share of all that is answered and wrong.
        groups: [n] which rows belong together; whole groups go to a part, and groups are what decides.
        fractions: of the groups for the first part (regression, thresholds) and for the second, which decides. A single
            signal of kind "marginal" needs no first part and decides on all.
        seed: of the division, and of the one row for each group.

    Raises:
        ValueError: no such kind, risk or confidence outside (0, 1), fewer than 2 groups for the parts, several signals with
            answers that are all right or all wrong in the first part, pandas inputs whose indexes differ.
    """
    names, values = signal_matrix(signals)
    same_rows(signals=signals, wrong=wrong, groups=groups)
    y = zero_one("wrong", wrong, len(values), WRONG)
    codes = group_codes(groups, len(y))
    first, second = random_parts(codes, fractions, seed)
    return fit_on_parts(names, values, y, codes, first, second, risk=risk, confidence=confidence, kind=kind, seed=seed)


def random_parts(
    codes: Int[np.ndarray, " row"], fractions: tuple[float, ...], seed: int
) -> list[Int[np.ndarray, " _part"]]:
    """Rows of parts of the groups, drawn at random. Not balanced by class: balance would tie the parts to one another."""
    shares = np.asarray(fractions, dtype=float)
    if not (shares > 0).all() or not math.isclose(shares.sum(), 1.0, abs_tol=1e-6):
        raise ValueError(f"fractions must be positive and sum to 1, got {shares.tolist()}")
    n_groups = int(codes.max()) + 1
    ends = np.rint(np.cumsum(shares) * n_groups).astype(int)
    if (np.diff(ends, prepend=0) < 1).any():
        raise ValueError(f"{n_groups} groups make no {len(shares)} parts of the shares {shares.tolist()}: take more")
    order = np.random.default_rng(seed).permutation(n_groups)
    part_of_group = np.searchsorted(ends, np.argsort(order), side="right")
    return [np.flatnonzero(part_of_group[codes] == part) for part in range(len(shares))]


def fit_on_parts(
    names: tuple[str, ...],
    values: Float[np.ndarray, "row signal"],
    y: Float[np.ndarray, " row"],
    codes: Int[np.ndarray, " row"],
    first: Int[np.ndarray, " _first"],
    second: Int[np.ndarray, " _second"],
    *,
    risk: float,
    confidence: float,
    kind: str,
    seed: int,
) -> AbstentionGate:
    """`fit_gate` for checked values and given parts; rows of neither are not looked at."""
    _check_named(risk, confidence, kind)
    grouped = int(codes.max()) + 1 < len(codes)
    stack, doubt = None, values[:, 0]
    known = np.asarray(~np.isnan(values).all(1))
    if len(names) > 1:
        stack, doubt = _stacked(names, values, y, codes, first, seed)
    elif kind == "marginal":
        first, second = first[:0], np.concatenate([first, second])
    doubt = np.where(known, doubt, np.nan)
    notes = _notes(names, doubt[first], y[first], known) if len(first) else []
    card = {"n_fit": len(first), "n_calibrate": len(second), "grouped": grouped, "seed": seed}
    card["n_units"] = len(np.unique(codes[second]))
    if kind == "selective":
        units = _one_row_each(codes, second, seed) if grouped else second
        path = fixed_sequence(doubt[first], y[first], doubt[units], y[units], risk, confidence)
    else:
        path = risk_control(doubt[second], y[second], np.unique(codes[second], return_inverse=True)[1], risk)
    passed = path.loc[path["passed"]]
    card["coverage"] = float(passed["coverage"].iloc[-1]) if len(passed) else 0.0
    if passed.empty:
        card["reason"] = why_nothing(path, card["n_units"], risk, confidence, kind)
    return AbstentionGate(
        kind=kind,
        risk=risk,
        confidence=confidence if kind == "selective" else None,
        signals=names,
        stack=stack,
        threshold=float(passed["threshold"].iloc[-1]) if len(passed) else -math.inf,
        path=path,
        card=card,
        notes=tuple(notes),
    )


def _check_named(risk: float, confidence: float, kind: str) -> None:
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    for name, value in (("risk", risk), ("confidence", confidence)):
        if not 0 < value < 1:
            raise ValueError(f"{name} must lie between 0 and 1, got {value}")


def _stacked(
    names: tuple[str, ...],
    values: Float[np.ndarray, "row signal"],
    y: Float[np.ndarray, " row"],
    codes: Int[np.ndarray, " row"],
    first: Int[np.ndarray, " _first"],
    seed: int,
) -> tuple[SignalStack, Float[np.ndarray, " row"]]:
    """The regression of the first part, and P(wrong) of all rows; in the first part from folds that held the row out."""
    part = f" of the part that the rule is fitted on ({len(first)} of {len(y)} answers)"
    mend = "give a single one, or this part a larger share of `fractions`"
    both_classes(y[first], f"several signals cannot be weighed; {mend}", part)
    stack = fit_stack(pd.DataFrame(values[first], columns=pd.Index(names)), y[first])
    doubt = stack.of(values)
    within = np.unique(codes[first], return_inverse=True)[1]
    try:
        folds = make_folds(within, y[first], FOLDS, seed)
    except ValueError as error:
        raise ValueError(f"several signals cannot be weighed on the answers{part}: {error}; {mend}") from None
    doubt[first] = out_of_fold(names, values[first], y[first], folds)
    return stack, doubt


def _one_row_each(
    codes: Int[np.ndarray, " row"], rows: Int[np.ndarray, " _part"], seed: int
) -> Int[np.ndarray, " _group"]:
    """One row of each group, drawn at random: independent draws of "a random row of a new group"."""
    shuffled = np.random.default_rng(seed).spawn(1)[0].permutation(rows)
    return shuffled[np.unique(codes[shuffled], return_index=True)[1]]


def _notes(
    names: tuple[str, ...],
    doubt: Float[np.ndarray, " row"],
    y: Float[np.ndarray, " row"],
    known: Bool[np.ndarray, " all"],
) -> list[str]:
    notes = []
    if not known.all():
        notes.append(f"{(~known).sum()} of {len(known)} rows have no measured signal and are never answered")
    seen = ~np.isnan(doubt)
    right, wrong = doubt[seen & (y == 0)], doubt[seen & (y == 1)]
    if len(right) and len(wrong) and np.median(wrong) < np.median(right):
        what = names[0] if len(names) == 1 else "the regression"
        notes.append(
            f"{what} is lower where the answer was wrong (median {np.median(wrong):.4g} against {np.median(right):.4g}): it does "
            "not rank doubt; a signal for which higher is surer must be negated"
        )
    return notes
