"""What each latent fires on: one table with a row per latent, and one with its strongest examples.

One pass over the store's typical rows, a block of whole texts at a time:

1. Encode the block: k (row, latent, value) triples a row.
2. Add up per latent: how often it fires, how strongly, its maximum; and per latent and token id the summed activation.
3. Keep per latent the strongest row of each text, merge with what is kept already, and cut to the best n. So one text
   cannot fill the list, and the memory for examples does not grow with the store.

With a model, also the tokens that a latent raises and lowers: its decoder row through the final norm and unembedding.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from interp.artifact import atomic_folder
from interp.model import HookedTransformer
from interp.sae.model import SAE
from interp.sae.rows import row_numbers
from interp.store import Store


@dataclass(frozen=True)
class SAEFeatures:
    """The latents of an SAE as two tables."""

    latents: pd.DataFrame
    """A row per latent: latent, n_active (rows in which it fires), density (their share), max, mean_active,
    top_token_ids (by summed activation, strongest first), top_token_share (of the summed activation, by the first of
    them); with a model also top_tokens, up_tokens and down_tokens as lists of text. A latent that never fires has NaN
    and no top tokens."""
    examples: pd.DataFrame
    """A row per example: latent, rank (0 is the strongest), text (its number in the store), position, token_id, value,
    row (its number in the store). At most one per text and latent."""
    n_rows: int
    """Typical rows that were read."""
    n_left_out: int
    """Rows that were left out, for they are not typical."""
    site: str

    def to_frame(self) -> pd.DataFrame:
        """The row per latent."""
        return self.latents

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write `features.parquet` and `examples.parquet` into a new folder."""
        with atomic_folder(path) as folder:
            self.latents.to_parquet(folder / "features.parquet", index=False)
            self.examples.to_parquet(folder / "examples.parquet", index=False)
        return Path(path)


