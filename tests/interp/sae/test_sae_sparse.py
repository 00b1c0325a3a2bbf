"""The sparse products equal dense ones, in value and in gradient; the selections equal brute force."""

import pytest
import torch
from torch import Tensor

from interp.sae import sparse
from interp.sae.select import above, pattern_of_rows, top_of_rows
from interp.sae.sparse import Pattern, linear_at, sparse_decode

ROWS, WIDTH, LATENTS = 5, 4, 9


@pytest.fixture(params=["even", "ragged", "none"])
def pattern(request: pytest.FixtureRequest) -> Pattern:
    """Three latents in every row, unsorted; rows of several lengths, one of them empty; nothing at all. Latents 7 and 8
    are active nowhere."""
    generator = torch.Generator().manual_seed(0)
    index = torch.stack([torch.randperm(7, generator=generator)[:3] for _ in range(ROWS)])
    even = pattern_of_rows(index, LATENTS)
    if request.param == "even":
        return even
    keep = torch.tensor([1, 1, 0, 0, 0, 0, 1, 0, 1, 1, 1, 1, 0, 1, 0], dtype=torch.bool)
    return even.subset(keep if request.param == "ragged" else keep & False)


@pytest.fixture(params=["sparse", "dense"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to work on a pattern."""
    monkeypatch.setattr(sparse, "DENSE_FROM", 2.0 if request.param == "sparse" else -1.0)


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).requires_grad_()


@pytest.mark.usefixtures("form")
def test_linear_at_is_the_dense_product_at_the_pattern(pattern: Pattern) -> None:
    x, weight, bias = drawn(ROWS, WIDTH, seed=1), drawn(LATENTS, WIDTH, seed=2), drawn(LATENTS, seed=3)
    expected = (x @ weight.T + bias)[pattern.row, pattern.latent]
    torch.testing.assert_close(linear_at(x, weight, bias, pattern), expected)
    torch.testing.assert_close(linear_at(x, weight, bias, pattern, expected.detach()), expected)
    if len(pattern.latent):
        assert torch.autograd.gradcheck(lambda *inputs: linear_at(*inputs, pattern), (x, weight, bias))


@pytest.mark.usefixtures("form")
def test_sparse_decode_is_the_dense_product(pattern: Pattern) -> None:
    values, weight = drawn(len(pattern.latent), seed=4), drawn(LATENTS, WIDTH, seed=5)
    dense = torch.zeros(ROWS, LATENTS, dtype=torch.float64)
    dense[pattern.row, pattern.latent] = values.detach()
    torch.testing.assert_close(pattern.dense(values), dense)
    torch.testing.assert_close(sparse_decode(values, pattern, weight), dense @ weight)
    if len(pattern.latent):
        assert torch.autograd.gradcheck(lambda values, weight: sparse_decode(values, pattern, weight), (values, weight))


@pytest.mark.usefixtures("form")
def test_a_latent_that_is_active_nowhere_gets_no_gradient(pattern: Pattern) -> None:
    x, weight, bias = drawn(ROWS, WIDTH, seed=1), drawn(LATENTS, WIDTH, seed=2), drawn(LATENTS, seed=3)
    sparse_decode(linear_at(x, weight, bias, pattern), pattern, weight).sum().backward()
    assert weight.grad is not None
    assert (weight.grad[7:] == 0).all()
    assert (weight.grad[:7] != 0).any(dim=1).sum() == pattern.latent.unique().numel()


def test_a_constant_input_is_given_no_gradient(pattern: Pattern) -> None:
    x, weight, bias = drawn(ROWS, WIDTH, seed=1).detach(), drawn(LATENTS, WIDTH, seed=2), drawn(LATENTS, seed=3)
    linear_at(x, weight, bias, pattern).sum().backward()
    assert x.grad is None
    assert weight.grad is not None


@pytest.mark.parametrize("width", [7, 160, 1000, 1003])
@pytest.mark.parametrize("k", [1, 5, 7])
def test_the_largest_of_each_row(width: int, k: int) -> None:
    pre = drawn(50, width, seed=6).detach()
    assert torch.equal(top_of_rows(pre, k).sort(1).values, pre.topk(k, dim=1).indices.sort(1).values)


@pytest.mark.parametrize("width", [7, 160, 1003])
@pytest.mark.parametrize("level", [-9.0, -0.5, 0.0, 2.0, 2.8, 9.0])
def test_all_above_a_level(width: int, level: float) -> None:
    pre = drawn(50, width, seed=7).detach()
    row, latent = (pre > level).nonzero(as_tuple=True)
    found = above(pre, level)
    assert torch.equal(found.row, row)
    assert torch.equal(found.latent, latent)
    assert torch.equal(found.counts, (pre > level).sum(1))
