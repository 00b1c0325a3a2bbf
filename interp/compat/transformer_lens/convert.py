"""A TransformerLens model as ours: the same numbers, in the checkpoint's layout. Bridges go through `bridge.py`.

1. Its configuration becomes a ModelConfig; what we do not compute is refused by name.
2. Each weight is turned from TransformerLens' einsum layout, [head d_model d_head], to rows [out, in]. The gains and
   biases that LNPre and RMSPre have folded away are 1 and 0.
3. Biases that are zero everywhere are left out, and an unembedding that equals the embedding is tied to it.
4. The tokenizer, where it is a fast one, goes through its own files.

The model owns its memory: changing one leaves the other as it is.
"""

import dataclasses
import logging
import tempfile
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from interp.compat.transformer_lens.bridge import from_bridge, is_bridge
from interp.compat.transformer_lens.config import architecture
from interp.model import HookedTransformer, ModelConfig
from interp.tokens import Tokenizer

logger = logging.getLogger("interp")


def from_transformer_lens(tl_model: Any) -> HookedTransformer:
    """Our model with the weights of a TransformerLens model (2.x or 3.x).

    Args:
        tl_model: a HookedTransformer, processed (folded, centred) or not, or a TransformerBridge, not processed. Its
            weights are copied.

    Returns:
        The model in evaluation mode, its parameters frozen. Its logits and its sites equal those of a HookedTransformer.

    Raises:
        ValueError: an option that our transformer does not compute, by name; or see `bridge.from_bridge`.
    """
    if is_bridge(tl_model):
        return from_bridge(tl_model)
    if not hasattr(tl_model, "cfg") or not hasattr(tl_model, "state_dict"):
        raise ValueError(f"expected a TransformerLens HookedTransformer, got {type(tl_model).__name__}")
    state = {name: tensor.detach() for name, tensor in tl_model.state_dict().items()}
    if "embed.W_E" not in state:
        raise ValueError(
            f"{type(tl_model).__name__} does not hold its weights by TransformerLens' names: there is no embed.W_E. If it "
            "wraps a Hugging Face model, load that one itself: interp.load(folder or hub id)"
        )
    cfg = architecture(tl_model.cfg)
    weights = _weights(state, cfg)
    cfg, weights = _without_zero_biases(cfg, weights)
    if torch.equal(weights["unembed.weight"], weights["embed.weight"]):
        del weights["unembed.weight"]
        cfg = dataclasses.replace(cfg, tie_embeddings=True)
    tokenizer = lens_tokenizer(getattr(tl_model, "tokenizer", None), cfg.name)
    model = HookedTransformer(cfg, tokenizer, dtype=weights["embed.weight"].dtype, blank=True)
    owned = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in weights.items()}
    model.load_state_dict(owned, assign=True)
    model.requires_grad_(False)
    model.note = "from TransformerLens"
    return model


def _weights(state: Mapping[str, Tensor], cfg: ModelConfig) -> dict[str, Tensor]:
    """TransformerLens' state by our names and in our layout, with every bias."""
    out = {"embed.weight": state["embed.W_E"], "unembed.weight": state["unembed.W_U"].T}
    out["unembed_bias"] = state["unembed.b_U"]
    if cfg.positional == "learned":
        out["pos_embed.weight"] = state["pos_embed.W_pos"]
    if cfg.embed_norm == "token":
        out |= {"embed_norm.weight": state["embed.ln.w"], "embed_norm.bias": state["embed.ln.b"]}
    for layer in range(cfg.n_layers):
        prefix = f"blocks.{layer}"
        out |= _attention(state, cfg, f"{prefix}.attn")
        if cfg.d_mlp:
            out |= _mlp(state, cfg, f"{prefix}.mlp")
        for norm in ("ln1", "ln2") if cfg.d_mlp else ("ln1",):
            if cfg.norm_placement in ("pre", "sandwich"):
                out |= _norm(state, cfg, f"{prefix}.{norm}", f"{prefix}.{norm}")
            if cfg.norm_placement == "sandwich":
                out |= _norm(state, cfg, f"{prefix}.{norm}_post", f"{prefix}.{norm}_post")
            if cfg.norm_placement == "post":
                out |= _norm(state, cfg, f"{prefix}.{norm}", f"{prefix}.{norm}_post")
    return out | (_norm(state, cfg, "ln_final", "ln_final") if cfg.final_norm else {})


