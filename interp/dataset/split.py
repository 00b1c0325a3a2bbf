"""Splits by group: rows that share an entity, a question or a document never stand on both sides.

Groups are taken largest first, equal ones in an order that the seed shuffles, and each goes to the part that lacks it
most: the one where the sum over parts and classes of (rows - target)^2 / target rises least.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from interp.dataset.rows import plain, refuse


def grouped_split(
    groups: Iterable[Any],
    fractions: Sequence[float] = (0.6, 0.2, 0.2),
    seed: int = 0,
    labels: Iterable[Any] | None = None,
) -> list[Int[np.ndarray, " _part"]]:
    """Divide rows into parts such that no group stands in two of them.

    The result depends on the groups, their sizes and the seed, not on the order of the rows.

    Args:
        groups: one for each row; compared as text.
        fractions: the share of the rows for each part; they sum to 1. Kept to within the size of the largest group.
        seed: of the order in which groups of equal size are taken.
        labels: one for each row, to keep the classes in proportion as well.

    Returns:
        For each part its row numbers, ascending. No part is empty.

    Raises:
        ValueError: fewer groups than parts, a row without a group, fractions that do not sum to 1, or labels of which a
            part would lack a class.
    """
    shares = np.asarray(fractions, dtype=float)
    if not shares.size or not (shares > 0).all() or not math.isclose(shares.sum(), 1.0, abs_tol=1e-6):
        raise ValueError(f"fractions must be positive and sum to 1, got {list(fractions)}")
    values = [plain(group) for group in groups]
    refuse("groups", "no group", (value is None for value in values), "give every row a group")
    keys, group_of_row = np.unique([str(value) for value in values], return_inverse=True)
    if len(keys) < len(shares):
        raise ValueError(f"{len(keys)} groups cannot make {len(shares)} parts: use fewer parts, or smaller groups")
    names = [""] * len(values) if labels is None else [str(plain(label)) for label in labels]
    if len(names) != len(values):
        raise ValueError(f"there are {len(names)} labels for {len(values)} rows")
    class_of_row = np.unique(names, return_inverse=True)[1]

    counts = np.zeros((len(keys), class_of_row.max() + 1))
    np.add.at(counts, (group_of_row, class_of_row), 1)
    part_of_row = _assign(counts, shares, np.random.default_rng(seed))[group_of_row]
    parts = [np.flatnonzero(part_of_row == part) for part in range(len(shares))]
    if any(len(set(class_of_row[part])) < counts.shape[1] for part in parts):
        raise ValueError("a part would lack a class: use fewer parts, or more groups of the rare class")
    assert sum(len(set(group_of_row[part])) for part in parts) == len(keys), "a group stands in two parts"
    return parts


def grouped_folds(
    groups: Iterable[Any], n: int = 5, seed: int = 0, labels: Iterable[Any] | None = None
) -> list[Int[np.ndarray, " _part"]]:
    """The held-out rows of `n` folds of nearly equal size, no group in two of them. Errors: `grouped_split`."""
    if n < 2:
        raise ValueError(f"cross-validation needs at least 2 folds, got n={n}")
    return grouped_split(groups, [1 / n] * n, seed, labels)


def _assign(counts: np.ndarray, shares: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The part of each group; counts [group, class] are rows, shares [part] the fractions."""
    order = rng.permutation(len(counts))
    order = order[np.argsort(-counts[order].sum(axis=1), kind="stable")]
    target = shares[:, None] * counts.sum(axis=0)  # [part, class]
    filled = np.zeros_like(target)
    part_of_group = np.full(len(counts), -1)
    for position, group in enumerate(order):
        rise = (counts[group] * (2 * (filled - target) + counts[group]) / target).sum(axis=1)
        taken = filled.sum(axis=1) > 0
        if len(order) - position == (~taken).sum():  # only as many groups are left as there are empty parts
            rise[taken] = np.inf
        part_of_group[group] = rise.argmin()
        filled[part_of_group[group]] += counts[group]
    return part_of_group
