"""Linear discriminant analysis with the covariance shrunk by the formula of Ledoit & Wolf.

1. Each class's rows are standardised by themselves, and their covariance is shrunk towards a multiple of the identity,
   (1 - s) S + s tr(S) / d I, with the s that is best in mean square (Ledoit & Wolf 2004, "A well-conditioned estimator
   for large-dimensional covariance matrices", J. Multivariate Analysis 88).
2. Back in the units of the features, the classes' matrices are averaged by their shares of the rows.
3. w = covariance^-1 (mean of the positives - mean of the negatives); the bias holds the log-odds of the shares, so that
   the score is a log-odds.

It is scikit-learn's `LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto")`. Nothing is chosen.
"""

import torch
from jaxtyping import Float64
from torch import Tensor

from interp.probe.readers import Readers, log_odds_readers
from interp.probe.solver import Design


def fit_lda(
    design: Design,
    y: Float64[Tensor, "problem row"],
    mask: Float64[Tensor, "problem row"],
    C: Float64[Tensor, "problem"],  # noqa: ARG001 (one signature for every kind)
    seed: int = 0,  # noqa: ARG001
) -> Readers:
    """Discriminants; `mask` is 1 for the rows that a problem may see."""
    # The result does not depend on the features' units; in standard ones the equations are well conditioned.
    rows = (design.X - design.mean) / design.scale
    fitted = [_discriminant(rows[seen == 1], labels[seen == 1]) for labels, seen in zip(y, mask)]
    weights, bias = (torch.stack(values) for values in zip(*fitted))
    direction = weights / design.scale
    return log_odds_readers(direction, bias - direction @ design.mean)


def _discriminant(
    rows: Float64[Tensor, "row d"], y: Float64[Tensor, "row"]
) -> tuple[Float64[Tensor, "d"], Float64[Tensor, ""]]:
    means, shares, factors = [], [], []
    diagonal = torch.zeros_like(rows[0])
    for label in (1.0, 0.0):
        own = rows[y == label]
        share = own.new_tensor(len(own) / len(rows))
        mean = own.mean(0)
        scale = _spread(own, mean)
        standard = (own - mean) / scale
        shrinkage, level = _ledoit_wolf(standard)
        diagonal += share * shrinkage * level * scale**2
        # Rows whose squares add up to the class's part of the covariance.
        factors.append(standard * (scale * (share * (1 - shrinkage) / len(own)).sqrt()))
        means.append(mean)
        shares.append(share)
    weights = _solve(diagonal, torch.cat(factors), means[0] - means[1])
    return weights, -weights @ (means[0] + means[1]) / 2 + (shares[0] / shares[1]).log()


def _spread(rows: Float64[Tensor, "row d"], mean: Float64[Tensor, "d"]) -> Float64[Tensor, "d"]:
    """Standard deviations, 1 where a feature is constant up to the rounding of its mean."""
    variance = (rows - mean).pow(2).mean(0)
    n, eps = len(rows), torch.finfo(rows.dtype).eps
    return torch.where(variance > n * eps * variance + (n * eps * mean) ** 2, variance.sqrt(), 1.0)


def _ledoit_wolf(rows: Float64[Tensor, "row d"]) -> tuple[Float64[Tensor, ""], Float64[Tensor, ""]]:
    """The shrinkage, and the mean variance that is shrunk to, of centred rows."""
    n, d = rows.shape
    squares = rows.pow(2).sum(1)
    level = squares.sum() / (n * d)
    # |S|^2 without S where rows are fewer than features: the Gram matrix has the same norm.
    gram = rows.T @ rows if n >= d else rows @ rows.T
    size = gram.pow(2).sum() / n**2
    distance = size - d * level**2
    noise = (squares.pow(2).sum() / n - size) / n
    shrinkage = torch.where(distance > 0, (noise / distance.clamp_min(1e-300)).clamp(0.0, 1.0), 0.0)
    return shrinkage, level


def _solve(
    diagonal: Float64[Tensor, "d"], factor: Float64[Tensor, "row d"], target: Float64[Tensor, "d"]
) -> Float64[Tensor, "d"]:
    """(diag(diagonal) + factor' factor)^-1 target, in whichever of the two spaces is smaller.

    Where the shrinkage is 0 for both classes the matrix may be singular, and the smallest solution is taken.
    """
    n, d = factor.shape
    if n >= d or not bool((diagonal > 0).all()):
        matrix = torch.diag(diagonal) + factor.T @ factor
        lower, failed = torch.linalg.cholesky_ex(matrix)
        if int(failed):
            return torch.linalg.pinv(matrix, hermitian=True) @ target
        return torch.cholesky_solve(target[:, None], lower)[:, 0]
    # Woodbury's identity.
    thin = factor / diagonal
    inner = torch.eye(n, dtype=factor.dtype) + thin @ factor.T
    lower = torch.linalg.cholesky(inner)
    return target / diagonal - torch.cholesky_solve((thin @ target)[:, None], lower)[:, 0] @ thin
