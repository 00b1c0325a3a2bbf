"""The numbers behind a calibration report, as arrays: point figures, draws of the null, bootstrap draws.

Every calibration error here is a function of residuals y - p summed into cells: equal-width bins, bins of equal mass,
or the fine grid of smooth ECE. So one sparse matrix, the *basis* [row, cell], serves them all: a draw of the null is
(y' - p) @ basis, a bootstrap draw is (how often each group was drawn) @ (residuals of the groups @ basis).

Smooth ECE (Blasiok & Nakkiran 2023) is the integral of |residual * K_sigma|, K a Gaussian reflected at 0 and 1. Such a
convolution is diagonal in the cosine basis: coefficient k shrinks by exp(-(pi k sigma)^2 / 2). The bandwidth is the
fixed point smECE_sigma = sigma; smECE_sigma falls as sigma grows, so there is one.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
import scipy.fft
import scipy.sparse
from jaxtyping import Bool, Float, Int

from interp.bootstrap import wilson_interval

Interval = tuple[float, float]
"""Lower and upper end, 95 %."""

GRID = 512
"""Cells that carry the residuals of smooth ECE: 0.1 % from the exact integral at n = 50,000, 0.5 % at a million."""
HALVINGS = 12
"""Bisection steps for the bandwidth; the interpolation after them brings its error under 1e-6."""
CHUNK = 2**21
"""Most numbers in one working array."""
ERRORS = ("ece", "ece_mass", "smooth_ece")
BIN_COLUMNS = ("low", "high", "n", "confidence", "accuracy", "accuracy_low", "accuracy_high")


@dataclass(frozen=True, eq=False)
class Figures:
    """Probabilities and outcomes with their bins; `of` makes them, the methods read them."""

    p: Float[np.ndarray, " row"]
    y: Float[np.ndarray, " row"]
    n_bins: int
    width_bin: Int[np.ndarray, " row"]
    n_cells: int
    """n_bins + n_bins + GRID."""
    basis: scipy.sparse.csr_array
    """[row, cell]: which equal-width bin, which equal-mass bin, which grid cells."""

    @classmethod
    def of(cls, p: Float[np.ndarray, " row"], y: Float[np.ndarray, " row"], n_bins: int) -> "Figures":
        """Bins for checked p in [0, 1] and y in {0, 1}, float64."""
        n, rows = len(p), np.arange(len(p))
        width = equal_width_bins(p, n_bins)
        cell, share = _grid_cells(p)
        columns = np.stack([width, n_bins + equal_mass_bins(p, n_bins), 2 * n_bins + cell, 2 * n_bins + cell + 1])
        columns[3] = np.minimum(columns[3], 2 * n_bins + GRID - 1)
        values = np.stack([np.ones(n), np.ones(n), 1 - share, share])
        n_cells = 2 * n_bins + GRID
        basis = scipy.sparse.coo_array(
            (values.ravel(), (np.tile(rows, 4), columns.ravel())), shape=(n, n_cells)
        ).tocsr()
        return cls(p, y, n_bins, width, n_cells, basis)

    # ----------------------------------------------------------------------------------------------- point figures

    def errors(
        self, outcomes: Float[np.ndarray, "draw row"] | Bool[np.ndarray, "draw row"]
    ) -> dict[str, Float[np.ndarray, " draw"]]:
        """ece, ece_mass and smooth_ece of several sets of outcomes for these p."""
        return self._errors((outcomes - self.p) @ self.basis, np.full(len(outcomes), len(self.p)))

    def point(self) -> dict[str, float]:
        """The plug-in figures that are sums over rows."""
        errors = self.errors(self.y[None])
        means = {name: float(values.mean()) for name, values in self._row_values().items()}
        return {name: float(values[0]) for name, values in errors.items()} | means

    def bins(self) -> pd.DataFrame:
        """The equal-width bins that hold rows."""
        n = np.bincount(self.width_bin, minlength=self.n_bins)
        used = np.flatnonzero(n)
        n = n[used]
        accuracy = np.bincount(self.width_bin, self.y, minlength=self.n_bins)[used] / n
        low, high = wilson_interval(accuracy, n)
        confidence = np.bincount(self.width_bin, self.p, minlength=self.n_bins)[used] / n
        values = (used / self.n_bins, (used + 1) / self.n_bins, n, confidence, accuracy, low, high)
        return pd.DataFrame(dict(zip(BIN_COLUMNS, values)))

    def brier_parts(self) -> dict[str, float]:
        """Reliability, resolution, uncertainty and within_bin; brier = rel - res + unc + within."""
        n = np.bincount(self.width_bin, minlength=self.n_bins).clip(min=1)
        forecast = (np.bincount(self.width_bin, self.p, minlength=self.n_bins) / n)[self.width_bin]
        observed = (np.bincount(self.width_bin, self.y, minlength=self.n_bins) / n)[self.width_bin]
        base = self.y.mean()
        spread = self.p - forecast
        return {
            "reliability": float(((forecast - observed) ** 2).mean()),
            "resolution": float(((observed - base) ** 2).mean()),
            "uncertainty": float(base * (1 - base)),
            "within_bin": float((spread**2).mean() - 2 * (spread * (self.y - observed)).mean()),
        }

    def auroc(self, weights: Float[np.ndarray, "draw row"]) -> Float[np.ndarray, " draw"]:
        """P(p of a positive > p of a negative) + half of the ties, rows weighted; NaN where a draw has one class."""
        order = np.argsort(self.p, kind="stable")
        starts = np.flatnonzero(np.diff(self.p[order], prepend=-1.0))
        ordered = weights[:, order]
        positive = np.add.reduceat(ordered * self.y[order], starts, axis=1)
        negative = np.add.reduceat(ordered, starts, axis=1) - positive
        below = np.cumsum(negative, axis=1) - negative / 2
        pairs = positive.sum(1) * negative.sum(1)
        return np.divide((positive * below).sum(1), pairs, out=np.full(len(pairs), math.nan), where=pairs > 0)

    # ------------------------------------------------------------------------------------------------------- draws

    def null_bands(self, n_draws: int, rng: np.random.Generator) -> dict[str, Interval]:
        """Two-sided 95 % bands of the errors for y ~ Bernoulli(p).

        The data of a calibrated source are exchangeable with the draws, so the band is cut at ranks: of n_draws + 1
        equally likely places 95 % lie inside, for every n and every p.
        """
        if n_draws == 0:
            return {}
        n = len(self.p)
        parts = [self.errors(rng.random((size, n)) < self.p) for size in _sizes(n_draws, n + self.n_cells)]
        low, high = math.floor(0.025 * (n_draws + 1)), math.ceil(0.975 * (n_draws + 1))
        bands = {}
        for name in ERRORS:
            draws = np.sort(np.concatenate([part[name] for part in parts]))
            bands[name] = (float(draws[max(low, 1) - 1]), float(draws[min(high, n_draws) - 1]))
        return bands

    def intervals(
        self,
        groups: Int[np.ndarray, " row"],
        n_draws: int,
        rng: np.random.Generator,
        null_bands: dict[str, Interval],
    ) -> dict[str, Interval]:
        """95 % intervals from a bootstrap over groups 0 .. n_groups - 1.

        Means and AUROC: percentiles. The errors: mirrored at the estimate, and from 0 where the null band holds it
        (`CalibrationReport.ece_interval` says why).
        """
        if n_draws == 0:
            return {}
        draws = self._bootstrap(groups, n_draws, rng)
        point = self.point()
        intervals = {}
        for name, values in draws.items():
            values = values[np.isfinite(values)]
            if not len(values) or (name == "nll" and not math.isfinite(point["nll"])):
                continue
            low, high = (float(end) for end in np.quantile(values, (0.025, 0.975)))
            if name in ERRORS:
                low, high = max(2 * point[name] - high, 0.0), max(2 * point[name] - low, 0.0)
                if name in null_bands and point[name] <= null_bands[name][1]:
                    low = 0.0
            intervals[name] = (low, high)
        return intervals

    def _bootstrap(
        self, groups: Int[np.ndarray, " row"], n_draws: int, rng: np.random.Generator
    ) -> dict[str, Float[np.ndarray, " draw"]]:
        n_groups = int(groups.max()) + 1
        shape = (n_groups, len(groups))
        member = scipy.sparse.csr_array((np.ones(len(groups)), (groups, np.arange(len(groups)))), shape=shape)
        residuals = member @ self.basis.multiply((self.y - self.p)[:, None]).tocsr()
        sizes = member @ np.ones(len(groups))
        row_values = {name: member @ values for name, values in self._row_values().items() if np.isfinite(values).all()}
        parts: list[dict[str, np.ndarray]] = []
        for size in _sizes(n_draws, len(groups) + self.n_cells):
            drawn = rng.integers(n_groups, size=(size, n_groups)) + n_groups * np.arange(size)[:, None]
            weights = np.bincount(drawn.ravel(), minlength=size * n_groups).reshape(size, n_groups).astype(float)
            n = weights @ sizes
            part = self._errors(weights @ residuals, n)
            part |= {name: weights @ values / n for name, values in row_values.items()}
            parts.append(part | {"auroc": self.auroc(weights[:, groups])})
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _row_values(self) -> dict[str, Float[np.ndarray, " row"]]:
        """What the mean figures are means of."""
        with np.errstate(divide="ignore"):
            nll = -np.log(np.where(self.y == 1, self.p, 1 - self.p))
        return {"brier": (self.p - self.y) ** 2, "nll": nll, "mean_p": self.p, "mean_y": self.y}

    def _errors(
        self, sums: Float[np.ndarray, "draw cell"], n: Int[np.ndarray, " draw"] | Float[np.ndarray, " draw"]
    ) -> dict[str, Float[np.ndarray, " draw"]]:
        """The three calibration errors from residuals summed into the cells of the basis."""
        width, mass, grid = np.split(sums / n[:, None], [self.n_bins, 2 * self.n_bins], axis=1)
        return {"ece": np.abs(width).sum(1), "ece_mass": np.abs(mass).sum(1), "smooth_ece": smooth_ece(grid)}


def equal_width_bins(p: Float[np.ndarray, " row"], n_bins: int) -> Int[np.ndarray, " row"]:
    """Bin of each row: [k / n_bins, (k + 1) / n_bins), the last one closed."""
    edges = np.arange(1, n_bins) / n_bins
    return np.searchsorted(edges, p, side="right")


def equal_mass_bins(p: Float[np.ndarray, " row"], n_bins: int) -> Int[np.ndarray, " row"]:
    """Bin of each row by the middle of the ranks of its value: equal p share a bin, doubled rows change nothing."""
    _, value, count = np.unique(p, return_inverse=True, return_counts=True)
    twice_middle = 2 * np.cumsum(count) - count
    return (twice_middle * n_bins // (2 * len(p)))[value]


def smooth_ece(residuals: Float[np.ndarray, "draw grid"]) -> Float[np.ndarray, " draw"]:
    """The fixed point smECE_sigma = sigma of residuals / n that are summed into cells of a grid on [0, 1]."""
    n_cells = residuals.shape[1]
    wave = np.arange(n_cells)
    # Sharing a row between two cells smooths with a triangle one cell wide; dividing by its transform takes that back.
    coefficients = np.asarray(scipy.fft.dct(residuals, axis=1)) / np.sinc(wave / (2 * n_cells)) ** 2
    decay = -0.5 * (math.pi * wave) ** 2

    def at(sigma: Float[np.ndarray, " draw"]) -> Float[np.ndarray, " draw"]:
        damped = coefficients * np.exp(decay * sigma[:, None] ** 2)
        return np.abs(np.asarray(scipy.fft.idct(damped, axis=1))).sum(1)

    low, high = np.zeros(len(residuals)), np.ones(len(residuals))
    at_low, at_high = at(low), at(high)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        value = at(middle)
        above = value > middle
        low, at_low = np.where(above, middle, low), np.where(above, value, at_low)
        high, at_high = np.where(above, high, middle), np.where(above, at_high, value)
    over, under = at_low - low, high - at_high
    return low + (high - low) * np.divide(over, over + under, out=np.zeros_like(over), where=over + under > 0)


def _grid_cells(p: Float[np.ndarray, " row"]) -> tuple[Int[np.ndarray, " row"], Float[np.ndarray, " row"]]:
    """Left neighbour among the cell centres, and the share of the right one (beyond the outer centres: reflected)."""
    place = np.clip(p * GRID - 0.5, 0, GRID - 1)
    cell = np.floor(place).astype(np.int64)
    return cell, place - cell


def _sizes(n_draws: int, width: int) -> Iterator[int]:
    """Sizes of chunks of draws, each at most CHUNK numbers."""
    size = max(1, CHUNK // width)
    for start in range(0, n_draws, size):
        yield min(size, n_draws - start)
