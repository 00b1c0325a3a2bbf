"""sparsify folders (EleutherAI), one for each hook point: cfg.json and sae.safetensors.

`encoder.weight` is a linear layer's, [latent d_in]; `W_dec` is a parameter and stands as [latent d_in] as well, so that
one of the two is transposed here and the other is not. A TopK of the positive pre-activations; a transcoder does not
take b_dec off its input; `W_skip` is applied to x as its transpose.
"""

import os
import re
from pathlib import Path
from typing import Any

from interp.sae.formats.building import build_sae, known_places
from interp.sae.formats.reading import Layout, dtype_name, read_config, read_safetensors, take
from interp.sae.model import SAE

CONFIG = "cfg.json"
WEIGHTS = "sae.safetensors"

LAYOUT: Layout = {
    "encoder.weight": ("latent", "d"),
    "encoder.bias": ("latent",),
    "W_dec": ("latent", "d"),
    "b_dec": ("d",),
}
_SKIP: Layout = {"W_skip": ("d", "d")}

REFUSED = {
    "signed": "its latents may be negative",
    "matching_pursuit": "it encodes in steps, not by one product",
    "slice_encoder": "each active latent comes from a part of its own of the encoder",
    "slice_decoder": "each active latent writes through a part of its own of the decoder",
    "embed_skip": "it reads the embedding beside its own site",
    "gram_lookup": "it adds a table of means by the tokens before",
}
"""Options that change what it computes into something that no `SAE` is."""


def load_sparsify(path: str | os.PathLike[str], *, site: str | None = None, target: str | None = None) -> SAE:
    """Read a sparse coder or transcoder that sparsify trained.

    Args:
        path: the folder of one hook point.
        site: what it reads. Where it is not given, a folder named as a block ("layers.5") means the stream after it.
        target: what a transcoder writes.

    Raises:
        ValueError: a file that is missing or damaged, or an option that this library's SAE cannot be (groupmax, signed
            latents ...).
    """
    folder = Path(path)
    cfg = read_config(folder / CONFIG)
    activation = cfg.get("activation", "topk")
    if activation == "groupmax":
        raise ValueError(
            f"{folder} is a groupmax coder: the largest latent of each of k groups fires, not the k largest of all, which "
            "no SAE does here"
        )
    if activation != "topk":
        raise ValueError(f"{folder / CONFIG}: the activation {activation!r} is not known; topk is what can be read")
    for option, why in REFUSED.items():
        if cfg.get(option):
            raise ValueError(f"{folder / CONFIG}: {option} is on ({why}), which no SAE does here")
    transcoder, skip = bool(cfg.get("transcode")), bool(cfg.get("skip_connection"))
    tensors = read_safetensors(folder / WEIGHTS)
    found = take(tensors, {**LAYOUT, **_SKIP} if skip else LAYOUT, folder / WEIGHTS)
    weights = {
        "W_enc": found["encoder.weight"].T.contiguous(),
        "b_enc": found["encoder.bias"],
        "W_dec": found["W_dec"],
        "b_dec": found["b_dec"],
    }
    if skip:
        weights["W_skip"] = found["W_skip"].T.contiguous()
    return build_sae(
        weights,
        folder / WEIGHTS,
        format="sparsify",
        kind="topk",
        architecture="topk",
        apply_b_dec_to_input=not transcoder,
        places=known_places((site, target), (None if transcoder else _site(folder), None), transcoder=transcoder),
        transcoder=transcoder,
        k=_k(cfg, folder),
        details={
            "architecture": "transcoder" if transcoder else "sae",
            "dtype": dtype_name(tensors),
            "hookpoint": folder.name,
        },
    )


def _k(cfg: dict[str, Any], folder: Path) -> int:
    k = cfg.get("k")
    if isinstance(k, bool) or not isinstance(k, int):
        raise ValueError(f"{folder / CONFIG} needs k, a whole number, got {k!r}")
    return k


def _site(folder: Path) -> str | None:
    found = re.fullmatch(r"(?:\w+\.)*(?:layers|h)[._](\d+)", folder.resolve().name)
    return f"resid_post:{found[1]}" if found else None
