"""P(True): its prompt, its two words, and what may be concluded from it."""

from typing import Any

import numpy as np
import pytest
from tiny import tiny_model

from interp.model import HookedTransformer
from interp.uncertainty.truth_question import PTrueExample, check_p_true, p_true, p_true_prompt

EXAMPLES = [PTrueExample("What is 1 + 1?", "2", True), PTrueExample("What is 1 + 2?", "5", False)]


def test_it_is_the_probability_of_true_against_false(tiny: HookedTransformer) -> None:
    questions, answers = ["Who wrote Emma?", "How many legs has a dog?"], ["Jane Austen", "5"]
    found = p_true(tiny, questions, answers)
    for p, question, answer in zip(found, questions, answers):
        prompt = p_true_prompt(question, answer)
        assert tiny.tokenizer is not None
        start = len(tiny.tokenizer.encode(prompt))
        scores = []
        for word in (" True", " False"):
            ids = tiny.tokenizer.encode(prompt + word)
            logp = tiny(prompt + word)[0].detach().double().log_softmax(-1)
            scores.append(sum(float(logp[at - 1, ids[at]]) for at in range(start, len(ids))))
        assert p == pytest.approx(1 / (1 + np.exp(scores[1] - scores[0])), abs=1e-5)
    np.testing.assert_allclose(found[::-1], p_true(tiny, questions[::-1], answers[::-1], batch_size=1), atol=1e-5)


def test_the_prompt() -> None:
    assert p_true_prompt("Who?", " me ", others=["you", "me"]) == (
        "Question: Who?\nBrainstormed answers:\nyou\nme\nPossible answer: me\nIs the possible answer true? Answer True or False:"
    )
    shown = p_true_prompt("Who?", "me", examples=EXAMPLES)
    assert shown.count("Question:") == 3
    assert "Possible answer: 2\nIs the possible answer true? Answer True or False: True\n\n" in shown
    assert "Possible answer: 5\nIs the possible answer true? Answer True or False: False\n\n" in shown
    assert shown.endswith("True or False:")


def test_examples_and_brainstorming_change_the_figure() -> None:
    model = tiny_model(n_ctx=512)
    questions, answers = ["Who wrote Emma?"], ["Jane Austen"]
    plain = p_true(model, questions, answers)
    assert plain != p_true(model, questions, answers, others=[["Dickens", "Austen"]])
    few = p_true(model, questions, answers, examples=EXAMPLES)
    assert few != plain
    assert few == p_true(model, questions, answers, examples=[("What is 1 + 1?", "2", True), EXAMPLES[1]])


@pytest.mark.parametrize(
    ("questions", "answers", "options", "message"),
    [
        ("Who?", ["me"], {}, "put a single one in a list"),
        ([], [], {}, "there are no questions"),
        (["Who?"], ["me", "you"], {}, "1 questions and 2 answers"),
        (["Who?"], [""], {}, "answers: row 0 is ''"),
        (["Who?"], ["me"], {"others": [["a"], ["b"]]}, "others has lists for 2"),
        (["Who?"], ["me"], {"examples": EXAMPLES[:1]}, "the same solution"),
        (["what is 1 + 1?"], ["2"], {"examples": EXAMPLES}, "is asked too"),
    ],
)
def test_refusals(questions: Any, answers: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        p_true(tiny_model(), questions, answers, **options)


def test_a_check_tells_knowledge_from_habit() -> None:
    rng = np.random.default_rng(0)
    right = rng.integers(0, 2, 300)
    known = check_p_true(np.clip(0.3 + 0.3 * right + 0.1 * rng.normal(size=300), 0, 1), right)
    assert known.informative
    assert known.auroc > 0.9
    assert "no conclusion" not in known.verdict
    habit = check_p_true(np.clip(0.9 + 0.02 * rng.normal(size=300), 0, 1), right)
    assert not habit.informative
    assert habit.says_true == 1.0
    assert "cannot be told from chance" in habit.verdict
    turned = check_p_true(np.clip(0.6 - 0.3 * right + 0.1 * rng.normal(size=300), 0, 1), right)
    assert not turned.informative
    assert "lies below chance" in turned.verdict
    assert turned.to_dict()["informative"] is False
    with pytest.raises(ValueError, match="all 300 labels are 1"):
        check_p_true(np.full(300, 0.5), np.ones(300, dtype=int))
    with pytest.raises(ValueError, match="without NaN"):
        check_p_true(np.array([0.5, np.nan]), [0, 1])


def test_the_real_model_answers_by_habit(smollm: HookedTransformer) -> None:
    capitals = {
        "France": "Paris", "Japan": "Tokyo", "Italy": "Rome", "Egypt": "Cairo", "Norway": "Oslo", "Peru": "Lima",
        "Cuba": "Havana", "Kenya": "Nairobi",
    }  # fmt: skip
    names = list(capitals)
    questions = [f"What is the capital of {name}?" for name in names] * 2
    right = list(capitals.values())
    p = p_true(smollm, questions, [*right, *right[1:], right[0]])
    check = check_p_true(p, [1] * 8 + [0] * 8, [*names, *names])
    assert ((p > 0) & (p < 1)).all()
    assert check.n == 16
    assert check.n_groups == 8
    assert check.says_true in (0.0, 1.0), "this model says the same word to everything"
