"""Steer by latents of an SAE: add to them, hold them at a value, or take them out.

A latent changes the model's value by a multiple of its decoder row, and by nothing else: what the SAE leaves out (its error)
stays as it is, so an edit of zero is the bare model, bit for bit.

- `add`:    value + amount * W_dec[latent], whether the latent fires or not
- `clamp`:  value + (amount - activation) * W_dec[latent]
- `ablate`: value - activation * W_dec[latent]

Several latents are edited together: all activations are those before the edit, so a TopK SAE does not fill the places that
come free. Templeton et al. 2024, Scaling monosemanticity, https://transformer-circuits.pub/2024/scaling-monosemanticity.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from interp.hooks import HookContext
from interp.intervene.place import HookFunction, Where, check_place, chosen_tokens, describe_place
from interp.model import HookedTransformer
from interp.model.splicing import check_model
from interp.sae.features import SAEFeatures, check_features
from interp.sae.model import SAE
from interp.sae.roles import known_targets

KINDS = ("add", "clamp", "ablate")
UNITS = {"raw": None, "max": "max", "mean": "mean_active"}
"""Unit of a value -> the column of a features table that it is counted in."""


@dataclass(frozen=True, eq=False)
class SteerLatent:
    """Edit latents of an SAE, for `with model.intervene(...)`. The model keeps the SAE's error.

    Args:
        sae: an SAE or transcoder whose card knows its sites.
        latent: number of a latent, or several.
        kind: `add`, `clamp` or `ablate`.
        value: how much is added, or what the latents are held at, in units of `unit`; one number, or one for each latent.
            `ablate` takes none. Adding 0 changes nothing, bit for bit.
        unit: "raw", activations as `sae.encode` gives them; "max" or "mean": multiples of each latent's largest activation,
            or of its mean where it fires, as `features` knows them.
        features: for `max` and `mean`: what `sae_features` made, or a frame with columns latent, max, mean_active.
        where, positions, phase: which tokens: a word, or a `Where`.
    """

    sae: Any
    latent: Any
    kind: str = "add"
    value: Any = None
    unit: str = "raw"
    features: Any = None
    where: str | Where = "all"
    positions: Sequence[int] | None = None
    phase: str | None = None

    def __post_init__(self) -> None:
        check_place(self.where, self.positions, self.phase)
        if not isinstance(self.sae, SAE):
            raise ValueError(f"SteerLatent takes an SAE, got {type(self.sae).__name__}: see train_sae and load_sae")
        if not known_targets(self.sae):
            raise ValueError("the SAE does not say its site: put it into its card, sae = SAE(..., card={'site': ...})")
        check_latents(self.sae, self.latents)
        if self.kind not in KINDS:
            raise ValueError(f"kind={self.kind!r} is unknown; choose from {', '.join(KINDS)}")
        if self.unit not in UNITS:
            raise ValueError(f"unit={self.unit!r} is unknown; choose from {', '.join(UNITS)}")
        if self.kind == "ablate":
            if self.value is not None:
                raise ValueError(
                    f"ablate takes the latents out whole, and no value={self.value!r}; clamp holds them at one"
                )
        elif not _are_numbers(self._values, len(self.latents)):
            raise ValueError(
                f"kind={self.kind!r} needs value=, a finite number or one for each of {len(self.latents)} latents; got "
                f"{self.value!r}"
            )
        if isinstance(self.features, SAEFeatures):
            check_features(self.features, self.sae)
        self.amounts()  # refuses a unit that is not known, before anything runs

    @property
    def latents(self) -> list[Any]:
        """The latents, as a list."""
        given = _plain(self.latent)
        several = given if isinstance(given, list | tuple | range) else [given]
        return [int(each) if isinstance(each, np.integer) else each for each in several]

    @property
    def _values(self) -> Any:
        """The value without numpy and torch around it: a number, or a list with one for each latent."""
        given = _plain(self.value)
        return [_plain(each) for each in given] if isinstance(given, list | tuple) else given

    def amounts(self) -> Float[Tensor, " latent"]:
        """What is added or held, in activations; zeros for `ablate`."""
        values = 0.0 if self.value is None else self._values
        several = values if isinstance(values, list) else [values] * len(self.latents)
        given = torch.tensor([float(each) for each in several], dtype=torch.float64)
        column = UNITS[self.unit]
        if column is None or self.kind == "ablate":
            return given
        return given * torch.tensor(_known(self.features, self.latents, column), dtype=torch.float64)

    def describe(self) -> dict[str, Any]:
        """The settings as JSON, for the card of a result."""
        return {
            "intervention": "steer_latent", "kind": self.kind, "latents": self.latents, "amounts": self.amounts().tolist(),
            "unit": self.unit, "sites": list(self.sae.sites), "targets": list(self.sae.targets),
            **describe_place(self.where, self.positions, self.phase),
        }  # fmt: skip

    def hook_functions(self, model: HookedTransformer) -> list[tuple[str, HookFunction]]:
        """One function at each place that the SAE writes to; where activations count, one at each that it reads."""
        check_model(model, [self.sae])
        sites, targets = (
            [model.expand_sites([name])[0] for name in names] for names in (self.sae.sites, self.sae.targets)
        )
        edit = _Edit(self, model, sites, targets)
        if self.kind == "add":
            return [(name, edit.write) for name in targets]
        order = model.site_names
        if any(order.index(site) > order.index(target) for site in sites for target in targets):
            raise ValueError(
                f"{self.kind} needs the activations before anything is written, but {targets[0]} comes before {sites[-1]} is "
                "computed: a crosscoder can be steered by kind='add'"
            )
        return [*((name, edit.read) for name in sites), *((name, edit.write) for name in targets)]


class _Edit:
    """What the functions of one intervention share within a pass."""

    def __init__(self, steer: SteerLatent, model: HookedTransformer, sites: list[str], targets: list[str]) -> None:
        self.steer, self.run, self.sites = steer, model.run, sites
        sae, device = steer.sae, model.device
        self.latents = torch.tensor(steer.latents, device=device)
        self.amounts = steer.amounts().to(device)
        rows = sae.W_dec.detach().to(device)[self.latents].double()
        widths = [sae.widths[name] for name in sae.targets] if len(targets) > 1 else [sae.d_out]
        self.directions = dict(zip(targets, rows.split(widths, 1), strict=True))
        self._read: dict[str, tuple[int, Tensor]] = {}
        self._active: tuple[int, Tensor] | None = None

    def read(self, value: Tensor, ctx: HookContext) -> None:
        """Keep what the SAE reads; the activations are made once all of it is there."""
        self._read[ctx.name] = (self.run.begun, value.flatten(2))
        now = [rows for begun, rows in self._read.values() if begun == self.run.begun]
        if len(now) == len(self.sites):
            rows = torch.cat([self._read.pop(name)[1] for name in self.sites], -1)
            self._active = (self.run.begun, latent_activations(self.steer.sae, rows, self.latents))

    def write(self, value: Tensor, ctx: HookContext) -> Tensor:
        """The value with the latents' change."""
        chosen = chosen_tokens(ctx, self.steer.where, self.steer.positions, self.steer.phase)
        directions, width = self.directions[ctx.name], value[0, 0].numel()
        if directions.shape[1] != width:
            raise ValueError(
                f"the SAE writes {directions.shape[1]} dimensions, {ctx.name} has {width}: is it another model?"
            )
        amounts = self.amounts.expand(*value.shape[:2], -1)
        if self.steer.kind != "add":
            begun, active = self._active or (-1, None)
            if active is None or begun != self.run.begun:
                raise ValueError(
                    f"the latents at {ctx.name} are read from {', '.join(self.sites)}, which this pass did not compute: start it "
                    "at an earlier layer"
                )
            amounts = amounts - active.double()
        change = torch.where(chosen[..., None], amounts, 0.0) @ directions
        return value + change.view(value.shape).to(value.dtype)


