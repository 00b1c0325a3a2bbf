"""The Qwen3 family: Qwen2 without biases, with an RMSNorm over each head's query and key (arXiv 2505.09388)."""

from collections.abc import Mapping
from typing import Any

from interp.model import ModelConfig
from interp.weights.decoder import (
    GGUF_PRE_NORMS,
    GGUF_QK_NORMS,
    HARMLESS,
    IGNORABLE,
    PRE_NORMS,
    QK_NORMS,
    decoder_options,
    decoder_rules,
    gguf_config,
    gguf_rules,
)
from interp.weights.family import GGUF, Family, refuse_unsupported
from interp.weights.options import rope_options
from interp.weights.qwen2 import windows

RULES = decoder_rules(PRE_NORMS, QK_NORMS)


def configure(config: Mapping[str, Any], name: str) -> ModelConfig:
    """config.json of a Qwen3ForCausalLM -> ModelConfig. ValueError names an option that is not supported."""
    refuse_unsupported(config, {**HARMLESS, "use_qk_norm": (True,), "qk_norm": (True,), "mlp_bias": (False,)}, "Qwen3")
    options = decoder_options({"head_dim": 128, **config}, n_ctx=32768)
    bias = bool(config.get("attention_bias", False))
    return ModelConfig(
        **options,
        **rope_options(config, family="Qwen3", d_head=options["d_head"]),
        **windows(config, options["n_layers"], "Qwen3"),
        qk_norm="head",
        qkv_bias=bias,
        out_bias=bias,
        tie_embeddings=bool(config.get("tie_word_embeddings", False)),
        family="qwen3",
        name=name,
    )


def configure_gguf(metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """What config.json would say; llama.cpp has no window in this family."""
    config, _ = gguf_config(metadata, shapes, "qwen3", "Qwen3")
    return {**config, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu"}


FAMILY = Family(
    name="qwen3",
    architecture="Qwen3ForCausalLM",
    architectures=("Qwen3Model",),
    model_type="qwen3",
    prefix="model.",
    configure=configure,
    rules=RULES,
    ignorable=IGNORABLE,
    gguf=GGUF("qwen3", configure_gguf, gguf_rules(GGUF_PRE_NORMS, GGUF_QK_NORMS), ignorable=("rope_freqs.weight",)),
    members="Qwen3 (dense)",
    attention="multi-head, grouped-query, multi-query; norm of queries and keys; sliding window in upper layers",
    positions="RoPE (linear, dynamic, YaRN, Llama 3)",
    norm="RMSNorm before, and on each head's query and key",
)
