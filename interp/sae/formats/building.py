"""From tensors of another library to an SAE of this one: where it reads and writes, its card, and folded scales.

`Weights` are tensors by the names of `SAE`'s arguments, in its orientation: W_enc [d_in latent], W_dec [latent d_out],
W_skip [d_in d_out].
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from interp import sites
from interp.artifact import provenance, sha256_file
from interp.sae.model import SAE

Weights = dict[str, Tensor]


def build_sae(
    weights: Weights,
    path: Path,
    *,
    format: str,
    kind: str,
    architecture: str,
    apply_b_dec_to_input: bool,
    places: tuple[str | None, str | None],
    transcoder: bool = False,
    k: int | None = None,
    details: Mapping[str, Any] | None = None,
) -> SAE:
    """The SAE, with a card that tells where it comes from.

    Args:
        weights: tensors by the names of SAE's arguments.
        path: the file that they are from.
        format: name of the format.
        kind: what it was trained as, for the card.
        architecture: of the SAE.
        apply_b_dec_to_input: of the SAE.
        places: names of what it reads and writes, None where that is not known; see `known_places`.
        transcoder: whether it writes another place than it reads, also where the places are not known.
        k: for topk.
        details: more for the card's `imported`.

    Raises:
        ValueError: k outside 1 ... latents.
    """
    d_in, d_out = weights["W_enc"].shape[0], weights["W_dec"].shape[1]
    site, target = places
    card: dict[str, Any] = {"site": site, "model": None, "typical_norm": None, "config": {"kind": kind}}
    if site is not None:
        card["sites"], card["targets"], card["widths"] = [site], [target or site], {site: d_in}
        if target is not None:
            card["widths"][target] = d_out
    card["imported"] = {
        "format": format,
        "file": path.name,
        "sha256": sha256_file(path),
        "transcoder": transcoder,
        **(details or {}),
    }
    card["provenance"] = provenance(model=None)
    return SAE(**weights, k=k, architecture=architecture, apply_b_dec_to_input=apply_b_dec_to_input, card=card)  # pyright: ignore[reportArgumentType]


def known_places(
    given: tuple[str | None, str | None], told: tuple[str | None, str | None], *, transcoder: bool
) -> tuple[str | None, str | None]:
    """Full names of what is read and, for a transcoder, written: as the caller says, else as the file does.

    Another library's name for a place counts as unknown where this one has no such place: a wrong place would be worse.
    A transcoder with one place known and the other not would look like an SAE, so there both are unknown.

    Raises:
        ValueError: a name from the caller that names no single site, or a target for an SAE.
    """
    named = [sites.full_name(mine) if mine is not None else _site_or_none(its) for mine, its in zip(given, told)]
    if not transcoder:
        if given[1] is not None:
            raise ValueError(f"target={given[1]!r} is for transcoders; this is an SAE, which writes what it reads")
        return named[0], None
    if given != (None, None) and None in named:
        raise ValueError(
            "this is a transcoder, and the file does not name what it reads and writes: give site and target"
        )
    return (None, None) if None in named or named[0] == named[1] else (named[0], named[1])


def _site_or_none(name: str | None) -> str | None:
    if not isinstance(name, str):
        return None
    try:
        return sites.full_name(name)
    except ValueError:
        return None


def fold_decoder_norms(weights: Weights) -> Weights:
    """The same function with decoder rows of length 1: latents are in units of what they add to the output.

    For `relu`, `jumprelu` and `gated`, and for `topk` where the file ranks latents by these units. Rows of zeros stay.
    """
    norms = weights["W_dec"].norm(dim=1)
    norms = torch.where(norms > 0, norms, 1.0)
    scaled = {name: weights[name] * norms for name in ("W_enc", "b_enc", "threshold", "b_mag") if name in weights}
    return {**weights, **scaled, "W_dec": weights["W_dec"] / norms[:, None]}


def fold_scale(weights: Weights, scale: float) -> Weights:
    """The function of raw rows, where the file's is of rows times `scale` and its output is divided by it again."""
    return {
        **weights,
        "W_enc": weights["W_enc"] * scale,
        "W_dec": weights["W_dec"] / scale,
        "b_dec": weights["b_dec"] / scale,
    }


def fold_affine(
    weights: Weights,
    mean: Float[Tensor, " d"],
    matrix: Float[Tensor, "d d"],
    inverse: Float[Tensor, "d d"],
    *,
    apply_b_dec_to_input: bool,
) -> Weights:
    """The function of raw rows x, where the file's is of z = (x - mean) matrix and its output is mapped back.

    Products are made in float64: the inverse of a whitening matrix has large entries.
    """
    wide = {name: tensor.double() for name, tensor in weights.items()}
    mean, matrix, inverse = mean.double(), matrix.double(), inverse.double()
    wide["W_enc"] = matrix @ wide["W_enc"]
    if not apply_b_dec_to_input:  # or else the new b_dec takes the mean off
        shift = mean @ wide["W_enc"]
        wide["b_enc"] = wide["b_enc"] - shift
        if "b_mag" in wide:
            wide["b_mag"] = wide["b_mag"] - shift * wide["r_mag"].exp()
    wide["W_dec"] = wide["W_dec"] @ inverse
    wide["b_dec"] = wide["b_dec"] @ inverse + mean
    return {name: tensor.float() for name, tensor in wide.items()}


def the_only_file(path: str | os.PathLike[str], *names: str) -> Path:
    """`path` itself where it is a file, else the one of these names in the folder. ValueError where there is none."""
    place = Path(path)
    if place.is_file():
        return place
    found = [place / name for name in names if (place / name).is_file()]
    if len(found) != 1:
        count = "none" if not found else "more than one"
        raise ValueError(f"{place} is no file, and as a folder it holds {count} of: {', '.join(names)}")
    return found[0]
