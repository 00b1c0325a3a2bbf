"""SAE: a sparse autoencoder as a value. It writes an activation as a sum of a few directions out of many.

1. encode: pre = (x - b_dec) W_enc + b_enc; keep the k largest entries of each row, and of those the positive ones
2. decode: x_hat = latents W_dec + b_dec

Rows of W_dec have length 1, so the value of a latent is the length of what it adds, in the units of the activations. x
is raw: the input scale of the training is folded into the biases already. A trained SAE is frozen (`requires_grad` is
off); gradients still flow through it to x.

Gao et al. 2024, Scaling and evaluating sparse autoencoders, https://arxiv.org/abs/2406.04093.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from interp.artifact import load_artifact, save_artifact


@dataclass(frozen=True)
class ActiveLatents:
    """The active latents of each row, largest first."""

    values: Float[Tensor, "row k"]
    """Their activations; 0 where fewer than k are positive."""
    index: Int[Tensor, "row k"]
    """Which latents they are."""


class SAE(nn.Module):
    """A TopK sparse autoencoder on raw activations, made by `train_sae` or `load_sae`.

    Args:
        W_enc: encoder directions as columns.
        b_enc: encoder bias.
        W_dec: decoder directions as rows.
        b_dec: what the reconstruction is without any latent; taken off the input too.
        k: latents that a row may use.
        card: where it comes from: site, model, configuration, statistics, final metrics.

    Raises:
        ValueError: shapes that do not fit each other, or k outside 1 ... latents.
    """

    def __init__(
        self,
        W_enc: Tensor,
        b_enc: Tensor,
        W_dec: Tensor,
        b_dec: Tensor,
        *,
        k: int,
        card: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        got = [tuple(tensor.shape) for tensor in (W_enc, b_enc, W_dec, b_dec)]
        if W_enc.ndim != 2 or got[1:] != [got[0][1:], got[0][::-1], got[0][:1]]:
            raise ValueError(
                f"tensors of shapes {got} do not make an SAE: wanted W_enc [d_model latent], b_enc [latent], "
                "W_dec [latent d_model], b_dec [d_model]"
            )
        if not 1 <= k <= W_enc.shape[1]:
            raise ValueError(f"k must lie between 1 and the {W_enc.shape[1]} latents, got {k}")
        self.W_enc: Float[Tensor, "d_model latent"] = nn.Parameter(W_enc, requires_grad=False)
        self.b_enc: Float[Tensor, " latent"] = nn.Parameter(b_enc, requires_grad=False)
        self.W_dec: Float[Tensor, "latent d_model"] = nn.Parameter(W_dec, requires_grad=False)
        self.b_dec: Float[Tensor, " d_model"] = nn.Parameter(b_dec, requires_grad=False)
        self.k = k
        self.card = dict(card or {})

    @property
    def d_model(self) -> int:
        """Width of the activations."""
        return self.W_enc.shape[0]

    @property
    def n_latents(self) -> int:
        """Number of latents, dead ones included."""
        return self.W_enc.shape[1]

    @property
    def site(self) -> str | None:
        """Full name of the place in the model that it was trained on, None where training was not told."""
        return self.card.get("site")

    def active(self, x: Float[Tensor, "row d_model"]) -> ActiveLatents:
        """The active latents only: k numbers a row instead of `n_latents`."""
        x = x.to(self.W_enc.dtype)
        top = torch.addmm(self.b_enc, x - self.b_dec, self.W_enc).topk(self.k, dim=-1)
        return ActiveLatents(top.values.relu(), top.indices)

    def encode(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch latent"]:
        """Latent activations, zero but for at most k a row. ValueError where x has another width."""
        active = self.active(self.rows_of(x))
        latents = active.values.new_zeros(len(active.values), self.n_latents)
        return latents.scatter(1, active.index, active.values).view(*x.shape[:-1], self.n_latents)

    def decode(self, latents: Float[Tensor, "*batch latent"]) -> Float[Tensor, "*batch d_model"]:
        """The activations that these latents stand for."""
        return latents @ self.W_dec + self.b_dec

    def decode_active(self, active: ActiveLatents) -> Float[Tensor, "row d_model"]:
        """`decode` of the sparse form: the same result at k / n_latents of the cost."""
        return (
            functional.embedding_bag(active.index, self.W_dec, per_sample_weights=active.values, mode="sum")
            + self.b_dec
        )

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """The reconstruction of x, in the SAE's own dtype. ValueError where x has another width."""
        return self.decode_active(self.active(self.rows_of(x))).view(x.shape)

    def rows_of(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "row width"]:
        """x with all axes but the last joined. ValueError where it is not of the SAE's width."""
        if x.shape[-1] != self.d_model:
            raise ValueError(f"the SAE reads rows of width {self.d_model}, got {list(x.shape)}: is it another site?")
        return x.reshape(-1, self.d_model)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write one safetensors file with the card. `load_sae` reads it."""
        card = {**self.card, "architecture": "topk", "k": self.k, "d_model": self.d_model, "n_latents": self.n_latents}
        return save_artifact(path, "sae", dict(self.state_dict()), card)

    def extra_repr(self) -> str:
        return f"d_model={self.d_model}, n_latents={self.n_latents}, k={self.k}, site={self.site!r}"


def load_sae(path: str | os.PathLike[str]) -> SAE:
    """Read an SAE that `SAE.save` wrote.

    Raises:
        ValueError: no such file, another kind of artefact, a damaged one, or an architecture that does not exist here.
    """
    tensors, card = load_artifact(path, "sae")
    if card.get("architecture") != "topk":
        raise ValueError(f"{path} holds an SAE of architecture {card.get('architecture')!r}; topk is what exists here")
    missing = {"W_enc", "b_enc", "W_dec", "b_dec"} - set(tensors)
    if missing:
        raise ValueError(f"{path} lacks {', '.join(sorted(missing))}: make the file again")
    return SAE(*(tensors[name] for name in ("W_enc", "b_enc", "W_dec", "b_dec")), k=card["k"], card=card)
