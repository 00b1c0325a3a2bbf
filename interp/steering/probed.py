"""A direction that is there already as a steering vector: that of a probe, of an SAE latent, or of anything alike.

1. The direction is that of the probe in raw activations, towards the label 1, made a unit vector at the probe's site. That of
   a head's z is taken through the head's W_O to `attn_out`, which has the width of the stream.
2. The units of strength are the median norm of the reference's typical rows and their standard deviation along the
   direction. Without a reference the norm is that of the rows that the probe was fitted on, or the direction's own, and the
   standard deviation is not known.

A logistic probe's direction is the best to read, not the best to write: where features are correlated, mass-mean moves the
model more (Marks & Tegmark 2023, "The Geometry of Truth", arXiv 2310.06824, section 5).
"""

from typing import Any

from torch import Tensor

from interp import artifact
from interp import sites as site_names
from interp.intervene import Direction
from interp.model import HookedTransformer
from interp.probe.value import Probe
from interp.steering.rows import typical_of
from interp.steering.vector import SteeringVector, refuse_other_model


def vector_of_probe(
    probe: Probe, model: HookedTransformer, site: str | None, reference: object, batch_size: int = 32, seed: int = 0
) -> SteeringVector:
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
    norm = float(direction.norm())
    direction = direction / norm
    if reference is None:
        typical, sd = _own_norm(probe, name), None
    else:
        rows = typical_of(reference, model, [name], batch_size, seed)[name]
        typical, sd = rows.norm, rows.sd(direction)
    card = {
        "method": f"probe: {probe.kind}",
        "probe": {key: probe.card[key] for key in ("n", "positives", "C", "groups", "figure") if key in probe.card},
        "typical_norm_from": "the probe's own rows" if reference is None else "the reference",
        **artifact.provenance(model=model.cfg.name, fingerprint=model.fingerprint),
    }
    # Only a difference of means is a length in the stream; a logistic regression's weights are per unit of it.
    raw = norm if probe.kind == "mass_mean" and probe.head is None else None
    return SteeringVector(direction, name, typical, 1.0, raw, card, sd)


def vector_of_direction(
    given: Direction, model: HookedTransformer, site: str | None, reference: object, batch_size: int, seed: int
) -> SteeringVector:
    """The steering vector of a direction with a site, such as `interp.latent_direction(sae, 17)`; see `steering_vector`.

    Raises:
        ValueError: a site that the model lacks, or another than the direction's own; a reference without it.
    """
    names = model.expand_sites(given.site)
    if len(names) != 1 or (site is not None and model.expand_sites(site) != names):
        raise ValueError(
            f"this direction stands at {given.site}, and means nothing elsewhere; site={site!r}: leave site out"
        )
    card = dict(getattr(given, "card", {}))
    refuse_other_model(card, model, "the direction was fitted")
    direction = given.direction.detach().cpu()
    typical, sd = given.typical_norm, getattr(given, "sd", None)
    if reference is not None:
        rows = typical_of(reference, model, names, batch_size, seed)[names[0]]
        if len(direction) != rows.rows.shape[1]:
            raise ValueError(
                f"the direction has {len(direction)} dimensions, and {site_names.short_name(names[0])} has {rows.rows.shape[1]}"
            )
        typical, sd = rows.norm, rows.sd(direction)
    card = {"method": f"direction: {type(given).__name__}", **card}
    card |= artifact.provenance(model=model.cfg.name, fingerprint=model.fingerprint)
    return SteeringVector(direction, names[0], float(typical), given.length, given.raw_norm, card, sd)


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


def _own_norm(probe: Probe, site: str) -> float:
    """Median norm of the rows that the probe was fitted on."""
    found = probe.card.get("typical_norm") if probe.head is None else None
    if found is None:
        raise ValueError(
            f"this probe does not know how long activations at {site_names.short_name(site)} are, which is the unit of "
            "strength: give reference= (a store with that site, or a list of texts)"
        )
    return float(found)
