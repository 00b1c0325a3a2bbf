"""What a measure is, and what several of them share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float64
from torch import Tensor

from interp.model import HookedTransformer
from interp.model.inputs import refuse_encoder

Values = Float64[np.ndarray, " item"]
Frame = Callable[[str], str]
"""Prompt -> the prompt with what stands before it."""


@dataclass(frozen=True)
class Setup:
    """What measures need to know of an experiment."""

    model: HookedTransformer
    layer: int
    """The first block that an intervention of the experiment changes."""
    prompts: tuple[str, ...]
    """Of the experiment."""
    batch_size: int = 32
    frame: Frame = str
    """What is put before prompts."""


@runtime_checkable
class Reader(Protocol):
    """A measure that is ready to be read: what needs no intervention was computed."""

    def read(self, interventions: Sequence[Any], texts: Sequence[str]) -> Values:
        """A value for each item. `texts` are the continuations of the experiment's prompts, where the measure wants them."""
        ...


@runtime_checkable
class Measure(Protocol):
    """One number for each item; the classes of this file are measures."""

    @property
    def name(self) -> str: ...
    @property
    def unit(self) -> str: ...
    @property
    def reads_text(self) -> bool: ...
    def items(self, prompts: Sequence[str]) -> list[tuple[str, str | None]]: ...
    def prepare(self, setup: Setup) -> Reader: ...
    def describe(self) -> dict[str, Any]: ...


def prompt_ids(model: HookedTransformer, prompts: Sequence[str]) -> list[list[int]]:
    """Token ids of prompts. ValueError for an empty one, or a model without a tokenizer or that is an encoder."""
    refuse_encoder(model.cfg, "what it says after a prompt")
    if model.tokenizer is None:
        raise ValueError("prompts are texts; load the model with a tokenizer")
    found = [model.tokenizer.encode(prompt, close=False) for prompt in prompts]
    empty = [index for index, ids in enumerate(found) if not ids]
    if empty or not found:
        raise ValueError(f"prompt {empty[0]} has no token" if empty else "this measure needs prompts: give prompts=")
    return found


def own_prompts(own: Any, others: Sequence[str]) -> list[str]:
    """A measure's prompts, or those of the experiment."""
    return list(others) if own is None else [own] if isinstance(own, str) else list(own)


def finite(values: Any, n: int, name: str) -> Values:
    """Values as an array. ValueError for another number of them than items, or one that is no finite number."""
    try:
        found = np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"the measure {name!r} must give numbers, got {values!r}"[:300]) from None
    if found.shape != (n,) or not np.isfinite(found).all():
        raise ValueError(
            f"the measure {name!r} must give a finite number for each of {n} prompts, got {values!r}"[:300]
        )
    return found
