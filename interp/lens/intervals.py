"""Means over rows with a 95 % bootstrap interval over texts: tokens of one text are not independent."""

from typing import Any

import numpy as np
from jaxtyping import Float, Int

from interp.bootstrap import ratio_interval
from interp.store.lookup import whole_number


def mean_by_text(
    values: Float[np.ndarray, "what row"],
    text: Int[np.ndarray, "row"],
    *,
    n_boot: int | Any = 1000,
    seed: int | Any = 0,
) -> tuple[Float[np.ndarray, "what"], Float[np.ndarray, "what"], Float[np.ndarray, "what"]]:
    """Mean of each line of `values` over rows, and the ends of its interval; both ends are NaN with a single text.

    Args:
        values: what is averaged.
        text: which text, or group of texts, each row belongs to.
        n_boot: draws of as many texts as there are, with replacement.
        seed: of the draws.
    """
    n_boot, seed = whole_number("n_boot", n_boot, 100), whole_number("seed", seed, 0)
    numbers, member = np.unique(text, return_inverse=True)
    n = len(numbers)
    sums = np.stack([np.bincount(member, line, minlength=n) for line in values])
    sizes = np.bincount(member, minlength=n)
    return values.mean(1), *ratio_interval(sums, sizes, seed, n_boot)
