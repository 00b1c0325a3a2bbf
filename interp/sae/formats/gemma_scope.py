"""Gemma Scope parameters: params.npz (the first release), or params.safetensors (the second).

JumpReLU on x W_enc + b_enc with raw thresholds; b_dec is not taken off the input. W_enc is [d_in latent] and W_dec
[latent d_out] already. The first release's transcoders have the very same tensors as its SAEs, so only a `target` makes
one of the two; the second release can have a linear path, `affine_skip_connection` [d_in d_out].
"""

import os
import re
from pathlib import Path

from torch import Tensor

from interp.sae.formats.building import build_sae, known_places, the_only_file
from interp.sae.formats.reading import Layout, dtype_name, read_npz, read_safetensors, take
from interp.sae.model import SAE

FILES = ("params.npz", "params.safetensors")

LAYOUT: Layout = {
    "W_enc": ("d_in", "latent"),
    "b_enc": ("latent",),
    "W_dec": ("latent", "d_out"),
    "b_dec": ("d_out",),
    "threshold": ("latent",),
}
_SKIP: Layout = {"W_skip": ("d_in", "d_out")}
_RENAMED = {"w_enc": "W_enc", "w_dec": "W_dec", "affine_skip_connection": "W_skip"}
_PLACES = {"res": "resid_post", "mlp": "mlp_out", "att": "z"}
"""Last word of the first release's repositories -> kind of site."""


def load_gemma_scope(path: str | os.PathLike[str], *, site: str | None = None, target: str | None = None) -> SAE:
    """Read an SAE or transcoder of Gemma Scope.

    Args:
        path: params.npz or params.safetensors, or the folder that holds one.
        site: what it reads; the files do not say it. Where it is not given, a path as the hub has it
            (`gemma-scope-2b-pt-res/layer_20/...`) tells it.
        target: what it writes, for a transcoder.

    Raises:
        ValueError: a file that is missing, damaged, or holds other tensors; parts of a cross-layer transcoder.
    """
    file = the_only_file(path, *FILES)
    found = read_npz(file) if file.suffix == ".npz" else read_safetensors(file)
    tensors: dict[str, Tensor] = {_RENAMED.get(name, name): tensor for name, tensor in found.items()}
    if "W_dec" in tensors and tensors["W_dec"].ndim == 3:
        raise ValueError(
            f"{file} is a layer of a cross-layer transcoder, which writes to several layers; no SAE does here"
        )
    skip = "W_skip" in tensors
    weights = take(tensors, {**LAYOUT, **_SKIP} if skip else LAYOUT, file)
    transcoder = skip or target is not None or len(weights["b_dec"]) != len(weights["W_enc"])
    return build_sae(
        weights,
        file,
        format="gemma_scope",
        kind="jumprelu",
        architecture="jumprelu",
        apply_b_dec_to_input=False,
        places=known_places((site, target), (None if transcoder else _site(file), None), transcoder=transcoder),
        transcoder=transcoder,
        details={"architecture": "jumprelu", "dtype": dtype_name(tensors)},
    )


def _site(file: Path) -> str | None:
    place = file.resolve().as_posix()
    found = re.search(r"gemma-scope-[\w-]*-(res|mlp|att)/(?:.*/)?layer_(\d+)/", place)
    return f"{_PLACES[found[1]]}:{found[2]}" if found and "embedding" not in place else None
