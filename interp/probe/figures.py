"""What is said about a probe: AUROC with a cluster-bootstrap interval, accuracy at a chosen threshold, Brier score.

Rows of a group rise and fall together, so whole groups are drawn with replacement (Field & Welsh 2007, "Bootstrapping
clustered data"). One set of draws serves every figure of a report: probes do not differ by the noise of the draws.

The fitted probes are held fixed, so the interval is that of these probes on other test rows. Near chance it is too narrow
for a test of chance: a fold's test rows are training rows of the other folds, which doubles the variance of a pooled
AUROC there (measured on data without a signal: it covers 1/2 in 75 to 92 % of the cases). The permuted labels go through
the same folds; their rank (`p_permuted`) is that test.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import expit

from interp.calibration.figures import Figures as Calibrated

LEVEL = 0.95
"""Share of the bootstrap distribution inside [low, high]."""
ENDS = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
"""Quantiles of the draws that are the interval."""
_BINS = 15  # of the binned errors, which are not asked for here
_CHUNK = 4_000_000  # numbers in one block of draws


@dataclass(frozen=True)
class Figure:
    """How well scores separate labels, on rows that neither the fit nor any choice saw."""

    auroc: float
    """P(score of a positive > score of a negative) + half the ties."""
    low: float
    """Lower end of the 95 % interval of the AUROC, groups resampled."""
    high: float
    """Upper end."""
    accuracy: float
    """Share of rows on the right side of the threshold."""
    brier: float
    """Mean squared difference of probability and label: 0 is perfect, a constant 1/2 gives 0.25."""
    n: int
    """Rows."""
    n_groups: int
    """Groups."""
    smooth_ece: float
    """Smooth calibration error of the probabilities (Blasiok & Nakkiran 2023): 0 is calibrated."""

    @classmethod
    def of_json(cls, values: Mapping[str, Any]) -> Any:
        """A figure as a file holds it. Files of before smooth ECE have none, which is NaN."""
        known: dict[str, Any] = {"smooth_ece": float("nan")}
        return cls(**known | dict(values))


def auroc(
    score: Float[np.ndarray, " row"], y: Int[np.ndarray, " row"], weight: Float[np.ndarray, "draw row"] | None = None
) -> Float[np.ndarray, " draw"]:
    """AUROC, ties counting one half, for each row of weights (once, unweighted, without them).

    A draw that has rows of one label only has no AUROC and gives NaN.
    """
    order = np.argsort(score, kind="stable")
    ordered = score[order]
    # Rows of equal score are one step of the curve.
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    counts = np.ones((1, len(score))) if weight is None else weight[:, order]
    positive = np.add.reduceat(counts * (y[order] == 1), starts, axis=1)
    negative = np.add.reduceat(counts * (y[order] == 0), starts, axis=1)
    below = np.cumsum(negative, axis=1) - negative / 2
    pairs = positive.sum(1) * negative.sum(1)
    return np.divide((positive * below).sum(1), pairs, out=np.full(len(counts), np.nan), where=pairs > 0)


@dataclass(frozen=True, eq=False)
class Resamples:
    """How often each group is drawn in each of the bootstrap's samples."""

    group: Int[np.ndarray, " row"]
    """Group of each row, numbered from 0."""
    counts: Int[np.ndarray, "draw group"]
    """Times that a group is drawn."""

    @classmethod
    def of(cls, group: Int[np.ndarray, " row"], n_boot: int, seed: int) -> "Resamples":
        """Draw as many groups as there are, with replacement, `n_boot` times."""
        if n_boot < 100:
            raise ValueError(f"n_boot={n_boot} is too few for a 95 % interval: use at least 100, better 1000")
        n = int(group.max()) + 1
        drawn = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=n_boot)
        return cls(group, drawn.astype(np.int32))

    def interval(self, score: Float[np.ndarray, " row"], y: Int[np.ndarray, " row"]) -> tuple[float, float]:
        """The 95 % percentile interval of the AUROC; NaN for rows of one label."""
        if (y == y[0]).all():
            return float("nan"), float("nan")
        low, high = np.nanquantile(self.drawn(score, y), ENDS)
        return float(low), float(high)

    def drawn(self, score: Float[np.ndarray, " row"], y: Int[np.ndarray, " row"]) -> Float[np.ndarray, " draw"]:
        """The AUROC of each draw; NaN for a draw of one label."""
        size = max(1, _CHUNK // len(y))
        blocks = [self.counts[i : i + size][:, self.group].astype(float) for i in range(0, len(self.counts), size)]
        return np.concatenate([auroc(score, y, block) for block in blocks])

    def figure(
        self, logit: Float[np.ndarray, " row"], y: Int[np.ndarray, " row"], guess: Bool[np.ndarray, " row"]
    ) -> Figure:
        """The figure of held-out log-odds and of the guesses at their threshold."""
        low, high = self.interval(logit, y)
        return Figure(
            auroc=float(auroc(logit, y)[0]),
            low=low,
            high=high,
            accuracy=float((guess == (y == 1)).mean()),
            brier=float(((expit(logit) - y) ** 2).mean()),
            n=len(y),
            n_groups=len(np.unique(self.group)),
            smooth_ece=smooth_error(expit(logit), y),
        )

    def take(self, rows: Int[np.ndarray, " taken"]) -> "Resamples":
        """The same draws for some of the rows."""
        return Resamples(self.group[rows], self.counts)


def smooth_error(p: Float[np.ndarray, " row"], y: Int[np.ndarray, " row"]) -> float:
    """Smooth calibration error of probabilities of the label 1."""
    return float(Calibrated.of(p, y.astype(float), _BINS).errors(y[None].astype(float))["smooth_ece"][0])


def best_threshold(logit: Float[np.ndarray, " row"], y: Int[np.ndarray, " row"]) -> float:
    """The log-odds threshold with the highest accuracy; of equally good ones the nearest to 0, an even chance."""
    order = np.argsort(logit, kind="stable")
    ordered, positive = logit[order], y[order] == 1
    cuts = np.r_[ordered[0] - 1.0, (ordered[1:] + ordered[:-1]) / 2, ordered[-1] + 1.0]
    # Cut i leaves the first i rows below: right are the negatives below and the positives above.
    right = np.r_[0, np.cumsum(~positive)] + positive.sum() - np.r_[0, np.cumsum(positive)]
    allowed = np.r_[True, ordered[1:] != ordered[:-1], True]  # a threshold cannot part equal scores
    right = np.where(allowed, right, -1)
    best = cuts[right == right.max()]
    return float(best[np.abs(best).argmin()])


def most_common(values: Iterable[str]) -> str:
    """The value that stands there most often; of equally frequent ones the first."""
    listed = list(values)
    return max(dict.fromkeys(listed), key=listed.count)
