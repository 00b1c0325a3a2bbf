"""The same function with simpler weights: norms folded in, writing and unembedding centred, value biases merged.

Published figures about heads and neurons mostly come from weights that TransformerLens processed so:

1. `fold_ln`: the gain of each norm is multiplied into the maps that read it, and a LayerNorm's bias goes into their
   biases; what these maps read along the mean, which a LayerNorm removed, is taken out of them.
2. `fold_value_biases`: rows of an attention pattern sum to 1, so b_V W_O is one constant vector and joins b_O.
3. `center_writing`: a LayerNorm removes the mean of the stream, so nothing needs to write it.
4. `center_unembed`: the softmax does not see what all logits share.

Log-probabilities stay the same; logits move by a constant with step 4. Each weight is computed in fp64 and rounded once.
"""

import dataclasses
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from interp.model.config import ModelConfig

if TYPE_CHECKING:
    from interp.model.transformer import HookedTransformer

logger = logging.getLogger("interp")
State = dict[str, Tensor]


@torch.no_grad()
def processed(
    model: "HookedTransformer",
    *,
    fold_ln: bool | None = None,
    center_writing: bool | None = None,
    center_unembed: bool | None = None,
    fold_value_biases: bool | None = None,
) -> "HookedTransformer":
    """A separate model that computes the same log-probabilities with processed weights; the given one stays as it is.

    Args:
        model: with floating-point weights.
        fold_ln: fold norms into the maps that read them. Norms that write to the stream stay.
        center_writing: take the mean out of what is written to the stream, which then has mean 0 everywhere.
        center_unembed: take the mean over the vocabulary out of W_U and b_U.
        fold_value_biases: merge b_V into b_O.

    None, the default of each, does what the architecture allows.

    Raises:
        ValueError: a step was asked for that would change what the model computes; the message says why.
    """
    cfg = model.cfg
    if not all(tensor.is_floating_point() for tensor in model.state_dict().values()):
        raise ValueError(f"{cfg.name} has integer weights: load it in float32, and process that")
    if model.dtype not in (torch.float32, torch.float64):
        logger.warning(
            "%s: processed weights are rounded to %s, and log-probabilities move by as much", cfg.name, model.dtype
        )
    fold = _decide("fold_ln", fold_ln, why_no_fold_ln(cfg))
    writing = _decide("center_writing", center_writing, why_no_center_writing(cfg))
    unembedding = _decide("center_unembed", center_unembed, why_no_center_unembed(cfg))
    state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    if model.unembed is None and (fold or writing or unembedding):
        state["unembed.weight"] = state["embed.weight"]
    if fold:
        _fold_norms(state, cfg)
    values = fold_value_biases is not False and "blocks.0.attn.v.bias" in state
    if values:
        for layer in range(cfg.n_layers):
            _fold_value_bias(state, f"blocks.{layer}.attn", cfg)
    if writing:
        _center_writing(state)
    if unembedding:
        _center(state, "unembed.weight", 0)
        _center(state, "unembed_bias", 0)
    new = dataclasses.replace(
        cfg,
        tie_embeddings="unembed.weight" not in state,
        qkv_bias=cfg.qkv_bias
        or any(name.endswith(("attn.q.bias", "attn.q_down.bias", "attn.kv_down.bias")) for name in state),
        out_bias="blocks.0.attn.o.bias" in state,
        mlp_bias=cfg.mlp_bias or any(name.endswith(("mlp.up.bias", "mlp.down.bias")) for name in state),
        unembed_bias="unembed_bias" in state,
    )
    done = {"fold_ln": fold, "center_writing": writing, "center_unembed": unembedding, "fold_value_biases": values}
    return rebuilt(model, new, state, [name for name, yes in done.items() if yes])


# ------------------------------------------------------------------------------------------------------ what is possible


def why_no_fold_ln(cfg: ModelConfig) -> str | None:
    """Why the norms of an architecture cannot be folded, None if they can."""
    if cfg.norm == "none":
        return "this model has no norms"
    if cfg.norm_placement == "post_ln" or (cfg.norm_placement == "post" and not cfg.final_norm):
        return "its norms write to the stream, and their gain cannot move into the maps that read it"
    if cfg.norm == "layer" and cfg.experts is not None:
        return "its router has no bias that could take up a LayerNorm's"
    return None


def why_no_center_writing(cfg: ModelConfig) -> str | None:
    """Why the mean of the stream matters in an architecture, None if it does not."""
    if cfg.norm != "layer":
        return f"only a LayerNorm removes the mean of what it reads, and the norms of this model are {cfg.norm!r}"
    if cfg.norm_placement != "pre":
        return f"its norms write to the stream ({cfg.norm_placement}), and what they write has a mean"
    if not cfg.final_norm:
        return "without a final norm the unembedding reads the mean"
    if cfg.embed_norm != "none":
        return "the norm of its embedding writes to the stream, and what it writes has a mean"
    if cfg.positional == "sinusoidal":
        return "its sinusoidal positions are computed, not weights, and have a mean"
    return None


