"""Examples of every latent: its strongest rows, and rows drawn from each interval of its values; one per document.

1. Strongest: of each document (the pieces of a long text are one) the row with the largest value, and of these the n
   largest. One document cannot fill the list.
2. Intervals: (0, max] is cut into a few intervals of equal width, as is usual in dashboards, since equal counts would
   show the weak activations only. From each, n documents are drawn, and of each one row.

A draw takes the documents with the smallest hashes of (seed, latent, document). It is uniform, needs no order of the
rows, and is the same however the rows are cut into parts.
"""

import numpy as np
import pandas as pd
from jaxtyping import Float64, Int, UInt64

from interp.sae.features.activations import Activations, LatentRange
from interp.sae.features.runs import is_first, rank_in_run

_Picked = tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"]]
"""Group (0: strongest, 1, 2 ...: interval) and entry number of each example."""


def example_frame(
    activations: Activations,
    largest: Float64[np.ndarray, " latent"],
    document: Int[np.ndarray, " read"],
    *,
    n: int,
    n_intervals: int,
    seed: int,
) -> pd.DataFrame:
    """A row per example: latent, group, rank, text, position, token_id, value, row.

    Args:
        activations: the sparse activations.
        largest: maximum of each latent.
        document: of each row that was read; the rows of one stand together.
        n: examples in each group, at most.
        n_intervals: how many intervals; 0 for the strongest examples only.
        seed: of the draws.
    """
    rows = activations.rows
    frames = []
    for found in activations.ranges():
        of_entry, latent = document[found.row], found.latent
        picked = [_strongest(found, latent, of_entry, n)]
        if n_intervals:
            picked.append(_drawn(found, latent, of_entry, largest, n, n_intervals, seed))
        group, entry = (np.concatenate(both) for both in zip(*picked, strict=True))
        order = np.lexsort((found.row[entry], -found.value[entry], group, latent[entry]))
        group, entry = group[order], entry[order]
        at = rows.places[found.row[entry]]
        columns = {
            "latent": latent[entry],
            "group": group,
            "rank": rank_in_run(latent[entry], group),
            "text": rows.text[at],
            "position": rows.position[at],
            "token_id": rows.token_id[at],
            "value": found.value[entry].astype(np.float64),
            "row": rows.row[at],
        }
        frames.append(pd.DataFrame(columns))
    return pd.concat(frames, ignore_index=True)


def _strongest(found: LatentRange, latent: np.ndarray, document: np.ndarray, n: int) -> _Picked:
    first = is_first(latent, document)
    starts = np.flatnonzero(first)
    if len(starts) == 0:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    highest = np.maximum.reduceat(found.value, starts)
    run_latent = latent[starts]
    # A stable sort: of equal values, the earlier document comes first.
    order = np.lexsort((-highest, run_latent))
    runs = np.sort(order[rank_in_run(run_latent[order]) < n])
    run = np.cumsum(first) - 1
    kept = np.zeros(len(starts), dtype=bool)
    kept[runs] = True
    entry = np.flatnonzero(kept[run] & (found.value == highest[run]))
    entry = entry[is_first(run[entry])]
    return np.zeros(len(entry), np.int64), entry


def _drawn(
    found: LatentRange,
    latent: np.ndarray,
    document: np.ndarray,
    largest: Float64[np.ndarray, " latent"],
    n: int,
    n_intervals: int,
    seed: int,
) -> _Picked:
    interval = np.ceil(found.value * n_intervals / largest[latent]).astype(np.int64).clip(1, n_intervals)
    of_latent = _hash(np.uint64(seed), latent)
    of_document = _hash(of_latent, document)
    group = ((latent - found.start) * n_intervals + interval - 1).astype(np.uint64)
    # One sort does it all: by group, then by the hash of the document, whose rows thereby stand together.
    key = group << np.uint64(40) | of_document >> np.uint64(24)
    order = np.argsort(key)
    key, group = key[order], group[order]
    run = np.cumsum(is_first(key)) - 1
    run_group = group[is_first(key)]
    order = order[(rank_in_run(run_group) < n)[run]]
    run = run[(rank_in_run(run_group) < n)[run]]
    # Of each document one row, drawn as well: its strongest would lean to the upper end of the interval.
    by_chance = np.lexsort((_hash(of_latent[order], found.row[order]), run))
    entry = order[by_chance[is_first(run[by_chance])]]
    return interval[entry], entry


def _hash(state: UInt64[np.ndarray, " n"] | np.uint64, number: Int[np.ndarray, " n"]) -> UInt64[np.ndarray, " n"]:
    """Well-mixed 64 bits of a state and a number: the finaliser of splitmix64 (Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        x = (number.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + state
        x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        return x ^ x >> np.uint64(31)
