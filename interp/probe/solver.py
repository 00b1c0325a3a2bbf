"""Many logistic regressions at once: cross-validation folds, strengths and permuted labels all share one design.

Problem k has its own labels and row weights (0 for a row that it may not see) and minimises

    1/2 |w|^2 + sum_i weight_ki * log(1 + exp(-(2 y_ki - 1) (x_i . w + b)))

which is scikit-learn's `LogisticRegression(C=weight)`: the bias is free of the penalty. Solving them together turns
thin products into matrix products.

1. `Design`: centre and scale the rows, then turn them to their principal axes. The penalty does not see a rotation, and
   there the Hessian is close to diagonal.
2. Newton's method, each step by conjugate gradients preconditioned with the Hessian's diagonal (Nocedal & Wright,
   Numerical Optimization, 2nd ed., algorithm 7.1). The steps are float32, for a step needs few digits; gradient, loss
   and solution are float64, and the gradient alone decides when a problem is solved.
3. Solved problems leave the batch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float32, Float64
from torch import Tensor
from torch.nn.functional import softplus

from interp.probe.labelled import Labelled

TOLERANCE = 1e-6
"""A problem is solved when its gradient is this small relative to the one at w = 0."""
_MAX_NEWTON = 100
_MAX_HALVINGS = 40


@dataclass(frozen=True, eq=False)
class Design:
    """Rows that a probe may learn from, and their standardised, rotated form. Nothing that it computes knows a label."""

    X: Any
    """Raw activations [row d]; for kinds that read whole texts their `TokenRows`."""
    side: Labelled | None = None
    """What is known of the same rows; for kinds that need polarity, topic or pairs."""

    @cached_property
    def _constant(self) -> Tensor:
        return self.X.amax(0) == self.X.amin(0)

    @cached_property
    def mean(self) -> Float64[Tensor, "d"]:
        """Mean of each feature."""
        # The mean of equal numbers can differ from them in the last bit; dividing by that would blow it up.
        return torch.where(self._constant, self.X[0], self.X.mean(0))

    @cached_property
    def scale(self) -> Float64[Tensor, "d"]:
        """Standard deviation of each feature, 1 where the feature is constant."""
        return torch.where(self._constant, 1.0, self.X.std(0, correction=0))

    @cached_property
    def _axes(self) -> tuple[Float64[Tensor, "d rank"], Float64[Tensor, "row rank"]]:
        """Orthonormal axes that span the standardised rows, and the rows' coordinates along them."""
        Z = (self.X - self.mean) / self.scale
        n, d = Z.shape
        if n >= d:
            axes = torch.linalg.eigh(Z.T @ Z).eigenvectors
        else:  # the solution lies in the span of the rows, which the smaller Gram matrix gives
            values, vectors = torch.linalg.eigh(Z @ Z.T)
            kept = values > 1e-12 * values[-1]
            axes = Z.T @ (vectors[:, kept] / values[kept].sqrt())
        return axes, Z @ axes

    @property
    def rotated(self) -> Float64[Tensor, "row rank"]:
        """The standardised rows along their principal axes."""
        return self._axes[1]

    def to_raw(
        self, weights: Float64[Tensor, "problem rank"], bias: Float64[Tensor, "problem"]
    ) -> tuple[Float64[Tensor, "problem d"], Float64[Tensor, "problem"]]:
        """Weights and bias that act on raw activations, from those that act on `rotated`."""
        direction = weights @ self._axes[0].T / self.scale
        return direction, bias - direction @ self.mean


def solve(
    rows: Float64[Tensor, "row rank"],
    y: Float64[Tensor, "problem row"],
    weight: Float64[Tensor, "problem row"],
) -> tuple[Float64[Tensor, "problem rank"], Float64[Tensor, "problem"]]:
    """Weights and bias of every problem.

    Raises:
        RuntimeError: a problem that does not converge. The loss is strictly convex in w, so this is not expected.
    """
    A = torch.cat([rows, torch.ones_like(rows[:, :1])], 1)
    penalty = torch.ones_like(A[0])
    penalty[-1] = 0.0
    thin = A.float()
    squares = thin * thin
    solution = A.new_zeros(len(y), A.shape[1])
    active = torch.arange(len(y))
    first = None
    for _ in range(_MAX_NEWTON):
        w, labels, counts = solution[active], y[active], weight[active]
        z = w @ A.T
        p = z.sigmoid()
        gradient = penalty * w + (counts * (p - labels)) @ A
        size = gradient.norm(dim=1)
        if first is None:
            # The gradient of rows without any signal is rounding: a problem cannot be asked for digits that are not there.
            first = size.clamp_min(1e-12 / TOLERANCE * A.abs().max() * counts.sum(1))
        left = size > TOLERANCE * first
        if not left.any():
            return solution[:, :-1], solution[:, -1]
        active, first = active[left], first[left]
        w, labels, counts, z, p, gradient, size = (t[left] for t in (w, labels, counts, z, p, gradient, size))
        curvature = (counts * p * (1 - p)).float()
        accuracy = (size / first).clamp(1e-3, 0.25) * size
        step = -_newton_step(thin, squares, curvature, penalty.float(), gradient.float(), accuracy.float()).double()
        z_step = step @ A.T

        def loss(t: Tensor, w=w, step=step, z=z, z_step=z_step, labels=labels, counts=counts) -> Tensor:
            return 0.5 * (penalty * (w + t * step) ** 2).sum(1, True) + log_loss(z + t * z_step, labels, counts)

        solution[active] = w + _backtrack(loss, (gradient * step).sum(1, True)) * step
    raise RuntimeError(f"{len(active)} of {len(y)} logistic regressions did not converge in {_MAX_NEWTON} Newton steps")


