"""Sets of heads: what the model loses without all of them, and what each one adds to that.

Heads stand in for each other. So a head is measured three times: ablated *alone*; *in the set*, as the loss without the
whole set against that without the others; and the set as a whole against *random sets* of as many other heads in the same
layers, for any few heads cost something.
"""

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from interp import artifact
from interp.bootstrap import mean_interval
from interp.heads.ablation import Head, Progress, RepeatRun, checked_heads, repeat_run
from interp.model import HookedTransformer
from interp.plot.effects import set_against_random

KIND = "head set effects"


@dataclass(frozen=True, eq=False)
class SetEffects:
    """Second-copy loss in nats without a set of heads, without its parts, and without random sets."""

    heads: tuple[Head, ...]
    """The set."""
    base: Float[Tensor, "row"]
    """Loss of the unchanged model by sequence."""
    whole: Float[Tensor, "row"]
    """Loss without the set."""
    alone: Float[Tensor, "head row"]
    """Loss without each head alone."""
    others: Float[Tensor, "head row"]
    """Loss without the set but for this head, which stays."""
    random_heads: tuple[tuple[Head, ...], ...]
    """Sets of other heads, as many in each layer. Empty where a layer has too few others."""
    random: Float[Tensor, "draw row"]
    """Loss without each of them."""
    card: dict[str, Any]
    """Kind of ablation, period, sequences, BOS, seed, model."""

    @property
    def effect(self) -> float:
        """Rise of the loss without the whole set."""
        return float((self.whole - self.base).mean())

    @property
    def random_effects(self) -> Float[Tensor, "draw"]:
        """Rise of the loss without each random set."""
        return (self.random - self.base).mean(1)

    def to_frame(self) -> pd.DataFrame:
        """A line for each head: layer, head, effect `alone` and `in_set`, each with its interval; n."""
        seed = int(self.card["seed"])
        columns: dict[str, Any] = {"layer": [at for at, _ in self.heads], "head": [head for _, head in self.heads]}
        for name, rise in (("alone", self.alone - self.base), ("in_set", self.whole - self.others)):
            low, high = mean_interval(rise.numpy(), seed)
            columns |= {name: rise.mean(1).numpy(), f"{name}_low": low, f"{name}_high": high}
        return pd.DataFrame(columns | {"n_sequences": len(self.base)})

    def summary(self) -> str:
        """The set against its random sets in a sentence."""
        low, high = mean_interval((self.whole - self.base)[None].numpy(), int(self.card["seed"]))
        named = ", ".join(f"L{layer}H{head}" for layer, head in self.heads)
        said = f"Without {named} the second copy costs {self.effect:+.2f} nats [{low[0]:.2f}, {high[0]:.2f}]"
        if not len(self.random):
            return f"{said}; their layers have too few other heads for random sets."
        least, most = float(self.random_effects.min()), float(self.random_effects.max())
        sets = f"{len(self.random)} random sets with as many heads in the same layers"
        return f"{said}; without {sets} {least:+.2f} to {most:+.2f}."

    def plot(self) -> alt.LayerChart:
        """The set, its random sets and its heads on one axis."""
        frame = self.to_frame()
        names = [f"L{layer}H{head}" for layer, head in self.heads]
        parts = pd.DataFrame({"name": names, "alone": frame["alone"], "in_set": frame["in_set"]})
        return set_against_random(parts, self.effect, self.random_effects.numpy())

    def save(self, path: str | Path) -> Path:
        """One safetensors file with a card; `load_set_effects` reads it."""
        tensors = {name: getattr(self, name) for name in ("base", "whole", "alone", "others", "random")}
        card = {
            "heads": [list(head) for head in self.heads],
            "random_heads": [list(map(list, s)) for s in self.random_heads],
        }
        return artifact.save_artifact(Path(path), KIND, tensors, self.card | card)


