"""How often a multiple-choice question is answered rightly without reading it: by the wording of its options alone.

Authors write right and wrong answers differently: hedged or flat, long or short, with or without a negation. A
classifier of the words, fitted on other questions, then picks the right option without any model. A model's accuracy
means nothing unless it is above this figure.

1. Each option is a text, 1 where it is right; its group is its question (or the question's group, if it has one).
2. In grouped folds a text baseline scores the options of questions that it was not fitted on.
3. The option with the highest score is the pick; of equal ones each is right by its share. The interval is the bootstrap
   over groups.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from interp.bootstrap import ratio_interval
from interp.dataset import Question
from interp.probe.controls import TEXT_BASELINES, text_logit
from interp.probe.folds import held_out
from interp.probe.inputs import check_groups, check_labels

CHOICE_BASELINES = (*TEXT_BASELINES, "position")


@dataclass(frozen=True)
class ChoiceFigure:
    """How often the right option was picked."""

    kind: str
    """What picked: bag_of_words, text_length or position."""
    accuracy: float
    """Share of the questions whose pick is right."""
    low: float
    """Lower end of the 95 % interval, groups resampled."""
    high: float
    """Upper end."""
    chance: float
    """The same for picks by chance: the mean share of right options."""
    n: int
    """Questions."""
    n_groups: int
    """Groups of questions."""
    n_options: int
    """Options of all questions."""


def choice_baseline(
    questions: Sequence[Question], seed: int = 0, kind: str = "bag_of_words", n_folds: int = 5, n_boot: int = 1000
) -> ChoiceFigure:
    """Accuracy of picking an option without any model, on questions that nothing was fitted on.

    Args:
        questions: with the places of all right options in `meta["right"]` where several are; else `answer` is it.
        seed: of the folds and the bootstrap.
        kind: "bag_of_words" (words and signs of the option), "text_length" (its characters) or "position" (its place:
            far above chance where the right option always stands first).
        n_folds: folds, by the questions' groups; a question without one is its own.
        n_boot: draws for the interval.

    Raises:
        ValueError: an unknown kind, fewer than 5 groups, a question whose right option is not one of its
            options, or nothing but right options.
    """
    if kind not in CHOICE_BASELINES:
        raise ValueError(f"unknown choice baseline {kind!r}: use {', '.join(map(repr, CHOICE_BASELINES))}")
    if n_boot < 100:
        raise ValueError(f"n_boot={n_boot} is too few for a 95 % interval: use at least 100, better 1000")
    right = [_right(number, question) for number, question in enumerate(questions, start=1)]
    sizes = [len(question.options) for question in questions]
    named = [f"question {i}" if q.group is None else f"group {q.group}" for i, q in enumerate(questions)]
    groups = check_groups(named, len(sizes), n_folds)  # of the questions
    of_question = np.repeat(np.arange(len(sizes)), sizes)
    place = np.concatenate([np.arange(size) for size in sizes])
    y = check_labels([int(at in right[number]) for number, at in zip(of_question, place)], len(place))
    texts = [option for question in questions for option in question.options]
    score = _score(kind, texts, y, place, groups[of_question], n_folds, seed)

    hit = np.array([_hit(score[of_question == i], y[of_question == i]) for i in range(len(sizes))])
    share = np.bincount(of_question, weights=y) / np.array(sizes)
    low, high = ratio_interval(np.bincount(groups, weights=hit), np.bincount(groups), seed, n_boot)
    return ChoiceFigure(
        kind=kind,
        accuracy=float(hit.mean()),
        low=max(0.0, float(low)),
        high=min(1.0, float(high)),
        chance=float(share.mean()),
        n=len(sizes),
        n_groups=int(groups.max()) + 1,
        n_options=len(texts),
    )


def _right(number: int, question: Question) -> set[int]:
    """Places of the right options."""
    found = set(question.meta.get("right", [question.answer]))
    if not found or not found <= set(range(len(question.options))) or question.answer not in found:
        raise ValueError(
            f"question {number} has {len(question.options)} options, and its right ones are {sorted(found)} with "
            f"{question.answer} as the answer: places count from 0, and the answer is one of them"
        )
    return found


def _score(
    kind: str,
    texts: list[str],
    y: Int[np.ndarray, " option"],
    place: Int[np.ndarray, " option"],
    groups: Int[np.ndarray, " option"],
    n_folds: int,
    seed: int,
) -> Float[np.ndarray, " option"]:
    """Held-out scores of the options."""
    rows = np.arange(len(y))
    folds = [(np.setdiff1d(rows, part), part) for part in held_out(y, groups, n_folds, seed)]
    if kind != "position":
        return text_logit(kind, texts, y, folds)
    score = np.zeros(len(y))
    for train, test in folds:
        n = np.bincount(place[train], minlength=place.max() + 1)
        # One half of a right and of a wrong one more: a place that training did not have is not surely wrong.
        score[test] = ((np.bincount(place[train], y[train], len(n)) + 0.5) / (n + 1))[place[test]]
    return score


def _hit(score: Float[np.ndarray, " option"], y: Int[np.ndarray, " option"]) -> float:
    """Whether the highest score is a right option's; the share of right ones among equally high ones."""
    return float(y[score == score.max()].mean())
