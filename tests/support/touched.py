"""Which places of a pass an intervention touches, told by an ablation that makes the stream zero there."""

from typing import Any

from torch import Tensor

from interp.intervene import Ablate
from interp.model import HookedTransformer


def ablation(where: Any) -> Ablate:
    return Ablate(sites="resid_post:0", kind="zero", where=where)


def touched(model: HookedTransformer, x: Any, where: Any, **options: Any) -> list[list[int]]:
    """Places in the row that an ablation touches in one pass."""
    seen: list[Tensor] = []
    with (
        model.intervene(ablation(where)),
        model.hooks({"resid_pre:1": lambda value, ctx: seen.append((value == 0).all(-1))}),
    ):
        model(x, **options)
    return [row.nonzero()[:, 0].tolist() for row in seen[0]]
