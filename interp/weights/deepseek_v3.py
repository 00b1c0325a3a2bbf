"""The DeepSeek-V3 family: latent attention and many small experts, a few of them for every token (arXiv 2412.19437).

Keys and values come from one small vector a token; only a slice of each query and key turns, in adjacent pairs. The
first layers have a dense MLP. In the others a sigmoid scores each expert, the choice adds a bias that balances the load,
within the best groups of experts, and the weights of the chosen ones are normalised and scaled. Released files hold
layers behind the last, which predict further tokens in training; they are left out.
"""

from collections.abc import Mapping
from typing import Any

from interp.model import Experts, Latent, ModelConfig
from interp.model.position import yarn_strength
from interp.weights.decoder import decoder_options
from interp.weights.family import Family, Rule, need, refuse_unsupported
from interp.weights.fused import half
from interp.weights.options import rope_dictionary, rope_options

GATED = ("gate", "up", "down")
EXPERT = "blocks.{l}.mlp.experts.{e}"

RULES = (
    Rule("embed_tokens.weight", "embed.weight"),
    *(
        Rule(f"layers.{{l}}.{theirs}.{part}", f"blocks.{{l}}.{ours}.{part}")
        for theirs, ours in (
            ("input_layernorm", "ln1"),
            ("self_attn.q_proj", "attn.q"),
            ("self_attn.q_a_proj", "attn.q_down"),
            ("self_attn.q_a_layernorm", "attn.q_norm"),
            ("self_attn.q_b_proj", "attn.q"),
            ("self_attn.kv_a_proj_with_mqa", "attn.kv_down"),
            ("self_attn.kv_a_layernorm", "attn.kv_norm"),
            ("self_attn.kv_b_proj", "attn.kv"),
            ("self_attn.o_proj", "attn.o"),
            ("post_attention_layernorm", "ln2"),
            ("mlp.gate", "mlp.router"),
        )
        for part in ("weight", "bias")
    ),
    Rule("layers.{l}.mlp.gate.e_score_correction_bias", "blocks.{l}.mlp.router.bias"),
    *(Rule(f"layers.{{l}}.mlp.{name}_proj.weight", f"blocks.{{l}}.mlp.{name}.weight") for name in GATED),
    *(
        Rule(f"layers.{{l}}.mlp.shared_experts.{name}_proj.weight", f"blocks.{{l}}.mlp.shared.{name}.weight")
        for name in GATED
    ),
    *(Rule(f"layers.{{l}}.mlp.experts.{{e}}.{name}_proj.weight", f"{EXPERT}.{name}.weight") for name in GATED),
    Rule("layers.{l}.mlp.experts.gate_up_proj", f"{EXPERT}.gate.weight", half(0)),
    Rule("layers.{l}.mlp.experts.gate_up_proj", f"{EXPERT}.up.weight", half(1)),
    Rule("layers.{l}.mlp.experts.down_proj", f"{EXPERT}.down.weight"),
    Rule("norm.weight", "ln_final.weight"),
    Rule("lm_head.weight", "unembed.weight"),
)

HARMLESS = {
    "scoring_func": ("sigmoid",),
    "topk_method": ("noaux_tc",),
    "moe_layer_freq": (1,),
    "index_topk": (),
    "quantization_config": (),
}
"""Options of other DeepSeek models -> the values with which they do nothing."""


def configure(config: Mapping[str, Any], name: str) -> ModelConfig:
    """config.json of a DeepseekV3ForCausalLM -> ModelConfig. ValueError names an option that is not supported."""
    refuse_unsupported(config, HARMLESS, "DeepSeek-V3")
    bias = bool(config.get("attention_bias", False))
    latent = Latent(
        kv_rank=need(config, "kv_lora_rank", 512),
        d_rope=need(config, "qk_rope_head_dim", 64),
        d_v=need(config, "v_head_dim", 128),
        q_rank=config.get("q_lora_rank"),
    )
    d_head = need(config, "qk_nope_head_dim", 128) + latent.d_rope
    # Files name as many key heads as query heads, which all come from one vector, and a head_dim of the rotated part.
    options = {**decoder_options(config, n_ctx=4096), "d_head": d_head, "n_kv_heads": None}
    return ModelConfig(
        **options,
        **rope_options(config, family="DeepSeek-V3", d_head=latent.d_rope),
        rope_pairing="adjacent" if config.get("rope_interleave", True) else "half",
        attn_scale=d_head**-0.5 * _stretch(config),
        qkv_bias=bias,
        out_bias=bias,
        latent=latent,
        experts=_experts(config),
        tie_embeddings=bool(config.get("tie_word_embeddings", False)),
        family="deepseek_v3",
        name=name,
    )


def _stretch(config: Mapping[str, Any]) -> float:
    """Where positions are stretched, scores grow by the square of YaRN's rule at `mscale_all_dim`."""
    rope = rope_dictionary(config, "DeepSeek-V3")
    kind, strength = rope.get("rope_type") or rope.get("type") or "default", rope.get("mscale_all_dim")
    return yarn_strength(need(rope, "factor"), strength) ** 2 if kind != "default" and strength else 1.0


def _experts(config: Mapping[str, Any]) -> Experts:
    n_layers, n_experts = need(config, "num_hidden_layers"), need(config, "n_routed_experts", 256)
    return Experts(
        n_experts=n_experts,
        top_k=need(config, "num_experts_per_tok", 8),
        d_expert=need(config, "moe_intermediate_size"),
        n_shared=need(config, "n_shared_experts", 1),
        score="sigmoid",
        normalize=bool(need(config, "norm_topk_prob", True)),
        scale=need(config, "routed_scaling_factor", 2.5),
        bias=True,
        n_groups=need(config, "n_group", 8),
        top_groups=need(config, "topk_group", 4),
        layers=tuple(range(min(need(config, "first_k_dense_replace", 3), n_layers), n_layers)),
    )


FAMILY = Family(
    name="deepseek_v3",
    architecture="DeepseekV3ForCausalLM",
    architectures=("DeepseekV3Model",),
    model_type="deepseek_v3",
    prefix="model.",
    configure=configure,
    rules=RULES,
    ignorable=("layers.{l}.self_attn.rotary_emb.inv_freq", "layers.{n}.*"),
    members="DeepSeek-V3, DeepSeek-R1, Moonlight",
    attention="multi-head latent",
    positions="RoPE of a part of a head, adjacent pairs (linear, dynamic, YaRN, Llama 3)",
    norm="RMSNorm before",
    note="a mixture of experts with shared ones; the released fp8 files must be made bf16 first",
)
