"""The sets of a transfer matrix: rows by the values of columns, by a condition, or given; and sums of them to train on.

A set is a boolean for each row. Sets may overlap, and a row may be in none: it is then neither learnt from nor judged.
"""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Int
from torch import Tensor

from interp.probe.inputs import MIN_GROUPS
from interp.probe.labelled import POLARITIES, Labelled
from interp.probe.methods import method
from interp.store.query import matching_rows, query_columns

ALL = "all"
"""The rows of all sets together."""
OTHERS = "others"
"""`train_sets="others"`: for every test set the rows of the other sets."""

Sets = dict[str, Bool[np.ndarray, " row"]]
By = str | Sequence[str] | Mapping[str, Any]
"""A column, several, or name -> rows."""


def sets_of(by: By | Any, data: Labelled) -> Sets:
    """The sets that `by` names, in the order of their first rows.

    Args:
        by: a column, whose values are the sets; several columns, whose combinations are ("rivers affirmative"); or
            name -> one boolean a row, or a condition on the columns such as "topic == 'rivers' and position > 3".
        data: the rows.

    Raises:
        ValueError: an unknown column; two sets of one name; booleans for another number of rows; a condition that is
            none; a set without rows, of one label, or of fewer than 5 groups.
    """
    if isinstance(by, Mapping):
        found = {str(name): _rows_of(str(name), rows, data) for name, rows in by.items()}
        if len(found) < len(by):
            raise ValueError(f"two sets have the same name: {', '.join(map(repr, by))}")
    else:
        found = _of_columns([by] if isinstance(by, str) else list(by), data)
    if not found:
        raise ValueError(f"by={by!r} gives no set: name a column with at least one value")
    for name, rows in found.items():
        check_set(name, rows, data)
    return found


def trained_on(names: str | Sequence[str] | None, tested: Iterable[str], sets: Sets) -> Sets:
    """The rows of every train set.

    Args:
        names: sets, or sums and differences of them: "affirmative + negated", "all - rivers". None is every set, and
            "all" where there are several; "others" is "all - X" for each test set X.
        tested: names of the test sets.
        sets: the rows of each set.

    Raises:
        ValueError: an unknown name, with the nearest; one name twice.
    """
    if names is None:
        names = [*sets, *([ALL] if len(sets) > 1 and ALL not in sets else [])]
    elif OTHERS not in sets and ([names] if isinstance(names, str) else list(names)) == [OTHERS]:
        names = [f"{ALL} - {name}" for name in tested]
    return {name: _sum_of(name, sets) for name in chosen(names, "train_sets")}


def chosen(names: str | Sequence[str], argument: str) -> list[str]:
    """Names as a list, each once. ValueError where one stands there twice, or none."""
    listed = [names] if isinstance(names, str) else list(names)
    twice = sorted({name for name in listed if listed.count(name) > 1})
    if not listed or twice:
        raise ValueError(f"{argument} names {f'{twice[0]!r} twice' if twice else 'no set'}: name each set once")
    return listed


def nearest(name: str, known: Iterable[str]) -> str:
    """Words that point to the nearest of the known names, or to all of them."""
    listed = list(known)
    near = difflib.get_close_matches(name, listed, 1)
    return f"did you mean {near[0]!r}?" if near else f"there is {', '.join(map(repr, listed))}"


def check_set(name: str, rows: Bool[np.ndarray, " row"], data: Labelled) -> None:
    """ValueError for a set from which no figure can come."""
    n, n_groups = int(rows.sum()), len(np.unique(data.groups[rows]))
    if not n:
        raise ValueError(f"the set {name!r} is empty: give it rows, or leave it out")
    labels = np.unique(data.y[rows])
    if len(labels) == 1:
        raise ValueError(
            f"all {n} rows of the set {name!r} have the label {labels[0]}: a probe needs rows of both labels; give it "
            "some, or leave it out"
        )
    if n_groups < MIN_GROUPS:
        raise ValueError(
            f"the set {name!r} has {n} rows in {n_groups} groups, and at least {MIN_GROUPS} groups are needed, so that "
            "some are left to judge by: join it with another set, or leave it out by naming the others in by={name: rows}"
        )


