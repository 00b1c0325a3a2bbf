"""What a probe is fitted to: activations, two labels, groups. Whatever would make a silent mistake is refused here."""

from collections.abc import Iterable, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float64, Int
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

Column = Tensor | np.ndarray | pd.Series | Sequence[Any]
"""One value a row."""
MIN_GROUPS = 5
"""With fewer, a figure over unseen groups says nothing."""
ROWS = "rows"
"""`groups="rows"`: every row is its own group, said on purpose."""
_TRUE = ("1", "1.0", "true", "t", "yes", "y")
"""Strings that mean the label 1."""
JOINS = " & "
"""Between the names of several groups: "Oslo & Lima" is the group of a statement about both."""


def fold(text: str) -> str:
    """A text without what does not change its meaning: case and spacing."""
    return " ".join(text.casefold().split())


def check_activations(X: Tensor | np.ndarray, where: str = "X") -> Float64[Tensor, "row d"]:
    """Activations as float64 on the CPU.

    Raises:
        ValueError: no real numbers, not two axes, NaN or infinity, or features that are all constant.
    """
    if X.is_complex() if isinstance(X, Tensor) else np.asarray(X).dtype.kind not in "fiub":
        raise ValueError(
            f"{where} holds values of type {X.dtype}, and activations are real numbers: make them float32 (of complex ones "
            "the real part or the modulus)"
        )
    rows = torch.as_tensor(X).detach().to("cpu", torch.float64)
    if rows.ndim != 2 or 0 in rows.shape:
        raise ValueError(f"{where} must be [row d], one activation vector a row; it has shape {list(rows.shape)}")
    bad = ~torch.isfinite(rows).all(1)
    if bool(bad.any()):
        raise ValueError(
            f"{where}: NaN or infinity in {int(bad.sum())} of {len(rows)} rows (the first is row "
            f"{int(bad.int().argmax())}): leave these rows out, or record in float32"
        )
    if bool((rows == rows[0]).all()):
        raise ValueError(
            f"{where}: all {len(rows)} rows are the same, so nothing can be read from them: choose another site or "
            "token (the embedding of a last token that is always a full stop is constant)"
        )
    return rows


def check_labels(y: Column, n: int) -> Int[np.ndarray, " row"]:
    """Labels as 0 and 1.

    Raises:
        ValueError: another number of labels than rows, missing labels, strings, or other than the two values 0 and 1.
    """
    values = _column(y, "y", n, "labels")
    missing = values.isna().to_numpy()
    if missing.any():
        raise ValueError(
            f"{missing.sum()} of {n} rows have no label (the first is row {missing.argmax()}): label them, or leave "
            "them out"
        )
    text = dict.fromkeys(str(value) for value in values if isinstance(value, str))
    if text:
        raise ValueError(f"labels are strings: a probe needs 0 and 1, {_as_numbers(list(text))}")
    found = sorted(set(values), key=str)
    if len(found) == 1:
        raise ValueError(f"all {n} labels are {found[0]!r}: a probe needs rows of both labels")
    if set(found) != {0, 1}:
        shown = ", ".join(repr(value) for value in found[:5]) + (" ..." if len(found) > 5 else "")
        raise ValueError(
            f"labels must be 0 and 1, got {len(found)} values: {shown}; map the one to detect to 1, the rest to 0"
        )
    return values.astype(int).to_numpy()


def check_groups(groups: Column | str, n: int, n_folds: int) -> Int[np.ndarray, " row"]:
    """Groups as numbers 0, 1, ... in the order of their names; each row its own one for "rows".

    A name that joins others by " & " is one group with them, and with every other name that has a part in common with it: a
    conjunction must not be tested where its parts were trained on.

    Raises:
        ValueError: another number of groups than rows, rows without a group, or fewer than 5 groups, or than folds.
    """
    if isinstance(groups, str):
        if groups != ROWS:
            raise ValueError(f"groups must be one value a row, or {ROWS!r} to split by row on purpose; got {groups!r}")
        names = pd.Series(range(n), dtype=object)
    else:
        names = _column(groups, "groups", n, "groups")
    missing = names.isna().to_numpy() | (names.astype(str).str.strip() == "").to_numpy()
    if missing.any():
        raise ValueError(
            f"{missing.sum()} of {n} rows have no group (the first is row {missing.argmax()}): give each row the "
            "entity that it is about, or leave these rows out"
        )
    codes, distinct = pd.factorize(np.array(_tied([str(name) for name in names]), dtype=object), sort=True)
    needed = max(MIN_GROUPS, n_folds)
    if len(distinct) < needed:
        raise ValueError(
            f"{len(distinct)} groups are too few: at least {needed} are needed, so that each of {n_folds} folds holds "
            "groups that the rest does not; gather more, or name a finer group"
        )
    return codes.astype(int)


