"""Prompts with evidence: how passages stand before a question, what fits, and which tokens are the evidence.

A template has its evidence before its question, and the question last. It is taken apart once and joined by its parts, so that
braces in a passage are a passage's braces.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from interp.meaning.retrieval import search_words
from interp.model import HookedTransformer
from interp.probe.completions import common_prefix, encoded
from interp.tokens import Tokenizer

BETWEEN_PASSAGES = "\n"
TEMPLATES = {
    "plain": "{evidence}\n\n{question}",
    "few-shot": (
        "The blue house on Mill Lane belongs to Ada. The red one is Tom's.\n\n"
        "Question: Who owns the blue house on Mill Lane?\nAnswer: Ada\n\n"
        "The green boat takes six people. The white boat takes nine people.\n\n"
        "Question: How many people does the white boat take?\nAnswer: nine\n\n"
        "Miss Orme keeps bees. Her brother keeps goats.\n\n"
        "Question: Which animals does the brother of Miss Orme keep?\nAnswer: goats\n\n"
        "{evidence}\n\n{question}"
    ),
}
"""Known by name. The examples are made up: they show that the answer is read in the passage, and teach no fact."""
_BEGINNING = re.compile(r"^\s*question:\s*", re.IGNORECASE)
_ENDING = re.compile(r"\s*answer:\s*$", re.IGNORECASE)


@dataclass(frozen=True)
class Template:
    """The fixed texts around evidence and question."""

    before: str
    between: str

    @classmethod
    def of(cls, template: str | Any) -> "Template":
        """A known name, or a text of one's own with {evidence} and, at its end, {question}.

        Raises:
            ValueError: neither.
        """
        text = TEMPLATES.get(template, template) if isinstance(template, str) else ""
        parts = re.split(r"\{(evidence|question)\}", text)
        if parts[1::2] != ["evidence", "question"] or parts[4]:
            known = " or ".join(map(repr, TEMPLATES))
            raise ValueError(
                f"the template is {known}, or a text that holds {{evidence}} once and ends with {{question}}; got {template!r}"
            )
        return cls(parts[0], parts[2])

    def prompt(self, evidence: str, question: str) -> str:
        """The whole prompt; without evidence the text between is left out too."""
        return self.before + (evidence + self.between if evidence else "") + question


def asked(question: str) -> str:
    """A question as the prompts have it: "Question: ...", a line end, "Answer:"; one that ends with "Answer:" stays as it is."""
    return question if _ENDING.search(question) else f"Question: {question.strip()}\nAnswer:"


def query_of(prompt: str) -> str:
    """What is searched for: the question without the words around it."""
    return _ENDING.sub("", _BEGINNING.sub("", prompt)).strip() or prompt


def joined(passages: Sequence[str]) -> str:
    """Several passages as one text."""
    return BETWEEN_PASSAGES.join(passages)


def fitting(
    model: HookedTransformer,
    template: Template,
    passages: Sequence[str],
    question: str,
    options: Sequence[str],
    room: int = 0,
) -> tuple[list[str], int]:
    """The passages that fit into the context with the question and its longest option, and how many were dropped, last first.

    Args:
        model: whose context it is.
        template: of the prompt.
        passages: best first.
        question: the prompt after the evidence.
        options: what follows the prompt.
        room: tokens to keep free beyond them.

    Raises:
        ValueError: not even the question, or the first passage with it, fits.
    """
    kept, limit = list(passages), model.cfg.n_ctx
    while True:
        need = _length(model, template.prompt(joined(kept), question), options) + room
        if limit is None or need <= limit:
            return kept, len(passages) - len(kept)
        if len(kept) <= 1:
            what = "with its best passage " if kept else ""
            raise ValueError(
                f"the question {question[:60]!r} {what}needs {need} tokens and the context holds {limit}: make smaller passages, "
                "or a shorter template"
            )
        kept.pop()


def _length(model: HookedTransformer, prompt: str, options: Sequence[str]) -> int:
    tokenizer = needs_tokenizer(model)
    return max(len(tokenizer.encode(prompt + option, close=False)) for option in (options or [""]))


def needs_tokenizer(model: HookedTransformer) -> Tokenizer:
    """The model's tokenizer, ValueError without one."""
    if model.tokenizer is None:
        raise ValueError("this model has no tokenizer; load it with one")
    return model.tokenizer


@dataclass(frozen=True)
class Reading:
    """A prompt with an answer after it, as token ids."""

    ids: list[int]
    start: int
    """First token of the answer."""
    evidence: tuple[int, int]
    """First token of the evidence and one past its last."""


def reading(
    tokenizer: Tokenizer, template: Template, evidence: str, question: str, options: Sequence[str], which: int
) -> Reading:
    """Where evidence and answer stand. A token that holds both evidence and what is around it counts as what is around it.

    Raises:
        ValueError: no token is the evidence's own.
    """
    sequences, start = encoded(tokenizer, template.prompt(evidence, question), options)
    ids = list(sequences[which])
    return Reading(ids, start, evidence_places(tokenizer, template, evidence, ids))


def evidence_places(tokenizer: Tokenizer, template: Template, evidence: str, ids: Sequence[int]) -> tuple[int, int]:
    """First token of the evidence in a prompt, and one past its last."""
    first = common_prefix(tokenizer.encode(template.before, close=False), ids)
    end = common_prefix(tokenizer.encode(template.before + evidence, close=False), ids)
    if end <= first:
        raise ValueError(f"no token of the prompt is the evidence's own ({evidence[:60]!r}): give longer passages")
    return first, end


# ------------------------------------------------------------------------------------------------------- other evidence


def spelled(text: str) -> str:
    """The words of a text with a space around each, so that whole words of one are found in another by `in`."""
    return f" {' '.join(search_words(text))} "


def said_otherwise(text: str, right: str, wrong: str) -> str | None:
    """The text with the two answers exchanged, None where the right one does not stand in it as it is spelled."""
    marks = {right: wrong, wrong: right}
    pattern = "|".join(re.escape(each) for each in sorted(marks, key=len, reverse=True))
    if not re.search(rf"(?<!\w){re.escape(right)}(?!\w)", text):
        return None
    return re.sub(rf"(?<!\w)(?:{pattern})(?!\w)", lambda found: marks[found[0]], text)


def drawn(seed: int, *what: Any) -> int:
    """A number that depends on nothing but the seed and what it is for."""
    return int.from_bytes(hashlib.sha256(repr((seed, *what)).encode("utf-8", "surrogatepass")).digest()[:8], "little")
