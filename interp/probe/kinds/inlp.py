"""INLP: the subspace that holds a label, found one direction after another (Ravfogel et al. 2020, "Null It Out: Guarding
Protected Attributes by Iterative Nullspace Projection", arXiv 2004.07667).

1. Fit a logistic regression with strength C, project its direction out of the rows, and do it again.
2. First on three quarters of the groups: how many directions it takes until the other quarter is predicted no better than
   by the share of the labels. What was fitted to rows cannot be judged on them: their class means lean against each other.
3. Then that many directions on all rows.

The probe is the logistic regression inside the kept subspace. Its coordinates are standardised and its own C is 1: with
the strength of the directions the answer would be the first of them again. At least one direction is kept, also for labels
without meaning, since a probe has to look somewhere.

Directions are orthonormal among the standardised features, where the regressions are penalised.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from interp.probe.readers import Readers, log_odds_readers
from interp.probe.solver import Design, log_loss, solve

GAIN = 0.01
"""A direction is kept while the held-out cross-entropy is below that of the labels' shares by this part of it."""
HELD_OUT = 0.25
"""Share of the groups that decide whether a direction is kept."""


def fit_inlp(
    design: Design,
    y: Float64[Tensor, "problem row"],
    mask: Float64[Tensor, "problem row"],
    C: Float64[Tensor, "problem"],
    seed: int = 0,
) -> Readers:
    """Logistic regressions inside each problem's subspace; parts keep its `directions` [k d].

    The coordinates of a row are ((x - mean) / scale) @ directions.T, with the mean and scale of the design.
    """
    found = nullspace_directions(design, y, mask, C, seed)
    weights, biases = [], []
    for directions, labels, seen in zip(found, y, mask):
        coordinates = design.rotated @ directions.T
        mean = seen @ coordinates / seen.sum()
        spread = (seen @ (coordinates - mean) ** 2 / seen.sum()).sqrt()
        w, b = solve((coordinates - mean) / spread, labels[None], seen[None])
        weights.append((w[0] / spread) @ directions)
        biases.append(b[0] - (w[0] / spread) @ mean)
    direction, bias = design.to_raw(torch.stack(weights), torch.stack(biases))
    return log_odds_readers(direction, bias, {"directions": [standardised(design, own) for own in found]})


def nullspace_directions(
    design: Design,
    y: Float64[Tensor, "problem row"],
    mask: Float64[Tensor, "problem row"],
    C: Float64[Tensor, "problem"],
    seed: int = 0,
) -> list[Float64[Tensor, "k rank"]]:
    """Orthonormal directions of each problem among the rotated features, the first found first.

    Raises:
        ValueError: the three quarters of a problem's groups hold one label only.
    """
    shown = _shown(design, mask, seed)
    fitted, positive = (mask * shown).sum(1), (mask * shown * y).sum(1)
    if bool(((positive == 0) | (positive == fitted)).any()):
        raise ValueError(
            f"inlp holds {HELD_OUT:.0%} of the groups out, and among the rest a fold has rows of one label only: gather more "
            "groups, or use kind='logistic'"
        )
    rows = design.rotated
    weight = torch.cat([mask * shown, mask]) * C.repeat(2)[:, None]
    w, b = solve(rows, torch.cat([y, y]), weight)  # the first directions of all problems together
    found = []
    for trial in range(len(y)):
        final, labels = trial + len(y), y[trial]

        def still_read(z: Tensor, labels: Tensor = labels, seen: Tensor = mask[trial]) -> bool:
            return _predicts(z, labels, seen, shown)

        n = len(_project_out(rows, labels, weight[trial], w[trial], b[trial], rows.shape[1], still_read))
        found.append(_project_out(rows, labels, weight[final], w[final], b[final], max(1, n)))
    return found


def _project_out(
    rows: Float64[Tensor, "row rank"],
    y: Float64[Tensor, "row"],
    weight: Float64[Tensor, "row"],
    w: Float64[Tensor, "rank"],
    b: Float64[Tensor, ""],
    most: int,
    wanted: Callable[[Tensor], bool] = lambda _: True,
) -> Float64[Tensor, "k rank"]:
    """At most so many directions one after another, from the first regression w, b on, while its log-odds are `wanted`."""
    directions = rows[:0]
    left = rows
    while wanted(left @ w + b):
        # The regression's own direction lies in what is left but for rounding, which would add up.
        w = w - (directions @ w) @ directions
        directions = torch.cat([directions, (w / w.norm())[None]])
        if len(directions) == most:
            break
        left = left - torch.outer(left @ directions[-1], directions[-1])
        w, b = (solved[0] for solved in solve(left, y[None], weight[None]))
    return directions


def standardised(design: Design, directions: Float64[Tensor, "k rank"]) -> Float64[Tensor, "k d"]:
    """Directions among the standardised features, from those among the rotated ones."""
    return design.to_raw(directions, directions.new_zeros(len(directions)))[0] * design.scale


def _shown(design: Design, mask: Float64[Tensor, "problem row"], seed: int) -> Float64[Tensor, "row"]:
    """1 for the rows that are fitted to, 0 for those that decide; whole groups, where groups are known."""
    groups = np.arange(mask.shape[1]) if design.side is None else np.asarray(design.side.groups)
    codes = np.unique(groups)
    # Every problem holds out the same groups, so that a problem does not depend on those beside it.
    held_out = np.random.default_rng(seed).permutation(codes)[: max(1, round(HELD_OUT * len(codes)))]
    return torch.tensor(~np.isin(groups, held_out), dtype=torch.float64)


def _predicts(
    z: Float64[Tensor, "row"], y: Float64[Tensor, "row"], seen: Float64[Tensor, "row"], shown: Float64[Tensor, "row"]
) -> bool:
    """Whether log-odds tell the held-out labels better than the share of positives among the shown rows does."""
    weight = (seen * (1 - shown))[None]
    share = (seen * shown * y).sum() / (seen * shown).sum()
    constant = torch.full_like(z, math.log(share / (1 - share)))[None]
    return bool(log_loss(z[None], y[None], weight) < (1 - GAIN) * log_loss(constant, y[None], weight))
