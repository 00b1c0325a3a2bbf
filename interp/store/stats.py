"""Statistics of a site's rows that merge: count, mean, M2 and norms, for all rows and for typical rows.

A *typical* row is neither a special token, nor the first token of its text, nor an outlier: a norm over ten times the
median norm of the rows that are neither special nor first. The first token is a sink in most models; its norm can be
a hundred times that of the others, and then it alone decides a mean, a variance or a principal component.

1. Each shard computes count, mean and M2 (the sum of squared deviations) in float64.
2. Two parts merge by the update of Chan, Golub and LeVeque (1983), "Algorithms for computing the sample variance".
3. Norms go into a histogram with fixed bins, 128 to each doubling, so any two merge exactly; a quantile is then known
   within 0.3 %.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

OUTLIER_FACTOR = 10.0
"""A row is an outlier if its norm is over this many times the median norm."""
BINS_PER_OCTAVE = 128
_ZERO_BIN = -(1 << 40)
_ROWS_AT_ONCE = 256
"""Rows in float64 that stay in the processor's cache; one large copy costs more than the arithmetic on it."""

Rows = Float[Tensor, "row d"] | Float[np.ndarray, "row d"]


@dataclass(frozen=True, eq=False)
class NormHistogram:
    """How many rows have which norm. Bin b holds norms from 2^(b/128) up to 2^((b+1)/128); zero has its own bin."""

    bins: Int64[Tensor, " bin"]
    """Numbers of the bins that are not empty, ascending."""
    counts: Int64[Tensor, " bin"]
    """Rows in each."""

    @classmethod
    def of(cls, norms: Float[np.ndarray, " row"]) -> "NormHistogram":
        """Count norms, none of which may be negative, NaN or infinite."""
        positive = norms > 0
        index = np.full(len(norms), _ZERO_BIN, dtype=np.int64)
        index[positive] = np.floor(np.log2(norms[positive]) * BINS_PER_OCTAVE).astype(np.int64)
        bins, counts = np.unique(index, return_counts=True)
        return cls(torch.from_numpy(bins), torch.from_numpy(counts.astype(np.int64)))

    @property
    def count(self) -> int:
        """Number of rows."""
        return int(self.counts.sum())

    def merge(self, other: "NormHistogram") -> "NormHistogram":
        """The histogram of both sets of rows: exact, in any order."""
        bins, place = torch.cat([self.bins, other.bins]).unique(return_inverse=True)
        counts = torch.zeros_like(bins).index_add_(0, place, torch.cat([self.counts, other.counts]))
        return NormHistogram(bins, counts)

    def quantile(self, q: float) -> float:
        """The norm below which a share `q` of the rows lies. ValueError if there are no rows or q is not in 0 to 1."""
        if not 0.0 <= q <= 1.0:
            raise ValueError(f"a quantile lies between 0 and 1, got {q}")
        if not self.count:
            raise ValueError("there are no rows, so their norms have no quantiles")
        rank = q * (self.count - 1)
        cumulative = self.counts.cumsum(0)
        at = int(torch.searchsorted(cumulative, torch.tensor(rank), right=True))
        number = int(self.bins[at])
        if number == _ZERO_BIN:
            return 0.0
        below = int(cumulative[at - 1]) if at else 0
        inside = (rank - below + 0.5) / int(self.counts[at])
        return float(2.0 ** ((number + min(inside, 1.0)) / BINS_PER_OCTAVE))


