"""TruthfulQA's own files as they are: `TruthfulQA.csv` and `mc_task.json`, of 817 questions or of the 790 of January 2025.

1. A file becomes questions with their right and wrong answers: what the CSV joins with `;`, what the JSON keeps in
   `mc0_targets` (binary), `mc1_targets` (one right answer) and `mc2_targets` (all).
2. The same answer twice is one option; an empty one, which a `;` too many has put into the published JSON, is none. An
   answer that the file has as right *and* as wrong is left out, with a warning.
3. Questions: in the files the right answer always stands first, so a seed shuffles the options. Each question has a
   generator of its own: its order does not depend on which other questions there are.
4. Statements: each answer behind its question is one text; its group is the question, since a split by rows would hand
   the rest of the answers to the training part.

The wording alone picks the right answer far more often than chance (`interp.probe.choice.choice_baseline`): show that
beside every figure.

Lin et al. 2022, TruthfulQA: Measuring how models mimic human falsehoods, https://arxiv.org/abs/2109.07958.
"""

import os
import warnings
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np

from interp.artifact import read_json
from interp.dataset.files import read_rows
from interp.dataset.load import existing_file
from interp.dataset.rows import Row, column, refuse, strings
from interp.dataset.types import ContradictoryLabelsWarning, Dataset, Example, Question

FORMS = ("binary", "mc1", "mc2", "statements")
PROMPT = "Q: {}\nA:"
"""How a question is put; an answer follows behind a space."""

_TARGETS = {"binary": "mc0_targets", "mc1": "mc1_targets", "mc2": "mc2_targets", "statements": "mc2_targets"}
_ABOUT = {"Category": "topic", "Type": "type", "Source": "source"}
_COLUMNS = ("Question", "Best Answer", "Best Incorrect Answer", "Correct Answers", "Incorrect Answers", *_ABOUT)
_SOURCE = "https://github.com/sylinrl/TruthfulQA"


@dataclass
class _Item:
    """One question of a file."""

    question: str
    right: list[str]
    wrong: list[str]
    best: str | None = None
    """The answer that the authors call best."""
    about: Row = field(default_factory=dict)
    """topic, type, source."""


@overload
def load_truthfulqa(path: str | os.PathLike[str], form: Literal["statements"], seed: int = 0) -> Dataset: ...
@overload
def load_truthfulqa(
    path: str | os.PathLike[str], form: Literal["binary", "mc1", "mc2"] = "binary", seed: int = 0
) -> list[Question]: ...
@overload
def load_truthfulqa(path: str | os.PathLike[str], form: str, seed: int = 0) -> list[Question] | Dataset: ...
def load_truthfulqa(path: str | os.PathLike[str], form: str = "binary", seed: int = 0) -> list[Question] | Dataset:
    """Read `TruthfulQA.csv` or `mc_task.json`, either version, as questions or as statements.

    Args:
        path: the file. Both hold every form, except that those of 817 questions have no binary one. Categories stand
            in the CSV alone; where the two list different answers, published figures go with the JSON.
        form: "binary" (the best right against the best wrong answer, the form that the authors now recommend), "mc1"
            (the best answer against all wrong ones), "mc2" (all right against all wrong ones) or "statements" (the
            answers of mc2, one row each).
        seed: of the order of the options; statements keep the order of the file.

    Returns:
        binary, mc1, mc2: a `Question` each. `answer` is the best answer (of mc2 in the JSON, which names none, the first
        right one), `meta["right"]` the places of all right ones; the group is the question, the topic its category.
        statements: a `Dataset` with the label, the question as group, and question, answer, topic, type and source.

    Raises:
        ValueError: an unknown form, no such file, a damaged one, a missing column or key, a question that stands twice, or
            one without a right or a wrong answer.

    Warns:
        ContradictoryLabelsWarning: answers that the file has both as right and as wrong; they are left out.
    """
    if form not in FORMS:
        raise ValueError(f"unknown form {form!r} of TruthfulQA: use {', '.join(map(repr, FORMS))}")
    path = existing_file(path)
    readers = {".csv": _of_csv, ".json": _of_json}
    if path.suffix.lower() not in readers:
        raise ValueError(f"cannot read {path.name}: TruthfulQA's own files are TruthfulQA.csv and mc_task.json")
    items = readers[path.suffix.lower()](path, form)
    where, first = path.name, {}
    repeated = [first.setdefault(item.question, i) != i for i, item in enumerate(items)]
    refuse(where, "a question that stands there before", repeated, "keep one of them")
    left_out = _leave_out_contradictions(items)
    refuse(where, "no right answer", (not item.right for item in items), "give each question one, or remove it")
    refuse(where, "no wrong answer", (not item.wrong for item in items), "give each question one, or remove it")
    if left_out:
        warnings.warn(
            f"{where}: {len(left_out)} answers stand both as right and as wrong ({left_out[0]!r}, for example) and are "
            "left out: mend the file to keep them",
            ContradictoryLabelsWarning,
            stacklevel=2,
        )
    if form == "statements":
        return _statements(path, items, left_out)
    return [_question(item, form, seed) for item in items]


