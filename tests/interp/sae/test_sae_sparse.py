"""The sparse products equal dense ones, in value and in gradient."""

import pytest
import torch
from torch import Tensor

from interp.sae.sparse import sampled_linear, sparse_decode

ROWS, WIDTH, LATENTS, K = 5, 4, 9, 3


@pytest.fixture
def index() -> Tensor:
    """Distinct latents per row, unsorted; latents 7 and 8 are active nowhere."""
    generator = torch.Generator().manual_seed(0)
    return torch.stack([torch.randperm(7, generator=generator)[:K] for _ in range(ROWS)])


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).requires_grad_()


def test_sampled_linear_is_the_dense_product_at_the_pattern(index: Tensor) -> None:
    x, weight, bias = drawn(ROWS, WIDTH, seed=1), drawn(LATENTS, WIDTH, seed=2), drawn(LATENTS, seed=3)
    torch.testing.assert_close(sampled_linear(x, weight, bias, index), (x @ weight.T + bias).gather(1, index))
    assert torch.autograd.gradcheck(lambda *inputs: sampled_linear(*inputs, index), (x, weight, bias))


def test_sparse_decode_is_the_dense_product(index: Tensor) -> None:
    values, weight = drawn(ROWS, K, seed=4), drawn(LATENTS, WIDTH, seed=5)
    dense = torch.zeros(ROWS, LATENTS, dtype=torch.float64).scatter(1, index, values)
    torch.testing.assert_close(sparse_decode(values, index, weight), dense @ weight)
    assert torch.autograd.gradcheck(lambda values, weight: sparse_decode(values, index, weight), (values, weight))


def test_a_latent_that_is_active_nowhere_gets_no_gradient(index: Tensor) -> None:
    x, weight, bias = drawn(ROWS, WIDTH, seed=1), drawn(LATENTS, WIDTH, seed=2), drawn(LATENTS, seed=3)
    sparse_decode(sampled_linear(x, weight, bias, index), index, weight).sum().backward()
    assert weight.grad is not None
    assert (weight.grad[7:] == 0).all()
    assert (weight.grad[:7] != 0).any(dim=1).sum() == index.unique().numel()


def test_a_constant_input_is_given_no_gradient(index: Tensor) -> None:
    x, weight, bias = drawn(ROWS, WIDTH, seed=1).detach(), drawn(LATENTS, WIDTH, seed=2), drawn(LATENTS, seed=3)
    sampled_linear(x, weight, bias, index).sum().backward()
    assert x.grad is None
    assert weight.grad is not None
