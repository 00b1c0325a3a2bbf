"""The Mixtral family: a Mistral whose MLP is a mixture of experts (arXiv 2401.04088).

A router scores all experts by a softmax, each token goes to the best two, and their weights are divided by their sum.
Released files hold a matrix for each expert (`w1` gate, `w3` up, `w2` down); transformers 5 can also write all experts
of a layer as one block, of which our parameters are then views.
"""

from collections.abc import Mapping
from typing import Any

from interp.model import Experts, ModelConfig
from interp.weights.decoder import IGNORABLE, decoder_options
from interp.weights.family import Family, Rule, need, refuse_unsupported
from interp.weights.fused import half
from interp.weights.options import rope_options

EXPERT = "blocks.{l}.mlp.experts.{e}"

RULES = (
    Rule("embed_tokens.weight", "embed.weight"),
    *(
        Rule(f"layers.{{l}}.{theirs}.weight", f"blocks.{{l}}.{ours}.weight")
        for theirs, ours in (
            ("input_layernorm", "ln1"),
            ("self_attn.q_proj", "attn.q"),
            ("self_attn.k_proj", "attn.k"),
            ("self_attn.v_proj", "attn.v"),
            ("self_attn.o_proj", "attn.o"),
            ("post_attention_layernorm", "ln2"),
            ("block_sparse_moe.gate", "mlp.router"),
            ("mlp.gate", "mlp.router"),
        )
    ),
    *(
        Rule(f"layers.{{l}}.block_sparse_moe.experts.{{e}}.{theirs}.weight", f"{EXPERT}.{ours}.weight")
        for theirs, ours in (("w1", "gate"), ("w3", "up"), ("w2", "down"))
    ),
    Rule("layers.{l}.mlp.experts.gate_up_proj", f"{EXPERT}.gate.weight", half(0)),
    Rule("layers.{l}.mlp.experts.gate_up_proj", f"{EXPERT}.up.weight", half(1)),
    Rule("layers.{l}.mlp.experts.down_proj", f"{EXPERT}.down.weight"),
    Rule("norm.weight", "ln_final.weight"),
    Rule("lm_head.weight", "unembed.weight"),
)

HARMLESS = {
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "quantization_config": (),
}
"""Options of neighbouring architectures -> the values with which they do nothing."""


def configure(config: Mapping[str, Any], name: str) -> ModelConfig:
    """config.json of a MixtralForCausalLM -> ModelConfig. ValueError names an option that is not supported."""
    refuse_unsupported(config, HARMLESS, "Mixtral")
    options = decoder_options(config, n_ctx=131072, eps=1e-5)
    experts = Experts(
        n_experts=need(config, "num_local_experts", config.get("num_experts", 8)),
        top_k=need(config, "num_experts_per_tok", 2),
        d_expert=options["d_mlp"],
    )
    return ModelConfig(
        **options,
        **rope_options(config, family="Mixtral", d_head=options["d_head"], default_theta=1e6),
        window=config.get("sliding_window"),
        experts=experts,
        tie_embeddings=bool(config.get("tie_word_embeddings", False)),
        family="mixtral",
        name=name,
    )


FAMILY = Family(
    name="mixtral",
    architecture="MixtralForCausalLM",
    architectures=("MixtralModel",),
    model_type="mixtral",
    prefix="model.",
    configure=configure,
    rules=RULES,
    ignorable=IGNORABLE,
    members="Mixtral 8x7B and 8x22B",
    attention="multi-head, grouped-query, multi-query; sliding window",
    positions="RoPE (linear, dynamic, YaRN, Llama 3)",
    norm="RMSNorm before",
    note="a mixture of experts",
)
