"""The pass that every measure of uncertainty shares: the last stream whole, its logits a chunk of rows at a time.

Logits of [position, vocabulary] are the largest thing in a small model: 4,096 tokens by 49,152 are 800 MB. The stream
that they come from is [position, d_model], so it is kept, and unembedded only where and when rows are read.
"""

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.model import HookedTransformer
from interp.model.inputs import refuse_encoder, refuse_not_finite
from interp.tokens import Tokens

CHUNK_LOGITS = 2**23
"""Most logits held at a time: 32 MB in fp32."""


def final_stream(model: HookedTransformer, tokens: Tokens) -> Float[Tensor, "batch pos d_model"]:
    """The residual stream after the last block, without gradients."""
    refuse_encoder(model.cfg, "the uncertainty of a next token")
    with torch.inference_mode():
        stream = model(tokens, stop_at_layer=model.cfg.n_layers)
        refuse_not_finite(stream, tokens)
        return stream


def right_padded(model: HookedTransformer, rows: Sequence[Sequence[int]]) -> Tokens:
    """Token ids of several texts as one checked batch; every row must hold a token."""
    width = max(map(len, rows))
    ids = torch.zeros((len(rows), width), dtype=torch.int64)  # nothing reads the pads, and id 0 is in every vocabulary
    mask = torch.zeros((len(rows), width), dtype=torch.bool)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = torch.tensor(row)
        mask[index, : len(row)] = True
    return model.tokenize(Tokens(ids, mask))


def logit_chunks(
    model: HookedTransformer, stream: Float[Tensor, "row d_model"]
) -> Iterator[tuple[slice, Float[Tensor, "chunk d_vocab"]]]:
    """(which rows, their logits in at least fp32), in order."""
    size = max(1, CHUNK_LOGITS // model.cfg.d_vocab)
    for start in range(0, len(stream), size):
        rows = slice(start, min(start + size, len(stream)))
        with torch.inference_mode():
            logits = model.unembed_logits(stream[rows])
        yield rows, logits.to(torch.promote_types(logits.dtype, torch.float32))


def target_logprobs(
    model: HookedTransformer, stream: Float[Tensor, "row d_model"], targets: Int[Tensor, " row"]
) -> Float[Tensor, " row"]:
    """log p(target) at each row, nats, float64 on the CPU."""
    found = torch.empty(len(targets), dtype=torch.float64)
    for rows, logits in logit_chunks(model, stream):
        logp = logits.log_softmax(-1).gather(-1, targets[rows, None].to(logits.device))
        found[rows] = logp[:, 0].to("cpu", torch.float64)
    return found
