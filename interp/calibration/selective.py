"""Answering only when confident: risk against coverage, and how far the order of confidence is from the best one.

1. Rows are put in order of falling confidence. Equal confidences stay together: no threshold can part them, and inside such a
   block the *expected* risk over its orders counts, so the order of the input changes nothing.
2. *AURC* is the mean over k = 1 .. n of the risk (share wrong) among the k most confident rows (Geifman & El-Yaniv 2017). The
   best order of the same answers, all right ones first, has AURC* > 0 wherever something is wrong, so AURC alone tells little:
   *excess AURC* = AURC - AURC* (Geifman et al. 2019). AURC* is computed exactly for n. As n grows it falls to
   r + (1 - r) ln(1 - r), r the share wrong, which the literature often writes instead; at finite n it is larger by about
   r / 2n. A random order has AURC = r for every n.
3. Intervals come from a bootstrap over rows, or over groups where rows belong together.

AURC is a mean over the ranks of n rows: doubling every row changes it a little (by O(1/n)), unlike AUROC.
"""

import dataclasses
import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from interp import artifact
from interp.calibration.checked import both_classes, group_codes, same_rows, vector, zero_one
from interp.calibration.figures import Interval
from interp.calibration.ordering import CURVE_COLUMNS, Sample, auroc_interval, check_draws, widened

REPORT, FORMAT = "selective_report", 1
ROW_COLUMNS = ("confidence", "right", "group")
NOTHING = "there is nothing to rank (check the grader)"
"""Of answers that are all right or all wrong."""


class Estimate(NamedTuple):
    """A figure with its 95 % interval, and the threshold that gives it."""

    value: float
    low: float
    high: float
    threshold: float | None
    """Answer where confidence is at least this; None where nothing may be answered."""


