"""SAELens folders, both ways: cfg.json and sae_weights.safetensors, of version 6, and older ones to read.

1. cfg.json says the architecture and the options; one without a version of at least 6 has the flat form of before, and
   is brought to the new one first.
2. The tensors are checked by the architecture's layout.
3. What is fixed is folded into the weights: the input scale or whitening that a training checkpoint keeps beside the
   weights (latents then come out in SAELens' own units), and decoder norms by which a TopK SAE ranks its latents.
4. What depends on the row (`layer_norm`, `constant_norm_rescale`) is refused unless asked for, see `normalized`.

Checkpoints of a BatchTopK or Matryoshka training become `jumprelu`, with the threshold that it learned: the same that
SAELens makes of them when it saves the SAE for use.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from interp.sae.formats.building import Weights, build_sae, fold_affine, fold_decoder_norms, fold_scale, known_places
from interp.sae.formats.normalized import ROW_NORMS, check_row_norm
from interp.sae.formats.reading import Layout, dtype_name, read_config, read_safetensors, take
from interp.sae.model import SAE

CONFIG = "cfg.json"
WEIGHTS = "sae_weights.safetensors"
SPARSITY = "sparsity.safetensors"
SCALER = "activation_scaler.json"
WHITENING = "activation_whitening.safetensors"
NO_DENSITY = 1e-10
"""Added to a density before its logarithm is taken, as SAELens does; its logarithm stands for a latent that never fires."""

_SAE: Layout = {
    "W_enc": ("d_in", "latent"),
    "b_enc": ("latent",),
    "W_dec": ("latent", "d_in"),
    "b_dec": ("d_in",),
}
_TRANSCODER: Layout = {**_SAE, "W_dec": ("latent", "d_out"), "b_dec": ("d_out",)}
_THRESHOLD: Layout = {"threshold": ("latent",)}
_SKIP: Layout = {"W_skip": ("d_out", "d_in")}
_GATES: Layout = {"b_gate": ("latent",), "b_mag": ("latent",), "r_mag": ("latent",)}
_LEARNED: Layout = {"topk_threshold": ()}

LAYOUTS: Mapping[str, Layout] = {
    "standard": _SAE,
    "topk": _SAE,
    "jumprelu": {**_SAE, **_THRESHOLD},
    "gated": {name: axes for name, axes in _SAE.items() if name != "b_enc"} | _GATES,
    "transcoder": _TRANSCODER,
    "skip_transcoder": {**_TRANSCODER, **_SKIP},
    "jumprelu_transcoder": {**_TRANSCODER, **_THRESHOLD},
    "jumprelu_skip_transcoder": {**_TRANSCODER, **_THRESHOLD, **_SKIP},
    "batchtopk": {**_SAE, **_LEARNED},
    "matryoshka_batchtopk": {**_SAE, **_LEARNED},
}
"""Architecture -> names and axes of its tensors. The last two are checkpoints of a training."""

_RANKING = ("topk", "batchtopk", "matryoshka_batchtopk")

REFUSED = {
    "abstopk": "its latents may be negative, and here they are at least 0",
    "matching_pursuit": "it encodes in steps, each on what the last one left over, not by one product",
    "temporal": "it reads earlier tokens through attention, so it is no function of one row",
}
"""Architectures that SAELens has and `SAE` cannot be, and why."""

KEPT = (
    "model_name",
    "model_class_name",
    "model_from_pretrained_kwargs",
    "hook_name",
    "hook_name_out",
    "hook_head_index",
    "context_size",
    "prepend_bos",
    "exclude_special_tokens",
    "seqpos_slice",
    "dataset_path",
    "neuronpedia_id",
    "sae_lens_version",
    "sae_lens_training_version",
)
"""Metadata that goes into the card, and from there into a file that is saved again."""


def load_saelens(
    path: str | os.PathLike[str],
    *,
    site: str | None = None,
    target: str | None = None,
    scaling_factor: float | None = None,
    normalized: bool = False,
) -> SAE:
    """Read an SAE or transcoder that SAELens saved.

    Args:
        path: the folder.
        site: what it reads, where the file's hook_name does not say it.
        target: what a transcoder writes, where the file's hook_name_out does not say it.
        scaling_factor: what the rows were multiplied by in training, for `expected_average_only_in`, where the folder does
            not hold it (1 for rows as they are).
        normalized: read an SAE that normalises rows by itself as an SAE of normalised rows (`normalize_rows`).

    Returns:
        The SAE in float32. Its reconstructions are those of SAELens' `SAE.load_from_disk`, after the scale is folded.

    Raises:
        ValueError: a file that is missing, damaged or does not fit the configuration; an architecture or normalisation
            that this library's SAE cannot be.
    """
    folder = Path(path)
    cfg = _modern(read_config(folder / CONFIG), folder / CONFIG)
    name = str(cfg.get("architecture", "standard"))
    if name not in LAYOUTS:
        why = REFUSED.get(name, f"known are {', '.join(LAYOUTS)}")
        raise ValueError(f"{folder} holds an SAE of the architecture {name!r}, which cannot be read: {why}")
    transcoder = "transcoder" in name
    tensors = read_safetensors(folder / WEIGHTS)
    weights = _weights(name, tensors, folder / WEIGHTS)
    _check_sizes(cfg, weights, folder)
    row_norm = str(cfg.get("normalize_activations") or "none")
    if row_norm in ROW_NORMS:
        check_row_norm(row_norm, normalized, folder)
    weights = _on_raw_rows(
        weights, {**cfg, "architecture": name, "normalize_activations": row_norm}, folder, scaling_factor
    )
    metadata = {key: value for key, value in (cfg.get("metadata") or {}).items() if key in KEPT}
    one_head = metadata.get("hook_head_index") is not None  # a part of a place, which has no name here
    told = (None, None) if one_head else (metadata.get("hook_name"), metadata.get("hook_name_out"))
    sae = build_sae(
        weights,
        folder / WEIGHTS,
        format="saelens",
        kind=_kind(name),
        architecture=_architecture(name),
        apply_b_dec_to_input=_subtracts(cfg, transcoder),
        places=known_places((site, target), told, transcoder=transcoder),
        transcoder=transcoder,
        k=_k(cfg, folder) if name == "topk" else None,
        details={
            "architecture": name,
            "dtype": dtype_name(tensors),
            "metadata": metadata,
            "row_norm": row_norm if row_norm in ROW_NORMS else None,
        },
    )
    ours = (cfg.get("metadata") or {}).get("interp")
    if isinstance(ours, dict):  # this library wrote the folder: the card has its own words again
        sae.card |= {key: ours[key] for key in ("model", "config") if ours.get(key)}
    return sae


def saelens_density(path: str | os.PathLike[str]) -> Float[Tensor, " latent"] | None:
    """How often each latent fires, from the folder's sparsity.safetensors; None where there is none.

    Raises:
        ValueError: a damaged file.
    """
    file = Path(path) / SPARSITY
    if not file.exists():
        return None
    logs = take(read_safetensors(file), {"sparsity": ("latent",)}, file)["sparsity"]
    return (10.0**logs - NO_DENSITY).clamp_min(0)


def _architecture(name: str) -> str:
    """What it is here."""
    if name in ("topk", "gated"):
        return name
    return "jumprelu" if {"threshold", "topk_threshold"} & set(LAYOUTS[name]) else "relu"


def _kind(name: str) -> str:
    """What it was trained as, in the words of our configurations."""
    if name == "matryoshka_batchtopk":
        return "matryoshka"
    return name if "transcoder" not in name else "jumprelu" if name.startswith("jumprelu") else "standard"


def _subtracts(cfg: Mapping[str, Any], transcoder: bool) -> bool:
    return bool(cfg.get("apply_b_dec_to_input", not transcoder))


def _weights(name: str, tensors: dict[str, Tensor], path: Path) -> Weights:
    """The tensors by our names, checked."""
    scaling = tensors.get("scaling_factor")
    if scaling is not None:
        if not torch.allclose(scaling, torch.ones_like(scaling)):
            raise ValueError(
                f"{path} holds a scaling_factor for each latent from a fine-tuning, which SAELens itself no longer uses; "
                "multiply W_dec's rows by it and leave it out"
            )
        tensors = {key: value for key, value in tensors.items() if key != "scaling_factor"}
    if "log_threshold" in tensors and name == "jumprelu":  # older checkpoints of a training
        tensors = {**tensors, "threshold": tensors["log_threshold"].float().exp()}
        del tensors["log_threshold"]
    weights = take(tensors, LAYOUTS[name], path)
    if "b_gate" in weights:
        weights["b_enc"] = weights.pop("b_gate")
    if "W_skip" in weights:
        weights["W_skip"] = weights["W_skip"].T.contiguous()
    if "topk_threshold" in weights:
        weights["threshold"] = weights.pop("topk_threshold").expand(len(weights["b_enc"])).clone()
    return weights


def _check_sizes(cfg: Mapping[str, Any], weights: Weights, folder: Path) -> None:
    (d_in, d_sae), d_out = weights["W_enc"].shape, weights["W_dec"].shape[1]
    for key, size in (("d_in", d_in), ("d_sae", d_sae), ("d_out", d_out)):
        if cfg.get(key, size) != size:
            raise ValueError(
                f"{folder}: {CONFIG} says {key} = {cfg[key]!r}, but the weights have {size}: two SAEs are mixed"
            )


def _on_raw_rows(weights: Weights, cfg: Mapping[str, Any], folder: Path, given: float | None) -> Weights:
    """The weights with everything fixed folded in, in the order that gives SAELens' own latents.

    A TopK of the newer kind ranks latents by their value times their decoder row's length, which is the same as a decoder
    with rows of length 1. A threshold that BatchTopK learned is in those units already.
    """
    how, transcoder = cfg["normalize_activations"], "transcoder" in cfg["architecture"]
    ranked = cfg["architecture"] in _RANKING and bool(cfg.get("rescale_acts_by_decoder_norm"))
    if transcoder and (how != "none" or _subtracts(cfg, transcoder)):
        raise ValueError(
            f"{folder / CONFIG}: a transcoder with normalize_activations {how!r} and apply_b_dec_to_input "
            f"{_subtracts(cfg, transcoder)}; none and false are what SAELens allows"
        )
    if how == "expected_average_only_in":
        scale = _scale(folder, given)
        weights = fold_scale(weights, scale)
        if ranked and "threshold" in weights:
            weights["threshold"] = weights["threshold"] / scale
    if ranked:
        weights = {**fold_decoder_norms(weights), **{key: weights[key] for key in ("threshold",) if key in weights}}
    if how == "covariance_whitening":  # after the ranking: it changes the decoder's norms
        return fold_affine(weights, *_whitening(folder), apply_b_dec_to_input=_subtracts(cfg, transcoder))
    if how not in ("none", "expected_average_only_in", *ROW_NORMS):
        raise ValueError(f"{folder / CONFIG}: normalize_activations {how!r} is not known")
    return weights


def _scale(folder: Path, given: float | None) -> float:
    scale = given
    if scale is None and (folder / SCALER).exists():
        scale = read_config(folder / SCALER).get("scaling_factor")
    if scale is None:
        raise ValueError(
            f"{folder} was trained on rows times a fixed factor (expected_average_only_in) and does not hold it "
            f"({SCALER}): give scaling_factor, which is sqrt(d_in) over the mean norm of the training rows"
        )
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not 0 < scale < float("inf"):
        raise ValueError(f"the scaling factor of {folder} must be a number above 0, got {scale!r}")
    return float(scale)


def _whitening(folder: Path) -> tuple[Tensor, Tensor, Tensor]:
    layout: Layout = {"mean": ("d_in",), "matrix": ("d_in", "d_in"), "inverse_matrix": ("d_in", "d_in")}
    file = folder / WHITENING
    tensors = read_safetensors(file)
    take(tensors, layout, file)  # the checks; the folding wants the float64 of the file
    return tensors["mean"], tensors["matrix"], tensors["inverse_matrix"]


def _k(cfg: Mapping[str, Any], folder: Path) -> int:
    k = cfg.get("k")
    if isinstance(k, bool) or not isinstance(k, int | float) or not float(k).is_integer():
        raise ValueError(f"{folder / CONFIG}: a topk SAE needs k, a whole number, got {k!r}")
    return int(k)


# -------------------------------------------------------------------------------------------------- before version 6


_UNCHANGED = (
    "apply_b_dec_to_input", "d_in", "d_sae", "d_out", "dtype", "k", "rescale_acts_by_decoder_norm",
)  # fmt: skip
"""Settings that mean the same in both forms; the last one is read wherever it stands, as SAELens does."""


def _modern(cfg: dict[str, Any], path: Path) -> dict[str, Any]:
    """The settings in the form of version 6. ValueError for an old option that has no such form."""
    metadata = cfg.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise ValueError(f"{path}: metadata is {metadata!r}, not an object")
    version = str(metadata.get("sae_lens_version") or cfg.get("sae_lens_version") or "")
    major = re.match(r"(\d+)\.", version)
    if major and int(major[1]) >= 6:
        return cfg
    renamed = {
        "hook_point": "hook_name",
        "hook_point_head_index": "hook_head_index",
        "activation_fn": "activation_fn_str",
    }
    old = {renamed.get(key, key): value for key, value in cfg.items()}
    if old.get("finetuning_scaling_factor"):
        raise ValueError(f"{path}: finetuning_scaling_factor is on, which SAELens itself no longer reads")
    new = {key: old[key] for key in _UNCHANGED if key in old}
    new["architecture"] = old.get("architecture", "standard")
    activation = old.get("activation_fn_str", "relu")
    if activation == "topk":
        options = old.get("activation_fn_kwargs")
        new["architecture"], new["k"] = "topk", options.get("k") if isinstance(options, dict) else old.get("k")
    elif activation != "relu":
        raise ValueError(f"{path}: the activation function {activation!r} is not relu or topk")
    scaled = old.get("normalize_activations") or "none"
    new["normalize_activations"] = "expected_average_only_in" if scaled is True else scaled
    # SAELens itself loses what stands under metadata here; a name of a place is worth keeping.
    new["metadata"] = {**metadata, **{key: old[key] for key in KEPT if key in old}}
    return new
