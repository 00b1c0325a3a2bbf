"""The BERT family: encoders that see a text from both sides, LayerNorm after each sum (arXiv 1810.04805).

The embedding is the sum of token, position and type (every token of type 0), normed. A masked language model has a head
of its own before the unembedding: dense layer, activation, LayerNorm. A bare `BertModel` has none; its logits are then
the last stream's products with the embedding, and only its streams mean something. The pooler and the next-sentence
head of the pre-training are left out: they read the stream and add nothing to it.
"""

from collections.abc import Mapping
from typing import Any

from interp.model import ModelConfig
from interp.weights.family import Family, Rule, activation, need, refuse_unsupported


def _layer_norm(theirs: str, ours: str) -> tuple[Rule, ...]:
    """Old files, bert-base-uncased's too, call gain and bias gamma and beta."""
    parts = (("weight", "weight"), ("bias", "bias"), ("gamma", "weight"), ("beta", "bias"))
    return tuple(Rule(f"{theirs}.{their}", f"{ours}.{our}") for their, our in parts)


RULES = (
    *(
        Rule(f"embeddings.{theirs}_embeddings.weight", f"{ours}.weight")
        for theirs, ours in (("word", "embed"), ("position", "pos_embed"), ("token_type", "type_embed"))
    ),
    *_layer_norm("embeddings.LayerNorm", "embed_norm"),
    *(
        Rule(f"encoder.layer.{{l}}.{theirs}.{part}", f"blocks.{{l}}.{ours}.{part}")
        for theirs, ours in (
            ("attention.self.query", "attn.q"),
            ("attention.self.key", "attn.k"),
            ("attention.self.value", "attn.v"),
            ("attention.output.dense", "attn.o"),
            ("intermediate.dense", "mlp.up"),
            ("output.dense", "mlp.down"),
        )
        for part in ("weight", "bias")
    ),
    *_layer_norm("encoder.layer.{l}.attention.output.LayerNorm", "blocks.{l}.ln1"),
    *_layer_norm("encoder.layer.{l}.output.LayerNorm", "blocks.{l}.ln2"),
    *(Rule(f"cls.predictions.transform.dense.{part}", f"mlm.dense.{part}") for part in ("weight", "bias")),
    *_layer_norm("cls.predictions.transform.LayerNorm", "mlm.norm"),
    Rule("cls.predictions.decoder.weight", "unembed.weight"),
    # The same bias under two names; where a file has both and they are not tied, the decoder's is the one in use.
    Rule("cls.predictions.bias", "unembed_bias"),
    Rule("cls.predictions.decoder.bias", "unembed_bias"),
)

HARMLESS = {
    "position_embedding_type": ("absolute",),
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "embedding_size": (),
    "quantization_config": (),
}
"""Options that change the computation -> the values with which they do nothing."""


def configure(config: Mapping[str, Any], name: str) -> ModelConfig:
    """config.json of a BertForMaskedLM, BertForPreTraining or BertModel -> ModelConfig.

    Raises:
        ValueError: an option that is not supported, such as BERT as a decoder.
    """
    refuse_unsupported(config, HARMLESS, "BERT")
    d_model, n_heads = need(config, "hidden_size"), need(config, "num_attention_heads")
    head = (config.get("architectures") or [None])[0] != "BertModel"
    return ModelConfig(
        n_layers=need(config, "num_hidden_layers"),
        d_model=d_model,
        n_heads=n_heads,
        d_head=d_model // n_heads,
        d_mlp=need(config, "intermediate_size"),
        d_vocab=need(config, "vocab_size"),
        n_ctx=need(config, "max_position_embeddings", 512),
        act_fn=activation(need(config, "hidden_act", "gelu")),
        gated_mlp=False,
        norm="layer",
        norm_eps=need(config, "layer_norm_eps", 1e-12),
        norm_placement="post_ln",
        final_norm=False,
        positional="learned",
        causal=False,
        embed_norm="sum",
        n_token_types=need(config, "type_vocab_size", 2),
        attention_dropout=need(config, "attention_probs_dropout_prob", 0.1),
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        tie_embeddings=bool(config.get("tie_word_embeddings", True)) or not head,
        unembed_bias=head,
        mlm_head=head,
        family="bert",
        name=name,
    )


FAMILY = Family(
    name="bert",
    architecture="BertForMaskedLM",
    architectures=("BertForPreTraining", "BertModel"),
    model_type="bert",
    prefix="bert.",
    configure=configure,
    rules=RULES,
    ignorable=(
        "embeddings.position_ids",
        *(f"{head}.{part}" for head in ("pooler.dense", "cls.seq_relationship") for part in ("weight", "bias")),
    ),
    members="BERT base and large, MiniLM, BGE, E5",
    attention="multi-head, to both sides",
    positions="learned",
    norm="LayerNorm after each sum",
    note="an encoder: it does not generate, and a bare BertModel's logits mean nothing",
)
