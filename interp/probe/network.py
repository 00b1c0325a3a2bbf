"""Small networks, many at once: folds, strengths and permuted labels each train their own weights over the same rows.

Problem k has its own labels y, row weights (0 for a row that it may not see) and strength C, and minimises

    1/2 |weights|^2 + C * sum_i seen_ki * log(1 + exp(-(2 y_ki - 1) f_k(x_i)))

with f_k its network; biases are free of the penalty. That is the objective of the linear kinds with another f, so C means
what it means there. It is not convex: the answer depends on where descent starts and how it goes, so both are fixed.

1. Every problem starts from the same weights, those of the seed, and from the bias of its own base rate: what a problem
   finds does not depend on its neighbours.
2. Adam on all rows (Kingma & Ba 2015, arXiv 1412.6980), float32. No step of a problem sees another one's gradient.
3. The rate rises over the first tenth and falls to zero along a cosine, so that a fixed number of steps ends at rest. There
   is no early stopping: the rows to stop by would have to be taken, by group, from those to learn from. C is what holds a
   network back.
"""

import math
from collections.abc import Callable, Iterator, Mapping

import torch
from jaxtyping import Float32, Float64
from torch import Tensor
from torch.nn.functional import softplus

_BETAS, _EPSILON = (0.9, 0.999), 1e-8  # as in the paper
_WARM_UP = 0.1  # share of the steps
_MOST_NUMBERS = 16_000_000  # of one layer's values, over all problems of a block


def descend(
    weights: dict[str, Float32[Tensor, "problem ..."]],
    logit: Callable[[dict[str, Tensor]], Float32[Tensor, "problem row"]],
    y: Float64[Tensor, "problem row"],
    mask: Float64[Tensor, "problem row"],
    C: Float64[Tensor, "problem"],
    *,
    rates: Mapping[str, float],
    steps: int,
) -> dict[str, Float32[Tensor, "problem ..."]]:
    """Train from `weights`, outside of inference mode; those whose name ends in `bias` are free of the penalty.

    Args:
        weights: starting point by name, one entry a problem.
        logit: log-odds of every row, from the weights.
        y, mask, C: the problems.
        rates: largest step of a single number, by the weights' names.
        steps: how many.

    Raises:
        ValueError: a network that ends at NaN or infinity.
    """
    labels, seen = y.float(), mask.float()
    # The objective divided by C n, so that its gradient, and with it Adam's epsilon, is of the size of one row's.
    share = (1 / mask.sum(1)).float()
    decay = (1 / (C * mask.sum(1))).float()
    with torch.enable_grad():
        trained = {name: start.clone().requires_grad_() for name, start in weights.items()}
        penalised = [weight for name, weight in trained.items() if not name.endswith("bias")]
        means = {name: torch.zeros_like(weight) for name, weight in trained.items()}
        squares = {name: torch.zeros_like(weight) for name, weight in trained.items()}
        for step in range(steps):
            z = logit(trained)
            size = sum((weight.flatten(1).square().sum(1) for weight in penalised), torch.zeros_like(decay))
            loss = share * (seen * (softplus(z) - labels * z)).sum(1) + 0.5 * decay * size
            # Each problem's gradient is its own: no term holds two of them.
            gradients = torch.autograd.grad(loss.sum(), list(trained.values()))
            with torch.no_grad():
                for (name, weight), gradient in zip(trained.items(), gradients, strict=True):
                    mean = means[name].lerp_(gradient, 1 - _BETAS[0]) / (1 - _BETAS[0] ** (step + 1))
                    square = squares[name].lerp_(gradient.square(), 1 - _BETAS[1]) / (1 - _BETAS[1] ** (step + 1))
                    weight -= rates[name] * _schedule(step, steps) * mean / (square.sqrt() + _EPSILON)
    found = {name: weight.detach() for name, weight in trained.items()}
    if not all(bool(torch.isfinite(weight).all()) for weight in found.values()):
        raise ValueError("a network ended at NaN or infinity: use a smaller C, and look at the activations' scale")
    return found


def base_log_odds(
    y: Float64[Tensor, "problem row"], mask: Float64[Tensor, "problem row"]
) -> Float32[Tensor, "problem"]:
    """Log-odds of the label 1 among the rows of each problem, where a network's bias starts: half a row is added to both."""
    positive, negative = (mask * y).sum(1) + 0.5, (mask * (1 - y)).sum(1) + 0.5
    return (positive / negative).log().float()


def blocks(problems: int, numbers: int) -> Iterator[slice]:
    """Slices of the problems whose values, `numbers` for each, fit into memory together."""
    size = max(1, _MOST_NUMBERS // max(1, numbers))
    for start in range(0, problems, size):
        yield slice(start, min(start + size, problems))


def _schedule(step: int, steps: int) -> float:
    """Share of the largest rate."""
    done, warm = (step + 0.5) / steps, _WARM_UP
    return done / warm if done < warm else 0.5 * (1 + math.cos(math.pi * (done - warm) / (1 - warm)))
