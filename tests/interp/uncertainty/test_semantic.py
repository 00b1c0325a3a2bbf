"""Semantic entropy: planted answers with exact values, bounds, and one question to the real model."""

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import tiny_model

from interp.meaning import ExactMatch
from interp.model import HookedTransformer
from interp.uncertainty.samples import AnswerSamples, sample_answers
from interp.uncertainty.semantic import (
    SemanticEntropy,
    discrete_semantic_entropy,
    rao_semantic_entropy,
    self_consistency,
    semantic_entropies,
    semantic_entropy,
)

TEXTS = ["Paris", "Paris", "Paris", "It's Paris", "London"]
P = {"Paris": 0.6, "It's Paris": 0.05, "London": 0.1, "": 0.05, "Rome": 0.2}


class Contains:
    """Same where both name the same city."""

    def same(self, pairs: Sequence[tuple[str, str]]) -> list[bool]:
        return [one.split()[-1] == other.split()[-1] for one, other in pairs]

    def describe(self) -> dict[str, Any]:
        return {"match": "last word"}


def by_hand(answers: Sequence[Sequence[str]], greedy: Sequence[str] = (), ended: bool = True) -> AnswerSamples:
    """Samples with the probabilities of P, a list a prompt."""
    rows = []
    for prompt, texts in enumerate(answers):
        for number, text in [(-1, each) for each in greedy[prompt : prompt + 1]] + list(enumerate(texts)):
            logprob = math.log(P[text])
            row = {"prompt": prompt, "sample": number, "text": text, "n_tokens": len(text.split()), "n_end": 1}
            row |= {"logprob": logprob, "logprob_mean": logprob / (len(text.split()) + 1), "entropy_mean": 1.0}
            rows.append(row | {"first_entropy": 1.0, "ended": ended})
    prompts = tuple(f"Question {i}?" for i in range(len(answers)))
    return AnswerSamples(pd.DataFrame(rows), prompts, len(answers[0]), tuple((0,) for _ in rows), {})


def entropy(*p: float) -> float:
    return -sum(each * math.log(each) for each in p)


# --------------------------------------------------------------------------------------------------- planted answers


def test_the_discrete_one_counts_every_sample() -> None:
    (found,) = semantic_entropies(by_hand([TEXTS]), Contains())
    assert found.classes == (0, 0, 0, 0, 1)
    assert found.discrete == pytest.approx(entropy(0.8, 0.2), abs=1e-12)
    assert round(found.discrete, 3) == 0.5
    assert found.discrete_corrected == pytest.approx(found.discrete + 1 / 10)
    # Without the repeated ones it would be another figure.
    assert round(discrete_semantic_entropy([0, 0, 1]), 3) == 0.637
    assert found.self_consistency == 0.8
    assert (found.n, found.n_classes, found.answer) == (5, 2, "Paris")


def test_raos_counts_every_distinct_answer_once_by_its_probability() -> None:
    (found,) = semantic_entropies(by_hand([TEXTS]), Contains())
    assert found.probabilities == pytest.approx((0.65 / 0.75, 0.1 / 0.75))
    assert found.rao == pytest.approx(entropy(0.65 / 0.75, 0.1 / 0.75), abs=1e-12)
    # With the repeated ones it would be another: (3 x .6 + .05) / 1.95.
    assert abs(found.rao - entropy(1.85 / 1.95, 0.1 / 1.95)) > 0.1
    # Length-normalised: Paris and London have 2 tokens with their end, It's Paris has 3.
    masses = 0.6 ** (1 / 2) + 0.05 ** (1 / 3), 0.1 ** (1 / 2)
    assert found.rao_mean == pytest.approx(entropy(*(mass / sum(masses) for mass in masses)), abs=1e-12)


def test_of_equal_texts_the_more_probable_way_counts() -> None:
    one = rao_semantic_entropy(["a", "a", "b"], [math.log(0.3), math.log(0.1), math.log(0.1)], [0, 0, 1])
    assert one == pytest.approx(entropy(0.75, 0.25))


def test_very_improbable_answers_keep_their_odds() -> None:
    # exp(-1000) is 0 in floating point: the largest is taken out first.
    found = rao_semantic_entropy(["a", "b"], [-1000.0, -1000.0 + math.log(3)], [0, 1])
    assert found == pytest.approx(entropy(0.25, 0.75))


def test_one_meaning_has_no_entropy_and_n_meanings_have_the_most() -> None:
    one, all_different = semantic_entropies(by_hand([["Paris"] * 4, ["Paris", "London", "", "Rome"]]))
    assert [one.discrete, one.rao, one.rao_mean, one.self_consistency] == [0.0, 0.0, 0.0, 1.0]
    assert all_different.discrete == pytest.approx(math.log(4))
    assert all_different.self_consistency == 0.25
    assert all_different.rao == pytest.approx(entropy(*(p / 0.95 for p in (0.6, 0.1, 0.05, 0.2))))


