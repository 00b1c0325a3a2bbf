"""Matches and classes: planted answers, the real encoder on the bundled pairs, and the threshold that is built in."""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from encoders import write_nli, write_sentence_encoder
from hypothesis import given
from hypothesis import strategies as st

from interp.dataset import Dataset, load_dataset
from interp.meaning import (
    EmbeddingMatch,
    ExactMatch,
    Match,
    NLIMatch,
    SentenceEncoder,
    embedding_threshold,
    load_nli,
    load_sentence_encoder,
    meaning_classes,
)
from interp.meaning.match import CHOSEN


class Spy:
    """Same by the first word, or as a table says; keeps what it was asked."""

    def __init__(self, wants_question: bool = False) -> None:
        self.asked: list[tuple[str, str]] = []
        self.wants_question = wants_question

    def same(self, pairs: Sequence[tuple[str, str]]) -> list[bool]:
        self.asked += pairs
        return [one.split()[0] == other.split()[0] for one, other in pairs]

    def describe(self) -> dict[str, Any]:
        return {"match": "first word"}


@pytest.fixture(scope="module")
def minilm() -> SentenceEncoder:
    return load_sentence_encoder()


@pytest.fixture(scope="module")
def tiny_encoder(tmp_path_factory: pytest.TempPathFactory) -> SentenceEncoder:
    folder = tmp_path_factory.mktemp("encoder") / "tiny"
    write_sentence_encoder(folder)
    return load_sentence_encoder(folder)


# ------------------------------------------------------------------------------------------------------------ classes


@pytest.mark.parametrize(
    ("texts", "classes"),
    [
        (["Paris", "paris.", "The Paris", "London", "Paris"], [0, 0, 0, 1, 0]),
        (["Paris", "", "...", "Rome", " "], [0, 1, 1, 2, 1]),
        (["", ""], [0, 0]),
        (["one"], [0]),
        (["5", "-5", "5%"], [0, 1, 2]),
    ],
)
def test_exact_classes(texts: list[str], classes: list[int]) -> None:
    assert meaning_classes(texts, ExactMatch()) == classes


def test_each_text_meets_the_first_member_of_each_class_once() -> None:
    spy = Spy()
    texts = ["red car", "Red car.", "blue sky", "red sky", "blue car", "", "red sky"]
    assert meaning_classes(texts, spy, "What?") == [0, 0, 1, 0, 1, 2, 0]
    assert spy.asked == [
        ("red car", "blue sky"),
        ("red car", "red sky"),
        ("blue sky", "red sky"),
        ("red car", "blue car"),
        ("blue sky", "blue car"),
    ]


def test_the_question_stands_before_the_texts_where_the_match_wants_it(tmp_path: Path) -> None:
    spy = Spy(wants_question=True)
    assert meaning_classes(["x", "y", ""], spy, "Which city?") == [0, 0, 1]
    assert spy.asked == [("Which city? x", "Which city? y")]
    write_nli(tmp_path)
    assert NLIMatch(load_nli(tmp_path)).wants_question


@given(st.lists(st.sampled_from(["red a", "red b", "red a.", "blue a", "", "!", "green"]), min_size=1, max_size=12))
def test_classes_are_numbered_as_they_begin_and_equal_texts_share_one(texts: list[str]) -> None:
    classes = meaning_classes(texts, Spy())
    assert [number for place, number in enumerate(classes) if number not in classes[:place]] == list(
        range(len(set(classes)))
    )
    for (one, a), (other, b) in combinations(zip(texts, classes), 2):
        words = [text.strip("!").split()[:1] for text in (one, other)]
        assert (a == b) == (words[0] == words[1])


def test_what_is_no_list_of_answers_is_refused() -> None:
    with pytest.raises(ValueError, match="the list is empty"):
        meaning_classes([], ExactMatch())
    with pytest.raises(ValueError, match="texts must be a list of answers"):
        meaning_classes("Paris", ExactMatch())
    for match in (ExactMatch(), Spy()):
        assert isinstance(match, Match)
    with pytest.raises(ValueError, match="pair 0 is not two texts"):
        ExactMatch().same([("a", "b", "c")])


