"""The pass that every measure of uncertainty shares: the last stream whole, its logits a chunk of rows at a time.

Logits of [position, vocabulary] are the largest thing in a small model: 4,096 tokens by 49,152 are 800 MB. The stream
that they come from is [position, d_model], so it is kept, and unembedded only where and when rows are read.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.hooks import HookContext, Request, attached
from interp.model import HookedTransformer
from interp.model.inputs import refuse_encoder, refuse_not_finite
from interp.recording.batching import Limits, Prices, make_batches
from interp.recording.job import can_share
from interp.sites import layer_of, short_name
from interp.tokens import Tokens

CHUNK_LOGITS = 2**23
"""Most logits held at a time: 32 MB in fp32."""
PASS_TOKENS = 2048
"""Most places of a pass with more than one row."""


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


def last_streams(
    model: HookedTransformer, rows: Sequence[Sequence[int]], names: Sequence[str]
) -> dict[str, Float[Tensor, "row d"]]:
    """What stands at the last token of each row of token ids, float32 on the CPU, in the order of the rows.

    Equal rows run once, and rows that begin alike share their tokens where that is cheaper.

    Raises:
        ValueError: a site with an axis of heads.
    """
    distinct = list(dict.fromkeys(map(tuple, rows)))
    place = {row: index for index, row in enumerate(distinct)}
    layers = [layer_of(name) for name in names]
    stop = None if None in layers else 1 + max(layer for layer in layers if layer is not None)
    found: dict[str, Tensor] = {}
    for texts, cells, tokens in _passes(model, distinct):
        seen: dict[str, Tensor] = {}

        def keep(value: Tensor, ctx: HookContext, cells: Tensor = cells, seen: dict[str, Tensor] = seen) -> None:
            if value.ndim != 3:
                raise ValueError(f"{short_name(ctx.name)} has an axis of heads: name a place with one vector a token")
            seen[ctx.name] = value.detach().flatten(0, 1)[cells.to(value.device)].float().cpu()

        entries = [(name, keep, "read") for name in names]
        with torch.inference_mode(), attached(model.hook_dict, Request(entries), model.run):
            model(tokens, stop_at_layer=stop)
        for name, value in seen.items():
            found.setdefault(name, torch.empty(len(distinct), value.shape[1]))[texts] = value
    order = torch.tensor([place[tuple(row)] for row in rows])
    return {name: found[name][order] for name in names}


def _passes(
    model: HookedTransformer, rows: Sequence[Sequence[int]]
) -> Iterator[tuple[Int[Tensor, " row"], Int[Tensor, " row"], Tokens]]:
    """(which rows, where the last token of each stands in the flattened batch, the batch)."""
    lengths = np.array([len(row) for row in rows])
    ids = np.concatenate([np.asarray(row, dtype=np.int64) for row in rows])
    pad = model.tokenizer.pad_id if model.tokenizer is not None and model.tokenizer.pad_id is not None else 0
    limits = Limits(None, PASS_TOKENS, share=can_share(model))
    for batch in make_batches(ids, np.concatenate([[0], np.cumsum(lengths)]), limits, Prices(model.cfg), pad):
        last = batch.cells[np.cumsum(lengths[batch.texts]) - 1]
        yield torch.from_numpy(batch.texts), torch.from_numpy(last), model.tokenize(batch.tokens)
