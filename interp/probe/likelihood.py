"""Log-probabilities that a model gives to token sequences: of whole texts, and of the parts that a caller names.

`text_log_likelihood` is the baseline that every probe of truth must be shown beside: false statements are also less
probable text, so a figure that the model's own likelihood reaches needs no direction to explain it.

1. Sequences that begin alike share their tokens where that is cheaper (`recording.batching`); the last token of a
   sequence is read and not fed.
2. Of the last stream only the rows that predict a wanted token are unembedded, each once, a chunk at a time.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from interp.model import HookedTransformer
from interp.model.inputs import refuse_encoder, refuse_not_finite
from interp.recording.batching import Batch, Limits, Prices, make_batches
from interp.recording.job import can_share
from interp.tokens import Tokenizer, Tokens

CHUNK_LOGITS = 2**23
"""Most logits held at a time: 32 MB in fp32."""
PASS_TOKENS = 1024
"""Most places in a pass."""


def text_log_likelihood(
    model: HookedTransformer,
    texts: Sequence[str],
    *,
    per_token: bool = False,
    batch_size: int | Any = 32,
    progress: Callable[[int, int], None] | None = None,
) -> Float64[np.ndarray, " row"]:
    """log p(text) under the model, nats: the sum over its tokens after the first, each given those before it.

    Where the tokenizer begins a text with a BOS, that is its first token, and the text is scored whole.

    Args:
        texts: at least one; the order is kept.
        per_token: divide by the number of tokens that were scored, which takes the length out.
        batch_size: most texts in a forward pass; it does not change the figures.
        progress: called with (texts done, texts in all).

    Raises:
        ValueError: no texts, an empty text, one with a single token, which nothing predicts, or one that is longer
            than the context; an encoder; a model without a tokenizer.
    """
    if isinstance(texts, str) or not len(texts):
        raise ValueError("give a list with at least one text")
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise ValueError(f"batch_size must be a whole number from 1 on, got {batch_size!r}")
    tokenizer = tokenizer_of(model)
    sequences = [tokenizer.encode(text, close=False) for text in texts]
    for index, (text, ids) in enumerate(zip(texts, sequences)):
        if not text.strip():
            raise ValueError(f"text {index} is empty: fill or remove it")
        if len(ids) < 2:
            raise ValueError(f"text {index}, {text!r}, is a single token, which nothing predicts: remove it")
    found, done = np.zeros(len(texts)), 0
    for reading in readings(model, sequences, [1] * len(sequences), max_texts=batch_size):
        with torch.inference_mode():
            stream = model(reading.tokens, stop_at_layer=model.cfg.n_layers)
            refuse_not_finite(stream, reading.tokens)
            found += reading.sums(model, stream[None], len(texts))[0]
        done += len(np.unique(reading.owners))
        if progress is not None:
            progress(done, len(texts))
    return found / [len(ids) - 1 for ids in sequences] if per_token else found


def tokenizer_of(model: HookedTransformer) -> Tokenizer:
    """The model's tokenizer. ValueError where it has none, or where its tokens see those that follow."""
    refuse_encoder(model.cfg, "the probability of a text")
    if model.tokenizer is None:
        raise ValueError("this model has no tokenizer; load it with one")
    return model.tokenizer


