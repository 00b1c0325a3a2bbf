"""How a model is asked whether statements are true: examples with their answers, then one statement, as tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from interp.model import HookedTransformer
from interp.probe.completions import CompletionPair, common_prefix, encoded
from interp.probe.inputs import MIN_GROUPS
from interp.probe.likelihood import tokenizer_of


@dataclass(frozen=True)
class Judgement:
    """How the model is asked whether a statement is true."""

    n_shots: int = 8
    """Statements with their answers that come first, half of them true; their groups are not judged."""
    question: str = "Statement: {statement}\nTRUE or FALSE?"
    """Put round every statement."""
    answers: tuple[str, str] = (" TRUE", " FALSE")
    """The answer to a true and to a false statement."""

    def __post_init__(self) -> None:
        if "{statement}" not in self.question:
            raise ValueError(f"the question must hold {{statement}}, got {self.question!r}")
        if self.n_shots < 0 or self.n_shots % 2:
            raise ValueError(f"n_shots must be even, half of the examples being true, got {self.n_shots}")


FEW_SHOT = Judgement()
"""Eight examples."""


@dataclass(frozen=True, eq=False)
class Judged:
    """Statements with the examples before them, as tokens."""

    sequences: list[list[int]]
    """With the answer to a true statement, then all again with the other answer."""
    starts: list[int]
    """Place of the first token of each answer."""
    first: int
    """Tokens of the examples."""
    y: Int[np.ndarray, " statement"]
    """1 for a true statement."""
    groups: Int[np.ndarray, " statement"]


def judged_statements(
    model: HookedTransformer,
    pairs: Sequence[CompletionPair],
    groups: Int[np.ndarray, " pair"],
    judgement: Judgement,
    seed: int,
) -> Judged:
    """Examples drawn from the pairs, and the true and the false statement of every pair whose group has no example.

    Raises:
        ValueError: too few groups are left.
    """
    rng = np.random.default_rng(seed)
    shots: dict[int, int] = {}
    for index in rng.permutation(len(pairs)).tolist():
        if len(shots) < judgement.n_shots:
            shots.setdefault(int(groups[index]), index)
    kept = [index for index in range(len(pairs)) if groups[index] not in shots]
    if len(set(groups[kept].tolist())) < MIN_GROUPS:
        raise ValueError(
            f"{judgement.n_shots} examples leave fewer than {MIN_GROUPS} groups of pairs to judge: give more pairs, fewer "
            "n_shots, or judgement=None"
        )
    truths = rng.permutation(np.arange(judgement.n_shots) % 2 == 0)[: len(shots)]

    def asked(index: int, truth: bool) -> str:
        return judgement.question.replace("{statement}", pairs[index].statement(truth))

    lead = "".join(
        f"{asked(index, bool(truth))}{judgement.answers[0 if truth else 1]}\n\n"
        for index, truth in zip(shots.values(), truths)
    )
    tokenizer, both, y, codes = tokenizer_of(model), [], [], []
    for index in kept:
        for truth in (True, False):
            both.append(encoded(tokenizer, lead + asked(index, truth), judgement.answers))
            y.append(int(truth))
            codes.append(groups[index])
    sequences = [sequences[side] for side in (0, 1) for sequences, _ in both]
    before = tokenizer.encode(lead, close=False) if lead else []
    first = min((common_prefix(before, sequence) for sequence in sequences), default=0)
    return Judged(
        sequences,
        [start for _ in (0, 1) for _, start in both],
        first,
        np.array(y),
        np.unique(codes, return_inverse=True)[1],
    )
