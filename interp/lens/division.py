"""Which rows of a store a lens is trained on, and which are held out: no group, document or text stands on both sides."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Int

from interp.dataset import grouped_split
from interp.store import Store


@dataclass(frozen=True, eq=False)
class TuningRows:
    """Which rows of a store are trained on, and which the table reads; all are typical at every site."""

    sites: list[str]
    """Full names of the sites that are read."""
    train: Int[np.ndarray, "_train"]
    """Rows to train on, ascending."""
    held: Int[np.ndarray, "_held"]
    """Held-out rows, ascending."""
    held_groups: Int[np.ndarray, "_held"]
    """Group of each held-out row, for the bootstrap."""
    not_typical: int
    """Rows that were left out: position 0, special tokens, outliers at one of the places."""

    @classmethod
    def of(
        cls, store: Store, sites: list[str], *, held_out: float, most: tuple[int | None, int], seed: int
    ) -> "TuningRows":
        """Divide a store.

        Args:
            store: whose rows.
            sites: at which they must be typical.
            held_out: share of the texts.
            most: most rows to train on (None: all) and to hold out; drawn at random beyond.
            seed: of the division and the draws.

        Raises:
            ValueError: fewer than two texts or groups, or no typical row on one side.
        """
        typical = np.logical_and.reduce([store.typical(site) for site in sites])
        text, examples = store.tokens["text"].to_numpy(), store.examples
        names = list(map(_group, examples.index, *(_column(examples, name) for name in ("group", "document"))))
        if len(set(names)) < 2:
            raise ValueError("a tuned lens needs at least two texts (or groups of them): one is held out for the table")
        _, held_texts = grouped_split(names, (1 - held_out, held_out), seed)
        group_of = pd.Series(np.unique(names, return_inverse=True)[1], index=examples.index)
        held = np.isin(text, examples.index.to_numpy()[held_texts])
        train, test = np.flatnonzero(typical & ~held), np.flatnonzero(typical & held)
        if not len(train) or not len(test):
            raise ValueError(
                f"of {len(text)} rows {int(typical.sum())} are typical, {len(train)} of them to train on and {len(test)} held "
                "out: record more texts, or more of their tokens"
            )
        rng = np.random.default_rng(seed)
        train, test = (
            rows if n is None or n >= len(rows) else np.sort(rng.choice(rows, n, replace=False))
            for rows, n in zip((train, test), most)
        )
        return cls(sites, train, test, group_of.loc[text[test]].to_numpy(), int((~typical).sum()))

    def counts(self) -> dict[str, int]:
        """For the card."""
        return {"train": len(self.train), "held_out": len(self.held), "left_out_as_not_typical": self.not_typical}


def _column(examples: pd.DataFrame, name: str) -> Sequence[Any]:
    return examples[name].tolist() if name in examples else [None] * len(examples)


def _group(number: int, group: Any, document: Any) -> str:
    """What a text must not be parted from: its group, else its document, else itself."""
    if not pd.isna(group):
        return f"group {group}"
    return f"text {number}" if pd.isna(document) else f"document {document}"
