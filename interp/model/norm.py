"""LayerNorm and RMSNorm with their two sites: the scale that is divided by, and the normalised value before the gain.

Both compute in fp32 when the model runs in a lower precision, and in the model's own precision in fp32 and fp64.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from interp.hooks import HookPoint, RunState
from interp.model.linear import Direct, blank


def accumulate(x: Tensor) -> Tensor:
    """The value in the precision that sums are made in: at least fp32."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


class Norm(Direct):
    """x -> (x - mean?) / scale * gain (+ bias). RMSNorm leaves the mean in and has no bias.

    Args:
        width: size of the last axis.
        kind: `rms`, `layer`, or `none`, which returns its input and has neither weights nor sites.
        eps: added to the variance.
        dtype: of the weights.
        offset: the gain is 1 + weight.
        name: prefix of the sites; None for a norm without sites.
        run: state of the pass, needed with a name.
    """

    bias: nn.Parameter | None
    weight: nn.Parameter | None

    def __init__(
        self,
        width: int,
        kind: str,
        eps: float,
        dtype: torch.dtype,
        *,
        offset: bool = False,
        name: str | None = None,
        run: RunState | None = None,
    ) -> None:
        super().__init__()
        self.kind, self.eps, self.offset = kind, eps, offset
        self.centred = kind == "layer"
        self.register_parameter("weight", None if kind == "none" else blank(width, dtype=dtype))
        self.register_parameter("bias", blank(width, dtype=dtype) if self.centred else None)
        self.hook_scale = self.hook_normalized = None
        if name is not None and run is not None and kind != "none":
            self.hook_scale = HookPoint(f"{name}.hook_scale", run)
            self.hook_normalized = HookPoint(f"{name}.hook_normalized", run)

    def points(self) -> list[HookPoint]:
        """The sites in the order of computation."""
        return [point for point in (self.hook_scale, self.hook_normalized) if point is not None]

    def forward(self, x: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows width"]:
        scale, normalized = self.hook_scale, self.hook_normalized
        if scale is None or normalized is None or not (scale.handles or normalized.handles):
            return self.silent(x)
        return self.gain(normalized(self.normalize(x)))

    def normalize(self, x: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows width"]:
        """x divided by its scale, centred first in a LayerNorm; fires `hook_scale`."""
        if self.hook_scale is not None and self.hook_scale.handles:
            wide, variance = self._moments(x)
            scale = self.hook_scale.edited(variance.sqrt())
            if scale is not None:
                return (wide / scale).to(x.dtype)
        return self._fused(x)

    def scale(self, x: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows 1"]:
        """What the norm divides this x by; fires nothing."""
        return self._moments(x)[1].sqrt()

    def gain(self, normalized: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows width"]:
        """normalised value times gain, plus bias."""
        multiplier = self.multiplier()
        if multiplier is None:
            return normalized
        if self.offset:
            return (accumulate(normalized) * multiplier).to(normalized.dtype)
        scaled = normalized * multiplier
        return scaled if self.bias is None else scaled + self.bias

    def multiplier(self) -> Float[Tensor, " width"] | None:
        """What the normalised value is multiplied by: the weight, or 1 + weight in at least fp32; None for no norm."""
        if self.weight is None or not self.offset:
            return self.weight
        return 1.0 + accumulate(self.weight)

    def silent(self, x: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows width"]:
        """The norm without its sites, for a lens that must not fire hooks."""
        own = self._parameters
        if self.kind == "none":
            return x
        if self.centred or self.offset or x.dtype.itemsize < 4:
            return self.gain(self._fused(x))
        # The gain in the same kernel: the same bits in fp32 and fp64, and one kernel fewer for each token decoded.
        return torch.rms_norm(x, (x.shape[-1],), own["weight"], self.eps)

    def _fused(self, x: Tensor) -> Tensor:
        """x divided by its scale, in one kernel, which sums in at least fp32."""
        if self.centred:
            return functional.layer_norm(accumulate(x), (x.shape[-1],), eps=self.eps).to(x.dtype)
        return torch.rms_norm(x, (x.shape[-1],), None, self.eps)

    def _moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(x, centred in a LayerNorm; its mean square plus eps), in at least fp32."""
        wide = accumulate(x)
        if self.centred:
            wide = wide - wide.mean(-1, keepdim=True)
        return wide, wide.pow(2).mean(-1, keepdim=True) + self.eps
