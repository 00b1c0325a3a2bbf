"""The BLOOM family: ALiBi, a LayerNorm behind the embedding, GELU MLP, biases everywhere (arXiv 2211.05100).

ALiBi (arXiv 2108.12409) adds to each score a slope, one for each head, times the distance; there is no position table,
and so no hard limit to a text's length. Query, key and value of a head are neighbours in one matrix.
"""

from collections.abc import Mapping
from typing import Any

from interp.model import ModelConfig
from interp.weights.family import Family, Rule, need, refuse_unsupported
from interp.weights.fused import PARTS, grouped

RULES = (
    Rule("word_embeddings.weight", "embed.weight"),
    *(Rule(f"word_embeddings_layernorm.{part}", f"embed_norm.{part}") for part in ("weight", "bias")),
    *(
        Rule(f"h.{{l}}.self_attention.query_key_value.{part}", f"blocks.{{l}}.attn.{name}.{part}", grouped(name))
        for name in PARTS
        for part in ("weight", "bias")
    ),
    *(
        Rule(f"h.{{l}}.{theirs}.{part}", f"blocks.{{l}}.{ours}.{part}")
        for theirs, ours in (
            ("input_layernorm", "ln1"),
            ("self_attention.dense", "attn.o"),
            ("post_attention_layernorm", "ln2"),
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
    "n_inner": (),
    "quantization_config": (),
}
"""Options that change the computation -> the values with which they do nothing. `pretraining_tp` and `slow_but_exact`
only say in which order a product is summed."""


def configure(config: Mapping[str, Any], name: str) -> ModelConfig:
    """config.json of a BloomForCausalLM -> ModelConfig. ValueError names an option that is not supported."""
    refuse_unsupported(config, HARMLESS, "BLOOM")
    d_model = need(config, "hidden_size", config.get("n_embed"))
    n_heads = need(config, "n_head", config.get("num_attention_heads"))
    return ModelConfig(
        n_layers=need(config, "n_layer", config.get("num_hidden_layers")),
        d_model=d_model,
        n_heads=n_heads,
        d_head=d_model // n_heads,
        d_mlp=4 * d_model,
        d_vocab=need(config, "vocab_size"),
        n_ctx=need(config, "seq_length", 2048),
        act_fn="gelu_new",
        gated_mlp=False,
        norm="layer",
        norm_eps=need(config, "layer_norm_epsilon", 1e-5),
        positional="alibi",
        embed_norm="token",
        attention_dropout=need(config, "attention_dropout", 0.0),
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        tie_embeddings=bool(config.get("tie_word_embeddings", True)),
        family="bloom",
        name=name,
    )


FAMILY = Family(
    name="bloom",
    architecture="BloomForCausalLM",
    architectures=("BloomModel",),
    model_type="bloom",
    prefix="transformer.",
    configure=configure,
    rules=RULES,
    ignorable=(),
    members="BLOOM, BLOOMZ",
    attention="multi-head",
    positions="ALiBi",
    norm="LayerNorm before, and behind the embedding",
)
