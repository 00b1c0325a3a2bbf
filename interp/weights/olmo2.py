"""The OLMo-2 family: norms behind attention and MLP, not before them, and over all queries and keys (arXiv 2501.00656).

What a block adds to the stream has been through an RMSNorm, so `attn_out` and `mlp_out` have the size of its gain. The
norm of queries and keys is taken over all heads at once.
"""

from collections.abc import Mapping
from typing import Any

from interp.model import ModelConfig
from interp.weights.decoder import IGNORABLE, QK_NORMS, decoder_options, decoder_rules
from interp.weights.family import Family, refuse_unsupported
from interp.weights.options import rope_options

POST_NORMS = (("post_attention_layernorm", "ln1_post"), ("post_feedforward_layernorm", "ln2_post"))
RULES = decoder_rules(QK_NORMS, POST_NORMS)

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
    options, bias = decoder_options(config, n_ctx=2048, eps=1e-5), bool(config.get("attention_bias", False))
    return ModelConfig(
        **options,
        **rope_options(config, family="OLMo-2", d_head=options["d_head"]),
        norm_placement="post",
        qk_norm="full",
        qkv_bias=bias,
        out_bias=bias,
        tie_embeddings=bool(config.get("tie_word_embeddings", False)),
        family="olmo2",
        name=name,
    )


FAMILY = Family(
    name="olmo2",
    architecture="Olmo2ForCausalLM",
    architectures=("Olmo2Model",),
    model_type="olmo2",
    prefix="model.",
    configure=configure,
    rules=RULES,
    ignorable=IGNORABLE,
    members="OLMo-2 1B to 32B",
    attention="multi-head, grouped-query, multi-query; norm of queries and keys",
    positions="RoPE (linear, dynamic, YaRN, Llama 3)",
    norm="RMSNorm after attention and MLP, and on all queries and keys at once",
)
