"""The first Gemma family: Llama with a GELU gate, wide heads, norms of gain 1 + weight, and a scaled embedding
(arXiv 2403.08295).

The embedding is multiplied by sqrt(d_model); the unembedding is the embedding itself, unscaled.
"""

from collections.abc import Mapping
from typing import Any

from interp.model import ModelConfig
from interp.weights.decoder import (
    GGUF_PRE_NORMS,
    HARMLESS,
    IGNORABLE,
    PRE_NORMS,
    decoder_options,
    decoder_rules,
    gguf_config,
    gguf_rules,
    minus_one,
)
from interp.weights.family import GGUF, Family, activation, refuse_unsupported
from interp.weights.options import rope_options

RULES = decoder_rules(PRE_NORMS)

WINDOWS = {"sliding_window": (), "use_sliding_window": (False,), "layer_types": ()}


def configure(config: Mapping[str, Any], name: str) -> ModelConfig:
    """config.json of a GemmaForCausalLM -> ModelConfig. ValueError names an option that is not supported."""
    refuse_unsupported(config, {**HARMLESS, **WINDOWS, "mlp_bias": (False,)}, "Gemma")
    options = decoder_options({"head_dim": 256, **config}, n_ctx=8192)
    bias = bool(config.get("attention_bias", False))
    return ModelConfig(
        **{**options, "act_fn": _activation(config)},
        **rope_options(config, family="Gemma", d_head=options["d_head"]),
        norm_offset=True,
        embed_scale=options["d_model"] ** 0.5,
        qkv_bias=bias,
        out_bias=bias,
        tie_embeddings=bool(config.get("tie_word_embeddings", True)),
        family="gemma",
        name=name,
    )


def _activation(config: Mapping[str, Any]) -> str:
    """The first release wrote `gelu` and meant the tanh approximation, which `hidden_activation` said later."""
    old = config.get("hidden_act") or "gelu_pytorch_tanh"
    old = "gelu_pytorch_tanh" if old == "gelu" else old
    new = config.get("hidden_activation") or old
    if activation(new) != activation(old):
        raise ValueError(f"config.json sets hidden_activation={new!r} and hidden_act={old!r}: which one is meant?")
    return activation(old)


def configure_gguf(metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """What config.json would say."""
    config, _ = gguf_config(metadata, shapes, "gemma", "Gemma")
    return {
        **config,
        "architectures": ["GemmaForCausalLM"],
        "model_type": "gemma",
        "hidden_act": "gelu_pytorch_tanh",
    }


FAMILY = Family(
    name="gemma",
    architecture="GemmaForCausalLM",
    architectures=("GemmaModel",),
    model_type="gemma",
    prefix="model.",
    configure=configure,
    rules=RULES,
    ignorable=IGNORABLE,
    gguf=GGUF("gemma", configure_gguf, gguf_rules(GGUF_PRE_NORMS, norm_view=minus_one)),
    members="Gemma 2B, 7B; CodeGemma",
    attention="multi-head, grouped-query, multi-query",
    positions="RoPE (linear, dynamic, YaRN, Llama 3)",
    norm="RMSNorm before, of gain 1 + weight",
    note="the embedding is scaled by sqrt(d_model)",
)
