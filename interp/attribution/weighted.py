"""Attention weighted by how much the attended value writes (Kobayashi et al. 2020, arXiv 2004.10102).

A head that looks at a token whose value is near zero reads nothing from it; sinks are mostly of this kind. The norm of
v W_O is made from W_O W_O^T, [d_v, d_v], so that no head's output is.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from interp.model import HookedTransformer
from interp.model.named_weights import head_output
from interp.model.norm import Norm


@torch.no_grad()
def value_weighted_attention(
    model: HookedTransformer, x: Any, layer: int | Any
) -> Float[Tensor, "batch head query key"]:
    """pattern * |v W_O|: the length of what each head moves from each key to each query, in units of the stream.

    A norm that follows attention is counted with the scale of the pass. Rows and columns of pads are zero.

    Args:
        model: any loaded model.
        x: what `model.tokenize` takes.
        layer: whose heads; negative counts from the end.

    Raises:
        ValueError: a layer that does not exist.
    """
    n_layers = model.cfg.n_layers
    if not isinstance(layer, int) or isinstance(layer, bool) or not -n_layers <= layer < n_layers:
        raise ValueError(f"layer={layer!r}: the model has layers 0 to {n_layers - 1}")
    layer %= n_layers
    block, tokens = list(model.iter_blocks())[layer], model.tokenize(x)
    names = {kind: f"blocks.{layer}.attn.hook_{kind}" for kind in ("v", "pattern")}
    names |= {"scale": f"blocks.{layer}.ln1_post.hook_scale"} if block.ln1_post is not None else {}
    _, cache = model.run_with_cache(tokens, list(names.values()), stop_at_layer=layer + 1)
    v, pattern, weights = cache[names["v"]], cache[names["pattern"]], head_output(block, model.cfg).double()
    if block.ln1_post is not None:
        weights = _behind(block.ln1_post, weights)
    gram = weights @ weights.mT
    values = v.double().repeat_interleave(weights.shape[0] // v.shape[2], 2)
    size = torch.einsum("bkhv,hvw,bkhw->bhk", values, gram, values).clamp(min=0).sqrt()
    found = pattern.double() * size[:, :, None]
    found = found / cache[names["scale"]].double()[:, None] if "scale" in names else found
    real = tokens.mask[:, None, :, None] & tokens.mask[:, None, None, :]
    return found.masked_fill(~real, 0.0)


def _behind(norm: Norm, writes: Float[Tensor, "head d_v d_model"]) -> Float[Tensor, "head d_v d_model"]:
    """What is written, as a norm hands it on with scale 1 and without its bias: centred first, then the gain."""
    centred = writes - writes.mean(-1, keepdim=True) if norm.centred else writes
    gain = norm.multiplier()
    return centred if gain is None else centred * gain.double()
