"""What the model loses without each head: every head ablated alone on repeated tokens.

A score says where a head looks, an effect whether that matters. The two do not agree: heads that others stand in for have
a score and no effect alone, and heads that prepare what induction reads have an effect and no score. What the values of an
ablated head become, and which loss is meant, stands in `interp/heads/ablation.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from interp import artifact
from interp.bootstrap import mean_interval
from interp.heads.ablation import Head, Progress, RepeatRun, checked_heads, repeat_run
from interp.model import HookedTransformer
from interp.plot.effects import effect_bars

KIND = "head effects"


@dataclass(frozen=True, eq=False)
class HeadEffects:
    """Second-copy loss in nats with each head ablated alone."""

    heads: tuple[Head, ...]
    """(layer, head) of each line."""
    losses: Float[Tensor, "head row"]
    """Loss by sequence without the head."""
    base: Float[Tensor, "row"]
    """Loss of the unchanged model by sequence."""
    first: Float[Tensor, "row"]
    """Its loss over the first copy, where nothing repeats: the second one costs so much less."""
    card: dict[str, Any]
    """Kind of ablation, period, sequences, BOS, seed, model."""

    @property
    def effects(self) -> Float[Tensor, "head row"]:
        """Rise of the loss by sequence."""
        return self.losses - self.base

    @property
    def gain(self) -> float:
        """What the second copy costs less than the first one, in nats: the most that in-context copying can lose."""
        return float((self.first - self.base).mean())

    def to_frame(self) -> pd.DataFrame:
        """A line for each head: layer, head, effect with `_low` and `_high` (95 % over sequences), n."""
        low, high = mean_interval(self.effects.numpy(), int(self.card["seed"]))
        return pd.DataFrame(
            {
                "layer": [layer for layer, _ in self.heads],
                "head": [head for _, head in self.heads],
                "effect": self.effects.mean(1).numpy(),
                "effect_low": low,
                "effect_high": high,
                "n_sequences": len(self.base),
            }
        )

    def top(self, n: int = 10) -> pd.DataFrame:
        """The n heads without which the model loses most."""
        return self.to_frame().nlargest(n, "effect").reset_index(drop=True)

    def plot(self, top: int = 20) -> alt.LayerChart:
        """The largest effects with their intervals."""
        return effect_bars(self.to_frame(), top=top)

    def save(self, path: str | Path) -> Path:
        """One safetensors file with a card; `load_head_effects` reads it."""
        tensors = {"losses": self.losses, "base": self.base, "first": self.first, "heads": torch.tensor(self.heads)}
        return artifact.save_artifact(Path(path), KIND, tensors, self.card)


def load_head_effects(path: str | Path) -> HeadEffects:
    """Read what `HeadEffects.save` wrote."""
    tensors, card = artifact.load_artifact(Path(path), KIND)
    heads = tuple((layer, head) for layer, head in tensors["heads"].tolist())
    return HeadEffects(heads, tensors["losses"], tensors["base"], tensors["first"], card)


def head_effects(
    model: HookedTransformer,
    tokens: object = None,
    *,
    period: int | None = None,
    bos: int | bool | None = None,
    kind: str | None = None,
    reference: Any = None,
    heads: Sequence[Any] | None = None,
    rows: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> HeadEffects:
    """Ablate each head alone and measure the rise of the second-copy loss.

    Args:
        model: any loaded causal model.
        tokens, period, bos: the repeated sequences, as in `head_scores`.
        kind: what takes the place of the head's z: `mean` over typical tokens, `zero`, or `resample`, what the head gave
            at the same places of random tokens that do not repeat. None: the mean where there is a reference, else resample.
        reference: for the mean: texts, a store that holds z, or {full site name: mean}.
        heads: (layer, head) pairs; None for all.
        rows: only the first so many sequences: the cost is a pass over them for each head.
        seed: of random tokens and of the bootstrap.
        progress: called with (heads done, heads in all).

    Raises:
        ValueError: an encoder, heads that do not exist, or a kind that does not go with the reference.
    """
    cfg = model.cfg
    every = [(layer, head) for layer in range(cfg.n_layers) for head in range(cfg.n_heads)]
    chosen = checked_heads(model, every if heads is None else heads)
    layers = sorted({layer for layer, _ in chosen})
    options: dict[str, Any] = {"period": period, "bos": bos, "kind": kind, "reference": reference}
    run = repeat_run(model, tokens, layers=layers, rows=rows, seed=seed, **options)
    return effects_of(run, chosen, progress)


def effects_of(run: RepeatRun, heads: Sequence[Head], progress: Progress | None = None) -> HeadEffects:
    """Each head ablated alone in a run that is there."""
    losses = run.losses([[head] for head in heads], progress)
    card = artifact.provenance(analysis=KIND, **run.card)
    return HeadEffects(tuple(heads), losses, run.base_losses(), run.first_losses(), card)