def _norm(state: Mapping[str, Tensor], cfg: ModelConfig, theirs: str, ours: str) -> dict[str, Tensor]:
    """Gain and bias; where they were folded into the weights that follow, 1 and 0."""
    if cfg.norm == "none":
        return {}
    like = state["embed.W_E"]
    gain = state.get(f"{theirs}.w", torch.ones(cfg.d_model, dtype=like.dtype, device=like.device))
    out = {f"{ours}.weight": gain}
    if cfg.norm == "layer":
        out[f"{ours}.bias"] = state.get(f"{theirs}.b", torch.zeros_like(gain))
    return out


def _attention(state: Mapping[str, Tensor], cfg: ModelConfig, prefix: str) -> dict[str, Tensor]:
    out: dict[str, Tensor] = {}
    for kind in ("Q", "K", "V"):
        # A model with fewer key and value heads keeps theirs under a name with an underscore, and expands them to W_K.
        own = f"_W_{kind}" if f"{prefix}._W_{kind}" in state else f"W_{kind}"
        out[f"{prefix}.{kind.lower()}.weight"] = state[f"{prefix}.{own}"].transpose(1, 2).flatten(0, 1)
        out[f"{prefix}.{kind.lower()}.bias"] = state[f"{prefix}.{own.replace('W', 'b')}"].flatten()
    out[f"{prefix}.o.weight"] = state[f"{prefix}.W_O"].flatten(0, 1).T
    out[f"{prefix}.o.bias"] = state[f"{prefix}.b_O"]
    if cfg.qk_norm != "none":
        out |= {f"{prefix}.{part}_norm.weight": state[f"{prefix}.{part}_norm.w"] for part in ("q", "k")}
    return out


def _mlp(state: Mapping[str, Tensor], cfg: ModelConfig, prefix: str) -> dict[str, Tensor]:
    out = {f"{prefix}.up.weight": state[f"{prefix}.W_in"].T, f"{prefix}.down.weight": state[f"{prefix}.W_out"].T}
    out |= {f"{prefix}.up.bias": state[f"{prefix}.b_in"], f"{prefix}.down.bias": state[f"{prefix}.b_out"]}
    if cfg.gated_mlp:
        if out[f"{prefix}.up.bias"].any():
            raise ValueError(
                f"{prefix}.b_in is not zero: TransformerLens adds it behind the gate's product, where our gated MLP has no "
                "bias. Fold it first: b_out += b_in @ W_out, then b_in = 0"
            )
        out[f"{prefix}.gate.weight"] = state[f"{prefix}.W_gate"].T
        out[f"{prefix}.gate.bias"] = torch.zeros_like(out[f"{prefix}.up.bias"])
    return out


def _without_zero_biases(cfg: ModelConfig, weights: dict[str, Tensor]) -> tuple[ModelConfig, dict[str, Tensor]]:
    """Leave out each kind of bias that is zero in every layer."""
    endings = {
        "qkv_bias": (".q.bias", ".k.bias", ".v.bias"),
        "out_bias": (".o.bias",),
        "mlp_bias": (".gate.bias", ".up.bias", ".down.bias"),
        "unembed_bias": ("unembed_bias",),
    }
    flags: dict[str, Any] = {}
    for field, ending in endings.items():
        names = [name for name in weights if name.endswith(ending)]
        flags[field] = any(bool(weights[name].any()) for name in names)
        if not flags[field]:
            weights = {name: tensor for name, tensor in weights.items() if name not in names}
    return dataclasses.replace(cfg, **flags), weights


def lens_tokenizer(theirs: Any, name: str) -> Tokenizer | None:
    """Our tokenizer of ours or of a fast one of transformers, by way of its files; None where there is none of these."""
    if theirs is None or isinstance(theirs, Tokenizer):
        return theirs
    if not getattr(theirs, "is_fast", False):
        logger.warning("%s is not a fast tokenizer, so the model gets none: pass token ids", type(theirs).__name__)
        return None
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        tokenizer = Tokenizer.from_folder(folder)
    tokenizer.name = name
    return tokenizer
