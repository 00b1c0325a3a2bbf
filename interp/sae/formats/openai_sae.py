"""OpenAI's sparse autoencoders: one .pt file with a state dictionary.

pre = (x - pre_bias) encoder.weight^T + latent_bias; both matrices are linear layers', so both are transposed here. The
file names its activation. A ReLU one (v1, v4) reads raw rows; a TopK one (v5) reads rows that are layer-normalised one
by one, which the file does not say: the library's loader decides it by the activation, and so does this one.

Gao et al. 2024, https://arxiv.org/abs/2406.04093.
"""

import os
from pathlib import Path
from typing import Any

from interp.sae.formats.building import build_sae, known_places
from interp.sae.formats.normalized import check_row_norm
from interp.sae.formats.reading import Layout, dtype_name, read_pickle, take
from interp.sae.model import SAE

LAYOUT: Layout = {
    "pre_bias": ("d",),
    "encoder.weight": ("latent", "d"),
    "latent_bias": ("latent",),
    "decoder.weight": ("d", "latent"),
}
_NOT_READ = (
    "activation",
    "activation_state_dict",
    "stats_last_nonzero",
    "latents_activation_frequency",
    "latents_mean_square",
)


def load_openai_sae(path: str | os.PathLike[str], *, site: str | None = None, normalized: bool = False) -> SAE:
    """Read an autoencoder of OpenAI's sparse_autoencoder.

    Args:
        path: the .pt file.
        site: what it reads; the file does not say it.
        normalized: read a TopK one as an SAE of normalised rows (`normalize_rows(x, "layer_norm")`).

    Raises:
        ValueError: a file that is missing or damaged or holds code (not run), another activation, or a TopK one without
            `normalized`.
    """
    file = Path(path)
    state = read_pickle(file)
    activation = state.get("activation", "ReLU")
    if activation not in ("ReLU", "TopK"):
        raise ValueError(f"{file} has the activation {activation!r}; ReLU and TopK are what can be read")
    found = take(state, LAYOUT, file, ignored=_NOT_READ)
    topk = activation == "TopK"
    k = _k(state.get("activation_state_dict"), file) if topk else None
    if topk:
        check_row_norm("layer_norm", normalized, file)
    weights = {
        "W_enc": found["encoder.weight"].T.contiguous(),
        "b_enc": found["latent_bias"],
        "W_dec": found["decoder.weight"].T.contiguous(),
        "b_dec": found["pre_bias"],
    }
    return build_sae(
        weights,
        file,
        format="openai",
        kind="topk" if topk else "standard",
        architecture="topk" if topk else "relu",
        apply_b_dec_to_input=True,
        places=known_places((site, None), (None, None), transcoder=False),
        k=k,
        details={"architecture": activation, "dtype": dtype_name(state), "row_norm": "layer_norm" if topk else None},
    )


def _k(activation: Any, file: Path) -> int:
    settings = activation if isinstance(activation, dict) else {}
    k, after = settings.get("k"), settings.get("postact_fn", "ReLU")
    if isinstance(k, bool) or not isinstance(k, int):
        raise ValueError(f"{file} is a TopK autoencoder and does not say k (activation_state_dict.k is {k!r})")
    if after != "ReLU":
        raise ValueError(f"{file}: after TopK comes {after!r}, so latents may be negative; here they are at least 0")
    return k
