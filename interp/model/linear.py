"""Linear and Embedding: parameters in the checkpoint's layout, allocated but not touched until weights are assigned."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


def blank(*shape: int, dtype: torch.dtype) -> nn.Parameter:
    """A frozen parameter over untouched memory: the system gives it pages only when weights are written to it."""
    return nn.Parameter(torch.empty(*shape, dtype=dtype), requires_grad=False)


class Linear(nn.Module):
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
        return nn.functional.linear(x, self.weight, self.bias)


class Embedding(nn.Module):
    """Rows of `weight` by index."""

    def __init__(self, n_rows: int, d_model: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = blank(n_rows, d_model, dtype=dtype)

    def forward(self, ids: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch pos d_model"]:
        return nn.functional.embedding(ids, self.weight)
