"""One answer with its evidence: search, say nothing where too little is found, answer, and measure how grounded the answer is."""

import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from interp import artifact
from interp.behavior.grounding.measures import (
    answer_logprob,
    attention_shares,
    best_cosines,
    sentence_support,
    word_support,
)
from interp.behavior.grounding.prompts import (
    Reading,
    Template,
    asked,
    evidence_places,
    fitting,
    joined,
    needs_tokenizer,
    query_of,
)
from interp.dataset import Question
from interp.meaning.retrieval import Retriever
from interp.model import HookedTransformer


@dataclass(frozen=True, eq=False)
class GroundedAnswer:
    """An answer and what it rests on, or the reason why there is none."""

    question: str
    answer: str | None
    """None where nothing was answered."""
    reason: str
    """Why nothing was answered; "" for an answer."""
    score: float | None
    """Of the best passage; None where nothing was found."""
    min_score: float | None
    """Below which nothing is answered."""
    found: pd.DataFrame = field(repr=False)
    """What the search gave: a row per passage; `used` says whether it stood in the prompt."""
    n_dropped: int = 0
    """Passages that were found and did not fit into the context."""
    prompt: str = field(default="", repr=False)
    """What the model was given; "" where it was not asked."""
    word_support: float | None = None
    """Share of the answer's content words that stand in the evidence."""
    sentence_support: float | None = None
    """The same within the best single sentence, times the share of the question's words that stand there too."""
    cosine: float | None = None
    """Of question and answer with the nearest sentence of the evidence; None without an encoder."""
    logprob: float | None = None
    """Of the answer's tokens with the evidence, nats."""
    logprob_without: float | None = None
    """Of the same tokens after the same prompt without the evidence."""
    attention: pd.DataFrame = field(
        default_factory=lambda: pd.DataFrame(columns=["layer", "share", "even"]), repr=False
    )
    """Layer, share of the answer's attention that reaches the evidence, and what even attention would give."""

    @property
    def gain(self) -> float | None:
        """How much more probable the evidence makes the answer, nats; about 0 where the model would have said it anyway."""
        return None if self.logprob is None or self.logprob_without is None else self.logprob - self.logprob_without

    def summary(self) -> str:
        """The answer with its figures and whether it is made up of other words than the evidence, or the reason."""
        if self.answer is None:
            return f"No answer: {self.reason}"
        figures = {
            "words in the evidence": self.word_support, "in one sentence with the question": self.sentence_support,
            "cosine": self.cosine, "log-probability gained by the evidence (nats)": self.gain,
        }  # fmt: skip
        shown = "; ".join(f"{name} {value:.2f}" for name, value in figures.items() if value is not None)
        used = self.found.loc[self.found["used"]].to_dict("records")
        quoted = [textwrap.shorten(str(row["text"]), 100, placeholder=" ...") for row in used]
        sources = ", ".join(f"{row['source']} ({text!r})" for row, text in zip(used, quoted))
        dropped = f" {self.n_dropped} passages did not fit into the context." if self.n_dropped else ""
        doubt = " (none of its words stand in the evidence: do not trust it)" if self.word_support == 0 else ""
        return f"{self.answer or '(an empty answer)'}{doubt}\nFrom {sources}. {shown}.{dropped}"

    def __str__(self) -> str:
        return self.summary()

    def to_frame(self) -> pd.DataFrame:
        """What was found."""
        return self.found.copy()

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        names = ("question", "answer", "reason", "score", "min_score", "n_dropped", "prompt", "word_support")
        names += ("sentence_support", "cosine", "logprob", "logprob_without", "gain")
        tables = {"found": artifact.records(self.found), "attention": artifact.records(self.attention)}
        return {**{name: getattr(self, name) for name in names}, **tables}


def grounded_answer(
    model: HookedTransformer,
    question: str | Question | Any,
    retriever: Retriever,
    *,
    k: int | Any = 3,
    min_score: float | Any = None,
    template: str | Any = "few-shot",
    max_new_tokens: int | Any = 16,
    stop: str | Any = "\n",
    encoder: Callable[[Any], Any] | Any = None,
) -> GroundedAnswer:
    """Answer a question from the passages that a search finds, or say why not.

    Args:
        model: what answers, greedily.
        question: a text, or a `Question`, whose options are not shown.
        retriever: over the passages.
        k: passages in the prompt; what does not fit into the context is dropped, last first, and counted.
        min_score: below it nothing is answered; `grounding_report(...).values["abstention"]["threshold"]` is one, for the same
            retriever. None answers wherever something is found.
        template: "few-shot", "plain", or a text with {evidence} and at its end {question}.
        max_new_tokens: of the answer.
        stop: where the answer ends.
        encoder: a `SentenceEncoder`, for the cosine.

    Raises:
        ValueError: an empty question, a template or a k that is not such, a prompt that does not fit with one passage, NaN.
    """
    if isinstance(question, Question):
        question = question.prompt
    if not isinstance(question, str) or not question.strip():
        raise ValueError("the question is empty: ask for something")
    if min_score is not None and (not isinstance(min_score, int | float) or min_score != min_score):
        raise ValueError(f"min_score must be a number or None, got {min_score!r}")
    shape, prompt = Template.of(template), asked(question)
    found = retriever.search(query_of(prompt), k).assign(used=False)
    score = float(found["score"].iloc[0]) if len(found) else None
    if score is None:
        return GroundedAnswer(question, None, "the search found no passage.", None, min_score, found)
    if min_score is not None and score < min_score:
        reason = f"the best passage scores {score:.3g}, below the {min_score:.3g} from which on it is answered."
        return GroundedAnswer(question, None, reason, score, min_score, found)
    kept, dropped = fitting(model, shape, found["text"].tolist(), prompt, (), max_new_tokens)
    found["used"] = [place < len(kept) for place in range(len(found))]
    whole = shape.prompt(joined(kept), prompt)
    out = model.generate(whole, max_new_tokens, stop=stop).rows[0]
    answer = out.text.strip()
    measured = _measured(model, shape, joined(kept), prompt, answer, list(out.tokens), encoder) if out.tokens else {}
    return GroundedAnswer(question, answer, "", score, min_score, found, dropped, whole, **measured)


def _measured(
    model: HookedTransformer, shape: Template, evidence: str, prompt: str, answer: str, tokens: list[int], encoder: Any
) -> dict[str, Any]:
    """The figures of an answer that has tokens."""
    tokenizer, query = needs_tokenizer(model), query_of(prompt)
    given, bare = (tokenizer.encode(shape.prompt(text, prompt), close=False) for text in (evidence, ""))
    ids = [*given, *tokens]
    read = Reading(ids, len(given), evidence_places(tokenizer, shape, evidence, ids))
    shares, even = attention_shares(model, [read])
    layers = {"layer": range(model.cfg.n_layers), "share": shares[0], "even": float(even[0])}
    return {
        "word_support": word_support(answer, evidence),
        "sentence_support": sentence_support(query, answer, evidence),
        "cosine": None
        if encoder is None or not answer
        else float(best_cosines(encoder, [f"{query} {answer}"], [evidence])[0]),
        "logprob": answer_logprob(model, given, tokens),
        "logprob_without": answer_logprob(model, bare, tokens),
        "attention": pd.DataFrame(layers),
    }
