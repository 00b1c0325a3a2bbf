"""One place that says who may attend to whom.

A query attends to a key if every rule allows it: the key is a real token; it stands at the query's position or before
(in a causal model); it is at most a window back; it belongs to the same document; in a row that is a tree of texts, it
stands on the way from the root to the query. Rules are joined by AND before the one softmax. A query that may attend to
nothing (a pad) gets a row of zeros, never NaN.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Places:
    """Where the tokens of one side, queries or keys, stand."""

    positions: Int[Tensor, "batch pos"]
    """Absolute positions in their text."""
    real: Bool[Tensor, "batch pos"]
    """True for real tokens."""
    documents: Int[Tensor, "batch pos"] | None = None
    """Which document of a packed row each token belongs to; None for one a row."""
    ancestors: Bool[Tensor, "batch pos pos"] | None = None
    """In a row that is a tree: which places stand on the way from the root to each token."""


def attention_mask(
    queries: Places, keys: Places, *, causal: bool = True, window: int | None = None
) -> Bool[Tensor, "batch 1 query key"]:
    """True where a query may attend to a key."""
    allowed = queries.real[:, :, None] & keys.real[:, None, :]
    if causal or window is not None:
        back = queries.positions[:, :, None] - keys.positions[:, None, :]
        if causal:
            allowed = allowed & (back >= 0)
        if window is not None:
            allowed = allowed & (back < window)
    if queries.documents is not None and keys.documents is not None:
        allowed = allowed & (queries.documents[:, :, None] == keys.documents[:, None, :])
    if queries.ancestors is not None:
        allowed = allowed & queries.ancestors
    return allowed[:, None]


def masked_softmax(
    scores: Float[Tensor, "batch head query key"], *, whole: bool = False
) -> Float[Tensor, "batch head query key"]:
    """Softmax over keys in at least fp32; a row of -inf alone gives zeros. `whole` promises that there is none."""
    wide = scores if scores.dtype == torch.float64 else scores.float()
    pattern = torch.softmax(wide, dim=-1)
    if whole:
        return pattern.to(scores.dtype)
    dead = torch.isneginf(wide).all(-1, keepdim=True)
    return pattern.masked_fill(dead, 0.0).to(scores.dtype)
