"""Replace heads, neurons, layers or whole sites by zero, by a mean, or by values of other texts.

A mean keeps what a component says everywhere and removes what it says here; zero removes both, and is a value that the
model may never see; a resampled value is one that it does see (Chan et al. 2022, causal scrubbing).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from interp import sites as site_names
from interp.hooks import HookContext
from interp.intervene.place import HookFunction, Where, check_place, chosen_tokens, describe_place
from interp.intervene.reference import (
    DrawnRows,
    PairedValues,
    drawn_rows,
    paired_values,
    position_means,
    reference_means,
)
from interp.model import HookedTransformer

KINDS = ("zero", "mean", "resample")


@dataclass(frozen=True, eq=False)
class Ablate:
    """Replace heads, neurons, layers or whole sites.

    Args:
        heads: (layer, head) pairs; their z is replaced, so the head adds nothing of its own to the stream.
        sites: sites or components besides: `mlp_out:5`, `post:5.107`.
        kind: `zero`; `mean` over the typical tokens of the reference; or `resample`, values of the reference itself.
        reference: for `mean`: a store that holds the sites, texts, or a mapping full site name -> mean [d]. For
            `resample`: texts, Tokens or an ActivationCache of the same lengths, row i for row i; with `seed`, a store or
            any texts, of whose typical tokens rows are drawn.
        where, positions, phase: which tokens: a word, or a `Where`.
        neurons: (layer, neuron) pairs; their activation is replaced.
        mlps: layers whose mlp_out is replaced.
        attentions: layers whose attn_out is replaced.
        by: for `mean`: over all tokens (`token`), or over texts at each position (`position`), for reference texts of one
            length, position 0 too.
        seed: for `resample`: draw rows, the same ones in every run.
    """

    heads: Sequence[Any] = ()
    sites: Any = ()
    kind: str = "mean"
    reference: Any = None
    where: str | Where = "all"
    positions: Sequence[int] | None = None
    phase: str | None = None
    neurons: Sequence[Any] = ()
    mlps: Sequence[Any] = ()
    attentions: Sequence[Any] = ()
    by: str = "token"
    seed: int | None = None

    def __post_init__(self) -> None:
        check_place(self.where, self.positions, self.phase)
        if self.kind not in KINDS:
            raise ValueError(f"kind={self.kind!r} is unknown; choose from {', '.join(KINDS)}")
        if self.kind == "mean" and self.reference is None:
            raise ValueError("kind='mean' needs reference=: a store with the site, texts, or {site: mean}")
        if self.kind == "resample" and self.reference is None:
            raise ValueError("kind='resample' needs reference=: texts, Tokens, a cache, or with seed= a store")
        if self.by not in ("token", "position"):
            raise ValueError(f"by={self.by!r} is unknown; choose from token, position")
        if self.by == "position" and self.kind != "mean":
            raise ValueError(f"by='position' says over what a mean is taken; kind={self.kind!r} takes none")
        if self.seed is not None and self.kind != "resample":
            raise ValueError(f"seed= draws rows for kind='resample'; kind={self.kind!r} draws nothing")
        for name, pairs in (("heads", self.heads), ("neurons", self.neurons)):
            if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
                raise ValueError(f"{name} are (layer, {name[:-1]}) pairs in a list, such as [(5, 1)], got {pairs!r}")
        if not any(map(len, (self.heads, self.sites, self.neurons, self.mlps, self.attentions))):
            raise ValueError("nothing to ablate: give heads=[(layer, head)], neurons=, mlps=, attentions= or sites=")

    def describe(self) -> dict[str, Any]:
        """What is replaced by what, as JSON: for the card of a result. A reference is named by its kind."""
        reference = self.reference
        texts = isinstance(reference, list) and all(isinstance(text, str) for text in reference)
        return {
            "intervention": "ablate", "kind": self.kind, "by": self.by if self.kind == "mean" else None, "seed": self.seed,
            "heads": [list(head) for head in self.heads], "neurons": [list(neuron) for neuron in self.neurons],
            "mlps": list(self.mlps), "attentions": list(self.attentions),
            "sites": [self.sites] if isinstance(self.sites, str) else list(self.sites),
            **describe_place(self.where, self.positions, self.phase),
            "reference": None if reference is None else type(reference).__name__,
            "n_reference_texts": len(self.reference) if texts else None,
        }  # fmt: skip

    def hook_functions(self, model: HookedTransformer) -> list[tuple[str, HookFunction]]:
        """One function for each site that is touched."""
        parts: dict[str, set[int] | None] = {}
        for site in self._wanted():
            for selected in model.select_sites(site):
                if selected.component is None:
                    parts[selected.name] = None
                elif (known := parts.setdefault(selected.name, set())) is not None:
                    known.add(selected.component)
        for name in parts:
            if site_names.kind_of(name).component == 1:
                raise ValueError(
                    f"{name} is not a value of single tokens; ablate z, result or a stream site instead, or use Knockout"
                )
        source = self._source(list(parts), model)
        return [(name, self._replace(name, chosen, source)) for name, chosen in parts.items()]

    def _wanted(self) -> list[Any]:
        wanted = [self.sites] if isinstance(self.sites, str) else list(self.sites)
        wanted += [f"z:{layer}.{head}" for layer, head in self.heads]
        wanted += [f"post:{layer}.{neuron}" for layer, neuron in self.neurons]
        wanted += [f"mlp_out:{layer}" for layer in self.mlps]
        return wanted + [f"attn_out:{layer}" for layer in self.attentions]

    def _source(
        self, names: list[str], model: HookedTransformer
    ) -> dict[str, Tensor] | PairedValues | DrawnRows | None:
        if self.kind == "zero":
            return None
        if self.kind == "resample":
            if self.seed is None:
                return paired_values(self.reference, names, model)
            return drawn_rows(self.reference, names, model, self.seed)
        if self.by == "position":
            return position_means(self.reference, names, model)
        return reference_means(self.reference, names, model)

    def _replace(
        self, name: str, components: set[int] | None, source: dict[str, Tensor] | PairedValues | DrawnRows | None
    ) -> HookFunction:
        axis = site_names.kind_of(name).component

        def replace(value: Tensor, ctx: HookContext) -> Tensor:
            chosen = chosen_tokens(ctx, self.where, self.positions, self.phase)
            if source is None:
                new = torch.zeros_like(value)
            elif isinstance(source, dict):
                new = source[name].to(value).view(value.shape[2:]).expand_as(value)
            else:
                new = source.at(ctx, value, chosen)
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
