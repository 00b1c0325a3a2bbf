"""What a user means by a site or by rows: full names and shorthand, integers, masks and slices."""

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
    if wanted.min() < 0 or wanted.max() >= n_rows:
        raise ValueError(f"rows go from 0 to {n_rows - 1}, asked for {wanted.min()} to {wanted.max()}")
    return wanted.astype(np.int64)
