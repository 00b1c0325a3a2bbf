"""The Phi-3 family: a Llama whose query, key and value, and whose gate and up, are one matrix each (arXiv 2404.14219).

Phi-3 mini 4k has a window; the 128k models stretch each rotary frequency by a factor of its own (longrope, arXiv
2402.13753); Phi-4 mini turns only a part of a head. Our parameters are views of the joint matrices.
"""

from collections.abc import Mapping
from typing import Any

from interp.model import ModelConfig
from interp.weights.decoder import IGNORABLE, decoder_options
from interp.weights.family import Family, Rule, refuse_unsupported
from interp.weights.fused import PARTS, half, joined
from interp.weights.options import rope_of, rope_options

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
    options = decoder_options(config, n_ctx=4096, eps=1e-5)
    return ModelConfig(
        **options,
        **rope_options(_renamed(config), family="Phi-3", d_head=options["d_head"], partial=True),
        window=config.get("sliding_window"),
        tie_embeddings=bool(config.get("tie_word_embeddings", False)),
        family="phi3",
        name=name,
    )


def _renamed(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The first releases called longrope `su` or `yarn`."""
    key = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    rope = dict(rope_of(config))
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
    ignorable=IGNORABLE,
    members="Phi-3 mini and medium, Phi-3.5 mini, Phi-4",
    attention="multi-head, grouped-query, multi-query; sliding window",
    positions="RoPE of all or a part of a head (LongRoPE)",
    norm="RMSNorm before",
)
