"""A probe's direction and random ones of its norm, at one place of a model."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Float64
from torch import Tensor

from interp.hooks import HookContext
from interp.intervene import special_tokens, typical_rows
from interp.intervene.draws import KINDS, orthogonal_draw
from interp.model import HookedTransformer
from interp.store import Store

MOST_ROWS = 4096
"""Rows of a store that make the covariance."""
MOST_PROMPTS = 512
"""Prompts that do, where there is no store."""


@dataclass(frozen=True)
class Spot:
    """Where a direction is added: a site inside the blocks, and the head if it belongs to one."""

    name: str
    """Full name."""
    layer: int
    head: int | None

    def inside(self, shape: tuple[int, ...]) -> slice:
        """The features of the flattened site that the direction lives in; `shape` is the site's, of one token."""
        if self.head is None:
            return slice(0, math.prod(shape))
        if len(shape) != 2 or not 0 <= self.head < shape[0]:
            raise ValueError(f"{self.name} has no head {self.head}: its values have the shape {list(shape)}")
        return slice(self.head * shape[1], (self.head + 1) * shape[1])

    def adding(
        self, added: Float[Tensor, "copies d"], acted: Bool[Tensor, "batch pos"]
    ) -> Callable[[Tensor, HookContext], Tensor]:
        """A hook that adds row c of `added` to copy c of the texts, at the tokens acted on."""
        copies = len(added)

        def add(value: Tensor, ctx: HookContext) -> Tensor:  # noqa: ARG001
            inside = self.inside(tuple(value.shape[2:]))
            flat = value.flatten(2).unflatten(0, (copies, -1))  # the hook's own copy, written in place
            old = flat[..., inside]
            flat[..., inside] = torch.where(acted[..., None], old + added.to(value)[:, None, None], old)
            return flat.flatten(0, 1).view(value.shape)

        return add


@dataclass(frozen=True, eq=False)
class Bundle:
    """Unit directions, the probe's own first."""

    unit: Float64[Tensor, "direction d"]
    kinds: list[str]
    """`probe`, `isotropic` or `covariance`."""
    typical_norm: float
    """Median norm of typical rows: the unit of strength."""
    n_rows: int
    """Typical rows that norm and covariance come from."""
    reference: str
    """What these rows were."""


def bundle(
    model: HookedTransformer,
    spot: Spot,
    direction: Float[Tensor, " d"],
    prompts: Sequence[str],
    reference: Store | None,
    n: int,
    seed: int,
) -> Bundle:
    """The direction and n random ones that are orthogonal to it, in turn isotropic and with the covariance of typical rows.

    Raises:
        ValueError: a reference without the site, or of another model; another width; no typical token.
    """
    if reference is None:
        rows, source = _recorded(model, spot, prompts), "tokens of the prompts"
    else:
        reference.check_model(model)
        rows, source = _stored(spot, reference, seed), "a store"
    if rows.shape[1] != len(direction):
        raise ValueError(f"the probe has {len(direction)} dimensions, {spot.name} has {rows.shape[1]}")
    if len(direction) < 2:
        raise ValueError(f"{spot.name} has a single dimension: no direction is orthogonal to the probe's")
    wide = rows.double()
    norm, centred = float(wide.norm(dim=-1).median()), wide - wide.mean(0)
    if not norm > 0 or not bool(centred.any()):
        raise ValueError(f"the activations at {spot.name} are constant: nothing is typical there")
    generator = torch.Generator().manual_seed(seed)
    own = direction.double()
    found, kinds = [own], ["probe"]
    for index in range(n):
        kinds.append(KINDS[index % 2])
        found.append(orthogonal_draw(own, centred if kinds[-1] == "covariance" else None, generator))
    return Bundle(torch.stack(found), kinds, norm, len(rows), source)


@torch.inference_mode()
def _recorded(model: HookedTransformer, spot: Spot, prompts: Sequence[str]) -> Float32[Tensor, "row d"]:
    rows = []
    for start in range(0, min(len(prompts), MOST_PROMPTS), 64):
        batch = list(prompts[start : min(start + 64, MOST_PROMPTS)])
        _, cache = model.run_with_cache(batch, sites=spot.name, stop_at_layer=spot.layer + 1)
        value, tokens = cache[spot.name], cache.tokens
        inside = spot.inside(tuple(value.shape[2:]))
        rows.append(typical_rows(value.flatten(2)[..., inside], tokens.mask, special_tokens(model, tokens.ids)))
    return torch.cat(rows).cpu()


def _stored(spot: Spot, store: Store, seed: int) -> Float32[Tensor, "row d"]:
    if spot.name not in store.sites:
        raise ValueError(f"the reference store has no {spot.name}: record it, or leave reference out")
    chosen = np.flatnonzero(store.typical(spot.name))
    if len(chosen) > MOST_ROWS:
        chosen = np.sort(np.random.default_rng(seed).choice(chosen, MOST_ROWS, replace=False))
    if len(chosen) < 2:
        raise ValueError(f"the reference store has {len(chosen)} typical tokens at {spot.name}: record longer texts")
    return store.rows(spot.name, chosen)[:, spot.inside(store.shapes[spot.name])]
