"""What a removed value is replaced by: values of reference texts.

Means and draws are taken over typical tokens alone: the first token of a text and special tokens hold values of another
size, and a mean with them is a value that no token has (attention sinks: Xiao et al. 2023, arXiv 2309.17453).
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp import sites as site_names
from interp.hooks import HookContext
from interp.model import ActivationCache, HookedTransformer
from interp.store import OUTLIER_FACTOR, Store


def typical_rows(
    values: Float[Tensor, "batch pos d"], mask: Bool[Tensor, "batch pos"], special: Bool[Tensor, "batch pos"]
) -> Float[Tensor, "row d"]:
    """Rows of tokens that are real, not special, not first in their text, and of norm at most 10x the median."""
    first = mask.long().cumsum(1) == 1
    rows = values[mask & ~special & ~first].float()
    if not len(rows):
        raise ValueError("no typical token is left: the reference texts hold nothing but first and special tokens")
    norms = rows.norm(dim=-1)
    return rows[norms <= norm_bound(norms)]


def norm_bound(norms: Float[Tensor, "*site token"]) -> Float[Tensor, "*site 1"]:
    """The largest norm of a typical token, from the norms of all tokens that are real, not special and not first. Take it over
    all texts at once: a bound of every batch would hang on the batches."""
    return OUTLIER_FACTOR * norms.median(-1, keepdim=True).values


def special_tokens(model: HookedTransformer, ids: Tensor) -> Bool[Tensor, "batch pos"]:
    """True where a token stands for no text."""
    special = sorted(model.tokenizer.special_ids) if model.tokenizer is not None else []
    return torch.isin(ids, torch.tensor(special, dtype=ids.dtype, device=ids.device))


def reference_means(reference: Any, names: Sequence[str], model: HookedTransformer) -> dict[str, Float[Tensor, "d"]]:
    """Mean over typical tokens of each site, flattened over heads, from a store, texts or a ready mapping.

    Raises:
        ValueError: the reference lacks a site; the message holds the call that records it.
    """
    if isinstance(reference, Store):
        missing = [site_names.short_name(name) for name in names if name not in reference.sites]
        if missing:
            raise ValueError(
                f"the reference store has no {missing}; record them: interp.record(model, texts, sites={missing})"
            )
        reference.check_model(model)
        found = {name: reference.stats(name).typical for name in names}
        empty = [site_names.short_name(name) for name, typical in found.items() if not typical.count]
        if empty:
            raise ValueError(
                f"the reference store has no typical token at {empty}; record tokens='all' of longer texts"
            )
        return {name: torch.as_tensor(typical.mean).float() for name, typical in found.items()}
    if isinstance(reference, Mapping):
        missing = [name for name in names if name not in reference]
        if missing:
            raise ValueError(f"the reference has no mean for {missing}; it has {list(reference)}")
        return {name: torch.as_tensor(reference[name]).flatten().float() for name in names}
    with torch.inference_mode():
        _, cache = model.run_with_cache(reference, sites=list(names))
    special = special_tokens(model, cache.tokens.ids)
    return {name: typical_rows(cache[name].flatten(2), cache.tokens.mask, special).mean(0).clone() for name in names}


@dataclass(frozen=True, eq=False)
class PairedValues:
    """Values of another run, put in row for row and position for position."""

    values: Mapping[str, Tensor]
    """Full site name -> [batch pos ...]."""
    first: Int[Tensor, "batch"]
    """Place of each text's first real token."""
    lengths: Int[Tensor, "batch"]
    """Real tokens of each text."""
    partial: bool = False
    """The run may be longer or shorter than the reference, as long as every token acted on has its place in it."""

    def at(self, ctx: HookContext, value: Tensor, chosen: Bool[Tensor, "batch pos"]) -> Tensor:
        """The reference's values at this pass's positions, in the shape of `value`."""
        source, n = self.values[ctx.name].to(value), len(value)
        if len(source) not in (1, n) or source.shape[2:] != value.shape[2:]:
            raise ValueError(f"{ctx.name}: the reference has shape {tuple(source.shape)}, the run {tuple(value.shape)}")
        first, lengths = (t.to(value.device).expand(n)[:, None] for t in (self.first, self.lengths))
        if not self.partial and ctx.phase == "forward" and bool((ctx.mask.sum(1)[:, None] != lengths).any()):
            raise ValueError(
                f"the texts have {ctx.mask.sum(1).tolist()} tokens, those of the reference {lengths[:, 0].tolist()}: paired "
                "values need texts of one length, row by row (or seed= to draw rows)"
            )
        beyond = chosen & (ctx.positions >= lengths)
        if bool(beyond.any()):
            raise ValueError(
                f"position {int(ctx.positions[beyond][0])} lies beyond the reference, whose texts have "
                f"{lengths[:, 0].tolist()} tokens"
            )
        places = (first + ctx.positions).clamp(max=source.shape[1] - 1)
        rows = torch.arange(n, device=value.device)[:, None] if len(source) == n else torch.zeros_like(places)
        return source[rows, places]


