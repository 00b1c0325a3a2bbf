"""Semantic entropy: how many meanings do sampled answers have, and how evenly are they spread (Farquhar et al. 2024, Nature 630)?

1. Answers are sampled at a temperature (`sample_answers`) and put into classes of meaning by a match.
2. Discrete: the share of the samples in each class. Every sample counts, so a repeated answer counts as often as it came.
3. Rao: the probability of each *distinct* answer under the model at temperature 1, summed within classes and divided by the sum
   over all of them. A repeated answer counts once, since its probability says already how often it comes.

Both are in nats, 0 where all answers mean the same, and at most ln of the number of answers. With few samples both are too low
for a model that is unsure: n samples cannot show more than n meanings.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from interp import artifact
from interp.meaning import ExactMatch, Match, meaning_classes, normalised
from interp.model import HookedTransformer
from interp.uncertainty.samples import GREEDY, AnswerSamples, sample_answers

FEW = 5
"""Fewer samples than this tell hardly anything."""


def discrete_semantic_entropy(classes: Sequence[int] | Any, *, miller_madow: bool = False) -> float:
    """Entropy of the shares of classes, nats.

    Args:
        classes: the class of each sample, from `meaning_classes`. Samples are not deduplicated: Paris, Paris, Paris, It's Paris
            and London, with the first four of one meaning, give 0.500; without the repeated ones they would give 0.637.
        miller_madow: add (number of classes - 1) / (2 n), the first-order correction for what n samples miss; the result can
            then be over ln n.

    Raises:
        ValueError: no samples, or a class that is no whole number.
    """
    counts = np.array(list(Counter(_classes(classes)).values()), dtype=float)
    n = counts.sum()
    return float(_entropy(counts / n) + miller_madow * (len(counts) - 1) / (2 * n))


def rao_semantic_entropy(
    texts: Sequence[str],
    logprobs: Sequence[float] | Any,
    classes: Sequence[int] | Any,
    n_tokens: Sequence[int] | Any = None,
) -> float:
    """Entropy of the classes' probabilities by the model itself, nats.

    p(class) is the sum over its distinct texts of exp(log-probability), divided by that sum over all distinct texts: so the
    classes' probabilities sum to 1.

    Args:
        texts: the sampled answers. One that came more than once counts once, with the highest of its log-probabilities (the
            same text can end, or be cut into tokens, in several ways).
        logprobs: of each answer's tokens, summed, nats, under the model at temperature 1 without top-k and top-p, whatever it was
            sampled with.
        classes: the class of each answer, from `meaning_classes`.
        n_tokens: tokens of each answer, those of its end included, to divide its log-probability by: the length-normalised form
            of Kuhn et al. 2023. None for the summed one.

    Raises:
        ValueError: no answers, lengths that differ, a log-probability that is not a number of at most 0, equal texts in two
            classes, or a number of tokens under 1.
    """
    shares = _rao_shares(texts, logprobs, classes, n_tokens)
    return _entropy(np.array(list(shares.values())))


def self_consistency(classes: Sequence[int] | Any) -> float:
    """Share of the samples in the largest class: 1 where all answers mean the same. ValueError as in the discrete entropy."""
    found = _classes(classes)
    return max(Counter(found).values()) / len(found)


@dataclass(frozen=True, eq=False)
class SemanticEntropy:
    """The meanings of the answers to one prompt; made by `semantic_entropy` and `semantic_entropies`."""

    prompt: str
    texts: tuple[str, ...]
    """The sampled answers, n of them."""
    classes: tuple[int, ...]
    """Class of each, numbered in the order in which they begin."""
    discrete: float
    """Nats; shares of the samples."""
    discrete_corrected: float
    """The same with the Miller-Madow correction; can be over ln n."""
    rao: float
    """Nats; the model's own probabilities, summed over tokens."""
    rao_mean: float
    """The same with length-normalised log-probabilities."""
    self_consistency: float
    """Share of the largest class."""
    greedy: str | None
    """The greedy answer, where there is one."""
    greedy_class: int | None
    """The class that it belongs to; None where there is no greedy answer, or no sample means the same."""
    greedy_share: float | None
    """Share of the samples that mean the same as the greedy answer."""
    probabilities: tuple[float, ...] = field(repr=False)
    """Of each class by the model (Rao, summed); they sum to 1."""
    match: dict[str, Any] = field(repr=False)
    """What decided which answers mean the same."""
    notes: tuple[str, ...] = field(repr=False, default=())
    """Reasons to be careful."""

    @property
    def n(self) -> int:
        """Samples."""
        return len(self.texts)

    @property
    def n_classes(self) -> int:
        """Meanings among them."""
        return len(set(self.classes))

    @property
    def answer(self) -> str:
        """The first answer of the largest class; of equal ones, of that which began first."""
        largest = Counter(self.classes).most_common(1)[0][0]
        return self.texts[self.classes.index(largest)]

    def __str__(self) -> str:
        agreed = round(self.self_consistency * self.n)
        return (
            f"{self.n_classes} meaning{'s' if self.n_classes > 1 else ''} in {self.n} sampled answers ({agreed} say "
            f"{self.answer!r}): semantic entropy {self.discrete:.3f} nats by counts, {self.rao:.3f} by the model's "
            f"probabilities; most possible is {math.log(self.n):.3f}"
        )

    def to_frame(self) -> pd.DataFrame:
        """A row a class: class, text (its first answer), count, share, probability, texts (its distinct answers)."""
        rows = []
        for number in range(self.n_classes):
            inside = [text for text, each in zip(self.texts, self.classes) if each == number]
            rows.append(
                {
                    "class": number,
                    "text": inside[0],
                    "count": len(inside),
                    "share": len(inside) / self.n,
                    "probability": self.probabilities[number],
                    "texts": list(dict.fromkeys(inside)),
                }
            )
        return pd.DataFrame(rows)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        figures = ("discrete", "discrete_corrected", "rao", "rao_mean", "self_consistency")
        return {
            "prompt": self.prompt,
            "texts": list(self.texts),
            "classes": list(self.classes),
            "n": self.n,
            "n_classes": self.n_classes,
            **{name: getattr(self, name) for name in figures},
            "greedy": self.greedy,
            "greedy_class": self.greedy_class,
            "greedy_share": self.greedy_share,
            "table": artifact.records(self.to_frame()),
            "match": self.match,
            "notes": list(self.notes),
        }


