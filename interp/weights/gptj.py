"""The GPT-J family: attention and MLP in parallel behind one LayerNorm, and adjacent pairs that turn together.

GPT-J (Wang and Komatsuzaki 2021) made rotary positions (arXiv 2104.09864) and parallel blocks usual. Only the first
`rotary_dim` dimensions of a head turn. Attention has no biases, the MLP has, and so have the logits.
"""

from collections.abc import Mapping
from typing import Any

from interp.model import ModelConfig
from interp.weights.family import Family, Rule, activation, need, refuse_unsupported

RULES = (
    Rule("wte.weight", "embed.weight"),
    *(Rule(f"h.{{l}}.attn.{name}_proj.weight", f"blocks.{{l}}.attn.{name}.weight") for name in "qkv"),
    Rule("h.{l}.attn.out_proj.weight", "blocks.{l}.attn.o.weight"),
    *(
        Rule(f"h.{{l}}.{theirs}.{part}", f"blocks.{{l}}.{ours}.{part}")
        for theirs, ours in (("ln_1", "ln1"), ("mlp.fc_in", "mlp.up"), ("mlp.fc_out", "mlp.down"))
        for part in ("weight", "bias")
    ),
    *(Rule(f"ln_f.{part}", f"ln_final.{part}") for part in ("weight", "bias")),
    Rule("lm_head.weight", "unembed.weight"),
    Rule("lm_head.bias", "unembed_bias"),
)

HARMLESS = {
    "rotary": (True,),
    "scale_attn_weights": (True,),
    "add_cross_attention": (False,),
    "rope_parameters": (),
    "rope_scaling": (),
    "quantization_config": (),
}
"""Options that change the computation -> the values with which they do nothing."""


def configure(config: Mapping[str, Any], name: str) -> ModelConfig:
    """config.json of a GPTJForCausalLM -> ModelConfig. ValueError names an option that is not supported."""
    refuse_unsupported(config, HARMLESS, "GPT-J")
    d_model, n_heads = need(config, "n_embd"), need(config, "n_head")
    return ModelConfig(
        n_layers=need(config, "n_layer"),
        d_model=d_model,
        n_heads=n_heads,
        d_head=d_model // n_heads,
        d_mlp=need(config, "n_inner", 4 * d_model),
        d_vocab=need(config, "vocab_size"),
        n_ctx=need(config, "n_positions", 2048),
        act_fn=activation(need(config, "activation_function", "gelu_new")),
        gated_mlp=False,
        norm="layer",
        norm_eps=need(config, "layer_norm_epsilon", 1e-5),
        parallel=True,
        shared_norm=True,
        positional="rope",
        rope_pairing="adjacent",
        rotary_dim=need(config, "rotary_dim", 64),
        attention_dropout=need(config, "attn_pdrop", 0.0),
        mlp_bias=True,
        unembed_bias=True,
        tie_embeddings=bool(config.get("tie_word_embeddings", False)),
        family="gptj",
        name=name,
    )


FAMILY = Family(
    name="gptj",
    architecture="GPTJForCausalLM",
    architectures=("GPTJModel",),
    model_type="gptj",
    prefix="transformer.",
    configure=configure,
    rules=RULES,
    ignorable=("h.{l}.attn.bias", "h.{l}.attn.masked_bias", "h.{l}.attn.embed_positions"),
    members="GPT-J-6B",
    attention="multi-head",
    positions="RoPE of the leading part of a head, adjacent pairs",
    norm="LayerNorm before; attention and MLP in parallel behind one",
)
