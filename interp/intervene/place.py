"""Which tokens an intervention acts on."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool
from torch import Tensor

from interp.hooks import HookContext

PLACES = ("all", "prompt", "generated")
PHASES = ("forward", "prefill", "decode")
HookFunction = Callable[[Tensor, HookContext], Tensor | None]


def chosen_tokens(
    ctx: HookContext, where: str, positions: Sequence[int] | None, phase: str | None
) -> Bool[Tensor, "batch pos"]:
    """True for the tokens of this pass that an intervention applies to; notes on the handle whether there are any."""
    chosen = _chosen(ctx, where, positions, phase)
    if ctx.handle is not None and not ctx.handle.reached:
        ctx.handle.reached = bool(chosen.any())
    return chosen


def _chosen(
    ctx: HookContext, where: str, positions: Sequence[int] | None, phase: str | None
) -> Bool[Tensor, "batch pos"]:
    if phase is not None and ctx.phase != phase:
        return torch.zeros_like(ctx.mask)
    chosen = ctx.mask
    if positions is not None:
        chosen = chosen & torch.isin(ctx.positions, torch.tensor(list(positions), device=ctx.positions.device))
    if where == "all":
        return chosen
    if ctx.prompt_len is None:
        raise ValueError(
            f"where={where!r} needs to know the prompt: pass prompt_len= to the forward call (generate knows it)"
        )
    length = ctx.prompt_len[:, None]
    return chosen & (ctx.positions < length if where == "prompt" else ctx.positions >= length - 1)


def check_place(where: str, positions: Sequence[int] | None, phase: str | None) -> None:
    if where not in PLACES:
        raise ValueError(f"where={where!r} is unknown; choose from {', '.join(PLACES)}")
    if phase is not None and phase not in PHASES:
        raise ValueError(f"phase={phase!r} is unknown; choose from {', '.join(PHASES)}")
    if positions is not None and any(position < 0 for position in positions):
        raise ValueError(f"positions are absolute and count from 0, got {list(positions)}")
