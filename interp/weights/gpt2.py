"""The GPT-2 family: LayerNorm, learned positions, plain GELU MLP, biases everywhere (Radford et al. 2019).

Its checkpoints keep weights as [in, out] ("Conv1D") and q, k, v as one matrix. Our parameters are transposed and
narrowed views of the mapped file, so nothing is copied.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from interp.model import ModelConfig
from interp.weights.family import GGUF, Family, Rule, View, activation, need, refuse_unsupported
from interp.weights.fused import check_size


def _transposed(weight: Tensor, _cfg: ModelConfig) -> Tensor:
    return weight.T


def _third(index: int) -> View:
    """The query, key or value part of a joint projection, in Linear layout."""

    def view(joint: Tensor, cfg: ModelConfig) -> Tensor:
        width = cfg.n_heads * cfg.d_head
        check_size(joint, -1, 3 * width, cfg)
        part = joint.narrow(-1, index * width, width)
        return part.T if part.ndim == 2 else part

    return view


RULES = (
    Rule("wte.weight", "embed.weight"),
    Rule("wpe.weight", "pos_embed.weight"),
    *(
        Rule(f"h.{{l}}.attn.c_attn.{part}", f"blocks.{{l}}.attn.{name}.{part}", _third(index))
        for index, name in enumerate("qkv")
        for part in ("weight", "bias")
    ),
    *(
        Rule(f"h.{{l}}.{theirs}.weight", f"blocks.{{l}}.{ours}.weight", _transposed)
        for theirs, ours in (("attn.c_proj", "attn.o"), ("mlp.c_fc", "mlp.up"), ("mlp.c_proj", "mlp.down"))
    ),
    *(
        Rule(f"h.{{l}}.{theirs}.bias", f"blocks.{{l}}.{ours}.bias")
        for theirs, ours in (("attn.c_proj", "attn.o"), ("mlp.c_fc", "mlp.up"), ("mlp.c_proj", "mlp.down"))
    ),
    *(
        Rule(f"h.{{l}}.{theirs}.{part}", f"blocks.{{l}}.{ours}.{part}")
        for theirs, ours in (("ln_1", "ln1"), ("ln_2", "ln2"))
        for part in ("weight", "bias")
    ),
    *(Rule(f"ln_f.{part}", f"ln_final.{part}") for part in ("weight", "bias")),
    Rule("lm_head.weight", "unembed.weight"),
)

HARMLESS = {
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "add_cross_attention": (False,),
    "quantization_config": (),
}
"""Options that change the computation -> the values with which they do nothing."""


def configure(config: Mapping[str, Any], name: str) -> ModelConfig:
    """config.json of a GPT2LMHeadModel -> ModelConfig. ValueError names an option that is not supported."""
    refuse_unsupported(config, HARMLESS, "GPT-2")
    d_model, n_heads = need(config, "n_embd"), need(config, "n_head")
    return ModelConfig(
        n_layers=need(config, "n_layer"),
        d_model=d_model,
        n_heads=n_heads,
        d_head=d_model // n_heads,
        d_mlp=need(config, "n_inner", 4 * d_model),
        d_vocab=need(config, "vocab_size"),
        n_ctx=need(config, "n_positions", 1024),
        act_fn=activation(need(config, "activation_function", "gelu_new")),
        gated_mlp=False,
        norm="layer",
        norm_eps=need(config, "layer_norm_epsilon", 1e-5),
        positional="learned",
        attention_dropout=float(config.get("attn_pdrop", 0.1)),
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        tie_embeddings=bool(config.get("tie_word_embeddings", True)),
        family="gpt2",
        name=name,
    )


# -------------------------------------------------------------------------------------------------------------- GGUF

GGUF_KEYS = {
    "block_count": "n_layer",
    "context_length": "n_positions",
    "embedding_length": "n_embd",
    "feed_forward_length": "n_inner",
    "attention.head_count": "n_head",
    "attention.layer_norm_epsilon": "layer_norm_epsilon",
}

GGUF_RULES = (
    Rule("token_embd.weight", "transformer.wte.weight"),
    Rule("position_embd.weight", "transformer.wpe.weight"),
    *(
        Rule(
            f"blk.{{l}}.{theirs}.{part}",
            f"transformer.h.{{l}}.{ours}.{part}",
            _transposed if matrix and part == "weight" else None,
        )
        for theirs, ours, matrix in (
            ("attn_norm", "ln_1", False),
            ("attn_qkv", "attn.c_attn", True),
            ("attn_output", "attn.c_proj", True),
            ("ffn_norm", "ln_2", False),
            ("ffn_up", "mlp.c_fc", True),
            ("ffn_down", "mlp.c_proj", True),
        )
        for part in ("weight", "bias")
    ),
    *(Rule(f"output_norm.{part}", f"transformer.ln_f.{part}") for part in ("weight", "bias")),
    Rule("output.weight", "lm_head.weight"),
)


def configure_gguf(metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """What config.json would say. ValueError where the file sets a hyperparameter that is not known."""
    own = {key.removeprefix("gpt2."): value for key, value in metadata.items() if key.startswith("gpt2.")}
    unknown = sorted(set(own) - set(GGUF_KEYS) - {"vocab_size"})
    if unknown:
        raise ValueError(f"the GGUF file sets {unknown}, which the GPT-2 family here does not compute")
    return {
        **{ours: own[key] for key, ours in GGUF_KEYS.items() if key in own},
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": shapes["token_embd.weight"][0],
        "activation_function": "gelu_new",
        "tie_word_embeddings": "output.weight" not in shapes,
    }


FAMILY = Family(
    name="gpt2",
    architecture="GPT2LMHeadModel",
    model_type="gpt2",
    prefix="transformer.",
    configure=configure,
    rules=RULES,
    ignorable=("h.{l}.attn.bias", "h.{l}.attn.masked_bias"),
    gguf=GGUF("gpt2", configure_gguf, GGUF_RULES),
    architectures=("GPT2Model",),
    members="GPT-2 small to XL, DistilGPT-2",
    attention="multi-head",
    positions="learned",
    norm="LayerNorm before",
)
