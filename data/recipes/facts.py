"""Facts: entities, what is true of each, and how they are ordered, divided and put side by side.

1. A *topic* reads its entities. Each has an answer for every relation of the topic (iron: symbol Fe, number 26).
   `topics.py` has them all.
2. The entities are divided between statements and questions, so that nothing learned from the one helps on the other.
3. What gives itself away by its letters (Tunis, Tunisia) is left out.

Order and division come from hashes of the names, not from a random generator: they are the same with every version of
Python, and an entity that a source adds moves no other.
"""

import csv
import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).resolve().parent.parent / "sources"
WRITTEN = "written for this project"


@dataclass(frozen=True)
class Entity:
    """A thing with facts. Entities with the same `kind` may trade their answers in a false statement."""

    name: str
    answers: dict[str, str]
    """Relation -> answer."""
    kind: str = ""
    """Partners are neighbours in the order of kinds: a state's false capital is a state's."""


@dataclass(frozen=True)
class Relation:
    """How a fact is said. `{entity}` and `{answer}` stand in the templates."""

    affirmative: str
    negated: str
    question: str


@dataclass(frozen=True)
class Topic:
    """A set of relations over one sort of entities."""

    title: str
    read: Callable[[], list[Entity]]
    relations: dict[str, Relation]
    n_statements: int
    """Entities whose facts become statements."""
    n_questions: int
    """Entities whose facts become questions: others."""
    source: str
    licence: str
    packages: tuple[str, ...] = ()
    traps: tuple[str, ...] = ()


def shuffled(items: Iterable[Any], salt: str, key: Callable[[Any], str] = str) -> list[Any]:
    """The items in an order that depends on nothing but their names and the salt."""
    return sorted(items, key=lambda item: hashlib.sha256(f"{salt}:{key(item)}".encode()).digest())


def divide(name: str, topic: Topic) -> tuple[list[Entity], list[Entity]]:
    """The entities for statements and those for questions, each ordered by kind."""
    entities = shuffled(topic.read(), f"{name}/divide", key=lambda entity: entity.name)
    wanted = topic.n_statements + topic.n_questions
    if len(entities) < wanted:
        raise ValueError(f"topic {name!r} has {len(entities)} entities, {wanted} are wanted: lower its counts")
    parts = entities[: topic.n_statements], entities[topic.n_statements : wanted]
    return tuple(sorted(part, key=lambda entity: entity.kind) for part in parts)  # pyright: ignore[reportReturnType]


def blocks(entities: list[Entity], size: int) -> list[list[Entity]]:
    """Entities in blocks of `size` that differ from one another in every answer; a rest that cannot is left out."""
    waiting, result = list(entities), []
    while waiting:
        block = [waiting.pop(0)]
        for entity in list(waiting):
            if len(block) == size:
                break
            if not any(entity.answers[r] == other.answers[r] for other in block for r in entity.answers):
                block.append(entity)
                waiting.remove(entity)
        if len(block) == size:
            result.append(block)
    return result


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Package -> installed version."""
    return {package: version(package) for package in sorted(packages)}


def table(name: str) -> list[dict[str, str]]:
    """The rows of a table in `sources/`."""
    with (SOURCES / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, strict=True))


def gives_itself_away(entity: str, answer: str) -> bool:
    """Whether a word of the answer begins like a word of the entity (four letters: Tunis, Tunisia)."""
    starts = [
        {word[:4] for word in text.casefold().replace("-", " ").split() if len(word) > 3} for text in (entity, answer)
    ]
    return bool(starts[0] & starts[1])
