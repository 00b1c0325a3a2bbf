"""Multiple choice without a model: planted wordings, lengths and places, and TruthfulQA's own leak."""

from pathlib import Path

import numpy as np
import pytest

from interp.dataset import Question, load_truthfulqa
from interp.probe.choice import choice_baseline

WORDS = [f"word{n}" for n in range(60)]


def questions(n: int = 120, n_options: int = 4, hint: str = "", seed: int = 0) -> list[Question]:
    """Questions whose options are random words; `hint` is written into the right one."""
    rng, found = np.random.default_rng(seed), []
    for number in range(n):
        options = [" " + " ".join(rng.choice(WORDS, 3)) for _ in range(n_options)]
        answer = int(rng.integers(n_options))
        options[answer] += hint
        found.append(Question(f"Q: {number}?\nA:", tuple(options), answer))
    return found


def test_a_word_of_the_right_options_is_found_and_nothing_is_found_where_there_is_none() -> None:
    told = choice_baseline(questions(hint=" perhaps"))
    assert told.accuracy == told.low == told.high == 1.0
    assert (told.chance, told.n, told.n_groups, told.n_options) == (0.25, 120, 120, 480)
    blind = choice_baseline(questions())
    assert blind.low < 0.25 < blind.high
    assert blind == choice_baseline(questions())
    assert choice_baseline(questions(hint=" and more"), kind="text_length").accuracy > 0.9


def test_ties_count_by_the_share_that_is_right() -> None:
    same = [Question("Q:", (" a", " b", " c"), n % 3) for n in range(30)]
    same = [Question(q.prompt, q.options, q.answer, meta={"right": [0, 1, 2]}) for q in same]
    with pytest.raises(ValueError, match="all 90 labels are 1"):  # nothing is wrong
        choice_baseline(same)
    # Equal texts: no option is better than another, whatever stands first.
    equal = [Question("Q:", (" a", " a ", "  a"), n % 3) for n in range(60)]
    assert choice_baseline(equal).accuracy == pytest.approx(1 / 3)


def test_the_place_of_the_right_option_tells_an_unshuffled_file() -> None:
    first = [Question(q.prompt, (q.options[q.answer], *q.options[1:]), 0) for q in questions()]
    assert choice_baseline(first, kind="position").accuracy == 1.0
    shuffled = choice_baseline(questions(), kind="position")
    assert shuffled.low < 0.3


def test_questions_of_one_group_stay_together() -> None:
    """Each group has words of its own: told by a split by question, never by one by group."""
    rng, found = np.random.default_rng(0), []
    for group in range(40):
        for _ in range(6):
            options = [f" yes{group}", f" no{group}", f" never{group}", f" none{group}"]
            order = rng.permutation(4)
            found.append(Question("Q:", tuple(options[i] for i in order), int(np.argmin(order)), group=f"g{group}"))
    alone = choice_baseline([Question(q.prompt, q.options, q.answer) for q in found])
    assert (alone.n_groups, alone.accuracy) == (240, 1.0)
    grouped = choice_baseline(found)
    assert (grouped.n_groups, grouped.accuracy) == (40, 0.25)  # no word is known: four options of one score


@pytest.mark.parametrize(
    ("form", "published", "tolerance"),
    # Naive Bayes of words gives .66 and .82; a logistic regression is a little better on the longer lists.
    [("mc1", 0.66, 0.07), ("binary", 0.82, 0.04)],
)
def test_truthfulqa_is_answered_by_its_wording(
    shared_data: Path, form: str, published: float, tolerance: float
) -> None:
    read = load_truthfulqa(shared_data / "truthfulqa" / "mc_task.json", form)
    found = choice_baseline(read, n_boot=200)
    assert found.n == found.n_groups == 790
    assert found.accuracy == pytest.approx(published, abs=tolerance)
    assert found.chance == pytest.approx({"mc1": 0.223, "binary": 0.5}[form], abs=0.002)
    assert found.low > found.chance + 0.2
    place = choice_baseline(read, kind="position", n_boot=200)
    assert place.low < place.chance + 0.03  # the order of the options is shuffled


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "letters"}, "unknown choice baseline 'letters'.*'position'"),
        ({"n_boot": 10}, "n_boot=10 is too few"),
        ({"questions": questions(3)}, "3 groups are too few"),
        ({"questions": []}, "0 groups are too few"),
        ({"questions": [*questions(9), Question("Q:", (" a", " b"), 2)]}, "question 10 has 2 options.*2 as the answer"),
        ({"questions": [*questions(9), Question("Q:", (" a", " b"), 0, meta={"right": [1]})]}, r"right ones are \[1\]"),
    ],
)
def test_bad_input_is_refused(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        choice_baseline(**{"questions": questions(20), **change})
