"""Attention knockout: some tokens no longer see some others (Geva et al. 2023, arXiv 2304.14767).

1. The score of each chosen query for each chosen key becomes -inf before the softmax, so the rest of the row grows in
   proportion and still sums to 1.
2. Only the layers that are named leave the fused kernel.
3. A row that would keep no key is refused: a softmax over nothing has no value.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.hooks import HookContext
from interp.intervene.place import PHASES, HookFunction
from interp.model import HookedTransformer


def span_positions(span: Any, what: str = "keys") -> list[int] | str:
    """`"last"`, `"all"`, positions, or spans (start, stop) -> the word, or all the positions in order.

    Raises:
        ValueError: anything else, a negative position, an empty span.
    """
    if isinstance(span, str):
        if span in ("last", "all"):
            return span
        raise ValueError(f"{what}={span!r} is unknown; give 'last', 'all', positions or spans (start, stop)")
    found: set[int] = set()
    for part in span if isinstance(span, Sequence | range) else [span]:
        if isinstance(part, int) and not isinstance(part, bool) and part >= 0:
            found.add(part)
        elif (
            isinstance(part, tuple | list)
            and len(part) == 2
            and all(isinstance(end, int) for end in part)
            and 0 <= part[0] < part[1]
        ):
            found.update(range(part[0], part[1]))
        else:
            raise ValueError(
                f"{what} hold {part!r}; they are absolute positions from 0, or spans (start, stop) of them"
            )
    if not found:
        raise ValueError(f"{what} is empty: name at least one position")
    return sorted(found)


@dataclass(frozen=True, eq=False)
class Knockout:
    """Cut attention from queries to keys.

    Args:
        queries: who no longer sees: absolute positions, spans (start, stop) in a list, `"last"` (the prompt's last token
            where the call knows a prompt, else the text's) or `"all"`.
        keys: who is no longer seen, in the same form.
        layers: in which layers; None for all.
        heads: (layer, head) pairs instead of whole layers.
        phase: `forward`, `prefill` or `decode` alone.

    A pair of a query and a later key is no attention and is passed over; a knockout that cuts nothing at all is an error
    when its block ends.
    """

    queries: Any
    keys: Any
    layers: Sequence[Any] | None = None
    heads: Sequence[Any] | None = None
    phase: str | None = None

    def __post_init__(self) -> None:
        span_positions(self.queries, "queries")
        span_positions(self.keys, "keys")
        if self.phase is not None and self.phase not in PHASES:
            raise ValueError(f"phase={self.phase!r} is unknown; choose from {', '.join(PHASES)}")
        if self.layers is not None and self.heads is not None:
            raise ValueError("give layers= (every head of them) or heads=[(layer, head)], not both")
        for name, given in (("layers", self.layers), ("heads", self.heads)):
            if given is not None and not len(given):
                raise ValueError(f"{name}=[] cuts nothing; None means all layers")
        if self.heads is not None and not all(isinstance(h, tuple | list) and len(h) == 2 for h in self.heads):
            raise ValueError(f"heads are (layer, head) pairs in a list, such as [(5, 1)], got {self.heads!r}")

    def describe(self) -> dict[str, Any]:
        """The settings as JSON, for the card of a result."""
        return {
            "intervention": "knockout", "queries": span_positions(self.queries), "keys": span_positions(self.keys),
            "layers": None if self.layers is None else list(self.layers),
            "heads": None if self.heads is None else [list(head) for head in self.heads], "phase": self.phase,
        }  # fmt: skip

    def hook_functions(self, model: HookedTransformer) -> list[tuple[str, HookFunction]]:
        """One function for each layer that is touched."""
        by_layer: dict[int, set[int] | None] = {}
        if self.heads is None:
            by_layer = dict.fromkeys(range(model.cfg.n_layers) if self.layers is None else self.layers)
        else:
            for layer, head in self.heads:
                known = by_layer.setdefault(layer, set())
                assert known is not None
                known.add(head)
        found = []
        for layer, heads in by_layer.items():
            wrong = [head for head in heads or () if not 0 <= head < model.cfg.n_heads]
            if wrong:
                raise ValueError(f"layer {layer} has heads 0 to {model.cfg.n_heads - 1}, got {wrong[0]}")
            selected = model.expand_sites(f"attn_scores:{layer}")
            found += [(name, self._cut(model, layer, heads)) for name in selected]
        return found

    def _cut(self, model: HookedTransformer, layer: int, heads: set[int] | None) -> HookFunction:
        queries, keys = span_positions(self.queries, "queries"), span_positions(self.keys, "keys")
        window = model.cfg.window if model.cfg.has_window(layer) else None

        def cut(scores: Tensor, ctx: HookContext) -> Tensor:
            if self.phase is not None and ctx.phase != self.phase:
                _note(ctx, False)
                return scores
            chosen = ctx.mask & _among(queries, ctx.positions, ctx)
            if not bool(chosen.any()):
                _note(ctx, False)
                return scores
            places = key_positions(scores, ctx, causal=model.cfg.causal, window=window)
            pairs = (chosen[:, :, None] & (places >= 0) & _among(keys, places, ctx))[:, None]
            if heads is not None:
                picked = torch.zeros(scores.shape[1], dtype=torch.bool, device=scores.device)
                picked[list(heads)] = True
                pairs = pairs & picked[:, None, None]
            pairs = pairs & scores.isfinite()
            _note(ctx, bool(pairs.any()))
            new = scores.masked_fill(pairs, -torch.inf)
            _refuse_blind(new, pairs, ctx)
            return new

        return cut


def _note(ctx: HookContext, cut: bool) -> None:
    if ctx.handle is not None and not ctx.handle.reached:
        ctx.handle.reached = cut


def _among(wanted: list[int] | str, positions: Int[Tensor, "batch *place"], ctx: HookContext) -> Bool[Tensor, "..."]:
    """True where a position is one of those wanted."""
    if wanted == "all":
        return torch.ones_like(positions, dtype=torch.bool)
    if wanted != "last":
        return torch.isin(positions, torch.tensor(wanted, device=positions.device))
    last = ctx.positions.masked_fill(~ctx.mask, -1).amax(1) if ctx.prompt_len is None else ctx.prompt_len - 1
    return positions == last.view(-1, *([1] * (positions.ndim - 1)))


def _refuse_blind(
    scores: Float[Tensor, "batch head query key"], pairs: Bool[Tensor, "batch head query key"], ctx: HookContext
) -> None:
    blind = pairs.any(-1) & ~scores.isfinite().any(-1)
    if bool(blind.any()):
        row, head, query = blind.nonzero()[0].tolist()
        raise ValueError(
            f"{ctx.name}: the query at position {int(ctx.positions[row, query])} of text {row} would see no key in head "
            f"{head}; leave it one (the first token sees itself alone)"
        )


def key_positions(
    scores: Float[Tensor, "batch head query key"], ctx: HookContext, *, causal: bool, window: int | None
) -> Int[Tensor, "batch query key"]:
    """Absolute position of each key that a query sees; -1 where it sees none.

    In a whole pass keys are the pass's own tokens. With a cache earlier keys are there too, among pads perhaps; but real
    tokens are seen without a gap, so a key's position is its query's less the number of keys seen after it. That needs
    scores that no other function has cut, which is checked.
    """
    seen = scores.isfinite().any(1)
    if scores.shape[-1] == ctx.positions.shape[1]:
        return ctx.positions[:, None, :].expand(seen.shape).masked_fill(~seen, -1)
    assert causal
    expected = ctx.positions + 1 if window is None else (ctx.positions + 1).clamp(max=window)
    if bool(((seen.sum(-1) != expected) & ctx.mask).any()):
        raise ValueError(
            f"{ctx.name}: with a KV cache, keys are counted by the scores, and another function has cut some of these; "
            "give all that is cut in this layer to one Knockout, or run the whole text in one pass"
        )
    after = seen.flip(-1).cumsum(-1).flip(-1) - seen.long()
    return (ctx.positions[:, :, None] - after).masked_fill(~seen, -1)
