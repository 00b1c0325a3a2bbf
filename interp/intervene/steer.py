"""Change activations along a direction while the model runs.

1. The vector says where it belongs and how long one unit of strength is there: the site's typical norm, the standard
   deviation of typical rows along the direction, or the difference as it was fitted.
2. `kind` says what is done along the direction: add, rotate, piecewise, clamp, ablate; see `edits.py` for the formulas.
3. `where`, `positions` and `phase` say to which tokens, and `when` on what condition.

A vector of several sites is applied at each of them, directions of heads each to the z of its head.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from numbers import Real
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp import sites as site_names
from interp.hooks import HookContext
from interp.intervene.condition import Condition, LiveCondition
from interp.intervene.edits import KINDS, edited
from interp.intervene.place import EVERYWHERE, HookFunction, Where, check_place, chosen_tokens, describe_place
from interp.intervene.targets import UNITS, Target, default_unit, targets_of
from interp.intervene.writes import write_sites
from interp.model import HookedTransformer

USUAL_STRENGTH = {"add": 0.1, "rotate": 0.1, "piecewise": 0.1, "ablate": 1.0}
"""Strength where none is given."""
WRITES = "writes"
"""As a site: every place that writes to the stream."""


MOST = 1e9
"""Largest strength: its square must fit into a norm."""


class OtherModelWarning(UserWarning):
    """A vector steers another model than the one that it was fitted on."""


@dataclass(frozen=True, eq=False)
class Steer:
    """Change a site along a direction d, by the amount a = strength x length x unit.

    Args:
        vector: a steering vector, vectors of several sites, directions of heads, an SAE's latent
            (`interp.latent_direction`), or a `Target`.
        strength: in units of `unit`. None: 0.1, and for "ablate" 1, the share that is taken out. 0 changes nothing, bit for
            bit, but for "clamp", which holds the coordinate at 0.
        site: for a vector of one place: other sites of the same width, as names, shorthand or a range of layers
            ("resid_post:4-12"), or "writes" for everything that writes to the stream; the vector's own units are used. For a
            vector of several sites: those of its sites that are steered.
        where, positions, phase: which tokens.
        raw: short for unit="raw".
        kind: "add" h + a d; "rotate", the same at the norm of h; "piecewise" h + sign(h.d) a d; "clamp", the coordinate h.d
            becomes a; "ablate" h - strength (h.d) d.
        unit: "norm", the site's typical norm; "sd", the standard deviation of typical rows along d; "raw", the length of the
            difference as fitted. None: "norm", and "sd" for directions of heads. "ablate" takes a share and has no unit.
        when: a `Condition`: rows or tokens for which it does not hold are left as they are.

    Raises:
        ValueError: an unknown kind, unit or place; a strength that is missing or no finite number; a unit that the vector
            does not know. When applied: sites that the model or the vector lacks, another width than the vector's, a
            condition whose site comes later.
    """

    vector: Any
    strength: Any = None
    site: Any = None
    where: str | Where | Any = "all"
    positions: Sequence[int] | None = None
    phase: str | None = None
    raw: bool = False
    _: KW_ONLY
    kind: str = "add"
    unit: str | None = None
    when: Any = None

    def __post_init__(self) -> None:
        check_place(self.where, self.positions, self.phase)
        targets = targets_of(self.vector)
        if self.kind not in KINDS:
            raise ValueError(f"kind={self.kind!r} is unknown; choose from {', '.join(KINDS)}")
        if self.strength is None:
            if self.kind == "clamp":
                raise ValueError(
                    "kind='clamp' needs strength=, the coordinate to hold along the direction, in units; 0 empties it"
                )
            object.__setattr__(self, "strength", USUAL_STRENGTH[self.kind])
        strength = self.strength
        if not isinstance(strength, Real) or isinstance(strength, bool) or not math.isfinite(float(strength)):
            raise ValueError(f"strength must be a finite number, got {strength}")
        if abs(float(strength)) > MOST:
            raise ValueError(
                f"strength={strength:g} is beyond {MOST:g} units, where a norm overflows and every figure is noise"
            )
        if self.raw and self.unit not in (None, "raw"):
            raise ValueError(f"raw=True is short for unit='raw', and unit={self.unit!r} says something else: give one")
        object.__setattr__(self, "unit", self.unit or ("raw" if self.raw else default_unit(self.vector)))
        if self.unit not in UNITS:
            raise ValueError(f"unit={self.unit!r} is unknown; choose from {', '.join(UNITS)}")
        for target in targets:
            self._amount(target)  # refuses a unit that is not known, before anything runs
        if self.when is not None and not isinstance(self.when, Condition):
            raise ValueError(f"when= takes a Condition(probe or vector, above=...), got {type(self.when).__name__}")

    @property
    def changes(self) -> bool:
        """Whether anything can change: at strength 0 every kind but "clamp" leaves the model as it is."""
        return self.kind == "clamp" or bool(self.strength)

    def _amount(self, target: Target) -> float:
        """Along this direction: a length in the activations, or the share that is ablated."""
        assert self.unit is not None
        strength = float(self.strength)
        return strength if self.kind == "ablate" else strength * target.length * target.in_unit(self.unit)

    def placed(self, model: HookedTransformer) -> dict[str, list[Target]]:
        """Full site name -> what is steered there, in the order of computation.

        Raises:
            ValueError: a site that the model lacks, that holds no values of single tokens, or that is none of the vector's.
        """
        found: dict[str, list[Target]] = {}
        targets = targets_of(self.vector)
        moved = self.site is not None and len(targets) == 1
        for target in targets:
            for name in self._sites(model) if moved else model.expand_sites(target.site):
                found.setdefault(name, []).append(replace(target, site=name))
        if self.site is not None and not moved:
            wanted = self._sites(model)
            lacking = [site_names.short_name(name) for name in wanted if name not in found]
            if lacking:
                own = ", ".join(map(site_names.short_name, found))
                raise ValueError(
                    f"the vector has no direction for {', '.join(lacking)}, only for {own}: site= chooses among its own; a "
                    "vector of one place goes anywhere"
                )
            found = {name: found[name] for name in wanted}
        for name in found:
            if site_names.kind_of(name).component == 1:
                raise ValueError(
                    f"{name} is not a value of single tokens, so no direction stands in it: name a stream site, or z"
                )
        return {name: found[name] for name in model.site_names if name in found}

    def _sites(self, model: HookedTransformer) -> list[str]:
        names = write_sites(model) if self.site == WRITES else model.expand_sites(self.site)
        if not names:
            raise ValueError(f"site={self.site!r} names no site: leave it out for the vector's own")
        return names

    def describe(self) -> dict[str, Any]:
        """The settings as JSON, for the card of a result; the directions themselves are left to the vector's own file."""
        site = self.site if self.site is None or isinstance(self.site, str) else list(self.site)
        return {
            "intervention": "steer", "kind": self.kind, "strength": float(self.strength),
            "unit": None if self.kind == "ablate" else self.unit, "site": site,
            "targets": [target.describe() for target in targets_of(self.vector)],
            **describe_place(self.where, self.positions, self.phase),
            "when": None if self.when is None else self.when.describe(),
        }  # fmt: skip

    def hook_functions(self, model: HookedTransformer) -> list[tuple[str, HookFunction]]:
        """One function at each site, and before them the one that reads the condition."""
        made_for = (getattr(self.vector, "card", None) or {}).get("model")
        if made_for not in (None, model.cfg.name):
            # Not an error: vectors are also carried from a base model to its fine-tuned forms.
            warnings.warn(
                f"this vector was fitted on {made_for}, not on {model.cfg.name}: what it means here is not known, and its "
                "typical norm is not this model's",
                OtherModelWarning,
                stacklevel=2,
            )
        placed = self.placed(model)
        live = None if self.when is None else LiveCondition(self.when, model)
        edits = [(name, SiteEdit(self, targets, live)) for name, targets in placed.items()]
        if live is None:
            return [*edits]
        order, first = model.site_names, edits[0][0]
        if order.index(live.site) > order.index(first):
            raise ValueError(
                f"the condition reads {live.site}, which is computed after {first}, the first site that is steered: read an "
                "earlier site, or steer later ones"
            )
        return [(live.site, live.read), *edits]


