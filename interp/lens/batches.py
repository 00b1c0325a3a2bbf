"""Many texts as batches of bounded size: what every sweep over texts begins with."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from interp import artifact
from interp.model import HookedTransformer
from interp.tokens import Tokens

HASHED = 64
"""Tokens by which a text is known again in a card."""


def token_rows(model: HookedTransformer, texts: Any, max_length: int | Any = None) -> list[list[int]]:
    """The token ids of each text, cut after `max_length` tokens (None: the model's context).

    Args:
        model: whose tokenizer and context count.
        texts: a text, texts, ids [batch pos], rows of ids of any lengths, or Tokens of one text a row.
        max_length: most tokens of a text, at least 2.

    Raises:
        ValueError: no texts, an empty one, ids outside the vocabulary, joined texts, or a `max_length` that is no length.
    """
    n_ctx = model.cfg.n_ctx
    limit = n_ctx if max_length is None else max_length
    if not isinstance(limit, int) or isinstance(limit, bool) or not 2 <= limit <= n_ctx:
        raise ValueError(f"max_length must be 2 to {n_ctx}, the model's context; got {max_length!r}")
    if isinstance(texts, Tokens) and (texts.documents is not None or texts.parents is not None):
        raise ValueError("each text needs a row of its own here: joined texts are not taken apart")
    if isinstance(texts, Tokens):
        rows = [texts.row(index) for index in range(len(texts))]
    elif isinstance(texts, torch.Tensor):
        tokens = model.tokenize(texts[:, :limit] if texts.ndim == 2 else texts[:limit])
        rows = [tokens.row(index) for index in range(len(tokens))]
    else:
        given = [texts] if isinstance(texts, str) else list(texts)
        if not given:
            raise ValueError("there are no texts")
        rows = [_encoded(model, text) for text in given]
    rows = [row[:limit] for row in rows]
    for row in rows:
        model.tokenize(torch.tensor([row], dtype=torch.long))  # refuses an empty text and ids that do not exist
    return rows


def token_batches(rows: Sequence[Sequence[int]], batch_tokens: int, pad: int = 0) -> Iterator[tuple[list[int], Tokens]]:
    """(indices, Tokens) of at most `batch_tokens` places each, or of one text that is longer; in the order of lengths,
    so that little is padding."""
    order = sorted(range(len(rows)), key=lambda index: len(rows[index]))
    batch: list[int] = []
    for index in order:
        if batch and (len(batch) + 1) * len(rows[index]) > batch_tokens:
            yield batch, _padded([rows[i] for i in batch], pad)
            batch = []
        batch.append(index)
    if batch:
        yield batch, _padded([rows[i] for i in batch], pad)


def text_hash(row: Sequence[int]) -> str:
    """By which a text that a lens was made from is known again: of its first tokens, so that a cut does not hide it."""
    return artifact.hash_json([int(token) for token in row[:HASHED]])[:16]


def _padded(rows: Sequence[Sequence[int]], pad: int) -> Tokens:
    lengths = torch.tensor([len(row) for row in rows])
    mask = torch.arange(int(lengths.max())) < lengths[:, None]
    ids = torch.full(mask.shape, pad, dtype=torch.long)
    ids[mask] = torch.tensor([i for row in rows for i in row])
    return Tokens(ids, mask)


def _encoded(model: HookedTransformer, text: Any) -> list[int]:
    if not isinstance(text, str):
        return [int(i) for i in text]
    if model.tokenizer is None:
        raise ValueError("this model has no tokenizer; pass token ids, or load it with one")
    return model.tokenizer.encode(text)
