"""Conjunctions and disjunctions of statements, such that words alone carry nothing and no mixture of parts is rare.

1. Two pairs of entities of one topic make a group. Their eight affirmative statements are four true and four false ones,
   and a compound takes one from each pair. No pair of entities stands in two groups, nor in both sets.
2. A conjunction is true in one of four ways, so a blind draw would give 25 % true rows. Here half are: all four ways to
   join two true statements, and four rows with a false part. For disjunctions it is the other way round.
3. Of the three mixtures with a false (for disjunctions: a true) part, each group has two, two rows each, in turn, so
   that over the set they are equally many. The two rows take both entities and both answers of each pair: every word of
   a group stands as often in true as in false rows.
"""

import itertools
from collections import defaultdict
from typing import Any

from .facts import shuffled
from .statements import COLUMNS, Row, statements, words
from .topics import TOPICS

PARTS = ("cities", "capitals", "animals", "translations", "books")
N_GROUPS = 15
"""Groups of a topic in each of the two sets; a multiple of three, for three mixtures come in turn."""

_TEXTS = {
    "conjunctions": "Both are true: {first}, and {second}.",
    "disjunctions": "At least one is true: {first}, or {second}.",
}


def compounds(name: str) -> list[Row]:
    """The rows of `conjunctions` or of `disjunctions`: eight a group."""
    # Two parts of this label give a row of this label, in four ways; every other mixture gives the other label.
    alone = int(name == "conjunctions")
    start = list(_TEXTS).index(name) * N_GROUPS
    rows = []
    for topic in PARTS:
        for number, pair in enumerate(_disjoint_pairs(topic)[start : start + N_GROUPS]):
            one, two = ({label: [row for row in block if row["label"] == label] for label in (0, 1)} for block in pair)
            rows += [_row(name, topic, *parts, alone) for parts in itertools.product(one[alone], two[alone])]
            others = [(alone, 1 - alone), (1 - alone, alone), (1 - alone, 1 - alone)]
            del others[number % 3]
            for first, second in others:
                rows += [_row(name, topic, *parts, 1 - alone) for parts in zip(one[first], two[second], strict=True)]
    return [row | {"pair": f"{name}-{number:04d}"} for number, row in enumerate(rows)]


def _row(name: str, topic: str, first: Row, second: Row, label: int) -> Row:
    said = {
        key: (row["text"][0].lower() + row["text"][1:]).removesuffix(".")
        for key, row in (("first", first), ("second", second))
    }
    joined = {key: f"{first[key]} | {second[key]}" for key in ("entity", "answer")}
    values: dict[str, Any] = {
        "text": _TEXTS[name].format(**said),
        "label": label,
        "group": f"{first['group']} & {second['group']}",
        "topic": name,
        "polarity": "affirmative",
        "pair": "",
        "relation": topic,
        **joined,
    }
    assert tuple(values) == COLUMNS
    parts = f"{first['pair']} & {second['pair']}"
    return values | {"parts": parts, "first": first["label"], "second": second["label"]}


def _disjoint_pairs(topic: str) -> list[tuple[list[Row], list[Row]]]:
    """The topic's pairs of entities, two by two, such that the two share no word but those of every statement."""
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in statements(topic, TOPICS[topic]):
        if row["polarity"] == "affirmative":
            groups[row["group"]].append(row)
    common = set.intersection(*(words(row["text"]) for block in groups.values() for row in block))
    own = {group: set.union(*(words(row["text"]) for row in block)) - common for group, block in groups.items()}
    waiting, result = shuffled(groups, f"{topic}/compounds"), []
    while waiting:
        group = waiting.pop(0)
        partner = next((other for other in waiting if not own[group] & own[other]), None)
        if partner is not None:
            waiting.remove(partner)
            result.append((groups[group], groups[partner]))
    if len(result) < 2 * N_GROUPS:
        raise ValueError(f"topic {topic!r} has {len(result)} disjoint pairs, {2 * N_GROUPS} are wanted: lower N_GROUPS")
    return result
