"""Which signal knows best that an answer is wrong? Signals of doubt side by side, and two of them against each other.

1. A signal is a column of numbers, higher = more doubtful: whoever passes it turns it that way round. A missing value (NaN)
   leaves its row out of that signal's figures, and is counted.
2. AUROC says how often a wrong answer has more doubt than a right one, AURC and excess AURC what answering only the least
   doubtful costs (`selective`).
3. All signals share the bootstrap draws of groups. Intervals of single signals overlap far more easily than signals are
   alike, since hard questions are hard for all of them: `compare_signals` gives the interval of the difference, on the rows
   that both have.
"""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from interp import artifact
from interp.calibration.checked import both_classes, group_codes, same_rows, signal_matrix, zero_one
from interp.calibration.ordering import Sample, auroc_interval, check_draws, group_draws, widened
from interp.calibration.selective import NOTHING

COLUMNS = ("signal", "auroc", "low", "high", "aurc", "excess_aurc", "n", "n_missing", "reliable", "note")
COMPARISON, FORMAT = "signal_comparison", 1
_WRONG = "wrong is 1 where the answer was wrong, else 0"


@dataclass(frozen=True)
class SignalComparison:
    """Two signals on the same answers; made by `compare_signals`."""

    a: str
    b: str
    auroc_a: float
    auroc_b: float
    difference: float
    """auroc_a - auroc_b."""
    low: float
    """95 % interval of the difference, both signals drawn together."""
    high: float
    n: int
    """Rows that have both signals."""
    n_missing: int
    """Rows that lack one of them."""
    n_wrong: int
    n_groups: int
    """Groups among the n rows."""

    @property
    def differs(self) -> bool:
        """The interval of the difference leaves out 0."""
        return self.low > 0 or self.high < 0

    @property
    def verdict(self) -> str:
        """One plain sentence."""
        head = f"AUROC of {self.a} {self.auroc_a:.3f}, of {self.b} {self.auroc_b:.3f} on the same {self.n} answers"
        tail = f"difference {self.difference:+.3f} ({self.low:+.3f} to {self.high:+.3f})"
        if self.differs:
            better, worse = (self.a, self.b) if self.difference > 0 else (self.b, self.a)
            return f"{head}: {better} ranks better than {worse}, {tail}."
        return f"{head}: which one ranks better cannot be told, {tail}."

    def to_frame(self) -> pd.DataFrame:
        """One row, a column for each field."""
        return pd.DataFrame([asdict(self)])

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        return asdict(self)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write one JSON file, atomically."""
        return artifact.write_json(path, {"kind": COMPARISON, "format": FORMAT, "comparison": self.to_dict()})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "SignalComparison":
        """Read what `save` wrote. ValueError for another kind of file, or one of a newer format."""
        card = artifact.read_json(path)
        if not isinstance(card, dict) or card.get("kind") != COMPARISON:
            raise ValueError(f"{path} holds no comparison of signals")
        if card.get("format") != FORMAT:
            raise ValueError(f"{path} has format {card.get('format')!r}, this version reads {FORMAT}: update interp")
        return cls(**card["comparison"])


def rank_signals(
    signals: pd.DataFrame | Mapping[str, Any] | Any,
    wrong: Any,
    *,
    groups: Any = None,
    n_boot: int | Any = 1000,
    seed: int = 0,
) -> pd.DataFrame:
    """Signals of doubt, the best one first.

    Args:
        signals: name -> [n] values, higher = more doubtful, NaN where there is none. Only the order of values counts.
        wrong: [n] 1 where the answer was wrong, else 0.
        groups: [n] which rows belong together (answers about one person); the bootstrap then draws groups.
        n_boot: draws, at least 100; all signals share them.
        seed: of the draws.

    Returns:
        A row for each signal: signal, auroc with low and high (95 %), aurc, excess_aurc, n (rows with a value), n_missing,
        reliable (the interval lies above one half), note (why a figure is missing, or
        that the signal is the wrong way round, else empty). A signal whose rows are all
        right or all wrong has no figures, says why, and comes last. The best of many signals looks better than it is: take
        its figure from other rows than those it was chosen on.

    Raises:
        ValueError: no signal, lengths or pandas indexes that differ, text or infinity, `wrong` that is not 0/1 or
            has one value, a single group.
    """
    names, values = signal_matrix(signals)
    same_rows(signals=signals, wrong=wrong, groups=groups)
    outcomes, codes = _checked(wrong, len(values), groups, n_boot)
    counts = group_draws(int(codes.max()) + 1, int(n_boot), seed)
    rows = [_ranked(name, column, outcomes, codes, counts) for name, column in zip(names, values.T)]
    frame = pd.DataFrame(rows, columns=pd.Index(COLUMNS))
    return frame.sort_values(["auroc", "signal"], ascending=[False, True], na_position="last", ignore_index=True)


def compare_signals(
    signals: pd.DataFrame | Mapping[str, Any] | Any,
    wrong: Any,
    a: str,
    b: str,
    *,
    groups: Any = None,
    n_boot: int | Any = 1000,
    seed: int = 0,
) -> SignalComparison:
    """Whether signal a ranks wrong answers better than b does, on the rows that have both.

    Args:
        signals, wrong, groups, n_boot, seed: as in `rank_signals`.
        a: name of a signal.
        b: name of another.

    Raises:
        ValueError: as in `rank_signals`; a name that is not there; no common rows, or all of them right or all wrong.
    """
    _, values = signal_matrix(signals, (a, b))
    same_rows(signals=signals, wrong=wrong, groups=groups)
    outcomes, codes = _checked(wrong, len(values), groups, n_boot)
    kept = ~np.isnan(values).any(1)
    if not kept.any():
        raise ValueError(f"no row has both {a!r} and {b!r}: there is nothing to compare them on")
    outcomes, codes = outcomes[kept], np.unique(codes[kept], return_inverse=True)[1]
    both_classes(outcomes, f"{a!r} and {b!r} cannot be compared on the rows that have both")
    check_draws(n_boot, codes)
    counts = group_draws(int(codes.max()) + 1, int(n_boot), seed)
    samples = [Sample.of(-column, 1 - outcomes, codes) for column in values[kept].T]
    found = [float(sample.auroc()[0]) for sample in samples]
    drawn = [_drawn(sample, counts) for sample in samples]
    difference, fewest = found[0] - found[1], samples[0].fewest()
    low, high = -1.0, 1.0
    if fewest > 1:  # with one wrong (or right) group nothing is known of the sampling
        low, high = widened(difference, drawn[0] - drawn[1], fewest, (-1.0, 1.0))
    if high - low < 1e-12 and difference != 0:
        # Both part their rows the same way in every draw, which so few groups cannot show to be no accident.
        low, high = -1.0, 1.0
    return SignalComparison(
        a, b, found[0], found[1], difference, low, high, len(outcomes), int((~kept).sum()), int(outcomes.sum()),
        int(codes.max()) + 1,
    )  # fmt: skip


def _checked(
    wrong: Any, n: int, groups: Any, n_boot: int | Any
) -> tuple[Float[np.ndarray, " row"], Int[np.ndarray, " row"]]:
    outcomes, codes = zero_one("wrong", wrong, n, _WRONG), group_codes(groups, n)
    both_classes(outcomes, NOTHING)
    check_draws(n_boot, codes)
    return outcomes, codes


def _ranked(
    name: str,
    values: Float[np.ndarray, " row"],
    wrong: Float[np.ndarray, " row"],
    codes: Int[np.ndarray, " row"],
    counts: Int[np.ndarray, "draw group"],
) -> dict[str, Any]:
    """One row of the table."""
    known: Bool[np.ndarray, " row"] = ~np.isnan(values)
    n, missing = int(known.sum()), int((~known).sum())
    row: dict[str, Any] = {"signal": name, "n": n, "n_missing": missing, "reliable": False, "note": ""}
    figures = ("auroc", "low", "high", "aurc", "excess_aurc")
    if n == 0 or len(np.unique(wrong[known])) == 1:
        kind = (
            "no row has a value"
            if n == 0
            else f"all {n} rows that have a value are {'wrong' if wrong[known][0] else 'right'}"
        )
        return row | dict.fromkeys(figures, np.nan) | {"note": kind}
    sample = Sample.of(-values[known], 1 - wrong[known], codes[known], counts.shape[1])
    whole, auroc = sample.all_rows(), float(sample.auroc()[0])
    low, high = auroc_interval(auroc, _drawn(sample, counts), sample.fewest())
    aurc = float(whole.aurc()[0])
    found = (auroc, low, high, aurc, aurc - float(whole.aurc_optimal()[0]))
    note = "ranks the wrong way round: turn its sign" if high < 0.5 else ""
    return row | dict(zip(figures, found)) | {"reliable": low > 0.5, "note": note}


def _drawn(sample: Sample, counts: Int[np.ndarray, "draw group"]) -> Float[np.ndarray, " draw"]:
    """AUROC of each draw; NaN where a draw has one class."""
    return np.concatenate([sample.auroc(weights) for weights in sample.weights(counts)])