class SiteEdit:
    """The function at one site.

    Attributes:
        steer: the intervention that it belongs to.
        targets: the direction at this site, or one for each head that is steered.
        last_condition: where the condition held in the last pass, [batch pos]; None without a condition.
    """

    def __init__(self, steer: Steer, targets: Sequence[Target], live: LiveCondition | None) -> None:
        self.steer, self.targets, self._live = steer, tuple(targets), live
        self.last_condition: Bool[Tensor, "batch pos"] | None = None
        self._every_new = live is None and steer.positions is None and _every_new_token(steer.where)
        self._prepared: tuple[object, tuple[Tensor, ...]] = (None, ())

    def __call__(self, value: Tensor, ctx: HookContext) -> Tensor:
        """The value after the edit."""
        parts = self._parts(value, ctx)
        chosen = None if self._every_token(value, ctx) else self._chosen(ctx)
        if not self.steer.changes:
            return value
        new = self._edited(value, *parts)
        return new if chosen is None else torch.where(chosen.view(*chosen.shape, *[1] * (value.ndim - 2)), new, value)

    def _chosen(self, ctx: HookContext) -> Bool[Tensor, "batch pos"]:
        chosen = chosen_tokens(ctx, self.steer.where, self.steer.positions, self.steer.phase)
        if self._live is None:
            return chosen
        self.last_condition = self._live.at(ctx)
        return chosen & self.last_condition

    def _every_token(self, value: Tensor, ctx: HookContext) -> bool:
        """Whether all tokens of the pass are steered, so that no mask is needed. Asks nothing of an accelerator, which would
        have to be waited for: a decode step holds one new token a row, and never a pad."""
        if not self._every_new or self.steer.phase not in (None, ctx.phase):
            return False
        every = ctx.phase == "decode" and value.shape[1] == 1
        if every and ctx.handle is not None:
            ctx.handle.reached = True
        return every

    def _parts(self, value: Tensor, ctx: HookContext) -> tuple[Tensor, ...]:
        """What `_edited` needs, made once for each kind of value: it is the same in every pass."""
        key = value.dtype, value.device, value.shape[2:]
        if self._prepared[0] != key:
            _check_width(value, self.targets, ctx.name)
            with torch.inference_mode(False):  # tensors of inference mode could not take part in gradients later
                directions = torch.stack([each.direction.detach().clone().double() for each in self.targets]).to(
                    value.device
                )
                amounts = directions.new_tensor([[self.steer._amount(each)] for each in self.targets])
                self._prepared = key, self._tensors(value, directions, amounts)
        return self._prepared[1]

    def _tensors(
        self, value: Tensor, directions: Float[Tensor, "target d"], amounts: Float[Tensor, "target 1"]
    ) -> tuple[Tensor, ...]:
        heads = torch.tensor([each.head or 0 for each in self.targets], device=value.device)
        if self.steer.kind != "add":
            return directions, amounts, heads
        shape = value.shape[2:]
        added = directions * amounts
        if self.targets[0].head is not None:
            added = torch.zeros(shape, dtype=torch.float64, device=value.device).index_copy(0, heads, added)
        return (added.view(shape).to(value.dtype),)

    def _edited(self, value: Tensor, *parts: Tensor) -> Tensor:
        if self.steer.kind == "add":
            return value + parts[0]
        directions, amounts, heads = parts
        if self.targets[0].head is None:
            return edited(self.steer.kind, value.flatten(2), directions[0], amounts[0]).view(value.shape)
        new = value.clone()
        new[:, :, heads] = edited(self.steer.kind, value[:, :, heads], directions, amounts)
        return new


def _every_new_token(where: str | Where) -> bool:
    """Whether every token of a decode step is among those that `where` names."""
    return (where if isinstance(where, Where) else Where(where)) in (EVERYWHERE, Where("generated"))


def _check_width(value: Tensor, targets: Sequence[Target], name: str) -> None:
    """ValueError for directions that do not fit the values at a site."""
    if not value.is_floating_point() or value.ndim < 3:
        raise ValueError(f"{name} holds no activations to steer: {value.dtype} of shape {list(value.shape)}")
    for target in targets:
        n = len(target.direction)
        if target.head is None:
            width = math.prod(value.shape[2:])
            if n != width:
                raise ValueError(f"the vector has {n} dimensions, {name} has {width}")
        elif value.ndim != 4:
            raise ValueError(f"{name} has no heads, and the direction belongs to head {target.head}: its site is z")
        elif not 0 <= target.head < value.shape[2]:
            raise ValueError(f"{name} has the heads 0 to {value.shape[2] - 1}, got head={target.head}")
        elif n != value.shape[3]:
            raise ValueError(
                f"the direction of head {target.head} has {n} dimensions, the heads at {name} have {value.shape[3]}"
            )
