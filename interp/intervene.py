"""Interventions: frozen values that say what is changed where, applied by `with model.intervene(...)`.

- `Ablate` replaces heads, neurons or whole sites by zero or by a mean;
- `Patch` puts in values that another run recorded;
- `Steer` adds a direction, with a strength in units of the site's typical norm.

`where` is `"all"`, `"prompt"` (positions below the prompt's length) or `"generated"` (positions from the last prompt
token on, whose output chooses the first new token). Positions are absolute, so an intervention means the same in one
teacher-forced pass, in a prefill and in cached decoding. Pads are never touched.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp import sites as site_names
from interp.hooks import HookContext
from interp.model import HookedTransformer
from interp.store import Store

PLACES = ("all", "prompt", "generated")
PHASES = ("forward", "prefill", "decode")
HookFunction = Callable[[Tensor, HookContext], Tensor | None]


@runtime_checkable
class Direction(Protocol):
    """What `Steer` needs of a vector; `interp.SteeringVector` is one."""

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


def chosen_tokens(
    ctx: HookContext, where: str, positions: Sequence[int] | None, phase: str | None
) -> Bool[Tensor, "batch pos"]:
    """True for the tokens of this pass that an intervention applies to; notes on the handle whether there are any."""
    chosen = _chosen(ctx, where, positions, phase)
    if ctx.handle is not None and not ctx.handle.reached:
        ctx.handle.reached = bool(chosen.any())
    return chosen


def _chosen(
    ctx: HookContext, where: str, positions: Sequence[int] | None, phase: str | None
) -> Bool[Tensor, "batch pos"]:
    if phase is not None and ctx.phase != phase:
        return torch.zeros_like(ctx.mask)
    chosen = ctx.mask
    if positions is not None:
        chosen = chosen & torch.isin(ctx.positions, torch.tensor(list(positions), device=ctx.positions.device))
    if where == "all":
        return chosen
    if ctx.prompt_len is None:
        raise ValueError(
            f"where={where!r} needs to know the prompt: pass prompt_len= to the forward call (generate knows it)"
        )
    length = ctx.prompt_len[:, None]
    return chosen & (ctx.positions < length if where == "prompt" else ctx.positions >= length - 1)


def _check_place(where: str, positions: Sequence[int] | None, phase: str | None) -> None:
    if where not in PLACES:
        raise ValueError(f"where={where!r} is unknown; choose from {', '.join(PLACES)}")
    if phase is not None and phase not in PHASES:
        raise ValueError(f"phase={phase!r} is unknown; choose from {', '.join(PHASES)}")
    if positions is not None and any(position < 0 for position in positions):
        raise ValueError(f"positions are absolute and count from 0, got {list(positions)}")


@dataclass(frozen=True, eq=False)
class Steer:
    """Add strength x length x typical norm x direction to a site.

    Args:
        vector: a steering vector; its card knows the site and the typical norm there.
        strength: in units of the site's typical norm (with `raw`: of the fitted difference). 0 changes nothing, bit
            for bit.
        site: another site than the vector's own, of the same width; the vector's typical norm is used.
        where, positions, phase: which tokens.
        raw: add the difference as it was fitted, times strength.
    """

    vector: Any
    strength: Any = 0.1
    site: str | None = None
    where: str = "all"
    positions: Sequence[int] | None = None
    phase: str | None = None
    raw: bool = False

    def __post_init__(self) -> None:
        _check_place(self.where, self.positions, self.phase)
        if not isinstance(self.vector, Direction):
            raise ValueError(
                f"Steer takes a steering vector, got {type(self.vector).__name__}: make one by interp.steering_vector(...), or "
                "interp.SteeringVector(direction, site, typical_norm)"
            )
        if not isinstance(self.strength, int | float) or not math.isfinite(self.strength):
            raise ValueError(f"strength must be a finite number, got {self.strength}")
        if self.raw and self.vector.raw_norm is None:
            raise ValueError("raw=True needs a vector with a fitted length; this one is a sum of others")

    def hook_functions(self, model: HookedTransformer) -> list[tuple[str, HookFunction]]:
        """One function at the vector's site."""
        names = model.expand_sites(self.site or self.vector.site)
        unit = self.vector.raw_norm if self.raw else self.vector.typical_norm
        assert unit is not None
        added = self.vector.direction * (self.strength * self.vector.length * unit)

        def add(value: Tensor, ctx: HookContext) -> Tensor:
            if value.shape[-1] != added.shape[0]:
                raise ValueError(f"the vector has {added.shape[0]} dimensions, {ctx.name} has {value.shape[-1]}")
            chosen = chosen_tokens(ctx, self.where, self.positions, self.phase)
            if not self.strength:
                return value
            return torch.where(chosen[..., None], value + added.to(value), value)

        return [(name, add) for name in names]


