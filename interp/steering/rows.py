"""Rows of activations: one for each text, and the typical rows beside them.

1. One pass over the model, stopped after the last site that is asked for, reads all sites. Texts of similar length share a
   batch; no figure depends on the batches.
2. Beside the row of each text, a site keeps the norms of all typical tokens and a bounded sample of their rows: the typical
   norm, and the standard deviation along any direction, come from there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from interp import sites as site_names
from interp.intervene.reference import norm_bound
from interp.model import HookedTransformer
from interp.steering.contrast import Contrast, Encoded, encode_contrast, padded, tokenizer_of
from interp.store import Store

SAMPLE = 4096
"""Most typical rows kept of a site; a standard deviation over them is good to about 1 %."""


@dataclass(frozen=True, eq=False)
class TypicalRows:
    """What is known of the typical tokens of one site: real, not special, not first, of norm at most 10x the median."""

    norm: float
    """Median norm, the unit of strength."""
    n: int
    """Typical tokens."""
    rows: Float[Tensor, "row d"]
    """All of them, or a sample of at most `SAMPLE` drawn by a seed."""

    def sd(self, direction: Float[Tensor, "d"]) -> float | None:
        """Standard deviation along a unit direction, over the rows kept; None where there is none, see `sd_along`."""
        return sd_along(self.rows, direction)


def sd_along(rows: Float[Tensor, "row d"], direction: Float[Tensor, "d"]) -> float | None:
    """Standard deviation (n - 1) of rows along a unit direction; None where there are fewer than two, or none varies."""
    if len(rows) < 2:
        return None
    found = float((rows.double() @ direction.double()).std())
    return found if found > 0 else None


@torch.inference_mode()
def read_rows(
    model: HookedTransformer, encoded: Encoded, sites: Sequence[str], batch_size: int, seed: int
) -> tuple[dict[str, Float[Tensor, "text d"]], dict[str, TypicalRows]]:
    """The row of each text and the typical rows, at every site, in one pass over the texts.

    Args:
        model: hooks and interventions that are attached act as in any other pass.
        encoded: the texts, and the tokens that are read.
        sites: full names of sites that hold one vector a token.
        batch_size: texts in one forward pass.
        seed: of the sample of typical rows.

    Raises:
        ValueError: NaN or infinity, or no typical token at all.
    """
    tokenizer = tokenizer_of(model)
    special = set(tokenizer.special_ids)
    candidates = [[p for p in range(1, len(ids)) if ids[p] not in special] for ids in encoded.ids]
    kept = _drawn(candidates, seed)
    order = sorted(range(len(encoded.ids)), key=lambda index: len(encoded.ids[index]))
    pooled: dict[str, list[Any]] = {site: [None] * len(order) for site in sites}
    norms: dict[str, list[Any]] = {site: [None] * len(order) for site in sites}
    sample: dict[str, list[Any]] = {site: [None] * len(order) for site in sites}
    for start in range(0, len(order), batch_size):
        part = sorted(order[start : start + batch_size])  # in one batch, the caller's order
        batch = padded([encoded.ids[index] for index in part], tokenizer.pad_id)
        _, cache = model.run_with_cache(batch, sites=list(sites), stop_at_layer=_stop(sites))
        for site in sites:
            for value, index in zip(cache[site].cpu().float(), part, strict=True):
                pooled[site][index] = value[encoded.read[index]].double().mean(0).float()
                norms[site][index] = value[candidates[index]].norm(dim=-1)
                sample[site][index] = value[kept[index]]
    rows = {site: torch.stack(pooled[site]) for site in sites}
    for site in sites:
        if not bool(torch.isfinite(rows[site]).all() and torch.isfinite(torch.cat(norms[site])).all()):
            raise ValueError(
                f"the activations at {site} are NaN or infinite: a hook wrote it, or the dtype is too narrow"
            )
    return rows, {site: _typical(torch.cat(norms[site]), torch.cat(sample[site])) for site in sites}


def _stop(sites: Sequence[str]) -> int | None:
    """The block to stop before: the one after the last site; None where a site stands outside the blocks."""
    layers = [site_names.layer_of(site) for site in sites]
    known = [layer for layer in layers if layer is not None]
    return max(known) + 1 if len(known) == len(layers) else None


def _drawn(candidates: Sequence[list[int]], seed: int) -> list[list[int]]:
    """At most `SAMPLE` of the candidates, the same ones whatever the batches are."""
    total = sum(map(len, candidates))
    if total <= SAMPLE:
        return list(candidates)
    chosen = np.zeros(total, dtype=bool)
    chosen[np.random.default_rng(seed).permutation(total)[:SAMPLE]] = True
    found, start = [], 0
    for places in candidates:
        found.append([place for place, keep in zip(places, chosen[start : start + len(places)]) if keep])
        start += len(places)
    return found


def _typical(norms: Float[Tensor, "token"], rows: Float[Tensor, "row d"]) -> TypicalRows:
    if not len(norms):
        raise ValueError("no typical token is left: the texts hold nothing but first and special tokens")
    bound = norm_bound(norms)
    typical = norms[norms <= bound]
    return TypicalRows(float(typical.median()), len(typical), rows[rows.norm(dim=-1) <= bound].clone())


def typical_of(
    reference: object, model: HookedTransformer, sites: Sequence[str], batch_size: int, seed: int
) -> dict[str, TypicalRows]:
    """The typical rows of a reference: a store that holds the sites, or texts.

    Raises:
        ValueError: neither, a store of another model or without a site, or no typical token.
    """
    if isinstance(reference, Store):
        reference.check_model(model)
        missing = [site_names.short_name(site) for site in sites if site not in reference.sites]
        if missing:
            raise ValueError(
                f"the reference store has no {', '.join(missing)}: record it, interp.record(model, texts, sites={missing})"
            )
        return {site: stored_rows(reference, site, seed) for site in sites}
    texts = list(reference) if isinstance(reference, Sequence) and not isinstance(reference, str) else []
    if not texts or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"reference must be a store or a list of texts, got {type(reference).__name__}")
    contrast = Contrast([""] * len(texts), texts, np.zeros(len(texts), dtype=np.int64), None, None)
    return read_rows(model, encode_contrast(model, contrast, "last"), sites, batch_size, seed)[1]


def stored_rows(store: Store, site: str, seed: int) -> TypicalRows:
    """The typical rows of a site of a store."""
    stats = store.stats(site)
    places = np.flatnonzero(store.typical(site))
    if len(places) > SAMPLE:
        places = np.sort(np.random.default_rng(seed).permutation(places)[:SAMPLE])
    return TypicalRows(float(stats.typical_norm), stats.typical.count, store.rows(site, places))
