"""Short documents that hold the answers of the questions: one for each block of entities.

A document says every fact of its block, in a wording of its own and in an order that mixes the entities. So it holds the
right answer of each of its questions and the wrong ones beside it, each said of another thing: a reader that copies any
answer from it is right one time in four. The group of a document is that of its questions.
"""

from collections.abc import Callable
from typing import Any

from .facts import Entity, blocks, divide, shuffled
from .questions import N_OPTIONS
from .topics import TOPICS

Row = dict[str, Any]
Wording = Callable[[str, str], str]


def _a(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


WORDINGS: dict[tuple[str, str], tuple[Wording, ...]] = {
    ("cities", "country"): (
        lambda entity, answer: f"{entity} is a large city in {answer}.",
        lambda entity, answer: f"Whoever travels to {entity} goes to {answer}.",
    ),
    ("capitals", "capital"): (
        lambda entity, answer: f"{entity} has {answer} as its capital.",
        lambda entity, answer: f"{answer} is the capital city of {entity}.",
    ),
    ("elements", "symbol"): (
        lambda entity, answer: f"{entity} has the symbol {answer}.",
        lambda entity, answer: f"Chemists write {answer} for {entity}.",
    ),
    ("elements", "number"): (
        lambda entity, answer: f"{entity} has the atomic number {answer}.",
        lambda entity, answer: f"The nucleus of {entity} holds {answer} protons.",
    ),
    ("animals", "class"): (
        lambda entity, answer: f"The {entity} is {_a(answer)}.",
        lambda entity, answer: f"Zoologists class the {entity} as {_a(answer)}.",
    ),
    ("translations", "meaning"): (
        lambda entity, answer: f'The Spanish word "{entity}" is "{answer}" in English.',
        lambda entity, answer: f'Where a Spaniard says "{entity}", an English speaker says "{answer}".',
    ),
    ("books", "author"): (
        lambda entity, answer: f'"{entity}" is a work by {answer}.',
        lambda entity, answer: f'{answer} wrote "{entity}".',
    ),
    ("arithmetic", "result"): (
        lambda entity, answer: f"{entity} makes {answer}.",
        lambda entity, answer: f"Whoever works out {entity} gets {answer}.",
    ),
}
"""(topic, relation) -> how its facts are said, in turn."""


def evidence() -> list[Row]:
    """A row for each block of entities, in an order that mixes the topics."""
    rows = []
    for name, topic in TOPICS.items():
        for block in blocks(divide(name, topic)[1], N_OPTIONS):
            group = f"{name}: " + " | ".join(entity.name for entity in block)
            facts = [(entity, relation) for entity in block for relation in topic.relations]
            facts = shuffled(facts, f"{group}/evidence", key=lambda fact: f"{fact[0].name}/{fact[1]}")
            said = [_said(name, entity, relation, turn) for turn, (entity, relation) in enumerate(facts)]
            rows.append({"text": " ".join(said), "group": group, "topic": name, "facts": len(facts)})
    return shuffled(rows, "evidence", key=lambda row: row["group"])


def _said(topic: str, entity: Entity, relation: str, turn: int) -> str:
    wordings = WORDINGS[topic, relation]
    sentence = wordings[turn % len(wordings)](entity.name, entity.answers[relation])
    return sentence[0].upper() + sentence[1:]