@dataclass(frozen=True, eq=False)
class Ablate:
    """Replace heads, neurons or whole sites.

    Args:
        heads: (layer, head) pairs; their z is replaced, so the head adds nothing of its own to the stream.
        sites: sites or components besides: `mlp_out:5`, `post:5.107`.
        kind: `zero`, or `mean` over the typical tokens of the reference.
        reference: for `mean`: a store that holds the sites, texts, or a mapping full site name -> mean [d].
        where, positions, phase: which tokens.
    """

    heads: Sequence[Any] = ()
    sites: Any = ()
    kind: str = "mean"
    reference: Any = None
    where: str = "all"
    positions: Sequence[int] | None = None
    phase: str | None = None

    def __post_init__(self) -> None:
        _check_place(self.where, self.positions, self.phase)
        if self.kind not in ("zero", "mean"):
            raise ValueError(f"kind={self.kind!r} is unknown; choose from zero, mean")
        if self.kind == "mean" and self.reference is None:
            raise ValueError("kind='mean' needs reference=: a store with the site, texts, or {site: mean}")
        if not all(isinstance(head, tuple | list) and len(head) == 2 for head in self.heads):
            raise ValueError(f"heads are (layer, head) pairs in a list, such as [(5, 1)], got {self.heads!r}")
        if not self.heads and not self.sites:
            raise ValueError("nothing to ablate: give heads=[(layer, head)] or sites=")

    def hook_functions(self, model: HookedTransformer) -> list[tuple[str, HookFunction]]:
        """One function for each site that is touched."""
        parts: dict[str, set[int] | None] = {}
        wanted = [self.sites] if isinstance(self.sites, str) else list(self.sites)
        wanted += [f"z:{layer}.{head}" for layer, head in self.heads]
        for site in wanted:
            for selected in model.select_sites(site):
                if selected.component is None:
                    parts[selected.name] = None
                elif (known := parts.setdefault(selected.name, set())) is not None:
                    known.add(selected.component)
        means = None if self.kind == "zero" else reference_means(self.reference, list(parts), model)
        return [(name, self._replace(name, chosen, means)) for name, chosen in parts.items()]

    def _replace(self, name: str, components: set[int] | None, means: Mapping[str, Tensor] | None) -> HookFunction:
        axis = site_names.kind_of(name).component
        if axis == 1:
            raise ValueError(f"{name} is not a value of single tokens; ablate z, result or a stream site instead")

        def replace(value: Tensor, ctx: HookContext) -> Tensor:
            new = (
                torch.zeros_like(value)
                if means is None
                else means[name].to(value).view(value.shape[2:]).expand_as(value)
            )
            chosen = chosen_tokens(ctx, self.where, self.positions, self.phase)
            chosen = chosen.view(*chosen.shape, *([1] * (value.ndim - 2)))
            if components is not None:
                assert axis is not None
                if max(components) >= value.shape[axis]:
                    raise ValueError(f"{name} has components 0 to {value.shape[axis] - 1}, got {max(components)}")
                picked = torch.zeros(value.shape[axis], dtype=torch.bool, device=value.device)
                picked[list(components)] = True
                chosen = chosen & picked.view(-1, *([1] * (value.ndim - axis - 1)))
            return torch.where(chosen, new, value)

        return replace


