"""Rows in order of falling confidence, and what their order says: risk among the top k, AURC, AUROC, for bootstrap draws.

Equal confidences are a *block*. A draw is how often each row counts, so that blocks, and not rows, are what is summed over;
the rows of a block come in no order, and what counts is the expectation over all of them.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from scipy.stats import t as student

from interp.bootstrap import Z95, wilson_interval
from interp.calibration.figures import CHUNK, Interval, weighted_auroc

CURVE = 400
"""Most points of a stored curve, spread evenly over coverage."""
CURVE_COLUMNS = ("coverage", "risk", "low", "high", "threshold", "n_answered")
LEAST_BOOT = 100
"""Fewest draws that bear a 95 % interval."""


@dataclass(frozen=True, eq=False)
class Blocks:
    """Rows and errors of each block of equal confidence, most confident first, for several draws; counted from the top."""

    n: Int[np.ndarray, "draw block"]
    """Rows in this block and before it."""
    wrong: Float[np.ndarray, "draw block"]
    """Errors among them."""
    weights: Float[np.ndarray, "draw row"]
    """How often each row was drawn, rows in order of falling confidence."""

    def aurc(self) -> Float[np.ndarray, " draw"]:
        """Mean over k of the expected risk among the top k.

        Inside a block with error share q the expected errors are E + q (k - n), E errors and n rows before it; divided by
        k and summed over the block that is q m + (E - q n) (H(n + m) - H(n)) with harmonic numbers H.
        """
        total, harmonic = self.n[:, -1], _harmonic(int(self.n.max()))
        before, share, errors = self._inside()
        steps = share * (self.n - before) + (errors - share * before) * (harmonic[self.n] - harmonic[before])
        return steps.sum(1) / total

    def aurc_optimal(self) -> Float[np.ndarray, " draw"]:
        """The same where all right rows come first: the sum over k > R of (k - R) / k, R rows right, divided by n."""
        total, wrong = self.n[:, -1], self.wrong[:, -1]
        right, harmonic = np.rint(total - wrong).astype(np.int64), _harmonic(int(self.n.max()))
        return (wrong - right * (harmonic[total] - harmonic[right])) / total

    def risks(self) -> Float[np.ndarray, "draw block"]:
        """Risk where the block and all before it are answered; NaN where a draw holds none of them."""
        return np.divide(self.wrong, self.n, out=np.full(self.n.shape, math.nan), where=self.n > 0)

    def risk_of(self, k: Int[np.ndarray, " draw"]) -> Float[np.ndarray, " draw"]:
        """Expected risk among the top k of each draw."""
        before, share, errors = self._inside()
        block = (self.n < k[:, None]).sum(1, keepdims=True)
        n, q, e = (np.take_along_axis(a, block, axis=1)[:, 0] for a in (before, share, errors))
        return (e + (k - n) * q) / k

    def coverage_of(self, risk: float) -> Float[np.ndarray, " draw"]:
        """Largest coverage that ends with a block and has at most this risk; 0 where there is none."""
        kept = np.where(self.wrong <= risk * self.n + 1e-9, self.n, 0)
        return kept.max(1) / self.n[:, -1]

    def _inside(self) -> tuple[Int[np.ndarray, "draw block"], np.ndarray, np.ndarray]:
        """Rows before each block, its share of errors, errors before it."""
        before, errors = (np.pad(a, ((0, 0), (1, 0)))[:, :-1] for a in (self.n, self.wrong))
        size = self.n - before
        share = np.divide(self.wrong - errors, size, out=np.zeros(size.shape), where=size > 0)
        return before, share, errors


@dataclass(frozen=True, eq=False)
class Sample:
    """Rows in order of falling confidence."""

    confidence: Float[np.ndarray, " row"]
    wrong: Float[np.ndarray, " row"]
    group: Int[np.ndarray, " row"]
    n_groups: int
    """Groups that are drawn, also those without a row here."""
    starts: Int[np.ndarray, " block"]
    """First row of each block of equal confidence."""

    @classmethod
    def of(cls, confidence: np.ndarray, right: np.ndarray, group: np.ndarray, n_groups: int | None = None) -> "Sample":
        """Sort rows."""
        order = np.argsort(-confidence, kind="stable")
        ranked = confidence[order].astype(float)
        starts = np.flatnonzero(np.concatenate([[True], ranked[1:] != ranked[:-1]]))
        total = int(group.max()) + 1 if n_groups is None else n_groups
        return cls(ranked, 1.0 - right[order], group[order].astype(np.int64), total, starts)

    def all_rows(self) -> Blocks:
        """Every row once."""
        return self.blocks(np.ones((1, len(self.wrong))))

    def blocks(self, weights: Float[np.ndarray, "draw row"]) -> Blocks:
        """Counts of weighted rows; weights are whole numbers."""
        n = np.cumsum(np.add.reduceat(weights, self.starts, axis=1), axis=1)
        wrong = np.cumsum(np.add.reduceat(weights * self.wrong, self.starts, axis=1), axis=1)
        return Blocks(np.rint(n).astype(np.int64), wrong, weights)

    def draws(self, n_boot: int, seed: int) -> Iterator[Blocks]:
        """Bootstrap draws of groups, a chunk at a time; equal seeds and groups give equal draws."""
        for weights in self.weights(group_draws(self.n_groups, n_boot, seed)):
            yield self.blocks(weights)

    def weights(self, counts: Int[np.ndarray, "draw group"]) -> Iterator[Float[np.ndarray, "some row"]]:
        """How often each row counts where groups are drawn so often, a chunk of draws at a time."""
        size = max(1, CHUNK // len(self.wrong))
        for start in range(0, len(counts), size):
            yield counts[start : start + size][:, self.group].astype(float)

    def auroc(self, weights: Float[np.ndarray, "draw row"] | None = None) -> Float[np.ndarray, " draw"]:
        """P(a right row has more confidence than a wrong one), ties half."""
        return weighted_auroc(
            self.confidence, 1 - self.wrong, np.ones((1, len(self.wrong))) if weights is None else weights
        )

    def fewest(self) -> int:
        """Groups that hold the rarer of right and wrong rows: what an AUROC's sampling noise hangs on."""
        return min(len(np.unique(self.group[self.wrong == kind])) for kind in (0, 1))

    def places(self) -> Int[np.ndarray, " point"]:
        """The blocks that are points of the curve: all, or the ends nearest to an even spread of coverage."""
        if len(self.starts) <= CURVE:
            return np.arange(len(self.starts))
        ends = np.append(self.starts[1:], len(self.wrong))
        wanted = np.linspace(ends[0], len(self.wrong), CURVE)
        return np.unique(np.searchsorted(ends, wanted).clip(max=len(ends) - 1))

    def curve(self, places: Int[np.ndarray, " point"], drawn: Float[np.ndarray, "draw point"]) -> pd.DataFrame:
        """Risk and interval at each of the places."""
        blocks = self.all_rows()
        n, risk = blocks.n[0, places], blocks.risks()[0, places]
        low, high = self.share_interval(risk, n, drawn)
        columns = (n / len(self.wrong), risk, low, high, self.confidence[self.starts[places]], n)
        return pd.DataFrame(dict(zip(CURVE_COLUMNS, columns)))

    def share_interval(
        self, share: Float[np.ndarray, " point"], k: Int[np.ndarray, " point"], drawn: Float[np.ndarray, "draw point"]
    ) -> tuple[Float[np.ndarray, " point"], Float[np.ndarray, " point"]]:
        """Wilson's interval of shares wrong among the top k, for as many independent rows as the draws say k are worth.

        The bootstrap alone says that none wrong of ten is 0 for sure. A share of 0 or 1 is given by so many trials as there
        are groups.
        """
        first = np.zeros(len(self.group), bool)
        first[np.unique(self.group, return_index=True)[1]] = True
        worth = np.cumsum(first)[k - 1].astype(float)
        known = np.isfinite(drawn)
        centred = np.where(known, drawn - share, 0.0)
        count = known.sum(0).clip(min=1)
        spread = (centred**2).sum(0) / count - (centred.sum(0) / count) ** 2
        few = self.n_groups / (self.n_groups - 1) * (student.ppf(0.975, self.n_groups - 1) / Z95) ** 2
        inside = (share > 0) & (share < 1) & (spread > 1e-12)
        by_draws = np.divide(share * (1 - share), few * spread, out=worth.copy(), where=inside)
        worth = np.where(inside, np.minimum(k, by_draws), worth)
        ends = np.array([wilson_interval(s, w) for s, w in zip(share.tolist(), worth.tolist())])
        # Of a share of 0 the lower end is 0 but for rounding.
        return np.minimum(ends[:, 0], share), np.maximum(ends[:, 1], share)


