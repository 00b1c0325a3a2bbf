"""Steering vectors of other tools, in and out: GGUF control vectors (llama.cpp), repeng, steering-vectors.

All three add `multiplier x vector` to what a layer puts out, at every token, and hold the vector as it is added. Here a
vector is a unit direction with lengths beside it, so that the scale has to be carried over exactly:

1. Read: the norm of the vector becomes `raw_norm`, and the direction is kept in float64. `Steer(v, m, unit="raw")` then adds
   the numbers of the file times m, to the last bit at m = 1. The typical norm of the site, in which strengths are counted by
   default, no other tool knows: it comes from `reference=`.
2. Write: a file holds what `Steer(v, strength, unit=unit)` adds, and a tool that loads it at scale 1 adds the same.

repeng counts layers as GGUF files do, blocks from 0, and its ids may be negative, from the last; `control_file.py` has the
format of the files. Only tensors and metadata are read, never a pickle.
"""

import math
import re
from collections.abc import Iterable, Mapping
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from interp import artifact
from interp import sites as site_names
from interp.intervene.targets import UNITS, default_unit, targets_of
from interp.model import HookedTransformer
from interp.steering.control_file import ControlFile, read_control_file, write_control_file
from interp.steering.rows import typical_of
from interp.steering.seen import SEEN
from interp.steering.vector import SteeringVector, refuse_other_model
from interp.steering.vectors import SteeringVectors
from interp.weights.families import FAMILIES

LAYER_TYPES = {"decoder_block": "resid_post", "self_attn": "attn_out", "mlp": "mlp_out"}
"""Layer type of steering-vectors -> kind of site."""

OTHER_NAMES = {"mistral": "llama", "mixtral": "llama", "deepseek_v3": "deepseek2"}
"""Family -> llama.cpp's word for it, of families whose weights are not read from GGUF files."""


# -------------------------------------------------------------------------------------------------- GGUF control vectors


def save_control_vectors(
    vectors: Any,
    path: str | Path,
    *,
    model: HookedTransformer | None = None,
    model_hint: str | None = None,
    strength: float | Any = 0.1,
    unit: str | None = None,
) -> Path:
    """Write a control vector that llama.cpp, repeng and `load_control_vectors` read.

    Args:
        vectors: a `SteeringVector` at `resid_post:N` with N of 1 or more, or `SteeringVectors` at several of these.
        path: the file, usually `.gguf`.
        model: the model of the vectors; its architecture becomes the file's hint.
        model_hint: the word for the architecture, such as "llama", where no model is given.
        strength: the file holds what `Steer(vectors, strength, unit=unit)` adds, and at scale 1 llama.cpp adds the same.
        unit: what the strength is counted in: `norm` (typical norms), `sd` or `raw`; None for what `Steer` takes.

    Raises:
        ValueError: a vector at another place than the output of a block, or of block 0, which the format has no room for;
            a vector of another model; a strength of 0, or one that is not finite in float32; a unit that is not known.
    """
    unit = default_unit(vectors) if unit is None else unit
    if unit not in UNITS:
        raise ValueError(f"unit={unit!r} is unknown; choose from {', '.join(UNITS)}")
    is_number = isinstance(strength, Real) and not isinstance(strength, bool) and math.isfinite(float(strength))
    if not is_number or not strength:
        raise ValueError(
            f"strength must be a finite number other than 0, got {strength!r}: a file of zeros steers nothing"
        )
    targets = {_layer_to_write(target): target for target in targets_of(vectors)}
    hint = _hint_to_write(vectors, model, model_hint)
    rows, layers = {}, {}
    for layer, target in targets.items():
        amount = float(strength) * target.length * target.in_unit(unit)
        added = (target.direction.detach().cpu().double() * amount).float()
        if not bool(added.isfinite().all()) or not bool(added.any()):
            raise ValueError(f"strength={strength} of {target.place} does not fit into float32: choose one nearer to 1")
        rows[layer], layers[layer] = added.numpy(), {"typical_norm": target.norm, "sd": target.sd}
    notes = {"layers": layers, "strength": float(strength), "unit": unit, "card": _card_of(vectors)}
    return write_control_file(path, ControlFile(rows, hint, notes))


def load_control_vectors(
    path: str | Path, model: HookedTransformer, *, reference: Any = None, model_hint: str | None = None
) -> SteeringVectors:
    """Read a control vector. `Steer(vectors, 1, unit="raw")` adds what the file holds, tensor for tensor.

    Args:
        path: a GGUF file of llama.cpp, repeng or `save_control_vectors`.
        model: the model that it is for.
        reference: where the typical norms come from, a store with the sites, or texts; files of `save_control_vectors`
            bring them.
        model_hint: what the file may say of its model although that is no name of the model's architecture.

    Raises:
        ValueError: no control vector (see `read_control_file`); one for another model, by its hint, its width or its layers;
            NaN; or typical norms that are neither in the file nor in a reference.
    """
    path = Path(path)
    found = read_control_file(path)
    _check_hint(path, found.hint, model, model_hint)
    made_by = found.notes.get("card", {})
    refuse_other_model(made_by, model, f"the vectors in {path} were fitted")
    card = {
        "method": "control vector (GGUF)", "file": path.name, "sha256": artifact.sha256_file(path),
        "model_hint": found.hint, "written_from": made_by,
        **{name: made_by[name] for name in SEEN if name in made_by},
    }  # fmt: skip
    return _vectors(found.rows, "resid_post", model, reference, str(path), card, found.notes.get("layers"))


