"""A TransformerLens model with the weights of one of our tiny models: the oracle for everything that bears its names."""

import warnings

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from interp.model import HookedTransformer
from tests.support.tiny import byte_tokenizer, shaken_model

transformer_lens = pytest.importorskip(
    "transformer_lens", reason="the oracle is TransformerLens (extra transformer-lens)"
)


def lens_twin(ours: HookedTransformer) -> transformer_lens.HookedTransformer:
    """A tiny GPT-2 or Llama as TransformerLens' HookedTransformer."""
    cfg = ours.cfg
    rotary = cfg.positional == "rope"
    config = transformer_lens.HookedTransformerConfig(
        n_layers=cfg.n_layers, d_model=cfg.d_model, n_ctx=cfg.n_ctx, d_head=cfg.d_head, n_heads=cfg.n_heads, d_mlp=cfg.d_mlp,
        d_vocab=cfg.d_vocab, act_fn=cfg.act_fn, gated_mlp=cfg.gated_mlp, eps=cfg.norm_eps, seed=0, device="cpu",
        normalization_type="RMS" if cfg.norm == "rms" else "LN", final_rms=cfg.norm == "rms",
        positional_embedding_type="rotary" if rotary else "standard", rotary_dim=cfg.d_head if rotary else None,
        n_key_value_heads=cfg.kv_heads if cfg.kv_heads != cfg.n_heads else None,
    )  # fmt: skip
    backend = byte_tokenizer().backend
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>", pad_token="<|pad|>")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # it is deprecated, which is why ours exists
        twin = transformer_lens.HookedTransformer(config, tokenizer=tokenizer)
    twin.load_state_dict(_weights(ours), strict=False)
    return twin.eval()


def pair(family: str) -> tuple[HookedTransformer, transformer_lens.HookedTransformer]:
    """(ours, TransformerLens') with the same weights, gains and biases off 1 and 0. `family` is gpt2 or llama."""
    ours = shaken_model(family)
    return ours, lens_twin(ours)


def _weights(ours: HookedTransformer) -> dict[str, torch.Tensor]:
    cfg, found = ours.cfg, {"embed.W_E": ours.W_E, "unembed.W_U": ours.W_U, "ln_final.w": ours.ln_final.weight}
    if cfg.positional == "learned":
        found["pos_embed.W_pos"] = ours.pos_embed.weight
    if cfg.norm == "layer":
        found["ln_final.b"] = ours.ln_final.bias
    hidden = "_" if cfg.kv_heads != cfg.n_heads else ""
    for layer, block in enumerate(ours.blocks):
        name, attn = f"blocks.{layer}", block.attn
        for letter, part, heads, mark in (
            ("Q", attn.q, cfg.n_heads, ""),
            ("K", attn.k, cfg.kv_heads, hidden),
            ("V", attn.v, cfg.kv_heads, hidden),
        ):
            found[f"{name}.attn.{mark}W_{letter}"] = part.weight.view(heads, cfg.d_head, cfg.d_model).mT
            if part.bias is not None:
                found[f"{name}.attn.{mark}b_{letter}"] = part.bias.view(heads, cfg.d_head)
        found[f"{name}.attn.W_O"] = attn.o.weight.T.reshape(cfg.n_heads, cfg.d_head, cfg.d_model)
        maps = {"W_in": block.mlp.up, "W_out": block.mlp.down, "W_gate": block.mlp.gate}
        found |= {f"{name}.mlp.{key}": part.weight.T for key, part in maps.items() if part is not None}
        biases = {"attn.b_O": attn.o.bias, "mlp.b_in": block.mlp.up.bias, "mlp.b_out": block.mlp.down.bias}
        for ln in ("ln1", "ln2"):
            biases |= {f"{ln}.w": getattr(block, ln).weight, f"{ln}.b": getattr(block, ln).bias}
        found |= {f"{name}.{key}": bias for key, bias in biases.items() if bias is not None}
    return {name: tensor.detach().clone() for name, tensor in found.items()}
