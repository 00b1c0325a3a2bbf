"""Take directions out of everything that writes to the residual stream: the places where that is done, or in the weights.

The stream is a sum: embeddings + attention and MLP of each layer. If no term has a part along a direction d, no reader ever
sees one. Two forms of that, equal up to rounding (Arditi et al. 2024, arXiv 2406.11717):

1. Directional ablation while the model runs: at each of `write_sites`, h <- h - (h . d) d. That is
   `Steer(v, kind="ablate", site="writes")`.
2. `orthogonalise_weights`: the same for the rows of every embedding, and for each output row and bias of every matrix whose
   output is a term of the sum. The new model has no hooks: it runs at full speed and anywhere, and can be compared with the
   old one as any two models.

Norms decide which forms a model has. One before a reader stays as it is. One between a matrix and the stream (`post`,
`sandwich`) has a gain of its own, which makes a vector without d into one with it: the first form alone can help. And where
the stream itself is normed (`post_ln`) it is no sum of what is written, and neither form is possible.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import xxhash
from jaxtyping import Float64
from torch import Tensor

from interp import sites as site_names
from interp.intervene.targets import Directions
from interp.model import HookedTransformer, ModelConfig
from interp.model.position import sinusoids
from interp.model.processed import rebuilt

EMBEDDINGS = ("embed", "pos_embed", "token_type_embed")
ADDED = ("attn_out", "mlp_out")
SAME = 1e-5
"""A singular value of unit directions below this is rounding of fp32: they span one dimension fewer."""


def write_sites(model: HookedTransformer) -> list[str]:
    """Full names of the sites whose values are added to the residual stream, in the order of computation.

    The embeddings (or the norm of their sum, where that is what enters the stream), and each layer's attn_out and mlp_out,
    which stand after the norm of a `post` or `sandwich` arrangement. Every value of the stream is a sum of these.

    Raises:
        ValueError: the stream itself is normed, so it is no such sum.
    """
    cfg = model.cfg
    if _norms_stream(cfg):
        raise ValueError(
            f"{cfg.name} norms its stream (norm_placement='post_ln'): the gain and bias of ln1 and ln2 write to it too, and "
            "between ln1 and the MLP there is no site. Name the places where the stream is read instead: 'resid_pre:*' for "
            "attention and 'mlp_in:*' for the MLPs"
        )
    kinds = (*(("full_embed",) if cfg.embed_norm == "sum" else EMBEDDINGS), *ADDED)
    return [name for name in model.site_names if site_names.kind_of(name).kind in kinds]


@torch.no_grad()
def orthogonalise_weights(model: HookedTransformer, directions: Any) -> HookedTransformer:
    """A separate model whose weights cannot write along some directions; the given one stays as it is.

    Its stream has no part along them, at any layer and token, but for the rounding of its dtype. What changes: embeddings of
    tokens, positions and token types, output matrices and biases of attention, MLPs and experts. What stays: everything that
    reads the stream. So an unembedding that is the embedding's transpose becomes a matrix of its own; a norm of the token
    embedding alone (BLOOM) is worked into the embedding; sinusoidal positions become a table. Computed in fp64 and rounded
    once; `note` says what was done.

    Args:
        model: with floating-point weights.
        directions: a steering vector or anything else with a `direction`, steering vectors of several sites, a tensor
            [d_model] or [n d_model], or a list of these. Lengths do not matter; several span a subspace, which is taken out
            whole.

    Raises:
        ValueError: directions that are no vectors of the stream, that are zero or not finite, or that span all of it; int8
            weights; a norm between the weights and the stream.
    """
    cfg, basis = model.cfg, _basis(directions, model)
    why = why_no_orthogonal_weights(cfg)
    if why is not None:
        raise ValueError(f"the weights of {cfg.name} cannot be made orthogonal to a direction: {why}")
    state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    odd = [name for name, tensor in state.items() if not tensor.is_floating_point()]
    if odd:
        raise ValueError(f"{cfg.name} has integer weights ({odd[0]}): load it in float32, and change that")
    if model.unembed is None:
        state["unembed.weight"] = state["embed.weight"]
    changes: dict[str, Any] = {"tie_embeddings": False}
    if cfg.embed_norm == "token":
        state["embed.weight"] = _normed_embedding(model)
        changes |= {"embed_norm": "none", "embed_scale": None}
    if cfg.positional == "sinusoidal":
        state["pos_embed.weight"] = sinusoids(cfg.n_ctx, cfg.d_model).to(model.device)
        changes["positional"] = "learned"
    for name, weight in state.items():
        axis = _writing_axis(name)
        if axis is not None:
            state[name] = _without(weight, basis, axis)
    spans = f"{len(basis)} direction{'s' if len(basis) > 1 else ''}"
    done = [f"nothing is written along {spans} ({_hash(basis)})"]
    return rebuilt(model, dataclasses.replace(cfg, **changes), state, done)


def why_no_orthogonal_weights(cfg: ModelConfig) -> str | None:
    """Why no change of the weights keeps an architecture from writing along a direction, None if one does."""
    hooked = "take it out while the model runs: Steer(vector, kind='ablate', site='writes')"
    if _norms_stream(cfg):
        return (
            "its stream itself is normed (norm_placement='post_ln'), and ln1 and ln2 write to it by gains of their own; take it "
            "out where the stream is read, by Steer(vector, kind='ablate', site='resid_pre:*') and another one at 'mlp_in:*'"
        )
    if cfg.norm_placement in ("post", "sandwich") and cfg.norm != "none":
        return (
            f"norms stand between them and the stream (norm_placement={cfg.norm_placement!r}), and a gain makes a vector "
            f"without the direction into one with it; {hooked}"
        )
    if cfg.embed_norm == "sum":
        return f"the norm of the summed embeddings writes to the stream, by a gain of its own; {hooked}"
    return None


def _norms_stream(cfg: ModelConfig) -> bool:
    return cfg.norm_placement == "post_ln" and cfg.norm != "none"


# ------------------------------------------------------------------------------------------------------------- weights


def _writing_axis(name: str) -> int | None:
    """The model axis of a weight that writes to the stream: the last of embeddings, the first of the rest; None for others."""
    module = name.rpartition(".")[0]
    if module in ("embed", "pos_embed", "type_embed"):
        return -1
    return 0 if name.startswith("blocks.") and module.endswith((".attn.o", ".down")) else None


def _without(weight: Tensor, basis: Float64[Tensor, "k d_model"], axis: int) -> Float64[Tensor, "..."]:
    """The weight without its part in the subspace, in fp64."""
    wide = weight.double()
    return wide - wide @ basis.T @ basis if axis == -1 else wide - basis.T @ (basis @ wide)


def _normed_embedding(model: HookedTransformer) -> Float64[Tensor, "d_vocab d_model"]:
    """Rows of the embedding as their norm lets them into the stream."""
    norm = model.embed_norm
    assert norm is not None
    assert norm.weight is not None
    assert norm.bias is not None
    rows = model.embed.weight.double() * (model.cfg.embed_scale or 1.0)
    gain, bias = norm.weight.double(), norm.bias.double()
    return torch.nn.functional.layer_norm(rows, (model.cfg.d_model,), gain, bias, norm.eps)


# ---------------------------------------------------------------------------------------------------------- directions


def _basis(directions: Any, model: HookedTransformer) -> Float64[Tensor, "k d_model"]:
    """An orthonormal basis of what the directions span; ValueError for what is no direction of this model's stream."""
    d_model = model.cfg.d_model
    rows = []
    for row in _rows(directions):
        wide = row.detach().to(model.device, torch.float64)
        norm = float(wide.norm())
        if wide.shape != (d_model,):
            raise ValueError(f"a direction here is one of the stream, [{d_model}]; got {list(wide.shape)}")
        if not math.isfinite(norm) or norm == 0:
            raise ValueError(f"a direction must be finite and not zero; one has the norm {norm}")
        rows.append(wide / norm)
    if not rows:
        raise ValueError("there is no direction to take out: give a steering vector, a tensor [d_model], or several")
    if len(rows) == 1:
        return rows[0][None]
    _, sizes, right = torch.linalg.svd(torch.stack(rows), full_matrices=False)
    basis = right[sizes > SAME]
    if len(basis) == d_model:
        raise ValueError(f"{len(rows)} directions span the whole stream of {d_model} dimensions: nothing would be left")
    return basis


