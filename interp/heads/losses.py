"""Next-token losses of chosen rows, without the logits of all of them at once."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.model import HookedTransformer
from interp.model.norm import accumulate

UNEMBEDDED = 2**24
"""Most logits held at once: 64 MB in fp32."""


def row_losses(
    model: HookedTransformer, rows: Float[Tensor, "row d_model"], targets: Int[Tensor, "row"]
) -> Float[Tensor, "row"]:
    """-log p of each row's target, from rows of the final stream; fp64."""
    size = max(1, UNEMBEDDED // model.cfg.d_vocab)
    with torch.no_grad():
        found = [
            torch.nn.functional.cross_entropy(accumulate(model.unembed_logits(some)), wanted, reduction="none")
            for some, wanted in zip(rows.split(size), targets.split(size), strict=True)
        ]
    return torch.cat(found).double()
