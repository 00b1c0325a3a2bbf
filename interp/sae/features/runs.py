"""Runs of equal keys in sorted arrays."""

import numpy as np
from jaxtyping import Bool, Int


def is_first(*sorted_keys: np.ndarray) -> Bool[np.ndarray, " n"]:
    """Where a run of equal keys begins."""
    first = np.ones(len(sorted_keys[0]), dtype=bool)
    if len(first):
        first[1:] = np.logical_or.reduce([key[1:] != key[:-1] for key in sorted_keys])
    return first


def rank_in_run(*sorted_keys: np.ndarray) -> Int[np.ndarray, " n"]:
    """0, 1, 2 ... within each run of equal keys."""
    starts = np.flatnonzero(is_first(*sorted_keys))
    n = len(sorted_keys[0])
    return np.arange(n) - np.repeat(starts, np.diff(np.append(starts, n)))
