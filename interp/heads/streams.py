"""The mean stream of each token in each layer: what a head of a late layer reads where a token stands.

The embedding is what layer 0 reads. Later layers read a stream to which others have added, so a circuit is better asked
with the mean of resid_pre over the places where the token occurs in texts. The first position of a text is left out: it
is a sink in most models, with a norm that would be the whole mean.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.model import HookedTransformer
from interp.model.norm import accumulate
from interp.tokens import Tokens

BATCH = 8
"""Texts run together."""


@dataclass(frozen=True, eq=False)
class TokenStreams:
    """Mean resid_pre of some tokens in every layer."""

    ids: Int[Tensor, "token"]
    """The tokens, smallest id first."""
    counts: Int[Tensor, "token"]
    """Places that each mean is over."""
    means: Float[Tensor, "layer token d_model"]
    """Mean resid_pre."""

    def row(self, layer: int, token: int) -> Float[Tensor, "d_model"]:
        """One token's. ValueError where the texts do not have it."""
        return self.means[layer, self.place(token)]

    def place(self, token: int) -> int:
        """Where the token stands in `ids`."""
        found = (self.ids == token).nonzero()
        if not len(found):
            raise ValueError(
                f"token {token} is not among the {len(self.ids)} tokens of these streams: give texts with it"
            )
        return int(found[0, 0])


@torch.no_grad()
def token_streams(
    model: HookedTransformer,
    texts: Any,
    *,
    tokens: Sequence[int] | None = None,
    n: int | None = None,
    min_count: int = 1,
    seed: int = 0,
) -> TokenStreams:
    """Mean resid_pre by token over texts.

    Args:
        model: any decoder.
        texts: what `model.tokenize` takes; several texts are run a few at a time.
        tokens: ids to keep, all of which the texts must have; None keeps what they have.
        n: with no tokens given, at most so many, drawn evenly from those that occur.
        min_count: places that a token needs, without which it is not kept.
        seed: of that draw.

    Raises:
        ValueError: no token that occurs often enough, or one of `tokens` that does not.
    """
    batch = model.tokenize(texts)
    inner = batch.mask & (batch.positions > 0)
    present, counts = batch.ids[inner].unique(return_counts=True)
    present, counts = present[counts >= min_count], counts[counts >= min_count]
    if tokens is not None:
        wanted = torch.as_tensor(sorted({int(t) for t in tokens}), device=present.device)
        absent = wanted[~torch.isin(wanted, present)].tolist()
        if absent:
            raise ValueError(
                f"the texts have fewer than {min_count} places with token {absent[0]} behind a first position"
            )
        keep = torch.isin(present, wanted)
    else:
        order = torch.randperm(len(present), generator=torch.Generator().manual_seed(seed))
        keep = torch.zeros(len(present), dtype=torch.bool, device=present.device)
        keep[order[:n].to(keep.device)] = True
    ids, counts = present[keep], counts[keep]
    if not len(ids):
        raise ValueError(f"the texts have no token at {min_count} places behind a first position: give more text")
    n_layers = model.cfg.n_layers
    sums = torch.zeros(n_layers, len(ids), model.cfg.d_model, dtype=torch.float64, device=ids.device)
    names = [f"blocks.{layer}.hook_resid_pre" for layer in range(n_layers)]
    for start in range(0, len(batch), BATCH):
        rows = slice(start, start + BATCH)
        part = _rows(batch, rows)
        _, cache = model.run_with_cache(part, names, stop_at_layer=n_layers)
        used = inner[rows] & torch.isin(batch.ids[rows], ids)
        place = torch.searchsorted(ids, batch.ids[rows][used])
        for layer, name in enumerate(names):
            sums[layer].index_add_(0, place, cache[name][used].double())
    return TokenStreams(ids, counts, (sums / counts[:, None]).to(accumulate(model.embed.weight[:1]).dtype))


def _rows(batch: Tokens, rows: slice) -> Tokens:
    documents = None if batch.documents is None else batch.documents[rows]
    parents = None if batch.parents is None else batch.parents[rows]
    return Tokens(batch.ids[rows], batch.mask[rows], documents=documents, parents=parents)