def load_set_effects(path: str | Path) -> SetEffects:
    """Read what `SetEffects.save` wrote."""
    tensors, card = artifact.load_artifact(Path(path), KIND)
    heads = tuple((layer, head) for layer, head in card.pop("heads"))
    random_heads = tuple(tuple((layer, head) for layer, head in one) for one in card.pop("random_heads"))
    return SetEffects(heads, random_heads=random_heads, card=card, **tensors)


def ablate_heads(
    model: HookedTransformer,
    heads: Sequence[Any],
    tokens: object = None,
    *,
    period: int | None = None,
    bos: int | bool | None = None,
    kind: str | None = None,
    reference: Any = None,
    n_random: int = 20,
    rows: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> SetEffects:
    """Ablate a set of heads on repeated tokens: the whole, its parts, and random sets as the control.

    Args:
        model: any loaded causal model.
        heads: (layer, head) pairs.
        tokens, period, bos, kind, reference, rows: as in `head_effects`.
        n_random: random sets with as many heads in each layer, none of them from the set; fewer where there are not so
            many different ones, 0 for none.
        seed: of random tokens, random sets and the bootstrap.
        progress: called with (runs done, runs in all).

    Raises:
        ValueError: an empty set, heads that do not exist, or a kind that does not go with the reference.
    """
    chosen = checked_heads(model, heads)
    layers = sorted({layer for layer, _ in chosen})
    options: dict[str, Any] = {"period": period, "bos": bos, "kind": kind, "reference": reference, "rows": rows}
    if not chosen:
        raise ValueError("the set is empty: give heads=[(layer, head), ...]")
    return set_effects_of(
        repeat_run(model, tokens, layers=layers, seed=seed, **options), chosen, n_random, seed, progress
    )


def set_effects_of(
    run: RepeatRun, heads: Sequence[Head], n_random: int, seed: int, progress: Progress | None = None
) -> SetEffects:
    """A set ablated in a run that is there."""
    n, random_sets = len(heads), random_head_sets(heads, run.base.model.cfg.n_heads, n_random, seed)
    alone = [[head] for head in heads]
    others = [[other for other in heads if other != head] for head in heads]
    found = run.losses([list(heads), *alone, *others, *random_sets], progress)
    whole, alone, others, random = found.split([1, n, n, len(random_sets)])
    card = artifact.provenance(analysis=KIND, **run.card)
    return SetEffects(tuple(heads), run.base_losses(), whole[0], alone, others, random_sets, random, card)


def random_head_sets(heads: Sequence[Head], n_heads: int, n_random: int, seed: int) -> tuple[tuple[Head, ...], ...]:
    """Different sets of other heads with as many in each layer; all there are where these are no more than `n_random`."""
    counts = sorted(Counter(layer for layer, _ in heads).items())
    free = {layer: [head for head in range(n_heads) if (layer, head) not in set(heads)] for layer, _ in counts}
    n_sets = math.prod(math.comb(len(free[layer]), count) for layer, count in counts)
    if n_sets <= n_random:
        each = [[[(at, head) for head in some] for some in itertools.combinations(free[at], n)] for at, n in counts]
        return tuple(tuple(itertools.chain(*parts)) for parts in itertools.product(*each)) if n_sets else ()
    rng = np.random.default_rng(seed)
    drawn: dict[tuple[Head, ...], None] = {}
    while len(drawn) < n_random:
        picked = [(at, sorted(rng.choice(free[at], count, replace=False).tolist())) for at, count in counts]
        drawn[tuple((at, head) for at, some in picked for head in some)] = None
    return tuple(drawn)


def added_to_set(run: RepeatRun, heads: Sequence[Head], more: Sequence[Head]) -> Float[Tensor, "head row"]:
    """What each of `more` adds to the loss without the set `heads`, by sequence."""
    if not more:
        return torch.zeros(0, run.n_rows, dtype=torch.float64)
    found = run.losses([list(heads), *([*heads, head] for head in more)])
    return found[1:] - found[0]