@dataclass(frozen=True, eq=False)
class DrawnRows:
    """For each token a row of the reference, the same one in every run: it hangs on seed, text and position alone."""

    pools: Mapping[str, Float[Tensor, "row d"]]
    """Full site name -> rows of typical tokens."""
    seed: int

    def at(self, ctx: HookContext, value: Tensor, chosen: Bool[Tensor, "batch pos"]) -> Tensor:
        """A drawn row for each chosen token, the old value elsewhere."""
        pool, new = self.pools[ctx.name], value.clone()
        for row, column in chosen.nonzero().tolist():
            drawn = own_generator(self.seed, row, int(ctx.positions[row, column]))
            index = int(torch.randint(len(pool), (), generator=drawn))
            new[row, column] = pool[index].to(value).view(value.shape[2:])
        return new


def own_generator(seed: int, row: int, position: int) -> torch.Generator:
    """A generator for one token of one text, so that a draw is the same in a batch, alone, and in cached decoding."""
    digest = hashlib.blake2b(f"{seed} {row} {position}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest) >> 1)


def _cache_of(reference: Any, names: Sequence[str], model: HookedTransformer) -> ActivationCache:
    """The reference's values: those of a cache, or of a run of its texts without any other intervention."""
    if isinstance(reference, ActivationCache):
        missing = [name for name in names if name not in reference]
        if missing:
            raise ValueError(f"the reference cache has no {missing}; record them: run_with_cache(x, sites={missing})")
        return reference
    with torch.inference_mode():
        return model.run_with_cache(reference, sites=list(names))[1]


def paired_values(reference: Any, names: Sequence[str], model: HookedTransformer) -> PairedValues:
    """Values of another run, for texts of the same lengths."""
    if isinstance(reference, Store | Mapping) and not isinstance(reference, ActivationCache):
        raise ValueError(
            "kind='resample' puts in row i of the reference for row i of the run: give texts, Tokens or an "
            "ActivationCache; seed= draws rows of a store or of texts"
        )
    cache = _cache_of(reference, names, model)
    return PairedValues({name: cache[name] for name in names}, cache.tokens.first, cache.tokens.lengths)


def position_means(reference: Any, names: Sequence[str], model: HookedTransformer) -> PairedValues:
    """Mean over texts at each position, for templated prompts.

    Raises:
        ValueError: texts of unequal length, whose positions are not the same places; a store or a mapping.
    """
    if isinstance(reference, Store | Mapping) and not isinstance(reference, ActivationCache):
        raise ValueError("by='position' needs reference= texts of one length, Tokens or an ActivationCache")
    cache = _cache_of(reference, names, model)
    lengths, first = cache.tokens.lengths, cache.tokens.first
    if bool((lengths != lengths[0]).any()):
        raise ValueError(
            f"by='position' needs reference texts of one length, got {sorted(set(lengths.tolist()))} tokens: positions of "
            "unequal texts are not the same places"
        )
    places = first[:, None] + torch.arange(int(lengths[0]), device=first.device)
    rows = torch.arange(len(first), device=first.device)[:, None]
    means = {name: cache[name][rows, places].float().mean(0, keepdim=True) for name in names}
    return PairedValues(means, torch.zeros_like(first[:1]), lengths[:1], partial=True)


def drawn_rows(reference: Any, names: Sequence[str], model: HookedTransformer, seed: int) -> DrawnRows:
    """Rows of typical tokens of a store or of texts, to draw from."""
    if isinstance(reference, Store):
        reference_means(reference, names, model)  # refuses a store of another model, or without the site
        pools = {name: reference.rows(name, np.flatnonzero(reference.typical(name))) for name in names}
        return DrawnRows(pools, seed)
    if isinstance(reference, Mapping) and not isinstance(reference, ActivationCache):
        raise ValueError("kind='resample' draws from a store, texts, Tokens or an ActivationCache, not from a mapping")
    cache = _cache_of(reference, names, model)
    special = special_tokens(model, cache.tokens.ids)
    return DrawnRows({n: typical_rows(cache[n].flatten(2), cache.tokens.mask, special) for n in names}, seed)
