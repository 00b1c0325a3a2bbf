"""What each kind of dictionary does with the encoder's output while it trains.

The encoder product is dense and without gradients; it only says which latents fire. A kind chooses them as a `Pattern`,
gives their values with gradients, and may add a penalty. Everything after that is sparse and the same for all kinds.

- topk: the k largest of each row
- batchtopk, matryoshka: the k x rows largest of the batch; the smallest of them, averaged over batches, is the threshold
  of the trained SAE
- jumprelu: above the latent's own threshold, which learns through a rectangle around it
- standard: above 0, with an L1 penalty
- gated: the gate's bias decides, carries the L1 penalty and must reconstruct on its own through a frozen decoder
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from interp.sae.config import BatchTopKConfig, GatedConfig, JumpReLUConfig, SAEConfig, StandardConfig, TopKConfig
from interp.sae.select import above, pattern_of_rows, top_of_rows
from interp.sae.sparse import Pattern, linear_at, sparse_decode

SAMPLE_ROWS = 64
"""Rows from which the level of a batch's top entries is guessed."""


@dataclass(frozen=True, eq=False)
class Encoded:
    """A batch behind the encoder."""

    x: Float[Tensor, "row d_in"]
    y: Float[Tensor, "row d_out"]
    """What is to be reconstructed."""
    encoder: Float[Tensor, "latent d_in"]
    bias: Float[Tensor, " latent"]
    """Of the encoder as it reads x: b_enc, less what it makes of the centre of the rows."""
    b_enc: Float[Tensor, " latent"]
    pre: Float[Tensor, "row latent"]
    """Pre-activations minus `offset`, without gradients; they choose."""
    offset: Float[Tensor, " latent"] | None
    exact: bool
    """Whether `pre` is precise enough to be the value as well."""
    W_dec: Float[Tensor, "latent d_out"]
    rest: Float[Tensor, "*row d_out"]
    """What is written without any latent: b_dec, and what the skip path makes of x."""
    extra: Mapping[str, Tensor]
    """The kind's own parameters."""
    l1_weight: Float[Tensor, " latent"] | None
    """What a latent's activation counts in an L1 penalty; None: 1."""
    ramp: float
    """Share of its final weight that a penalty has at this step."""

    def at(self, pattern: Pattern) -> Float[Tensor, " n"]:
        """Pre-activations at the pattern, with gradients for the encoder and its bias."""
        known = None
        if self.exact:
            known = pattern.at(self.pre)
            known = known if self.offset is None else known + self.offset.detach()[pattern.latent]
        return linear_at(self.x, self.encoder, self.bias, pattern, known)


@dataclass(frozen=True, eq=False)
class Coded:
    """What a kind makes of a batch."""

    pattern: Pattern
    values: Float[Tensor, " n"]
    """Activations with gradients, 0 where a latent of the pattern does not fire after all."""
    penalty: Float[Tensor, ""] | None = None
    """In units of the loss, a squared error per entry."""
    threshold: Float[Tensor, ""] | None = None
    """The smallest activation that was let through."""


Code = Callable[[Encoded, Any], Coded]


def topk(batch: Encoded, config: TopKConfig) -> Coded:
    """The k largest of each row, and of those the positive ones."""
    pattern = pattern_of_rows(top_of_rows(batch.pre, config.k), batch.pre.shape[1])
    return Coded(pattern, batch.at(pattern).relu())


def batchtopk(batch: Encoded, config: BatchTopKConfig) -> Coded:
    """The k x rows largest of the batch, and of those the positive ones."""
    pattern = batch_top(batch.pre, config.k * len(batch.pre))
    # The level that chose, not the smallest exact value: behind a bfloat16 product that is below it.
    chosen = pattern.at(batch.pre)
    level = chosen.min().clamp_min(0) if len(chosen) else chosen.new_zeros(())
    return Coded(pattern, batch.at(pattern).relu(), threshold=level.to(batch.x.dtype))


def jumprelu(batch: Encoded, config: JumpReLUConfig) -> Coded:
    """Those above their threshold; those near it are kept in the pattern, for they move it."""
    threshold, n_rows = batch.extra["threshold"], len(batch.x)
    pattern = above(batch.pre, -config.bandwidth / 2)
    pre, level = batch.at(pattern), threshold[pattern.latent]
    values = _JumpReLU.apply(pre, level, config.bandwidth)
    l0 = _Step.apply(pre.detach(), level, config.bandwidth).sum() / n_rows
    aim = config.sparsity * (l0 / config.l0 - 1).square()
    penalty = aim if config.l0_coefficient is None else config.l0_coefficient * l0
    return Coded(pattern, values, penalty=batch.ramp * penalty)


