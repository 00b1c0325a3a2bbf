"""ActivationCache as TransformerLens makes it: from a dict of values and the model."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from interp import model as native
from interp.compat.transformer_lens.absent import CACHE, message
from interp.tokens import Tokens


class ActivationCache(native.ActivationCache):
    """Our ActivationCache, whose names and methods are TransformerLens' already, with its constructor.

    Args:
        cache_dict: full site name -> value. Gradients stand under "<name>_grad", or under the name itself in a cache of
            gradients alone.
        model: of this module, or one of ours.
        has_batch_dim: the values have a batch axis.
    """

    def __init__(self, cache_dict: Mapping[str, Tensor], model: Any, has_batch_dim: bool = True) -> None:
        ours = getattr(model, "native", model)
        like = next((value for value in cache_dict.values() if value.ndim > 1), None)
        rows = like.shape[0] if like is not None and has_batch_dim else 1
        # Only the number of texts is known here, and nothing but that is asked of the tokens.
        ids = torch.zeros(rows, 1, dtype=torch.long)
        super().__init__(cache_dict, Tokens(ids, torch.ones_like(ids, dtype=torch.bool)), ours.site_names, ours)
        self.has_batch_dim = has_batch_dim

    def __getattr__(self, name: str) -> Any:
        if name in CACHE:
            raise AttributeError(message(name, CACHE))
        raise AttributeError(f"ActivationCache has no attribute {name!r}")
