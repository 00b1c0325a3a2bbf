"""The tokens that a latent raises and lowers: its decoder row, read through the final norm and the unembedding.

That is the direct path only, of a latent alone in the stream: later blocks and the rest of the stream, which sets the
scale of the norm, are left out. So the order of the tokens means more than the size of the values.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from interp import sites
from interp.model import HookedTransformer
from interp.sae.model import SAE

IN_STREAM = (
    "embed", "pos_embed", "token_type_embed", "full_embed", "resid_pre", "resid_mid", "resid_post", "mlp_in",
    "normalized_resid_post", "attn_out", "mlp_out",
)  # fmt: skip
"""Kinds of sites whose value is the residual stream, or is added to it."""


@torch.no_grad()
def effects_on_logits(
    directions: Float[Tensor, "some d_model"], model: HookedTransformer
) -> Float[Tensor, "some d_vocab"]:
    """What each direction, alone in the stream, adds to the logits of the tokens; float32."""
    rows = directions.to(model.embed.weight)
    # A norm with a bias writes that bias for any input: only what a direction adds to it is its own.
    return (model.unembed_logits(rows) - model.unembed_logits(torch.zeros_like(rows[:1]))).float()


@torch.no_grad()
def effect_columns(
    directions: Float[Tensor, "latent d_model"], model: HookedTransformer, n: int
) -> dict[str, list[list[Any]]]:
    """up_token_ids, up_values (logits), down_token_ids, down_values of each latent, strongest first."""
    columns: dict[str, list[list[Any]]] = {
        "up_token_ids": [],
        "up_values": [],
        "down_token_ids": [],
        "down_values": [],
    }
    for rows in directions.split(256):
        effect = effects_on_logits(rows, model)
        for name, largest in (("up", True), ("down", False)):
            top = effect.topk(n, dim=1, largest=largest)
            columns[f"{name}_token_ids"] += top.indices.tolist()
            columns[f"{name}_values"] += top.values.tolist()
    return columns


@torch.no_grad()
def written_directions(
    sae: SAE, model: HookedTransformer, target: str
) -> tuple[Float[Tensor, "latent d_model"] | None, str]:
    """What each latent adds to the residual stream, and how that was found; None and the reason where it adds nothing, or
    where that is not known.

    Of a crosscoder it is what the latent adds at `target`, one of its sites.

    Raises:
        ValueError: a width that is not that of this model's site.
    """
    decoder = sae.W_dec
    if sae.is_transcoder and sae.targets == sae.sites:
        return None, "the card of this transcoder does not say what it writes"
    if len(sae.targets) > 1:
        decoder = decoder.split([sae.widths[name] for name in sae.targets], dim=1)[sae.targets.index(target)]
    kind, layer = sites.kind_of(target).kind, sites.layer_of(target)
    if kind == "z" and layer is not None:
        W_O = model.W_O[layer].flatten(0, 1)
        _require_width(decoder, W_O.shape[0], model, target)
        return decoder.to(W_O) @ W_O, f"decoder rows of {target} through W_O"
    if kind not in IN_STREAM:
        return None, f"{target} is not written to the residual stream"
    _require_width(decoder, model.cfg.d_model, model, target)
    return decoder, f"decoder rows of {target}"


def _require_width(decoder: Tensor, width: int, model: HookedTransformer, target: str) -> None:
    if decoder.shape[1] != width:
        raise ValueError(
            f"the SAE has width {decoder.shape[1]} at {target}, the model {model.cfg.name} has {width}: is it another "
            "model?"
        )