def kinds_left_out(kinds: Sequence[str], train: Sets, data: Labelled) -> dict[tuple[str, str], str]:
    """Kinds and train sets that do not go together: some kinds learn from the difference of two polarities.

    Raises:
        ValueError: a kind that can learn from none of the train sets.
    """
    found = {}
    for kind in kinds:
        needs = method(kind).needs
        for name, rows in train.items():
            if "polarity" in needs and data.polarity is not None:
                for word, sign in POLARITIES.items():
                    if not (data.polarity[rows] == sign).any():
                        found[kind, name] = f"it has no {word} row"
            if "pair" in needs and (kind, name) not in found:
                partner = data.partner[rows]
                if not rows[partner[partner >= 0]].any():
                    found[kind, name] = "it holds no pair of a statement and its negation"
        reasons = [found.get((kind, name)) for name in train]
        if all(reasons):
            raise ValueError(
                f"kind={kind!r} can be trained on none of the sets {', '.join(map(repr, train))} ({reasons[0]}): add one that "
                "holds both polarities, such as 'all', to train_sets, or leave the kind out"
            )
    return found


def _of_columns(columns: list[str], data: Labelled) -> Sets:
    values = pd.DataFrame({column: _values(column, data) for column in columns})
    known = ~values.isna().any(axis=1).to_numpy()
    combined = [tuple(map(str, row)) for row in values[known].itertuples(index=False)]
    names: dict[str, tuple[str, ...]] = {}
    for parts in dict.fromkeys(combined):
        name = " ".join(parts)
        if name in names:
            raise ValueError(
                f"the values {names[name]} and {parts} of the columns {', '.join(columns)} both make the name {name!r}: "
                "give the sets names of their own with by={name: rows}"
            )
        names[name] = parts
    found = {}
    for name, parts in names.items():
        rows = np.zeros(data.n, dtype=bool)
        rows[known] = [row == parts for row in combined]
        found[name] = rows
    return found


def _values(column: str | Any, data: Labelled) -> pd.Series:
    """A column's values, missing ones as None. Polarities have one spelling."""
    if column not in data.frame:
        raise ValueError(f"the rows have no column {column!r}: {nearest(str(column), map(str, data.frame.columns))}")
    if column == "polarity" and data.polarity is not None:
        names = {number: name for name, number in POLARITIES.items()}
        return pd.Series([names.get(int(value)) for value in data.polarity], dtype=object)
    return pd.Series(data.frame[column].tolist(), dtype=object)


def _rows_of(name: str, rows: Any, data: Labelled) -> Bool[np.ndarray, " row"]:
    """The rows of one given set."""
    if isinstance(rows, str):
        frame = data.frame
        columns = query_columns([], [str(column) for column in frame.columns])

        def read(_: str, names: list[str]) -> pd.DataFrame:
            return frame.loc[:, names]

        return matching_rows(rows, columns, read, np.arange(data.n))
    found = np.asarray(rows.cpu() if isinstance(rows, Tensor) else rows)
    if found.dtype != bool or found.shape != (data.n,):
        raise ValueError(
            f"the set {name!r} must be one True or False for each of {data.n} rows, or a condition; it has "
            f"shape {list(found.shape)} and type {found.dtype}"
        )
    return found


def _sum_of(name: str, sets: Sets) -> Bool[np.ndarray, " row"]:
    """The rows of a set, or of a sum or difference such as "a + b" and "all - a"."""
    if name in sets:
        return sets[name]
    terms = re.split(r" ([+-]) ", name)
    rows = np.zeros_like(next(iter(sets.values())))
    for sign, term in zip(["+", *terms[1::2]], terms[::2], strict=True):
        part = np.any(list(sets.values()), axis=0) if term == ALL and term not in sets else sets.get(term)
        if part is None:
            raise ValueError(f"train_sets: there is no set {term!r}: {nearest(term, [*sets, ALL])}")
        rows = rows | part if sign == "+" else rows & ~part
    return rows


def same_rows(a: Bool[np.ndarray, " row"], b: Bool[np.ndarray, " row"]) -> bool:
    """Whether two sets are one."""
    return bool((a == b).all())


def strata(
    sets: Sets, y: Int[np.ndarray, " row"], groups: Int[np.ndarray, " row"], n_folds: int
) -> Int[np.ndarray, " row"]:
    """What each fold should hold in proportion: a number for every combination of label and sets that occurs.

    Where a combination is too rare for every fold to hold some of it, the label alone.
    """
    columns = np.stack([y, *sets.values()], axis=1).astype(np.int64)
    found = np.unique(columns, axis=0, return_inverse=True)[1].ravel()
    smallest = min(len(np.unique(groups[found == number])) for number in np.unique(found))
    return found if smallest >= 2 * n_folds else y
