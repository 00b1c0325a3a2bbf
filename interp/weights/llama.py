"""The Llama family: RMSNorm, rotary positions, gated SiLU MLP, grouped-query attention (arXiv 2302.13971, 2407.21783).

SmolLM, TinyLlama and every other checkpoint that says `LlamaForCausalLM` belong here.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from interp.model import ModelConfig, RopeScaling
from interp.weights.family import GGUF, Family, Rule, activation, need, refuse_unsupported

RULES = (
    Rule("embed_tokens.weight", "embed.weight"),
    *(
        Rule(f"layers.{{l}}.{theirs}.{part}", f"blocks.{{l}}.{ours}.{part}")
        for theirs, ours in (
            ("input_layernorm", "ln1"),
            ("self_attn.q_proj", "attn.q"),
            ("self_attn.k_proj", "attn.k"),
            ("self_attn.v_proj", "attn.v"),
            ("self_attn.o_proj", "attn.o"),
            ("post_attention_layernorm", "ln2"),
            ("mlp.gate_proj", "mlp.gate"),
            ("mlp.up_proj", "mlp.up"),
            ("mlp.down_proj", "mlp.down"),
        )
        for part in ("weight", "bias")
    ),
    Rule("norm.weight", "ln_final.weight"),
    Rule("lm_head.weight", "unembed.weight"),
)

HARMLESS = {
    "sliding_window": (),
    "use_sliding_window": (False,),
    "attn_logit_softcapping": (),
    "final_logit_softcapping": (),
    "logit_scale": (1, 1.0),
    "use_qk_norm": (False,),
    "qk_norm": (False,),
    "partial_rotary_factor": (1, 1.0),
    "rope_interleaved": (False,),
    "alibi": (False,),
    "num_experts": (0, 1),
    "num_local_experts": (0, 1),
    "quantization_config": (),
}
"""Options of neighbouring architectures -> the values with which they do nothing."""


def configure(config: Mapping[str, Any], name: str) -> ModelConfig:
    """config.json of a LlamaForCausalLM -> ModelConfig. ValueError names an option that is not supported."""
    refuse_unsupported(config, HARMLESS, "Llama")
    layer_types = set(config.get("layer_types") or ()) - {"full_attention"}
    if layer_types:
        raise ValueError(
            f"config.json has layers of kind {sorted(layer_types)}; the Llama family has full attention only"
        )
    n_heads, d_model = need(config, "num_attention_heads"), need(config, "hidden_size")
    theta, scaling = _rope(config)
    bias = bool(config.get("attention_bias", False))
    return ModelConfig(
        n_layers=need(config, "num_hidden_layers"),
        d_model=d_model,
        n_heads=n_heads,
        n_kv_heads=need(config, "num_key_value_heads", n_heads),
        d_head=need(config, "head_dim", d_model // n_heads),
        d_mlp=need(config, "intermediate_size"),
        d_vocab=need(config, "vocab_size"),
        n_ctx=need(config, "max_position_embeddings", 2048),
        act_fn=activation(need(config, "hidden_act", "silu")),
        gated_mlp=True,
        norm="rms",
        norm_eps=need(config, "rms_norm_eps", 1e-6),
        positional="rope",
        rope_theta=theta,
        rope_scaling=scaling,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bool(config.get("mlp_bias", False)),
        tie_embeddings=bool(config.get("tie_word_embeddings", False)),
        family="llama",
        name=name,
    )


def _rope(config: Mapping[str, Any]) -> tuple[float, RopeScaling | None]:
    """Base and scaling; transformers 5 keeps both in `rope_parameters`, older files apart."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if any(isinstance(value, Mapping) for value in rope.values()):
        raise ValueError("config.json has rotary parameters per kind of layer; the Llama family has one kind")
    refuse_unsupported(rope, {"partial_rotary_factor": (1, 1.0), "mrope_section": ()}, "Llama")
    theta = float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0)
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return theta, None
    if kind == "llama3":
        return theta, RopeScaling(
            "llama3",
            float(need(rope, "factor")),
            low_freq_factor=float(need(rope, "low_freq_factor")),
            high_freq_factor=float(need(rope, "high_freq_factor")),
            original_n_ctx=int(need(rope, "original_max_position_embeddings")),
        )
    return theta, RopeScaling(kind, float(rope.get("factor") or 1.0))


# -------------------------------------------------------------------------------------------------------------- GGUF


def _unpermute(heads: str) -> Any:
    """llama.cpp turns neighbouring dimensions together (i with i+1), we turn i with i + d_head/2: put the rows back."""

    def view(weight: Tensor, cfg: ModelConfig) -> Tensor:
        n_heads = cfg.n_heads if heads == "query" else cfg.kv_heads
        return weight.view(n_heads, -1, 2, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)

    return view


