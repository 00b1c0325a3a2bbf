"""Positive and negative prompts, divided once by groups: to fit, to select and to test."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int

from interp import artifact
from interp.dataset import grouped_split
from interp.model import HookedTransformer
from interp.probe.inputs import tie_texts

PARTS = ("fit", "select", "test")


@dataclass(frozen=True, eq=False)
class PromptParts:
    """Positive and negative prompts as texts, and the one division of both."""

    texts: list[str]
    """The positive ones first."""
    n_positive: int
    groups: Int[np.ndarray, " prompt"]
    rows: dict[str, Int[np.ndarray, " _row"]]
    """Part -> prompts."""
    given: str

    @classmethod
    def of(
        cls,
        model: HookedTransformer,
        positive: Sequence[Any],
        negative: Sequence[Any],
        groups: tuple[Sequence[Any], Sequence[Any]] | None,
        shares: Sequence[float],
        seed: int,
    ) -> "PromptParts":
        sides = []
        for name, side in (("positive", positive), ("negative", negative)):
            if isinstance(side, str) or len(side) < 3:
                raise ValueError(
                    f"{name} holds {1 if isinstance(side, str) else len(side)} prompts: give a list of at least 3"
                )
            sides.append([_text(model, each, name, index) for index, each in enumerate(side)])
        texts = [*sides[0], *sides[1]]
        named: list[Any] = list(range(len(texts)))
        if groups is not None:
            if len(groups) != 2 or any(len(own) != len(side) for own, side in zip(groups, sides)):
                raise ValueError(
                    "groups are two lists: one value for each positive prompt, and one for each negative prompt"
                )
            named = [str(each) for own in groups for each in own]
        codes = tie_texts(np.unique(named, return_inverse=True)[1], texts)[0]
        if len(shares) != len(PARTS):
            raise ValueError(f"shares are three, to fit, to select and to test; got {list(shares)}")
        labels = np.repeat([1, 0], [len(sides[0]), len(sides[1])])
        parts = grouped_split(codes, shares, seed, labels=labels)
        words = "each text" if groups is None else "given by the caller"
        return cls(texts, len(sides[0]), codes, dict(zip(PARTS, parts, strict=True)), words)

    def side(self, part: str, index: int) -> Int[np.ndarray, " _row"]:
        """Prompts of a part, positive (0) or negative (1)."""
        rows = self.rows[part]
        return rows[rows < self.n_positive] if index == 0 else rows[rows >= self.n_positive]

    def part(self, part: str) -> tuple[list[str], list[str]]:
        """Positive and negative texts of a part."""
        positive, negative = ([self.texts[row] for row in self.side(part, index)] for index in (0, 1))
        return positive, negative

    def describe(self) -> dict[str, Any]:
        """For the card: rows count within the positive, and within the negative prompts."""
        sizes = {part: [len(self.side(part, 0)), len(self.side(part, 1))] for part in PARTS}
        test = [self.side("test", 0).tolist(), (self.side("test", 1) - self.n_positive).tolist()]
        return {"n": sizes, "groups_from": self.given, "test_rows": test, "prompts": artifact.hash_texts(self.texts)}


def _text(model: HookedTransformer, prompt: Any, name: str, index: int) -> str:
    """A prompt as the model reads it."""
    if isinstance(prompt, str):
        return prompt
    if not isinstance(prompt, Sequence) or not prompt or not all(isinstance(message, Mapping) for message in prompt):
        raise ValueError(f"{name} prompt {index} is neither a text nor a list of messages: {prompt!r}")
    if model.tokenizer is None:
        raise ValueError("conversations need a tokenizer with a chat template: load the model with its tokenizer")
    return model.tokenizer.apply_chat(prompt)