def latent_activations(
    sae: SAE, x: Float[Tensor, "*batch d_in"], latents: Tensor | Sequence[int] | int | Any
) -> Float[Tensor, "*batch chosen"]:
    """Activations of some latents only: `sae.encode(x)[..., latents]`, without the rest."""
    wanted = torch.as_tensor(latents, device=x.device).reshape(-1)
    check_latents(sae, wanted.tolist())
    active = sae.active(sae.rows_of(x))
    hit = active.latent[:, None] == wanted
    entry, column = hit.nonzero(as_tuple=True)
    found = active.values.new_zeros(active.n_rows, len(wanted))
    return found.index_put((active.row[entry], column), active.values[entry]).view(*x.shape[:-1], len(wanted))


@dataclass(frozen=True, eq=False)
class LatentDirection:
    """A latent as a direction for `Steer`: strength in units of the typical norm where the SAE writes."""

    site: str
    """Full name of the place that the SAE writes to."""
    direction: Float[Tensor, " d_out"]
    """The decoder row, at length 1."""
    typical_norm: float
    """Median norm of typical tokens there."""
    raw_norm: float
    """Length of the decoder row: with `raw=True` a strength is an activation."""
    length: float = 1.0
    """As a steering vector has it."""


def latent_direction(sae: SAE, latent: int | Any) -> LatentDirection:
    """The decoder row of a latent as `Steer` takes it.

    Raises:
        ValueError: no such latent, an SAE that writes several sites or does not say where, or whose card has no typical norm.
    """
    check_latents(sae, [latent])
    if len(sae.targets) != 1:
        raise ValueError(f"a direction stands at one site, this SAE writes {len(sae.targets)}: use SteerLatent")
    site = known_targets(sae)[0]
    own = None if sae.is_transcoder else sae.card.get("typical_norm")
    norm = (sae.card.get("typical_norms") or {}).get(site, own)
    if not norm:
        raise ValueError(
            f"the SAE's card has no typical norm of {site}, the unit of Steer; SteerLatent counts in activations instead"
        )
    row = sae.W_dec.detach()[latent].clone()
    length = float(row.double().norm())
    if length == 0:
        raise ValueError(f"the decoder row of latent {latent} is zero: it has no direction")
    return LatentDirection(site, row / length, float(norm), length)


