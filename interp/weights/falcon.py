"""The Falcon family: three kinds of block under one architecture (arXiv 2311.16867).

| model | keys and values | block |
|---|---|---|
| 7B (`multi_query`) | one head for all queries | attention and MLP in parallel behind one LayerNorm |
| 40B, 11B, 180B (`new_decoder_architecture`) | one head for a group | in parallel, behind a LayerNorm each or one |
| RW-1B, RW-7B | one head for each query | one after the other (`parallel_attn` false), ALiBi for rotary positions |

Query, key and value are one matrix, in which a group's queries stand before its key and its value.
"""

from collections.abc import Mapping
from typing import Any

from interp.model import ModelConfig
from interp.weights.family import Family, Rule, activation, need, refuse_unsupported
from interp.weights.fused import PARTS, grouped
from interp.weights.options import context_length, rope_options

RULES = (
    Rule("word_embeddings.weight", "embed.weight"),
    *(
        Rule(f"h.{{l}}.self_attention.query_key_value.{part}", f"blocks.{{l}}.attn.{name}.{part}", grouped(name))
        for name in PARTS
        for part in ("weight", "bias")
    ),
    *(
        Rule(f"h.{{l}}.{theirs}.{part}", f"blocks.{{l}}.{ours}.{part}")
        for theirs, ours in (
            ("input_layernorm", "ln1"),
            ("ln_attn", "ln1"),
            ("self_attention.dense", "attn.o"),
            ("post_attention_layernorm", "ln2"),
            ("ln_mlp", "ln2"),
            ("mlp.dense_h_to_4h", "mlp.up"),
            ("mlp.dense_4h_to_h", "mlp.down"),
        )
        for part in ("weight", "bias")
    ),
    *(Rule(f"ln_f.{part}", f"ln_final.{part}") for part in ("weight", "bias")),
    Rule("lm_head.weight", "unembed.weight"),
)

HARMLESS = {
    "apply_residual_connection_post_layernorm": (False,),
    "add_cross_attention": (False,),
    "quantization_config": (),
}
"""Options that change the computation -> the values with which they do nothing."""


def configure(config: Mapping[str, Any], name: str) -> ModelConfig:
    """config.json of a FalconForCausalLM -> ModelConfig.

    Raises:
        ValueError: an option that is not supported, or a combination of kinds that no Falcon has.
    """
    refuse_unsupported(config, HARMLESS, "Falcon")
    d_model = need(config, "hidden_size", config.get("n_embed"))
    n_heads = need(config, "num_attention_heads", config.get("n_head"))
    alibi, bias = bool(config.get("alibi", False)), bool(config.get("bias", False))
    rope = {} if alibi else rope_options(config, family="Falcon", d_head=d_model // n_heads)
    return ModelConfig(
        n_layers=need(config, "num_hidden_layers", config.get("n_layer")),
        d_model=d_model,
        n_heads=n_heads,
        d_head=d_model // n_heads,
        d_mlp=need(config, "ffn_hidden_size", 4 * d_model),
        d_vocab=need(config, "vocab_size"),
        n_ctx=context_length(config, 2048),
        act_fn=activation(need(config, "activation", "gelu")),
        gated_mlp=False,
        norm="layer",
        norm_eps=need(config, "layer_norm_epsilon", 1e-5),
        positional="alibi" if alibi else "rope",
        alibi_scaled=alibi,
        attention_dropout=need(config, "attention_dropout", 0.0),
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
        tie_embeddings=bool(config.get("tie_word_embeddings", True)),
        family="falcon",
        name=name,
        **_block(config, n_heads),
        **rope,
    )


def _block(config: Mapping[str, Any], n_heads: int) -> dict[str, Any]:
    """Key heads, and how attention, MLP and their norms stand to each other."""
    grouped_queries = bool(config.get("new_decoder_architecture", False))
    parallel = bool(config.get("parallel_attn", True))
    n_norms = need(config, "num_ln_in_parallel_attn", 2 if grouped_queries else 1)
    if (grouped_queries and not parallel) or n_norms not in ((1, 2) if grouped_queries else (1,)):
        raise ValueError(
            f"config.json sets new_decoder_architecture={grouped_queries} with parallel_attn={parallel} and "
            f"num_ln_in_parallel_attn={n_norms}: no Falcon computes that"
        )
    if grouped_queries:
        kv_heads = need(config, "num_kv_heads", n_heads)
    else:
        kv_heads = 1 if config.get("multi_query", True) else n_heads
    return {"n_kv_heads": kv_heads, "parallel": parallel, "shared_norm": parallel and n_norms == 1}


FAMILY = Family(
    name="falcon",
    architecture="FalconForCausalLM",
    architectures=("FalconModel",),
    model_type="falcon",
    prefix="transformer.",
    configure=configure,
    rules=RULES,
    ignorable=("h.{l}.self_attention.rotary_emb.inv_freq", "rotary_emb.inv_freq"),
    members="Falcon 7B, 40B, 180B, 11B, RW-1B",
    attention="multi-head, grouped-query, multi-query",
    positions="RoPE (linear, dynamic, YaRN, Llama 3), or ALiBi",
    norm="LayerNorm before; attention and MLP in parallel behind one or one each, or one after the other",
)
