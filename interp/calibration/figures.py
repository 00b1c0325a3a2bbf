"""The numbers behind a calibration report, as arrays: point figures, draws of the null, bootstrap draws.

Every calibration error here is a function of residuals y - p summed into cells: equal-width bins, bins of equal mass,
or the fine grid of smooth ECE. So one sparse matrix, the *basis* [row, cell], serves them all: a draw of the null is
(y' - p) @ basis, a bootstrap draw is (how often each group was drawn) @ (residuals of the groups @ basis).

Smooth ECE (Blasiok & Nakkiran 2023) is the integral of |residual * K_sigma|, K a Gaussian reflected at 0 and 1. Such a
convolution is diagonal in the cosine basis: coefficient k shrinks by exp(-(pi k sigma)^2 / 2). The bandwidth is the
fixed point smECE_sigma = sigma; smECE_sigma falls as sigma grows, so there is one.

Two errors are more than sums of residuals. The debiased L2 error (Kumar et al. 2019) takes from each squared gap of an
equal-mass bin what sampling alone puts there; the sweep (Roelofs et al. 2022) takes as many equal-mass bins as the data
bear, which every set of outcomes decides for itself.
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
SWEEP = 256
"""Most bins that the sweep tries. It goes that far only where the outcomes are all but sorted by p; there every bin is all
right or all wrong, and more bins change nothing."""
ERRORS = ("ece", "ece_mass", "smooth_ece", "l2_debiased", "ece_sweep")
"""Figures with a null band."""
MIRRORED = ("ece", "ece_mass", "smooth_ece")
"""Errors whose interval is mirrored at the estimate. That of `l2_debiased` is made from its square, and `ece_sweep` has none:
a bootstrap draw repeats rows, which changes how many bins it takes."""
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
    mass_n: Float[np.ndarray, " bin"]
    """Rows of each equal-mass bin."""
    mass_p: Float[np.ndarray, " bin"]
    """Sum of p in each of them."""

    @classmethod
    def of(cls, p: Float[np.ndarray, " row"], y: Float[np.ndarray, " row"], n_bins: int) -> "Figures":
        """Bins for checked p in [0, 1] and y in {0, 1}, float64."""
        n, rows = len(p), np.arange(len(p))
        width = equal_width_bins(p, n_bins)
        cell, share = _grid_cells(p)
        mass = equal_mass_bins(p, n_bins)
        columns = np.stack([width, n_bins + mass, 2 * n_bins + cell, 2 * n_bins + cell + 1])
        columns[3] = np.minimum(columns[3], 2 * n_bins + GRID - 1)
        values = np.stack([np.ones(n), np.ones(n), 1 - share, share])
        n_cells = 2 * n_bins + GRID
        basis = scipy.sparse.coo_array(
            (values.ravel(), (np.tile(rows, 4), columns.ravel())), shape=(n, n_cells)
        ).tocsr()
        mass_n, mass_p = (np.bincount(mass, weights, minlength=n_bins) for weights in (np.ones(n), p))
        return cls(p, y, n_bins, width, n_cells, basis, mass_n, mass_p)

    # ----------------------------------------------------------------------------------------------- point figures

    def errors(
        self, outcomes: Float[np.ndarray, "draw row"] | Bool[np.ndarray, "draw row"]
    ) -> dict[str, Float[np.ndarray, " draw"]]:
        """Every one of `ERRORS` for several sets of outcomes of these p; l2_debiased is NaN where no bin has two rows."""
        sums = (outcomes - self.p) @ self.basis
        gaps = sums[:, self.n_bins : 2 * self.n_bins]
        square = debiased_square(gaps, gaps + self.mass_p, np.broadcast_to(self.mass_n, gaps.shape))
        found = self._errors(sums, np.full(len(outcomes), len(self.p)))
        return found | {"l2_debiased": np.sqrt(np.maximum(square, 0.0)), "ece_sweep": self.sweep(outcomes)[0]}

    def sweep(
        self, outcomes: Float[np.ndarray, "draw row"] | Bool[np.ndarray, "draw row"]
    ) -> tuple[Float[np.ndarray, " draw"], Int[np.ndarray, " draw"]]:
        """ECE over as many equal-mass bins as keep the share of y = 1 from falling, and how many of them hold rows.

        Bins are added one at a time, and the first number of bins at which a bin lies below the one before it ends the
        sweep (equal shares may follow one another).
        """
        n = len(self.p)
        stated, count = np.unique(self.p, return_counts=True)
        ends = np.concatenate([[0], np.cumsum(count)])
        summed_p = np.concatenate([[0.0], np.cumsum(stated * count)])
        ordered = np.cumsum(outcomes[:, np.argsort(self.p, kind="stable")], axis=1, dtype=np.int64)
        summed_y = np.pad(ordered, ((0, 0), (1, 0)))[:, ends]
        error = np.abs(summed_y[:, -1] - summed_p[-1]) / n
        bins, going, cuts = np.ones(len(outcomes), np.int64), np.arange(len(outcomes)), np.array([0, len(stated)])
        for n_bins in range(2, min(len(stated), SWEEP) + 1):
            bin_of = (ends[1:] + ends[:-1]) * n_bins // (2 * n)
            now = np.concatenate([[0], np.flatnonzero(np.diff(bin_of)) + 1, [len(stated)]])
            if np.array_equal(now, cuts):
                continue
            cuts = now
            right = np.diff(summed_y[going[:, None], cuts], axis=1)
            rising = (np.diff(right / np.diff(ends[cuts]), axis=1) >= 0).all(1)
            going = going[rising]
            if not len(going):
                break
            error[going] = np.abs(right[rising] - np.diff(summed_p[cuts])).sum(1) / n
            bins[going] = len(cuts) - 1
        return error, bins

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
        return weighted_auroc(self.p, self.y, weights)

    # ------------------------------------------------------------------------------------------------------- draws

    def null_bands(self, n_draws: int, rng: np.random.Generator) -> dict[str, Interval]:
        """Two-sided 95 % bands of the errors for y ~ Bernoulli(p).

        The data of a calibrated source are exchangeable with the draws, so the band is cut at ranks: of n_draws + 1
        equally likely places 95 % lie inside, for every n and every p. That of `l2_debiased` starts at 0, where half of
        the draws are clipped, and has all its 5 % above.
        """
        if n_draws == 0:
            return {}
        n = len(self.p)
        parts = [self.errors(rng.random((size, n)) < self.p) for size in _sizes(n_draws, n + self.n_cells)]
        bands = {}
        for name in ERRORS:
            draws = np.concatenate([part[name] for part in parts])
            if np.isfinite(draws).all():
                bands[name] = band(draws, one_sided=name == "l2_debiased")
        return bands

    def intervals(
        self,
        groups: Int[np.ndarray, " row"],
        n_draws: int,
        rng: np.random.Generator,
        null_bands: dict[str, Interval],
    ) -> dict[str, Interval]:
        """95 % intervals from a bootstrap over groups 0 .. n_groups - 1.

        Means and AUROC: percentiles; Wilson's interval where no draw's AUROC differs from another. The errors: mirrored at
        the estimate, and from 0 where the null band holds it (`CalibrationReport.ece_interval` says why); `l2_debiased` only
        where rows stand alone.
        """
        if n_draws == 0:
            return {}
        draws = self._bootstrap(groups, n_draws, rng)
        squares = draws.pop("l2_square", None)
        point = self.point()
        intervals = {}
        if squares is not None:
            low, high = self._l2_interval(squares)
            held = "l2_debiased" in null_bands and point["l2_debiased"] <= null_bands["l2_debiased"][1]
            intervals["l2_debiased"] = (0.0 if held else low, high)
        for name, values in draws.items():
            values = values[np.isfinite(values)]
            if not len(values) or (name == "nll" and not math.isfinite(point["nll"])):
                continue
            low, high = (float(end) for end in np.quantile(values, (0.025, 0.975)))
            if name == "auroc" and np.ptp(values) < 1e-12:  # no draw differs, which so few groups cannot show for sure
                low, high = self._same_auroc(float(values[0]), groups)
            if name in MIRRORED:
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
        # The correction of the squared error takes rows as independent, and needs two in every bin.
        bins = member @ self.basis[:, self.n_bins : 2 * self.n_bins]
        right = member @ self.basis[:, self.n_bins : 2 * self.n_bins].multiply(self.y[:, None]).tocsr()
        debiased = n_groups == len(groups) and not (self.mass_n == 1).any()
        parts: list[dict[str, np.ndarray]] = []
        for size in _sizes(n_draws, len(groups) + self.n_cells):
            drawn = rng.integers(n_groups, size=(size, n_groups)) + n_groups * np.arange(size)[:, None]
            weights = np.bincount(drawn.ravel(), minlength=size * n_groups).reshape(size, n_groups).astype(float)
            n = weights @ sizes
            part = self._errors(weights @ residuals, n)
            part |= {name: weights @ values / n for name, values in row_values.items()}
            if debiased:
                gaps = weights @ residuals[:, self.n_bins : 2 * self.n_bins]
                part["l2_square"] = debiased_square(gaps, weights @ right, weights @ bins)
            parts.append(part | {"auroc": self.auroc(weights[:, groups])})
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _same_auroc(self, auroc: float, groups: Int[np.ndarray, " row"]) -> Interval:
        """Wilson's interval for so many trials as groups hold the rarer outcome; nothing is known from one such group."""
        fewest = min(len(np.unique(groups[self.y == kind])) for kind in (0, 1))
        low, high = wilson_interval(auroc, float(fewest)) if fewest > 1 else (0.0, 1.0)
        return float(low), float(high)

    def _l2_interval(self, squares: Float[np.ndarray, " draw"]) -> Interval:
        """Ends for `l2_debiased` from bootstrap draws of its square.

        To a draw the data are the truth, and the truth of the data is their plug-in square: the draws lie around that,
        as the debiased square of the data lies around the square that is sought.
        """
        gaps = self.basis[:, self.n_bins : 2 * self.n_bins].T @ (self.y - self.p)
        plug_in = float((gaps**2 / self.mass_n.clip(min=1)).sum() / len(self.p))
        point = float(debiased_square(gaps[None], gaps[None] + self.mass_p, self.mass_n[None])[0])
        low, high = (float(end) for end in np.quantile(squares, (0.025, 0.975)))
        return math.sqrt(max(point - (high - plug_in), 0.0)), math.sqrt(max(point - (low - plug_in), 0.0))

    def _row_values(self) -> dict[str, Float[np.ndarray, " row"]]:
        """What the mean figures are means of."""
        with np.errstate(divide="ignore"):
            nll = -np.log(np.where(self.y == 1, self.p, 1 - self.p))
        return {"brier": (self.p - self.y) ** 2, "nll": nll, "mean_p": self.p, "mean_y": self.y}

    def _errors(
        self, sums: Float[np.ndarray, "draw cell"], n: Int[np.ndarray, " draw"] | Float[np.ndarray, " draw"]
    ) -> dict[str, Float[np.ndarray, " draw"]]:
        """The calibration errors that are made of residuals summed into the cells of the basis."""
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