def why_no_center_unembed(cfg: ModelConfig) -> str | None:
    """Why a constant on all logits matters in an architecture, None if it does not."""
    if cfg.final_softcap is not None:
        return "its soft-cap bends logits by their size, so a constant on all of them changes the probabilities"
    return None


def _decide(step: str, asked: bool | None, why_not: str | None) -> bool:
    if asked and why_not is not None:
        raise ValueError(f"{step}=True is impossible: {why_not}. Leave it out to do what applies")
    return why_not is None if asked is None else asked


# ------------------------------------------------------------------------------------------------------------- the steps


def _fold_norms(state: State, cfg: ModelConfig) -> None:
    """Step 1, in every block and before the unembedding."""
    if cfg.norm_placement in ("pre", "sandwich"):
        for layer in range(cfg.n_layers):
            block = f"blocks.{layer}"
            attention = ("q_down", "kv_down") if cfg.latent is not None else ("q", "k", "v")
            readers = [f"{block}.attn.{part}" for part in attention]
            if cfg.latent is not None and cfg.latent.q_rank is None:
                readers[0] = f"{block}.attn.q"
            mlp = _mlp_readers(state, block)
            _fold_norm(state, f"{block}.ln1", readers + (mlp if cfg.shared_norm else []), cfg)
            if f"{block}.ln2.weight" in state:
                _fold_norm(state, f"{block}.ln2", mlp, cfg)
    if cfg.final_norm:
        _fold_norm(state, "ln_final", ["mlm.dense" if cfg.mlm_head else "unembed"], cfg)


def _mlp_readers(state: State, block: str) -> list[str]:
    """The maps of a block's MLP, router and experts that read the stream."""
    names = (name.removesuffix(".weight") for name in state if name.startswith(f"{block}.mlp."))
    return [name for name in names if name.endswith((".gate", ".up", ".router"))]


def _fold_norm(state: State, norm: str, readers: Iterable[str], cfg: ModelConfig) -> None:
    """Move one norm's gain and bias into its readers."""
    weight, bias = state[f"{norm}.weight"].double(), state.get(f"{norm}.bias")
    gain = 1.0 + weight if cfg.norm_offset else weight
    for reader in readers:
        matrix = state[f"{reader}.weight"].double()
        if bias is not None:
            name = "unembed_bias" if reader == "unembed" else f"{reader}.bias"
            state[name] = state.get(name, torch.zeros_like(matrix[:, 0])).double() + matrix @ bias.double()
        matrix = matrix * gain
        if cfg.norm == "layer":
            matrix = matrix - matrix.mean(-1, keepdim=True)
        state[f"{reader}.weight"] = matrix.to(state[f"{reader}.weight"].dtype)
    state[f"{norm}.weight"] = torch.zeros_like(weight) if cfg.norm_offset else torch.ones_like(weight)
    if bias is not None:
        state[f"{norm}.bias"] = torch.zeros_like(bias)


def _fold_value_bias(state: State, attn: str, cfg: ModelConfig) -> None:
    """Step 2. Heads of a group share the bias of their values."""
    bias: Float[Tensor, "kv_head d_head"] = state[f"{attn}.v.bias"].double().unflatten(0, (cfg.kv_heads, -1))
    mixed = bias.repeat_interleave(cfg.n_heads // cfg.kv_heads, 0).flatten()
    out = state[f"{attn}.o.weight"].double()
    state[f"{attn}.o.bias"] = state.get(f"{attn}.o.bias", torch.zeros_like(out[:, 0])).double() + out @ mixed
    state[f"{attn}.v.bias"] = torch.zeros_like(state[f"{attn}.v.bias"])


def _center_writing(state: State) -> None:
    """Step 3: the model axis is the last of embeddings, the first of matrices and biases."""
    for name in list(state):
        if name in ("embed.weight", "pos_embed.weight", "type_embed.weight"):
            _center(state, name, -1)
        elif name.startswith("blocks.") and name.rpartition(".")[0].endswith((".attn.o", ".down")):
            _center(state, name, 0)


def _center(state: State, name: str, axis: int) -> None:
    if name in state:
        wide = state[name].double()
        state[name] = (wide - wide.mean(axis, keepdim=True)).to(state[name].dtype)


def rebuilt(model: "HookedTransformer", cfg: ModelConfig, state: State, done: list[str]) -> "HookedTransformer":
    """A model of the new configuration with these weights; biases that it needs and the old one lacked are zeros."""
    new = type(model)(cfg, model.tokenizer, dtype=model.dtype)
    weights: State = {}
    for name, blank in new.state_dict().items():
        given = state.get(name)
        assert given is not None or name.endswith("bias"), name
        # Cloned where nothing changed: writing through a view of one model must not reach the other.
        zeros = torch.zeros(blank.shape, dtype=model.dtype, device=model.device)
        weights[name] = zeros if given is None else given.to(model.dtype, copy=True)
    new.load_state_dict(weights, assign=True)
    new.requires_grad_(False)
    new.note = "; ".join(part for part in (model.note, f"processed: {', '.join(done) or 'nothing'}") if part)
    return new.to(model.device)
