"""The Llama family: RMSNorm, rotary positions, gated SiLU MLP, grouped-query attention (arXiv 2302.13971, 2407.21783).

SmolLM, TinyLlama and every other checkpoint that says `LlamaForCausalLM` belong here.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

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
from interp.weights.family import GGUF, Family, View, refuse_unsupported
from interp.weights.options import FULL, rope_options

RULES = decoder_rules(PRE_NORMS)

WINDOWS = {"sliding_window": (), "use_sliding_window": (False,)}
"""Options for windows -> the values with which they do nothing: Llama has none."""


def configure(config: Mapping[str, Any], name: str) -> ModelConfig:
    """config.json of a LlamaForCausalLM -> ModelConfig. ValueError names an option that is not supported."""
    refuse_unsupported(config, {**HARMLESS, **WINDOWS}, "Llama")
    layer_types = set(config.get("layer_types") or ()) - {FULL}
    if layer_types:
        raise ValueError(
            f"config.json has layers of kind {sorted(layer_types)}; the Llama family has full attention only"
        )
    options = decoder_options(config, n_ctx=2048)
    bias = bool(config.get("attention_bias", False))
    return ModelConfig(
        **options,
        **rope_options(config, family="Llama", d_head=options["d_head"]),
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bool(config.get("mlp_bias", False)),
        tie_embeddings=bool(config.get("tie_word_embeddings", False)),
        family="llama",
        name=name,
    )


# -------------------------------------------------------------------------------------------------------------- GGUF


def _unpermuted(heads: str) -> View:
    """llama.cpp turns neighbouring dimensions together (i with i+1), we turn i with i + d_head/2: put the rows back."""

    def view(weight: Tensor, cfg: ModelConfig) -> Tensor:
        n_heads = cfg.n_heads if heads == "query" else cfg.kv_heads
        return weight.view(n_heads, -1, 2, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)

    return view


GGUF_RULES = gguf_rules(GGUF_PRE_NORMS, views={"attn_q": _unpermuted("query"), "attn_k": _unpermuted("key")})


def configure_gguf(metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """What config.json would say.

    Raises:
        ValueError: a hyperparameter that is not supported (`decoder.gguf_config`), or rotary factors that are not
            Llama 3.1's.
    """
    config, _ = gguf_config(metadata, shapes, "llama", "Llama")
    rope = config["rope_parameters"]
    table = metadata.get("rope_freqs.weight")
    if table is not None:
        rope = {**rope, **_llama3(table, rope["rope_theta"], config["head_dim"])}
    return {
        **config,
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "rope_parameters": rope,
    }


def _llama3(table: np.ndarray, theta: float, d_head: int) -> dict[str, Any]:
    """Llama 3.1's rule, which llama.cpp writes as a table of factors."""
    # Every released Llama 3 has these three numbers; only the factor differs (8 in 3.1, 32 in 3.2).
    rule = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    factor = float(np.max(table))
    expected = llama3_factors(theta, d_head, factor, low=1.0, high=4.0, original_n_ctx=8192)
    if table.shape != expected.shape or not np.allclose(table, expected, rtol=1e-4):
        raise ValueError("the rotary factors in rope_freqs.weight are not those of Llama 3: not supported")
    return {"rope_type": "llama3", "factor": factor, **rule}


def llama3_factors(
    theta: float, d_head: int, factor: float, *, low: float, high: float, original_n_ctx: int
) -> np.ndarray:
    """By how much Llama 3.1 divides each rotary frequency [d_head / 2]: long waves by `factor`, short ones by 1."""
    frequency = 1.0 / theta ** (np.arange(0, d_head, 2) / d_head)
    turns = original_n_ctx * frequency / (2 * math.pi)  # in the context of the pre-training
    blend = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return 1.0 / ((1 - blend) / factor + blend)


FAMILY = Family(
    name="llama",
    architecture="LlamaForCausalLM",
    architectures=("LlamaModel", "LLaMAForCausalLM"),
    model_type="llama",
    prefix="model.",
    configure=configure,
    rules=RULES,
    ignorable=IGNORABLE,
    gguf=GGUF("llama", configure_gguf, GGUF_RULES, ignorable=("rope_freqs.weight",)),
    members="Llama 1 to 3, SmolLM, TinyLlama",
    attention="multi-head, grouped-query, multi-query",
    positions="RoPE (linear, dynamic, YaRN, Llama 3)",
    norm="RMSNorm before",
)
