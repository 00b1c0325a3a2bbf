"""Directions that mean nothing, of the same norm: what any push of this size does.

Half of them are isotropic. The others are random combinations of typical activations, so they lie where activations vary and
move the model more. All are orthogonal to the vector: a "random" direction that lies along it would carry part of its
effect, which is why directions that were refitted on shuffled labels are no control (their spread hides real effects).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from interp import sites as site_names
from interp.intervene import special_tokens, typical_rows
from interp.intervene.targets import Target, default_unit, targets_of
from interp.model import HookedTransformer

KINDS = ("isotropic", "covariance")
MOST_TEXTS, MOST_ROWS = 64, 4096
"""Texts and rows that the covariance comes from."""


@dataclass(frozen=True, eq=False)
class RandomDirections:
    """One direction at each place of a vector, for `Steer`."""

    parts: tuple[Target, ...]
    unit: str = "norm"
    """What a strength is counted in where nobody says, as of the vector."""

    def targets(self) -> Sequence[Target]:
        """The places."""
        return self.parts


@torch.inference_mode()
def typical_at(
    model: HookedTransformer, targets: Sequence[Target], texts: Sequence[str]
) -> list[Float64[Tensor, "row d"]]:
    """Typical activations at each target's place, centred; a head's are those of its own z."""
    chosen = list(dict.fromkeys(texts))[:MOST_TEXTS]
    names = list(dict.fromkeys(target.site for target in targets))
    layers = [site_names.layer_of(name) for name in names]
    stop = None if None in layers else max(layer for layer in layers if layer is not None) + 1
    rows: dict[str, list[Tensor]] = {name: [] for name in names}
    for begin in range(0, len(chosen), 16):
        _, cache = model.run_with_cache(chosen[begin : begin + 16], names, stop_at_layer=stop)
        special = special_tokens(model, cache.tokens.ids)
        for name in names:
            found = typical_rows(cache[name].flatten(2), cache.tokens.mask, special)
            rows[name].append(found.unflatten(1, cache[name].shape[2:]))
    joined = {name: torch.cat(each)[:MOST_ROWS].double().cpu() for name, each in rows.items()}
    parts = [joined[each.site] if each.head is None else joined[each.site][:, each.head] for each in targets]
    return [part.flatten(1) - part.flatten(1).mean(0) for part in parts]


def random_directions(
    model: HookedTransformer, vector: Any, texts: Sequence[str], n: int, seed: int
) -> list[tuple[str, RandomDirections]]:
    """n controls (kind, directions), in turn isotropic and with the covariance of typical activations of the texts.

    Args:
        model: whose activations.
        vector: anything that `Steer` takes; norms, lengths and places are its own.
        texts: where activations are typical; at most 64 are read.
        n: how many.
        seed: of the draws.

    Raises:
        ValueError: a place of a single dimension, or constant activations.
    """
    generator = torch.Generator().manual_seed(seed)
    targets = targets_of(vector)
    rows = typical_at(model, targets, texts) if n > 1 else [None] * len(targets)
    found = []
    for index in range(n):
        kind = KINDS[index % 2]
        parts = [_drawn(target, None if kind == "isotropic" else own, generator) for target, own in zip(targets, rows)]
        found.append((kind, RandomDirections(tuple(parts), default_unit(vector))))
    return found


def _drawn(target: Target, rows: Float64[Tensor, "row d"] | None, generator: torch.Generator) -> Target:
    own = target.direction.double().cpu()
    if len(own) < 2:
        raise ValueError(f"{target.site} has a single dimension: no direction is orthogonal to the vector's")
    if rows is None:
        raw = torch.randn(len(own), generator=generator, dtype=torch.float64)
    else:
        raw = torch.randn(len(rows), generator=generator, dtype=torch.float64) @ rows
    raw = raw - (raw @ own) * own / (own @ own)
    if not float(raw.norm()) > 0:
        raise ValueError(f"activations at {target.site} are constant in these texts: give longer ones")
    return replace(target, direction=(raw / raw.norm()).to(target.direction))