def test_empty_answers_are_a_meaning_of_their_own() -> None:
    (found,) = semantic_entropies(by_hand([["", "Paris", "", "London"]]), Contains())
    assert found.classes == (0, 1, 0, 2)
    assert "2 of 4 answers are empty" in " ".join(found.notes)
    assert "4 samples cannot show more than 4 meanings" in found.notes[0]


def test_the_greedy_answer_is_put_beside_the_samples_and_changes_none() -> None:
    samples = by_hand([TEXTS, TEXTS, TEXTS], greedy=["London", "Rome", "It's Paris"])
    found = semantic_entropies(samples, Contains())
    assert [each.greedy for each in found] == ["London", "Rome", "It's Paris"]
    assert [each.greedy_class for each in found] == [1, None, 0]
    assert [each.greedy_share for each in found] == [0.2, 0.0, 0.8]
    plain = semantic_entropies(by_hand([TEXTS]), Contains())[0]
    assert (plain.greedy, plain.greedy_class, plain.greedy_share) == (None, None, None)
    assert {(each.discrete, each.rao, each.classes) for each in found} == {(plain.discrete, plain.rao, plain.classes)}


def test_answers_that_were_cut_are_noted() -> None:
    (found,) = semantic_entropies(by_hand([TEXTS], ended=False), Contains())
    assert any(note.startswith("5 of 5 answers reached the limit of tokens") for note in found.notes)
    assert not semantic_entropies(by_hand([TEXTS]), Contains())[0].notes


def test_frame_text_and_json() -> None:
    (found,) = semantic_entropies(by_hand([TEXTS], greedy=["Paris"]), Contains())
    frame = found.to_frame()
    assert frame["count"].tolist() == [4, 1]
    assert frame["share"].sum() == pytest.approx(1)
    assert frame["probability"].sum() == pytest.approx(1)
    assert frame["texts"].tolist() == [["Paris", "It's Paris"], ["London"]]
    assert "2 meanings in 5 sampled answers (4 say 'Paris'): semantic entropy 0.500 nats by counts, 0.393" in str(found)
    data = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert (data["n"], data["n_classes"], data["match"], data["greedy_share"]) == (5, 2, {"match": "last word"}, 0.8)


def test_questions_go_to_a_match_that_wants_them() -> None:
    class Spy(Contains):
        wants_question = True
        asked: list[tuple[str, str]] = []  # noqa: RUF012

        def same(self, pairs: Sequence[tuple[str, str]]) -> list[bool]:
            self.asked += pairs
            return super().same(pairs)

    spy = Spy()
    semantic_entropies(by_hand([TEXTS]), spy, questions=["Where?"])
    assert spy.asked[0] == ("Where? Paris", "Where? It's Paris")
    with pytest.raises(ValueError, match="there are 2 questions for 1 prompts"):
        semantic_entropies(by_hand([TEXTS]), spy, questions=["Where?", "Who?"])
    spy.asked.clear()
    semantic_entropy(tiny_model(), "Q: where?\nA:", 6, match=spy, questions="Where?", max_new_tokens=3, stop=None)
    assert spy.asked
    assert all(text.startswith("Where? ") for pair in spy.asked for text in pair)
    with pytest.raises(ValueError, match="there are 2 questions for 1 prompts"):
        semantic_entropy(tiny_model(), "Q: where?\nA:", 6, match=spy, questions=["Where?", "Who?"])


# ------------------------------------------------------------------------------------------------------------ bounds


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(-800, 0)), min_size=1, max_size=20), st.integers(1, 4))
def test_both_lie_within_0_and_ln_n(drawn: list[tuple[int, float]], copies: int) -> None:
    texts = [f"{number} {place % 3}" for place, (number, _) in enumerate(drawn)]
    logprobs, classes = [logprob for _, logprob in drawn], [number for number, _ in drawn]
    n = len(drawn)
    discrete, rao = discrete_semantic_entropy(classes), rao_semantic_entropy(texts, logprobs, classes)
    assert 0 <= discrete <= math.log(n) + 1e-12
    assert 0 <= rao <= math.log(n) + 1e-12
    assert 1 / n <= self_consistency(classes) <= 1
    # Counts in proportion give the same discrete entropy; repeated answers the same Rao entropy.
    assert discrete_semantic_entropy(classes * copies) == pytest.approx(discrete, abs=1e-9)
    assert rao_semantic_entropy(texts * copies, logprobs * copies, classes * copies) == pytest.approx(rao, abs=1e-9)
    # Names of classes and the order of the samples do not count.
    order = np.random.default_rng(n).permutation(n)
    again = [[values[i] for i in order] for values in (texts, logprobs, [-number for number in classes])]
    assert rao_semantic_entropy(again[0], again[1], again[2]) == pytest.approx(rao, abs=1e-9)
    assert discrete_semantic_entropy(again[2]) == pytest.approx(discrete, abs=1e-9)


