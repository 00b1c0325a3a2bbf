"""The Mistral family: Llama with a sliding window in every layer, or in none (arXiv 2310.06825).

A query sees `sliding_window` tokens, itself counted; later releases set it to null.
"""

from collections.abc import Mapping
from typing import Any

from interp.model import ModelConfig
from interp.weights.decoder import HARMLESS, IGNORABLE, PRE_NORMS, decoder_options, decoder_rules
from interp.weights.family import Family, refuse_unsupported
from interp.weights.options import FULL, SLIDING, layer_types_of, rope_options, window_options

RULES = decoder_rules(PRE_NORMS)


def configure(config: Mapping[str, Any], name: str) -> ModelConfig:
    """config.json of a MistralForCausalLM -> ModelConfig. ValueError names an option that is not supported."""
    refuse_unsupported(config, {**HARMLESS, "attention_bias": (False,), "mlp_bias": (False,)}, "Mistral")
    # The published defaults, where the key is absent; null means none, and as many as query heads.
    config = {"sliding_window": 4096, "num_key_value_heads": 8, **config}
    options = decoder_options(config, n_ctx=131072)
    window = config["sliding_window"]
    kind = FULL if window is None else SLIDING
    kinds = layer_types_of(config, options["n_layers"], [kind] * options["n_layers"])
    if set(kinds) != {kind}:
        raise ValueError(
            f"config.json's layer_types has {sorted(set(kinds))} with sliding_window={window}; in the Mistral family all "
            "layers are of one kind"
        )
    return ModelConfig(
        **options,
        **rope_options(config, family="Mistral", d_head=options["d_head"]),
        **window_options(window, kinds, "Mistral"),
        tie_embeddings=bool(config.get("tie_word_embeddings", False)),
        family="mistral",
        name=name,
    )


FAMILY = Family(
    name="mistral",
    architecture="MistralForCausalLM",
    architectures=("MistralModel",),
    model_type="mistral",
    prefix="model.",
    configure=configure,
    rules=RULES,
    ignorable=IGNORABLE,
    members="Mistral 7B, Nemo, Small; Zephyr",
    attention="multi-head, grouped-query, multi-query; sliding window",
    positions="RoPE (linear, dynamic, YaRN, Llama 3)",
    norm="RMSNorm before",
    note="llama.cpp writes it as `llama`",
)
