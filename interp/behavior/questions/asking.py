"""How questions are put, and what a right answer is.

1. A few questions stand before each free question with their answers, so that a model answers in their form instead of
   going on at will. They and all questions of their groups are measured nowhere.
2. A free answer is right if it matches the right option (`answers_match`), or, for answers that are whole sentences, if the
   option nearest to it by a sentence encoder is a right one.
3. Of the three ways to score options and of free answers only those count that are told from chance.
"""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from interp.dataset import Question
from interp.meaning import answers_match, normalised
from interp.uncertainty.questions import right_options

GRADERS = ("match", "nearest")


@dataclass(frozen=True)
class Asked:
    """Questions that are measured, and those that stand before them."""

    questions: tuple[Question, ...]
    """Measured."""
    shots: tuple[Question, ...]
    """Shown with their answers."""
    left_out: int
    """Questions that share a group with a shown one."""

    def prompt(self, question: Question) -> str:
        """A free question behind the shown ones."""
        return prompt_of([(shot.prompt, shot.options[shot.answer]) for shot in self.shots], question.prompt)


def prompt_of(shots: Sequence[Sequence[str]], prompt: str) -> str:
    """Each shown prompt with its answer, and the prompt itself, an empty line between them."""
    return "".join(f"{before}{answer}\n\n" for before, answer in shots) + prompt


def bare(prompt: str) -> str:
    """The question alone, without the words around it: `Question:` or `Q:` before, a last line such as `Answer:` after."""
    lines = prompt.strip().split("\n")
    if len(lines) > 1 and re.fullmatch(r"\w+:", lines[-1].strip()):
        lines = lines[:-1]
    return re.sub(r"^(question|q):\s*", "", "\n".join(lines).strip(), flags=re.IGNORECASE)


def asked(questions: Sequence[Question], n_shots: int, seed: int) -> Asked:
    """Draw the shown questions, of different groups and as far as there are such of different topics.

    Raises:
        ValueError: too few questions, questions without groups, or a broken one.
    """
    if not questions:
        raise ValueError("there are no questions to ask")
    for index, question in enumerate(questions):
        if question.group is None:
            raise ValueError(
                f"question {index} has no group: questions that share facts must not stand on both sides of a fit; give each "
                "its entity, or a group of its own"
            )
        if len(set(question.options)) != len(question.options) or len(question.options) < 2:
            raise ValueError(f"question {index} needs at least two options, all different, got {question.options!r}")
        right = right_options(question)
        if not right or len(right) == len(question.options) or question.answer not in right:
            raise ValueError(
                f"question {index} needs right and wrong options, and its answer must be a right one; meta['right'] is "
                f"{sorted(right)} and the answer {question.answer}"
            )
    first: dict[str, int] = {}
    for index, question in enumerate(questions):
        other = questions[first.setdefault(question.prompt, index)]
        if other.group != question.group:
            raise ValueError(
                f"questions {first[question.prompt]} and {index} have one prompt and two groups: the answer would stand on both "
                "sides of a fit; keep one, or give them one group"
            )
    order = random.Random(seed).sample(range(len(questions)), len(questions))
    shots: list[Question] = []
    for need_topic in (True, False):
        for index in order:
            question = questions[index]
            topics = {shot.meta.get("topic") for shot in shots}
            fresh = all(question.group != shot.group for shot in shots)
            if len(shots) < n_shots and fresh and not (need_topic and question.meta.get("topic") in topics):
                shots.append(question)
    groups = {shot.group for shot in shots}
    left = tuple(question for question in questions if question.group not in groups)
    if len(shots) < n_shots or not left:
        raise ValueError(
            f"{len(questions)} questions of {len({q.group for q in questions})} groups leave none beside {n_shots} shown "
            "ones: give more, or show fewer (n_shots)"
        )
    return Asked(left, tuple(shots), len(questions) - len(left) - len(shots))


def grade(question: Question, answer: str, grader: str, encoder: Any = None) -> bool:
    """Whether a free answer is right; an empty one is not."""
    if not answer.strip():
        return False
    right = right_options(question)
    if grader == "match":
        matched = [
            place
            for place, option in enumerate(question.options)
            if normalised(option) and answers_match(answer, option)
        ]
        # "New York City" begins with "New York": the longest option that fits is the one that was meant.
        longest = max((len(normalised(question.options[place]).split()) for place in matched), default=0)
        meant = {place for place in matched if len(normalised(question.options[place]).split()) == longest}
        return bool(meant & right)
    vectors = np.asarray(encoder([answer, *(option.strip() for option in question.options)], truncate=True))
    return int((vectors[1:] @ vectors[0]).argmax()) in right


def has_last_line(question: Question) -> bool:
    """Whether an option can be scored behind the last line of the prompt alone."""
    before, _, line = question.prompt.rpartition("\n")
    return bool(before.strip() and line.strip())


def to_json(question: Question) -> dict[str, Any]:
    """A question for a piece of work."""
    return {
        "prompt": question.prompt, "options": list(question.options), "answer": question.answer, "group": question.group,
        "right": sorted(right_options(question)), "topic": question.meta.get("topic"),
    }  # fmt: skip


def of_json(value: dict[str, Any]) -> Question:
    """The inverse of `to_json`."""
    meta = {"right": value["right"], "topic": value["topic"]}
    return Question(value["prompt"], tuple(value["options"]), value["answer"], value["group"], meta)
