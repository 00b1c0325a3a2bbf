"""What a vector was fitted on, by hashes in its card: an experiment must not measure on it.

Pairs are refused; groups, whose pairs share words, are warned of.
"""

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from interp import artifact
from interp.dataset import ContrastPair


class SharedGroupsWarning(UserWarning):
    """A vector is measured on pairs whose groups it was fitted on."""


def seen_card(pairs: Iterable[ContrastPair]) -> dict[str, list[str]]:
    """What goes into the card of a vector that is fitted on these pairs."""
    pairs = list(pairs)
    groups = dict.fromkeys(pair.group for pair in pairs if pair.group is not None)
    return {
        "pair_hashes": [pair_hash(pair) for pair in pairs],
        "group_hashes": [artifact.hash_texts([group]) for group in groups],
    }


def pair_hash(pair: ContrastPair) -> str:
    """Of its texts."""
    return artifact.hash_texts([pair.prompt, pair.positive, pair.negative])[:16]


def refuse_seen(card: Mapping[str, Any], pairs: Iterable[ContrastPair]) -> None:
    """ValueError for pairs that the vector of this card was fitted on, a warning for their groups."""
    seen, groups = set(card.get("pair_hashes") or ()), set(card.get("group_hashes") or ())
    pairs = list(pairs)
    for index, pair in enumerate(pairs):
        if pair_hash(pair) in seen:
            raise ValueError(
                f"pair {index} ({(pair.prompt or pair.positive)!r}) was used to fit the vector: measure on pairs that it has not "
                "seen, for example by interp.grouped_split"
            )
    named = sorted({pair.group for pair in pairs if pair.group is not None})
    shared = [group for group in named if artifact.hash_texts([group]) in groups]
    if shared:
        warnings.warn(
            f"{len(shared)} of {len(named)} measured groups ({shared[0]!r}) were also fitted on: their pairs share words "
            "with the vector's, so the effect is not one on new words. Divide by group: interp.grouped_split",
            SharedGroupsWarning,
            stacklevel=3,
        )