# ------------------------------------------------------------------------------------------- repeng and steering-vectors


def from_repeng(
    directions: Mapping[int, Any] | Any, model: HookedTransformer, *, reference: Any = None
) -> SteeringVectors:
    """Vectors of repeng: `Steer(vectors, m, unit="raw")` does what its `set_control(vector, m)` does.

    Args:
        directions: `ControlVector.directions`: layer -> array of d_model numbers; negative layers count from the last.
        model: the model that they are for.
        reference: where the typical norms come from: a store with the sites, or texts.

    Raises:
        ValueError: no mapping of layers to rows of the model's width, a layer that the model does not have or that is named
            twice, NaN, or no reference.
    """
    card = {"method": "control vector (repeng)"}
    return _vectors(directions, "resid_post", model, reference, "the mapping", card)


def from_steering_vectors(
    layer_activations: Mapping[int, Any] | Any,
    model: HookedTransformer,
    *,
    layer_type: str = "decoder_block",
    reference: Any = None,
) -> SteeringVectors:
    """Vectors of the steering-vectors package: `Steer(vectors, m, unit="raw")` does what its `apply(model, multiplier=m)` does.

    Args:
        layer_activations: `SteeringVector.layer_activations`: layer -> tensor [d_model].
        model: the model that they are for.
        layer_type: `SteeringVector.layer_type`: `decoder_block` (the stream after a block), `self_attn` or `mlp` (what they
            add to it).
        reference: where the typical norms come from: a store with the sites, or texts.

    Raises:
        ValueError: as `from_repeng`; a layer type without a site of its own: the output of a norm after its gain, or an
            attention or MLP whose output is normed before it is added.
    """
    if layer_type not in LAYER_TYPES:
        raise ValueError(
            f"layer_type={layer_type!r} has no site: what a norm puts out is read before its gain. Fit the vector again at one "
            f"of {', '.join(LAYER_TYPES)}"
        )
    if layer_type != "decoder_block" and model.cfg.norm_placement != "pre":
        raise ValueError(
            f"{model.cfg.name} norms what {layer_type} puts out, and {LAYER_TYPES[layer_type]} is what is added after that: the "
            "vector has no site. Fit it again at decoder_block"
        )
    card = {"method": "steering vector (steering-vectors)", "layer_type": layer_type}
    return _vectors(layer_activations, LAYER_TYPES[layer_type], model, reference, "the mapping", card)


# --------------------------------------------------------------------------------------------------------------- reading


def _vectors(
    rows: Mapping[int, Any] | Any,
    kind: str,
    model: HookedTransformer,
    reference: Any,
    where: str,
    card: dict[str, Any],
    known: Mapping[int, tuple[float, float | None]] | None = None,
) -> SteeringVectors:
    """One vector for each layer, scaled so that raw strength 1 is the row itself."""
    if kind == "resid_post" and model.cfg.norm_placement == "post_ln":
        kind = "normalized_resid_post"  # what such a block puts out
    full = _checked_rows(rows, model, where)
    names = {layer: model.expand_sites(f"{kind}:{layer}")[0] for layer in full}
    norms = {layer: float(row.norm()) for layer, row in full.items()}
    units = {names[layer]: full[layer] / norms[layer] for layer in full}
    if reference is None:
        lacking = [layer for layer in full if layer not in (known or {})]
        if lacking:
            raise ValueError(
                f"{where} does not say how long activations at {site_names.short_name(names[lacking[0]])} are, which is the unit "
                "of strength: give reference= (a store with the sites, or a list of texts)"
            )
        scales = {names[layer]: (known or {})[layer] for layer in full}
    else:
        found = typical_of(reference, model, list(units), batch_size=32, seed=0)
        scales = {name: (found[name].norm, found[name].sd(unit)) for name, unit in units.items()}
    shared = {
        **card,
        "typical_norm_from": "the file" if reference is None else "the reference",
        **artifact.provenance(model=model.cfg.name, fingerprint=model.fingerprint),
    }
    parts = []
    for layer, name in names.items():
        typical, sd = scales[name]
        parts.append(SteeringVector(units[name], name, typical, 1.0, norms[layer], shared, sd))
    return SteeringVectors(tuple(parts), shared)