@dataclass(frozen=True, eq=False)
class Reading:
    """One forward pass over several sequences, and the tokens whose log-probability is read of it.

    A *read* is a place whose next token is predicted, a *target* a token asked for there: two completions of one prompt
    are two targets of one read.
    """

    tokens: Tokens
    """What runs."""
    cells: Int[np.ndarray, " read"]
    """Place of each read in the flattened [batch pos], ascending."""
    reads: Int[np.ndarray, " target"]
    """Which read each target belongs to, ascending."""
    targets: Int[np.ndarray, " target"]
    """Token ids."""
    owners: Int[np.ndarray, " target"]
    """Which sequence each target is a token of."""
    starts: Int[np.ndarray, " batch"] | None
    """Tokens before the first target of each row; None where rows hold several sequences."""

    def sums(
        self, model: HookedTransformer, stream: Float[Tensor, "copies batch pos d_model"], n: int
    ) -> Float64[np.ndarray, "copies sequence"]:
        """Sum of the targets' log-probabilities for each of `n` sequences, nats; 0 for those of other passes.

        Raises:
            ValueError: NaN in the logits.
        """
        rows = stream.flatten(1, 2)[:, torch.from_numpy(self.cells).to(stream.device)]
        copies, total = len(rows), np.zeros((len(rows), n))
        step = max(1, CHUNK_LOGITS // (model.cfg.d_vocab * copies))
        for first in range(0, len(self.cells), step):
            mine = slice(*np.searchsorted(self.reads, [first, first + step]))
            with torch.inference_mode():
                logits = model.unembed_logits(rows[:, first : first + step])
                logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
                at = torch.from_numpy(self.reads[mine] - first).to(logits.device)
                ids = torch.from_numpy(self.targets[mine]).to(logits.device)
                logp = logits[:, at, ids].double() - logits.logsumexp(-1).double()[:, at]
            np.add.at(total.T, self.owners[mine], logp.cpu().numpy().T)
        if np.isnan(total).any():
            raise ValueError("the model gives NaN logits: its weights are damaged, or a direction is far too strong")
        return total


def readings(
    model: HookedTransformer,
    sequences: Sequence[Sequence[int]],
    starts: Sequence[int],
    *,
    share: bool = True,
    max_texts: int | None = None,
) -> Iterator[Reading]:
    """The passes that score every sequence from its token `start` on.

    Args:
        sequences: token ids.
        starts: for each, the place of its first scored token, at least 1.
        share: tokens that sequences begin with may be computed once, where model and price allow it.
        max_texts: most sequences in a pass.

    Raises:
        ValueError: a sequence that is longer than the model's context.
    """
    longest = max(range(len(sequences)), key=lambda i: len(sequences[i]))
    if len(sequences[longest]) > model.cfg.n_ctx:
        raise ValueError(
            f"text {longest} has {len(sequences[longest])} tokens, the model's context holds {model.cfg.n_ctx}: shorten it"
        )
    # What is fed is run once, whoever asks for it: completions of one token all read the pass of their bare prompt.
    # Where rotations depend on the length of a text, its last token must be there too.
    end = None if model.rope is not None and model.rope.by_length else -1
    askers: dict[tuple[int, ...], list[int]] = {}
    for index, (ids, start) in enumerate(zip(sequences, starts, strict=True)):
        assert 1 <= start < len(ids)
        askers.setdefault((*ids[:end], -1 if share else -start), []).append(index)
    fed = [np.array(key[:-1], dtype=np.int64) for key in askers]
    offsets = np.concatenate([[0], np.cumsum([len(ids) for ids in fed])])
    limits = Limits(max_texts, PASS_TOKENS, share and can_share(model))
    pad = model.tokenizer.pad_id if model.tokenizer is not None and model.tokenizer.pad_id is not None else 0
    asked = list(askers.values())
    for batch in make_batches(np.concatenate(fed), offsets, limits, Prices(model.cfg), pad):
        yield _reading(model, batch, asked, np.diff(offsets), sequences, starts, keep_starts=not share)


def _reading(
    model: HookedTransformer,
    batch: Batch,
    asked: list[list[int]],
    lengths: Int[np.ndarray, " text"],
    sequences: Sequence[Sequence[int]],
    starts: Sequence[int],
    *,
    keep_starts: bool,
) -> Reading:
    """Where the targets of one pass stand."""
    cells, targets, owners = [], [], []
    for text, own in zip(batch.texts.tolist(), np.split(batch.cells, np.cumsum(lengths[batch.texts])[:-1])):
        for index in asked[text]:
            cells.append(own[starts[index] - 1 : len(sequences[index]) - 1])
            targets.append(np.array(sequences[index][starts[index] :]))
            owners.append(np.full(len(targets[-1]), index))
    unique, reads = np.unique(np.concatenate(cells), return_inverse=True)
    order = np.argsort(reads, kind="stable")
    firsts = np.array([starts[asked[text][0]] for text in batch.texts.tolist()]) if keep_starts else None
    return Reading(
        tokens=model.tokenize(batch.tokens),
        cells=unique,
        reads=reads[order],
        targets=np.concatenate(targets)[order],
        owners=np.concatenate(owners)[order],
        starts=firsts,
    )