@dataclass(frozen=True, eq=False)
class Patch:
    """Put in values recorded in another run of the same shape.

    Args:
        site: one site, or one component of it (`z:5.3`).
        source: an ActivationCache (or mapping full site name -> value) or the value [batch pos ...] itself. A batch of
            1 serves every row.
        where, positions, phase: which tokens.
    """

    site: str
    source: Any
    where: str = "all"
    positions: Sequence[int] | None = None
    phase: str | None = None

    def __post_init__(self) -> None:
        _check_place(self.where, self.positions, self.phase)

    def hook_functions(self, model: HookedTransformer) -> list[tuple[str, HookFunction]]:
        """One function at the site."""
        selected = model.select_sites(self.site)
        if len(selected) != 1:
            raise ValueError(f"Patch takes one site, {self.site!r} names {len(selected)}")
        name, component = selected[0].name, selected[0].component
        axis = site_names.kind_of(name).component
        source = self.source if isinstance(self.source, Tensor) else self.source[name]

        def patch(value: Tensor, ctx: HookContext) -> Tensor:
            if source.shape[1:] != value.shape[1:] or source.shape[0] not in (1, value.shape[0]):
                raise ValueError(
                    f"{name}: the source has shape {tuple(source.shape)}, the run {tuple(value.shape)}; both prompts "
                    "must have the same number of tokens"
                )
            if axis == 1:
                chosen = chosen_tokens(ctx, self.where, self.positions, self.phase)[:, None, :, None]
            else:
                chosen = chosen_tokens(ctx, self.where, self.positions, self.phase)
                chosen = chosen.view(*chosen.shape, *([1] * (value.ndim - 2)))
            if component is not None:
                assert axis is not None
                picked = torch.zeros(value.shape[axis], dtype=torch.bool, device=value.device)
                picked[component] = True
                chosen = chosen & picked.view(-1, *([1] * (value.ndim - axis - 1)))
            return torch.where(chosen, source.to(value), value)

        return [(name, patch)]


def typical_rows(
    values: Float[Tensor, "batch pos d"], mask: Bool[Tensor, "batch pos"], special: Bool[Tensor, "batch pos"]
) -> Float[Tensor, "row d"]:
    """Rows of tokens that are real, not special, not first in their text, and of norm at most 10x the median."""
    first = mask.long().cumsum(1) == 1
    rows = values[mask & ~special & ~first].float()
    if not len(rows):
        raise ValueError("no typical token is left: the reference texts hold nothing but first and special tokens")
    norms = rows.norm(dim=-1)
    return rows[norms <= 10 * norms.median()]


def special_tokens(model: HookedTransformer, ids: Tensor) -> Bool[Tensor, "batch pos"]:
    """True where a token stands for no text."""
    special = sorted(model.tokenizer.special_ids) if model.tokenizer is not None else []
    return torch.isin(ids, torch.tensor(special, dtype=ids.dtype, device=ids.device))


def reference_means(reference: Any, names: Sequence[str], model: HookedTransformer) -> dict[str, Float[Tensor, "d"]]:
    """Mean over typical tokens of each site, flattened over heads, from a store, texts or a ready mapping.

    Raises:
        ValueError: the reference lacks a site; the message holds the call that records it.
    """
    if isinstance(reference, Store):
        missing = [site_names.short_name(name) for name in names if name not in reference.sites]
        if missing:
            raise ValueError(
                f"the reference store has no {missing}; record them: interp.record(model, texts, sites={missing})"
            )
        reference.check_model(model)
        found = {name: reference.stats(name).typical for name in names}
        empty = [site_names.short_name(name) for name, typical in found.items() if not typical.count]
        if empty:
            raise ValueError(
                f"the reference store has no typical token at {empty}; record tokens='all' of longer texts"
            )
        return {name: torch.as_tensor(typical.mean).float() for name, typical in found.items()}
    if isinstance(reference, Mapping):
        missing = [name for name in names if name not in reference]
        if missing:
            raise ValueError(f"the reference has no mean for {missing}; it has {list(reference)}")
        return {name: torch.as_tensor(reference[name]).flatten().float() for name in names}
    with torch.inference_mode():
        _, cache = model.run_with_cache(reference, sites=list(names))
    special = special_tokens(model, cache.tokens.ids)
    return {name: typical_rows(cache[name].flatten(2), cache.tokens.mask, special).mean(0).clone() for name in names}
