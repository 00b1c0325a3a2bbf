"""What a forward pass says beside the activations: each token's probability and surprise, and what the heads look at.

`token_signals` unembeds the final stream at the places that are needed, a few hundred at a time; `HeadReader` reduces each
attention pattern to two numbers a head while the pass runs, so no pattern is kept.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.hooks import HookContext
from interp.model import HookedTransformer
from interp.tokens import Tokens

SIGNALS = {"logprob": torch.float32, "entropy": torch.float32, "top1": torch.int32, "rank": torch.int32}
"""Columns of tokens.parquet."""
NO_RANK = -1
"""Rank of a token that nothing predicts; null on the disk, like its logprob."""
_LOGIT_ROWS = 512


def token_signals(
    model: HookedTransformer,
    stream: Float[Tensor, "cell d_model"],
    here: Int[Tensor, " n"],
    before: Int[Tensor, " n"],
    ids: Int[Tensor, " n"],
) -> dict[str, Tensor]:
    """For n tokens: logprob (nats) and rank given those before, entropy (nats) and top1 of what comes next.

    Args:
        stream: the last block's output at every place.
        here: the place of each token.
        before: the place of the token before it, -1 where there is none; logprob is then NaN, rank -1.
        ids: the tokens themselves. rank counts the tokens that were more probable: 0 is the most probable.
    """
    device = stream.device
    here, before, ids = here.to(device), before.to(device), ids.to(device)
    entropy = torch.empty(len(here), device=device)
    top1 = torch.empty(len(here), dtype=torch.int32, device=device)
    logprob = torch.full((len(here),), torch.nan, device=device)
    rank = torch.full((len(here),), NO_RANK, dtype=torch.int32, device=device)
    needed, where = torch.unique(torch.cat([here, before]), return_inverse=True)
    at, previous = where[: len(here)], where[len(here) :]
    skip = int(len(needed) > 0 and int(needed[0]) < 0)  # the place -1 holds no token
    for start in range(skip, len(needed), _LOGIT_ROWS):
        logp = model.unembed_logits(stream[needed[start : start + _LOGIT_ROWS]]).float().log_softmax(dim=-1)
        stop = start + len(logp)
        rows = ((at >= start) & (at < stop)).nonzero()[:, 0]
        entropies = torch.special.entr(logp.exp()).sum(dim=-1)
        if not bool(torch.isfinite(entropies).all()):
            raise ValueError(
                "the model's next-token distribution is NaN or infinite: its weights are damaged, or its dtype too narrow"
            )
        entropy[rows] = entropies[at[rows] - start]
        top1[rows] = logp.argmax(dim=-1).int()[at[rows] - start]
        follows = ((previous >= start) & (previous < stop) & (before >= 0)).nonzero()[:, 0]
        for part in follows.split(_LOGIT_ROWS):
            given = logp[previous[part] - start]
            found = given.gather(1, ids[part, None])
            logprob[part] = found[:, 0]
            rank[part] = (given > found).sum(dim=1).int()
    return {"logprob": logprob, "entropy": entropy, "top1": top1, "rank": rank}


class HeadReader:
    """Two numbers for every query and head: how spread its attention is, and how much of it the first token gets.

    Attributes:
        values: `<block>/entropy` (nats) and `<block>/first` (a share) -> [cell head] of the last pass.
    """

    def __init__(self, model: HookedTransformer, n_layers: int) -> None:
        self._model = model
        self._sites = [f"blocks.{layer}.attn.hook_pattern" for layer in range(n_layers)]
        self._roots: Int[Tensor, "batch pos"] | None = None
        self.values: dict[str, Tensor] = {}

    @property
    def names(self) -> list[str]:
        """The names in `values`."""
        return [f"{_block(site)}/{what}" for site in self._sites for what in ("entropy", "first")]

    @contextmanager
    def reading(self, tokens: Tokens) -> Iterator[None]:
        """Look at the patterns of one pass over right-padded rows or trees."""
        self.values = {}
        if tokens.parents is None:
            self._roots = torch.zeros_like(tokens.ids)
        else:
            self._roots = tokens.ancestors.int().argmax(dim=2)  # the first ancestor in the row is the root
        readers: dict[str, Callable[[Tensor, HookContext], None]] = dict.fromkeys(self._sites, self._read)
        with self._model.hooks(readers):
            yield

    def _read(self, pattern: Float[Tensor, "batch head query key"], ctx: HookContext) -> None:
        assert self._roots is not None
        wide = pattern.float()
        roots = self._roots.to(wide.device)[:, None, :, None].expand(-1, wide.shape[1], -1, 1)
        both = {"entropy": torch.special.entr(wide).sum(dim=-1), "first": wide.gather(3, roots)[..., 0]}
        for what, value in both.items():
            self.values[f"{_block(ctx.name)}/{what}"] = value.transpose(1, 2).flatten(0, 1)


def _block(site: str) -> str:
    return ".".join(site.split(".")[:2])