@dataclass(frozen=True, eq=False)
class Moments:
    """Count, mean, squared deviations and norms of a set of rows."""

    count: int
    """Number of rows."""
    mean: Float64[Tensor, " d"]
    """Mean row; NaN where there are no rows, so that nothing takes it for a mean."""
    M2: Float64[Tensor, " d"]
    """Sum of squared deviations from the mean, for each dimension."""
    norms: NormHistogram
    """Euclidean norms of the rows."""

    @classmethod
    def of(
        cls,
        rows: Rows,
        norms: Float[np.ndarray, " row"] | None = None,
        chosen: Bool[np.ndarray, " row"] | None = None,
    ) -> "Moments":
        """Compute from rows, a block at a time, in float64.

        Args:
            rows: tensor or array [row d].
            norms: their norms, if they are known.
            chosen: which rows count, None for all.
        """
        rows = torch.as_tensor(rows)
        norms = row_norms(rows) if norms is None else norms
        chosen = np.ones(len(rows), dtype=bool) if chosen is None else chosen
        count, mean, M2 = 0, np.full(rows.shape[1], np.nan), np.zeros(rows.shape[1])
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            some = torch.from_numpy(chosen[start : start + _ROWS_AT_ONCE])
            block = rows[start : start + _ROWS_AT_ONCE][some].double().numpy()
            if len(block):
                block_mean = block.mean(axis=0)
                block -= block_mean
                block_M2 = np.einsum("rd,rd->d", block, block)
                count, mean, M2 = _combine(count, mean, M2, len(block), block_mean, block_M2)
        return cls(count, torch.from_numpy(mean), torch.from_numpy(M2), NormHistogram.of(norms[chosen]))

    def merge(self, other: "Moments") -> "Moments":
        """The moments of both sets of rows."""
        if self.mean.shape != other.mean.shape:
            raise ValueError(f"rows of width {len(self.mean)} and {len(other.mean)} do not merge")
        count, mean, M2 = _combine(self.count, self.mean, self.M2, other.count, other.mean, other.M2)
        return Moments(count, mean, M2, self.norms.merge(other.norms))

    @property
    def variance(self) -> Float64[Tensor, " d"]:
        """Population variance of each dimension, M2 / count. ValueError if there are no rows."""
        if not self.count:
            raise ValueError("there are no rows, so there is no variance")
        return self.M2 / self.count


def _combine(n_a: int, mean_a: Any, M2_a: Any, n_b: int, mean_b: Any, M2_b: Any) -> tuple[int, Any, Any]:
    """Chan's update, for numpy arrays and tensors alike."""
    n = n_a + n_b
    if not n_a or not n_b:
        return (n, mean_b, M2_b) if n_b else (n, mean_a, M2_a)
    delta = mean_b - mean_a
    return n, mean_a + delta * (n_b / n), M2_a + M2_b + delta * delta * (n_a * n_b / n)


@dataclass(frozen=True, eq=False)
class SiteStats:
    """Statistics of one site, of all rows and of typical rows."""

    all: Moments
    """Every row."""
    typical: Moments
    """Rows that are not special, not first in their text and not outliers."""
    outlier_norms: tuple[float | None, ...]
    """For each shard the norm over which a row is an outlier; None where that median is zero or of no row."""

    @property
    def left_out(self) -> int:
        """Rows that are not typical."""
        return self.all.count - self.typical.count

    @property
    def typical_norm(self) -> float:
        """Median norm of the typical rows, the unit of steering strengths. ValueError if there are none."""
        if not self.typical.count:
            raise ValueError(
                f"none of the {self.all.count} rows is typical (each is special, first in its text or an outlier): "
                "record more text, or other tokens"
            )
        return self.typical.norms.quantile(0.5)

    def merge(self, other: "SiteStats") -> "SiteStats":
        """The statistics of both sets of rows."""
        return SiteStats(
            self.all.merge(other.all), self.typical.merge(other.typical), self.outlier_norms + other.outlier_norms
        )


def row_norms(rows: Rows) -> Float64[np.ndarray, " row"]:
    """Euclidean norm of each row, accumulated in float64."""
    rows = torch.as_tensor(rows)
    norms = np.empty(len(rows))
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        block = rows[start : start + _ROWS_AT_ONCE].double().numpy()
        norms[start : start + _ROWS_AT_ONCE] = np.sqrt(np.einsum("rd,rd->r", block, block))
    return norms


def site_stats(
    rows: Float[Tensor, "row d"], ordinary: Bool[np.ndarray, " row"]
) -> tuple[SiteStats, Bool[np.ndarray, " row"]]:
    """Statistics of one shard's rows, and which rows are outliers.

    Args:
        rows: as they stand on the disk.
        ordinary: True where a row is neither special nor first in its text.

    Raises:
        ValueError: NaN or infinity in a row.
    """
    norms = row_norms(rows)
    if not np.isfinite(norms).all():
        raise ValueError(f"row {int(np.argmin(np.isfinite(norms)))} holds NaN or infinite values: it cannot be stored")
    median = float(np.median(norms[ordinary])) if ordinary.any() else 0.0
    threshold = OUTLIER_FACTOR * median if median else None
    outlier = norms > threshold if threshold is not None else np.zeros(len(norms), dtype=bool)
    typical = Moments.of(rows, norms, ordinary & ~outlier)
    rest = Moments.of(rows, norms, ~(ordinary & ~outlier))
    return SiteStats(typical.merge(rest), typical, (threshold,)), outlier
