"""True and false statements from facts, such that words alone carry nothing.

1. Entities are paired, and partners trade their answers: France, Paris and Kenya, Nairobi give two true statements and
   two false ones. So every word of a pair stands as often in a true statement as in a false one.
2. Each statement stands twice, affirmed and negated, with the label flipped; `pair` joins the two.
3. The *group* is the pair of entities. A split by rows, or by single entities, would show one partner's answer and test
   on the other's: a classifier of words then scores far *below* chance. Split by group it has nothing to learn from.
"""

import re
from collections.abc import Iterator
from typing import Any

from .facts import Entity, Topic, blocks, divide, shuffled

Row = dict[str, Any]
COLUMNS: tuple[str, ...] = ("text", "label", "group", "topic", "polarity", "pair", "relation", "entity", "answer")

_COMPARISONS = {
    "larger": ("{a} is larger than {b}.", "{a} is not larger than {b}."),
    "smaller": ("{a} is smaller than {b}.", "{a} is not smaller than {b}."),
}
_ONES = ("", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_TENS = {20: "twenty", 30: "thirty", 40: "forty", 50: "fifty", 60: "sixty", 70: "seventy", 80: "eighty", 90: "ninety"}
N_COMPARISONS = 80


def statements(name: str, topic: Topic) -> list[Row]:
    """The rows of a topic: eight for each pair of entities and relation."""
    pairs = shuffled(blocks(divide(name, topic)[0], 2), f"{name}/order", key=lambda pair: pair[0].name)
    rows = []
    for one, other in pairs:
        for relation, templates in topic.relations.items():
            for entity, partner in ((one, other), (other, one)):
                for source, label in ((entity, 1), (partner, 0)):
                    answer = source.answers[relation]
                    texts = [
                        t.format(entity=entity.name, answer=answer) for t in (templates.affirmative, templates.negated)
                    ]
                    rows.append((texts, label, (one, other), relation, entity.name, answer))
    return list(_numbered(name, rows))


def comparisons() -> list[Row]:
    """Which of two numbers is larger: eight rows for each unordered pair of numbers, with the same words in all."""
    numbers = [number for number in range(21, 100) if number % 10]
    pairs = [(a, b) for a in numbers for b in numbers if a < b]
    rows = []
    for low, high in shuffled(pairs, "comparisons")[:N_COMPARISONS]:
        for relation, templates in _COMPARISONS.items():
            for a, b in ((low, high), (high, low)):
                texts = [t.format(a=spelled(a).capitalize(), b=spelled(b)) for t in templates]
                label = int((a > b) == (relation == "larger"))
                group = Entity(spelled(low), {}), Entity(spelled(high), {})
                rows.append((texts, label, group, relation, f"{spelled(low)} and {spelled(high)}", spelled(b)))
    return list(_numbered("comparisons", rows))


def spelled(number: int) -> str:
    """21 -> twenty-one."""
    return f"{_TENS[number - number % 10]}-{_ONES[number % 10]}"


def words(text: str) -> set[str]:
    """The words of a text, in lower case."""
    return set(re.findall(r"\w+", text.casefold()))


def _numbered(topic: str, rows: list[tuple[Any, ...]]) -> Iterator[Row]:
    for number, (texts, label, (one, other), relation, entity, answer) in enumerate(rows):
        for text, polarity, value in zip(texts, ("affirmative", "negated"), (label, 1 - label), strict=True):
            group, pair = f"{topic}: {one.name} | {other.name}", f"{topic}-{number:04d}"
            yield dict(zip(COLUMNS, (text, value, group, topic, polarity, pair, relation, entity, answer), strict=True))
