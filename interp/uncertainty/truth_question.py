"""P(True): the model is shown an answer and asked whether it is true (Kadavath et al. 2022, "Language Models (Mostly) Know
What They Know").

1. The prompt gives the question, by choice other sampled answers as brainstorming, and the possible answer; it ends in a
   question that " True" or " False" answers. Solved examples may stand before it.
2. P(True) is p(" True") / (p(" True") + p(" False")), each the probability of the whole word after the prompt.
3. Small models answer this question by habit: the same word every time, whatever the answer. `check_p_true` says from labels
   whether the figure separates right answers from wrong ones; where its interval covers 1/2 nothing may be concluded.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.special import expit

from interp.dataset import Question
from interp.model import HookedTransformer
from interp.probe.figures import Resamples, auroc
from interp.probe.inputs import check_groups, check_labels
from interp.uncertainty.questions import score_options

WORDS = (" True", " False")
"""What P(True) compares, after a prompt that ends in a colon."""
ASKED = "Is the possible answer true? Answer True or False:"
"""The last line of the prompt."""
GROUPS = 5
"""Fewest groups (rows, where none are given) of a check."""


@dataclass(frozen=True)
class PTrueExample:
    """A solved example to show before."""

    question: str
    answer: str
    right: bool
    """Whether the answer is right."""
    others: Sequence[str] = ()
    """Brainstormed answers; give them where the asked questions have them too."""


def p_true_prompt(
    question: str, answer: str, *, others: Sequence[str] = (), examples: Sequence[PTrueExample] = ()
) -> str:
    """The text that is asked; " True" or " False" goes on."""
    shown = [_asked(each.question, each.answer, each.others) + WORDS[not each.right] for each in examples]
    return "\n\n".join([*shown, _asked(question, answer, others)])


def _asked(question: str, answer: str, others: Sequence[str]) -> str:
    ideas = ["Brainstormed answers:", *(other.strip() for other in others)] if others else []
    return "\n".join([f"Question: {question.strip()}", *ideas, f"Possible answer: {answer.strip()}", ASKED])


def p_true(
    model: HookedTransformer,
    questions: Sequence[str] | Any,
    answers: Sequence[str] | Any,
    *,
    others: Sequence[Sequence[str]] | Any = None,
    examples: Sequence[PTrueExample | Sequence[Any]] | Any = None,
    batch_size: int = 32,
    progress: Callable[[int, int], None] | None = None,
) -> Float[np.ndarray, " question"]:
    """The probability that the model gives to "True" against "False" for each answer.

    Args:
        model: a decoder with a tokenizer.
        questions: the questions alone, without "Question:" and "Answer:".
        answers: one a question, not empty.
        others: sampled answers of each question, as brainstorming; None for none.
        examples: solved ones to show before: `PTrueExample`s, or (question, answer, right) with the brainstormed answers as
            a fourth part. They must hold right and wrong answers, and none of the questions that are asked.
        batch_size: sequences in a pass.
        progress: called with (sequences done, in all).

    Returns:
        P(True) of each, within 0 and 1. Whether it means anything is for `check_p_true` to say.

    Raises:
        ValueError: numbers that differ, none, empty questions or answers, examples of one kind, an example among the asked
            questions, or a prompt longer than the context.
    """
    asked, given = _filled("questions", questions), _filled("answers", answers)
    if len(asked) != len(given):
        raise ValueError(f"{len(asked)} questions and {len(given)} answers: give one answer a question")
    ideas = [()] * len(asked) if others is None else [tuple(each) for each in others]
    if len(ideas) != len(asked):
        raise ValueError(f"others has lists for {len(ideas)} questions of {len(asked)}: give one list a question")
    shown = _examples(examples)
    repeated = {example.question.strip().casefold() for example in shown} & {q.strip().casefold() for q in asked}
    if repeated:
        raise ValueError(f"the example {sorted(repeated)[0]!r} is asked too, with its solution before it: leave it out")
    prompts = [p_true_prompt(q, a, others=o, examples=shown) for q, a, o in zip(asked, given, ideas)]
    tasks = [Question(prompt, WORDS, answer=0) for prompt in prompts]
    frame = score_options(model, tasks, batch_size=batch_size, progress=progress)
    logprob = frame.sort_values(["question", "option"])["logprob_sum"].to_numpy(dtype=float).reshape(-1, len(WORDS))
    return expit(logprob[:, 0] - logprob[:, 1])


def _filled(name: str, values: Any) -> list[str]:
    if isinstance(values, str):
        raise ValueError(f"{name} is a list of texts: put a single one in a list")
    listed = list(values)
    if not listed:
        raise ValueError(f"there are no {name}")
    for index, value in enumerate(listed):
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"{name}: row {index} is {value!r}; leave out rows without a text, they cannot be judged")
    return listed


def _examples(given: Any) -> list[PTrueExample]:
    found = [each if isinstance(each, PTrueExample) else PTrueExample(*each) for each in given or ()]
    if found and len({bool(each.right) for each in found}) == 1:
        raise ValueError(
            f"all {len(found)} examples have the same solution, which the model would only repeat: give right and wrong answers"
        )
    return found


# -------------------------------------------------------------------------------------------------------------- check


@dataclass(frozen=True)
class PTrueCheck:
    """Whether P(True) knows right answers from wrong ones."""

    auroc: float
    """P(a right answer has the higher P(True)) + half the ties."""
    low: float
    """Lower end of its 95 % interval, groups resampled."""
    high: float
    """Upper end."""
    n: int
    """Answers."""
    n_groups: int
    """Groups of answers."""
    says_true: float
    """Share of answers with P(True) above 1/2."""
    right: float
    """Share that is right."""

    @property
    def informative(self) -> bool:
        """The interval lies above 1/2."""
        return self.low > 0.5

    @property
    def verdict(self) -> str:
        """One plain sentence or two."""
        head = (
            f"P(True) has AUROC {self.auroc:.3f} ({self.low:.3f}-{self.high:.3f}, n = {self.n}) for right answers; the model "
            f"says True to {self.says_true:.0%} of them, {self.right:.0%} are right."
        )
        if self.informative:
            return head
        side = "cannot be told from chance" if self.high >= 0.5 else "lies below chance"
        return f"{head} That {side}: this model does not answer the question, and no conclusion follows from it."

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, with the verdict."""
        return {**asdict(self), "informative": self.informative, "verdict": self.verdict}


def check_p_true(
    p: Float[np.ndarray, " question"] | Any,
    right: Sequence[Any] | Any,
    groups: Sequence[Any] | str | Any = "rows",
    *,
    n_boot: int = 1000,
    seed: int = 0,
) -> PTrueCheck:
    """Hold P(True) against labels.

    Args:
        p: what `p_true` gave.
        right: 1 where the answer is right, else 0.
        groups: answers of a group are drawn together; "rows" for each on its own.
        n_boot: draws of the interval.
        seed: of the draws.

    Raises:
        ValueError: numbers that differ, values outside 0 to 1 or NaN, answers that are all right or all wrong, fewer than 5
            groups.
    """
    values = np.asarray(p, dtype=float)
    if values.ndim != 1 or not bool(((values >= 0) & (values <= 1)).all()):
        raise ValueError("p holds one probability a question, from 0 to 1 and without NaN")
    y = check_labels(right, len(values))
    codes = check_groups(groups, len(values), GROUPS)
    low, high = Resamples.of(codes, n_boot, seed).interval(values, y)
    found = float(auroc(values, y)[0])
    says = float((values > 0.5).mean())
    return PTrueCheck(found, low, high, len(y), int(codes.max()) + 1, says, float(y.mean()))
