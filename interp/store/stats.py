"""Statistics of a site's rows that merge: count, mean, M2 and norms, for all rows and for typical rows.

A *typical* row is neither a special token, nor the first token of its text, nor an outlier: a norm over ten times the
median norm of the rows that are neither special nor first. The first token is a sink in most models; its norm can be
a hundred times that of the others, and then it alone decides a mean, a variance or a principal component. Where a shard
has averages of tokens beside single tokens, the averages are not typical: they would count their tokens twice.

1. Each shard computes count, mean and M2 (the sum of squared deviations) in float64, in one pass over its rows:
   deviations are taken from the mean of a few rows, which is near enough for their squares to lose nothing. Outliers
   are known only after the pass, so the few blocks that hold one are summed again.
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
_BLOCK = 32_000
"""Numbers in float64 that are worked on at a time. They stay in the processor's cache; and torch leaves fewer than
32,768 to the thread that asks, so a writer beside a forward pass takes no core from it."""
_SAMPLE_ROWS = 64
"""Rows whose mean deviations are taken from."""

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
    def of(cls, rows: Rows, chosen: Bool[np.ndarray, " row"] | None = None) -> "Moments":
        """Compute from rows, a block at a time, in float64.

        Args:
            rows: tensor or array [row d].
            chosen: which rows count, None for all.
        """
        rows = torch.as_tensor(rows)
        if chosen is not None:
            rows = rows[torch.from_numpy(np.flatnonzero(chosen))]
        every = np.ones(len(rows), dtype=bool)
        centre = _near_mean(rows, every)
        norms, sums = _sweep(rows, every, centre)
        return cls._of_sums(centre, sums, norms)

    @classmethod
    def _of_sums(
        cls, centre: Float64[Tensor, " d"], sums: Float64[Tensor, "2 block d"], norms: Float64[np.ndarray, " row"]
    ) -> "Moments":
        """From what `_sweep` gave; the norms are those of the rows that count."""
        count, (first, second) = len(norms), sums.sum(1)
        if not count:
            return cls(0, torch.full_like(centre, torch.nan), torch.zeros_like(centre), NormHistogram.of(norms))
        # Of equal rows the difference is zero but for rounding, which may fall below.
        M2 = (second - first * first / count).clamp_min(0.0)
        return cls(count, centre + first / count, M2, NormHistogram.of(norms))

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
    """Rows that are not special, not first in their text and not outliers; averages only where there is nothing else."""
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
    norms = torch.empty(len(rows), dtype=torch.float64)
    for part in _blocks(rows):
        _norms(rows[part].double(), norms[part])
    return norms.numpy()


def site_stats(
    rows: Float[Tensor, "row d"], ordinary: Bool[np.ndarray, " row"]
) -> tuple[SiteStats, Bool[np.ndarray, " row"], Float64[np.ndarray, " row"]]:
    """Statistics of one shard's rows, which rows are outliers, and the norm of each row.

    Args:
        rows: as they stand on the disk.
        ordinary: True where a row is neither special nor first in its text, nor an average beside single tokens.

    Raises:
        ValueError: NaN or infinity in a row.
    """
    centre = _near_mean(rows, ordinary)
    norms, sums = _sweep(rows, ordinary, centre)
    if not np.isfinite(norms).all():
        raise ValueError(f"row {int(np.argmin(np.isfinite(norms)))} holds NaN or infinite values: it cannot be stored")
    median = float(np.median(norms[ordinary])) if ordinary.any() else 0.0
    threshold = OUTLIER_FACTOR * median if median else None
    outlier = norms > threshold if threshold is not None else np.zeros(len(norms), dtype=bool)
    chosen = ordinary & ~outlier
    for block, part in enumerate(_blocks(rows)):
        if (ordinary[part] & outlier[part]).any():
            sums[:, block] = _sweep(rows[part], chosen[part], centre)[1][:, 0]
    typical = Moments._of_sums(centre, sums, norms[chosen])
    return SiteStats(typical.merge(Moments.of(rows, ~chosen)), typical, (threshold,)), outlier, norms


def _blocks(rows: Rows) -> list[slice]:
    """The rows in pieces of about `_BLOCK` numbers."""
    size = max(1, _BLOCK // max(1, rows.shape[1]))
    return [slice(start, start + size) for start in range(0, len(rows), size)]


def _near_mean(rows: Float[Tensor, "row d"], chosen: Bool[np.ndarray, " row"]) -> Float64[Tensor, " d"]:
    """The mean of a few of the chosen rows, evenly spread, without outliers: zeros if none is chosen.

    It is rounded to float32, so that rows which are all equal deviate by exactly zero.
    """
    d = rows.shape[1]
    at = np.flatnonzero(chosen)
    if not len(at):
        return torch.zeros(d, dtype=torch.float64)
    most = min(_SAMPLE_ROWS, max(1, _BLOCK // max(1, d)))
    few = rows[torch.from_numpy(at[:: -(-len(at) // most)])].double()
    norms = torch.linalg.vector_norm(few, dim=1)
    return few[norms <= OUTLIER_FACTOR * norms.median()].mean(0).float().double()


def _norms(wide: Float64[Tensor, "row d"], out: Float64[Tensor, " row"]) -> None:
    """Norm of each row of a block."""
    if wide.numel() <= _BLOCK:
        torch.linalg.vector_norm(wide, dim=1, out=out)
    else:  # one long row, of which each thread of torch would add a part, so that their number would decide the last bit
        out.copy_(torch.from_numpy(np.einsum("rd,rd->r", wide.numpy(), wide.numpy()))).sqrt_()


def _sweep(
    rows: Float[Tensor, "row d"], chosen: Bool[np.ndarray, " row"], centre: Float64[Tensor, " d"]
) -> tuple[Float64[np.ndarray, " row"], Float64[Tensor, "2 block d"]]:
    """Norms of all rows; for each block the sum, and the sum of squares, of the chosen rows' deviations from `centre`."""
    parts = _blocks(rows)
    norms = torch.empty(len(rows), dtype=torch.float64)
    sums = torch.empty(2, len(parts), rows.shape[1], dtype=torch.float64)
    buffer = torch.empty(len(rows[parts[0]]) if parts else 0, rows.shape[1], dtype=torch.float64)
    for part, first, second in zip(parts, *sums.unbind(), strict=True):
        some = rows[part]
        wide = buffer.copy_(some) if len(some) == len(buffer) else buffer[: len(some)].copy_(some)
        _norms(wide, norms[part])
        wide.sub_(centre)
        if not (counted := chosen[part]).all():
            wide.index_fill_(0, torch.from_numpy(np.flatnonzero(~counted)), 0.0)
        torch.sum(wide, 0, out=first)
        torch.sum(wide.square_(), 0, out=second)
    return norms.numpy(), sums
