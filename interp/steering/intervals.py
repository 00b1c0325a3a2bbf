"""95 % intervals of means over rows that rise and fall together: whole groups are drawn, never the rows within them."""

import numpy as np
from jaxtyping import Float64, Int

from interp.bootstrap import ratio_interval
from interp.calibration import wilson_interval


def grouped_interval(
    values: Float64[np.ndarray, "*lines item"], groups: Int[np.ndarray, " item"], seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Ends of the interval of the mean over items.

    Args:
        values: one line a measure.
        groups: the group of each item, any numbers.
        seed: of the draws, which all lines share.

    Returns:
        (low, high), each [*lines]; NaN where there is a single group.
    """
    distinct, codes = np.unique(groups, return_inverse=True)
    member = np.eye(len(distinct))[codes]
    return ratio_interval(values @ member, member.sum(0), seed)


def grouped_share(
    right: Float64[np.ndarray, "*lines item"], groups: Int[np.ndarray, " item"], seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """The same for shares of items, within [0, 1]. Where all groups have one share no draw differs from another, and the
    interval is Wilson's for so many groups."""
    low, high = grouped_interval(right, groups, seed)
    agreed = wilson_interval(right.mean(-1), float(len(np.unique(groups))))
    same = np.isclose(low, high, rtol=0.0, atol=1e-9)
    return np.where(same, agreed[0], np.maximum(low, 0.0)), np.where(same, agreed[1], np.minimum(high, 1.0))
