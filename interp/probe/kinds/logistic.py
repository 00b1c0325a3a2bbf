"""L2-penalised logistic regression on standardised features; the strength C is chosen or given."""

from jaxtyping import Float64
from torch import Tensor

from interp.probe.readers import Readers, log_odds_readers
from interp.probe.solver import Design, solve


def fit_logistic(
    design: Design,
    y: Float64[Tensor, "problem row"],
    mask: Float64[Tensor, "problem row"],
    C: Float64[Tensor, "problem"],
    seed: int = 0,  # noqa: ARG001 (one signature for every kind)
) -> Readers:
    """Logistic regressions; `mask` is 1 for the rows that a problem may see."""
    return log_odds_readers(*design.to_raw(*solve(design.rotated, y, mask * C[:, None])))
