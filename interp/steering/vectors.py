"""SteeringVectors: one vector a site, for steering several layers at once; arithmetic goes part by part."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from interp import artifact
from interp import sites as site_names
from interp.intervene.targets import Target
from interp.steering.vector import NUMBERS, SteeringVector, check_vectors, fact_lines, kept_of, kind_text, row_of, short

KIND = "steering vectors"


@dataclass(frozen=True, eq=False)
class SteeringVectors:
    """A steering vector at each of several sites. `vectors["resid_post:8"]` is one of them.

    Raises:
        ValueError: no part, two parts of one site; arithmetic with parts at other sites.
    """

    parts: tuple[SteeringVector, ...]
    """One a site, in the order given."""
    card: dict[str, Any] = field(default_factory=dict)
    """What all parts share: method, n, tokens, data, provenance."""

    def __post_init__(self) -> None:
        check_vectors(self.parts)
        twice = {site for site in self.sites if self.sites.count(site) > 1}
        if twice:
            raise ValueError(
                f"there are two vectors at {', '.join(map(short, sorted(twice)))}: add them, one is kept a site"
            )

    def __repr__(self) -> str:
        shown = ", ".join(map(short, self.sites[:3])) + " ..." * (len(self.parts) > 3)
        return f"SteeringVectors({self.card.get('method', 'given')} at {len(self.parts)} sites: {shown})"

    @property
    def sites(self) -> list[str]:
        """Full names, in order."""
        return [part.site for part in self.parts]

    def __len__(self) -> int:
        return len(self.parts)

    def __iter__(self) -> Iterator[SteeringVector]:
        return iter(self.parts)

    def __getitem__(self, site: str) -> SteeringVector:
        """The part at a site, by full name or shorthand. ValueError where there is none."""
        name = site if site in self.sites else site_names.full_name(site)
        if name not in self.sites:
            raise ValueError(f"there is no vector at {site}; there are {', '.join(map(short, self.sites))}")
        return self.parts[self.sites.index(name)]

    # ------------------------------------------------------------------------------------------------- arithmetic

    def __mul__(self, factor: float) -> "SteeringVectors":
        return SteeringVectors(tuple(part * factor for part in self.parts), self.card)

    __rmul__ = __mul__

    def __neg__(self) -> "SteeringVectors":
        return self * -1.0

    def __add__(self, other: "SteeringVectors") -> "SteeringVectors":
        return self._joined("sum", lambda a, b: a + b, other)

    def __sub__(self, other: "SteeringVectors") -> "SteeringVectors":
        return self + -other

    def project_out(self, *others: "SteeringVectors") -> "SteeringVectors":
        """Each part without what the others hold at its site."""
        return self._joined("projected out", SteeringVector.project_out, *others)

    def normalised(self) -> "SteeringVectors":
        """Every part at length 1."""
        return SteeringVectors(tuple(part.normalised() for part in self.parts), self.card)

    def cosine(self, other: "SteeringVectors") -> dict[str, float]:
        """Cosine of the two directions at each site, by full name."""
        self._check_same_sites(other)
        return {part.site: part.cosine(other[part.site]) for part in self.parts}

    def _joined(
        self, method: str, join: Callable[..., SteeringVector], *others: "SteeringVectors"
    ) -> "SteeringVectors":
        for other in others:
            self._check_same_sites(other)
        parts = tuple(join(part, *(other[part.site] for other in others)) for part in self.parts)
        cards = [self.card, *(other.card for other in others)]
        return SteeringVectors(parts, {"method": method, "parts": cards, **kept_of(cards)})

    def _check_same_sites(self, other: "SteeringVectors") -> None:
        if set(other.sites) != set(self.sites):
            only = sorted(set(self.sites) ^ set(other.sites))
            raise ValueError(f"the two stand at different sites: only one of them has {', '.join(map(short, only))}")

    # ------------------------------------------------------------------------------------------ showing and files

    def targets(self) -> list[Target]:
        """Every place that they steer, as `Steer` takes it."""
        return [target for part in self.parts for target in part.targets()]

    def to_frame(self) -> pd.DataFrame:
        """A row for each site; columns as those of `SteeringVector.to_frame`."""
        return pd.DataFrame([row_of(part) for part in self.parts])

    def card_text(self) -> str:
        """What the parts share, and a table of their sites, to read."""
        return "\n".join([repr(self), *fact_lines(self.card), self.to_frame().round(4).to_string(index=False)])

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready and exact."""
        return {"kind": KIND, "parts": [part.to_dict() for part in self.parts], "card": self.card}

    @staticmethod
    def from_dict(value: Mapping[str, Any] | Any) -> "SteeringVectors":
        """Read what `to_dict` gave. ValueError for anything else."""
        if not isinstance(value, Mapping) or value.get("kind") != KIND:
            raise ValueError(f"expected what SteeringVectors.to_dict gives, got {kind_text(value)}")
        parts = tuple(SteeringVector.from_dict(part) for part in value["parts"])
        return SteeringVectors(parts, dict(value.get("card", {})))

    def save(self, path: str | Path) -> Path:
        """One safetensors file with a card; `load_steering_vectors` reads it."""
        tensors = {part.site: part.direction for part in self.parts}
        parts = [{"site": p.site, "card": p.card, **{name: getattr(p, name) for name in NUMBERS}} for p in self.parts]
        return artifact.save_artifact(Path(path), KIND, tensors, {**self.card, "parts_at_sites": parts})


def load_steering_vectors(path: str | Path) -> SteeringVectors:
    """Read what `SteeringVectors.save` wrote."""
    tensors, card = artifact.load_artifact(Path(path), KIND)
    parts = tuple(SteeringVector(tensors[part["site"]], **part) for part in card.pop("parts_at_sites"))
    return SteeringVectors(parts, card)
