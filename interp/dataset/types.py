"""The values that data files hold: examples, contrast pairs, questions, and a `Dataset` of examples."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Int

from interp.artifact import hash_json
from interp.dataset.rows import FIXED, column, refuse


class ContradictoryLabelsWarning(UserWarning):
    """The same text, apart from case and spacing, stands in a data set once as true and once as false."""


@dataclass(frozen=True)
class Example:
    """One text and what is known about it."""

    text: str
    label: int | None = None
    """1 (true, positive), 0, or None where the set has no labels."""
    group: str | None = None
    """Rows with the same group share facts: a split keeps them together."""
    split: str | None = None
    """The part that the file's author put the row in, if any."""
    meta: dict[str, Any] = field(default_factory=dict)
    """Every other column of the file."""
    messages: tuple[dict[str, Any], ...] | None = None
    """A conversation, `{"role": ..., "content": ...}` each; `text` is then "" until a model's template renders it."""


@dataclass(frozen=True)
class ContrastPair:
    """One prompt with two continuations that differ in a concept."""

    prompt: str
    positive: str
    negative: str
    group: str | None = None
    """Pairs with the same group share words."""
    meta: dict[str, Any] = field(default_factory=dict)
    """Every other column of the file."""


@dataclass(frozen=True)
class Question:
    """A multiple-choice question. The options are continuations of the prompt, to be scored as text."""

    prompt: str
    options: tuple[str, ...]
    answer: int
    """Index of the right option."""
    group: str | None = None
    """Questions with the same group share entities or options."""
    meta: dict[str, Any] = field(default_factory=dict)
    """Every other column of the file."""


@dataclass(frozen=True)
class Dataset:
    """Examples in a fixed order, and a card.

    Raises:
        ValueError: no examples, an empty text, labels other than 0 and 1, or labels or groups on some rows only.
    """

    name: str
    examples: tuple[Example, ...]
    card: dict[str, Any] = field(default_factory=dict)
    """Source, licence, traps ... of a bundled set; name and file of any other."""

    def __post_init__(self) -> None:
        where = f"data set {self.name!r}"
        if not self.examples:
            raise ValueError(f"{where} has no examples")
        empty = (not e.text.strip() and not e.messages for e in self.examples)
        refuse(where, "an empty text", empty, "fill or remove them")
        refuse(where, "a label that is not 0 or 1", (e.label not in (0, 1, None) for e in self.examples), "use 0 and 1")
        for name in ("label", "group"):
            missing = [getattr(e, name) is None for e in self.examples]
            if not all(missing):
                refuse(where, f"no {name}", missing, f"give every row a {name}, or none")

    @property
    def texts(self) -> list[str]:
        """The texts, in order."""
        return [example.text for example in self.examples]

    @property
    def labels(self) -> Int[np.ndarray, " text"] | None:
        """0 or 1 for each text, None for a set without labels."""
        found = [example.label for example in self.examples if example.label is not None]
        return np.array(found, dtype=np.int64) if found else None

    @property
    def groups(self) -> list[str] | None:
        """The group of each text, None for a set without groups."""
        return [example.group for example in self.examples if example.group is not None] or None

    @cached_property
    def hash(self) -> str:
        """Hash of the content, 32 hex digits. The order of the examples counts; name and card do not."""
        return hash_json([_content(example) for example in self.examples])

    def to_frame(self) -> pd.DataFrame:
        """A row for each example: text, label, group, split, the messages if there are any, then the other columns."""
        names = dict.fromkeys(name for example in self.examples for name in example.meta)
        fixed = {name: [getattr(e, name) for e in self.examples] for name in FIXED}
        if any(e.messages is not None for e in self.examples):
            fixed["messages"] = [None if e.messages is None else list(e.messages) for e in self.examples]
        others = {name: [e.meta.get(name) for e in self.examples] for name in names}
        return pd.DataFrame({**fixed, **others}, dtype=object).astype({"label": "Int64"})

    def take(self, rows: Iterable[Any]) -> "Dataset":
        """The examples at these row numbers, in the order given; for the parts of `grouped_split`."""
        return Dataset(self.name, tuple(self.examples[int(row)] for row in rows), self.card)

    def select(self, **columns: Any) -> "Dataset":
        """The examples whose columns have these values; a list, tuple or set means any of its members.

        Raises:
            ValueError: an unknown column, or no example left.
        """
        frame = self.to_frame()
        keep = np.ones(len(self), dtype=bool)
        for name, wanted in columns.items():
            values = frame[column(list(frame), name, f"data set {self.name!r}")]
            choices = list(wanted) if isinstance(wanted, list | tuple | set | frozenset) else [wanted]
            # A missing label is pandas' NA in the frame, which has no truth value.
            keep &= np.array([value is not pd.NA and value in choices for value in values])
            if not keep.any():
                some = ", ".join(map(repr, list(dict.fromkeys(values))[:8]))
                raise ValueError(f"data set {self.name!r}: no row is left with {name}={wanted!r}; it holds {some}")
        return self.take(np.flatnonzero(keep))

    def __len__(self) -> int:
        return len(self.examples)

    def __iter__(self) -> Iterator[Example]:
        return iter(self.examples)


def _content(example: Example) -> list[Any]:
    """What counts for the hash; examples without messages hash as they did before there were any."""
    fields = [example.text, example.label, example.group, example.split, example.meta]
    return fields if example.messages is None else [*fields, list(example.messages)]
