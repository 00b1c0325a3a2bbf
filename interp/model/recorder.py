"""Recording while a model generates: each row's values side by side, as one pass over its text would give them."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from interp import sites
from interp.hooks import Handle, HookContext, HookPoint, Request, RunState, attached


class Recorder:
    """Keeps what the chosen sites see of the prompt and of every token that is fed after it.

    Args:
        points: the model's hook points.
        run: the state of its passes.
        names: full site names.

    Raises:
        ValueError: a site that has an axis of keys: its width grows with every token.
    """

    def __init__(self, points: Mapping[str, HookPoint], run: RunState, names: Iterable[str]) -> None:
        self._points, self._run = points, run
        self._prompt: dict[str, Tensor] = {}
        self._new: dict[str, list[Tensor]] = {name: [] for name in names}
        for name in self._new:
            if "key" in sites.kind_of(name).shape.split():
                raise ValueError(
                    f"{name} cannot be recorded while generating, for its width grows with every token: "
                    "run the model on out.all_tokens afterwards, run_with_cache(out.all_tokens, sites=...)"
                )

    def reading(self) -> AbstractContextManager[list[Handle]]:
        """Listen for the length of one pass. Attached last, so that it sees what interventions left."""
        entries: list[tuple[str, Callable[..., Any], str]] = [(name, self._read, "read") for name in self._new]
        return attached(self._points, Request(entries), self._run)

    def _read(self, value: Tensor, ctx: HookContext) -> None:
        if ctx.phase == "prefill":
            self._prompt[ctx.name] = value
        else:
            self._new[ctx.name].append(value)

    def values(self, prompt: int, n_prompt: int, row: int, n_new: int) -> dict[str, Tensor]:
        """[n_prompt + n_new ...] at each site: a row of the prefill, whose pads stand left, and the same row's new tokens.

        Args:
            prompt: row of the prefill.
            n_prompt: its real tokens.
            row: row of the later passes.
            n_new: tokens that were fed for it.
        """
        found = {}
        for name, new in self._new.items():
            before = self._prompt[name][prompt]
            found[name] = torch.cat([before[before.shape[0] - n_prompt :], *(value[row] for value in new[:n_new])])
        return found