def tie_texts(
    codes: Int[np.ndarray, " row"], texts: Sequence[str]
) -> tuple[Int[np.ndarray, " row"], int, tuple[int, int]]:
    """One group for all that share a text, case and spacing aside: a text must not be tested where it was trained on.

    Args:
        codes: the group of each row, as `check_groups` gives it.
        texts: of the rows. Empty ones tie nothing.

    Returns:
        The codes, again 0, 1, ... in the order of the first group that went into each; texts that stood in more than one
        group; how many groups were tied, and how many they are now.
    """
    folded = [fold(str(text)) for text in texts]
    known = np.array([bool(text) for text in folded], dtype=bool)
    text = pd.factorize(np.array(folded, dtype=object))[0]
    n, n_texts = int(codes.max()) + 1, int(text.max()) + 1
    pairs = np.unique(np.stack([codes[known], text[known]]), axis=1)  # once each: (group, a text of it)
    links = coo_array((np.ones(pairs.shape[1]), (pairs[0], n + pairs[1])), shape=(n + n_texts, n + n_texts))
    part = connected_components(links, directed=False)[1][:n]
    _, first, part, size = np.unique(part, return_index=True, return_inverse=True, return_counts=True)
    found = np.unique(first[part][codes], return_inverse=True)[1]
    repeated = int((np.bincount(pairs[1], minlength=n_texts) > 1).sum())
    return found.astype(int), repeated, (int(size[size > 1].sum()), int((size > 1).sum()))


def check_strengths(C: float | Sequence[float] | Any | None, default: tuple[float, ...]) -> tuple[float, ...]:
    """The strengths to choose from, ascending: several, one that was given, or the default ones."""
    several: Any = C.tolist() if isinstance(C, Tensor | np.ndarray) else C
    found: tuple[Any, ...] = default if C is None else tuple(several) if isinstance(several, Iterable) else (several,)
    if not found or not all(isinstance(c, Real) and 0 < float(c) < np.inf for c in found):
        raise ValueError(f"C must be positive (as in scikit-learn, smaller is a stronger penalty), got {C!r}")
    return tuple(sorted({float(c) for c in found}))


def check_whole(least: int = 0, **numbers: Any) -> None:
    """ValueError for a number that is not whole, or below `least`; given by its name."""
    for name, value in numbers.items():
        if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
            raise ValueError(f"{name} must be a whole number from {least} on, got {value!r}")


def names_of(values: Column | str) -> list[str]:
    """The names of groups, one a row."""
    assert not isinstance(values, str)
    return [str(value) for value in _listed(values)]


def _as_numbers(labels: list[str]) -> str:
    """How labels that are strings become 0 and 1. Which of them means true is said where it is known, and never guessed."""
    true = [label for label in labels if label.strip().casefold() in _TRUE]
    if len(true) == 1 and len(labels) == 2:
        return f"here [v == {true[0]!r} for v in y]"
    shown = ", ".join(map(repr, labels[:5])) + (" ..." if len(labels) > 5 else "")
    if len(labels) == 2:
        either = " or ".join(f"[v == {label!r} for v in y]" for label in labels)
        return f"and which of {shown} is 1 is for you to say: {either}"
    return f"and which of {shown} is 1 is for you to say: [v == ... for v in y]"


def _tied(names: list[str]) -> list[str]:
    """One name for all that are tied by their parts, the first in the alphabet."""
    parent: dict[str, str] = {}

    def first(name: str) -> str:
        while (above := parent.setdefault(name, name)) != name:
            parent[name] = parent[above]  # halve the way for the next time
            name = above
        return name

    for name in dict.fromkeys(names):
        for part in name.split(JOINS):
            low, high = sorted((first(name), first(part)))
            parent[high] = low
    return [first(name) for name in names]


def _column(values: Column, name: str, n: int, words: str) -> pd.Series:
    listed = _listed(values)
    if len(listed) != n:
        raise ValueError(
            f"{name} has {len(listed)} {words} for {n} rows of activations: give one a row, in the same order"
        )
    if any(isinstance(value, list) for value in listed):
        raise ValueError(f"{name} must have one axis, one of the {words} a row")
    return pd.Series(listed, dtype=object)


def _listed(values: Column) -> list[Any]:
    return values.tolist() if isinstance(values, Tensor | np.ndarray | pd.Series) else list(values)
