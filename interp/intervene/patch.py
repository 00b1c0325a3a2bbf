"""Put in values that another run recorded."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from interp import sites as site_names
from interp.hooks import HookContext
from interp.intervene.place import HookFunction, Where, check_place, chosen_tokens
from interp.model import HookedTransformer


@dataclass(frozen=True, eq=False)
class Patch:
    """Put in values recorded in another run of the same shape.

    Args:
        site: one site, or one component of it (`z:5.3`).
        source: an ActivationCache (or mapping full site name -> value) or the value [batch pos ...] itself. A batch of
            1 serves every row.
        where, positions, phase: which tokens: a word, or a `Where`.
    """

    site: str
    source: Any
    where: str | Where = "all"
    positions: Sequence[int] | None = None
    phase: str | None = None

    def __post_init__(self) -> None:
        check_place(self.where, self.positions, self.phase)

    def hook_functions(self, model: HookedTransformer) -> list[tuple[str, HookFunction]]:
        """One function at the site."""
        selected = model.select_sites(self.site)
        if len(selected) != 1:
            raise ValueError(f"Patch takes one site, {self.site!r} names {len(selected)}")
        name, component = selected[0].name, selected[0].component
        axis = site_names.kind_of(name).component
        source = self.source if isinstance(self.source, Tensor) else self.source[name]

        def patch(value: Tensor, ctx: HookContext) -> Tensor:
            if source.shape[1:] != value.shape[1:] or source.shape[0] not in (1, value.shape[0]):
                raise ValueError(
                    f"{name}: the source has shape {tuple(source.shape)}, the run {tuple(value.shape)}; both prompts "
                    "must have the same number of tokens"
                )
            if axis == 1:
                chosen = chosen_tokens(ctx, self.where, self.positions, self.phase)[:, None, :, None]
            else:
                chosen = chosen_tokens(ctx, self.where, self.positions, self.phase)
                chosen = chosen.view(*chosen.shape, *([1] * (value.ndim - 2)))
            if component is not None:
                assert axis is not None
                picked = torch.zeros(value.shape[axis], dtype=torch.bool, device=value.device)
                picked[component] = True
                chosen = chosen & picked.view(-1, *([1] * (value.ndim - axis - 1)))
            return torch.where(chosen, source.to(value), value)

        return [(name, patch)]
