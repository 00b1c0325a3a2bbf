"""Products with few active latents per row: what makes a training step cost little more than its encoder product.

A `Pattern` says which latents of which rows take part; with a value for each of its n entries it is a sparse matrix S
[row latent]. All that a training step needs, once the latents are chosen, is products with S or at its pattern.

1. `linear_at`: x W^T + b at the pattern only. Backward, with the gradient at the pattern as S: S^T x for W.
2. `sparse_decode`: S W. Backward: S^T g for W, and g W^T at the pattern for the values.

With 32 of 4,608 latents active each product costs a tenth of the dense encoder product or less. Weights are latent-major
here, [latent d], so that every access reads whole rows. A pattern that holds more than a sixteenth of all entries is
worked on as a dense matrix: from there on that is faster.
"""

import functools
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional

DENSE_FROM = 1 / 16
"""Share of all entries from which on a pattern is worked on as a dense matrix."""


@dataclass(frozen=True)
class Pattern:
    """Places of a sparse matrix [row latent] in compressed rows; no place stands twice."""

    starts: Int64[Tensor, " bounds"]
    """[rows + 1]: the entries of row r are starts[r]:starts[r + 1]."""
    latent: Int64[Tensor, " n"]
    n_latents: int

    @property
    def n_rows(self) -> int:
        """Rows, empty ones included."""
        return len(self.starts) - 1

    @functools.cached_property
    def counts(self) -> Int64[Tensor, " row"]:
        """Entries of each row."""
        return self.starts.diff()

    @functools.cached_property
    def row(self) -> Int64[Tensor, " n"]:
        """The row of each entry."""
        rows = torch.arange(self.n_rows, device=self.starts.device)
        return rows.repeat_interleave(self.counts, output_size=len(self.latent))

    @functools.cached_property
    def flat(self) -> Int64[Tensor, " n"]:
        """Place of each entry in the flattened dense matrix."""
        return self.row * self.n_latents + self.latent

    @functools.cached_property
    def is_dense(self) -> bool:
        """Whether dense products are the faster ones."""
        return len(self.latent) > DENSE_FROM * self.n_rows * self.n_latents

    @functools.cached_property
    def by_latent(self) -> tuple[Int64[Tensor, " n"], Int64[Tensor, " n"], Int64[Tensor, " latent"]]:
        """The transpose: entries ordered by latent, the row of each, and where each latent's begin."""
        order = torch.argsort(self.latent, stable=True)
        ends = torch.bincount(self.latent, minlength=self.n_latents).cumsum(0)
        starts = torch.cat([ends.new_zeros(1), ends[:-1]])
        return order, self.row[order], starts

    def dense(self, values: Float[Tensor, " n"]) -> Float[Tensor, "row latent"]:
        """The matrix with these values, zero elsewhere."""
        out = values.new_zeros(self.n_rows * self.n_latents)
        return out.index_put((self.flat,), values).view(self.n_rows, self.n_latents)

    def at(self, dense: Float[Tensor, "row latent"]) -> Float[Tensor, " n"]:
        """Entries of a dense matrix at these places."""
        return dense.reshape(-1)[self.flat]

    def subset(self, keep: Tensor) -> "Pattern":
        """The entries where `keep` [n] is true."""
        counts = torch.zeros_like(self.counts).index_add_(0, self.row[keep], torch.ones_like(self.latent[keep]))
        return Pattern(starts_of(counts), self.latent[keep], self.n_latents)


def starts_of(counts: Int64[Tensor, " row"]) -> Int64[Tensor, " bounds"]:
    """Where the entries of each row begin, and the end."""
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


def linear_at(
    x: Float[Tensor, "row d"],
    weight: Float[Tensor, "latent d"],
    bias: Float[Tensor, " latent"],
    pattern: Pattern,
    known: Float[Tensor, " n"] | None = None,
) -> Float[Tensor, " n"]:
    """`(x @ weight.T + bias)` at the pattern, computed there only, with gradients for x, weight and bias.

    Args:
        x, weight, bias: of the linear map.
        pattern: the places.
        known: the result, where it is known already; then only the backward pass is left to do.
    """
    return _LinearAt.apply(x, weight, bias, pattern, known)  # pyright: ignore[reportReturnType]


def sparse_decode(
    values: Float[Tensor, " n"], pattern: Pattern, weight: Float[Tensor, "latent d"]
) -> Float[Tensor, "row d"]:
    """Of each row the sum of value * weight[latent] over its entries, with gradients for values and weight."""
    return _SparseDecode.apply(values, pattern, weight)  # pyright: ignore[reportReturnType]


class _LinearAt(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, pattern: Pattern, known: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.pattern = pattern
        return known.clone() if known is not None else _products_at(pattern, x, weight) + bias[pattern.latent]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (x, weight), pattern, (grad,) = ctx.saved_tensors, ctx.pattern, grads
        for_x = _sum_of_rows(pattern, grad, weight) if ctx.needs_input_grad[0] else None
        for_weight = _transposed_sum(pattern, grad, x) if ctx.needs_input_grad[1] else None
        for_bias = grad.new_zeros(len(weight)).index_add_(0, pattern.latent, grad) if ctx.needs_input_grad[2] else None
        return for_x, for_weight, for_bias, None, None


class _SparseDecode(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, pattern: Pattern, weight: Tensor) -> Tensor:
        ctx.save_for_backward(values, weight)
        ctx.pattern = pattern
        return _sum_of_rows(pattern, values, weight)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (values, weight), pattern, (grad,) = ctx.saved_tensors, ctx.pattern, grads
        for_values = _products_at(pattern, grad, weight) if ctx.needs_input_grad[0] else None
        for_weight = _transposed_sum(pattern, values, grad) if ctx.needs_input_grad[2] else None
        return for_values, None, for_weight


def _sum_of_rows(pattern: Pattern, values: Tensor, weight: Tensor) -> Tensor:
    """S @ weight: [row d]."""
    if pattern.is_dense:
        return pattern.dense(values) @ weight
    return functional.embedding_bag(pattern.latent, weight, pattern.starts[:-1], per_sample_weights=values, mode="sum")


def _transposed_sum(pattern: Pattern, values: Tensor, rows: Tensor) -> Tensor:
    """S^T @ rows: [latent d]. A bag is one latent; its entries are the rows in which it is active, in order."""
    if pattern.is_dense:
        return pattern.dense(values).T @ rows
    order, row, starts = pattern.by_latent
    return functional.embedding_bag(row, rows, starts, per_sample_weights=values[order], mode="sum")


def _products_at(pattern: Pattern, left: Tensor, weight: Tensor) -> Tensor:
    """left @ weight.T at the pattern: [n]."""
    if pattern.is_dense:
        return pattern.at(left @ weight.T)
    with warnings.catch_warnings():
        # torch announces once per process that its CSR tensors are in beta.
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta", category=UserWarning)
        places = torch.sparse_csr_tensor(
            pattern.starts,
            pattern.latent,
            left.new_zeros(len(pattern.latent)),
            (pattern.n_rows, pattern.n_latents),
            check_invariants=False,
        )
    return torch.sparse.sampled_addmm(places, left.contiguous(), weight.T, beta=0.0).values()