def check_latents(sae: SAE, latents: Sequence[Any]) -> None:
    """ValueError for what is no latent of this SAE, or for none at all."""
    odd = [
        each
        for each in latents
        if isinstance(each, bool) or not isinstance(each, int | np.integer) or not 0 <= each < sae.n_latents
    ]
    if odd:
        raise ValueError(f"latent {odd[0]!r} does not exist: the SAE has latents 0 to {sae.n_latents - 1}")
    if not latents or len(set(latents)) < len(latents):
        raise ValueError(f"name each latent once, and at least one; got {list(latents)}")


def _plain(value: Any) -> Any:
    """What stands in an array or a tensor, as numbers and lists; anything else as it is."""
    return value.tolist() if isinstance(value, np.ndarray | np.generic | Tensor) else value


def _are_numbers(value: Any, n: int) -> bool:
    """Whether a value is a finite number, or n of them."""
    numbers = value if isinstance(value, list) else [value] * n
    real = all(isinstance(each, Real) and not isinstance(each, bool) for each in numbers)
    return len(numbers) == n and real and all(map(math.isfinite, numbers))


def _known(features: Any, latents: Sequence[int], column: str) -> list[float]:
    """A figure of each latent from a table of features."""
    frame = features if isinstance(features, pd.DataFrame) else getattr(features, "latents", None)
    if not isinstance(frame, pd.DataFrame) or not {"latent", column} <= set(frame.columns):
        raise ValueError(
            f"unit= counts in each latent's {column}: give features=sae_features(...), or a frame with columns latent, {column}"
        )
    figures = frame.set_index("latent")[column].reindex(latents)
    silent = [latent for latent, figure in zip(latents, figures) if not figure > 0]
    if silent:
        raise ValueError(
            f"latent {silent[0]} never fired in these features, so it has no {column}: give value= with unit='raw'"
        )
    return [float(figure) for figure in figures]
