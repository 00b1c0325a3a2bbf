"""What is trained on, chosen on and reported on: three sets of rows that share no group.

`nested_folds`: outer folds for the figures, and inside each training part folds for the choices. `one_split`: one train,
one select and one test part, which is cheaper and reports on fewer rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int

from interp.dataset import grouped_folds, grouped_split
from interp.probe.inputs import MIN_GROUPS


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


SPLIT_NAMES = {"train": 0, "select": 1, "selection": 1, "validation": 1, "valid": 1, "val": 1, "dev": 1, "test": 2}
"""What stands in a column `split`, and the part that it means."""
SHARES = (0.6, 0.2, 0.2)
"""Of the groups to train on, to choose on and to report on, where there is no column."""


def one_split(
    y: Int[np.ndarray, " row"], groups: Int[np.ndarray, " row"], names: Sequence[Any] | None, seed: int
) -> Fold:
    """Train, select and test parts as one fold: choices look at the selection part, the figure at the test part alone.

    Args:
        y: labels.
        groups: numbers of the groups.
        names: the part of each row where the data says it, None to divide the groups by chance.
        seed: of the division.

    Raises:
        ValueError: a group in two parts, a part that is missing or lacks a label, a test part of fewer than 5 groups, or
            an unknown name.
    """
    if names is None:
        parts = grouped_split(groups, SHARES, seed, labels=y)
    else:
        unknown = [name for name in names if name not in SPLIT_NAMES]
        if unknown:
            raise ValueError(f"split must be 'train', 'select' or 'test' for every row, got {unknown[0]!r}")
        part_of_row = np.array([SPLIT_NAMES[name] for name in names])
        parts = [np.flatnonzero(part_of_row == part) for part in range(3)]
    for name, rows in zip(("train", "select", "test"), parts, strict=True):
        if len(np.unique(y[rows])) < 2:
            raise ValueError(
                f"the part {name!r} needs rows of both labels, it has {len(rows)} rows: give it more, or use "
                "protocol='nested', which needs no parts"
            )
    in_parts = [set(groups[rows].tolist()) for rows in parts]
    shared = (in_parts[0] & in_parts[1]) | (in_parts[0] & in_parts[2]) | (in_parts[1] & in_parts[2])
    if shared:
        row = int(np.flatnonzero(groups == min(shared))[0])
        raise ValueError(
            f"{len(shared)} groups stand in two parts of the column 'split' (the first is that of row {row}): a probe would be "
            "judged on what it has seen; divide whole groups"
        )
    if len(in_parts[2]) < MIN_GROUPS:
        raise ValueError(
            f"the part 'test' has {len(in_parts[2])} groups, and an interval over groups needs at least {MIN_GROUPS}: give it "
            "more, or use protocol='nested', which tests every group"
        )
    train = np.sort(np.concatenate(parts[:2]))
    return Fold(train, parts[2], [np.searchsorted(train, parts[1])])