def _checked_rows(
    rows: Mapping[int, Any] | Any, model: HookedTransformer, where: str
) -> dict[int, Float64[Tensor, " d_model"]]:
    """Layer from 0 -> row in float64, in order; rows of zeros, which add nothing, are left out."""
    if not isinstance(rows, Mapping):
        raise ValueError(
            f"expected a mapping layer -> row, got {type(rows).__name__}: give its tensors, such as vector.directions"
        )
    n_layers, width = model.cfg.n_layers, model.cfg.d_model
    found: dict[int, Tensor] = {}
    for layer, value in rows.items():
        if isinstance(layer, bool) or not isinstance(layer, int | np.integer) or not -n_layers <= layer < n_layers:
            raise ValueError(
                f"{where} has a vector for layer {layer!r}, and {model.cfg.name} has the layers 0 to {n_layers - 1}: load the "
                "model that it belongs to"
            )
        row = _numbers(value, f"{where}, layer {layer}")
        if row.shape != (width,):
            raise ValueError(
                f"{where}, layer {layer}: shape {tuple(row.shape)}, and the stream of {model.cfg.name} is {width} wide: load the "
                "model that it belongs to"
            )
        if not bool(row.isfinite().all()):
            raise ValueError(f"{where}, layer {layer}: NaN or infinite numbers; make the vector again")
        from_start = int(layer) % n_layers
        if from_start in found:
            raise ValueError(
                f"{where} has two vectors for layer {from_start}, one of them counted from the end: leave one out"
            )
        found[from_start] = row
    kept = {layer: row for layer, row in sorted(found.items()) if bool(row.any())}
    if not kept:
        raise ValueError(
            f"{where} holds no vector" + (" but zeros" if found else "") + ": there is nothing to steer with"
        )
    return kept


def _numbers(value: Any, where: str) -> Float64[Tensor, "..."]:
    """An own copy in float64, without axes of length 1; arrays that are mapped from a file are read only."""
    if isinstance(value, Tensor):
        return value.detach().cpu().double().squeeze()
    try:
        return torch.tensor(np.array(value, np.float64)).squeeze()
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {type(value).__name__} is no row of numbers ({error})") from None


# --------------------------------------------------------------------------------------------------------------- models


def _hint_to_write(vectors: Any, model: HookedTransformer | None, model_hint: str | None) -> str:
    if model is None:
        if not model_hint:
            raise ValueError("a control vector names the architecture of its model: give model=, or model_hint='llama'")
        return model_hint
    refuse_other_model(_card_of(vectors), model, "the vectors were fitted")
    for target in targets_of(vectors):
        if len(target.direction) != model.cfg.d_model or target.site not in model.site_names:
            raise ValueError(
                f"{model.cfg.name} has no place for the vector at {target.place}: give the model that it was fitted on"
            )
    names = _architecture_names(model)
    if not model_hint and not names:
        raise ValueError(
            f"{model.cfg.name} is of no known architecture: say the word for it, such as model_hint='llama'"
        )
    return model_hint or names[0]


def _card_of(vectors: Any) -> dict[str, Any]:
    """The card of a vector or of several; of the first where the whole has none."""
    cards = [getattr(vectors, "card", {}), *(part.card for part in getattr(vectors, "parts", ()))]
    return next((card for card in cards if card), {})


def _layer_to_write(target: Any) -> int:
    layer = site_names.layer_of(target.site)
    if layer is None or target.head is not None or not target.site.endswith(".hook_resid_post"):
        raise ValueError(
            f"a control vector is added to the output of a block, and this one stands at {target.place}: fit it at resid_post, "
            "or keep it with save()"
        )
    if layer == 0:
        raise ValueError(
            "a GGUF control vector has no place for block 0: llama.cpp begins at direction.1 and refuses a direction.0. Leave "
            "resid_post:0 out, or fit the vector at resid_post:1 or later"
        )
    return layer


def _architecture_names(model: HookedTransformer) -> list[str]:
    """llama.cpp's word for the model's architecture first, where it has one, then transformers'."""
    for family in FAMILIES:
        if family.name == model.cfg.family:
            other = OTHER_NAMES.get(family.name) or (family.gguf and family.gguf.architecture)
            return list(dict.fromkeys([*([other] if other else []), family.model_type, family.name]))
    return []


def _check_hint(path: Path, hint: Any, model: HookedTransformer, accepted: str | None) -> None:
    """Hints are written loosely (`gpt_neox`, `gptneox`), and files of hand-made tools may have none."""
    names = _architecture_names(model)
    if hint is None or not names or _plain([hint]) <= _plain([*names, *([accepted] if accepted else [])]):
        return
    raise ValueError(
        f"{path} was made for a model of architecture {hint!r}, and {model.cfg.name} is {' or '.join(map(repr, names))}: load "
        f"the model that it was made for, or say model_hint={hint!r} if this is the one"
    )


def _plain(names: Iterable[Any]) -> set[str]:
    return {re.sub(r"[^a-z0-9]", "", str(name).lower()) for name in names}
