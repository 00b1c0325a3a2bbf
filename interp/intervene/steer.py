"""Add a direction, with a strength in units of the site's typical norm."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from interp.hooks import HookContext
from interp.intervene.place import HookFunction, check_place, chosen_tokens
from interp.model import HookedTransformer


@runtime_checkable
class Direction(Protocol):
    """What `Steer` needs of a vector; `interp.SteeringVector` is one."""

    @property
    def site(self) -> str: ...
    @property
    def direction(self) -> Tensor: ...
    @property
    def length(self) -> float: ...
    @property
    def typical_norm(self) -> float: ...
    @property
    def raw_norm(self) -> float | None: ...


@dataclass(frozen=True, eq=False)
class Steer:
    """Add strength x length x typical norm x direction to a site.

    Args:
        vector: a steering vector; its card knows the site and the typical norm there.
        strength: in units of the site's typical norm (with `raw`: of the fitted difference). 0 changes nothing, bit
            for bit.
        site: another site than the vector's own, of the same width; the vector's typical norm is used.
        where, positions, phase: which tokens.
        raw: add the difference as it was fitted, times strength.
    """

    vector: Any
    strength: Any = 0.1
    site: str | None = None
    where: str = "all"
    positions: Sequence[int] | None = None
    phase: str | None = None
    raw: bool = False

    def __post_init__(self) -> None:
        check_place(self.where, self.positions, self.phase)
        if not isinstance(self.vector, Direction):
            raise ValueError(
                f"Steer takes a steering vector, got {type(self.vector).__name__}: make one by interp.steering_vector(...), or "
                "interp.SteeringVector(direction, site, typical_norm)"
            )
        if not isinstance(self.strength, int | float) or not math.isfinite(self.strength):
            raise ValueError(f"strength must be a finite number, got {self.strength}")
        if self.raw and self.vector.raw_norm is None:
            raise ValueError("raw=True needs a vector with a fitted length; this one is a sum of others")

    def hook_functions(self, model: HookedTransformer) -> list[tuple[str, HookFunction]]:
        """One function at the vector's site."""
        names = model.expand_sites(self.site or self.vector.site)
        unit = self.vector.raw_norm if self.raw else self.vector.typical_norm
        assert unit is not None
        added = self.vector.direction * (self.strength * self.vector.length * unit)

        def add(value: Tensor, ctx: HookContext) -> Tensor:
            if value.shape[-1] != added.shape[0]:
                raise ValueError(f"the vector has {added.shape[0]} dimensions, {ctx.name} has {value.shape[-1]}")
            chosen = chosen_tokens(ctx, self.where, self.positions, self.phase)
            if not self.strength:
                return value
            return torch.where(chosen[..., None], value + added.to(value), value)

        return [(name, add) for name in names]
