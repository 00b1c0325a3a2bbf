"""An instruction in the place of a vector: what steering has to be compared with.

Instructing a model beats most vectors (Wu et al. 2025, AxBench, arXiv 2501.17148), and costs nothing but tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from interp.model import HookedTransformer

NOW = datetime(2026, 1, 1)
"""For templates that write today's date: an experiment must not depend on the day that it is run."""


@dataclass(frozen=True)
class Framing:
    """An instruction before every prompt, beside the same context without it.

    A model with a chat template gets the instruction as its system message, then a request to write, and begins its answer by
    the prompt; another one reads the instruction as a paragraph before the prompt.
    """

    model: HookedTransformer
    instruction: str
    request: str = "Please write a short text."
    """What the user says in the conversation."""

    def __post_init__(self) -> None:
        if not isinstance(self.instruction, str) or not self.instruction.strip():
            raise ValueError(f"instruction must say what the model is to do, got {self.instruction!r}")

    def refuse_chats(self, prompts: Sequence[str]) -> None:
        """ValueError for a prompt that is a conversation already: one within another is no fair comparison."""
        marks = [] if self.model.tokenizer is None else list(self.model.tokenizer.named_tokens.values())
        for prompt in prompts:
            if self._chats and any(mark in prompt for mark in marks):
                raise ValueError(
                    f"{prompt[:60]!r} is a conversation already, and an instruction would stand outside it: give plain "
                    "prompts, or put the instruction into the conversation's system message and measure both prompts"
                )

    @cached_property
    def _chats(self) -> bool:
        return self.model.tokenizer is not None and self.model.tokenizer.chat_template is not None

    def __call__(self, prompt: str) -> str:
        """With the instruction."""
        if not self._chats:
            return f"{self.instruction}\n\n{prompt}"
        return self._chat([{"role": "system", "content": self.instruction}]) + prompt

    def without(self, prompt: str) -> str:
        """The same context without it."""
        return self._chat([]) + prompt if self._chats else prompt

    def _chat(self, before: list[dict[str, Any]]) -> str:
        assert self.model.tokenizer is not None
        return self.model.tokenizer.apply_chat([*before, {"role": "user", "content": self.request}], now=NOW)