def semantic_entropies(
    samples: AnswerSamples, match: Match | None = None, *, questions: Sequence[str] | None = None
) -> list[SemanticEntropy]:
    """One `SemanticEntropy` a prompt.

    Args:
        samples: from `sample_answers`.
        match: which answers mean the same; None for `ExactMatch()`, which suits short answers (see `EmbeddingMatch` for why
            embeddings do not).
        questions: one a prompt, put before the answers for a match that wants it (`NLIMatch`); None for the bare answers.

    Raises:
        ValueError: under 2 samples a prompt, another number of questions than prompts; and what the match raises.
    """
    chosen = ExactMatch() if match is None else match
    prompts = list(samples.prompts)
    asked = [""] * len(prompts) if questions is None else list(questions)
    if len(asked) != len(prompts):
        raise ValueError(f"there are {len(asked)} questions for {len(prompts)} prompts: give one for each")
    described = chosen.describe()
    rows, found = samples.rows, []
    for index, prompt in enumerate(prompts):
        mine = pd.DataFrame(rows[rows["prompt"] == index])
        drawn = pd.DataFrame(mine[mine["sample"] >= 0]).sort_values("sample")
        greedy = mine["text"][mine["sample"] == GREEDY].tolist()
        found.append(_one(prompt, drawn, greedy[0] if greedy else None, chosen, asked[index], described))
    return found


def semantic_entropy(
    model: HookedTransformer,
    prompt: str | Sequence[str],
    n: int | Any = 10,
    *,
    match: Match | None = None,
    questions: str | Sequence[str] | None = None,
    **sampling: Any,
) -> SemanticEntropy | list[SemanticEntropy]:
    """Sample answers and measure their semantic entropy.

    Args:
        model: a language model.
        prompt: one, or several; it must end where the answer begins ("Question: ...?\\nAnswer:").
        n: answers to sample for each prompt, at least 2.
        match: which answers mean the same; None for `ExactMatch()`.
        questions: one a prompt (a text for one prompt), put before the answers for a match that wants it (`NLIMatch`), which
            bare answers tell little; None for the bare answers.
        sampling: passed to `sample_answers` (max_new_tokens, temperature, top_k, top_p, stop, seed ...).

    Returns:
        One value for one prompt, a list for several.

    Raises:
        ValueError: n under 2, what `sample_answers` refuses, and what the match refuses.
    """
    if isinstance(n, int):  # before anything is sampled; other kinds are refused there
        _enough(n)
    prompts = [prompt] if isinstance(prompt, str) else list(prompt)
    asked = [questions] if isinstance(questions, str) else questions
    if asked is not None and len(asked) != len(prompts):  # before anything is sampled
        raise ValueError(f"there are {len(asked)} questions for {len(prompts)} prompts: give one for each")
    found = semantic_entropies(sample_answers(model, prompts, n, **sampling), match, questions=asked)
    return found[0] if isinstance(prompt, str) else found


# ------------------------------------------------------------------------------------------------------------ inner


def _enough(n: int) -> None:
    """ValueError for less than two samples: one alone agrees with itself, and its entropy of 0 would look like certainty."""
    if n < 2:
        raise ValueError(
            f"n={n} samples cannot disagree, so their entropy says nothing: sample 2 or more answers, better 10"
        )


