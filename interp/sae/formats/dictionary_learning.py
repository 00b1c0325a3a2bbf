"""dictionary_learning folders: ae.pt and config.json.

config.json names the class of the dictionary under trainer.dict_class; its kind of training (standard, p-anneal, gated
anneal ...) does not matter then. `encoder.weight` and `decoder.weight` are those of linear layers, so both are
transposed here. For the gated and JumpReLU classes the library reports latents times their decoder row's length, and so
does the SAE that is read.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from interp.sae.formats.building import Weights, build_sae, fold_decoder_norms, known_places
from interp.sae.formats.reading import Layout, dtype_name, logger, read_config, read_pickle, take
from interp.sae.model import SAE

CONFIG = "config.json"
WEIGHTS = "ae.pt"

_LINEAR: Layout = {"encoder.weight": ("latent", "d"), "encoder.bias": ("latent",), "decoder.weight": ("d", "latent")}
_PLAIN: Layout = {"W_enc": ("d", "latent"), "b_enc": ("latent",), "W_dec": ("latent", "d"), "b_dec": ("d",)}
_GATED: Layout = {
    "encoder.weight": ("latent", "d"),
    "decoder.weight": ("d", "latent"),
    "gate_bias": ("latent",),
    "mag_bias": ("latent",),
    "r_mag": ("latent",),
    "decoder_bias": ("d",),
}

LAYOUTS: Mapping[str, Layout] = {
    "AutoEncoder": {**_LINEAR, "bias": ("d",)},
    "AutoEncoderNew": {**_LINEAR, "decoder.bias": ("d",)},
    "GatedAutoEncoder": _GATED,
    "AutoEncoderTopK": {**_LINEAR, "b_dec": ("d",)},
    "BatchTopKSAE": {**_LINEAR, "b_dec": ("d",), "threshold": ()},
    "MatryoshkaBatchTopKSAE": {**_PLAIN, "threshold": ()},
    "JumpReluAutoEncoder": {**_PLAIN, "threshold": ("latent",)},
}
"""Class of the dictionary -> names and axes of its tensors."""

_KINDS = {
    "AutoEncoder": ("standard", "relu"),
    "AutoEncoderNew": ("standard", "relu"),
    "GatedAutoEncoder": ("gated", "gated"),
    "AutoEncoderTopK": ("topk", "topk"),
    "BatchTopKSAE": ("batchtopk", "jumprelu"),
    "MatryoshkaBatchTopKSAE": ("matryoshka", "jumprelu"),
    "JumpReluAutoEncoder": ("jumprelu", "jumprelu"),
}
_RENAMED = {
    "encoder.bias": "b_enc",
    "bias": "b_dec",
    "decoder.bias": "b_dec",
    "decoder_bias": "b_dec",
    "gate_bias": "b_enc",
    "mag_bias": "b_mag",
}
_NOT_READ = ("k", "threshold", "group_sizes")
"""Buffers of a training that may be in a file and do not change what its kind computes."""
_KEPT_OFF_INPUT = ("AutoEncoderNew", "JumpReluAutoEncoder")
"""Classes that do not take their decoder's bias off the input."""


def load_dictionary_learning(path: str | os.PathLike[str], *, site: str | None = None) -> SAE:
    """Read a dictionary that the dictionary_learning library trained.

    Args:
        path: the folder with ae.pt and config.json.
        site: what it reads, where config.json's submodule_name does not say it.

    Raises:
        ValueError: a file that is missing or damaged, an ae.pt with code in it (not run), a class of dictionary that is
            not known, or a BatchTopK dictionary without a threshold.
    """
    folder = Path(path)
    trainer = read_config(folder / CONFIG).get("trainer")
    if not isinstance(trainer, dict) or "dict_class" not in trainer:
        raise ValueError(f"{folder / CONFIG} has no trainer.dict_class: dictionary_learning did not write it")
    name = str(trainer["dict_class"])
    if name not in LAYOUTS:
        raise ValueError(f"{folder} holds a dictionary of the class {name!r}; known are {', '.join(LAYOUTS)}")
    state = read_pickle(folder / WEIGHTS)
    state = {key.removeprefix("_orig_mod."): value for key, value in state.items()}  # of a compiled module
    if name == "BatchTopKSAE" and "threshold" not in state:
        raise ValueError(
            f"{folder} holds a BatchTopK dictionary of an old version, without a threshold: which latents fire depends on "
            "the whole batch, so it is no function of a row"
        )
    weights = _ours(take(state, LAYOUTS[name], folder / WEIGHTS, ignored=_NOT_READ))
    kind, architecture = _KINDS[name]
    if kind in ("batchtopk", "matryoshka"):
        if float(weights["threshold"]) < 0:
            logger.warning("%s has not learned a threshold yet (too few steps): every positive latent fires", folder)
        weights["threshold"] = weights["threshold"].expand(len(weights["b_enc"])).clone()
    if kind in ("gated", "jumprelu"):
        weights = fold_decoder_norms(weights)
    return build_sae(
        weights,
        folder / WEIGHTS,
        format="dictionary_learning",
        kind=kind,
        architecture=architecture,
        apply_b_dec_to_input=name not in _KEPT_OFF_INPUT,
        places=known_places((site, None), (_site(trainer), None), transcoder=False),
        k=_k(state, trainer, folder) if kind == "topk" else None,
        details={
            "architecture": name,
            "dtype": dtype_name(state),
            "trainer": {
                key: trainer[key] for key in ("trainer_class", "layer", "lm_name", "submodule_name") if key in trainer
            },
        },
    )


def _ours(found: Mapping[str, Tensor]) -> Weights:
    weights = {_RENAMED.get(name, name): tensor for name, tensor in found.items()}
    if "encoder.weight" in weights:
        weights["W_enc"] = weights.pop("encoder.weight").T.contiguous()
        weights["W_dec"] = weights.pop("decoder.weight").T.contiguous()
    return weights


def _k(state: Mapping[str, Any], trainer: Mapping[str, Any], folder: Path) -> int:
    k = state.get("k", trainer.get("k"))
    k = k.item() if isinstance(k, Tensor) and k.numel() == 1 else k
    if isinstance(k, bool) or not isinstance(k, int):
        raise ValueError(f"{folder} holds a TopK dictionary, and neither of its files says k (got {k!r})")
    return k


def _site(trainer: Mapping[str, Any]) -> str | None:
    """The site that the usual names of submodules mean: `resid_post_layer_8`."""
    places = {"resid_post": "resid_post", "mlp_out": "mlp_out", "attention_out": "attn_out", "attn_out": "attn_out"}
    found = re.fullmatch(r"(\w+)_layer_(\d+)", str(trainer.get("submodule_name")))
    return f"{places[found[1]]}:{found[2]}" if found and found[1] in places else None
