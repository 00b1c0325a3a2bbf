"""The nested protocol's parts: outer folds for the figures, and inside each training part folds for the choices."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from interp.dataset import grouped_folds


@dataclass(frozen=True, eq=False)
class Fold:
    """One outer fold. A choice may look at `train` alone."""

    train: Int[np.ndarray, " _train"]
    """Rows to fit and to choose on."""
    test: Int[np.ndarray, " _test"]
    """Rows for the figure."""
    inner: list[Int[np.ndarray, " _held_out"]]
    """Held-out rows of the inner folds, counted within `train`."""


def held_out(
    y: Int[np.ndarray, " row"], groups: Int[np.ndarray, " row"], n_folds: int, seed: int
) -> list[Int[np.ndarray, " _held_out"]]:
    """The held-out rows of each fold, labels in proportion; no group stands on both sides."""
    try:
        parts = grouped_folds(groups, n_folds, seed, labels=y)
    except ValueError as error:
        raise ValueError(f"{len(y)} rows in {len(np.unique(groups))} groups make no {n_folds} folds: {error}") from None
    for part in parts:
        assert not np.isin(groups, groups[part])[np.setdiff1d(np.arange(len(y)), part)].any(), "a group on both sides"
    return parts


def nested_folds(y: Int[np.ndarray, " row"], groups: Int[np.ndarray, " row"], n_folds: int, seed: int) -> list[Fold]:
    """Outer folds with one inner fold fewer in each, since a training part has one part fewer to divide.

    Raises:
        ValueError: fewer than 3 folds, or too few groups of a label for every part to hold one.
    """
    if n_folds < 3:
        raise ValueError(f"the nested protocol needs at least 3 folds, got n_folds={n_folds}")
    folds = []
    for test in held_out(y, groups, n_folds, seed):
        train = np.setdiff1d(np.arange(len(y)), test)
        folds.append(Fold(train, test, held_out(y[train], groups[train], n_folds - 1, seed)))
    return folds