# -------------------------------------------------------------------------------------------------------------- files


def _of_csv(path: Path, form: str) -> list[_Item]:
    rows, where = read_rows(path, as_text=_COLUMNS), path.name
    known = list(rows[0])
    if form == "binary" and "Best Incorrect Answer" not in known and "Best Answer" in known:
        raise _no_binary(where, "column 'Best Incorrect Answer'")
    text = {
        name: strings(rows, column(known, name, where), where)
        for name in ("Question", "Best Answer", "Correct Answers", "Incorrect Answers")
    }
    best_wrong = strings(rows, "Best Incorrect Answer", where) if form == "binary" else [""] * len(rows)
    items = []
    for i, row in enumerate(rows):
        best = text["Best Answer"][i].strip()
        right = [best] if form in ("binary", "mc1") else [*text["Correct Answers"][i].split(";"), best]
        wrong = [best_wrong[i]] if form == "binary" else text["Incorrect Answers"][i].split(";")
        about = {ours: row[name] for name, ours in _ABOUT.items() if row.get(name) not in (None, "")}
        items.append(_Item(text["Question"][i].strip(), _once(right), _once(wrong), best, about))
    return items


def _of_json(path: Path, form: str) -> list[_Item]:
    rows, where, key = read_json(path), path.name, _TARGETS[form]
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"{where} is not TruthfulQA's mc_task.json, a list of questions with their targets")
    questions = strings([{"question": row.get("question")} for row in rows], "question", where)
    if form == "binary" and not any(key in row for row in rows):
        raise _no_binary(where, f"key {key!r}")
    targets = [row.get(key) for row in rows]
    mend = f"{key} is an object, answer -> 1 (right) or 0 (wrong); take the file as it is published"
    refuse(where, f"{key} that are not such", (not _is_targets(target) for target in targets), mend)
    if form in ("binary", "mc1"):
        many = (sum(target.values()) > 1 for target in targets)
        refuse(where, "more than one right answer", many, f"{key} has one; read form='mc2' for several")
    return [
        _Item(
            question.strip(),
            _once(answer for answer, value in target.items() if value == 1),
            _once(answer for answer, value in target.items() if value == 0),
            _best(row),
        )
        for question, target, row in zip(questions, targets, rows)
    ]


def _best(row: Row) -> str | None:
    """The right answer of mc1, which is the best one."""
    target = row.get("mc1_targets")
    if not isinstance(target, dict) or not _is_targets(target):
        return None
    return next((answer.strip() for answer, value in target.items() if value == 1), None)


def _no_binary(where: str, what: str) -> ValueError:
    return ValueError(
        f"{where} has no {what}: it is of the version of 817 questions, which has no binary form. Take the files of "
        f"January 2025 ({_SOURCE}), or read form='mc1'"
    )


def _is_targets(value: Any) -> bool:
    if not isinstance(value, dict) or not value:
        return False
    return all(type(label) is int and label in (0, 1) for label in value.values())


def _once(answers: Iterable[str]) -> list[str]:
    """Each answer once, none of them empty."""
    return [answer for answer in dict.fromkeys(answer.strip() for answer in answers) if answer]


def _fold(text: str) -> str:
    return " ".join(text.casefold().split())


def _leave_out_contradictions(items: Sequence[_Item]) -> list[str]:
    """Take answers that are right and wrong out of both lists; returns them."""
    found = []
    for item in items:
        both = set(map(_fold, item.right)) & set(map(_fold, item.wrong))
        found += [answer for answer in item.right if _fold(answer) in both]
        item.right = [answer for answer in item.right if _fold(answer) not in both]
        item.wrong = [answer for answer in item.wrong if _fold(answer) not in both]
    return found


# -------------------------------------------------------------------------------------------------------------- forms


def _question(item: _Item, form: str, seed: int) -> Question:
    answers = item.right + item.wrong
    order = np.random.default_rng([seed, zlib.crc32(item.question.encode())]).permutation(len(answers))
    options = [answers[i] for i in order]
    best = item.best if item.best in item.right else item.right[0]
    right = [place for place, option in enumerate(options) if option in item.right]
    return Question(
        prompt=PROMPT.format(item.question),
        options=tuple(f" {option}" for option in options),
        answer=options.index(best),
        group=item.question,
        meta={"question": item.question, "form": form, "right": right, **item.about},
    )


def _statements(path: Path, items: Sequence[_Item], left_out: Sequence[str]) -> Dataset:
    examples = tuple(
        Example(
            text=f"{PROMPT.format(item.question)} {answer}",
            label=label,
            group=item.question,
            meta={"question": item.question, "answer": answer, **item.about},
        )
        for item in items
        for label, answers in ((1, item.right), (0, item.wrong))
        for answer in answers
    )
    card = {
        "name": "truthfulqa",
        "kind": "statements",
        "file": path.name,
        "source": _SOURCE,
        "licence": "Apache-2.0",
        "group": "the question",
        "left_out": list(left_out),
        "traps": ["The wording alone tells right from wrong answers: show a text baseline beside every figure."],
    }
    return Dataset("truthfulqa", examples, card)