GGUF_RULES = (
    Rule("token_embd.weight", "model.embed_tokens.weight"),
    *(
        Rule(f"blk.{{l}}.{theirs}.{part}", f"model.layers.{{l}}.{ours}.{part}", view)
        for theirs, ours, view in (
            ("attn_norm", "input_layernorm", None),
            ("attn_q", "self_attn.q_proj", _unpermute("query")),
            ("attn_k", "self_attn.k_proj", _unpermute("key")),
            ("attn_v", "self_attn.v_proj", None),
            ("attn_output", "self_attn.o_proj", None),
            ("ffn_norm", "post_attention_layernorm", None),
            ("ffn_gate", "mlp.gate_proj", None),
            ("ffn_up", "mlp.up_proj", None),
            ("ffn_down", "mlp.down_proj", None),
        )
        for part in ("weight", "bias")
    ),
    Rule("output_norm.weight", "model.norm.weight"),
    Rule("output.weight", "lm_head.weight"),
)

GGUF_KEYS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.key_length": "head_dim",
}
GGUF_OTHER_KEYS = {"attention.value_length", "rope.dimension_count", "rope.freq_base", "vocab_size", "expert_count"}
GGUF_OTHER_KEYS |= {"rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length"}
GGUF_OTHER_KEYS |= {"rope.scaling.finetuned", "tensor_data_layout", "expert_used_count"}


def configure_gguf(metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """What config.json would say. `shapes` holds the tensors' shapes, of which the output matrix may be absent (tied).

    Raises:
        ValueError: a hyperparameter that is not known, experts, sizes that differ from layer to layer, or rotary
            factors that are not Llama 3.1's.
    """
    own = {key.removeprefix("llama."): value for key, value in metadata.items() if key.startswith("llama.")}
    unknown = sorted(set(own) - set(GGUF_KEYS) - GGUF_OTHER_KEYS)
    if unknown or own.get("expert_count"):
        raise ValueError(
            f"the GGUF file sets {unknown or ['expert_count']}, which the Llama family here does not compute"
        )
    config: dict[str, Any] = {ours: own[key] for key, ours in GGUF_KEYS.items() if key in own}
    lists = [key for key, value in config.items() if isinstance(value, list)]
    if lists:
        raise ValueError(
            f"the GGUF file gives {', '.join(lists)} for each layer; the Llama family has one value for all"
        )
    config["head_dim"] = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    if {own.get("rope.dimension_count", config["head_dim"]), own.get("attention.value_length", config["head_dim"])} != {
        config["head_dim"]
    }:
        raise ValueError(
            f"heads of {config['head_dim']} dimensions with rope.dimension_count={own.get('rope.dimension_count')} and "
            f"value_length={own.get('attention.value_length')}: partly rotary or unequal heads are not supported"
        )
    theta = float(own.get("rope.freq_base", 10000.0))
    return {
        **config,
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shapes["token_embd.weight"][0],
        "hidden_act": "silu",
        "attention_bias": "blk.0.attn_q.bias" in shapes,
        "mlp_bias": "blk.0.ffn_up.bias" in shapes,
        "tie_word_embeddings": "output.weight" not in shapes,
        "rope_parameters": {"rope_theta": theta, **_gguf_scaling(own, metadata, theta, config["head_dim"])},
    }


def _gguf_scaling(own: Mapping[str, Any], metadata: Mapping[str, Any], theta: float, d_head: int) -> dict[str, Any]:
    """llama.cpp names linear scaling in the metadata, and writes Llama 3.1's rule as a table of factors."""
    table = metadata.get("rope_freqs.weight")
    if table is not None:
        # Every released Llama 3 has these three numbers; only the factor differs (8 in 3.1, 32 in 3.2).
        rule = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
        factor = float(np.max(table))
        expected = llama3_factors(theta, d_head, factor, low=1.0, high=4.0, original_n_ctx=8192)
        if table.shape != expected.shape or not np.allclose(table, expected, rtol=1e-4):
            raise ValueError("the rotary factors in rope_freqs.weight are not those of Llama 3: not supported")
        return {"rope_type": "llama3", "factor": factor, **rule}
    kind = own.get("rope.scaling.type", "none")
    return {"rope_type": "default"} if kind == "none" else {"rope_type": kind, "factor": own.get("rope.scaling.factor")}


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
    model_type="llama",
    prefix="model.",
    configure=configure,
    rules=RULES,
    ignorable=("layers.{l}.self_attn.rotary_emb.inv_freq", "rotary_emb.inv_freq"),
    gguf=GGUF("llama", configure_gguf, GGUF_RULES, ignorable=("rope_freqs.weight",)),
)
