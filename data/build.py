"""Make every bundled data set from its sources: `python data/build.py`; `--check` compares instead of writing.

Needs the packages of the extra `dev`. Each set is a folder with one file and its card; README.md is their table.
"""

import argparse
import csv
import io
import json
import platform
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from recipes import (
    cards,
    compounds,
    contrast,
    corpus,
    evidence,
    likelihood,
    paraphrases,
    questions,
    spanish,
    statements,
)
from recipes.topics import TOPICS

from interp.artifact import atomic_write

HERE = Path(__file__).resolve().parent
TOLERANCE = 0.02
"""By how much a baseline may differ from its card: another scikit-learn or processor rounds differently."""

Row = dict[str, Any]
Made = tuple[dict[str, str], dict[str, Any]]
"""File name -> text, and the card."""


def main() -> int:
    """Write or compare; exit status 1 if something differs."""
    parser = argparse.ArgumentParser(description="Make every bundled data set from its sources.")
    parser.add_argument("--check", action="store_true", help="compare with the files that are there, write nothing")
    check = parser.parse_args().check
    committed = {path.parent.name: json.loads(path.read_bytes()) for path in sorted(HERE.glob("*/card.json"))}
    problems = []
    for name, make in recipes().items():
        if check and (changed := _changed_sources(committed.get(name, {}))):
            print(f"{name}: not compared, since {changed}")
            continue
        files, card = make()
        card["name"] = name
        if check:
            found = compare(name, files, card, committed.get(name))
            print(f"{name}: {'; '.join(found) or 'same'}")
            problems += found
        else:
            for file, text in files.items():
                atomic_write(HERE / name / file, text)
            atomic_write(HERE / name / "card.json", dumped(card) + "\n")
            committed[name] = card
            print(f"{name}: {card['rows']} rows, {card['groups']} groups")
    table = cards.readme({name: committed[name] for name in recipes() if name in committed})
    if not check:
        atomic_write(HERE / "README.md", table)
    elif table != (HERE / "README.md").read_text(encoding="utf-8"):
        problems.append("README.md is not the table of the cards")
    problems += [f"{name} has no recipe" for name in committed.keys() - recipes().keys()]
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def recipes() -> dict[str, Callable[[], Made]]:
    """Name of the data set -> how it is made."""
    topics = {
        name: lambda name=name, topic=topic: _statements(statements.statements(name, topic), cards.topic(name))
        for name, topic in TOPICS.items()
    }
    return {
        **topics,
        "comparisons": lambda: _statements(statements.comparisons(), cards.COMPARISONS),
        **{
            name: lambda name=name: _statements(compounds.compounds(name), cards.compound(name))
            for name in ("conjunctions", "disjunctions")
        },
        spanish.NAME: lambda: _statements(spanish.capitals(), cards.SPANISH),
        likelihood.NAME: lambda: _statements(likelihood.likelihood(), cards.LIKELIHOOD),
        "sentiment": lambda: _pairs(
            "Contrast pairs: praise and blame",
            contrast.sentiment(),
            ["Adjectives only: a direction from them may be about words of worth, not about sentiment in general."],
        ),
        "formality": lambda: _pairs(
            "Contrast pairs: formal and informal wording",
            contrast.formality(),
            [
                "Formal words are longer than informal ones: see length, and compare at equal numbers of tokens.",
                "Small words (I, of, contractions) differ between the registers, on families never seen as well.",
            ],
        ),
        paraphrases.NAME: _paraphrases,
        "questions": _questions,
        "evidence": _evidence,
        "python_docs": _corpus,
    }


def _statements(rows: Sequence[Row], about: cards.About) -> Made:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return {"statements.csv": buffer.getvalue()}, cards.statements_card(rows, about)


def _pairs(title: str, rows: Sequence[Row], traps: Sequence[str]) -> Made:
    return {"pairs.jsonl": _jsonl(rows)}, cards.pairs_card(title, rows, traps)


def _paraphrases() -> Made:
    rows = paraphrases.paraphrases()
    return {"pairs.jsonl": _jsonl(rows)}, paraphrases.card(rows)


def _questions() -> Made:
    rows = questions.questions()
    return {"questions.jsonl": _jsonl(rows)}, cards.questions_card(rows)


def _evidence() -> Made:
    rows = evidence.evidence()
    return {"corpus.jsonl": _jsonl(rows)}, cards.evidence_card(rows)


def _corpus() -> Made:
    rows = corpus.corpus()
    card = cards.corpus_card(rows, platform.python_version())
    return {"corpus.jsonl": _jsonl(rows), "LICENSE.txt": corpus.licence()}, card


def compare(name: str, files: dict[str, str], card: dict[str, Any], committed: dict[str, Any] | None) -> list[str]:
    """What differs between the made and the committed set."""
    if committed is None:
        return [f"{name}/card.json is missing"]
    problems = []
    for file, text in files.items():
        path = HERE / name / file
        if not path.is_file() or path.read_bytes() != text.encode():
            problems.append(f"{name}/{file} is not what its sources give")
    if not same(json.loads(dumped(card)), committed):
        problems.append(f"{name}/card.json does not describe its file")
    return problems


def same(one: Any, other: Any) -> bool:
    """Equality of JSON values, fractions within TOLERANCE."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, float) and isinstance(other, int | float):
        return abs(one - other) <= TOLERANCE
    return one == other


def dumped(card: dict[str, Any]) -> str:
    """The card as JSON, keys sorted."""
    return json.dumps(card, indent=1, sort_keys=True, ensure_ascii=False)


def _jsonl(rows: Sequence[Row]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _changed_sources(card: dict[str, Any]) -> str:
    installed = {
        name: platform.python_version() if name == "python" else version(name) for name in card.get("versions", {})
    }
    changed = [
        f"{name} is {installed[name]}, not {made}"
        for name, made in card.get("versions", {}).items()
        if installed[name] != made
    ]
    return ", ".join(changed)


if __name__ == "__main__":
    sys.exit(main())