def sae_features(
    sae: SAE,
    store: Store,
    site: str | None = None,
    *,
    rows: Any = None,
    model: HookedTransformer | None = None,
    n_examples: int = 10,
    n_tokens: int = 5,
    block_rows: int = 4096,
) -> SAEFeatures:
    """Describe every latent by the tokens and texts on which it fires.

    Args:
        sae: the SAE.
        store: activations of its site, of every token.
        site: where it is not the one in the SAE's card.
        rows: numbers or a mask of store rows, None for all; rows that are not typical are left out in any case.
        model: adds token texts and the tokens that the latent's decoder row raises and lowers.
        n_examples: strongest examples per latent.
        n_tokens: tokens per latent in each list.
        block_rows: rows to encode at a time (more where one text is longer). It does not change the result.

    Raises:
        ValueError: no site, another width, no typical row, or counts below 1.
    """
    for name, value in (("n_examples", n_examples), ("n_tokens", n_tokens), ("block_rows", block_rows)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if (name := site or sae.site) is None:
        raise ValueError(f"the SAE does not say its site: give site=..., one of {', '.join(store.sites)}")
    wanted, typical = row_numbers(store, rows), store.typical(name)
    chosen = wanted[typical[wanted]]
    if len(chosen) == 0:
        raise ValueError(
            f"none of the {len(wanted)} rows of {name} is typical: there is nothing to describe latents by"
        )
    tokens = store.tokens[["text", "position", "token_id"]].iloc[chosen]
    seen = _Seen(sae.n_latents, n_examples)
    text, token_id = tokens["text"].to_numpy(), tokens["token_id"].to_numpy().astype(np.int64)
    for start, stop in _blocks(text, block_rows):
        new = _Triples.encoded(sae, store.rows(name, chosen[start:stop]), first_row=start)
        seen.add(new, text[new.row], token_id[new.row])
    latents, examples = seen.latents(len(chosen), n_tokens), seen.examples(tokens, chosen)
    if model is not None:
        latents = _with_text(latents, sae, model, n_tokens)
    return SAEFeatures(latents, examples, len(chosen), len(wanted) - len(chosen), name)


class _Seen:
    """What is known of every latent so far."""

    def __init__(self, n_latents: int, n_examples: int) -> None:
        self.n_latents, self.n_examples = n_latents, n_examples
        self.count = np.zeros(n_latents, dtype=np.int64)
        self.sum = np.zeros(n_latents)
        self.max = np.full(n_latents, -np.inf)
        self.best = _Triples.empty()
        self.by_token = _TokenSums()

    def add(self, new: "_Triples", text: Int[np.ndarray, " n"], token_id: Int[np.ndarray, " n"]) -> None:
        """Take in the triples of a block of whole texts; text and token_id belong to each triple."""
        self.count += np.bincount(new.latent, minlength=self.n_latents)
        self.sum += np.bincount(new.latent, weights=new.value, minlength=self.n_latents)
        np.maximum.at(self.max, new.latent, new.value)
        self.by_token.add(new.latent, token_id, new.value)
        order = np.lexsort((new.row, -new.value, text, new.latent))
        first_of_text = _is_first(new.latent[order], text[order])
        self.best = self.best.joined(new.taken(order[first_of_text])).strongest(self.n_examples)

    def latents(self, n_rows: int, n_tokens: int) -> pd.DataFrame:
        """The row per latent, without texts."""
        fires = self.count > 0
        ids, shares = self.by_token.top(self.n_latents, n_tokens)
        return pd.DataFrame(
            {
                "latent": np.arange(self.n_latents),
                "n_active": self.count,
                "density": self.count / n_rows,
                "max": np.where(fires, self.max, np.nan),
                "mean_active": np.divide(self.sum, self.count, where=fires, out=np.full(self.n_latents, np.nan)),
                "top_token_ids": ids,
                "top_token_share": shares,
            }
        )

    def examples(self, tokens: pd.DataFrame, chosen: Int[np.ndarray, " row"]) -> pd.DataFrame:
        """The row per example, with what is known of its token."""
        best = self.best
        at = tokens.iloc[best.row]
        return pd.DataFrame(
            {
                "latent": best.latent,
                "rank": _rank(best.latent),
                "text": at["text"].to_numpy(),
                "position": at["position"].to_numpy(),
                "token_id": at["token_id"].to_numpy(),
                "value": best.value,
                "row": chosen[best.row],
            }
        )


@dataclass(frozen=True)
class _Triples:
    """Activations of latents that fired, as three arrays of one length."""

    row: Int[np.ndarray, " n"]
    latent: Int[np.ndarray, " n"]
    value: Float64[np.ndarray, " n"]

    @classmethod
    def empty(cls) -> "_Triples":
        return cls(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))

    @classmethod
    @torch.no_grad()
    def encoded(cls, sae: SAE, x: Float[Tensor, "row d_model"], first_row: int) -> "_Triples":
        active = sae.active(sae.rows_of(x))
        row, place = (active.values > 0).nonzero(as_tuple=True)
        latent, value = active.index[row, place], active.values[row, place]
        return cls((row + first_row).numpy(), latent.numpy(), value.double().numpy())

    def taken(self, index: Int[np.ndarray, " m"]) -> "_Triples":
        return _Triples(self.row[index], self.latent[index], self.value[index])

    def joined(self, other: "_Triples") -> "_Triples":
        pairs = ((self.row, other.row), (self.latent, other.latent), (self.value, other.value))
        return _Triples(*(np.concatenate(pair) for pair in pairs))

    def strongest(self, n: int) -> "_Triples":
        """The n strongest of each latent, by latent, strongest first; of equal ones the earlier row."""
        ordered = self.taken(np.lexsort((self.row, -self.value, self.latent)))
        return ordered.taken(np.flatnonzero(_rank(ordered.latent) < n))