def band(draws: Float[np.ndarray, " draw"], *, one_sided: bool = False) -> Interval:
    """The 95 % band of draws of the null, cut at ranks; a one-sided band starts at 0."""
    ordered, n = np.sort(draws), len(draws)
    if one_sided:
        return 0.0, float(ordered[min(math.ceil(0.95 * (n + 1)), n) - 1])
    low, high = math.floor(0.025 * (n + 1)), math.ceil(0.975 * (n + 1))
    return float(ordered[max(low, 1) - 1]), float(ordered[min(high, n) - 1])


def debiased_square(
    gaps: Float[np.ndarray, "draw bin"], right: Float[np.ndarray, "draw bin"], n: Float[np.ndarray, "draw bin"]
) -> Float[np.ndarray, " draw"]:
    """Kumar et al.'s sum over bins of n_b / n [(conf - acc)^2 - acc (1 - acc) / (n_b - 1)], which may be negative.

    Args:
        gaps: sum of y - p of each bin.
        right: sum of y.
        n: rows. A bin with one row says nothing of its own noise and adds 0; NaN where all bins are so.
    """
    pairs, size = n >= 2, np.maximum(n, 2)
    accuracy = right / size
    terms = n * ((gaps / size) ** 2 - accuracy * (1 - accuracy) / (size - 1))
    total = np.where(pairs, terms, 0.0).sum(1) / n.sum(1)
    return np.where(pairs.any(1), total, math.nan)


def weighted_auroc(
    score: Float[np.ndarray, " row"], y: Float[np.ndarray, " row"], weights: Float[np.ndarray, "draw row"]
) -> Float[np.ndarray, " draw"]:
    """P(score of y = 1 > score of y = 0) + half of the ties, rows weighted; NaN where a draw has one class."""
    order = np.argsort(score, kind="stable")
    ranked, ordered = score[order], weights[:, order]
    starts = np.flatnonzero(np.concatenate([[True], ranked[1:] != ranked[:-1]]))
    positive = np.add.reduceat(ordered * y[order], starts, axis=1)
    negative = np.add.reduceat(ordered, starts, axis=1) - positive
    below = np.cumsum(negative, axis=1) - negative / 2
    pairs = positive.sum(1) * negative.sum(1)
    return np.divide((positive * below).sum(1), pairs, out=np.full(len(pairs), math.nan), where=pairs > 0)


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