def group_draws(n_groups: int, n_boot: int, seed: int) -> Int[np.ndarray, "draw group"]:
    """How often each group is drawn."""
    drawn = np.random.default_rng(seed).multinomial(n_groups, np.full(n_groups, 1 / n_groups), size=n_boot)
    return drawn.astype(np.int32)


def widened(point: float, draws: Float[np.ndarray, " draw"], n: int, within: Interval = (0.0, 1.0)) -> Interval:
    """Percentile interval, its ends moved out as Student's is for n values (see `interp.bootstrap`)."""
    low, high = (float(end) for end in np.nanquantile(draws, (0.025, 0.975)))
    wider = float(student.ppf(0.975, n - 1)) / Z95 * math.sqrt(n / (n - 1))
    return max(point + wider * (low - point), within[0]), min(point + wider * (high - point), within[1])


def auroc_interval(point: float, draws: Float[np.ndarray, " draw"], fewest: int) -> Interval:
    """95 % interval of an AUROC whose rarer class is held by `fewest` groups.

    Where one group holds all of that class nothing is known of its sampling: 0 to 1. Where classes are parted completely no
    draw differs from another: Wilson's interval for so many trials.
    """
    if fewest < 2:
        return 0.0, 1.0
    if np.nanmax(draws) - np.nanmin(draws) < 1e-12:
        low, high = wilson_interval(point, float(fewest))
        return float(low), float(high)
    return widened(point, draws, fewest)


def check_draws(n_boot: int | Any, codes: Int[np.ndarray, " row"]) -> None:
    """ValueError where no interval can be made."""
    if isinstance(n_boot, bool) or not isinstance(n_boot, int | np.integer) or n_boot < LEAST_BOOT:
        raise ValueError(f"n_boot={n_boot} is too few for a 95 % interval: use at least {LEAST_BOOT}, better 1000")
    if int(codes.max()) == 0:
        raise ValueError(
            f"all {len(codes)} rows are one group, so their sampling cannot be seen: leave groups out, or add some"
        )


def _harmonic(n: int) -> Float[np.ndarray, " number"]:
    """H(0) .. H(n)."""
    return np.concatenate([[0.0], np.cumsum(1.0 / np.arange(1, n + 1))])
