"""Directions that mean nothing, of the same norm: what any push of this size does.

Half of them are isotropic. The others are random combinations of typical activations, so they lie where activations vary and
move the model more. All are orthogonal to the vector: a "random" direction that lies along it would carry part of its
effect, which is why directions that were refitted on shuffled labels are no control (their spread hides real effects).

A vector of several layers says nearly the same at each, and its pushes add up along the stream. So do those of its controls:
one draw serves all layers, and what is combined at each are the activations of the same tokens. Directions of heads write to
different places, and are matched head by head.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from interp import sites as site_names
from interp.intervene import special_tokens
from interp.intervene.draws import orthogonal_draw
from interp.intervene.reference import norm_bound
from interp.intervene.targets import Target, TargetSet, default_unit, targets_of
from interp.model import HookedTransformer
from interp.steering.fields import RANDOM

MOST_TEXTS, MOST_ROWS = 64, 4096
"""Texts and rows that the covariance comes from."""


@torch.inference_mode()
def typical_at(
    model: HookedTransformer, targets: Sequence[Target], texts: Sequence[str]
) -> list[Float64[Tensor, "row d"]]:
    """Activations at each target's place, centred: of tokens that are typical at all of the places, so that row i is one
    token everywhere. A head's are those of its own z.

    Raises:
        ValueError: no such token.
    """
    chosen = [text for text in dict.fromkeys(texts) if text.strip()][:MOST_TEXTS]
    if not chosen:
        raise ValueError(
            "random directions with the covariance of activations need texts: give prompts, pairs or texts"
        )
    names = list(dict.fromkeys(target.site for target in targets))
    layers = [site_names.layer_of(name) for name in names]
    stop = None if None in layers else max(layer for layer in layers if layer is not None) + 1
    rows: dict[str, list[Tensor]] = {name: [] for name in names}
    for begin in range(0, len(chosen), 16):
        _, cache = model.run_with_cache(chosen[begin : begin + 16], names, stop_at_layer=stop)
        tokens = cache.tokens
        ordinary = tokens.mask & ~special_tokens(model, tokens.ids) & (tokens.mask.long().cumsum(1) != 1)
        for name in names:
            rows[name].append(cache[name][ordinary].double().cpu())
    joined = {name: torch.cat(each) for name, each in rows.items()}
    norms = torch.stack([each.flatten(1).norm(dim=1) for each in joined.values()])
    keep = (norms <= norm_bound(norms)).all(0) if norms.shape[1] else torch.zeros(0).bool()
    if int(keep.sum()) < 2:
        raise ValueError("no token of the texts is typical at every steered place: give longer prompts, pairs or texts")
    parts = [joined[each.site] if each.head is None else joined[each.site][:, each.head] for each in targets]
    parts = [part[keep][:MOST_ROWS].flatten(1) for part in parts]
    return [part - part.mean(0) for part in parts]


def random_directions(
    model: HookedTransformer, vector: Any, texts: Sequence[str], n: int, seed: int
) -> list[tuple[str, TargetSet]]:
    """n controls (kind, directions), in turn isotropic and with the covariance of typical activations of the texts.

    Args:
        model: whose activations.
        vector: anything that `Steer` takes; norms, lengths and places are its own.
        texts: where activations are typical; at most 64 are read.
        n: how many.
        seed: of the draws.

    Raises:
        ValueError: a place of a single dimension, constant activations, or no text.
    """
    targets = targets_of(vector)
    rows = typical_at(model, targets, texts) if n > 1 else [None] * len(targets)
    least = 2 * (n // 2) + 2
    if rows[0] is not None and len(rows[0]) < least:
        raise ValueError(
            f"{n // 2} random directions with the covariance of activations need at least {least} typical tokens, and these "
            f"texts have {len(rows[0])}, of which all combinations are nearly the same: give texts=, or n_random=0"
        )
    found = []
    for index in range(n):
        kind = RANDOM[index % 2]
        parts = []
        for place, (target, own) in enumerate(zip(targets, rows)):
            # The same numbers at every layer, and others for every head.
            draw = 0 if target.head is None else 1 + place
            generator = torch.Generator().manual_seed(seed * 1_000_003 + index * 10_007 + draw)
            drawn = orthogonal_draw(target.direction.cpu(), own if kind == "covariance" else None, generator)
            parts.append(replace(target, direction=drawn.to(target.direction)))
        found.append((kind, TargetSet(tuple(parts), default_unit(vector))))
    return found
