"""Write an SAE as a SAELens 6 folder: cfg.json, sae_weights.safetensors, and sparsity.safetensors for known densities.

The weights go out as they are, for they hold every scale already; so `normalize_activations` is "none", but for an SAE
of normalised rows. A folder appears whole or not at all.
"""

import os
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from safetensors.torch import save_file
from torch import Tensor

from interp import __version__
from interp.artifact import atomic_folder, write_json
from interp.sae.formats.saelens import CONFIG, KEPT, NO_DENSITY, SPARSITY, WEIGHTS
from interp.sae.model import SAE

VERSION = "6.20.0"
"""The version of SAELens whose form the folder has; without one of at least 6 SAELens takes it for the old form. Who wrote
it stands in `exported_by`."""

_NAMES = {
    ("relu", False, False): "standard",
    ("topk", False, False): "topk",
    ("jumprelu", False, False): "jumprelu",
    ("gated", False, False): "gated",
    ("relu", True, False): "transcoder",
    ("relu", True, True): "skip_transcoder",
    ("jumprelu", True, False): "jumprelu_transcoder",
    ("jumprelu", True, True): "jumprelu_skip_transcoder",
}
"""(our architecture, whether a transcoder, whether with a skip path) -> SAELens' architecture."""


def save_saelens(
    sae: SAE,
    path: str | os.PathLike[str],
    *,
    model_name: str | None = None,
    context_size: int | None = None,
    prepend_bos: bool | None = None,
    density: Float[Tensor, " latent"] | None = None,
) -> Path:
    """Write a folder that SAELens' `SAE.load_from_disk` reads, with the same reconstructions.

    Args:
        sae: the SAE or transcoder.
        path: the folder to make; it must not exist, or be empty.
        model_name: name of the model by which SAELens loads it.
        context_size: tokens of a text that the SAE was trained on.
        prepend_bos: whether those texts begin with a beginning-of-sequence token.
        density: share of the rows in which each latent fires, for sparsity.safetensors.

    Returns:
        The folder.

    Raises:
        ValueError: a crosscoder, or another SAE that SAELens has no form for; weights or densities that are not usable;
            a folder that is there already.
    """
    name = saelens_architecture(sae)
    tensors = _tensors(sae, name)
    if density is not None:
        _check_density(density, sae)
    given = {"model_name": model_name, "context_size": context_size, "prepend_bos": prepend_bos}
    with atomic_folder(path) as folder:
        write_json(folder / CONFIG, _config(sae, name, {key: v for key, v in given.items() if v is not None}))
        save_file(tensors, folder / WEIGHTS)
        if density is not None:
            logs = (density.detach().cpu().float() + NO_DENSITY).log10().contiguous()
            save_file({"sparsity": logs}, folder / SPARSITY)
    return Path(path)


def saelens_architecture(sae: SAE) -> str:
    """SAELens' name for what this SAE is. ValueError where it has none."""
    if len(sae.sites) > 1 or len(sae.targets) > 1:
        raise ValueError(f"SAELens has no crosscoders, and this SAE reads {', '.join(sae.sites)}")
    name = _NAMES.get((sae.architecture, sae.is_transcoder, sae.W_skip is not None))
    if name is None:
        raise ValueError(
            f"SAELens has no transcoder of the architecture {sae.architecture!r}; relu and jumprelu are what it has. Of "
            "those that are trained here the kinds batchtopk, matryoshka, jumprelu and standard can be exported; SAE.save "
            "keeps any"
        )
    return name


def _tensors(sae: SAE, name: str) -> dict[str, Tensor]:
    tensors = dict(sae.state_dict())
    if "transcoder" in name and sae.apply_b_dec_to_input:  # SAELens never takes b_dec off a transcoder's input
        tensors["b_enc"] = tensors["b_enc"] - tensors["b_dec"] @ tensors["W_enc"]
    if name == "gated":
        tensors["b_gate"] = tensors.pop("b_enc")
    if "W_skip" in tensors:
        tensors["W_skip"] = tensors["W_skip"].T
    owned = {key: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for key, tensor in tensors.items()}
    bad = [key for key, tensor in owned.items() if not bool(tensor.isfinite().all())]
    if bad:
        raise ValueError(f"NaN or infinity in {', '.join(bad)}: such an SAE is not usable, so it is not saved")
    return owned


def _config(sae: SAE, name: str, given: dict[str, Any]) -> dict[str, Any]:
    imported = sae.card.get("imported", {})
    hook = sae.site
    cfg: dict[str, Any] = {
        "architecture": name,
        "d_in": sae.d_in,
        "d_sae": sae.n_latents,
        "dtype": str(sae.W_enc.dtype).removeprefix("torch."),
        "device": "cpu",
        "apply_b_dec_to_input": sae.apply_b_dec_to_input and "transcoder" not in name,
        "normalize_activations": imported.get("row_norm") or "none",
        # Our rows of z are [head d_head] flattened, as SAELens flattens what it is given.
        "reshape_activations": "hook_z" if hook is not None and hook.endswith("hook_z") else "none",
    }
    if name == "topk":
        cfg |= {"k": sae.k, "rescale_acts_by_decoder_norm": False}
    if "transcoder" in name:
        cfg["d_out"] = sae.d_out
    kept = {key: value for key, value in imported.get("metadata", {}).items() if key in KEPT}
    places = {"hook_name": hook, "hook_name_out": sae.targets[0] if sae.targets != sae.sites else None}
    ours = {"version": __version__, "model": sae.card.get("model"), "config": sae.card.get("config")}
    cfg["metadata"] = {
        **kept,
        **{key: value for key, value in places.items() if value is not None},
        **given,
        "sae_lens_version": VERSION,
        "exported_by": f"interp {__version__}",
        "interp": ours,
    }
    cfg["metadata"].setdefault("sae_lens_training_version", None)
    return cfg


def _check_density(density: Tensor, sae: SAE) -> None:
    if density.shape != (sae.n_latents,):
        raise ValueError(
            f"density has the shape {list(density.shape)}, one share for each of {sae.n_latents} latents is wanted"
        )
    if not bool(((density >= 0) & (density <= 1)).all()):
        raise ValueError("a density is a share of rows, between 0 and 1; some are not")