def _rows(given: Any) -> Iterator[Tensor]:
    """Each direction among what a user may give."""
    if isinstance(given, np.ndarray):
        given = torch.from_numpy(given)
    if isinstance(given, Tensor):
        if given.ndim not in (1, 2) or not given.is_floating_point():
            raise ValueError(
                f"directions are floating-point numbers [d_model] or [n d_model], got {given.dtype} {list(given.shape)}"
            )
        yield from given.view(-1, given.shape[-1])
    elif isinstance(direction := getattr(given, "direction", None), Tensor):
        _check_place(given)
        yield direction
    elif isinstance(given, Directions):
        for target in given.targets():
            yield from _rows(target)
    elif isinstance(given, Sequence) and not isinstance(given, str):
        for each in given:
            yield from _rows(each)
    else:
        raise ValueError(
            f"directions are steering vectors, or tensors [d_model] or [n d_model]; got {type(given).__name__}"
        )


def _check_place(vector: Any) -> None:
    """ValueError for a vector whose coordinates are known to be others than the stream's."""
    site, head = getattr(vector, "site", None), getattr(vector, "head", None)
    if head is not None:
        raise ValueError(
            f"a direction of head {head} at {site} is none of the stream: multiply it by the head's W_O first"
        )
    if isinstance(site, str) and site_names.kind_of(site).kind.endswith(".normalized"):
        raise ValueError(
            f"{site} has the coordinates of a norm, before its gain, and not those of the stream: fit the direction at a site "
            "of the stream, such as resid_pre"
        )


def _hash(basis: Float64[Tensor, "k d_model"]) -> str:
    """Of the directions, for the note: two models that were changed by the same ones say so."""
    return xxhash.xxh3_64_hexdigest(basis.float().cpu().contiguous().numpy().tobytes())