def _one(
    prompt: str, drawn: pd.DataFrame, greedy: str | None, match: Match, question: str, described: dict[str, Any]
) -> SemanticEntropy:
    texts = [str(text) for text in drawn["text"]]
    if not texts:
        raise ValueError(f"there are no samples for the prompt {prompt[-40:]!r}: sample with n of 10 or more")
    _enough(len(texts))
    # The greedy answer comes last, so that it begins no class of the samples and changes none.
    together = meaning_classes([*texts, *([] if greedy is None else [greedy])], match, question)
    classes = together[: len(texts)]
    alone = greedy is None or together[-1] not in classes
    # The tokens of its end count: an answer's log-probability is also that of ending there.
    logprobs, n_tokens = drawn["logprob"].tolist(), (drawn["n_tokens"] + drawn["n_end"]).tolist()
    shares = _rao_shares(texts, logprobs, classes, None)
    return SemanticEntropy(
        prompt=prompt,
        texts=tuple(texts),
        classes=tuple(classes),
        discrete=discrete_semantic_entropy(classes),
        discrete_corrected=discrete_semantic_entropy(classes, miller_madow=True),
        rao=_entropy(np.array(list(shares.values()))),
        rao_mean=rao_semantic_entropy(texts, logprobs, classes, n_tokens),
        self_consistency=self_consistency(classes),
        greedy=greedy,
        greedy_class=None if alone else together[-1],
        greedy_share=None if greedy is None else classes.count(together[-1]) / len(classes),
        probabilities=tuple(shares[number] for number in range(len(set(classes)))),
        match=described,
        notes=_notes(texts, drawn),
    )


def _notes(texts: list[str], drawn: pd.DataFrame) -> tuple[str, ...]:
    notes = []
    empty = sum(not normalised(text) for text in texts)
    cut = sum(not ended for ended in drawn["ended"].tolist())
    if len(texts) < FEW:
        notes.append(f"{len(texts)} samples cannot show more than {len(texts)} meanings: sample 10 or more.")
    if empty:
        notes.append(f"{empty} of {len(texts)} answers are empty; they count as one meaning of their own.")
    if cut:
        notes.append(
            f"{cut} of {len(texts)} answers reached the limit of tokens before they ended: what they would have said further on "
            "is not compared, and their probability is that of their beginning."
        )
    return tuple(notes)


def _rao_shares(
    texts: Sequence[str], logprobs: Sequence[float] | Any, classes: Sequence[int] | Any, n_tokens: Sequence[int] | Any
) -> dict[int, float]:
    """Class -> its probability among the classes, in the order in which they begin."""
    numbers, logp = _classes(classes), np.asarray(logprobs, dtype=float)
    if isinstance(texts, str) or not len(texts) == len(numbers) == logp.size or logp.ndim != 1:
        raise ValueError(
            f"each answer needs a log-probability and a class: got {len(texts)} texts, {logp.size} log-probabilities and "
            f"{len(numbers)} classes"
        )
    if not bool((np.isfinite(logp) & (logp <= 1e-6)).all()):
        raise ValueError(
            "log-probabilities must be finite and at most 0: they are sums of ln p over an answer's tokens"
        )
    if n_tokens is not None:
        counts = np.asarray(n_tokens, dtype=float)
        if counts.shape != logp.shape or not bool((counts >= 1).all()):
            raise ValueError("n_tokens must say for each answer how many tokens it has, 1 or more")
        logp = logp / counts
    best: dict[str, tuple[int, float]] = {}
    for text, number, value in zip(texts, numbers, logp.tolist()):
        if best.get(text, (number, 0.0))[0] != number:
            raise ValueError(f"the answer {text!r} is in two classes: equal answers mean the same")
        best[text] = (number, max(value, best.get(text, (number, -math.inf))[1]))
    top = max(value for _, value in best.values())
    mass = dict.fromkeys(numbers, 0.0)
    for number, value in best.values():
        mass[number] += math.exp(value - top)
    total = math.fsum(mass.values())
    return {number: value / total for number, value in mass.items()}


def _entropy(p: np.ndarray) -> float:
    kept = p[p > 0]
    # 0 and ln n are met up to rounding; a negative zero would look like a mistake.
    return max(0.0, min(float(-(kept * np.log(kept)).sum()), math.log(len(p))))


def _classes(classes: Sequence[int] | Any) -> list[int]:
    values = np.asarray(classes)
    if values.ndim != 1 or not values.size:
        raise ValueError("there are no answers: classes must be a list with the class of each sample")
    if values.dtype.kind not in "iu":
        raise ValueError(f"classes must be whole numbers, got {values.dtype}: make them with meaning_classes")
    return [int(value) for value in values]
