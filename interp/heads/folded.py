"""Weights of heads between tokens and tokens: what they read and write, with the gains of the norms around them.

A head's matrices alone say little in a model whose norms scale dimensions by very different gains. Here:

1. *Reading*: the gain of ln1 is multiplied into W_Q, W_K and W_V, and a LayerNorm's centring is taken out of them.
2. *Writing*: the gain of a norm behind attention (sandwich and post norms) is multiplied into W_O.
3. *Tokens in*: rows of the embedding as the stream gets them (embedding scale, BLOOM's norm), divided by their own norm
   scale. *Tokens out*: rows of the unembedding times the gain of ln_final, so that a product with what a head writes is
   its share of the logits, up to the scale of the whole stream, which depends on the text.
4. Rotary positions turn queries and keys by the distance between them: exact, at a distance that is given.

What depends on the text is left out, and `left_out` names it.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.model import HookedTransformer
from interp.model.block import Block
from interp.model.factored import FactoredMatrix
from interp.model.norm import Norm, accumulate
from interp.model.position import rotate

CHUNK = 4096
"""Rows of the vocabulary at a time."""


def refuse_circuits(model: HookedTransformer, what: str) -> None:
    """ValueError where a head is no product of two matrices between streams that are sums."""
    cfg = model.cfg
    if cfg.latent is not None:
        raise ValueError(
            f"{cfg.name} has no {what}: latent attention makes queries, keys and values through a small normed vector, so "
            "no one matrix takes the stream to them"
        )
    if not cfg.causal or cfg.mlm_head:
        raise ValueError(f"{cfg.name} has no {what}: it is an encoder, whose heads write no next token")
    if cfg.norm_placement == "post_ln":
        raise ValueError(f"{cfg.name} has no {what}: its norms change the stream itself between one head and the next")


def left_out(model: HookedTransformer, which: str, offset: int = 0) -> list[str]:
    """What the weights of a circuit do not hold, in words."""
    cfg = model.cfg
    found = [] if cfg.norm == "none" else ["the scales of norms, which depend on the text"]
    if cfg.norm == "layer" or cfg.qkv_bias:
        found.append("biases of norms and of queries, keys and values")
    if which == "OV":
        return found + (["the soft-cap on logits"] if cfg.final_softcap is not None else [])
    if cfg.qk_norm != "none":
        found.append("the scales of the norms of queries and keys")
    if cfg.positional == "rope":
        found.append(f"rotations at other distances than {offset}")
        if model.rope is not None and model.rope.by_length:
            found.append("the other rotations of texts beyond the original context")
    if cfg.positional == "alibi":
        found.append("ALiBi's bias by distance")
    if cfg.positional in ("learned", "sinusoidal"):
        found.append("positions in the stream")
    return found + (["the soft-cap on scores"] if cfg.attn_softcap is not None else [])


# ------------------------------------------------------------------------------------------------------------- circuits


def ov_circuits(model: HookedTransformer, layer: int) -> FactoredMatrix:
    """W_V W_O of every head of a layer [head d_model d_model], gains of ln1 and ln1_post in it."""
    block, circuit = _block(model, layer), model.OV(layer)
    return FactoredMatrix(_reading(circuit.A, block.ln1), _written(circuit.B, block.ln1_post))


def qk_circuits(model: HookedTransformer, layer: int, offset: int = 0) -> FactoredMatrix:
    """Scores of what a query reads (left) with what a key reads (right), of every head of a layer
    [head d_model d_model].

    The gains of ln1 and of QK-norms and the scaling of scores are in it.

    Args:
        model: a model with plain attention.
        layer: the layer.
        offset: position of the query less that of the key; turns the factors of a rotary model.
    """
    block, circuit = _block(model, layer), model.QK(layer)
    attn, cfg = block.attn, model.cfg
    queries = _reading(circuit.A, block.ln1)
    keys = _reading(circuit.B.transpose(-2, -1), block.ln1)
    groups = cfg.n_heads // cfg.kv_heads
    queries = _normed(queries, getattr(attn, "q_norm", None), 1, cfg.d_head)
    keys = _normed(keys, getattr(attn, "k_norm", None), groups, cfg.d_head)
    queries, keys = _turned(model, block, queries, offset), _turned(model, block, keys, 0)
    return FactoredMatrix(queries * cfg.scaling, keys.transpose(-2, -1))


def _block(model: HookedTransformer, layer: int) -> Block:
    return list(model.iter_blocks())[layer]


def _reading(weight: Float[Tensor, "head d_model d_head"], norm: Norm | None) -> Float[Tensor, "head d_model d_head"]:
    """Step 1."""
    weight = accumulate(weight)
    gain = None if norm is None else norm.multiplier()
    if norm is None or gain is None:
        return weight
    weight = weight * accumulate(gain)[:, None]
    return weight - weight.mean(-2, keepdim=True) if norm.centred else weight


def _written(weight: Float[Tensor, "*rows d_model"], norm: Norm | None) -> Float[Tensor, "*rows d_model"]:
    """Step 2."""
    weight = accumulate(weight)
    gain = None if norm is None else norm.multiplier()
    if norm is None or gain is None:
        return weight
    weight = weight - weight.mean(-1, keepdim=True) if norm.centred else weight
    return weight * accumulate(gain)


def _normed(
    weight: Float[Tensor, "head d_model d_head"], norm: Norm | None, groups: int, d_head: int
) -> Float[Tensor, "head d_model d_head"]:
    """The gain of a QK-norm, which is of one head or of all of them (the kv heads, for keys)."""
    gain = None if norm is None else norm.multiplier()
    if gain is None:
        return weight
    by_head = accumulate(gain).unflatten(0, (-1, d_head))
    return weight * (by_head if len(by_head) == 1 else by_head.repeat_interleave(groups, 0))[:, None]


def _turned(
    model: HookedTransformer, block: Block, weight: Float[Tensor, "head d_model d_head"], position: int
) -> Float[Tensor, "head d_model d_head"]:
    """Rows of the weight as vectors that stand at this position."""
    rope = model.rope_local if block.local else model.rope
    if rope is None:
        return weight
    places = torch.tensor([[position]], device=weight.device)
    cos, sin = rope.angles(places, weight.dtype, torch.ones_like(places[0]) if rope.by_length else None)
    vectors = weight.reshape(-1, 1, 1, weight.shape[-1])
    return rotate(vectors, cos, sin, rope.pairing).reshape(weight.shape)


# --------------------------------------------------------------------------------------------------------------- tokens


def embedding_rows(model: HookedTransformer, ids: Int[Tensor, "token"]) -> Float[Tensor, "token d_model"]:
    """What a token brings into the stream, without its position."""
    rows = model.embed(ids[None].to(model.device))[0]
    if model.cfg.embed_scale is not None:
        rows = rows * torch.tensor(model.cfg.embed_scale, dtype=rows.dtype, device=rows.device)
    if model.embed_norm is not None and model.cfg.embed_norm == "token":
        rows = model.embed_norm.silent(rows)
    return accumulate(rows)


def normed_rows(model: HookedTransformer, rows: Float[Tensor, "*rows d_model"]) -> Float[Tensor, "*rows d_model"]:
    """Streams as ln1 hands them on before its gain: the same for every layer, since layers differ by gain alone."""
    norm = _block(model, 0).ln1
    if norm is None or norm.kind == "none":
        return rows
    return (rows - rows.mean(-1, keepdim=True) if norm.centred else rows) / norm.scale(rows)


def unembedding_rows(model: HookedTransformer, ids: Int[Tensor, "token"] | slice) -> Float[Tensor, "token d_model"]:
    """What the stream is multiplied with for these tokens' logits: the gain of ln_final and its centring in it."""
    rows, norm = accumulate(model.unembedding()[ids]), model.ln_final
    gain = None if norm is None else norm.multiplier()
    if norm is None or gain is None:
        return rows
    rows = rows * accumulate(gain)
    return rows - rows.mean(-1, keepdim=True) if norm.centred else rows