@pytest.mark.parametrize("bad", [float("nan"), float("-inf"), 0.1])
def test_what_is_no_log_probability_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="log-probabilities must be finite and at most 0"):
        rao_semantic_entropy(["a", "b"], [-1.0, bad], [0, 1])


def test_other_input_that_cannot_be_meant_is_refused() -> None:
    for function in (discrete_semantic_entropy, self_consistency):
        for classes in ([], [[0, 1]]):
            with pytest.raises(ValueError, match="there are no answers"):
                function(classes)
        for classes in ([0.0, 1.0], ["a"], [True]):
            with pytest.raises(ValueError, match="classes must be whole numbers"):
                function(classes)
    with pytest.raises(ValueError, match="got 2 texts, 1 log-probabilities and 2 classes"):
        rao_semantic_entropy(["a", "b"], [-1.0], [0, 1])
    with pytest.raises(ValueError, match="the answer 'a' is in two classes"):
        rao_semantic_entropy(["a", "a"], [-1.0, -1.0], [0, 1])
    for n_tokens in ([1], [1, 0], [1, float("nan")]):
        with pytest.raises(ValueError, match="n_tokens must say for each answer"):
            rao_semantic_entropy(["a", "b"], [-1.0, -1.0], [0, 1], n_tokens)


# ------------------------------------------------------------------------------------------------------------ models


def test_several_prompts_give_what_each_alone_gives() -> None:
    model = tiny_model("llama")
    prompts = ["ab", "a longer one", "ab"]
    together = semantic_entropy(model, prompts, 4, max_new_tokens=2, stop=None, seed=3)
    assert isinstance(together, list)
    for prompt, found in zip(prompts, together):
        alone = semantic_entropy(model, prompt, 4, max_new_tokens=2, stop=None, seed=3)
        assert isinstance(alone, SemanticEntropy)
        assert alone.texts == found.texts
        assert alone.classes == found.classes
        assert alone.rao == pytest.approx(found.rao, abs=1e-4)
    assert together[0].texts == together[2].texts
    with pytest.raises(ValueError, match="temperature 0"):
        semantic_entropy(model, "ab", 4, temperature=0.0)


def test_the_real_model_on_one_question(smollm: HookedTransformer) -> None:
    prompt = "Question: What is the capital of Italy?\nAnswer: Rome\nQuestion: What is the capital of France?\nAnswer:"
    found = semantic_entropy(smollm, prompt, 10, max_new_tokens=6)
    assert isinstance(found, SemanticEntropy)
    unknown = "Question: What is the capital of Italy?\nAnswer: Rome\nQuestion: Who was my neighbour's first teacher?\nAnswer:"
    samples = sample_answers(smollm, [prompt, unknown], 10, max_new_tokens=6)
    assert found.texts == tuple(samples.texts(0))
    assert found.greedy == "Paris"
    assert found.answer == "Paris"
    assert found.greedy_share == found.self_consistency >= 0.5
    assert 0 <= found.discrete < math.log(10)
    assert sum(found.probabilities) == pytest.approx(1)
    # The same by hand, from the samples: counts of the normalised texts, and probabilities of the distinct ones.
    classes = [text.lower().strip(" .") for text in found.texts]
    counts = pd.Series(classes).value_counts() / 10
    assert found.discrete == pytest.approx(entropy(*counts), abs=1e-9)
    rows = samples.sampled.query("prompt == 0").groupby("text")["logprob"].max()
    mass = np.exp(rows).groupby(rows.index.str.lower().str.strip(" .")).sum()
    # The samples were drawn beside another prompt: equal but for rounding.
    assert found.rao == pytest.approx(entropy(*(mass / mass.sum())), abs=1e-4)
    assert found.match == ExactMatch().describe()
    # A question that it cannot know has more meanings.
    assert semantic_entropies(samples)[1].discrete > found.discrete


def test_one_sample_is_no_certainty() -> None:
    with pytest.raises(ValueError, match=r"n=1 samples cannot disagree.*sample 2 or more"):
        semantic_entropies(by_hand([["Paris"], ["Rome"]]))
    with pytest.raises(ValueError, match="n=1 samples cannot disagree"):
        semantic_entropy(tiny_model(), "ab", 1)
    assert semantic_entropies(by_hand([["Paris", "Rome"]]))[0].n_classes == 2
