"""Rows of a site as tensors, arrays and frames; texts and sites as frames.

What would not fit into the free memory is refused before it is read.
"""

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from jaxtyping import Float32, Int, Shaped
from torch import Tensor

from interp import sites as site_names

if TYPE_CHECKING:
    from interp.store.reader import Store

ACTS = "acts"
"""The column of `to_arrow` that holds the activations."""
ROWS_AT_ONCE = 1 << 14
"""Rows that are read before they are converted: a second copy of all would double the memory."""


def in_order(
    read: Callable[[Int[np.ndarray, " n"]], Shaped[Tensor, "n d"]], numbers: Int[np.ndarray, " n"], d: int
) -> Float32[Tensor, "n d"]:
    """Rows in any order, also several times the same, through a reader of ascending ones."""
    found = torch.empty(len(numbers), d)
    ascending = bool((np.diff(numbers) > 0).all())
    order = np.arange(len(numbers)) if ascending else np.argsort(numbers, kind="stable")
    for start in range(0, len(numbers), ROWS_AT_ONCE):
        part = order[start : start + ROWS_AT_ONCE]
        if ascending:
            found[start : start + len(part)] = read(numbers[part])
        else:
            once, place = np.unique(numbers[part], return_inverse=True)
            found[torch.from_numpy(part)] = read(once).float()[torch.from_numpy(place)]
    return found


def to_torch(store: "Store", site: str, index: Int[np.ndarray, " n"]) -> Float32[Tensor, "n d"]:
    """Rows `index` of a site. ValueError where they take more than the free memory."""
    needed, free = len(index) * store.width(site) * 4, free_memory()
    if needed > free:
        raise ValueError(
            f"{len(index)} rows of {site} take {needed / 1e9:.3g} GB in float32, but {free / 1e9:.3g} GB are free: ask for "
            "fewer with rows=, or read them in pieces with store.batches"
        )
    return store.rows(site, index)


def to_pandas(store: "Store", site: str, index: Int[np.ndarray, " n"]) -> pd.DataFrame:
    """A frame [n d] with columns 0 to d - 1, indexed by text and position."""
    acts = to_torch(store, site, index).numpy()
    return pd.DataFrame(
        acts, index=pd.MultiIndex.from_frame(store.tokens[["text", "position"]].iloc[index]), copy=False
    )


def to_arrow(store: "Store", site: str, index: Int[np.ndarray, " n"], tokens: pa.Table) -> pa.Table:
    """The columns of tokens, and `acts`: fixed_size_list<float>[d]."""
    acts = to_torch(store, site, index).numpy()
    rows = pa.FixedSizeListArray.from_arrays(pa.array(acts.reshape(-1)), acts.shape[1])
    return tokens.take(pa.array(index)).append_column(ACTS, rows)


def examples_frame(table: pa.Table) -> pd.DataFrame:
    """A frame of texts, indexed by their number. Whole numbers stay whole where some are missing (Int64): as float64,
    which is what pandas makes of them, long ids would lose digits."""
    frame = table.to_pandas()
    for field in table.schema:
        column = table.column(field.name)
        if pa.types.is_integer(field.type) and column.null_count:
            frame[field.name] = column.to_pandas(types_mapper=_nullable)
    return frame.set_index("text_index").rename_axis(index=None)


def _nullable(kind: pa.DataType) -> Any:
    return pd.api.types.pandas_dtype(str(kind).replace("i", "I").replace("u", "U"))  # uint8 is UInt8


def summary(store: "Store") -> dict[str, Any]:
    """What a store is, as a JSON-ready value."""
    return {
        "path": str(store.path),
        "model": store.card["model"]["name"],
        "model_fingerprint": store.model_fingerprint,
        "texts": store.n_texts,
        "rows": store.n_rows,
        "tokens": store.card["tokens"],
        "dtype": store.dtype,
        "finished": store.complete,
        "view": store.is_view,
        "sites": {site: list(shape) for site, shape in store.shapes.items()},
    }


def sites_frame(store: "Store") -> pd.DataFrame:
    """A row per site: what it is, and what its statistics say."""
    found = {site: store.stats(site) for site in store.sites}
    rows = [
        {
            "site": site,
            "layer": site_names.layer_of(site),
            "shape": " ".join(map(str, store.shapes[site])),
            "dtype": store.dtype,
            "rows": stats.all.count,
            "typical_norm": stats.typical_norm if stats.typical.count else math.nan,
            "left_out": stats.left_out,
        }
        for site, stats in found.items()
    ]
    return pd.DataFrame(rows).astype({"layer": "Int64"})


def free_memory() -> int:
    """Bytes that this process can still take: of the machine, or of its container where that has less."""
    meminfo = Path("/proc/meminfo")
    if meminfo.is_file():
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        free = int(fields["MemAvailable"].split()[0]) * 1024
    else:
        free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    group = Path("/sys/fs/cgroup")
    try:
        limit = int((group / "memory.max").read_text())
        used = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())["anon"]
    except (OSError, ValueError):  # no such group, or one without a limit ("max")
        return free
    return min(free, max(limit - int(used), 0))  # pages of files give way, so only the others are taken
