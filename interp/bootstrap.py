"""95 % percentile bootstrap intervals of means and of ratios of sums.

What is drawn again is what was drawn in the first place: texts, sequences, prompt pairs, never the tokens within them. All
lines share the draws, so differences between lines are steadier than each of them.
"""

from typing import Any

import numpy as np
from jaxtyping import Float

N_BOOT = 1000
"""Draws."""
ENDS = (0.025, 0.975)
"""Quantiles of the draws that are the interval."""


def mean_interval(
    values: Float[np.ndarray, "*lines n"] | Any, seed: int = 0, n_boot: int = N_BOOT
) -> tuple[np.ndarray, np.ndarray]:
    """Ends of the interval of the mean over the last axis; NaN for a single value, which has none."""
    return ratio_interval(values, np.ones(np.shape(values)[-1]), seed, n_boot)


def ratio_interval(
    above: Float[np.ndarray, "*lines n"] | Any,
    below: Float[np.ndarray, "..."] | Any,
    seed: int = 0,
    n_boot: int = N_BOOT,
) -> tuple[np.ndarray, np.ndarray]:
    """Ends of the interval of sum(above) / sum(below) over the last axis, both drawn together.

    Args:
        above: numerators.
        below: denominators [n], or one for each line.
        seed: of the draws.
        n_boot: how many.

    Returns:
        (low, high), each [*lines]; NaN for n = 1 and for lines with NaN. Draws whose denominator is 0 do not count.
    """
    above, below = np.asarray(above, float), np.asarray(below, float)
    n = above.shape[-1]
    if n == 1:
        nothing = np.full(above.shape[:-1], np.nan)
        return nothing, nothing.copy()
    draws = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), n_boot).T.astype(float)
    over, under = above @ draws, np.broadcast_to(below @ draws, (*above.shape[:-1], n_boot))
    found = np.divide(over, under, out=np.full(over.shape, np.nan), where=under != 0)
    if (under == 0).all(-1).any():
        raise ValueError("no draw has a denominator: there is nothing to divide by")
    known = ~np.isnan(above).any(-1)
    ends = np.full((2, *above.shape[:-1]), np.nan)
    ends[:, known] = np.nanquantile(found[known], ENDS, axis=-1)
    return np.asarray(ends[0]), np.asarray(ends[1])
