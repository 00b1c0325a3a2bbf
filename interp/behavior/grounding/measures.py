"""Is an answer made from its evidence? By words, by what the evidence does to its probability, by meaning, by attention.

None of these is proof. That the words of an answer stand in a passage does not say that the passage says so; attention that
reaches it does not say that it was used; only what changes when the evidence is taken away is an effect, and that is the gain.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from interp.behavior.grounding.prompts import Reading
from interp.meaning.passages import sentences
from interp.meaning.retrieval import search_words, unit_rows
from interp.model import HookedTransformer
from interp.model.inputs import refuse_encoder
from interp.uncertainty.forward import final_stream, right_padded, target_logprobs

FUNCTION_WORDS = frozenset(
    {
        *(
            "a",
            "an",
            "the",
            "of",
            "in",
            "on",
            "at",
            "to",
            "for",
            "from",
            "by",
            "with",
            "and",
            "or",
            "but",
            "not",
            "no",
            "as",
        ),
        *(
            "is",
            "are",
            "was",
            "were",
            "be",
            "been",
            "being",
            "do",
            "does",
            "did",
            "has",
            "have",
            "had",
            "into",
            "than",
            "then",
        ),
        *(
            "it",
            "its",
            "this",
            "that",
            "these",
            "those",
            "which",
            "who",
            "whom",
            "whose",
            "what",
            "when",
            "where",
            "why",
            "how",
        ),
        *("there", "here", "so", "if"),
    }
)
"""English words that say little alone."""


def content_words(text: str) -> list[str]:
    """The words of a text without function words; with them where there are no others."""
    words = list(dict.fromkeys(search_words(text)))
    return [word for word in words if word not in FUNCTION_WORDS] or words


def word_support(answer: str, evidence: str) -> float | None:
    """Share of the answer's content words that stand in the evidence; None for an answer without a word."""
    own, there = content_words(answer), set(search_words(evidence))
    return sum(word in there for word in own) / len(own) if own else None


def sentence_support(question: str, answer: str, evidence: str) -> float | None:
    """The same within the best single sentence, times the share of the question's content words that stand in it too.

    High only where one sentence speaks of what was asked and holds the answer; None for an answer or a question without a word.
    """
    of_answer, of_question = content_words(answer), content_words(question)
    if not of_answer or not of_question:
        return None
    best = 0.0
    for sentence in sentences(evidence):
        there = set(search_words(sentence))
        shares = [sum(word in there for word in own) / len(own) for own in (of_answer, of_question)]
        best = max(best, shares[0] * shares[1])
    return best


def best_cosines(
    encoder: Callable[[Any], Any], claims: Sequence[str], evidences: Sequence[str]
) -> Float[np.ndarray, " claim"]:
    """The largest cosine between each claim (question and answer) and a sentence of its evidence; NaN without evidence.

    Each text is encoded once, however often it stands there.
    """
    parts = [sentences(evidence) for evidence in evidences]
    texts = list(dict.fromkeys([*claims, *(sentence for each in parts for sentence in each)]))
    vectors = unit_rows(encoder(texts), len(texts)).astype(float)
    place = {text: index for index, text in enumerate(texts)}
    found = np.full(len(claims), np.nan)
    for index, (claim, own) in enumerate(zip(claims, parts)):
        if own:
            found[index] = (vectors[[place[sentence] for sentence in own]] @ vectors[place[claim]]).max()
    return found


def attention_shares(
    model: HookedTransformer, readings: Sequence[Reading], *, batch_size: int = 16
) -> tuple[Float[np.ndarray, "reading layer"], Float[np.ndarray, " reading"]]:
    """How much of the attention that leaves the answer reaches the evidence, layer by layer.

    The rows are those that predict the answer's tokens: from the token before its first to the one before its last. Each
    layer's pattern is averaged over heads; position 0, where heads rest, is left out and the rest is divided by its sum; then
    the share of the evidence's tokens is averaged over the rows.

    Args:
        model: one that predicts the next token.
        readings: prompts with their answers.
        batch_size: sequences in a pass; it changes no figure beyond rounding.

    Returns:
        (shares [reading, layer], the share that even attention would give [reading]).

    Raises:
        ValueError: an encoder, or a model whose attention has no pattern.
    """
    refuse_encoder(model.cfg, "attention from an answer back to its evidence")
    names = [f"blocks.{layer}.attn.hook_pattern" for layer in range(model.cfg.n_layers)]
    shares = np.zeros((len(readings), len(names)))
    order = sorted(range(len(readings)), key=lambda i: len(readings[i].ids))
    for begin in range(0, len(order), batch_size):
        batch = order[begin : begin + batch_size]
        chosen = [readings[i] for i in batch]

        def read(pattern: Tensor, ctx: Any, batch: list[int] = batch, chosen: list[Reading] = chosen) -> None:
            for row, (index, each) in enumerate(zip(batch, chosen)):
                shares[index, ctx.layer] = _share(pattern[row], each)

        tokens = right_padded(model, [each.ids[:-1] for each in chosen])
        with model.hooks(dict.fromkeys(names, read)):
            final_stream(model, tokens)
    return shares, np.array([_even(each) for each in readings])


def _share(pattern: Float[Tensor, "head query key"], each: Reading) -> float:
    rows = pattern[:, each.start - 1 : len(each.ids) - 1].to(torch.float64).mean(0)
    first, end = max(each.evidence[0], 1), each.evidence[1]
    whole = rows[:, 1:].sum(-1)
    reached = rows[:, first:end].sum(-1)
    # A row of position 0 alone has nowhere else to look.
    return float(torch.where(whole > 0, reached / whole.clamp(min=1e-30), torch.zeros_like(whole)).mean())


def _even(each: Reading) -> float:
    queries = np.arange(each.start - 1, len(each.ids) - 1)
    first, end = max(each.evidence[0], 1), each.evidence[1]
    reached = np.clip(np.minimum(end, queries + 1) - first, 0, None)
    return float(np.mean(reached / np.maximum(queries, 1)))


def answer_logprob(model: HookedTransformer, prompt_ids: Sequence[int], answer_ids: Sequence[int]) -> float:
    """Sum of the log-probabilities of an answer's tokens after a prompt, nats."""
    ids = [*prompt_ids, *answer_ids]
    # Whole, also its last token: where rotations depend on the length of a text, all of it counts.
    stream = final_stream(model, right_padded(model, [ids]))[0, len(prompt_ids) - 1 : -1]
    return float(target_logprobs(model, stream, torch.tensor(list(answer_ids))).sum())
