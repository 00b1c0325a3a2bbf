"""Pairs of prompts, clean and corrupted, that align token by token.

Patching moves a value from one run into another at the same place. That means something only where both prompts have as
many tokens and the same role at each place; so a pair of unequal length is refused, with a table of its tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from interp import artifact
from interp.model import HookedTransformer
from interp.model.vocabulary import token_id, token_labels
from interp.tokens import Tokens


@dataclass(frozen=True, eq=False)
class PromptPairs:
    """Pairs of prompts and the tokens that answer them, read at each prompt's last token.

    `pairs[3]`, `pairs[:8]` and `pairs[[0, 2]]` give some of them.
    """

    clean: Tokens
    """Prompts [pair pos] whose behaviour is explained, padded on the right."""
    corrupted: Tokens
    """Prompts of the same shape and mask that lack what matters."""
    answers: Int[Tensor, "pair k"]
    """Right next tokens of the clean prompts; -1 fills up where a pair has fewer than others."""
    againsts: Int[Tensor, "pair k2"] | None
    """Tokens that they are measured against."""
    clean_texts: tuple[str, ...]
    """The clean prompts as text."""
    corrupted_texts: tuple[str, ...]
    """The corrupted prompts as text."""
    readable: dict[int, str]
    """Every token id that occurs, as a person reads it."""
    name: str
    """Of the task."""
    card: dict[str, Any]
    """Provenance."""

    def __len__(self) -> int:
        return len(self.clean)

    def __getitem__(self, rows: int | slice | Sequence[int] | Tensor) -> "PromptPairs":
        index = torch.arange(len(self))[rows if not isinstance(rows, Sequence) else list(rows)].reshape(-1)
        if not len(index):
            raise ValueError(f"no pair is left: {rows!r} of {len(self)}")
        width = int(self.clean.lengths[index].max())
        return replace(
            self,
            clean=Tokens(self.clean.ids[index, :width], self.clean.mask[index, :width]),
            corrupted=Tokens(self.corrupted.ids[index, :width], self.corrupted.mask[index, :width]),
            answers=self.answers[index],
            againsts=None if self.againsts is None else self.againsts[index],
            clean_texts=tuple(self.clean_texts[i] for i in index.tolist()),
            corrupted_texts=tuple(self.corrupted_texts[i] for i in index.tolist()),
        )

    @property
    def answer(self) -> Int[Tensor, "pair"]:
        """The first right token of each pair."""
        return self.answers[:, 0]

    @property
    def against(self) -> Int[Tensor, "pair"] | None:
        """The first token that it is measured against."""
        return None if self.againsts is None else self.againsts[:, 0]

    @property
    def differs(self) -> Bool[Tensor, "pair pos"]:
        """Where the two prompts of a pair have different tokens."""
        return (self.clean.ids != self.corrupted.ids) & self.clean.mask

    def check_tokenizer(self, model: HookedTransformer) -> None:
        """ValueError where the pairs were made with another tokenizer than the model's: the same ids are other words."""
        if self.card["tokenizer"] != _tokenizer_hash(model):
            raise ValueError(
                f"these pairs were made with the tokenizer of {self.card['model']}, not with that of {model.cfg.name}: make "
                "them anew for this model"
            )

    @property
    def same_length(self) -> bool:
        """Whether all prompts have as many tokens, so that a position means the same place in each."""
        return bool(self.clean.mask.all())

    def labels(self, pair: int = 0) -> list[str]:
        """The clean prompt's tokens as a person reads them."""
        return [self.readable[i] for i in self.clean.row(pair)]

    def alignment(self, pair: int = 0) -> pd.DataFrame:
        """The tokens of a pair side by side: pos, clean, corrupted, differs."""
        rows = [[self.readable[i] for i in side.row(pair)] for side in (self.clean, self.corrupted)]
        return _table(*rows)

    def to_frame(self) -> pd.DataFrame:
        """A row for each pair: clean, corrupted, answer, against, n_tokens, n_differing."""

        def read(ids: Tensor) -> list[str]:
            return [" | ".join(self.readable[i] for i in row if i >= 0) for row in ids.tolist()]

        return pd.DataFrame(
            {
                "clean": self.clean_texts,
                "corrupted": self.corrupted_texts,
                "answer": read(self.answers),
                "against": [None] * len(self) if self.againsts is None else read(self.againsts),
                "n_tokens": self.clean.lengths.tolist(),
                "n_differing": self.differs.sum(1).tolist(),
            }
        )

    def save(self, path: str | Path) -> Path:
        """Write the pairs as JSON; `load_prompt_pairs` reads them for the same tokenizer."""
        rows = {
            "clean": [self.clean.row(i) for i in range(len(self))],
            "corrupted": [self.corrupted.row(i) for i in range(len(self))],
            "answers": _lists(self.answers),
            "againsts": None if self.againsts is None else _lists(self.againsts),
        }
        texts = {"clean_texts": self.clean_texts, "corrupted_texts": self.corrupted_texts}
        return artifact.write_json(path, {"name": self.name, "card": self.card, **rows, **texts})


