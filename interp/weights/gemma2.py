"""The Gemma 2 family: Gemma with norms before and after each part, soft-caps, and a window in every second layer
(arXiv 2408.00118).

Scores are divided by sqrt(query_pre_attn_scalar), not by sqrt(d_head), and capped; so are the logits.
"""

from collections.abc import Mapping
from typing import Any

from interp.model import ModelConfig
from interp.weights.decoder import (
    GGUF_SANDWICH_NORMS,
    HARMLESS,
    IGNORABLE,
    SANDWICH_NORMS,
    decoder_options,
    decoder_rules,
    gguf_config,
    gguf_rules,
    minus_one,
    without,
)
from interp.weights.family import GGUF, Family, refuse_unsupported
from interp.weights.options import FULL, SLIDING, layer_types_of, rope_options, window_options

RULES = decoder_rules(SANDWICH_NORMS)

DEFAULTS = {
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "final_logit_softcapping": 30.0,
    "attn_logit_softcapping": 50.0,
}
"""Published values of keys that config.json may leave out; null is another thing than absent."""


def configure(config: Mapping[str, Any], name: str) -> ModelConfig:
    """config.json of a Gemma2ForCausalLM -> ModelConfig. ValueError names an option that is not supported."""
    harmless = without(HARMLESS, "attn_logit_softcapping", "final_logit_softcapping")
    refuse_unsupported(config, {**harmless, "mlp_bias": (False,)}, "Gemma 2")
    config = {**DEFAULTS, **config}
    options = decoder_options(config, n_ctx=8192, act_key="hidden_activation")
    n_layers, bias = options["n_layers"], bool(config.get("attention_bias", False))
    kinds = layer_types_of(config, n_layers, [FULL if layer % 2 else SLIDING for layer in range(n_layers)])
    return ModelConfig(
        **options,
        **rope_options(config, family="Gemma 2", d_head=options["d_head"]),
        **window_options(config["sliding_window"], kinds, "Gemma 2"),
        norm_offset=True,
        norm_placement="sandwich",
        embed_scale=options["d_model"] ** 0.5,
        attn_scale=config["query_pre_attn_scalar"] ** -0.5,
        attn_softcap=config["attn_logit_softcapping"],
        final_softcap=config["final_logit_softcapping"],
        qkv_bias=bias,
        out_bias=bias,
        tie_embeddings=bool(config.get("tie_word_embeddings", True)),
        family="gemma2",
        name=name,
    )


def attention_scalar(config: Mapping[str, Any], largest: int) -> int:
    """query_pre_attn_scalar, which llama.cpp does not write: the largest model, told by its layers, differs."""
    if config["num_hidden_layers"] == largest:
        return config["hidden_size"] // config["num_attention_heads"]
    return config["head_dim"]


def configure_gguf(metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """What config.json would say."""
    keys = {
        "attention.sliding_window": "sliding_window",
        "attn_logit_softcapping": "attn_logit_softcapping",
        "final_logit_softcapping": "final_logit_softcapping",
    }
    config, _ = gguf_config(metadata, shapes, "gemma2", "Gemma 2", keys)
    return {
        **config,
        "architectures": ["Gemma2ForCausalLM"],
        "model_type": "gemma2",
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": attention_scalar(config, largest=46),
    }


FAMILY = Family(
    name="gemma2",
    architecture="Gemma2ForCausalLM",
    architectures=("Gemma2Model",),
    model_type="gemma2",
    prefix="model.",
    configure=configure,
    rules=RULES,
    ignorable=IGNORABLE,
    gguf=GGUF("gemma2", configure_gguf, gguf_rules(GGUF_SANDWICH_NORMS, norm_view=minus_one)),
    members="Gemma 2 2B, 9B, 27B",
    attention="multi-head, grouped-query, multi-query; sliding window in every second layer; soft-capped scores",
    positions="RoPE (linear, dynamic, YaRN, Llama 3)",
    norm="RMSNorm before and after, of gain 1 + weight",
    note="the embedding is scaled by sqrt(d_model); logits are soft-capped",
)
