"""Passages: short stretches of the store's texts, and how strongly a latent fires on each of their tokens.

A passage is some tokens before and after one row of the store, within that row's text. Activations are those that the
feature pass kept; on a row that it did not read, since it is not typical, a latent counts as silent.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from interp.model import HookedTransformer
from interp.sae.features import SAEFeatures
from interp.sae.features.contexts import windows
from interp.sae.rows import documents
from interp.store import Store
from interp.tokens import Tokenizer

BEFORE, AFTER = 20, 8
"""Tokens of a passage on both sides of its row. What a latent fires on lies mostly before: the model is causal."""


@dataclass(frozen=True)
class Passage:
    """Neighbouring tokens of a text, as a judge of labels sees them: no activation."""

    tokens: tuple[str, ...]
    """The characters of each token; joined they are the passage."""
    start: int
    """Position of the first of them in its text."""

    @property
    def text(self) -> str:
        """The passage as a person reads it."""
        return "".join(self.tokens)


@dataclass(frozen=True)
class Context(Passage):
    """A passage with the activations of one latent in it."""

    values: tuple[float, ...]
    """Activation on each token; 0 where the latent is silent, and on rows that were not read."""
    at: int
    """Index of the token for which the passage was cut: in an example the one that the latent fires on."""
    text_number: int
    """The text that it was cut from, by its number in the store."""

    @property
    def passage(self) -> Passage:
        """The same without the activations."""
        return Passage(self.tokens, self.start)


class PassageReader:
    """Cuts passages out of a store and says what latents do in them.

    Args:
        features: the feature tables, with the activations that they were made from.
        store: the store that they were made of.
        model: the model, or its tokenizer: turns token ids into text.
        before, after: tokens on both sides of the token that a passage is cut for.

    Raises:
        ValueError: no tokenizer, another one than the store's, or a negative width.
    """

    def __init__(
        self,
        features: SAEFeatures,
        store: Store,
        model: HookedTransformer | Tokenizer,
        *,
        before: int | Any = BEFORE,
        after: int | Any = AFTER,
    ) -> None:
        if before < 0 or after < 0:
            raise ValueError(f"a passage cannot have {min(before, after)} tokens on one side: give 0 or more")
        self.activations, self.store, self.tokenizer = features.activations, store, tokenizer_of(model, store)
        self.before, self.after = before, after
        self._document = documents(store)
        self._texts, first = np.unique(store.tokens["text"].to_numpy(), return_index=True)
        self._document_of_text = self._document[first]
        self._spelled: dict[int, tuple[str, ...]] = {}

    def random_rows(self, n: int, seed: int) -> Int[np.ndarray, " n"]:
        """Up to n rows of the store that were read, one a document, in random order."""
        rows = self.activations.rows
        rng = np.random.default_rng(seed)
        shuffled = rng.permutation(rows.places)
        _, first = np.unique(self._document[rows.row[shuffled]], return_index=True)
        return rows.row[rng.permutation(shuffled[first])[:n]]

    def in_documents_of(self, rows: Int[np.ndarray, " n"], texts: Sequence[int]) -> Bool[np.ndarray, " n"]:
        """Which rows stand in one of these texts, or in another piece of the same document."""
        there = np.isin(self._texts, np.asarray(texts, dtype=np.int64))
        return np.isin(self._document[rows], self._document_of_text[there])

    def silent(self, latent: int, rows: Int[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
        """Around which rows a latent never fires."""
        found = self._windows(latent, rows)
        return np.bincount(found["example"], weights=found["value"], minlength=len(rows)) == 0

    def contexts(self, latent: int, rows: Int[np.ndarray, " n"]) -> list[Context]:
        """The passage around each row, with the activations of a latent."""
        if len(rows) == 0:
            return []
        found = self._windows(latent, rows)
        ends = np.flatnonzero(np.diff(found["example"])) + 1
        columns = (np.split(found[name], ends) for name in ("text", "position", "offset", "value"))
        return [self._context(*each) for each in zip(*columns, strict=True)]

    def _context(self, text: np.ndarray, position: np.ndarray, offset: np.ndarray, value: np.ndarray) -> Context:
        number = int(text[0])
        spelled = self.spelled(number)
        tokens = tuple(spelled[at] for at in position.tolist())
        return Context(tokens, int(position[0]), tuple(value.tolist()), int(np.searchsorted(offset, 0)), number)

    def spelled(self, text: int) -> tuple[str, ...]:
        """The characters of each token of a text; whole texts, since a character may span two tokens."""
        if text not in self._spelled:
            views = self.tokenizer.views(self.store.token_ids(text).tolist())
            # A special token has no characters in the text, but it stands there.
            self._spelled[text] = tuple(view.piece if view.kind == "special" else view.text for view in views)
        return self._spelled[text]

    def _windows(self, latent: int, rows: Int[np.ndarray, " n"]) -> dict[str, np.ndarray]:
        frame = windows(self.activations, latent, rows, before=self.before, after=self.after, model=None)
        columns = {name: frame[name].to_numpy() for name in ("example", "text", "position", "offset")}
        return {**columns, "value": np.nan_to_num(frame["value"].to_numpy(np.float64), nan=0.0)}


def tokenizer_of(model: HookedTransformer | Tokenizer, store: Store) -> Tokenizer:
    """The tokenizer of a model, or the tokenizer itself. ValueError for none, or another than the store's."""
    tokenizer = model if isinstance(model, Tokenizer) else model.tokenizer
    if tokenizer is None:
        raise ValueError("this model has no tokenizer, so tokens have no text: load it with one, or give the tokenizer")
    if tokenizer.hash != store.card["tokenizer"]["hash"]:
        raise ValueError(
            f"{store.path} was recorded with another tokenizer than {tokenizer.name}: its ids mean other texts"
        )
    return tokenizer
