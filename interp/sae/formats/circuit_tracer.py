"""circuit-tracer's transcoders: one safetensors file for each layer, `layer_3.safetensors`, and a config.yaml beside them.

W_enc stands as [latent d], as a linear layer's; W_dec as [latent d], so that only the first is transposed here. W_skip
is applied to x as its transpose. With `activation_function.threshold` it is a JumpReLU, with `k` a TopK, else a ReLU.
"""

import os
import re
from pathlib import Path

from torch import Tensor

from interp.sae.formats.building import build_sae, known_places
from interp.sae.formats.reading import Layout, dtype_name, read_safetensors, take
from interp.sae.model import SAE

CONFIG = "config.yaml"

LAYOUT: Layout = {"W_enc": ("latent", "d"), "b_enc": ("latent",), "W_dec": ("latent", "d"), "b_dec": ("d",)}
_SKIP: Layout = {"W_skip": ("d", "d")}
_THRESHOLD: Layout = {"threshold": ("latent",)}
_RENAMED = {"activation_function.threshold": "threshold", "activation_function.k": "k"}


def load_circuit_tracer(path: str | os.PathLike[str], *, site: str | None = None, target: str | None = None) -> SAE:
    """Read the transcoder of one layer.

    Args:
        path: the file of the layer.
        site: what it reads. Where it is not given, config.yaml's feature_input_hook and the layer in the file's name tell
            it, as far as there is such a site here.
        target: what it writes; else by feature_output_hook.

    Raises:
        ValueError: a file that is missing, damaged, or holds other tensors, such as a layer of a cross-layer transcoder.
    """
    file = Path(path)
    found = read_safetensors(file)
    tensors: dict[str, Tensor] = {_RENAMED.get(name, name): tensor for name, tensor in found.items()}
    if any(re.fullmatch(r"W_(enc|dec)_\d+", name) for name in tensors):
        raise ValueError(
            f"{file} is a layer of a cross-layer transcoder, which writes to several layers; no SAE does here"
        )
    layout = dict(LAYOUT)
    if "W_skip" in tensors:
        layout |= _SKIP
    if "threshold" in tensors:
        layout |= _THRESHOLD
        tensors["threshold"] = tensors["threshold"].flatten()  # some files have [1 latent]
    weights = take(tensors, layout, file, ignored=["k"])
    weights["W_enc"] = weights["W_enc"].T.contiguous()
    if "W_skip" in weights:
        weights["W_skip"] = weights["W_skip"].T.contiguous()
    k = int(tensors["k"]) if "k" in tensors and tensors["k"].numel() == 1 else None
    kind = "jumprelu" if "threshold" in weights else "topk" if k is not None else "standard"
    return build_sae(
        weights,
        file,
        format="circuit_tracer",
        kind=kind,
        architecture="relu" if kind == "standard" else kind,
        apply_b_dec_to_input=False,
        places=known_places((site, target), _hooks(file), transcoder=True),
        transcoder=True,
        k=k,
        details={"architecture": kind, "dtype": dtype_name(tensors)},
    )


def _hooks(file: Path) -> tuple[str | None, str | None]:
    """Names of what is read and written. Of config.yaml only these two lines are read, so it takes no YAML reader."""
    config, layer = file.with_name(CONFIG), re.search(r"(\d+)$", file.stem)
    if layer is None or not config.is_file():
        return None, None
    text = config.read_text(encoding="utf-8", errors="replace")
    hooks = [re.search(rf"^feature_{way}_hook:\s*[\"']?([\w.]+)", text, re.MULTILINE) for way in ("input", "output")]
    named = [f"blocks.{layer[1]}.{found[1]}" if found else None for found in hooks]
    return named[0], named[1]
