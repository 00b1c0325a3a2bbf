"""The Phi-3 family: a Llama whose query, key and value, and whose gate and up, are one matrix each (arXiv 2404.14219).

Phi-3 mini 4k has a window; the 128k models stretch each rotary frequency by a factor of its own (longrope, arXiv
2402.13753); Phi-4 mini turns only a part of a head. Our parameters are views of the joint matrices.
"""

from collections.abc import Mapping
from typing import Any

from interp.model import ModelConfig
from interp.weights.family import Family, Rule, activation, need, refuse_unsupported
from interp.weights.fused import PARTS, half, joined
from interp.weights.options import context_length, rope_options

RULES = (
    Rule("embed_tokens.weight", "embed.weight"),
    *(Rule("layers.{l}.self_attn.qkv_proj.weight", f"blocks.{{l}}.attn.{name}.weight", joined(name)) for name in PARTS),
    Rule("layers.{l}.self_attn.o_proj.weight", "blocks.{l}.attn.o.weight"),
    Rule("layers.{l}.mlp.gate_up_proj.weight", "blocks.{l}.mlp.gate.weight", half(0)),
    Rule("layers.{l}.mlp.gate_up_proj.weight", "blocks.{l}.mlp.up.weight", half(1)),
    Rule("layers.{l}.mlp.down_proj.weight", "blocks.{l}.mlp.down.weight"),
    Rule("layers.{l}.input_layernorm.weight", "blocks.{l}.ln1.weight"),
    Rule("layers.{l}.post_attention_layernorm.weight", "blocks.{l}.ln2.weight"),
    Rule("norm.weight", "ln_final.weight"),
    Rule("lm_head.weight", "unembed.weight"),
)

HARMLESS = {
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "lm_head_bias": (False,),
    "num_local_experts": (0, 1),
    "quantization_config": (),
}
"""Options of neighbouring architectures -> the values with which they do nothing."""


def configure(config: Mapping[str, Any], name: str) -> ModelConfig:
    """config.json of a Phi3ForCausalLM -> ModelConfig. ValueError names an option that is not supported."""
    refuse_unsupported(config, HARMLESS, "Phi-3")
    d_model, n_heads = need(config, "hidden_size"), need(config, "num_attention_heads")
    d_head = need(config, "head_dim", d_model // n_heads)
    return ModelConfig(
        n_layers=need(config, "num_hidden_layers"),
        d_model=d_model,
        n_heads=n_heads,
        n_kv_heads=need(config, "num_key_value_heads", n_heads),
        d_head=d_head,
        d_mlp=need(config, "intermediate_size"),
        d_vocab=need(config, "vocab_size"),
        n_ctx=context_length(config, 4096),
        act_fn=activation(need(config, "hidden_act", "silu")),
        gated_mlp=True,
        norm="rms",
        norm_eps=need(config, "rms_norm_eps", 1e-5),
        positional="rope",
        window=config.get("sliding_window"),
        attention_dropout=need(config, "attention_dropout", 0.0),
        tie_embeddings=bool(config.get("tie_word_embeddings", False)),
        family="phi3",
        name=name,
        **rope_options(_renamed(config), family="Phi-3", d_head=d_head, partial=True),
    )


def _renamed(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The first releases called longrope `su` or `yarn`."""
    key = "rope_parameters" if config.get("rope_parameters") else "rope_scaling"
    rope = dict(config.get(key) or {})
    if (rope.get("rope_type") or rope.get("type")) not in ("su", "yarn"):
        return config
    return {**config, key: {**rope, "type": "longrope", "rope_type": "longrope"}}


FAMILY = Family(
    name="phi3",
    architecture="Phi3ForCausalLM",
    architectures=("Phi3Model",),
    model_type="phi3",
    prefix="model.",
    configure=configure,
    rules=RULES,
    ignorable=("layers.{l}.self_attn.rotary_emb.inv_freq", "rotary_emb.inv_freq"),
    members="Phi-3 mini and medium, Phi-3.5 mini, Phi-4",
    attention="multi-head, grouped-query, multi-query; sliding window",
    positions="RoPE of all or a part of a head (LongRoPE)",
    norm="RMSNorm before",
)
