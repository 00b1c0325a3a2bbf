"""Texts that stand in the data twice, and texts that carry both labels: what a person wants to know before a long run."""

import logging
import warnings
from dataclasses import dataclass

import numpy as np
import xxhash

from interp.dataset import ContradictoryLabelsWarning

log = logging.getLogger("interp.recording")


class Repeats:
    """Counts equal texts. Of a text it keeps a hash of 8 bytes and its label."""

    def __init__(self) -> None:
        self._parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []

    def add(self, texts: list[str], labels: list[int | None]) -> None:
        """Take texts in."""
        # Without case and spacing: real sets hold `... industry of Banking.` as false and `... of banking.` as true.
        folded = [" ".join(text.casefold().split()).encode("utf-8", "surrogatepass") for text in texts]
        values = [0 if label is None else label for label in labels]
        known = [label is not None for label in labels]
        self._parts.append(
            (
                np.array([*map(xxhash.xxh3_64_intdigest, folded)], np.uint64),
                np.array(values, np.int64),
                np.array(known, np.bool_),
            )
        )

    def report(self) -> "Repeated":
        """What was found; said in the log, and contradictions as a warning too.

        Warns:
            ContradictoryLabelsWarning: a text carries two labels.
        """
        keys, labels, known = (np.concatenate(column) for column in zip(*self._parts))
        distinct, firsts = np.unique(keys, return_index=True)
        found = Repeated(len(keys) - len(distinct), *_contradictions(keys[known], labels[known]))
        if found.duplicates:
            again = np.ones(len(keys), dtype=bool)
            again[firsts] = False
            log.warning(
                "%d of %d texts repeat an earlier one, apart from case and spacing, for example text %d; a split by rows "
                "hands them to both sides",
                found.duplicates,
                len(keys),
                int(np.flatnonzero(again)[0]),
            )
        if found.contradictions:
            rows = np.flatnonzero(known)[found.rows]
            said = (
                f"{found.contradictions} texts ({len(rows)} rows) carry two labels, apart from case and spacing, for example "
                f"texts {rows[0]} and {rows[keys[rows] == keys[rows[0]]][1]}; nothing can be right on all of them: mend or "
                "remove them"
            )
            log.warning("%s", said)
            warnings.warn(said, ContradictoryLabelsWarning, stacklevel=4)
        return found


@dataclass(frozen=True, eq=False)
class Repeated:
    """How often texts repeat."""

    duplicates: int
    """Texts that stand earlier in the data already, apart from case and spacing."""
    contradictions: int
    """Texts that carry more than one label, each counted once."""
    rows: np.ndarray
    """Which of the labelled texts they are."""


def _contradictions(keys: np.ndarray, labels: np.ndarray) -> tuple[int, np.ndarray]:
    """(number, rows) of the keys that have several labels."""
    pairs = np.unique(np.stack([keys.view(np.int64), labels], axis=1), axis=0)
    each, counts = np.unique(pairs[:, 0], return_counts=True)
    several = each[counts > 1]
    return len(several), np.flatnonzero(np.isin(keys.view(np.int64), several))
