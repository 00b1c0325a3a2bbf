"""Mass-mean probes: the difference of the class means (Marks & Tegmark 2023, "The Geometry of Truth", arXiv 2310.06824).

- `mass_mean`: theta = mean of the positives - mean of the negatives, in raw units.
- `mass_mean_cov`: theta times the inverse of the pooled within-class covariance, which turns away from directions that
  vary much within a class. The paper calls it the probe for data of the same distribution.

Zero is half-way between the means. A logistic regression on the training projections makes probabilities; nothing is
chosen.
"""

import torch
from jaxtyping import Float64
from torch import Tensor

from interp.probe.readers import Readers
from interp.probe.solver import Design, calibrate

RIDGE = 1e-3
"""Share of the mean within-class variance that `mass_mean_cov` adds to every standardised feature."""


def fit_mass_mean(
    design: Design,
    y: Float64[Tensor, "problem row"],
    mask: Float64[Tensor, "problem row"],
    C: Float64[Tensor, "problem"],  # noqa: ARG001 (one signature for every kind)
    seed: int = 0,  # noqa: ARG001
) -> Readers:
    """Differences of class means, in raw units."""
    means = [weight @ design.X / weight.sum(1, True) for weight in (mask * y, mask * (1 - y))]
    direction = means[0] - means[1]
    bias = -(direction * (means[0] + means[1])).sum(1) / 2
    score = direction @ design.X.T + bias[:, None]
    return Readers(direction, bias, *calibrate(score, y, mask))


def fit_mass_mean_cov(
    design: Design,
    y: Float64[Tensor, "problem row"],
    mask: Float64[Tensor, "problem row"],
    C: Float64[Tensor, "problem"],  # noqa: ARG001 (one signature for every kind)
    seed: int = 0,  # noqa: ARG001
) -> Readers:
    """Differences of class means times the inverse of the pooled within-class covariance.

    The covariance gets a ridge of `RIDGE` times the mean variance of the standardised features, so that it has an
    inverse where rows are fewer than features; with more rows than features it hardly shows.
    """
    rows = design.rotated
    total = mask.sum(1, True)
    means = [weight @ rows / weight.sum(1, True) for weight in (mask * y, mask * (1 - y))]
    difference = means[0] - means[1]
    share = (mask * y).sum(1) / total[:, 0]
    # The within-class covariance is the total one less that between the classes, which is difference x difference.
    # Problems with the same rows, such as permuted labels, share the total one and its factor.
    distinct, place = torch.unique(mask, dim=0, return_inverse=True)
    weights = torch.empty_like(difference)
    for index, seen in enumerate(distinct):
        here = place == index
        centred = (rows - seen @ rows / seen.sum()) * seen[:, None]
        covariance = centred.T @ centred / seen.sum()
        between = share[here] * (1 - share[here])
        within = covariance.trace() - between * difference[here].pow(2).sum(1)
        weights[here] = _within_solve(covariance, RIDGE * within / design.X.shape[1], between, difference[here])
    bias = -(weights * (means[0] + means[1])).sum(1) / 2
    direction, offset = design.to_raw(weights, bias)
    return Readers(direction, offset, *calibrate(weights @ rows.T + bias[:, None], y, mask))


def _within_solve(
    total: Float64[Tensor, "rank rank"],
    ridge: Float64[Tensor, "problem"],
    between: Float64[Tensor, "problem"],
    difference: Float64[Tensor, "problem rank"],
) -> Float64[Tensor, "problem rank"]:
    """(total - between * difference difference' + ridge)^-1 difference, by one eigendecomposition for all problems."""
    values, axes = torch.linalg.eigh(total)
    along = difference @ axes
    solved = (along / (values.clamp_min(0.0) + ridge[:, None])) @ axes.T
    # Sherman & Morrison: taking a rank-one term from the matrix only stretches this solution.
    return solved / (1 - between[:, None] * (difference * solved).sum(1, True))
