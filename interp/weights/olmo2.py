"""The OLMo-2 family: norms behind attention and MLP, not before them, and over all queries and keys (arXiv 2501.00656).

What a block adds to the stream has been through an RMSNorm, so `attn_out` and `mlp_out` have the size of its gain. The
norm of queries and keys is taken over all heads at once.
"""

from collections.abc import Mapping
from typing import Any

from interp.model import ModelConfig
from interp.weights.family import Family, Rule, activation, need, refuse_unsupported
from interp.weights.options import context_length, rope_options

RULES = (
    Rule("embed_tokens.weight", "embed.weight"),
    *(
        Rule(f"layers.{{l}}.{theirs}.{part}", f"blocks.{{l}}.{ours}.{part}")
        for theirs, ours in (
            ("self_attn.q_proj", "attn.q"),
            ("self_attn.k_proj", "attn.k"),
            ("self_attn.v_proj", "attn.v"),
            ("self_attn.o_proj", "attn.o"),
        )
        for part in ("weight", "bias")
    ),
    *(
        Rule(f"layers.{{l}}.{theirs}.weight", f"blocks.{{l}}.{ours}.weight")
        for theirs, ours in (
            ("self_attn.q_norm", "attn.q_norm"),
            ("self_attn.k_norm", "attn.k_norm"),
            ("post_attention_layernorm", "ln1_post"),
            ("mlp.gate_proj", "mlp.gate"),
            ("mlp.up_proj", "mlp.up"),
            ("mlp.down_proj", "mlp.down"),
            ("post_feedforward_layernorm", "ln2_post"),
        )
    ),
    Rule("norm.weight", "ln_final.weight"),
    Rule("lm_head.weight", "unembed.weight"),
)

HARMLESS = {
    "sliding_window": (),
    "clip_qkv": (),
    "mlp_bias": (False,),
    "quantization_config": (),
}
"""Options of neighbouring architectures (OLMo, OLMo-3) -> the values with which they do nothing."""


def configure(config: Mapping[str, Any], name: str) -> ModelConfig:
    """config.json of an Olmo2ForCausalLM -> ModelConfig. ValueError names an option that is not supported."""
    refuse_unsupported(config, HARMLESS, "OLMo-2")
    d_model, n_heads = need(config, "hidden_size"), need(config, "num_attention_heads")
    d_head = need(config, "head_dim", d_model // n_heads)
    bias = bool(config.get("attention_bias", False))
    return ModelConfig(
        n_layers=need(config, "num_hidden_layers"),
        d_model=d_model,
        n_heads=n_heads,
        n_kv_heads=need(config, "num_key_value_heads", n_heads),
        d_head=d_head,
        d_mlp=need(config, "intermediate_size"),
        d_vocab=need(config, "vocab_size"),
        n_ctx=context_length(config, 2048),
        act_fn=activation(need(config, "hidden_act", "silu")),
        gated_mlp=True,
        norm="rms",
        norm_eps=need(config, "rms_norm_eps", 1e-5),
        norm_placement="post",
        positional="rope",
        qk_norm="full",
        attention_dropout=need(config, "attention_dropout", 0.0),
        qkv_bias=bias,
        out_bias=bias,
        tie_embeddings=bool(config.get("tie_word_embeddings", False)),
        family="olmo2",
        name=name,
        **rope_options(config, family="OLMo-2", d_head=d_head),
    )


FAMILY = Family(
    name="olmo2",
    architecture="Olmo2ForCausalLM",
    architectures=("Olmo2Model",),
    model_type="olmo2",
    prefix="model.",
    configure=configure,
    rules=RULES,
    ignorable=("layers.{l}.self_attn.rotary_emb.inv_freq", "rotary_emb.inv_freq"),
    members="OLMo-2 1B to 32B",
    attention="multi-head, grouped-query, multi-query; norm of queries and keys",
    positions="RoPE (linear, dynamic, YaRN, Llama 3)",
    norm="RMSNorm after attention and MLP, and on all queries and keys at once",
)