def vocabulary_chunks(model: HookedTransformer) -> Iterator[Int[Tensor, "token"]]:
    """All token ids, a few thousand at a time."""
    yield from torch.arange(model.cfg.d_vocab, device=model.device).split(CHUNK)


def embedding_products(
    model: HookedTransformer, vectors: Float[Tensor, "vector d_model"]
) -> Float[Tensor, "vector d_vocab"]:
    """Products of directions that a head reads with every token's normed embedding."""
    parts = [vectors @ normed_rows(model, embedding_rows(model, ids)).T for ids in vocabulary_chunks(model)]
    return torch.cat(parts, -1)


def logit_products(
    model: HookedTransformer, vectors: Float[Tensor, "vector d_model"]
) -> Float[Tensor, "vector d_vocab"]:
    """Logits of what a head writes, centred over the vocabulary; the scale of the stream is left out."""
    parts = [vectors @ unembedding_rows(model, ids).T for ids in vocabulary_chunks(model)]
    logits = torch.cat(parts, -1)
    return logits - logits.mean(-1, keepdim=True)


def token_texts(model: HookedTransformer, ids: list[int]) -> list[str]:
    """Each token by itself, or its number where the model has no tokenizer."""
    return [str(i) if model.tokenizer is None else model.tokenizer.decode([i]) for i in ids]
