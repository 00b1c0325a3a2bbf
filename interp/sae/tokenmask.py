"""Which tokens of a pass are typical: the rule of `Store.typical`, for tokens that stand in no store."""

from collections.abc import Mapping

import torch
from jaxtyping import Bool
from torch import Tensor

from interp.model import HookedTransformer
from interp.store import OUTLIER_FACTOR
from interp.tokens import Tokens


def ordinary_tokens(model: HookedTransformer, tokens: Tokens) -> Bool[Tensor, "batch pos"]:
    """Tokens that are neither first in their text nor special; pads are no tokens."""
    special = sorted(model.tokenizer.special_ids) if model.tokenizer is not None else []
    ids = torch.tensor(special, dtype=torch.int64, device=tokens.ids.device)
    return tokens.mask & (tokens.positions > 0) & ~torch.isin(tokens.ids, ids)


def typical_tokens(
    model: HookedTransformer, tokens: Tokens, values: Mapping[str, Tensor], norms: Mapping[str, float]
) -> Bool[Tensor, "batch pos"]:
    """Ordinary tokens that are no outlier at any site.

    Args:
        model: its tokenizer knows the special tokens.
        tokens: of the pass.
        values: site -> value [batch pos d], heads joined.
        norms: site -> typical norm; a site that has none is not looked at.
    """
    typical = ordinary_tokens(model, tokens)
    for name, norm in norms.items():
        typical = typical & (values[name].float().norm(dim=-1) <= OUTLIER_FACTOR * norm)
    return typical