class _TokenSums:
    """Summed activation per (latent, token id): 16 bytes for each pair that occurs."""

    def __init__(self) -> None:
        self.keys, self.sums = np.empty(0, np.int64), np.empty(0)

    def add(
        self, latent: Int[np.ndarray, " n"], token_id: Int[np.ndarray, " n"], value: Float64[np.ndarray, " n"]
    ) -> None:
        # Sums of the block first: merging with the whole table is then over distinct pairs only.
        keys, place = np.unique(latent << 32 | token_id, return_inverse=True)
        sums = np.bincount(place, weights=value)
        self.keys, place = np.unique(np.concatenate([self.keys, keys]), return_inverse=True)
        self.sums = np.bincount(place, weights=np.concatenate([self.sums, sums]))

    def top(self, n_latents: int, n: int) -> tuple[list[list[int]], Float64[np.ndarray, " latent"]]:
        """Of each latent the n token ids with the largest sums, and the share of the first of them in the whole."""
        latent, token_id = self.keys >> 32, self.keys & 0xFFFFFFFF
        order = np.lexsort((token_id, -self.sums, latent))
        latent, token_id, sums = latent[order], token_id[order], self.sums[order]
        kept = _rank(latent) < n
        ends = np.cumsum(np.bincount(latent[kept], minlength=n_latents))
        ids = [part.tolist() for part in np.split(token_id[kept], ends[:-1])]
        total, first = np.bincount(latent, weights=sums, minlength=n_latents), _rank(latent) == 0
        share = np.full(n_latents, np.nan)
        share[latent[first]] = sums[first] / total[latent[first]]
        return ids, share


def _blocks(text: Int[np.ndarray, " row"], size: int) -> Iterator[tuple[int, int]]:
    """(start, stop) of blocks of whole texts: up to `size` rows, or one longer text."""
    ends = np.append(np.flatnonzero(np.diff(text)) + 1, len(text))
    start = 0
    while start < len(text):
        at = np.searchsorted(ends, start + size, side="right") - 1
        stop = int(ends[at]) if at >= 0 and ends[at] > start else int(ends[at + 1])
        yield start, stop
        start = stop


def _is_first(*sorted_keys: np.ndarray) -> Bool[np.ndarray, " n"]:
    """Where a run of equal keys begins."""
    return np.logical_or.reduce([np.diff(key, prepend=-1) != 0 for key in sorted_keys])


def _rank(sorted_keys: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    """0, 1, 2 ... within each run of equal keys."""
    starts = np.flatnonzero(_is_first(sorted_keys))
    return np.arange(len(sorted_keys)) - np.repeat(starts, np.diff(np.append(starts, len(sorted_keys))))


@torch.no_grad()
def _with_text(latents: pd.DataFrame, sae: SAE, model: HookedTransformer, n: int) -> pd.DataFrame:
    """Adds top_tokens, up_tokens and down_tokens: the last two are what the unembedding reads in the decoder row."""
    if model.tokenizer is None:
        raise ValueError("this model has no tokenizer, so tokens have no text: leave out model=, or load it with one")
    if sae.d_model != model.cfg.d_model:
        raise ValueError(f"the SAE has width {sae.d_model}, the model {model.cfg.d_model}: is it another model?")
    # A norm with a bias writes that bias for any input: only what a latent adds to it is the latent's.
    at_rest = model.unembed_logits(torch.zeros(1, sae.d_model, dtype=model.dtype, device=model.device))
    up, down = [], []
    for rows in sae.W_dec.to(model.embed.weight).split(256):
        effect = model.unembed_logits(rows) - at_rest
        up += effect.topk(n, dim=1).indices.tolist()
        down += effect.topk(n, dim=1, largest=False).indices.tolist()
    columns = {"top_tokens": latents["top_token_ids"].tolist(), "up_tokens": up, "down_tokens": down}
    text = {
        token: model.tokenizer.decode([token])
        for token in {token for ids in columns.values() for each in ids for token in each}
    }
    return latents.assign(**{name: [[text[token] for token in each] for each in ids] for name, ids in columns.items()})
