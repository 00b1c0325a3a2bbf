"""What Llama and the families that followed it share: names of parameters, config.json's common keys, llama.cpp's files.

Their blocks have the same projections under the same names. They differ in norms (before a part, or before and after it),
in a norm of queries and keys, in which layers have a window, and in constants: those stand in the family's own file.
"""

from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor

from interp.model import ModelConfig
from interp.weights.family import Rule, View, activation, need
from interp.weights.options import context_length

PROJECTIONS = (
    ("self_attn.q_proj", "attn.q"),
    ("self_attn.k_proj", "attn.k"),
    ("self_attn.v_proj", "attn.v"),
    ("self_attn.o_proj", "attn.o"),
    ("mlp.gate_proj", "mlp.gate"),
    ("mlp.up_proj", "mlp.up"),
    ("mlp.down_proj", "mlp.down"),
)
PRE_NORMS = (("input_layernorm", "ln1"), ("post_attention_layernorm", "ln2"))
"""Norms before attention and MLP (Llama): the second's name says where it stands, not what it norms."""
SANDWICH_NORMS = (
    ("input_layernorm", "ln1"),
    ("post_attention_layernorm", "ln1_post"),
    ("pre_feedforward_layernorm", "ln2"),
    ("post_feedforward_layernorm", "ln2_post"),
)
"""Norms before and after each (Gemma 2 and 3)."""
QK_NORMS = (("self_attn.q_norm", "attn.q_norm"), ("self_attn.k_norm", "attn.k_norm"))
"""Norms of queries and keys (Qwen3, Gemma 3)."""


def decoder_rules(*parts: tuple[tuple[str, str], ...]) -> tuple[Rule, ...]:
    """The table of a family with these (checkpoint, our) names in each layer, beside the projections."""
    return (
        Rule("embed_tokens.weight", "embed.weight"),
        *(
            Rule(f"layers.{{l}}.{theirs}.{part}", f"blocks.{{l}}.{ours}.{part}")
            for theirs, ours in (*PROJECTIONS, *(pair for pairs in parts for pair in pairs))
            for part in ("weight", "bias")
        ),
        Rule("norm.weight", "ln_final.weight"),
        Rule("lm_head.weight", "unembed.weight"),
    )


IGNORABLE = ("layers.{l}.self_attn.rotary_emb.inv_freq", "rotary_emb.inv_freq")
"""Rotary tables that old files hold."""

HARMLESS = {
    "attn_logit_softcapping": (),
    "final_logit_softcapping": (),
    "logit_scale": (1, 1.0),
    "use_qk_norm": (False,),
    "qk_norm": (False,),
    "rope_interleaved": (False,),
    "alibi": (False,),
    "use_bidirectional_attention": (False,),
    "add_cross_attention": (False,),
    "num_experts": (0, 1),
    "num_local_experts": (0, 1),
    "quantization_config": (),
}
"""Options of neighbouring architectures -> the values with which they do nothing."""


def without(harmless: Mapping[str, Collection[Any]], *keys: str) -> dict[str, Collection[Any]]:
    """The table but for options that a family does compute."""
    return {key: values for key, values in harmless.items() if key not in keys}


