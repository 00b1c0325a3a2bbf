"""Erase a concept from a site while the model runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from interp.hooks import HookContext
from interp.intervene.place import HookFunction, Where, check_place, chosen_tokens, describe_place
from interp.model import HookedTransformer


@runtime_checkable
class RowMap(Protocol):
    """What `Erase` needs: a map of activations [... d] and the site that it was made for; `interp.Eraser` is one."""

    @property
    def site(self) -> str | None: ...
    @property
    def rank(self) -> int: ...
    def __call__(self, X: Tensor) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class Erase:
    """Put a site's values through an eraser, so that later layers cannot read the concept there.

    What layers below wrote, and what layers above write again, is not touched: to take a concept from the whole model,
    erase at every site with an eraser fitted there.

    Args:
        eraser: from `interp.fit_eraser`; it knows its site.
        site: another site than the eraser's own, of the same width.
        where, positions, phase: which tokens: a word, or a `Where`.
        head: for `z` and other sites of heads: the one head that the eraser was fitted to.
    """

    eraser: Any
    site: str | None = None
    where: str | Where = "all"
    positions: Sequence[int] | None = None
    phase: str | None = None
    head: int | None = None

    def __post_init__(self) -> None:
        check_place(self.where, self.positions, self.phase)
        if not isinstance(self.eraser, RowMap):
            raise ValueError(
                f"Erase takes an eraser, got {type(self.eraser).__name__}: make one by interp.fit_eraser(activations, labels)"
            )
        if self.site is None and self.eraser.site is None:
            raise ValueError("this eraser does not know its site: give site=, or fit it with site=")

    def describe(self) -> dict[str, Any]:
        """What is erased where, as JSON: for the card of a result."""
        return {
            "intervention": "erase", "kind": getattr(self.eraser, "kind", None), "rank": self.eraser.rank,
            "site": self.site or self.eraser.site, "head": self.head,
            **describe_place(self.where, self.positions, self.phase),
        }  # fmt: skip

    def hook_functions(self, model: HookedTransformer) -> list[tuple[str, HookFunction]]:
        """One function at the eraser's site."""
        site = self.site or self.eraser.site
        assert site is not None

        def erase(value: Tensor, ctx: HookContext) -> Tensor:
            chosen = chosen_tokens(ctx, self.where, self.positions, self.phase)
            if value.ndim == 3 and self.head is None:
                return torch.where(chosen[..., None], self.eraser(value), value)
            if value.ndim != 4 or self.head is None:
                raise ValueError(
                    f"{ctx.name} has the shape {list(value.shape)}: a site of heads needs head=, and other sites take none"
                )
            if not 0 <= self.head < value.shape[2]:
                raise ValueError(f"{ctx.name} has the heads 0 to {value.shape[2] - 1}, got head={self.head}")
            changed = value.clone()
            own = value[:, :, self.head]
            changed[:, :, self.head] = torch.where(chosen[..., None], self.eraser(own), own)
            return changed

        return [(name, erase) for name in model.expand_sites(site)]
