"""config.json as a file: read, and checked as far as that needs no family.

People edit these files by hand. A number that is none, or an object where a list belongs, is refused here by file and
key, before a family divides by it.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from interp import artifact

COUNTS = frozenset(
    (
        *("hidden_size", "n_embd", "num_hidden_layers", "n_layer", "num_attention_heads", "n_head", "vocab_size"),
        *("num_key_value_heads", "num_kv_heads", "head_dim", "max_position_embeddings", "n_positions", "seq_length"),
        *("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "moe_intermediate_size"),
        *(
            "qk_rope_head_dim",
            "qk_nope_head_dim",
            "v_head_dim",
            "kv_lora_rank",
            "q_lora_rank",
            "sliding_window_pattern",
        ),
    )
)
"""Keys of whole numbers from 1 on."""
POSITIVE = frozenset(
    (
        *("rope_theta", "rotary_emb_base", "rope_local_base_freq", "factor", "original_max_position_embeddings"),
        *("attention_factor", "beta_fast", "beta_slow", "low_freq_factor", "high_freq_factor", "query_pre_attn_scalar"),
    )
)
"""Keys of numbers above 0."""
NUMBERS = frozenset(
    (
        *("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "attention_dropout", "attn_pdrop"),
        *("attention_probs_dropout_prob", "rotary_pct", "partial_rotary_factor", "rotary_dim", "type_vocab_size"),
        *("sliding_window", "max_window_layers", "attn_logit_softcapping", "final_logit_softcapping"),
        *("num_experts_per_tok", "num_local_experts", "n_routed_experts", "n_shared_experts", "n_group", "topk_group"),
        *("first_k_dense_replace", "routed_scaling_factor", "mscale", "mscale_all_dim", "num_ln_in_parallel_attn"),
    )
)
"""Keys of numbers, 0 among them."""
INNER = frozenset(("text_config", "rope_parameters", "rope_scaling", "full_attention", "sliding_attention"))
"""Objects inside that hold such keys."""


def read_config(path: Path) -> dict[str, Any]:
    """config.json of a folder.

    Raises:
        ValueError: no JSON object, `architectures` that is no list of names, or a number that is none or out of range.
    """
    config = artifact.read_json(path)
    if not isinstance(config, dict):
        raise ValueError(f"{path} holds a {type(config).__name__}, not an object of options: take the model's own file")
    names = config.get("architectures")
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        mend = f'["{names}"]' if isinstance(names, str) else '["LlamaForCausalLM"]'
        raise ValueError(f"{path} sets architectures={names!r}: it must be a list of names, such as {mend}")
    check_numbers(config, str(path))
    return config


def check_numbers(config: Mapping[str, Any], where: str) -> None:
    """ValueError, by `where` and key, for a known number that is none or out of its range; null is left to the family."""
    for key, value in config.items():
        if key in INNER and isinstance(value, Mapping):
            check_numbers(value, f"{key} in {where}")
        elif value is None:
            continue
        elif key in COUNTS and not (type(value) is int and value >= 1):
            raise ValueError(f"{where} sets {key}={value!r}: it must be a whole number of at least 1")
        elif key in POSITIVE and not (_is_number(value) and value > 0):
            raise ValueError(f"{where} sets {key}={value!r}: it must be a number greater than 0")
        elif key in NUMBERS and not _is_number(value):
            raise ValueError(f"{where} sets {key}={value!r}: it must be a number")


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)
