"""Prompt pairs that a random model tells apart."""

from collections.abc import Sequence
from typing import Any

import torch

from interp.model import HookedTransformer
from interp.task import PromptPairs, prompt_pairs

CLEAN, CORRUPTED = ["the cat sat", "one two six"], ["the dog sat", "one ten six"]


def telling_pairs(
    model: HookedTransformer, clean: Any = CLEAN, corrupted: Any = CORRUPTED, among: int = 256
) -> PromptPairs:
    """Pairs with the answers whose probability changes most; `among` leaves out tokens that stand for no text."""
    sides: list[Sequence[Any]] = [[side] if isinstance(side, str) else side for side in (clean, corrupted)]
    shifts = []
    for first, second in zip(*sides, strict=True):
        one, two = (model(text)[0, -1].softmax(-1)[:among].as_subclass(torch.Tensor) for text in (first, second))
        shifts.append(one - two)
    shift = torch.stack(shifts)
    return prompt_pairs(model, sides[0], sides[1], shift.argmax(-1), shift.argmin(-1))
