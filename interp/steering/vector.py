"""SteeringVector: a unit direction at one site, the unit of its strength, and arithmetic."""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor

from interp import artifact


@dataclass(frozen=True, eq=False)
class SteeringVector:
    """A unit direction at one site, and a length that arithmetic acts on: `0.5 * v`, `v + w`, `-v`."""

    direction: Float[Tensor, "d_model"]
    """Unit direction."""
    site: str
    """Full name of the site."""
    typical_norm: float
    """Median norm there over typical tokens (not special, not position 0, no outliers): the unit of strength."""
    length: float = 1.0
    """1 as fitted."""
    raw_norm: float | None = None
    """Norm of the difference as fitted; None for sums."""
    card: dict[str, Any] = field(default_factory=dict)
    """Method, n, tokens, provenance."""

    def __post_init__(self) -> None:
        norm = float(self.direction.norm())
        if not math.isfinite(norm) or abs(norm - 1) > 1e-3:
            raise ValueError(f"a steering vector needs a unit direction; its norm is {norm}")
        if not self.typical_norm > 0:
            raise ValueError(f"typical_norm must be positive, got {self.typical_norm}")

    def __mul__(self, factor: float) -> "SteeringVector":
        if not math.isfinite(factor):
            raise ValueError(f"a vector is scaled by a finite number, got {factor}")
        if factor < 0:
            return replace(self, direction=-self.direction, length=self.length * -factor)
        return replace(self, length=self.length * factor)

    __rmul__ = __mul__

    def __neg__(self) -> "SteeringVector":
        return self * -1.0

    def __add__(self, other: "SteeringVector") -> "SteeringVector":
        if other.site != self.site or other.direction.shape != self.direction.shape:
            raise ValueError(f"vectors of different sites cannot be added: {self.site} and {other.site}")
        total = self.direction * self.length + other.direction * other.length
        length = float(total.norm())
        if length < 1e-8:
            raise ValueError("the two vectors cancel each other; their sum has no direction")
        card = {"method": "sum", "parts": [self.card, other.card]}
        norm = (self.typical_norm + other.typical_norm) / 2
        return SteeringVector(total / length, self.site, norm, length, None, card)

    def __sub__(self, other: "SteeringVector") -> "SteeringVector":
        return self + -other

    def cosine(self, other: "SteeringVector") -> float:
        """Cosine of the two directions."""
        return float(self.direction @ other.direction)

    def save(self, path: str | Path) -> Path:
        """One safetensors file with a card; `load_steering_vector` reads it."""
        card = self.card | {
            "site": self.site,
            "typical_norm": self.typical_norm,
            "length": self.length,
            "raw_norm": self.raw_norm,
        }
        return artifact.save_artifact(Path(path), "steering vector", {"direction": self.direction}, card)


def load_steering_vector(path: str | Path) -> SteeringVector:
    """Read what `SteeringVector.save` wrote."""
    tensors, card = artifact.load_artifact(Path(path), "steering vector")
    known = {key: card.pop(key) for key in ("site", "typical_norm", "length", "raw_norm")}
    return SteeringVector(tensors["direction"], card=card, **known)
