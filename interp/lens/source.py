"""Where the streams that a lens reads come from: one run of the model, or a store.

Both hand out *passages*: some rows with what is needed of them, few enough that their streams take little memory however
long the texts or large the store.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp import sites as site_names
from interp.lens.places import EMBED, FIRST, FULL, POSITIONS, TOKEN_TYPES, end_kind, final_site
from interp.model import HookedTransformer
from interp.recording.job import edited_at
from interp.store import Store
from interp.tokens import Tokens

STREAM_BYTES = 128 << 20
"""Streams of one passage, unless a single text takes more."""
UNKNOWN = -1
"""Id of a next token that is not known, or not there."""


@dataclass(frozen=True, eq=False)
class Passage:
    """Rows of some texts: which tokens they are, and their streams."""

    text: Int[Tensor, "row"]
    """Which text the token belongs to."""
    pos: Int[Tensor, "row"]
    """Its position there."""
    ids: Int[Tensor, "row"]
    """The token."""
    following: Int[Tensor, "row"]
    """The next token, or -1."""
    cells: Int[Tensor, "row"]
    """Where the row stands in the streams, which may hold pads too."""
    streams: Mapping[str, Float[Tensor, "cell d_model"]]
    """Full site name -> stream. Nothing is copied until rows are taken."""

    def __post_init__(self) -> None:
        for site, values in self.streams.items():
            if not bool(torch.isfinite(values).all()):
                self._refuse(site, values)

    def _refuse(self, site: str, values: Tensor) -> None:
        bad = ~torch.isfinite(values[self.cells]).all(-1)
        if bool(bad.any()):  # pads may hold anything
            row = int(bad.nonzero()[0])
            raise ValueError(
                f"{site_names.short_name(site)} is NaN or infinite at text {int(self.text[row])}, position "
                f"{int(self.pos[row])}: a hook or an intervention wrote it, the weights are damaged, or the dtype is too "
                "narrow"
            )

    def take(self, site: str, start: int, stop: int) -> Float[Tensor, "row d_model"]:
        """The stream of rows `start` to `stop`."""
        return self.streams[site][self.cells[start:stop]]


# ---------------------------------------------------------------------------------------------------------- the model


def run_passages(model: HookedTransformer, x: Any, names: Sequence[str]) -> Iterator[Passage]:
    """Run texts, a few at a time, and hand out their real tokens.

    Raises:
        ValueError: what cannot be tokenized; a tree of texts, in which a token may have several next ones.
    """
    tokens = model.tokenize(x)
    if tokens.parents is not None:
        raise ValueError("in a tree of texts a token may have several next ones: give the texts one by one")
    recorded = [FIRST if name == EMBED else name for name in names]
    for first, part in _parts(model, tokens, len(names)):
        _, cache = model.run_with_cache(part, sites=recorded, stop_at_layer=model.cfg.n_layers)
        text, column = part.mask.nonzero(as_tuple=True)
        ids = part.ids[text, column]
        yield Passage(
            text=text + first,
            pos=part.positions[text, column],
            ids=ids,
            following=_following(model, part)[text, column],
            cells=text * part.ids.shape[1] + column,
            streams={name: cache[site].flatten(0, 1) for name, site in zip(names, recorded)},
        )


def at_positions(passages: Iterator[Passage], positions: Sequence[int]) -> Iterator[Passage]:
    """The rows of these positions alone. Their streams need the tokens before them, but only they are unembedded.

    Raises:
        ValueError: no text has a token there.
    """
    wanted, found = torch.tensor(positions, dtype=torch.long), False
    for passage in passages:
        keep = torch.isin(passage.pos.cpu(), wanted).to(passage.pos.device)
        if bool(keep.any()):
            found = True
            kept = {name: getattr(passage, name)[keep] for name in ("text", "pos", "ids", "following", "cells")}
            yield replace(passage, **kept)
    if not found:
        raise ValueError(f"no text has a token at any of the positions {list(positions)[:8]}")


def _parts(model: HookedTransformer, tokens: Tokens, n_sites: int) -> Iterator[tuple[int, Tokens]]:
    """(number of the first text, texts): so many that their streams fit. Hooks that are attached may count the texts, so
    they see them all at once."""
    n, width = tokens.ids.shape
    text_bytes = width * n_sites * model.cfg.d_model * model.dtype.itemsize
    size = n if edited_at(model) else max(1, STREAM_BYTES // text_bytes)
    if size >= n:
        yield 0, tokens
        return
    for start in range(0, n, size):
        rows = slice(start, start + size)
        kept = tokens.mask[rows].any(0)  # columns that are pads in all of these texts
        documents = None if tokens.documents is None else tokens.documents[rows, kept]
        yield start, Tokens(tokens.ids[rows, kept], tokens.mask[rows, kept], documents=documents)


def _following(model: HookedTransformer, tokens: Tokens) -> Int[Tensor, "batch pos"]:
    """The next token of the same text or document at each place; an encoder has seen it, so there it is unknown."""
    following = torch.full_like(tokens.ids, UNKNOWN)
    if model.cfg.causal:
        same = tokens.mask[:, 1:] & tokens.mask[:, :-1]
        if tokens.documents is not None:
            same = same & (tokens.documents[:, 1:] == tokens.documents[:, :-1])
        following[:, :-1] = torch.where(same, tokens.ids[:, 1:], UNKNOWN)
    return following


# ---------------------------------------------------------------------------------------------------------- the store


def stored_sites(model: HookedTransformer, store: Store) -> list[str]:
    """Sites of a store, with the embedding where its stream into the first block can be made of them.

    Raises:
        ValueError: a store of another model, or without the final stream, with the call that records it.
    """
    store.check_model(model)
    final = final_site(model.cfg)
    if final not in store.sites:
        end = end_kind(model.cfg)
        raise ValueError(
            f"{store.path} does not hold {site_names.short_name(final)}, the stream that the model itself unembeds: record "
            f'it with interp.record(model, data, sites=["embed", "{end}:*"], path=...), or add it with '
            f'store.add_sites(model, "{site_names.short_name(final)}")'
        )
    embedding = [EMBED] if embedding_parts(model, store) else []
    return embedding + [site for site in store.sites if site != EMBED]


def store_passages(model: HookedTransformer, store: Store, names: Sequence[str]) -> Iterator[Passage]:
    """Hand out the rows of a store, of which `stored_sites` gave the names.

    Raises:
        ValueError: averages over tokens among the rows.
    """
    frame = store.tokens
    text, pos, ids = (frame[name].to_numpy(dtype=np.int64) for name in ("text", "position", "token_id"))
    if (pos < 0).any():
        raise ValueError(
            f"{int((pos < 0).sum())} of {len(pos)} rows are averages over tokens, which no lens reads: choose the others "
            "with rows=store.tokens.position >= 0"
        )
    following = _known_following(store, text, pos, ids) if model.cfg.causal else np.full_like(ids, UNKNOWN)
    size = max(1, STREAM_BYTES // (4 * len(names) * model.cfg.d_model))
    for start in range(0, len(ids), size):
        rows = slice(start, start + size)
        index = np.arange(len(ids))[rows]
        columns = (torch.tensor(column[rows], device=model.device) for column in (text, pos, ids, following))
        streams = {name: read_stored(model, store, name, index).to(model.device, model.dtype) for name in names}
        yield Passage(*columns, cells=torch.arange(len(index), device=model.device), streams=streams)


def read_stored(
    model: HookedTransformer, store: Store, name: str, index: Int[np.ndarray, " row"]
) -> Float[Tensor, "row d_model"]:
    """Rows of a place; the embedding with all that is added to it before the first block."""
    found = [store.rows(part, index) for part in stored_parts(model, store, name)]
    return found[0] if len(found) == 1 else found[0] + found[1]


def stored_parts(model: HookedTransformer, store: Store, name: str) -> list[str]:
    """Sites of the store whose sum is the stream at a place."""
    return embedding_parts(model, store) if name == EMBED else [name]


def embedding_parts(model: HookedTransformer, store: Store) -> list[str]:
    """Sites of the store whose sum is the stream into the first block; none where it does not hold them."""
    added = [site for site in (POSITIONS, TOKEN_TYPES) if site in model.hook_dict]
    whole = [FULL] if FULL in model.hook_dict else [EMBED, *added]
    return next((parts for parts in ([FIRST], whole) if set(parts) <= set(store.sites)), [])


def _known_following(
    store: Store, text: Int[np.ndarray, " row"], pos: Int[np.ndarray, " row"], ids: Int[np.ndarray, " row"]
) -> Int[np.ndarray, " row"]:
    """The token after each row: from the next row where that was kept, else from the tokens of the text."""
    following = np.full_like(ids, UNKNOWN)
    adjacent = (text[1:] == text[:-1]) & (pos[1:] == pos[:-1] + 1)
    following[:-1][adjacent] = ids[1:][adjacent]
    if store.card["format"] < 2:  # it did not keep the tokens of its texts
        return following
    missing = np.flatnonzero(following == UNKNOWN)
    for number in np.unique(text[missing]):
        rows = missing[text[missing] == number]
        after = pos[rows] + 1
        tokens = store.token_ids(int(number))
        known = after < len(tokens)
        following[rows[known]] = tokens[after[known]]
    return following
