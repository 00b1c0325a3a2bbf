"""What is steered where: one direction at one place, with the figures that a strength can be counted in.

A steering vector is one target, vectors of several layers are one for each, and directions of heads one for each head.
`Steer` sees nothing else of a vector, so that anything with `targets()` can be applied.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from interp import sites as site_names

UNITS = ("norm", "sd", "raw")
"""What a strength is counted in: the typical norm, the standard deviation along the direction, the length as fitted."""


@runtime_checkable
class Direction(Protocol):
    """A single vector at a site; `interp.SteeringVector` and `interp.latent_direction(...)` are such ones."""

    @property
    def site(self) -> str: ...
    @property
    def direction(self) -> Tensor: ...
    @property
    def length(self) -> float: ...
    @property
    def typical_norm(self) -> float: ...
    @property
    def raw_norm(self) -> float | None: ...


@dataclass(frozen=True, eq=False)
class Target:
    """One direction at one place.

    Raises:
        ValueError: a direction that is no unit vector, or figures that are not finite or not positive.
    """

    site: str
    """Full name."""
    direction: Float[Tensor, " d"]
    """Unit direction, as wide as the place."""
    length: float
    """Factor of every strength; 1 as fitted."""
    norm: float
    """Typical norm of the place."""
    sd: float | None = None
    """Standard deviation of typical rows along the direction; None where nobody measured it."""
    raw: float | None = None
    """Length of the difference as fitted; None for what was not fitted, or is a sum."""
    head: int | None = None
    """The head whose part of the site it is; None for the whole site."""

    def __post_init__(self) -> None:
        norm = float(self.direction.double().norm())
        if not math.isfinite(norm) or abs(norm - 1) > 1e-3:
            raise ValueError(
                f"a direction to steer along is a unit vector; the norm of this one at {self.place} is {norm}"
            )
        if not math.isfinite(self.length):
            raise ValueError(f"the length of a direction is a finite number, got {self.length} at {self.place}")
        figures = {"norm": self.norm, "sd": self.sd, "raw": self.raw}
        for name, figure in figures.items():
            if figure is not None and not (math.isfinite(figure) and figure > 0):
                raise ValueError(f"{name} is a length in the activations at {self.place} and positive, got {figure}")

    @property
    def place(self) -> str:
        """Short name of the site, with the head if there is one: `z:5.3`."""
        try:
            name = site_names.short_name(self.site)
        except ValueError:  # a name of the user's own
            name = self.site
        return name if self.head is None else f"{name}.{self.head}"

    def in_unit(self, unit: str) -> float:
        """The size of one unit of strength, in activations.

        Raises:
            ValueError: the figure is not known; the message says how to get it.
        """
        figure = {"norm": self.norm, "sd": self.sd, "raw": self.raw}[unit]
        if figure is not None:
            return figure
        if unit == "raw":
            raise ValueError(
                f"unit='raw' (raw=True) needs a vector with a fitted length; the one at {self.place} has none, as a sum of "
                "others has none: count in unit='norm'"
            )
        raise ValueError(
            f"unit='sd' needs the standard deviation of typical rows along the direction, which the vector at {self.place} does "
            "not know: fit it again with interp.steering_vector(...), which measures it, set it by "
            "dataclasses.replace(vector, sd=...), or count in unit='norm'"
        )

    def describe(self) -> dict[str, Any]:
        """Everything but the direction itself, as JSON."""
        return {
            "site": self.site, "head": self.head, "length": self.length, "norm": self.norm, "sd": self.sd, "raw": self.raw,
        }  # fmt: skip


@runtime_checkable
class Directions(Protocol):
    """Directions at one or several places. What is counted in another unit than the typical norm, as directions of heads
    are in standard deviations, says so by an attribute `unit`."""

    def targets(self) -> Sequence[Target]:
        """One for each place."""
        ...


@dataclass(frozen=True, eq=False)
class TargetSet:
    """Directions at several places that are no steering vector: a latent's as a report keeps it, random ones."""

    parts: tuple[Target, ...]
    """One for each place."""
    unit: str = "norm"
    """What a strength is counted in where nobody says."""
    card: dict[str, Any] = field(default_factory=dict)
    """Provenance, where there was one."""

    def targets(self) -> Sequence[Target]:
        """The places."""
        return self.parts


def targets_of(vector: object) -> tuple[Target, ...]:
    """What anything that can be steered along says of itself.

    Args:
        vector: a `Target` or several, what has `targets()`, or a `Direction`.

    Raises:
        ValueError: anything else, nothing at all, or two directions at one place.
    """
    if isinstance(vector, Target):
        return (vector,)
    if isinstance(vector, Directions) and callable(vector.targets):
        found = tuple(vector.targets())
    elif isinstance(vector, Direction):
        sd = getattr(vector, "sd", None)
        found = (Target(vector.site, vector.direction, vector.length, vector.typical_norm, sd, vector.raw_norm),)
    elif isinstance(vector, Sequence) and vector and all(isinstance(each, Target) for each in vector):
        found = tuple(vector)
    else:
        raise ValueError(
            f"Steer takes a steering vector, got {type(vector).__name__}: make one by interp.steering_vector(...), or "
            "interp.SteeringVector(direction, site, typical_norm)"
        )
    _check_places(found)
    return found


def _check_places(targets: Sequence[Target]) -> None:
    if not targets:
        raise ValueError("there is no direction to steer along: the vector has no target")
    taken: dict[str, set[int | None]] = {}
    for target in targets:
        here = taken.setdefault(target.site, set())
        if target.head in here or (here and None in (here | {target.head})):
            raise ValueError(
                f"two directions stand at {target.place}; apply them one after the other, "
                "model.intervene(Steer(a), Steer(b)), or add them"
            )
        here.add(target.head)


def default_unit(vector: object) -> str:
    """The unit that a vector is counted in where nobody says: its own, or the typical norm."""
    unit = getattr(vector, "unit", None)
    return unit if isinstance(unit, str) else "norm"