def prompt_pairs(
    model: HookedTransformer, clean: Any, corrupted: Any, answer: Any, against: Any = None, *, name: str = "own"
) -> PromptPairs:
    """Pairs from texts.

    Args:
        model: its tokenizer makes the tokens.
        clean, corrupted: a text each, or as many texts (or id rows).
        answer: the right next token after the clean prompt: a text that is one token (mind the space before a word), an
            id, or a list with one of these for each pair. A list within the list is a set of right answers.
        against: in the same way, what the answer is measured against; it must not hold an answer.
        name: of the task.

    Raises:
        ValueError: prompts of unequal length, with a table of their tokens; answers of several tokens.
    """
    for what, side in (("clean", clean), ("corrupted", corrupted)):
        if isinstance(side, list | tuple) and not side:
            raise ValueError(f"{what}= is an empty list: there are no prompts")
    sides = [model.tokenize(side) for side in (clean, corrupted)]
    if len(sides[0]) != len(sides[1]):
        raise ValueError(f"there are {len(sides[0])} clean and {len(sides[1])} corrupted prompts; they go in pairs")
    n = len(sides[0])
    rows = [[side.row(i) for i in range(n)] for side in sides]
    answers = _answers(model, answer, n, "answer")
    againsts = None if against is None else _answers(model, against, n, "against")
    for i, (first, second) in enumerate(zip(*rows)):
        if len(first) != len(second):
            _refuse_unequal(i, [token_labels(model, first), token_labels(model, second)])
        both = set(answers[i]) & set(againsts[i] if againsts else [])
        if both:
            raise ValueError(
                f"pair {i}: {token_labels(model, sorted(both))} is an answer and what it is measured against"
            )
    texts = [
        tuple(side.texts) if side.texts is not None else tuple("".join(token_labels(model, row)) for row in mine)
        for side, mine in zip(sides, rows)
    ]
    return _joined(model, rows, answers, againsts, texts, name)


def load_prompt_pairs(model: HookedTransformer, path: str | Path) -> PromptPairs:
    """Read what `PromptPairs.save` wrote.

    Raises:
        ValueError: pairs of another tokenizer.
    """
    held = artifact.read_json(path)
    if not isinstance(held, dict) or not {"clean", "corrupted", "answers", "card"} <= set(held):
        raise ValueError(f"{path} holds no prompt pairs: it is another kind of file")
    if held["card"]["tokenizer"] != _tokenizer_hash(model):
        raise ValueError(f"{path} holds tokens of another tokenizer than that of {model.cfg.name}; make the pairs anew")
    texts = [tuple(held["clean_texts"]), tuple(held["corrupted_texts"])]
    rows = [held["clean"], held["corrupted"]]
    return _joined(model, rows, held["answers"], held["againsts"], texts, held["name"])


def _joined(
    model: HookedTransformer,
    rows: list[list[list[int]]],
    answers: list[list[int]],
    againsts: list[list[int]] | None,
    texts: list[tuple[str, ...]],
    name: str,
) -> PromptPairs:
    held = {i for side in rows for row in side for i in row} | {i for row in answers for i in row}
    held |= {i for row in againsts or [] for i in row}
    readable = {i: token_labels(model, [i])[0] for i in sorted(held)}
    card = artifact.provenance(
        analysis="prompt pairs", model=model.cfg.name, tokenizer=_tokenizer_hash(model), task=name, n=len(rows[0])
    )
    wide = None if againsts is None else _rectangle(againsts, -1).to(model.device)
    clean, corrupted = (_padded(model, mine) for mine in rows)
    return PromptPairs(
        clean, corrupted, _rectangle(answers, -1).to(model.device), wide, texts[0], texts[1], readable, name, card
    )


def _tokenizer_hash(model: HookedTransformer) -> str | None:
    return model.tokenizer.hash if model.tokenizer is not None else None


def _padded(model: HookedTransformer, rows: list[list[int]]) -> Tokens:
    pad = model.tokenizer.pad_id if model.tokenizer is not None and model.tokenizer.pad_id is not None else 0
    ids = _rectangle(rows, -1)
    return Tokens(ids.masked_fill(ids < 0, pad), ids >= 0).to(model.device)


def _rectangle(rows: list[list[int]], fill: int) -> Int[Tensor, "row k"]:
    width = max(len(row) for row in rows)
    return torch.tensor([row + [fill] * (width - len(row)) for row in rows])


def _lists(ids: Int[Tensor, "row k"]) -> list[list[int]]:
    return [[i for i in row if i >= 0] for row in ids.tolist()]


def _answers(model: HookedTransformer, given: Any, n: int, what: str) -> list[list[int]]:
    """Token ids of each pair's answers."""
    if isinstance(given, Tensor):
        given = given.tolist()
    each = given if isinstance(given, list | tuple) else [given] * n
    if len(each) != n:
        raise ValueError(f"{what}= has {len(each)} values for {n} pairs; give one for all, or one for each")
    found = [
        [token_id(model, one, what) for one in (held if isinstance(held, list | tuple) else [held])] for held in each
    ]
    for pair, ids in enumerate(found):
        if not ids:
            raise ValueError(f"{what}= has no token for pair {pair}")
        if len(set(ids)) < len(ids):
            raise ValueError(
                f"{what}= names a token twice for pair {pair}, which would count double: {token_labels(model, ids)}"
            )
    return found


def _table(clean: Sequence[str], corrupted: Sequence[str]) -> pd.DataFrame:
    width = max(len(clean), len(corrupted))
    first, second = ([*side, *[""] * (width - len(side))] for side in (clean, corrupted))
    return pd.DataFrame(
        {"pos": range(width), "clean": first, "corrupted": second, "differs": [a != b for a, b in zip(first, second)]}
    )


def _refuse_unequal(pair: int, rows: list[list[str]]) -> None:
    table = _table(*rows)
    table["differs"] = ["*" if differs else "" for differs in table["differs"]]
    raise ValueError(
        f"pair {pair}: the clean prompt has {len(rows[0])} tokens and the corrupted one {len(rows[1])}, so a place in one is no "
        f"place in the other; reword them until they have as many:\n{table.to_string(index=False)}"
    )
