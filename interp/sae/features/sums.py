"""What adds up over rows: how often and how strongly each latent fires, at which values, positions and tokens.

Every number is a sum, a maximum or a count in fixed bins, so parts may come in any order and any size.
"""

from typing import Any

import numpy as np
from jaxtyping import Float64, Int, Int64
from scipy import sparse

from interp.sae.features.activations import Part
from interp.sae.features.runs import rank_in_run

HISTOGRAM_EDGES = 2.0 ** (np.arange(65) / 2 - 16)
"""Edges of the 64 bins of a histogram of activations, two an octave from 2^-16 to 2^16; the first and the last bin hold
what lies outside."""
N_POSITION_BINS = 16
"""Bins of positions: bin b holds positions 2^b to 2^(b+1) - 1, bin 0 also position 0, the last all that follow."""


class LatentSums:
    """Sums per latent. `token_ids` are the distinct token ids, ascending; a row's token is given as its place there."""

    def __init__(self, n_latents: int, token_ids: Int[np.ndarray, " token"]) -> None:
        self.n_latents, self.token_ids = n_latents, token_ids
        self.count = np.zeros(n_latents, dtype=np.int64)
        self.sum = np.zeros(n_latents)
        self.max = np.full(n_latents, -np.inf)
        self.histogram = np.zeros((n_latents, 64), dtype=np.int64)
        self.positions = np.zeros((n_latents, N_POSITION_BINS), dtype=np.int64)
        self._by_token = sparse.csr_array((len(token_ids), n_latents))

    def add(self, part: Part, token: Int[np.ndarray, " row"], position: Int[np.ndarray, " row"]) -> None:
        """Take in some rows; token and position belong to each of them."""
        matrix, latent = part.matrix, part.matrix.indices.astype(np.int64)
        value, n = matrix.data.astype(np.float64), self.n_latents
        self.count += np.bincount(latent, minlength=n)
        np.add.at(self.sum, latent, value)
        np.maximum.at(self.max, latent, value)
        bins = np.searchsorted(HISTOGRAM_EDGES, value, side="right").clip(1, 64) - 1
        self.histogram += np.bincount(latent * 64 + bins, minlength=n * 64).reshape(n, 64)
        places = position_bins(position)[part.entry_rows - part.start]
        self.positions += np.bincount(latent * N_POSITION_BINS + places, minlength=n * N_POSITION_BINS).reshape(n, -1)
        ones, starts = np.ones(len(token)), np.arange(len(token) + 1)
        is_token = sparse.csr_array((ones, token, starts), shape=(len(token), len(self.token_ids)))
        self._by_token = self._by_token + is_token.T.tocsr() @ matrix.astype(np.float64)

    def columns(self, n_rows: int, n_tokens: int) -> dict[str, Any]:
        """Columns of the table of latents."""
        fires = self.count > 0
        ids, shares = self._top_tokens(n_tokens)
        return {
            "latent": np.arange(self.n_latents),
            "n_active": self.count,
            "density": self.count / n_rows,
            "max": np.where(fires, self.max, np.nan),
            "mean_active": np.divide(self.sum, self.count, where=fires, out=np.full(self.n_latents, np.nan)),
            "top_token_ids": ids,
            "top_token_share": [share[0] if share else np.nan for share in shares],
            "top_token_shares": shares,
            "histogram": list(self.histogram),
            "position_counts": list(self.positions),
        }

    def _top_tokens(self, n: int) -> tuple[list[list[int]], list[list[float]]]:
        """Of each latent the n token ids with the largest sums, and their shares in the whole."""
        by_latent = sparse.csc_array(self._by_token)
        by_latent.sort_indices()
        latent = np.repeat(np.arange(self.n_latents), np.diff(by_latent.indptr))
        order = np.lexsort((np.negative(by_latent.data), latent))
        order = order[rank_in_run(latent[order]) < n]
        total = np.bincount(latent, weights=by_latent.data, minlength=self.n_latents)
        ids, shares = self.token_ids[by_latent.indices[order]], by_latent.data[order] / total[latent[order]]
        return split_by_latent(ids, latent[order], self.n_latents), split_by_latent(
            shares, latent[order], self.n_latents
        )


def position_bins(position: Int[np.ndarray, " row"]) -> Int64[np.ndarray, " row"]:
    """The bin of each position; see N_POSITION_BINS."""
    return np.log2(position.clip(1).astype(np.float64)).astype(np.int64).clip(0, N_POSITION_BINS - 1)


def split_by_latent(
    values: Int[np.ndarray, " n"] | Float64[np.ndarray, " n"], latent: Int[np.ndarray, " n"], n_latents: int
) -> list[list[Any]]:
    """A list per latent; `latent` ascends."""
    ends = np.cumsum(np.bincount(latent, minlength=n_latents))
    return [part.tolist() for part in np.split(values, ends[:-1])]