def standard(batch: Encoded, config: StandardConfig) -> Coded:
    """The positive ones."""
    pattern = above(batch.pre)
    values = batch.at(pattern).relu()
    return Coded(pattern, values, penalty=_l1(batch, config, pattern, values))


def gated(batch: Encoded, config: GatedConfig) -> Coded:
    """Those whose gate is open. The gate's own reconstruction trains it, for an open gate passes no gradient."""
    pattern = above(batch.pre)
    gate = batch.at(pattern).relu()
    linear = gate - batch.b_enc[pattern.latent]
    scale, bias = batch.extra["r_mag"].exp()[pattern.latent], batch.extra["b_mag"][pattern.latent]
    by_gate = sparse_decode(gate, pattern, batch.W_dec.detach()) + batch.rest.detach()
    auxiliary = (by_gate - batch.y).square().sum() / batch.y.numel()
    return Coded(
        pattern, (linear * scale + bias).relu() * (gate > 0), penalty=_l1(batch, config, pattern, gate) + auxiliary
    )


CODES: dict[str, Code] = {
    "topk": topk,
    "batchtopk": batchtopk,
    "matryoshka": batchtopk,
    "jumprelu": jumprelu,
    "standard": standard,
    "gated": gated,
}
"""By the name of the kind."""


def own_parameters(config: SAEConfig, n_latents: int) -> dict[str, Tensor]:
    """What a kind learns besides encoder and decoder, at its start."""
    if isinstance(config, JumpReLUConfig):
        return {"threshold": torch.full((n_latents,), float(config.initial_threshold))}
    if isinstance(config, GatedConfig):
        return {"b_mag": torch.zeros(n_latents), "r_mag": torch.zeros(n_latents)}
    return {}


def batch_top(pre: Float[Tensor, "row latent"], count: int) -> Pattern:
    """The `count` largest positive entries of a batch, or all of them where there are fewer.

    The level above which they lie is guessed from a few rows, a little too low; of what lies above it they are chosen
    exactly. A guess that was too high is lowered.
    """
    n_rows = len(pre)
    sample = pre[:: max(1, n_rows // SAMPLE_ROWS)]
    wanted = min(sample.numel(), max(1, round(1.15 * count * len(sample) / n_rows)))
    level = max(0.0, sample.flatten().topk(wanted, sorted=False).values.min().item())
    pattern = above(pre, level)
    while len(pattern.latent) < count and level > 0:
        level = level * 0.8 if level > 1e-3 else 0.0
        pattern = above(pre, level)
    if len(pattern.latent) <= count:
        return pattern
    best = pattern.at(pre).topk(count, sorted=False).indices
    keep = torch.zeros(len(pattern.latent), dtype=torch.bool, device=pre.device)
    keep[best] = True
    return pattern.subset(keep)


def _l1(batch: Encoded, config: StandardConfig, pattern: Pattern, values: Tensor) -> Float[Tensor, ""]:
    total = values if batch.l1_weight is None else values * batch.l1_weight[pattern.latent]
    return batch.ramp * config.l1 * total.sum() / batch.y.numel()


class _JumpReLU(torch.autograd.Function):
    """pre where pre > threshold. The threshold's gradient is that of a step smoothed over `bandwidth`."""

    @staticmethod
    def forward(ctx: Any, pre: Tensor, threshold: Tensor, bandwidth: float) -> Tensor:
        ctx.save_for_backward(pre, threshold)
        ctx.bandwidth = bandwidth
        return torch.where(pre > threshold, pre, 0).relu()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (pre, threshold), (grad,) = ctx.saved_tensors, grads
        near = ((pre - threshold).abs() < ctx.bandwidth / 2).to(grad)
        return torch.where(pre > threshold, grad, 0), -threshold / ctx.bandwidth * near * grad, None


class _Step(torch.autograd.Function):
    """1 where pre > threshold, with the same smoothed gradient for the threshold."""

    @staticmethod
    def forward(ctx: Any, pre: Tensor, threshold: Tensor, bandwidth: float) -> Tensor:
        ctx.save_for_backward(pre, threshold)
        ctx.bandwidth = bandwidth
        return (pre > threshold).to(pre)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (pre, threshold), (grad,) = ctx.saved_tensors, grads
        near = ((pre - threshold).abs() < ctx.bandwidth / 2).to(grad)
        return None, -near / ctx.bandwidth * grad, None
