"""The Qwen2 family, with Qwen1.5 and Qwen2.5: Llama with biases on queries, keys and values (arXiv 2407.10671).

A window, where `use_sliding_window` switches it on, is in the layers from `max_window_layers` upwards.
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
)
from interp.weights.family import GGUF, Family, refuse_unsupported
from interp.weights.options import FULL, SLIDING, layer_types_of, rope_options, window_options

RULES = decoder_rules(PRE_NORMS)


def windows(config: Mapping[str, Any], n_layers: int, family: str) -> dict[str, Any]:
    """`window` and `window_layers` as the Qwen families choose them."""
    on = bool(config.get("use_sliding_window", False))
    window = config.get("sliding_window", 4096) if on else None
    first = int(config.get("max_window_layers", 28))
    default = [SLIDING if window is not None and layer >= first else FULL for layer in range(n_layers)]
    return window_options(window, layer_types_of(config, n_layers, default), family)


def configure(config: Mapping[str, Any], name: str) -> ModelConfig:
    """config.json of a Qwen2ForCausalLM -> ModelConfig. ValueError names an option that is not supported."""
    harmless = {**HARMLESS, "attention_bias": (True,), "mlp_bias": (False,), "use_mrope": (False,)}
    refuse_unsupported(config, harmless, "Qwen2")
    options = decoder_options(config, n_ctx=32768)
    return ModelConfig(
        **options,
        **rope_options(config, family="Qwen2", d_head=options["d_head"]),
        **windows(config, options["n_layers"], "Qwen2"),
        qkv_bias=True,
        tie_embeddings=bool(config.get("tie_word_embeddings", False)),
        family="qwen2",
        name=name,
    )


def configure_gguf(metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """What config.json would say; llama.cpp has no window in this family."""
    config, _ = gguf_config(metadata, shapes, "qwen2", "Qwen2")
    return {**config, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu"}


FAMILY = Family(
    name="qwen2",
    architecture="Qwen2ForCausalLM",
    architectures=("Qwen2Model",),
    model_type="qwen2",
    prefix="model.",
    configure=configure,
    rules=RULES,
    ignorable=IGNORABLE,
    gguf=GGUF("qwen2", configure_gguf, gguf_rules(GGUF_PRE_NORMS), ignorable=("rope_freqs.weight",)),
    members="Qwen1.5, Qwen2, Qwen2.5; DeepSeek-R1 distilled into them",
    attention="multi-head, grouped-query, multi-query; sliding window in upper layers",
    positions="RoPE (linear, dynamic, YaRN, Llama 3)",
    norm="RMSNorm before",
)
