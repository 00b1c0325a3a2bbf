"""Classes of meaning: which of several answers say the same.

1. Answers of which nothing is left once case, punctuation and articles are gone (empty ones, "...") form a class of their own.
2. Answers that are the same by `normalised` are compared once, whatever the match.
3. Every other answer is compared with the first member of each class so far, in order, and joins the first that it matches;
   else it begins a class (Farquhar et al. 2024, Nature 630).

With a match that is not transitive (an embedding's threshold, inference) the classes can therefore depend on the order of the
answers.
"""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from interp.meaning.grading import normalised


@runtime_checkable
class Match(Protocol):
    """Says of pairs of texts whether the two mean the same.

    A match that has `wants_question = True` gets texts with the question before them, as an inference model needs it. One that
    has a method `prepare(texts)` is told all texts before the first pair.
    """

    def same(self, pairs: Sequence[tuple[str, str]]) -> list[bool]:
        """One verdict a pair; it does not depend on the other pairs."""
        ...

    def describe(self) -> dict[str, Any]:
        """JSON-ready: what it is and how it decides, for cards."""
        ...


def meaning_classes(texts: Sequence[str] | Any, match: Match, question: str = "") -> list[int]:
    """The class of each text: 0 for the first text's, and so on in the order in which classes begin.

    Args:
        texts: answers to one question.
        match: `ExactMatch()`, `EmbeddingMatch(encoder)`, `NLIMatch(nli)`, or any `Match`.
        question: put before each answer, with a space, for a match that wants it (`NLIMatch`); other matches compare bare
            answers.

    Raises:
        ValueError: no texts, or something that is no text; and whatever the match raises.
    """
    if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
        raise ValueError("texts must be a list of answers, each a text")
    if not texts:
        raise ValueError("there are no answers to compare: the list is empty")
    keys = [normalised(text) for text in texts]
    first = dict(reversed(list(zip(keys, texts))))
    asked = f"{question} " if question and getattr(match, "wants_question", False) else ""
    compared = [asked + first[key] for key in dict.fromkeys(keys) if key]
    if len(compared) > 1 and hasattr(match, "prepare"):
        match.prepare(compared)  # pyright: ignore[reportAttributeAccessIssue]
    found: dict[str, int] = {}
    members: list[tuple[int, str]] = []
    for key in dict.fromkeys(keys):
        text = asked + first[key]
        joined = None
        if key and members:
            verdicts = match.same([(member, text) for _, member in members])
            joined = next((number for (number, _), same in zip(members, verdicts, strict=True) if same), None)
        found[key] = len(set(found.values())) if joined is None else joined
        if key and joined is None:
            members.append((found[key], text))
    return [found[key] for key in keys]
