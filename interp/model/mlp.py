"""The feed-forward layer: plain, act(x W_in) W_out, or gated, act(x W_gate) * (x W_in) (Shazeer, arXiv 2002.05202)."""

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from interp.hooks import HookPoint, RunState
from interp.model.config import ModelConfig
from interp.model.linear import Direct, Linear

ACTIVATION: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_new": partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
}


class FeedForward(Direct):
    """The weights of a feed-forward layer, without sites: one expert of many."""

    gate: Linear | None

    def __init__(self, cfg: ModelConfig, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.gate = Linear(cfg.d_model, width, cfg.mlp_bias, dtype) if cfg.gated_mlp else None
        self.up = Linear(cfg.d_model, width, cfg.mlp_bias, dtype)
        self.down = Linear(width, cfg.d_model, cfg.mlp_bias, dtype)
        self.act = ACTIVATION[cfg.act_fn]

    def forward(self, x: Float[Tensor, "*rows d_model"]) -> Float[Tensor, "*rows d_model"]:
        if self.gate is None:
            return self.down(self.act(self.up(x)))
        return self.down(self.act(self.gate(x)) * self.up(x))

    @property
    def W_in(self) -> Float[Tensor, "d_model width"]:
        """Input weights, a view that writes through."""
        return self.up.weight.T

    @property
    def W_gate(self) -> Float[Tensor, "d_model width"] | None:
        """Weights of the gate, a view that writes through; None without a gate."""
        return None if self.gate is None else self.gate.weight.T

    @property
    def W_out(self) -> Float[Tensor, "width d_model"]:
        """Output weights by neuron, a view that writes through."""
        return self.down.weight.T


class MLP(FeedForward):
    """MLP of one block. `hook_pre` is the gate in a gated MLP, and `hook_post` what the output projection reads."""

    def __init__(self, cfg: ModelConfig, layer: int, run: RunState, dtype: torch.dtype) -> None:
        super().__init__(cfg, cfg.d_mlp, dtype)
        self.hook_pre = HookPoint(f"blocks.{layer}.mlp.hook_pre", run)
        self.hook_pre_linear = HookPoint(f"blocks.{layer}.mlp.hook_pre_linear", run)
        self.hook_post = HookPoint(f"blocks.{layer}.mlp.hook_post", run)

    def points(self) -> list[HookPoint]:
        """The sites in the order of computation."""
        return [self.hook_pre, *([self.hook_pre_linear] if self.gate is not None else []), self.hook_post]

    def forward(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
        if self.gate is None:
            return self.down(self.hook_post(self.act(self.hook_pre(self.up(x)))))
        gate = self.act(self.hook_pre(self.gate(x)))
        return self.down(self.hook_post(gate * self.hook_pre_linear(self.up(x))))
