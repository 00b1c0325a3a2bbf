"""One place that says who may attend to whom.

A query attends to a key if the key is a real token and stands at its own place or before. A query that may attend to
nothing (a pad) gets a row of zeros, never NaN.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def attention_mask(key_mask: Bool[Tensor, "batch key"], n_queries: int) -> Bool[Tensor, "batch 1 query key"]:
    """True where a query may attend to a key; the queries are the last `n_queries` places of the keys."""
    n_keys = key_mask.shape[1]
    causal = torch.ones(n_queries, n_keys, dtype=torch.bool, device=key_mask.device).tril(n_keys - n_queries)
    return (causal & key_mask[:, None, :])[:, None]


def masked_softmax(
    scores: Float[Tensor, "batch head query key"],
) -> Float[Tensor, "batch head query key"]:
    """Softmax over keys in at least fp32; a row of -inf alone gives zeros."""
    wide = scores if scores.dtype == torch.float64 else scores.float()
    pattern = torch.softmax(wide, dim=-1)
    dead = torch.isneginf(wide).all(-1, keepdim=True)
    return pattern.masked_fill(dead, 0.0).to(scores.dtype)
