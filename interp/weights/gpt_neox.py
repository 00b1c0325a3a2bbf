"""The GPT-NeoX family, Pythia among it: attention and MLP in parallel behind a LayerNorm each (arXiv 2204.06745).

Rotary positions turn the leading quarter of a head, the unembedding is not tied, and query, key and value of a head are
neighbours in one matrix.
"""

from collections.abc import Mapping
from typing import Any

from interp.model import ModelConfig
from interp.weights.family import Family, Rule, activation, need, refuse_unsupported
from interp.weights.fused import PARTS, grouped
from interp.weights.options import context_length, rope_options

RULES = (
    Rule("embed_in.weight", "embed.weight"),
    *(
        Rule(f"layers.{{l}}.attention.query_key_value.{part}", f"blocks.{{l}}.attn.{name}.{part}", grouped(name))
        for name in PARTS
        for part in ("weight", "bias")
    ),
    *(
        Rule(f"layers.{{l}}.{theirs}.{part}", f"blocks.{{l}}.{ours}.{part}")
        for theirs, ours in (
            ("input_layernorm", "ln1"),
            ("attention.dense", "attn.o"),
            ("post_attention_layernorm", "ln2"),
            ("mlp.dense_h_to_4h", "mlp.up"),
            ("mlp.dense_4h_to_h", "mlp.down"),
        )
        for part in ("weight", "bias")
    ),
    *(Rule(f"final_layer_norm.{part}", f"ln_final.{part}") for part in ("weight", "bias")),
    Rule("embed_out.weight", "unembed.weight"),
    Rule("lm_head.weight", "unembed.weight"),  # in files that keep transformers 5's own name
)

HARMLESS = {
    "is_decoder": (True, False),
    "add_cross_attention": (False,),
    "quantization_config": (),
}
"""Options that change the computation -> the values with which they do nothing."""


def configure(config: Mapping[str, Any], name: str) -> ModelConfig:
    """config.json of a GPTNeoXForCausalLM -> ModelConfig. ValueError names an option that is not supported."""
    refuse_unsupported(config, HARMLESS, "GPT-NeoX")
    d_model, n_heads = need(config, "hidden_size"), need(config, "num_attention_heads")
    bias = bool(config.get("attention_bias", True))
    # Released files say rotary_emb_base and rotary_pct, transformers 5 writes rope_parameters.
    rotary = {"rope_theta": config.get("rotary_emb_base"), "partial_rotary_factor": config.get("rotary_pct")}
    return ModelConfig(
        n_layers=need(config, "num_hidden_layers"),
        d_model=d_model,
        n_heads=n_heads,
        d_head=d_model // n_heads,
        d_mlp=need(config, "intermediate_size"),
        d_vocab=need(config, "vocab_size"),
        n_ctx=context_length(config, 2048),
        act_fn=activation(need(config, "hidden_act", "gelu")),
        gated_mlp=False,
        norm="layer",
        norm_eps=need(config, "layer_norm_eps", 1e-5),
        parallel=bool(config.get("use_parallel_residual", True)),
        positional="rope",
        attention_dropout=need(config, "attention_dropout", 0.0),
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=True,
        tie_embeddings=bool(config.get("tie_word_embeddings", False)),
        family="gpt_neox",
        name=name,
        **rope_options(
            {**config, **rotary}, family="GPT-NeoX", d_head=d_model // n_heads, partial=True, default_share=0.25
        ),
    )


FAMILY = Family(
    name="gpt_neox",
    architecture="GPTNeoXForCausalLM",
    architectures=("GPTNeoXModel",),
    model_type="gpt_neox",
    prefix="gpt_neox.",
    configure=configure,
    rules=RULES,
    ignorable=tuple(f"layers.{{l}}.attention.{name}" for name in ("bias", "masked_bias", "rotary_emb.inv_freq")),
    members="Pythia, GPT-NeoX-20B, Dolly v2, RedPajama-INCITE",
    attention="multi-head",
    positions="RoPE of the leading part of a head (linear, dynamic, YaRN, Llama 3)",
    norm="LayerNorm before; attention and MLP in parallel behind one each",
)
