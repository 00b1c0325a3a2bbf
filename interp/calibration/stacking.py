"""Which signal of doubt adds to which: logistic regressions over one, two and all signals, judged on rows they never saw.

1. Folds by group, classes in proportion. A value that was not measured becomes the mean of the training part beside a 0/1
   column that says so; all columns are standardised there. The penalty is fixed (L2, C = 1), so nothing is chosen.
2. Every single signal, every pair and all together are fitted on the training parts and score the held-out rows.
3. AUROC compares rows *of one fold* only: scores of two folds come from two models, and the offsets of models of signals that
   say nothing run against the share of wrong answers in their held-out part, which pushes a pooled AUROC under 1/2.
4. The gain of a pair is its AUROC less that of its better signal. Bootstrap over groups, all models on the same draws, gives
   intervals, and from the largest standardised deviation over all pairs a lower end that holds for all of them at once:
   of 66 pairs without any gain one or two have an interval above 0.

The draws keep the fitted models, so an interval is of these scores on new questions, not of models fitted again.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from interp import artifact
from interp.calibration.checked import (
    both_classes,
    concordant_pairs,
    group_codes,
    group_weights,
    logistic,
    same_rows,
    sigmoid,
    signal_matrix,
    zero_one,
)
from interp.calibration.ordering import auroc_interval
from interp.calibration.recalibration import read_kind
from interp.dataset import grouped_folds

FILE, FORMAT = "stacked_signals", 1
C = 1.0
"""Inverse strength of the L2 penalty on standardised signals."""
COLUMNS = ("kind", "a", "b", "auroc", "low", "high", "better", "gain", "gain_low", "gain_high", "low_all", "adds")
ALL = "all"
WRONG = "wrong is 1 where the answer was wrong, else 0"


@dataclass(frozen=True, eq=False)
class SignalStack:
    """A logistic regression over signals: P(wrong); made by `fit_stack`."""

    signals: tuple[str, ...]
    centre: tuple[float, ...]
    """Mean of the known values of each signal; stands in for those that were not measured."""
    scale: tuple[float, ...]
    """Their standard deviation; 1 for a constant signal."""
    weight: tuple[float, ...]
    """Log-odds for each standard deviation."""
    missing_weight: tuple[float, ...]
    """Log-odds added where the signal was not measured; 0 where the fit knew all values."""
    offset: float
    n: int
    """Rows of the fit."""

    def __call__(self, signals: Any) -> Float[np.ndarray, " row"]:
        """P(wrong) of each row. ValueError for a signal that is missing as a column, infinite or no number."""
        return self.of(signal_matrix(signals, self.signals, empty=True)[1])

    def of(self, values: Float[np.ndarray, "row signal"]) -> Float[np.ndarray, " row"]:
        """The same for a matrix of the signals in their order."""
        missing = np.isnan(values)
        z = np.where(missing, 0.0, (values - self.centre) / self.scale)
        logit = z @ np.array(self.weight) + missing @ np.array(self.missing_weight) + self.offset
        return sigmoid(logit)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; `from_dict` reads it."""
        names = ("signals", "centre", "scale", "weight", "missing_weight")
        return {**{name: list(getattr(self, name)) for name in names}, "offset": self.offset, "n": self.n}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "SignalStack":
        """The inverse of `to_dict`."""
        lists = ("signals", "centre", "scale", "weight", "missing_weight")
        return cls(*[tuple(values[name]) for name in lists], offset=values["offset"], n=values["n"])


