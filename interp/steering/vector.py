"""SteeringVector: a unit direction at one site, the units of its strength, and arithmetic.

A vector is length x direction. Sums, differences and projections are those of `length * direction`, made in float64; what is
known of one direction alone (the norm as fitted, the standard deviation along it) does not survive a change of direction.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from interp import artifact
from interp import sites as site_names
from interp.intervene.targets import Target
from interp.model import HookedTransformer
from interp.steering.seen import SEEN

KIND = "steering vector"
NUMBERS = ("typical_norm", "length", "raw_norm", "sd")
"""What a file keeps of a vector beside its direction and site."""
_DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}
_NOTHING = 1e-6
"""Share of the length below which a remainder is rounding."""


@dataclass(frozen=True, eq=False)
class SteeringVector:
    """A unit direction at one site, and a length that arithmetic acts on: `0.5 * v`, `v + w`, `v - w`, `-v`.

    Raises:
        ValueError: a direction that is not of norm 1, a typical norm or standard deviation that is not positive; arithmetic
            on vectors of two sites, or whose result has no direction.
    """

    direction: Float[Tensor, "d_model"]
    """Unit direction."""
    site: str
    """Full name of the site."""
    typical_norm: float
    """Median norm there over typical tokens (not special, not position 0, no outliers): the unit of strength."""
    length: float = 1.0
    """1 as fitted."""
    raw_norm: float | None = None
    """Norm of the difference as fitted; None where there is none (a classifier's weights, sums)."""
    card: dict[str, Any] = field(default_factory=dict)
    """Method, n, tokens, groups, provenance."""
    sd: float | None = None
    """Standard deviation of typical rows along the direction, the other unit of strength; None where it is not known."""

    def __post_init__(self) -> None:
        norm = float(self.direction.double().norm())
        if not math.isfinite(norm) or abs(norm - 1) > 1e-3:
            raise ValueError(f"a steering vector needs a unit direction; its norm is {norm}")
        if not math.isfinite(self.length):
            raise ValueError(f"length must be a finite number, got {self.length}")
        for name in ("typical_norm", "sd"):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{name} must be positive, got {value}")

    def __repr__(self) -> str:
        method = self.card.get("method", "given")
        units = f"typical norm {self.typical_norm:.4g}" + ("" if self.sd is None else f", sd {self.sd:.4g}")
        return f"SteeringVector({method} at {short(self.site)}, width {len(self.direction)}, length {self.length:.4g}, {units})"

    # ------------------------------------------------------------------------------------------------- arithmetic

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
        self._check_same_site(other, "added")
        total = self._full + other._full
        if float(total.norm()) <= _NOTHING * (self.length + other.length):
            raise ValueError("the two vectors cancel each other; their sum has no direction")
        norm = (self.typical_norm + other.typical_norm) / 2
        card = {"method": "sum", "parts": [{**each.card, "length": each.length} for each in (self, other)]}
        return self._changed(total, norm, card | kept_of([self.card, other.card]))

    def __sub__(self, other: "SteeringVector") -> "SteeringVector":
        return self + -other

    def project_out(self, *others: "SteeringVector") -> "SteeringVector":
        """What is left of the vector orthogonal to all the others, as long as it is left.

        Raises:
            ValueError: no other vector, another site, or nothing left because the vector lies within their span.
        """
        if not others:
            raise ValueError("project_out needs at least one other vector: v.project_out(w)")
        for other in others:
            self._check_same_site(other, "projected")
        span = torch.stack([other.direction.double() for other in others])
        # A basis by SVD: vectors that nearly repeat each other span no direction of their own.
        _, sizes, basis = torch.linalg.svd(span, full_matrices=False)
        basis = basis[sizes > _NOTHING * sizes[0]]
        rest = self._full - basis.T @ (basis @ self._full)
        if float(rest.norm()) <= _NOTHING * self.length:
            raise ValueError("nothing is left: the vector lies in the span of those that are projected out")
        cards = [other.card for other in others]
        card = {"method": "projected out", "of": self.card, "others": cards, **kept_of([self.card, *cards])}
        return self._changed(rest, self.typical_norm, card)

    def normalised(self) -> "SteeringVector":
        """The same direction at length 1, so that a strength means one typical norm."""
        return replace(self, length=1.0)

    def cosine(self, other: "SteeringVector") -> float:
        """Cosine of the two directions."""
        if other.direction.shape != self.direction.shape:
            raise ValueError(f"vectors of {len(self.direction)} and {len(other.direction)} dimensions have no cosine")
        return float(self.direction.double() @ other.direction.double())

    @property
    def _full(self) -> Float[Tensor, "d_model"]:
        return self.direction.double() * self.length

    def _changed(self, full: Tensor, typical_norm: float, card: dict[str, Any]) -> "SteeringVector":
        length = float(full.norm())
        return SteeringVector((full / length).to(self.direction.dtype), self.site, typical_norm, length, None, card)

    def _check_same_site(self, other: "SteeringVector", done: str) -> None:
        if other.site != self.site or other.direction.shape != self.direction.shape:
            raise ValueError(f"vectors of different sites cannot be {done}: {self.site} and {other.site}")
        models = {str(each.card["fingerprint"])[:12] for each in (self, other) if each.card.get("fingerprint")}
        if len(models) > 1:
            raise ValueError(
                f"vectors of different models cannot be {done}: fingerprints {' and '.join(sorted(models))}"
            )

    # ---------------------------------------------------------------------------------------------------- showing

    def targets(self) -> list[Target]:
        """The one place that it steers, as `Steer` takes it."""
        return [Target(self.site, self.direction, self.length, self.typical_norm, self.sd, self.raw_norm)]

    def to_frame(self) -> pd.DataFrame:
        """One row: site, layer, method, n, length, typical_norm, sd, raw_norm, held-out AUROC with its interval."""
        return pd.DataFrame([row_of(self)])

    def card_text(self) -> str:
        """The card to read: what was fitted how, on what, and how well it separates what it has not seen."""
        raw = "none" if self.raw_norm is None else f"{self.raw_norm:.4g}"
        units = f"  units: typical norm {self.typical_norm:.4g}, sd {_number(self.sd)}, raw norm {raw}"
        lines = [repr(self), units, *fact_lines(self.card)]
        if found := self.card.get("held_out"):
            lines.append(f"  held out: {_held_out_text(found)}")
        return "\n".join(lines)

    # ------------------------------------------------------------------------------------------------------ files

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready and exact: every number of the direction is a Python float of the same value."""
        dtype = str(self.direction.dtype).removeprefix("torch.")
        numbers = {name: getattr(self, name) for name in NUMBERS}
        direction = self.direction.detach().cpu().tolist()
        return {"kind": KIND, "site": self.site, "direction": direction, "dtype": dtype, **numbers, "card": self.card}

    @staticmethod
    def from_dict(value: Mapping[str, Any] | Any) -> "SteeringVector":
        """Read what `to_dict` gave. ValueError for anything else."""
        if not isinstance(value, Mapping) or value.get("kind") != KIND:
            raise ValueError(f"expected what SteeringVector.to_dict gives, got {kind_text(value)}")
        lacking = [name for name in ("site", "direction", "typical_norm") if name not in value]
        if lacking or value.get("dtype", "float32") not in _DTYPES:
            raise ValueError(
                f"this steering vector lacks {lacking or 'a dtype that is known'}: write it again with to_dict"
            )
        direction = torch.tensor(value["direction"], dtype=_DTYPES[value.get("dtype", "float32")])
        numbers = {name: value[name] for name in NUMBERS if name in value}
        return SteeringVector(direction, value["site"], card=dict(value.get("card", {})), **numbers)

    def save(self, path: str | Path) -> Path:
        """One safetensors file with a card; `load_steering_vector` reads it."""
        card = self.card | {"site": self.site} | {name: getattr(self, name) for name in NUMBERS}
        return artifact.save_artifact(Path(path), KIND, {"direction": self.direction}, card)


def load_steering_vector(path: str | Path) -> SteeringVector:
    """Read what `SteeringVector.save` wrote; files from before `sd` have none."""
    tensors, card = artifact.load_artifact(Path(path), KIND)
    known = {key: card.pop(key) for key in ("site", *NUMBERS) if key in card}
    return SteeringVector(tensors["direction"], card=card, **known)


def row_of(vector: SteeringVector) -> dict[str, Any]:
    """One vector as a row of a table."""
    found, card = vector.card.get("held_out") or {}, vector.card
    n = card.get("n_pairs", card.get("n_positive", 0) + card.get("n_negative", 0) or None)
    return {
        "site": short(vector.site), "layer": site_names.layer_of(vector.site), "method": card.get("method"), "n": n,
        "length": vector.length, "typical_norm": vector.typical_norm, "sd": vector.sd, "raw_norm": vector.raw_norm,
        "auroc": found.get("auroc"), "low": found.get("low"), "high": found.get("high"),
    }  # fmt: skip


def fact_lines(card: Mapping[str, Any]) -> list[str]:
    """What a card says of data and method, a line each."""
    known = ("formula", "tokens", "n_pairs", "n_positive", "n_negative", "groups", "C", "data_hash", "model", "seed")
    lines = [f"  {key.replace('_', ' ')}: {card[key]}" for key in known if card.get(key) is not None]
    return lines + ([f"  read at the marked tokens: {card['example']}"] if card.get("example") else [])


def short(site: str) -> str:
    """Shorthand of a full name; a name of the user's own as it is."""
    try:
        return site_names.short_name(site)
    except ValueError:
        return site


def kind_text(value: object) -> str:
    """What a value says that it is, for messages."""
    return repr(value.get("kind")) if isinstance(value, Mapping) else type(value).__name__


def check_vectors(values: Sequence[Any]) -> None:
    """ValueError unless these are steering vectors, at least one."""
    odd = [type(each).__name__ for each in values if not isinstance(each, SteeringVector)]
    if odd or not values:
        raise ValueError(f"expected steering vectors, got {odd[0] if odd else 'none'}")


def refuse_other_model(card: Mapping[str, Any], model: HookedTransformer, made: str = "the vector was fitted") -> None:
    """ValueError where a card names another model than this one, by its fingerprint.

    Args:
        card: of what is to be used; one without a fingerprint fits any model.
        model: what it is to be used on.
        made: what the card is of and what was done, for the message: "the report was measured".
    """
    known = card.get("fingerprint")
    if known in (None, model.fingerprint):
        return
    raise ValueError(
        f"{made} on another model ({card.get('model')}, fingerprint {str(known)[:12]}), not on {model.cfg.name} "
        f"({model.fingerprint[:12]}): load that one, or make it again for this one"
    )


def kept_of(cards: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the card of a combination keeps of its parts: the model, and the hashes of all that any part was fitted on."""
    kept: dict[str, Any] = {key: cards[0][key] for key in ("model", "fingerprint") if key in cards[0]}
    for key in SEEN:
        found = list(dict.fromkeys(each for card in cards for each in card.get(key, ())))
        kept |= {key: found} if found else {}
    return kept


def _number(value: float | None) -> str:
    return "not known" if value is None else f"{value:.4g}"


def _held_out_text(found: Mapping[str, Any]) -> str:
    if found.get("auroc") is None:
        return str(found.get("why"))
    return (
        f"AUROC {found['auroc']:.3f} [{found['low']:.3f}, {found['high']:.3f}] over {found['n']} texts of "
        f"{found['n_groups']} groups in {found['folds']} folds"
    )
