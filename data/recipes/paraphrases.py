"""Pairs of texts that mean the same or not: what a match of meanings is chosen and judged on.

A group is one short answer or sentence with two ways of saying the same and three of saying something else. Two of these
use nearly the same words: another entity, number, unit, time or quantity, a negation, an antonym, or the roles turned round.
So overlap of words tells little. The third (`content`) says something else altogether, as another sampled answer may.

Every second group of a form is in the split `choose`, the others in `judge`: a threshold is chosen on the first alone.
"""

import re
from typing import Any

from . import baselines
from .facts import WRITTEN, table

Row = dict[str, Any]
NAME = "paraphrases"
PAIRS = (
    ("text", "same_one", "same"),
    ("text", "same_two", "same"),
    ("same_one", "same_two", "same"),
    ("text", "other_one", "why_one"),
    ("text", "other_two", "why_two"),
    ("text", "another", "content"),
)
"""Columns of the two texts, and what differs: a word, or the column that says it."""


def paraphrases() -> list[Row]:
    """Six pairs a group, three of label 1 and three of label 0."""
    seen: dict[str, int] = {}
    rows = []
    for line in table(NAME):
        number = seen[line["form"]] = seen.get(line["form"], -1) + 1
        for one, other, why in PAIRS:
            rows.append(
                {
                    "text": f"{line[one]}\n{line[other]}",
                    "one": line[one],
                    "other": line[other],
                    "label": int(why == "same"),
                    "group": line["group"],
                    "split": "choose" if number % 2 == 0 else "judge",
                    "form": line["form"],
                    "why": line.get(why, why),
                }
            )
    return rows


def card(rows: list[Row]) -> dict[str, Any]:
    """The card of the set."""
    texts, labels, groups = _of(rows, "text"), _of(rows, "label"), _of(rows, "group")
    return {
        "kind": "paraphrases",
        "file": "pairs.jsonl",
        "title": "Pairs of short answers and of sentences that mean the same or not",
        "source": WRITTEN,
        "licence": "Apache-2.0",
        "versions": {},
        "rows": len(rows),
        "groups": len(set(groups)),
        "group": "one answer or sentence with its partners; for answers the question",
        "labels": {str(label): labels.count(label) for label in (0, 1)},
        "forms": {form: _of(rows, "form").count(form) for form in ("sentence", "short")},
        "why": {why: _of(rows, "why").count(why) for why in sorted(set(_of(rows, "why")))},
        "columns": {
            "one, other": "the pair; text has both, a line each",
            "label": "1 same meaning, 0 not",
            "split": "choose or judge: a threshold is chosen on the one and judged on the other; groups are not divided",
            "form": "short: answers to the question that is the group; sentence: sentences",
            "why": "same, or what differs: entity, number, unit, time, quantity, negation, antonym, roles, content (all of it)",
        },
        "text_only_auroc": {
            "words_grouped_split": baselines.words(texts, labels, groups),
            "words_random_split": baselines.words(texts, labels, None),
            "length": baselines.length(texts, labels),
            "overlap": baselines.auroc([_overlap(row["one"], row["other"]) for row in rows], labels),
        },
        "traps": [
            "Split by group: the pairs of a group have texts in common.",
            "Two thirds of the pairs of label 0 are hard on purpose (see why). Answers that a model samples may differ more "
            "widely, so judge a match by the kinds of pairs that yours are like.",
            "Overlap of words hardly tells the label: see overlap in text_only_auroc.",
            "English only, written by few hands.",
        ],
    }


def _of(rows: list[Row], key: str) -> list[Any]:
    return [row[key] for row in rows]


def _overlap(one: str, other: str) -> float:
    """Shared words as a share of all words of the two."""
    first, second = (set(re.findall(r"\w+", text.casefold())) for text in (one, other))
    return len(first & second) / len(first | second)
