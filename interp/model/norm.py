"""LayerNorm and RMSNorm with their two sites: the scale that is divided by, and the normalised value before the gain.

Both compute in fp32 when the model runs in a lower precision, and in the model's own precision in fp32 and fp64.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from interp.hooks import HookPoint, RunState
from interp.model.config import ModelConfig
from interp.model.linear import blank


def accumulate(x: Tensor) -> Tensor:
    """The value in the precision that sums are made in: at least fp32."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


class Norm(nn.Module):
    """x -> (x - mean?) / scale * weight (+ bias). RMSNorm leaves the mean in and has no bias."""

    bias: nn.Parameter | None

    def __init__(self, cfg: ModelConfig, name: str, run: RunState, dtype: torch.dtype) -> None:
        super().__init__()
        self.eps = cfg.norm_eps
        self.centred = cfg.norm == "layer"
        self.weight = blank(cfg.d_model, dtype=dtype)
        if self.centred:
            self.bias = blank(cfg.d_model, dtype=dtype)
        else:
            self.register_parameter("bias", None)
        self.hook_scale = HookPoint(f"{name}.hook_scale", run)
        self.hook_normalized = HookPoint(f"{name}.hook_normalized", run)

    def points(self) -> list[HookPoint]:
        """The sites in the order of computation."""
        return [self.hook_scale, self.hook_normalized]

    def forward(self, x: Float[Tensor, "*rows d_model"]) -> Float[Tensor, "*rows d_model"]:
        return self.gain(self.hook_normalized(self.normalize(x)))

    def normalize(self, x: Float[Tensor, "*rows d_model"]) -> Float[Tensor, "*rows d_model"]:
        """x divided by its scale, centred first in a LayerNorm; fires `hook_scale`."""
        wide = accumulate(x)
        if self.centred:
            wide = wide - wide.mean(-1, keepdim=True)
        variance = wide.pow(2).mean(-1, keepdim=True) + self.eps
        if self.hook_scale.handles:
            scale = self.hook_scale.edited(variance.sqrt())
            if scale is not None:
                return (wide / scale).to(x.dtype)
        return (wide * torch.rsqrt(variance)).to(x.dtype)

    def scale(self, x: Float[Tensor, "*rows d_model"]) -> Float[Tensor, "*rows 1"]:
        """What the norm divides this x by; fires nothing."""
        wide = accumulate(x)
        if self.centred:
            wide = wide - wide.mean(-1, keepdim=True)
        return (wide.pow(2).mean(-1, keepdim=True) + self.eps).sqrt()

    def gain(self, normalized: Float[Tensor, "*rows d_model"]) -> Float[Tensor, "*rows d_model"]:
        """normalised value times weight, plus bias."""
        scaled = normalized * self.weight
        return scaled if self.bias is None else scaled + self.bias

    def silent(self, x: Float[Tensor, "*rows d_model"]) -> Float[Tensor, "*rows d_model"]:
        """The norm without its sites, for a lens that must not fire hooks."""
        wide = accumulate(x)
        if self.centred:
            wide = wide - wide.mean(-1, keepdim=True)
        return self.gain((wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype))
