"""The kinds of probe: each turns one design and many problems (labels, row weights) into one linear reader a problem.

- `logistic`: L2-penalised logistic regression on standardised features; the strength C is chosen or given.
- `mass_mean`: theta = mean of the positives - mean of the negatives, zero half-way between the means (Marks & Tegmark
  2023, "The Geometry of Truth", arXiv 2310.06824); a logistic regression on the training projections makes
  probabilities. Nothing is chosen.
"""

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float64, Int
from torch import Tensor

from interp.probe.figures import auroc, best_threshold
from interp.probe.solver import Design, calibrate, log_loss, solve

GRID = (1e-3, 1e-2, 1e-1, 1.0)
"""Strengths to choose from: scikit-learn's C, per row, on standardised features."""


@dataclass(frozen=True, eq=False)
class Readers:
    """One linear reader a problem, acting on raw activations: logit = slope * (x . direction + bias) + intercept."""

    direction: Float64[Tensor, "problem d"]
    bias: Float64[Tensor, "problem"]
    slope: Float64[Tensor, "problem"]
    intercept: Float64[Tensor, "problem"]

    def logit(self, X: Float64[Tensor, "row d"]) -> Float64[Tensor, "problem row"]:
        """Log-odds of the positive label."""
        score = self.direction @ X.T + self.bias[:, None]
        return self.slope[:, None] * score + self.intercept[:, None]


def fit_logistic(
    design: Design,
    y: Float64[Tensor, "problem row"],
    mask: Float64[Tensor, "problem row"],
    C: Float64[Tensor, "problem"],
) -> Readers:
    """Logistic regressions; `mask` is 1 for the rows that a problem may see."""
    direction, bias = design.to_raw(*solve(design.rotated, y, mask * C[:, None]))
    return Readers(direction, bias, torch.ones_like(bias), torch.zeros_like(bias))


def fit_mass_mean(
    design: Design,
    y: Float64[Tensor, "problem row"],
    mask: Float64[Tensor, "problem row"],
    C: Float64[Tensor, "problem"],  # noqa: ARG001 (one signature for every kind)
) -> Readers:
    """Differences of class means, in raw units."""
    means = [weight @ design.X / weight.sum(1, True) for weight in (mask * y, mask * (1 - y))]
    direction = means[0] - means[1]
    bias = -(direction * (means[0] + means[1])).sum(1) / 2
    score = direction @ design.X.T + bias[:, None]
    return Readers(direction, bias, *calibrate(score, y, mask))


@dataclass(frozen=True)
class Method:
    """How a kind is fitted, and whether it has a strength C to choose."""

    fit: Callable[..., Readers]
    penalised: bool


METHODS = {"logistic": Method(fit_logistic, True), "mass_mean": Method(fit_mass_mean, False)}


def method(kind: str) -> Method:
    """The method of a kind. ValueError with the nearest kind where there is none."""
    if kind not in METHODS:
        near = difflib.get_close_matches(kind, METHODS, 1) or list(METHODS)
        raise ValueError(f"unknown kind of probe {kind!r}; did you mean {' or '.join(map(repr, near))}?")
    return METHODS[kind]


@dataclass(frozen=True, eq=False)
class Choice:
    """What cross-validation inside a training part chose, and what it saw."""

    C: float | None
    """Strength with the lowest held-out log loss; None for kinds without one."""
    threshold: float
    """Log-odds above which the answer is positive: highest held-out accuracy."""
    auroc: float
    """Held-out AUROC at that C: what layers are chosen by. Never reported, for it was chosen."""
    losses: dict[float, float]
    """C -> mean held-out log loss in nats."""


def choose(
    kind: str,
    design: Design,
    y: Int[np.ndarray, " row"],
    folds: list[Int[np.ndarray, " _held_out"]],
    grid: Sequence[float] = GRID,
) -> Choice:
    """Choose the strength and the threshold on held-out rows of the folds, all folds and strengths in one batch.

    Standardisation is that of the whole training part: it knows no label.
    """
    way = method(kind)
    strengths = list(grid) if way.penalised else [1.0]
    mask = torch.ones(len(folds), len(y), dtype=torch.float64)
    fold_of_row = np.full(len(y), -1)
    for index, held_out in enumerate(folds):
        mask[index, held_out] = 0.0
        fold_of_row[held_out] = index
    assert (fold_of_row >= 0).all(), "a row is held out by no fold"
    labels = torch.tensor(y, dtype=torch.float64)
    n = len(strengths) * len(folds)
    C = torch.tensor(strengths, dtype=torch.float64).repeat_interleave(len(folds))
    readers = way.fit(design, labels.expand(n, -1), mask.repeat(len(strengths), 1), C)
    logit = readers.logit(design.X).view(len(strengths), len(folds), len(y))[:, fold_of_row, np.arange(len(y))]
    losses = log_loss(logit, labels.expand_as(logit), torch.ones_like(logit))[:, 0] / len(y)
    best = int(losses.argmin())
    held_out_logit = logit[best].numpy()
    return Choice(
        C=strengths[best] if way.penalised else None,
        threshold=best_threshold(held_out_logit, y),
        auroc=float(auroc(held_out_logit, y)[0]),
        losses={c: float(loss) for c, loss in zip(strengths, losses)} if way.penalised else {},
    )