def decoder_options(
    config: Mapping[str, Any], *, n_ctx: int, act_key: str = "hidden_act", eps: float = 1e-6
) -> dict[str, Any]:
    """Sizes and constants of a ModelConfig that all these families read alike.

    Args:
        config: config.json.
        n_ctx: the published default of max_position_embeddings.
        act_key: where the MLP's activation stands.
        eps: the published default of rms_norm_eps.
    """
    d_model, n_heads = int(need(config, "hidden_size")), int(need(config, "num_attention_heads"))
    return {
        "n_layers": need(config, "num_hidden_layers"),
        "d_model": d_model,
        "n_heads": n_heads,
        "n_kv_heads": need(config, "num_key_value_heads", n_heads),
        "d_head": need(config, "head_dim", d_model // n_heads),
        "d_mlp": need(config, "intermediate_size"),
        "d_vocab": need(config, "vocab_size"),
        "n_ctx": context_length(config, n_ctx),
        "act_fn": activation(need(config, act_key, "silu")),
        "gated_mlp": True,
        "norm": "rms",
        "norm_eps": need(config, "rms_norm_eps", eps),
        "positional": "rope",
        "attention_dropout": float(config.get("attention_dropout") or 0.0),
    }


# -------------------------------------------------------------------------------------------------------------- GGUF

GGUF_PROJECTIONS = (
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
)
GGUF_PRE_NORMS = (("attn_norm", "input_layernorm"), ("ffn_norm", "post_attention_layernorm"))
GGUF_SANDWICH_NORMS = (
    ("attn_norm", "input_layernorm"),
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
)
GGUF_QK_NORMS = (("attn_q_norm", "self_attn.q_norm"), ("attn_k_norm", "self_attn.k_norm"))

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
"""Hyperparameter of the file -> key of config.json."""
GGUF_OTHER_KEYS = frozenset(
    (
        *("attention.value_length", "rope.dimension_count", "rope.freq_base", "vocab_size", "tensor_data_layout"),
        *("rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length", "rope.scaling.finetuned"),
        *("expert_count", "expert_used_count"),
    )
)
"""Hyperparameters that are read or checked otherwise."""


def gguf_rules(
    *parts: tuple[tuple[str, str], ...], views: Mapping[str, View] | None = None, norm_view: View | None = None
) -> tuple[Rule, ...]:
    """The table GGUF name -> checkpoint name.

    Args:
        parts: (GGUF, checkpoint) names in each layer, beside the projections.
        views: GGUF name -> what puts its rows back.
        norm_view: the same for every norm.
    """
    views = dict(views or {})

    def view(name: str) -> View | None:
        return norm_view if "norm" in name else views.get(name)

    return (
        Rule("token_embd.weight", "model.embed_tokens.weight"),
        *(
            Rule(f"blk.{{l}}.{theirs}.{part}", f"model.layers.{{l}}.{ours}.{part}", view(theirs))
            for theirs, ours in (*GGUF_PROJECTIONS, *(pair for pairs in parts for pair in pairs))
            for part in ("weight", "bias")
        ),
        Rule("output_norm.weight", "model.norm.weight", norm_view),
        Rule("output.weight", "lm_head.weight"),
    )


def minus_one(weight: Tensor, _cfg: ModelConfig) -> Tensor:
    """llama.cpp adds the 1 of Gemma's norms to the weights it writes."""
    return weight - 1


def gguf_config(
    metadata: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    architecture: str,
    label: str,
    keys: Mapping[str, str] | None = None,
    other: Collection[str] = (),
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(what config.json would say, the file's own hyperparameters), as far as the families agree.

    Args:
        metadata: of the file.
        shapes: of its tensors, of which the output matrix may be absent (tied).
        architecture: what the hyperparameters' names begin with.
        label: the family, for messages.
        keys: the family's further hyperparameters -> keys of config.json.
        other: those that the caller reads itself.

    Raises:
        ValueError: a hyperparameter that is not known, experts, sizes that differ from layer to layer, or heads that
            turn in part.
    """
    start = f"{architecture}."
    own = {key.removeprefix(start): value for key, value in metadata.items() if key.startswith(start)}
    keys = {**GGUF_KEYS, **(keys or {})}
    unknown = sorted(set(own) - set(keys) - GGUF_OTHER_KEYS - set(other))
    if unknown or own.get("expert_count"):
        raise ValueError(
            f"the GGUF file sets {unknown or ['expert_count']}, which the {label} family here does not compute"
        )
    config: dict[str, Any] = {ours: own[key] for key, ours in keys.items() if key in own}
    lists = [key for key, value in config.items() if isinstance(value, list)]
    if lists:
        raise ValueError(
            f"the GGUF file gives {', '.join(lists)} for each layer; the {label} family has one value for all"
        )
    d_head = config["head_dim"] = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    if {own.get("rope.dimension_count", d_head), own.get("attention.value_length", d_head)} != {d_head}:
        raise ValueError(
            f"heads of {d_head} dimensions with rope.dimension_count={own.get('rope.dimension_count')} and "
            f"value_length={own.get('attention.value_length')}: partly rotary or unequal heads are not supported"
        )
    config |= {
        "vocab_size": shapes["token_embd.weight"][0],
        "tie_word_embeddings": "output.weight" not in shapes,
        "attention_bias": "blk.0.attn_q.bias" in shapes,
        "mlp_bias": "blk.0.ffn_up.bias" in shapes,
        "rope_parameters": {"rope_theta": float(own.get("rope.freq_base", 10000.0)), **gguf_scaling(own)},
    }
    return config, own


def gguf_scaling(own: Mapping[str, Any]) -> dict[str, Any]:
    """`rope_parameters` from llama.cpp's words for linear scaling and YaRN; others go on, to be refused by name."""
    kind = own.get("rope.scaling.type", "none")
    if kind == "none":
        return {"rope_type": "default"}
    scaling = {"rope_type": kind, "factor": own.get("rope.scaling.factor")}
    original = own.get("rope.scaling.original_context_length")
    return scaling if original is None else {**scaling, "original_max_position_embeddings": original}