# --------------------------------------------------------------------------------------------------------- embeddings


def test_cosines_decide(tiny_encoder: SentenceEncoder) -> None:
    texts = ["paris is big", "rome is big", "one two three", "not a city", "italy"]
    vectors = tiny_encoder(texts).double()
    cosines = {(a, b): float(vectors[i] @ vectors[j]) for (i, a), (j, b) in combinations(enumerate(texts), 2)}
    threshold = float(np.median(list(cosines.values())))
    match = EmbeddingMatch(tiny_encoder, threshold)
    pairs = list(cosines)
    assert match.same(pairs) == [cosines[pair] >= threshold for pair in pairs]
    assert match.same(pairs[::-1]) == match.same(pairs)[::-1]
    assert match.same([pair[::-1] for pair in pairs]) == match.same(pairs)
    assert match.describe()["chosen"] == "by the caller"


def test_unknown_and_empty_texts_are_compared_by_their_signs(tiny_encoder: SentenceEncoder) -> None:
    match = EmbeddingMatch(tiny_encoder, -1.0)  # everything with a vector is the same
    pairs = [("paris", "rome"), ("🙂", "🙃"), ("🙂", "🙂!"), ("", "paris"), ("", "..."), ("🙂", "paris")]
    assert match.same(pairs) == [True, False, True, False, True, False]


def test_a_refused_text_is_refused_again(tiny_encoder: SentenceEncoder) -> None:
    match = EmbeddingMatch(tiny_encoder, 0.5)
    for _ in range(2):
        with pytest.raises(ValueError, match="has 32 tokens, and tiny reads 24"):
            match.same([("paris", "rome " * 30)])


def test_thresholds_that_are_none_are_refused(tiny_encoder: SentenceEncoder) -> None:
    for encoder in (None, "minilm", str.split):
        with pytest.raises(ValueError, match=r"needs a sentence encoder, got .*load_sentence_encoder"):
            EmbeddingMatch(encoder)
    with pytest.raises(ValueError, match="was chosen for all-minilm-l6-v2 in fp32, and tiny has other weights"):
        EmbeddingMatch(tiny_encoder)
    for threshold in (1.1, -2, float("nan"), True, "0.5"):
        with pytest.raises(ValueError, match="threshold is a cosine"):
            EmbeddingMatch(tiny_encoder, threshold)


def test_the_built_in_threshold_is_what_the_bundled_pairs_give(minilm: SentenceEncoder) -> None:
    found = embedding_threshold(minilm)
    judged = CHOSEN["judged_on"]
    assert found.card["data_hash"] == CHOSEN["data_hash"]
    assert found.card["fingerprint"] == minilm.fingerprint == CHOSEN["fingerprint"]
    assert found.threshold == CHOSEN["threshold"]
    assert found.chosen == pytest.approx(CHOSEN["chosen_on"]["balanced_accuracy"], abs=2e-3)
    names = {"all": "all", "short": "short answers", "sentence": "sentences"}
    expected = {(form, "all"): judged["balanced_accuracy"][name] for form, name in names.items()}
    expected |= {("all", "same"): judged["same_found"], ("all", "different"): judged["different_told_apart"]["all"]}
    expected |= {("all", "content"): judged["different_told_apart"]["other content"]}
    for (form, pairs), figures in expected.items():
        row = found.right(form, pairs)
        assert [row[key] for key in ("right", "low", "high")] == pytest.approx(figures, abs=2e-3)
    assert (found.right()["n"], found.right()["groups"]) == (judged["pairs"], judged["groups"])
    # What the docstring says of names, numbers, units, roles and negations.
    hard = found.table[~found.table.pairs.isin(["all", "same", "different", "content"])]
    counts = {form: ((rows.right * rows.n).sum(), rows.n.sum()) for form, rows in hard.groupby("form")}
    assert counts == {"all": (pytest.approx(7), 52), "short": (pytest.approx(7), 28), "sentence": (0, 24)}
    assert "all: 0.67 [0.62, 0.71], 156 pairs in 26 groups" in str(found)
    assert json.loads(json.dumps(found.to_dict()))["threshold"] == 0.6
    described = EmbeddingMatch(minilm).describe()
    assert described["chosen"]["judged_on"]["balanced_accuracy"]["all"][0] == 0.667
    assert json.loads(json.dumps(described)) == described


