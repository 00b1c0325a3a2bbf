"""The rows of a view, and their statistics. What a query may say stands in `query`; reading is the store's own."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from interp.store.convert import ROWS_AT_ONCE
from interp.store.query import matching_rows, query_columns
from interp.store.stats import Moments, SiteStats

if TYPE_CHECKING:
    from interp.store.reader import Store


def choose_rows(store: "Store", query: Any, texts: Any, rows: Any) -> Int[np.ndarray, " row"]:
    """Ascending numbers of the rows that `Store.select` asks for; errors as there."""
    if query is None and texts is None and rows is None:
        raise ValueError("select needs something to select by: a query, texts= or rows=")
    chosen = np.ones(store.n_rows, dtype=bool)
    asked = []
    if rows is not None:
        chosen[:] = False
        chosen[store._numbers(rows)] = True
        asked.append(f"rows= names {int(chosen.sum())} rows")
    if texts is not None:
        found = _rows_of_texts(store, texts)
        chosen &= found
        asked.append(f"texts= has {int(found.sum())} rows")
    if query is not None:
        found = _rows_of_query(store, query)
        chosen &= found
        asked.append(f"{query!r} holds for {int(found.sum())} rows")
    if not chosen.any():
        raise ValueError(f"no row is left of {store.n_rows}: {'; '.join(asked)}")
    return np.flatnonzero(chosen)


def _rows_of_texts(store: "Store", texts: Any) -> Bool[np.ndarray, " row"]:
    wanted = np.atleast_1d(np.asarray(texts))
    if wanted.ndim != 1 or not wanted.size or not np.issubdtype(wanted.dtype, np.integer):
        raise ValueError(f"texts= are numbers of texts, as in the index of examples, got {texts!r}")
    known = store.examples.index
    missing = wanted[~np.isin(wanted, known)]
    if len(missing):
        raise ValueError(f"there is no text {missing[0]}: texts go from {known.min()} to {known.max()}, see examples")
    return np.isin(store.tokens["text"].to_numpy(), wanted)


def _rows_of_query(store: "Store", query: Any) -> Bool[np.ndarray, " row"]:
    frames = {"tokens": store.tokens, "examples": store.examples}
    columns = query_columns(list(frames["tokens"].columns), list(frames["examples"].columns))

    def read(which: str, names: list[str]) -> pd.DataFrame:
        return frames[which].loc[:, names]

    return matching_rows(query, columns, read, frames["tokens"]["text"].to_numpy())


def stats_of_rows(
    read: Callable[[Int[np.ndarray, " n"]], Shaped[Tensor, "n d"]],
    typical: Bool[np.ndarray, " row"],
    outlier_norms: tuple[float | None, ...],
) -> SiteStats:
    """Statistics of a view's rows, some rows at a time.

    Args:
        read: gives rows, ascending.
        typical: which of them are typical, by the flags that were recorded.
        outlier_norms: of the whole store.
    """
    total: SiteStats | None = None
    for start in range(0, len(typical), ROWS_AT_ONCE):
        flags = typical[start : start + ROWS_AT_ONCE]
        rows = read(np.arange(start, start + len(flags)))
        ordinary, rest = Moments.of(rows, flags), Moments.of(rows, ~flags)
        part = SiteStats(ordinary.merge(rest), ordinary, ())
        total = part if total is None else total.merge(part)
    assert total is not None, "a view has rows"
    return SiteStats(total.all, total.typical, outlier_norms)
