"""Weights of every part of an SAE, drawn at random: nothing tied, no two axes of one length, thresholds that matter."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

D_IN = 6


@pytest.fixture
def draw() -> Callable[..., Tensor]:
    """Tensors of a fixed seed; the same call after the same calls gives the same tensor."""
    generator = torch.Generator().manual_seed(0)
    return lambda *shape: torch.randn(*shape, generator=generator)


@pytest.fixture
def x() -> Tensor:
    """Rows that are neither centred nor of one norm."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(50, D_IN, generator=generator) * torch.linspace(0.3, 4, 50)[:, None] + 0.5


@pytest.fixture
def same_rows() -> Callable[[Tensor, Tensor], None]:
    """Checks that two tensors agree within 1e-5 of each row's norm, and that the rows are worth comparing."""

    def check(got: Tensor, want: Tensor) -> None:
        got, want = got.detach().double(), want.detach().double()
        assert got.shape == want.shape
        assert want.std(0).min() > 1e-3
        error = (got - want).norm(dim=-1) / want.norm(dim=-1).clamp_min(1e-3)
        assert error.max() < 1e-5

    return check
