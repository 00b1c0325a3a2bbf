"""What a part of the model writes, read as tokens: the logits that its output adds directly.

The part's output at one place goes through the final norm with the scale that the norm had there, and through the
unembedding, so the effect on one token's logit is that part's share in `direct_logit_attribution`. The mean over the
vocabulary is taken off: a softmax does not see it.
"""

from typing import Any

import pandas as pd
import torch
from torch import Tensor

from interp.model import HookedTransformer
from interp.model.vocabulary import token_labels

COMPONENTS = ("embed", "attn", "mlp", "head")


@torch.inference_mode()
def promoted_tokens(
    model: HookedTransformer,
    x: Any,
    component: str,
    layer: int = -1,
    head: int = -1,
    *,
    pos: int = -1,
    k: int = 10,
) -> pd.DataFrame:
    """The tokens whose logits a part raises and lowers most, directly.

    Args:
        model: any decoder whose stream is a sum.
        x: one text, or what `model.tokenize` takes for one.
        component: of `COMPONENTS`; the embedding has no layer.
        layer: of an attention, MLP or head.
        head: of a head.
        pos: position in the text, negative from the end.
        k: tokens on each side.

    Returns:
        A row per token: side ("promoted" or "suppressed"), rank from 1, token, token_id, effect (logits, less the mean over
        the vocabulary). With a soft-cap the effect is on the logit before it.

    Raises:
        ValueError: an encoder, a post-LN model, several texts, an unknown part, a position outside the text, or a head whose
            attention is normed after its heads were summed, so that no head writes by itself.
    """
    if component not in COMPONENTS:
        raise ValueError(f"component={component!r} is unknown; choose from {', '.join(COMPONENTS)}")
    cfg = model.cfg
    if not cfg.causal or cfg.norm_placement == "post_ln":
        raise ValueError(f"{cfg.name} has no stream that is a sum up to the unembedding")
    if component != "embed" and not 0 <= layer < cfg.n_layers:
        raise ValueError(f"layer {layer} does not exist: the model has {cfg.n_layers}")
    if component == "head" and not 0 <= head < cfg.n_heads:
        raise ValueError(f"head {head} does not exist: a layer has {cfg.n_heads}")
    tokens = model.tokenize(x)
    if len(tokens) != 1:
        raise ValueError(f"promoted_tokens takes one text, got {len(tokens)}")
    n = int(tokens.mask.sum())
    if not -n <= pos < n:
        raise ValueError(f"position {pos} is outside the text of {n} tokens")
    output, final = _output(model, tokens, component, layer, head, pos % n)
    effect = _effect(model, output, final)
    top, low = effect.topk(min(k, len(effect))), (-effect).topk(min(k, len(effect)))
    ids = torch.cat([top.indices, low.indices])
    rank = list(range(1, len(top.indices) + 1))
    return pd.DataFrame(
        {
            "side": ["promoted"] * len(rank) + ["suppressed"] * len(rank),
            "rank": rank * 2,
            "token": [token_labels(model, [i])[0] for i in ids.tolist()],
            "token_id": ids.tolist(),
            "effect": effect[ids].tolist(),
        }
    )


def _output(
    model: HookedTransformer, tokens: Any, component: str, layer: int, head: int, pos: int
) -> tuple[Tensor, Tensor]:
    """What the part wrote at the place, and the stream that the model unembeds there: [d_model] each."""
    last = f"blocks.{model.cfg.n_layers - 1}.hook_resid_post"  # post-LN models were refused
    name = {"attn": f"blocks.{layer}.hook_attn_out", "mlp": f"blocks.{layer}.hook_mlp_out", "embed": "hook_embed"}.get(
        component
    )
    wanted = [name] if name else [f"blocks.{layer}.attn.hook_z", f"blocks.{layer}.hook_attn_out"]
    _, cache = model.run_with_cache(tokens, sites=[*wanted, last])
    real = tokens.mask[0].nonzero()[:, 0][pos]
    final = cache[last][0, real]
    if name:
        return cache[name][0, real], final
    attn: Any = model.blocks[layer].attn
    writes = attn.W_O.to(final.dtype)
    each = torch.einsum("hv,hvd->hd", cache[wanted[0]][0, real], writes)
    bias = getattr(attn, "b_O", None)
    whole = each.sum(0) if bias is None else each.sum(0) + bias
    if not torch.allclose(whole.double(), cache[wanted[1]][0, real].double(), rtol=1e-3, atol=1e-3):
        raise ValueError(f"{model.cfg.name} norms attention after its heads were summed: no head writes by itself")
    return each[head], final


def _effect(model: HookedTransformer, output: Tensor, final: Tensor) -> Tensor:
    """Logits that a write adds, [d_vocab], fp32."""
    norm, unembed, written = model.ln_final, model.unembedding(), output.double()
    if norm is not None and norm.kind != "none":
        # The adjoint of `through`, which is diagonal but for the mean, in that order.
        written = written - written.mean() if norm.centred else written
        gain = norm.multiplier()
        written = written if gain is None else written * gain.double()
        written = written / norm.scale(final[None])[0, 0].double()
    effect = unembed.float() @ written.float()
    return effect - effect.mean()
