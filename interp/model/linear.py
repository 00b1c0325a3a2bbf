"""Linear and Embedding: parameters in the checkpoint's layout, allocated but not touched until weights are assigned or
initialised."""

from typing import Any, TypeGuard

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks


def blank(*shape: int, dtype: torch.dtype) -> nn.Parameter:
    """A frozen parameter over untouched memory: the system gives it pages only when weights are written to it."""
    return nn.Parameter(torch.empty(*shape, dtype=dtype), requires_grad=False)


class Direct(nn.Module):
    """A module that goes straight to `forward` while no torch hook is registered: twelve calls a layer add up where one
    token is decoded at a time."""

    def __call__(self, *args: Any) -> Any:
        own = self.__dict__
        watched = (
            own["_forward_hooks"] or own["_forward_pre_hooks"] or own["_backward_hooks"] or own["_backward_pre_hooks"]
        )
        if watched or module_hooks._global_forward_hooks or module_hooks._global_forward_pre_hooks:
            return super().__call__(*args)
        return self.forward(*args)


class Linear(Direct):
    """y = x W^T + b with `weight` as [out, in]. Any strided view is a valid weight, so nothing is copied at load."""

    bias: nn.Parameter | None

    def __init__(self, d_in: int, d_out: int, bias: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = blank(d_out, d_in, dtype=dtype)
        if bias:
            self.bias = blank(d_out, dtype=dtype)
        else:
            self.register_parameter("bias", None)

    def forward(self, x: Float[Tensor, "*rows d_in"]) -> Float[Tensor, "*rows d_out"]:
        own = self._parameters  # half the price of self.weight, which counts where one token is decoded at a time
        return nn.functional.linear(x, own["weight"], own["bias"])  # pyright: ignore[reportArgumentType]


class Embedding(nn.Module):
    """Rows of `weight` by index."""

    def __init__(self, n_rows: int, d_model: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = blank(n_rows, d_model, dtype=dtype)

    def forward(self, ids: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch pos d_model"]:
        return nn.functional.embedding(ids, self.weight)

    def project(
        self, x: Float[Tensor, "*rows d_model"], bias: Float[Tensor, " n_rows"] | None = None
    ) -> Float[Tensor, "*rows n_rows"]:
        """The product of x with every row: what an unembedding does."""
        return nn.functional.linear(x, self.weight, bias)

    @property
    def dtype(self) -> torch.dtype:
        """Of the rows."""
        return self.weight.dtype

    @property
    def device(self) -> torch.device:
        """Of the rows."""
        return self.weight.device


@torch.no_grad()
def init_weights(model: nn.Module, seed: int) -> None:
    """GPT-2's initialisation: N(0, 0.02), output projections by 1/sqrt(2 n_layers) less, gains 1, biases 0.

    A gain that is stored as its offset from 1 becomes 0.
    """
    generator = torch.Generator().manual_seed(seed)
    names = dict(model.named_parameters())
    offset = {
        f"{name}.weight": 0.0 if module.offset else 1.0 for name, module in model.named_modules() if _is_norm(module)
    }
    n_layers = 1 + max((int(name.split(".")[1]) for name in names if name.startswith("blocks.")), default=0)
    for name, weight in names.items():
        if name.endswith("bias"):
            weight.zero_()
        elif name in offset:
            weight.fill_(offset[name])
        else:
            std = 0.02 / (2 * n_layers) ** 0.5 if name.endswith((".o.weight", ".down.weight")) else 0.02
            weight.copy_(torch.randn(weight.shape, generator=generator) * std)


def _is_norm(module: nn.Module) -> TypeGuard[Any]:
    return hasattr(module, "offset") and hasattr(module, "centred")
