"""What every linear kind of probe comes down to: one direction a problem, and a line from its score to the log-odds."""

from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Readers:
    """One linear reader a problem, acting on raw activations: logit = slope * (x . direction + bias) + intercept."""

    direction: Float64[Tensor, "problem d"]
    """Towards the label 1."""
    bias: Float64[Tensor, "problem"]
    """score = x . direction + bias."""
    slope: Float64[Tensor, "problem"]
    """1 where the score is the log-odds already."""
    intercept: Float64[Tensor, "problem"]
    """0 where the score is the log-odds already."""
    parts: dict[str, Tensor | list[Tensor]] = field(default_factory=dict)
    """What the kind found on the way, by name, one entry a problem: a tensor [problem ...], or a list of tensors where
    their shapes differ."""

    def logit(self, X: Float64[Tensor, "row d"]) -> Float64[Tensor, "problem row"]:
        """Log-odds of the positive label."""
        score = self.direction @ X.T + self.bias[:, None]
        return self.slope[:, None] * score + self.intercept[:, None]

    def one(self, i: int) -> dict[str, Any]:
        """Problem i alone: `direction` [d], the numbers, and its parts under `tensors`."""
        return {
            "direction": self.direction[i],
            "bias": float(self.bias[i]),
            "slope": float(self.slope[i]),
            "intercept": float(self.intercept[i]),
            "tensors": {name: part[i] for name, part in self.parts.items()},
        }


def log_odds_readers(
    direction: Float64[Tensor, "problem d"],
    bias: Float64[Tensor, "problem"],
    parts: dict[str, Tensor | list[Tensor]] | None = None,
) -> Readers:
    """Readers whose score is the log-odds."""
    return Readers(direction, bias, torch.ones_like(bias), torch.zeros_like(bias), parts or {})
