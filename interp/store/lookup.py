"""What a user means by a site, by rows or by a number: full names and shorthand, integers, masks and slices."""

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from interp import sites as site_names


def find_site(site: str, recorded: Sequence[str]) -> str:
    """Full name of the one site that a name or shorthand means. ValueError if there is none, or several."""
    if site in recorded:
        return site
    try:
        found = site_names.expand(site, list(recorded))
    except ValueError as error:
        have = ", ".join(map(site_names.short_name, recorded[:8])) + " ..." * (len(recorded) > 8)
        raise ValueError(f"{site!r} is not in this store, which has {have}: {error}") from None
    if len(found) != 1:
        raise ValueError(f"{site!r} names {len(found)} sites, one is needed here, for example {found[0]!r}")
    return found[0]


def row_numbers(index: Any, n_rows: int) -> Int[np.ndarray, " n"]:
    """Integers, a mask, a slice or None (all) as row numbers, in the order given. ValueError if there are no such rows."""
    if index is None or isinstance(index, slice):
        return np.arange(n_rows)[index if index is not None else slice(None)]
    wanted = np.atleast_1d(np.asarray(index))
    if wanted.dtype == bool and wanted.shape == (n_rows,):
        return np.flatnonzero(wanted)
    if not wanted.size:
        return np.empty(0, dtype=np.int64)
    if wanted.ndim != 1 or not np.issubdtype(wanted.dtype, np.integer):
        raise ValueError(
            f"rows are chosen by integers or by a boolean mask with {n_rows} entries, got {wanted.dtype} {wanted.shape}"
        )
    lowest, highest = int(wanted.min()), int(wanted.max())
    if not n_rows:
        raise ValueError(f"there are no rows, asked for {lowest} to {highest}")
    if lowest < 0:
        raise ValueError(
            f"rows go from 0 to {n_rows - 1} and are not counted from the end, got {lowest}: the last is {n_rows - 1}"
        )
    if highest >= n_rows:
        raise ValueError(f"rows go from 0 to {n_rows - 1}, asked for {lowest} to {highest}")
    return wanted.astype(np.int64)


def whole_number(name: str, value: Any, least: int | None = None) -> int:
    """An integer of any type. ValueError for whatever else it is, also 2.0 and True, or one below `least`."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise ValueError(f"{name} must be a whole number, got {value!r}")
    if least is not None and number < least:
        raise ValueError(f"{name} must be at least {least}, got {number}")
    return number
