"""Reliability as a reader sees it: the share of y = 1 beside p, in bins or as a smooth curve.

The curve is t + (kernel mean of y - p around t), so a calibrated source lies on the diagonal wherever its p lie; a kernel mean
of y alone would be drawn towards the middle at both ends. The kernel is the one of smooth ECE (Blasiok & Nakkiran 2023): a
Gaussian reflected at 0 and 1.
"""

from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from interp.bootstrap import wilson_interval
from interp.calibration.checked import group_codes, group_weights, probabilities, same_rows, zero_one
from interp.calibration.figures import BIN_COLUMNS, Figures, equal_mass_bins

NARROWEST, WIDEST = 0.02, 0.1
"""Bandwidths between which that of smooth ECE is taken: below, a curve follows single rows; above, it has no shape left."""
WAYS = ("width", "mass")


def reliability_bins(p: Any, y: Any, n_bins: int = 15, by: str = "width") -> pd.DataFrame:
    """Bins that hold rows: low, high, n, confidence (mean p), accuracy (mean y), accuracy_low, accuracy_high (Wilson, 95 %).

    Args:
        p: [n] probabilities.
        y: [n] 0/1.
        n_bins: how many; fewer where bins are empty, or where equal p fill several bins of equal mass.
        by: "width" for equal parts of 0 .. 1, "mass" for equal numbers of rows; those end halfway to the next bin.

    Raises:
        ValueError: as `calibration_report`, or an unknown way.
    """
    if by not in WAYS:
        raise ValueError(f"bins are made by {' or '.join(WAYS)}, got {by!r}")
    stated, outcomes = _checked(p, y)
    if n_bins < 1:
        raise ValueError(f"n_bins must be at least 1, got {n_bins}")
    if by == "width":
        return Figures.of(stated, outcomes, n_bins).bins()
    _, place = np.unique(equal_mass_bins(stated, n_bins), return_inverse=True)
    n = np.bincount(place)
    accuracy = np.bincount(place, outcomes) / n
    first, last = np.full(len(n), np.inf), np.full(len(n), -np.inf)
    np.minimum.at(first, place, stated)
    np.maximum.at(last, place, stated)
    edges = np.concatenate([[0.0], (last[:-1] + first[1:]) / 2, [1.0]])
    low, high = wilson_interval(accuracy, n)
    values = (edges[:-1], edges[1:], n, np.bincount(place, stated) / n, accuracy, low, high)
    return pd.DataFrame(dict(zip(BIN_COLUMNS, values)))


def reliability_curve(
    p: Any,
    y: Any,
    *,
    sigma: float | None = None,
    groups: Any = None,
    n_points: int = 101,
    n_boot: int = 200,
    seed: int = 0,
) -> pd.DataFrame:
    """A smooth reliability curve.

    Args:
        p: [n] probabilities.
        y: [n] 0/1.
        sigma: bandwidth in units of p; None for that of smooth ECE, within 0.02 to 0.1.
        groups: [n] which rows belong together; the bootstrap then draws groups.
        n_points: places on 0 .. 1.
        n_boot: bootstrap draws for the pointwise 95 % band; 0 for none.
        seed: of the draws.

    Returns:
        p (the place), observed (share of y = 1 there), density (of the rows' p, integrates to 1), low and high where there
        are draws. observed, low and high are NaN outside the rows' own p, and where less than one row is near (the
        kernel's weights at the place, of which a row right there has 1, sum to less).

    Raises:
        ValueError: as `calibration_report`; a bandwidth that is not above 0, under 2 places.
    """
    stated, outcomes = _checked(p, y)
    same_rows(p=p, y=y, groups=groups)
    codes = group_codes(groups, len(stated))
    if sigma is None:
        sigma = min(WIDEST, max(NARROWEST, Figures.of(stated, outcomes, 1).point()["smooth_ece"]))
    if not 0 < sigma < np.inf or n_points < 2 or n_boot < 0:
        raise ValueError(
            f"sigma must be above 0, n_points 2 or more and n_boot 0 or more, got {(sigma, n_points, n_boot)}"
        )
    at = np.linspace(0.0, 1.0, n_points)
    weights, residual = _kernel(stated, at, float(sigma)), outcomes - stated
    near = weights.sum(0) * float(sigma) * np.sqrt(2 * np.pi) >= 1
    half = 0.5 / (n_points - 1)  # the place nearest to the first row and that nearest to the last are inside
    near &= (at >= stated.min() - half) & (at <= stated.max() + half)
    frame = pd.DataFrame(
        {"p": at, "observed": _curve(weights.sum(0), residual @ weights, at), "density": weights.mean(0)}
    )
    if n_boot and int(codes.max()) > 0:
        rng = np.random.default_rng(seed)
        drawn = [
            _curve(part @ weights, (part * residual) @ weights, at)
            for part in group_weights(codes, n_boot, rng, n_points)
        ]
        whole = np.concatenate(drawn)
        ends = np.full((2, n_points), np.nan)
        known = near & np.isfinite(whole).any(0)
        ends[:, known] = np.nanquantile(whole[:, known], (0.025, 0.975), axis=0)
        frame["low"], frame["high"] = ends
    frame["observed"] = frame["observed"].where(near)
    return frame


def _checked(p: Any, y: Any) -> tuple[Float[np.ndarray, " row"], Float[np.ndarray, " row"]]:
    stated = probabilities("p", p)
    same_rows(p=p, y=y)
    return stated, zero_one("y", y, len(stated), "y is 1 where it came true, else 0")


def _kernel(
    p: Float[np.ndarray, " row"], at: Float[np.ndarray, " place"], sigma: float
) -> Float[np.ndarray, "row place"]:
    """Density of each row's reflected Gaussian at each place."""
    total = np.zeros((len(p), len(at)))
    for image in (p, -p, 2 - p):
        total += np.exp(-0.5 * ((at - image[:, None]) / sigma) ** 2)
    return total / (sigma * np.sqrt(2 * np.pi))


def _curve(
    mass: Float[np.ndarray, "*draw place"], gap: Float[np.ndarray, "*draw place"], at: Float[np.ndarray, " place"]
) -> Float[np.ndarray, "*draw place"]:
    """Observed share at each place, within 0 .. 1; NaN where there is no mass."""
    mean = np.divide(gap, mass, out=np.full_like(mass, np.nan), where=mass > 1e-12)
    return np.clip(at + mean, 0.0, 1.0)