@dataclass(frozen=True, eq=False)
class StackedSignals:
    """What signals say alone, in pairs and together about wrong answers; made by `stack_signals`."""

    frame: pd.DataFrame = field(repr=False)
    """A row for each model: kind (single, pair, all), a, b (signals), auroc with low and high, better (the better signal
    of it), gain over that with gain_low and gain_high (95 %), low_all (lower end for all pairs at once), adds (that is
    over 0; for all signals together, gain_low is)."""
    p_wrong: Float[np.ndarray, " row"] = field(repr=False)
    """P(wrong) of each row by the stack of all signals, from the fold that held the row out."""
    stack: SignalStack = field(repr=False)
    """All signals, fitted on all rows; for new rows."""
    card: dict[str, Any] = field(repr=False)
    """n, n_wrong, n_groups, n_folds, n_boot, seed, C."""
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """What was found, in a few sentences."""
        single = self.frame.loc[self.frame["kind"] == "single"].sort_values("auroc", ascending=False)
        best = single.iloc[0]
        head = (
            f"The best single signal is {best['a']}: AUROC {best['auroc']:.3f} (95 % {best['low']:.3f}-{best['high']:.3f}, "
            f"{self.card['n']} answers in {self.card['n_groups']} groups, {self.card['n_wrong']} wrong)"
        )
        head += "." if best["low"] > 0.5 else ", which is not told from chance."
        pairs = self.frame.loc[self.frame["kind"] == "pair"].sort_values("gain", ascending=False)
        if pairs.empty:
            return head
        sure = pairs.loc[pairs["adds"].astype(bool)]
        top = pairs.iloc[0]
        said = (
            f"{top['a']} with {top['b']} gains {top['gain']:+.3f} ({top['gain_low']:+.3f} to {top['gain_high']:+.3f})"
        )
        added = (
            f" {len(sure)} of {len(pairs)} pairs add to their better signal for sure; {said}, the most."
            if len(sure)
            else f" No pair of {len(pairs)} adds to its better signal by more than chance; {said}, the most."
        )
        together = self.frame.loc[self.frame["kind"] == ALL]
        if together.empty:
            return head + added
        row = together.iloc[0]
        return (
            f"{head}{added} All {len(self.stack.signals)} together: AUROC {row['auroc']:.3f}, {row['gain']:+.3f} over "
            f"{row['better']} ({row['gain_low']:+.3f} to {row['gain_high']:+.3f})."
        )

    def to_frame(self) -> pd.DataFrame:
        """The models, n beside them."""
        return self.frame.assign(n=self.card["n"], n_groups=self.card["n_groups"])

    def weights(self) -> pd.DataFrame:
        """Of the stack of all: signal, weight (log-odds for a standard deviation), missing_weight."""
        stack = self.stack
        return pd.DataFrame(
            {"signal": stack.signals, "weight": stack.weight, "missing_weight": stack.missing_weight}
        ).sort_values("weight", key=abs, ascending=False, ignore_index=True)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; `from_dict` reads it."""
        return {
            "frame": artifact.records(self.frame),
            "p_wrong": self.p_wrong.tolist(),
            "stack": self.stack.to_dict(),
            "card": self.card,
            "notes": list(self.notes),
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "StackedSignals":
        """The inverse of `to_dict`. ValueError for anything else."""
        try:
            frame = _typed(pd.DataFrame(values["frame"], columns=pd.Index(COLUMNS)))
            stack, p = SignalStack.from_dict(values["stack"]), np.array(values["p_wrong"], dtype=float)
            return cls(frame, p, stack, values["card"], tuple(values["notes"]))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"this describes no stacked signals ({error}): make them again") from None

    def save(self, path: str | os.PathLike[str]) -> Path:
        """One JSON file, whole or not at all."""
        made = {"kind": FILE, "format": FORMAT, "provenance": artifact.provenance(), "report": self.to_dict()}
        return artifact.write_json(path, made)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "StackedSignals":
        """Read what `save` wrote. ValueError for another kind of file or a newer format."""
        return cls.from_dict(read_kind(path, FILE, FORMAT)["report"])


def fit_stack(signals: Any, wrong: Any) -> SignalStack:
    """Logistic regression of `wrong` on all signals, L2 with C = 1 on standardised columns.

    Args:
        signals: a column for each signal, NaN where it was not measured.
        wrong: [n] 1 where the answer was wrong.

    Raises:
        ValueError: answers that are all right or all wrong, or signals that are no numbers.
    """
    names, values = signal_matrix(signals)
    same_rows(signals=signals, wrong=wrong)
    y = zero_one("wrong", wrong, len(values), WRONG)
    both_classes(y, "no signal can be weighed")
    return _fit(names, values, y)


def _fit(names: Sequence[str], values: Float[np.ndarray, "row signal"], y: Float[np.ndarray, " row"]) -> SignalStack:
    missing = np.isnan(values)
    known = (~missing).sum(0).clip(min=1)
    centre = np.where(missing, 0.0, values).sum(0) / known
    spread = np.sqrt(np.where(missing, 0.0, (values - centre) ** 2).sum(0) / known)
    scale = np.where(spread > 1e-12 * np.abs(centre).clip(min=1e-300), spread, 1.0)
    z = np.where(missing, 0.0, (values - centre) / scale)
    gaps = np.flatnonzero(missing.any(0))
    X = np.column_stack([z, missing[:, gaps], np.ones(len(y))])
    weight = logistic(X, y, np.append(np.full(X.shape[1] - 1, 1 / C), 0.0))[1]
    gap_weight = np.zeros(len(names))
    gap_weight[gaps] = weight[len(names) : -1]
    parts = (centre, scale, weight[: len(names)], gap_weight)
    return SignalStack(tuple(names), *[tuple(part.tolist()) for part in parts], offset=float(weight[-1]), n=len(y))


def out_of_fold(
    names: Sequence[str],
    values: Float[np.ndarray, "row signal"],
    y: Float[np.ndarray, " row"],
    folds: Sequence[Int[np.ndarray, " _part"]],
) -> Float[np.ndarray, " row"]:
    """P(wrong) of each row from a stack that was fitted without its fold."""
    p = np.empty(len(y))
    for part in folds:
        train = np.ones(len(y), dtype=bool)
        train[part] = False
        p[part] = _fit(names, values[train], y[train]).of(values[part])
    return p


def make_folds(
    codes: Int[np.ndarray, " row"], y: Float[np.ndarray, " row"], n_folds: int, seed: int
) -> list[Int[np.ndarray, " _part"]]:
    """Held-out rows of each fold. ValueError where groups of both classes do not reach."""
    try:
        return grouped_folds(codes.tolist(), n_folds, seed, labels=y.astype(int).tolist())
    except ValueError as error:
        raise ValueError(
            f"{len(y)} answers in {codes.max() + 1} groups, {int(y.sum())} of them wrong, make no {n_folds} folds: {error}"
        ) from None


def stack_signals(
    signals: Any, wrong: Any, *, groups: Any, n_folds: int = 5, n_boot: int = 1000, seed: int = 0
) -> StackedSignals:
    """How well each signal, each pair and all together rank wrong answers over right ones, on held-out groups.

    Args:
        signals: frame with a column for each signal; NaN where it was not measured. Which way a signal points is learnt.
        wrong: [n] 1 where the answer was wrong, else 0.
        groups: [n] which rows belong together, so that they stand in one fold; "rows" says that each row stands alone.
        n_folds: parts, each held out once.
        n_boot: draws of groups for the intervals.
        seed: of folds and draws.

    Raises:
        ValueError: answers that are all right or all wrong, too few groups for the folds, signals that are no numbers,
            pandas inputs whose indexes differ.
    """
    names, values = signal_matrix(signals)
    same_rows(signals=signals, wrong=wrong, groups=groups)
    y = zero_one("wrong", wrong, len(values), WRONG)
    both_classes(y, "no signal can be weighed")
    if isinstance(groups, str) and groups != "rows":
        raise ValueError(f'groups must be one entry for each row, or "rows", got {groups!r}')
    codes = group_codes(None if isinstance(groups, str) else groups, len(y))
    if n_boot < 100:
        raise ValueError(f"n_boot must be at least 100 for an interval, got {n_boot}")
    folds = make_folds(codes, y, n_folds, seed)
    sets: list[tuple[int, ...]] = [(k,) for k in range(len(names))]
    sets += combinations(range(len(names)), 2)
    if len(names) > 2:
        sets.append(tuple(range(len(names))))
    scores = np.stack([out_of_fold([names[k] for k in s], values[:, s], y, folds) for s in sets])
    point = _aurocs(scores, y, folds, np.ones((1, len(y))))[:, 0]
    chunks = group_weights(codes, n_boot, np.random.default_rng(seed))
    draws = np.concatenate([_aurocs(scores, y, folds, weights) for weights in chunks], axis=1)
    fewest = min(len(np.unique(codes[y == kind])) for kind in (0, 1))
    frame = _table(names, sets, point, draws, fewest)
    card = {"n": len(y), "n_wrong": int(y.sum()), "n_groups": int(codes.max()) + 1, "n_folds": n_folds}
    card |= {"n_boot": n_boot, "seed": seed, "C": C, "groups": "rows" if isinstance(groups, str) else "given"}
    return StackedSignals(frame, scores[-1], _fit(names, values, y), card, tuple(_notes(names, values, frame)))


def _aurocs(
    scores: Float[np.ndarray, "model row"],
    y: Float[np.ndarray, " row"],
    folds: Sequence[Int[np.ndarray, " _part"]],
    weights: Float[np.ndarray, "draw row"],
) -> Float[np.ndarray, "model draw"]:
    """AUROC over pairs of rows of one fold; NaN where a draw has no such pair."""
    found = np.empty((len(scores), len(weights)))
    for at, score in enumerate(scores):
        right, pairs = np.sum([concordant_pairs(score[f], y[f], weights[:, f]) for f in folds], axis=0)
        found[at] = np.divide(right, pairs, out=np.full(len(pairs), np.nan), where=pairs > 0)
    return found


def _table(
    names: Sequence[str],
    sets: Sequence[tuple[int, ...]],
    point: Float[np.ndarray, " model"],
    draws: Float[np.ndarray, "model draw"],
    fewest: int,
) -> pd.DataFrame:
    """The frame of `StackedSignals`; `fewest` groups hold the rarer of right and wrong rows."""
    draws = draws[:, ~np.isnan(draws).any(0)]
    better = np.array([max(s, key=lambda k: point[k]) for s in sets])
    gain, gain_draws = point - point[better], draws - draws[better]
    is_pair = np.array([len(s) == 2 for s in sets])
    low_all = np.full(len(sets), np.nan)
    if is_pair.any():
        low_all[is_pair] = _simultaneous(gain[is_pair], gain_draws[is_pair])
    # As `rank_signals` has it: without an error in any draw the percentiles would claim an AUROC of 1 for sure.
    low, high = zip(*(auroc_interval(float(at), row, fewest) for at, row in zip(point, draws)))
    gain_low, gain_high = np.quantile(gain_draws, (0.025, 0.975), axis=1)
    rows = []
    for at, chosen in enumerate(sets):
        kind = {1: "single", 2: "pair"}.get(len(chosen), ALL)
        a = ALL if kind == ALL else names[chosen[0]]
        row: dict[str, Any] = {"kind": kind, "a": a, "b": names[chosen[1]] if kind == "pair" else None}
        row |= {"auroc": point[at], "low": low[at], "high": high[at]}
        if kind != "single":
            row |= {"better": names[better[at]], "gain": gain[at], "gain_low": gain_low[at], "gain_high": gain_high[at]}
            row["adds"] = bool(low_all[at] > 0) if kind == "pair" else bool(gain_low[at] > 0)
            row["low_all"] = low_all[at]
        rows.append(row)
    return _typed(pd.DataFrame(rows, columns=pd.Index(COLUMNS)))


def _simultaneous(
    gain: Float[np.ndarray, " pair"], draws: Float[np.ndarray, "pair draw"]
) -> Float[np.ndarray, " pair"]:
    """Lower ends that hold for all pairs at once in 95 %: the largest standardised deviation of each draw decides."""
    centre, spread = draws.mean(1, keepdims=True), draws.std(1, keepdims=True)
    varies = spread[:, 0] > 0
    if not varies.any():
        return gain.copy()
    largest = ((draws - centre) / np.where(spread > 0, spread, 1.0))[varies].max(0)
    return gain - float(np.quantile(largest, 0.95)) * spread[:, 0]


def _typed(frame: pd.DataFrame) -> pd.DataFrame:
    """Words as objects with None, figures as floats with NaN: the same after a file as before."""
    words = ["kind", "a", "b", "better", "adds"]
    figures = [name for name in COLUMNS if name not in words]
    frame[figures] = frame[figures].astype(float)
    frame[words] = frame[words].astype(object).where(frame[words].notna(), None)
    return frame


def _notes(names: Sequence[str], values: Float[np.ndarray, "row signal"], frame: pd.DataFrame) -> list[str]:
    missing: Bool[np.ndarray, "row signal"] = np.isnan(values)
    notes = [
        f"{name} was not measured in {count} of {len(values)} answers: the mean stands there, beside a column that says so"
        for name, count in zip(names, missing.sum(0))
        if count
    ]
    for name, column in zip(names, values.T):
        known = column[~np.isnan(column)]
        if not len(known) or known.min() == known.max():
            notes.append(f"{name} has no two different values, so it can say nothing")
    n_pairs = frame["kind"].tolist().count("pair")
    if n_pairs > 1:
        notes.append(
            f"{n_pairs} pairs were looked at, so about {0.025 * n_pairs:.1f} gains without substance have an interval above 0; "
            "`adds` counts only those whose lower end for all pairs at once is above 0"
        )
    return notes
