"""The Gemma 3 family, its text part: five layers with a window to one without, and a norm of queries and keys in place of
Gemma 2's soft-caps (arXiv 2503.19786).

Layers with a window turn by a base of their own, without scaling. The models that also see images
(`Gemma3ForConditionalGeneration`) are read without what sees: on text they compute the same.
"""

from collections.abc import Mapping
from typing import Any

from interp.model import ModelConfig
from interp.weights.decoder import (
    GGUF_QK_NORMS,
    GGUF_SANDWICH_NORMS,
    HARMLESS,
    IGNORABLE,
    QK_NORMS,
    SANDWICH_NORMS,
    decoder_options,
    decoder_rules,
    gguf_config,
    gguf_rules,
    minus_one,
    without,
)
from interp.weights.family import GGUF, Family, refuse_unsupported
from interp.weights.gemma2 import attention_scalar
from interp.weights.options import FULL, SLIDING, layer_types_of, rope_dictionary, rope_options, window_options

RULES = decoder_rules(SANDWICH_NORMS, QK_NORMS)

DEFAULTS = {
    "vocab_size": 262_208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}
"""Published values of keys that config.json may leave out: files of the models with images do."""
GLOBAL_THETA, LOCAL_THETA = 1_000_000.0, 10_000.0


def configure(config: Mapping[str, Any], name: str) -> ModelConfig:
    """config.json of a Gemma3ForCausalLM, or of a model with images around one -> ModelConfig.

    Raises:
        ValueError: an option that is not supported, by name.
    """
    text = config.get("text_config")
    if isinstance(text, Mapping):
        config = {**text, **{key: config[key] for key in ("quantization_config",) if key in config}}
    refuse_unsupported(config, {**without(HARMLESS, "final_logit_softcapping"), "mlp_bias": (False,)}, "Gemma 3")
    config = {**DEFAULTS, **config}
    options = decoder_options(config, n_ctx=131_072, act_key="hidden_activation")
    n_layers, bias = options["n_layers"], bool(config.get("attention_bias", False))
    period = int(config.get("sliding_window_pattern") or 6)
    kinds = layer_types_of(config, n_layers, [SLIDING if (i + 1) % period else FULL for i in range(n_layers)])
    return ModelConfig(
        **options,
        **_rotations(config, options["d_head"], kinds),
        **window_options(config["sliding_window"], kinds, "Gemma 3"),
        norm_offset=True,
        norm_placement="sandwich",
        qk_norm="head",
        embed_scale=options["d_model"] ** 0.5,
        attn_scale=config["query_pre_attn_scalar"] ** -0.5,
        final_softcap=config.get("final_logit_softcapping"),
        qkv_bias=bias,
        out_bias=bias,
        tie_embeddings=bool(config.get("tie_word_embeddings", True)),
        family="gemma3",
        name=name,
    )


def _rotations(config: Mapping[str, Any], d_head: int, kinds: list[str]) -> dict[str, Any]:
    """The two rotations: `rope_parameters` by kind of layer (transformers 5), or rope_theta, rope_local_base_freq and a
    rope_scaling that is for the layers without a window."""
    windows = SLIDING in kinds
    if not config.get("rope_parameters"):
        old = {"rope_theta": GLOBAL_THETA, **config}
        local = float(config.get("rope_local_base_freq") or LOCAL_THETA)
        return {**rope_options(old, family="Gemma 3", d_head=d_head), "rope_theta_local": local if windows else None}
    plain = {key: value for key, value in config.items() if key not in ("rope_theta", "rope_scaling")}
    rope, scaling = config["rope_parameters"], config.get("rope_scaling")
    if not isinstance(rope, Mapping) or set(rope) - {FULL, SLIDING}:
        given = sorted(rope) if isinstance(rope, Mapping) else rope
        raise ValueError(f"config.json's rope_parameters must name {FULL} and {SLIDING}, got {given!r}")
    if scaling:  # added by hand: for the layers without a window, key by key
        if not isinstance(scaling, Mapping) or "rope_type" not in scaling:
            raise ValueError(
                f"config.json has rope_parameters and rope_scaling={scaling!r}, which names no rope_type: put the scaling "
                f"into rope_parameters' {FULL}"
            )
        plain["rope_parameters"] = {**rope, FULL: {**(rope.get(FULL) or {}), **scaling}}
    full, local = (
        rope_options(plain, family="Gemma 3", d_head=d_head, default_theta=theta, layer_type=kind)
        for kind, theta in ((FULL, GLOBAL_THETA), (SLIDING, LOCAL_THETA))
    )
    if local["rope_scaling"] is not None and windows:
        kind = rope_dictionary(plain, "Gemma 3", SLIDING).get("rope_type")
        raise ValueError(f"config.json scales the rotation of layers with a window ({kind!r}): not supported")
    return {**full, "rope_theta_local": local["rope_theta"] if windows else None}


def configure_gguf(metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """What config.json would say. Files without a window's pattern or a local base have the published ones."""
    keys = {
        "attention.sliding_window": "sliding_window",
        "final_logit_softcapping": "final_logit_softcapping",
    }
    pattern = "attention.sliding_window_pattern"
    config, own = gguf_config(metadata, shapes, "gemma3", "Gemma 3", keys, other=(pattern, "rope.freq_base_swa"))
    full = {**config["rope_parameters"], "rope_theta": float(own.get("rope.freq_base", GLOBAL_THETA))}
    local = {"rope_type": "default", "rope_theta": float(own.get("rope.freq_base_swa", LOCAL_THETA))}
    given = own.get(pattern, 6)
    if isinstance(given, list):
        kinds = {"layer_types": [SLIDING if sliding else FULL for sliding in given]}
    else:
        kinds = {"sliding_window_pattern": int(given)}
    if "attention.sliding_window" not in own:  # written only where layers have one
        kinds = {"layer_types": [FULL] * config["num_hidden_layers"]}
    return {
        **config,
        **kinds,
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": attention_scalar(config, largest=62),
        "rope_parameters": {FULL: full, SLIDING: local},
    }


FAMILY = Family(
    name="gemma3",
    architecture="Gemma3ForCausalLM",
    architectures=("Gemma3TextModel", "Gemma3ForConditionalGeneration"),
    model_type="gemma3_text",
    prefix="model.",
    other_prefixes=("model.language_model.", "language_model.model.", "language_model."),
    configure=configure,
    rules=RULES,
    ignorable=(*IGNORABLE, "vision_tower.*", "multi_modal_projector.*"),
    gguf=GGUF("gemma3", configure_gguf, gguf_rules(GGUF_SANDWICH_NORMS, GGUF_QK_NORMS, norm_view=minus_one)),
    members="Gemma 3 270M to 27B, text only",
    attention="multi-head, grouped-query, multi-query; norm of queries and keys; sliding window by layer pattern",
    positions="RoPE, another base in layers with a window (linear, dynamic, YaRN, Llama 3 in the others)",
    norm="RMSNorm before and after, of gain 1 + weight, and on each head's query and key",
    note="of models that see images the text part; the embedding is scaled by sqrt(d_model)",
)
