"""A probe's direction as a steering vector: what was found by reading, tried by writing.

1. The direction is that of the probe in raw activations, towards the label 1, made a unit vector at the probe's site. That of
   a head's z is taken through the head's W_O to `attn_out`, which has the width of the stream.
2. The typical norm, the unit of strength, is the median norm of the reference's typical rows; without a reference, of the
   rows that the probe was fitted on.

A logistic probe's direction is the best to read, not the best to write: where features are correlated, mass-mean moves the
model more (Marks & Tegmark 2023, "The Geometry of Truth", arXiv 2310.06824, section 5).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from interp import artifact
from interp import sites as site_names
from interp.intervene import special_tokens, typical_rows
from interp.model import HookedTransformer
from interp.probe.value import Probe
from interp.steering.vector import SteeringVector
from interp.store import Store


def vector_of_probe(probe: Probe, model: HookedTransformer, site: str | None, reference: object) -> SteeringVector:
    """The steering vector of a linear probe; see `steering_vector`."""
    if probe.site is not None and probe.site.endswith((".hook_sae_acts_post", ".sae_acts_post")):
        raise ValueError(
            "this probe reads the latents of an SAE, and a steering vector stands in the stream: "
            "interp.latents_to_stream(sae, probe) is what the decoder makes of its direction, for interp.Steer"
        )
    if probe.direction is None:
        raise ValueError(
            f"a probe of kind {probe.kind!r} has no direction to add: fit a linear kind, such as 'mass_mean' or 'logistic'"
        )
    probe.check_model(model)
    direction, name = _at_stream(probe, model, _own_site(probe, model, site))
    width = model.cfg.d_model
    if len(direction) != width:
        raise ValueError(
            f"{probe!r} reads {len(direction)} features at {site_names.short_name(name)}, and a steering vector has the width "
            f"of the stream, {width}: fit a probe at resid_post, attn_out or mlp_out, or of one head's z"
        )
    typical = _typical_norm(probe, model, name, reference)
    norm = float(direction.norm())
    card = {
        "method": f"probe: {probe.kind}",
        "probe": {key: probe.card[key] for key in ("n", "positives", "C", "groups", "figure") if key in probe.card},
        "typical_norm_from": "the probe's own rows" if reference is None else "the reference",
        **artifact.provenance(model=model.cfg.name, fingerprint=model.fingerprint),
    }
    # Only a difference of means is a length in the stream; a logistic regression's weights are per unit of it.
    raw = norm if probe.kind == "mass_mean" and probe.head is None else None
    return SteeringVector(direction / norm, name, typical, 1.0, raw, card)


def _own_site(probe: Probe, model: HookedTransformer, site: str | None) -> str:
    wanted = probe.site if site is None else site
    if wanted is None:
        raise ValueError("this probe does not know the site that it reads: give site=, such as site='resid_post:12'")
    names = model.expand_sites(wanted)
    own = None if probe.site is None else model.expand_sites(probe.site)  # a site of `fit_probe` may be shorthand
    if len(names) != 1 or own not in (None, names):
        raise ValueError(
            f"this probe reads {probe.site}, and its direction means nothing elsewhere; site={site!r}: leave site out"
        )
    return names[0]


def _at_stream(probe: Probe, model: HookedTransformer, site: str) -> tuple[Tensor, str]:
    """The direction, and the site of the stream's width that it belongs to."""
    assert probe.direction is not None
    if probe.head is None:
        return probe.direction, site
    layer = site_names.layer_of(site)
    assert layer is not None
    blocks: Any = model.blocks
    if blocks[layer].ln1_post is not None:
        raise ValueError(
            f"layer {layer} norms what its heads write together, so that one head's direction is none of attn_out: use "
            "probe.stream_direction(model), or fit a probe at attn_out"
        )
    return probe.stream_direction(model), site.removesuffix("attn.hook_z") + "hook_attn_out"


def _typical_norm(probe: Probe, model: HookedTransformer, site: str, reference: object) -> float:
    short = site_names.short_name(site)
    if isinstance(reference, Store):
        reference.check_model(model)
        if site not in reference.sites:
            raise ValueError(
                f"the reference store has no {short}: record it, interp.record(model, texts, sites={[short]})"
            )
        return float(reference.stats(site).typical_norm)
    if reference is not None:
        if isinstance(reference, str) or not isinstance(reference, Sequence) or not reference:
            raise ValueError(f"reference must be a store or a list of texts, got {type(reference).__name__}")
        with torch.inference_mode():
            _, cache = model.run_with_cache(list[Any](reference), sites=site)
        rows = typical_rows(cache[site].flatten(2), cache.tokens.mask, special_tokens(model, cache.tokens.ids))
        return float(rows.norm(dim=-1).quantile(0.5))
    found = probe.card.get("typical_norm") if probe.head is None else None
    if found is None:
        raise ValueError(
            f"this probe does not know how long activations at {short} are, which is the unit of strength: give "
            "reference= (a store with that site, or a list of texts)"
        )
    return float(found)
