"""What a vector was fitted on, by hashes in its card: an experiment must not measure on it.

Pairs are refused; groups, whose pairs share words, are warned of.
"""

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from interp import artifact
from interp.dataset import ContrastPair

SEEN = ("pair_hashes", "text_hashes", "group_hashes")
"""Keys of a card that say it."""


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


def seen_texts_card(texts: Iterable[str], groups: Iterable[str] | None) -> dict[str, list[str]]:
    """The same for labelled texts."""
    hashes = [text_hash(text) for text in texts]
    return {"text_hashes": hashes, "group_hashes": [artifact.hash_texts([g]) for g in dict.fromkeys(groups or ())]}


def text_hash(text: str) -> str:
    """Of a text, without the spaces around it."""
    return artifact.hash_texts([text.strip()])[:16]


def pair_hash(pair: ContrastPair) -> str:
    """Of its texts, without the spaces around them."""
    return artifact.hash_texts([pair.prompt.strip(), pair.positive.strip(), pair.negative.strip()])[:16]


def was_seen(card: Mapping[str, Any], pair: ContrastPair) -> bool:
    """Whether the vector of this card was fitted on a pair, or on one of its texts."""
    texts = set(card.get("text_hashes") or ())
    sides = (text_hash(pair.prompt + side) for side in (pair.positive, pair.negative))
    return pair_hash(pair) in (card.get("pair_hashes") or ()) or (bool(texts) and any(side in texts for side in sides))


def refuse_seen(card: Mapping[str, Any], pairs: Iterable[ContrastPair]) -> None:
    """ValueError for pairs that the vector of this card was fitted on, or their texts, a warning for their groups."""
    pairs, groups = list(pairs), set(card.get("group_hashes") or ())
    for index, pair in enumerate(pairs):
        if was_seen(card, pair):
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