@dataclass(frozen=True)
class SelectiveReport:
    """How well a confidence sorts right from wrong answers; made by `selective_report`."""

    n: int
    n_wrong: int
    n_groups: int
    """Groups that the bootstrap draws; n where rows stand alone."""
    aurc: float
    """Mean risk over all coverages, [0, 1], 0 is best; of a random order the share wrong."""
    excess_aurc: float
    """AURC less that of the best order of these answers: 0 is a perfect order."""
    auroc: float
    """P(a right answer has more confidence than a wrong one), ties half."""
    intervals: dict[str, Interval] = field(hash=False)
    """95 % by figure: aurc, excess_aurc, aurac, auroc."""
    curve: pd.DataFrame = field(compare=False)
    """coverage, risk, low, high, threshold, n_answered: a row for each threshold, at most 400 of them, all-answered last."""
    rows: pd.DataFrame = field(compare=False, repr=False)
    """confidence, right, group of every row: what `risk_at` and `coverage_at` draw from."""
    n_boot: int
    seed: int

    @property
    def error_rate(self) -> float:
        """Share of wrong answers, the risk at coverage 1, and the AURC of a random order."""
        return self.n_wrong / self.n

    @property
    def aurc_optimal(self) -> float:
        """AURC of the best order of these very answers, all right ones first."""
        return self.aurc - self.excess_aurc

    @property
    def aurac(self) -> float:
        """Mean accuracy over all coverages, 1 - AURC. Farquhar et al. 2024 average it over 20 coverages instead."""
        return 1 - self.aurc

    def risk_at(self, coverage: float) -> Estimate:
        """Risk among the most confident share `coverage` of the rows, rounded up to whole rows; ties as expected risk.

        Raises:
            ValueError: coverage outside (0, 1].
        """
        if not 0 < coverage <= 1:
            raise ValueError(f"coverage is the share of rows that are answered, over 0 up to 1, got {coverage}")
        sample = self._sample()
        k = max(1, math.ceil(coverage * self.n - 1e-9))
        value = float(sample.all_rows().risk_of(np.array([k]))[0])
        parts = []
        for draw in sample.draws(self.n_boot, self.seed):
            parts.append(draw.risk_of(np.maximum(np.ceil(coverage * draw.n[:, -1] - 1e-9), 1).astype(np.int64)))
        low, high = sample.share_interval(np.array([value]), np.array([k]), np.concatenate(parts)[:, None])
        return Estimate(value, float(low[0]), float(high[0]), float(sample.confidence[k - 1]))

    def coverage_at(self, risk: float) -> Estimate:
        """The largest coverage whose risk on these rows is at most `risk`; 0, without a threshold, where none is.

        The threshold is chosen on the rows that it is judged on, so on new rows its risk is larger about as often as not: a
        gate with a guarantee needs calibration rows of its own.

        Raises:
            ValueError: risk outside [0, 1).
        """
        if not 0 <= risk < 1:
            raise ValueError(f"risk is the accepted share of wrong answers, from 0 to under 1, got {risk}")
        sample = self._sample()
        blocks = sample.all_rows()
        value = float(blocks.coverage_of(risk)[0])
        drawn = np.concatenate([draw.coverage_of(risk) for draw in sample.draws(self.n_boot, self.seed)])
        low, high = (float(end) for end in np.quantile(drawn, (0.025, 0.975)))
        answered = round(value * self.n)
        threshold = float(sample.confidence[answered - 1]) if answered else None
        return Estimate(value, min(low, value), max(high, value), threshold)

    @property
    def verdict(self) -> str:
        """Two plain sentences."""
        low, high = self.intervals["auroc"]
        head = (
            f"AURC {self.aurc:.3f} (n = {self.n}, {self.n_wrong} wrong); the best order of these answers has "
            f"{self.aurc_optimal:.3f}, a random one {self.error_rate:.3f}. AUROC {self.auroc:.3f} ({low:.3f} to {high:.3f})"
        )
        if low > 0.5:
            return f"{head}: right answers are given with more confidence than wrong ones."
        if high < 0.5:
            return f"{head}: wrong answers are given with more confidence than right ones; is the confidence the right way up?"
        return f"{head}: cannot be told from chance, and an AUROC under {high:.2f} would not show at this n."

    def to_frame(self) -> pd.DataFrame:
        """A row per figure: figure, value, low, high, n, n_wrong, n_groups."""
        names = ("aurc", "excess_aurc", "aurac", "auroc")
        rows = [(name, getattr(self, name), *self.intervals[name]) for name in names]
        frame = pd.DataFrame(rows, columns=pd.Index(["figure", "value", "low", "high"]))
        return frame.assign(n=self.n, n_wrong=self.n_wrong, n_groups=self.n_groups)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dictionary; `from_dict` reads it back."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        values["intervals"] = {name: list(ends) for name, ends in self.intervals.items()}
        return values | {name: getattr(self, name).to_dict(orient="list") for name in ("curve", "rows")}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "SelectiveReport":
        """The inverse of `to_dict`.

        Raises:
            ValueError: missing or unknown keys.
        """
        known = {f.name for f in dataclasses.fields(cls)}
        if set(values) != known:
            raise ValueError(f"not a selective report: missing or unknown keys {sorted(set(values) ^ known)}")
        rest = dict(values)
        rest["intervals"] = {name: (ends[0], ends[1]) for name, ends in rest["intervals"].items()}
        for name, columns in (("curve", CURVE_COLUMNS), ("rows", ROW_COLUMNS)):
            rest[name] = pd.DataFrame(rest[name], columns=pd.Index(columns))
        return cls(**rest)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write one JSON file, atomically."""
        card = {"kind": REPORT, "format": FORMAT, "provenance": artifact.provenance(), "report": self.to_dict()}
        return artifact.write_json(path, card)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "SelectiveReport":
        """Read what `save` wrote. ValueError for another kind of file, or one of a newer format."""
        card = artifact.read_json(path)
        if not isinstance(card, dict) or card.get("kind") != REPORT:
            raise ValueError(f"{path} holds no selective report")
        if card.get("format") != FORMAT:
            raise ValueError(f"{path} has format {card.get('format')!r}, this version reads {FORMAT}: update interp")
        return cls.from_dict(card["report"])

    def _sample(self) -> "Sample":
        confidence, right, group = (self.rows[name].to_numpy() for name in ROW_COLUMNS)
        return Sample.of(confidence, right, group)


def selective_report(
    *, confidence: Any, y: Any, groups: Any = None, n_boot: int | Any = 1000, seed: int = 0
) -> SelectiveReport:
    """Risk against coverage of answers that are given only where confidence is high.

    Args:
        confidence: [n] any finite numbers, higher = more sure; only their order counts. Of an uncertainty pass the negative.
        y: [n] 1 where the answer was right, else 0.
        groups: [n] which rows belong together; the bootstrap then draws groups.
        n_boot: bootstrap draws, at least 100.
        seed: of the draws.

    Raises:
        ValueError: lengths or pandas indexes that differ, NaN or infinity, y that is not 0/1 or has one value only,
            a single group.
    """
    score = vector("confidence", confidence)
    same_rows(confidence=confidence, y=y, groups=groups)
    if not np.isfinite(score).all():
        raise ValueError(f"confidence is infinite in row {int(np.argmin(np.isfinite(score)))}: give finite numbers")
    right = zero_one("y", y, len(score), "y is 1 where the answer was right, else 0")
    codes = group_codes(groups, len(score))
    both_classes(1 - right, NOTHING)
    check_draws(n_boot, codes)
    sample = Sample.of(score, right, codes)
    whole = sample.all_rows()
    aurc, best, auroc = float(whole.aurc()[0]), float(whole.aurc_optimal()[0]), float(sample.auroc()[0])
    drawn: dict[str, list[np.ndarray]] = {"aurc": [], "excess_aurc": [], "auroc": []}
    places, risks = sample.places(), []
    for draw in sample.draws(n_boot, seed):
        found = draw.aurc()
        drawn["aurc"].append(found)
        drawn["excess_aurc"].append(found - draw.aurc_optimal())
        drawn["auroc"].append(sample.auroc(draw.weights))
        risks.append(draw.risks()[:, places])
    draws = {name: np.concatenate(parts) for name, parts in drawn.items()}
    n_groups = int(codes.max()) + 1
    intervals = {"aurc": widened(aurc, draws["aurc"], n_groups)}
    intervals["excess_aurc"] = widened(aurc - best, draws["excess_aurc"], n_groups)
    intervals["aurac"] = (1 - intervals["aurc"][1], 1 - intervals["aurc"][0])
    intervals["auroc"] = auroc_interval(auroc, draws["auroc"], sample.fewest())
    return SelectiveReport(
        n=len(score),
        n_wrong=int((1 - right).sum()),
        n_groups=n_groups,
        aurc=aurc,
        excess_aurc=aurc - best,
        auroc=auroc,
        intervals=intervals,
        curve=sample.curve(places, np.concatenate(risks)),
        rows=pd.DataFrame(dict(zip(ROW_COLUMNS, (score, right.astype(int), codes)))),
        n_boot=n_boot,
        seed=seed,
    )
