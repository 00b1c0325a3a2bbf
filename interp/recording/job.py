"""What a recording does with every shard: `Job`, the model and what is kept of it; `Run`, how its passes are made."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from interp import sites as site_names
from interp.model import HookedTransformer
from interp.recording.batching import Limits
from interp.recording.rules import TokenRules
from interp.store import DTYPES
from interp.tokens import Tokenizer


@dataclass(frozen=True)
class Run:
    """How the passes are made. It decides the last bits of the numbers, so it stands in store.json for good."""

    texts_per_shard: int
    """Texts in a shard."""
    batch_size: int | None
    """Most texts in a pass, None for no limit."""
    batch_tokens: int
    """Most places in a pass, if it has more than one row."""
    share: bool
    """Whether what texts begin with alike is computed once."""
    threads: int
    """Threads of torch."""

    @property
    def limits(self) -> Limits:
        """For `make_batches`."""
        return Limits(self.batch_size, self.batch_tokens, self.share)


@dataclass(frozen=True, eq=False)
class Job:
    """What is recorded of every text: some sites of a model."""

    model: HookedTransformer
    """The model."""
    tokenizer: Tokenizer
    """Its tokenizer."""
    shapes: Mapping[str, tuple[int, ...]]
    """Full site name -> shape of a row."""
    dtype: str
    """dtype on the disk."""
    stop: int | None
    """Blocks to run, None for the whole model."""
    signals: bool = False
    """Whether logprob, entropy, top1 and rank are recorded."""
    head_stats: bool = False
    """Whether attention entropy and attention on the first token are recorded for every head of the blocks that run."""
    generate: Mapping[str, Any] | None = None
    """Options of `model.generate` where texts are continued, None where they are read as they are."""
    rules: TokenRules | None = None
    """With `generate`: which tokens of the whole texts are kept."""

    @property
    def n_layers(self) -> int:
        """Blocks that run."""
        return len(range(self.model.cfg.n_layers)[: self.stop])

    @property
    def row_bytes(self) -> int:
        """Bytes of one row on the disk, without its line of tokens.parquet."""
        heads = 8 * self.model.cfg.n_heads * self.n_layers if self.head_stats else 0
        return sum(map(math.prod, self.shapes.values())) * DTYPES[self.dtype].itemsize + heads


def stop_layer(sites: Sequence[str], n_layers: int, signals: bool) -> int | None:
    """How many blocks must run for these sites; None if the final norm is among them."""
    if any(site.startswith("ln_final") for site in sites):
        return None
    layers = [site_names.layer_of(site) for site in sites]
    return n_layers if signals else 1 + max(-1 if layer is None else layer for layer in layers)


def site_shapes(model: HookedTransformer, sites: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """The shape of a row of each site. ValueError for sites that have no row per token."""
    sizes = model.sites().set_index("site")["size"]
    for site in sites:
        shape = site_names.kind_of(site).shape
        if not shape.startswith("batch pos"):
            raise ValueError(
                f"{site} is [{shape}]: it has no row for each token, so it cannot be recorded into a store; "
                "run_with_cache gives it for single texts, head_scores its statistics"
            )
    return {site: tuple(map(int, str(sizes[site]).split()[2:])) for site in sites}


def edited_at(model: HookedTransformer) -> list[str]:
    """Names of the hook points where functions are attached."""
    return [name for name, point in model.hook_dict.items() if point.handles]


def can_share(model: HookedTransformer) -> bool:
    """Whether tokens that texts begin with alike have the same activations: nothing looks ahead or edits."""
    by_length = model.rope is not None and model.rope.by_length
    return model.cfg.causal and not by_length and not edited_at(model)


def shard_ranges(n_texts: int, texts_per_shard: int) -> Iterator[tuple[int, int, int]]:
    """(shard, first text, one past the last) of every shard."""
    for index, first in enumerate(range(0, n_texts, texts_per_shard)):
        yield index, first, min(first + texts_per_shard, n_texts)
