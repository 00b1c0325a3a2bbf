"""Gaussian noise on chosen tokens (Meng et al. 2022, arXiv 2202.05262: three times the embeddings' deviation)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from interp.hooks import HookContext
from interp.intervene.place import HookFunction, Where, check_place, chosen_tokens, describe_place
from interp.intervene.reference import own_generator
from interp.model import HookedTransformer


@dataclass(frozen=True, eq=False)
class Noise:
    """Add Gaussian noise to a site. What a token gets hangs on seed, row and position alone.

    Args:
        site: one site with a vector for each token.
        scale: standard deviation, in the site's own units. 0 changes nothing, bit for bit.
        seed: of the noise.
        shared: every row of a batch gets the noise of row 0.
        where, positions, phase: which tokens: a word, or a `Where`.
    """

    site: str = "embed"
    positions: Sequence[int] | None = None
    scale: Any = 1.0
    seed: int = 0
    shared: bool = False
    where: str | Where = "all"
    phase: str | None = None

    def __post_init__(self) -> None:
        check_place(self.where, self.positions, self.phase)
        if not isinstance(self.scale, int | float) or not math.isfinite(self.scale) or self.scale < 0:
            raise ValueError(f"scale must be a finite number from 0 up, got {self.scale!r}")

    def describe(self) -> dict[str, Any]:
        """The settings as JSON, for the card of a result."""
        return {
            "intervention": "noise", "site": self.site, "scale": self.scale, "seed": self.seed, "shared": self.shared,
            **describe_place(self.where, self.positions, self.phase),
        }  # fmt: skip

    def hook_functions(self, model: HookedTransformer) -> list[tuple[str, HookFunction]]:
        """One function at the site."""
        names = model.expand_sites(self.site)
        if len(names) != 1:
            raise ValueError(f"Noise takes one site, {self.site!r} names {len(names)}")

        def add(value: Tensor, ctx: HookContext) -> Tensor:
            chosen = chosen_tokens(ctx, self.where, self.positions, self.phase)
            if value.ndim != 3:
                raise ValueError(f"{ctx.name} has shape {tuple(value.shape)}; noise goes to sites [batch pos d]")
            if not self.scale:
                return value
            for row, column in chosen.nonzero().tolist():
                drawn = own_generator(self.seed, 0 if self.shared else row, int(ctx.positions[row, column]))
                noise = torch.randn(value.shape[-1], generator=drawn)
                value[row, column] += (self.scale * noise).to(value)
            return value

        return [(names[0], add)]
