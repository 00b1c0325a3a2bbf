"""The OPT family: LayerNorm before each part, learned positions, ReLU MLP, biases everywhere (arXiv 2205.01068).

Its position table has two rows in front that no token uses; our table is a view of the others. OPT-350m alone puts its
norms behind and its embedding through a projection: it is refused.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from interp.model import ModelConfig
from interp.weights.family import Family, Rule, activation, need, refuse_unsupported

OFFSET = 2
"""Rows of the position table before that of the first token."""


def _positions(table: Tensor, _cfg: ModelConfig) -> Tensor:
    return table[OFFSET:]


RULES = (
    Rule("decoder.embed_tokens.weight", "embed.weight"),
    Rule("decoder.embed_positions.weight", "pos_embed.weight", _positions),
    *(
        Rule(f"decoder.layers.{{l}}.{theirs}.{part}", f"blocks.{{l}}.{ours}.{part}")
        for theirs, ours in (
            ("self_attn_layer_norm", "ln1"),
            ("self_attn.q_proj", "attn.q"),
            ("self_attn.k_proj", "attn.k"),
            ("self_attn.v_proj", "attn.v"),
            ("self_attn.out_proj", "attn.o"),
            ("final_layer_norm", "ln2"),
            ("fc1", "mlp.up"),
            ("fc2", "mlp.down"),
        )
        for part in ("weight", "bias")
    ),
    *(Rule(f"decoder.final_layer_norm.{part}", f"ln_final.{part}") for part in ("weight", "bias")),
    Rule("lm_head.weight", "unembed.weight"),
)

HARMLESS = {
    "do_layer_norm_before": (True,),
    "layer_norm_elementwise_affine": (True,),
    "add_cross_attention": (False,),
    "quantization_config": (),
}
"""Options that change the computation -> the values with which they do nothing."""


def configure(config: Mapping[str, Any], name: str) -> ModelConfig:
    """config.json of an OPTForCausalLM -> ModelConfig. ValueError names an option that is not supported."""
    d_model, n_heads = need(config, "hidden_size"), need(config, "num_attention_heads")
    refuse_unsupported(config, {**HARMLESS, "word_embed_proj_dim": (d_model,)}, "OPT")
    bias = bool(config.get("enable_bias", True))
    return ModelConfig(
        n_layers=need(config, "num_hidden_layers"),
        d_model=d_model,
        n_heads=n_heads,
        d_head=d_model // n_heads,
        d_mlp=need(config, "ffn_dim"),
        d_vocab=need(config, "vocab_size"),
        n_ctx=need(config, "max_position_embeddings", 2048),
        act_fn=activation(need(config, "activation_function", "relu")),
        gated_mlp=False,
        norm="layer",
        norm_eps=1e-5,
        final_norm=not config.get("_remove_final_layer_norm", False),
        positional="learned",
        attention_dropout=need(config, "attention_dropout", 0.0),
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
        tie_embeddings=bool(config.get("tie_word_embeddings", True)),
        family="opt",
        name=name,
    )


FAMILY = Family(
    name="opt",
    architecture="OPTForCausalLM",
    architectures=("OPTModel",),
    model_type="opt",
    prefix="model.",
    configure=configure,
    rules=RULES,
    ignorable=(),
    members="OPT-125m to 66b",
    attention="multi-head",
    positions="learned",
    norm="LayerNorm before",
    note="OPT-350m (norms behind) and Galactica (norms without gains) are refused",
)
