"""Directions that mean nothing, to hold a direction against.

A draw is *isotropic*, or a random combination of centred typical rows: then it lies where activations vary, and moves the model
more. Both are made orthogonal to the direction, since a "random" one that lies along it would carry part of its effect.
"""

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

KINDS = ("isotropic", "covariance")
"""What is drawn in turn."""


def orthogonal_draw(
    direction: Float[Tensor, " d"], rows: Float[Tensor, "row d"] | None, generator: torch.Generator
) -> Float64[Tensor, " d"]:
    """A random unit direction that is orthogonal to a unit direction.

    Args:
        direction: of norm 1, at least two dimensions. What is stored in less than float64 is of norm 1 up to its rounding,
            which the draw does not take over.
        rows: centred rows whose covariance the draw has; None for an isotropic one.
        generator: of the draw, on the CPU.

    Raises:
        ValueError: a single dimension, or rows that vary in no other direction.
    """
    own = direction.detach().cpu().double()
    if direction.dtype != torch.float64:
        own = own / own.norm()
    if len(own) < 2:
        raise ValueError("a single dimension has no direction that is orthogonal to another")
    if rows is None:
        raw = torch.randn(len(own), generator=generator, dtype=torch.float64)
    else:
        raw = torch.randn(len(rows), generator=generator, dtype=torch.float64) @ rows.detach().cpu().double()
    raw = raw - (raw @ own) * own
    length = raw.norm()
    if not float(length) > 0:
        raise ValueError(
            "the activations are constant, so no direction has their covariance: give more or longer texts"
        )
    return raw / length


def rank_among(effect: float, randoms: Float[np.ndarray, " direction"]) -> float:
    """p = (1 + random directions with an effect as large) / (1 + random directions); size counts and sign does not.

    n random directions cannot make it smaller than 1 / (n + 1): p = .05 needs 19.
    """
    as_large = int((np.abs(randoms) >= abs(effect)).sum())
    return (1 + as_large) / (1 + len(randoms))