def _newton_step(
    A: Float32[Tensor, "row k"],
    squares: Float32[Tensor, "row k"],
    curvature: Float32[Tensor, "problem row"],
    penalty: Float32[Tensor, "k"],
    gradient: Float32[Tensor, "problem k"],
    accuracy: Float32[Tensor, "problem"],
) -> Float32[Tensor, "problem k"]:
    """Conjugate gradients for Hessian @ step = gradient, until each residual is below its `accuracy`."""
    preconditioner = 1 / (penalty + curvature @ squares)
    step = torch.zeros_like(gradient)
    residual = gradient.clone()
    search = preconditioner * residual
    fit = (residual * search).sum(1, True)
    for _ in range(A.shape[1]):
        image = penalty * search + (curvature * (search @ A.T)) @ A
        length = fit / (search * image).sum(1, True).clamp_min(1e-30)
        step += length * search
        residual -= length * image
        if bool((residual.norm(dim=1) <= accuracy).all()):
            break
        scaled = preconditioner * residual
        fit, before = (residual * scaled).sum(1, True), fit
        search = scaled + fit / before.clamp_min(1e-30) * search
    return step


def _backtrack(loss: Callable[[Tensor], Tensor], slope: Float64[Tensor, "problem 1"]) -> Float64[Tensor, "problem 1"]:
    """The largest of 1, 1/2, 1/4 ... for which each problem's loss falls by its share of the slope (Armijo's rule)."""
    t = torch.ones_like(slope)
    before = loss(torch.zeros_like(t))
    for _ in range(_MAX_HALVINGS):
        # The loss is only known to rounding, which near the solution is more than the fall.
        too_far = loss(t) > before + 1e-4 * t * slope + 1e-13 * before.abs()
        if not too_far.any():
            break
        t = torch.where(too_far, t / 2, t)
    return t


def log_loss(
    z: Float64[Tensor, "problem row"], y: Float64[Tensor, "problem row"], weight: Float64[Tensor, "problem row"]
) -> Float64[Tensor, "problem 1"]:
    """Weighted sum over the rows of -log p(y), in nats, with p = sigmoid(z)."""
    return (weight * (softplus(z) - y * z)).sum(1, True)


def calibrate(
    score: Float64[Tensor, "problem row"],
    y: Float64[Tensor, "problem row"],
    weight: Float64[Tensor, "problem row"],
) -> tuple[Float64[Tensor, "problem"], Float64[Tensor, "problem"]]:
    """Slope and intercept of P(y = 1) = sigmoid(slope * score + intercept), a logistic regression with one feature.

    The score is standardised and the slope penalised with C = 1, so that separable scores get finite probabilities.
    """
    total = weight.sum(1, True)
    mean = (weight * score).sum(1, True) / total
    spread = ((weight * (score - mean) ** 2).sum(1, True) / total).sqrt()
    spread = torch.where(spread > 0, spread, 1.0)
    t = torch.stack([(score - mean) / spread, torch.ones_like(score)], 2)  # [problem row 2]
    penalty = score.new_tensor([1.0, 0.0])
    solution = score.new_zeros(len(score), 2)
    for _ in range(_MAX_NEWTON):
        z = (t @ solution[:, :, None])[:, :, 0]
        p = z.sigmoid()
        gradient = penalty * solution + ((weight * (p - y))[:, None] @ t)[:, 0]
        if bool((gradient.norm(dim=1, keepdim=True) <= 1e-9 * total).all()):
            slope = solution[:, 0] / spread[:, 0]
            return slope, solution[:, 1] - slope * mean[:, 0]
        hessian = t.mT @ ((weight * p * (1 - p))[:, :, None] * t) + torch.diag(penalty)
        step = -torch.linalg.solve(hessian, gradient)
        z_step = (t @ step[:, :, None])[:, :, 0]

        def loss(a: Tensor, w=solution, step=step, z=z, z_step=z_step) -> Tensor:
            return 0.5 * (penalty * (w + a * step) ** 2).sum(1, True) + log_loss(z + a * z_step, y, weight)

        solution = solution + _backtrack(loss, (gradient * step).sum(1, True)) * step
    raise RuntimeError(f"a calibration on one feature did not converge in {_MAX_NEWTON} Newton steps")