def test_what_the_docstring_says_of_exact_match() -> None:
    rows = load_dataset("paraphrases")
    verdicts = ExactMatch().same([(row.meta["one"], row.meta["other"]) for row in rows])
    found = {
        (form, label): sum(v for v, row in zip(verdicts, rows) if (row.meta["form"], row.label) == (form, label))
        for form in ("short", "sentence")
        for label in (0, 1)
    }
    assert found == {("short", 0): 0, ("short", 1): 2, ("sentence", 0): 0, ("sentence", 1): 0}


class Circle:
    """An encoder whose texts are angles in degrees."""

    def __call__(self, texts: list[str]) -> torch.Tensor:
        angles = torch.tensor([float(text) for text in texts], dtype=torch.float64).deg2rad()
        return torch.stack([angles.cos(), angles.sin()], 1)

    def describe(self) -> dict[str, str]:
        return {"encoder": "circle"}


def planted(angles: Sequence[tuple[float, int, str]]) -> Dataset:
    """Pairs at a distance of so many degrees, with labels, half of the groups in each part."""
    rows = load_dataset("paraphrases").examples[: len(angles)]
    made = [
        replace(row, label=label, split=split, group=f"{split} {index // 2}", meta={"one": "0", "other": str(angle)})
        for index, (row, (angle, label, split)) in enumerate(zip(rows, angles))
    ]
    return Dataset("planted", tuple(made))


def test_a_planted_threshold_is_found(monkeypatch: pytest.MonkeyPatch, tiny_encoder: SentenceEncoder) -> None:
    circle = Circle()
    monkeypatch.setattr(SentenceEncoder, "__call__", lambda _, texts, **__: circle(texts))
    near, far = [10.0, 20.0, 30.0, 37.0], [53.2, 60.0, 70.0, 80.0]
    choose = [(angle, 1, "choose") for angle in near] + [(angle, 0, "choose") for angle in far]
    judge = [(50.0, 1, "judge"), (80.0, 1, "judge"), (40.0, 0, "judge"), (70.0, 0, "judge")]
    found = embedding_threshold(tiny_encoder, planted(choose + judge))
    # cos 53.2 = 0.599, cos 37 = 0.799: the middle of 0.60 .. 0.79.
    assert found.threshold == 0.7
    assert found.chosen == 1.0
    # On the other part: cos 50 = 0.64 and cos 80 are under it, cos 40 = 0.77 over it.
    assert found.right(pairs="same")["right"] == 0.0
    assert found.right(pairs="different")["right"] == 0.5
    assert found.right()["right"] == 0.25
    assert (found.right()["n"], found.right()["groups"]) == (4, 2)
    with pytest.raises(ValueError, match="no pairs of form 'short'"):
        found.right("short")


def test_pairs_that_cannot_judge_are_refused(tiny_encoder: SentenceEncoder) -> None:
    good = load_dataset("paraphrases")
    cases = {
        "lacks labels or groups": [replace(row, label=None) for row in good],
        "has no column 'other'": [replace(row, meta={"one": "x"}) for row in good],
        "needs pairs of both labels whose split is 'judge'": [replace(row, split="choose") for row in good],
        "in both parts": [replace(row, group="one") for row in good],
    }
    for message, rows in cases.items():
        with pytest.raises(ValueError, match=message):
            embedding_threshold(tiny_encoder, Dataset("bad", tuple(rows)))


def test_short_answers_need_exact_match(minilm: SentenceEncoder) -> None:
    # Names of one kind have high cosines: what an embedding says of short answers is not what they mean.
    match = EmbeddingMatch(minilm)
    assert match.same([("It was 1944", "It was 1945"), ("He was not there", "He was there")]) == [True, True]
    assert ExactMatch().same([("It was 1944", "It was 1945"), ("It was 1944.", "it was 1944")]) == [False, True]
