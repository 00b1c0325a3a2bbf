"""SAE: a sparse dictionary as a value. It writes an activation as a sum of a few directions out of many.

1. encode: pre = (x - b_dec) W_enc + b_enc; the architecture says which latents fire, and how strongly
2. decode: x_hat = latents W_dec + b_dec

- `topk`: the k largest of a row, and of those the positive ones (Gao et al. 2024, https://arxiv.org/abs/2406.04093)
- `relu`: the positive ones
- `jumprelu`: those above a threshold of their own (Rajamanoharan et al. 2024, https://arxiv.org/abs/2407.14435);
  BatchTopK and Matryoshka SAEs are of this form once they are trained
- `gated`: one bias decides whether a latent fires, another how strongly (https://arxiv.org/abs/2404.16014)

One class serves four uses, by what it reads and writes: an SAE writes the site that it reads; a transcoder writes
another one, perhaps with a linear path beside the latents (`W_skip`); a crosscoder reads and writes several sites, whose
rows are concatenated in the order of `sites`.

x is raw: the input scale of the training is folded into the weights already. Rows of W_dec of a trained SAE have length
1, so the value of a latent is the length of what it adds, in the units of the activations. A trained SAE is frozen
(`requires_grad` is off); gradients still flow through it to x.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from interp.artifact import load_artifact, save_artifact
from interp.sae.select import above, pattern_of_rows, top_of_rows
from interp.sae.sparse import Pattern, sparse_decode

ARCHITECTURES = ("topk", "relu", "jumprelu", "gated")
_OPTIONAL = ("threshold", "b_mag", "r_mag", "W_skip")


@dataclass(frozen=True, eq=False)
class ActiveLatents:
    """The latents that fire, as a sparse matrix [row latent] in compressed rows."""

    values: Float[Tensor, " n"]
    """Their activations, all above 0."""
    latent: Int64[Tensor, " n"]
    """Which latents they are; the entries of a row stand together."""
    starts: Int64[Tensor, " bounds"]
    """[rows + 1]: the entries of row r are starts[r]:starts[r + 1]."""

    @property
    def n_rows(self) -> int:
        """Rows, those in which nothing fires included."""
        return len(self.starts) - 1

    @property
    def counts(self) -> Int64[Tensor, " row"]:
        """How many latents fire in each row: its L0."""
        return self.starts.diff()

    @property
    def row(self) -> Int64[Tensor, " n"]:
        """The row of each entry."""
        return torch.arange(self.n_rows, device=self.starts.device).repeat_interleave(self.counts)

    def dense(self, n_latents: int) -> Float[Tensor, "row latent"]:
        """The whole matrix, zeros included."""
        return Pattern(self.starts, self.latent, n_latents).dense(self.values)


class SAE(nn.Module):
    """A sparse dictionary on raw activations, made by `train_sae`, `load_sae` or a reader of another format.

    Args:
        W_enc: encoder directions as columns, [d_in latent].
        b_enc: encoder bias; in a gated SAE the one of the gate.
        W_dec: decoder directions as rows, [latent d_out].
        b_dec: what the reconstruction is without any latent.
        k: latents that a row may use, for `topk`.
        architecture: one of ARCHITECTURES; where None, what the other arguments make of it.
        threshold: [latent], for `jumprelu`.
        b_mag, r_mag: [latent], for `gated`: a latent's value is relu(exp(r_mag) * (pre without b_enc) + b_mag).
        W_skip: [d_in d_out], a linear path from what is read to what is written.
        apply_b_dec_to_input: whether b_dec is taken off x first. None: yes for an SAE, no where it writes other sites
            than it reads or has a skip path.
        card: where it comes from: sites, model, configuration, statistics, final metrics.

    Raises:
        ValueError: shapes that do not fit each other, an unknown architecture or one whose tensors are missing, or k
            outside 1 ... latents.
    """

    threshold: Tensor | None
    b_mag: Tensor | None
    r_mag: Tensor | None
    W_skip: Tensor | None

    def __init__(
        self,
        W_enc: Tensor,
        b_enc: Tensor,
        W_dec: Tensor,
        b_dec: Tensor,
        *,
        k: int | None = None,
        architecture: str | None = None,
        threshold: Tensor | None = None,
        b_mag: Tensor | None = None,
        r_mag: Tensor | None = None,
        W_skip: Tensor | None = None,
        apply_b_dec_to_input: bool | None = None,
        card: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        _check_shapes(W_enc, b_enc, W_dec, b_dec)
        self.W_enc: Float[Tensor, "d_in latent"] = nn.Parameter(W_enc, requires_grad=False)
        self.b_enc: Float[Tensor, " latent"] = nn.Parameter(b_enc, requires_grad=False)
        self.W_dec: Float[Tensor, "latent d_out"] = nn.Parameter(W_dec, requires_grad=False)
        self.b_dec: Float[Tensor, " d_out"] = nn.Parameter(b_dec, requires_grad=False)
        for name, value in (("threshold", threshold), ("b_mag", b_mag), ("r_mag", r_mag), ("W_skip", W_skip)):
            wanted = (self.d_in, self.d_out) if name == "W_skip" else (self.n_latents,)
            if value is not None and value.shape != wanted:
                raise ValueError(f"{name} has the shape {list(value.shape)}, this SAE needs {list(wanted)}")
            setattr(self, name, None if value is None else nn.Parameter(value, requires_grad=False))
        self.k = k
        self.card = dict(card or {})
        self.sites, self.targets, self.widths = _places(self.card, self.d_in)
        self.architecture = self._architecture(architecture)
        plain = not self.is_transcoder and W_skip is None and self.d_in == self.d_out
        self.apply_b_dec_to_input = plain if apply_b_dec_to_input is None else apply_b_dec_to_input
        if self.apply_b_dec_to_input and self.d_in != self.d_out:
            raise ValueError(f"b_dec has width {self.d_out}, x has {self.d_in}: it cannot be taken off the input")

    def _architecture(self, wanted: str | None) -> str:
        given = {"topk": self.k is not None, "jumprelu": self.threshold is not None, "gated": self.b_mag is not None}
        name = wanted or next((name for name, there in given.items() if there), "relu")
        if name not in ARCHITECTURES:
            raise ValueError(
                f"an SAE of architecture {name!r} does not exist here; there are {', '.join(ARCHITECTURES)}"
            )
        needs = {"topk": "k", "jumprelu": "threshold", "gated": "b_mag and r_mag"}
        if not given.get(name, True) or (name == "gated" and self.r_mag is None):
            raise ValueError(f"an SAE of architecture {name} needs {needs[name]}")
        if name == "topk" and not 1 <= (self.k or 0) <= self.n_latents:
            raise ValueError(f"k must lie between 1 and the {self.n_latents} latents, got {self.k}")
        return name

    @property
    def d_in(self) -> int:
        """Width of what it reads."""
        return self.W_enc.shape[0]

    @property
    def d_out(self) -> int:
        """Width of what it writes."""
        return self.W_dec.shape[1]

    @property
    def d_model(self) -> int:
        """Width of the activations that it reads."""
        return self.d_in

    @property
    def n_latents(self) -> int:
        """Number of latents, dead ones included."""
        return self.W_enc.shape[1]

    @property
    def site(self) -> str | None:
        """Full name of the one place that it reads; None where it is not known, or where there are several."""
        return self.sites[0] if len(self.sites) == 1 else None

    @property
    def is_transcoder(self) -> bool:
        """Whether it writes something else than it reads, also where its sites are not known."""
        imported = (self.card.get("imported") or {}).get("transcoder", False)
        return self.sites != self.targets or self.W_skip is not None or self.d_in != self.d_out or bool(imported)

    def require_raw(self) -> None:
        """ValueError where it does not read activations as they are, so that rows of a store mean nothing to it."""
        if how := (self.card.get("imported") or {}).get("row_norm"):
            raise ValueError(
                f"this SAE reads rows that are normalised one by one ({how}), not those of a store: make them with "
                "normalize_rows of interp.sae.formats and give them as a tensor"
            )

    def pre_activations(self, x: Float[Tensor, "row d_in"]) -> Float[Tensor, "row latent"]:
        """What the encoder says of each latent, before the architecture decides."""
        x = x.to(self.W_enc.dtype)
        return torch.addmm(self.b_enc, x - self.b_dec if self.apply_b_dec_to_input else x, self.W_enc)

    def active(self, x: Float[Tensor, "row d_in"]) -> ActiveLatents:
        """The latents that fire only: L0 numbers a row instead of `n_latents`."""
        if not math.isfinite(x.detach().sum()) and len(bad := (~x.isfinite().all(dim=1)).nonzero()):
            raise ValueError(
                f"{len(bad)} of {len(x)} rows that the SAE reads are NaN or infinite, the first is row {int(bad[0])}"
            )
        pre = self.pre_activations(x)
        if self.architecture == "topk":
            assert self.k is not None
            pattern = pattern_of_rows(top_of_rows(pre.detach(), self.k), self.n_latents)
        elif self.architecture == "jumprelu":
            assert self.threshold is not None
            pattern = above(pre.detach() - self.threshold)
        else:
            pattern = above(pre.detach())
        values = self._values(pattern.at(pre), pattern.latent)
        if bool((values > 0).all()):
            return ActiveLatents(values, pattern.latent, pattern.starts)
        fires = pattern.subset(values > 0)
        return ActiveLatents(values[values > 0], fires.latent, fires.starts)

    def _values(self, pre: Float[Tensor, " n"], latent: Int64[Tensor, " n"]) -> Float[Tensor, " n"]:
        if self.architecture != "gated":
            return pre.relu()
        assert self.b_mag is not None
        assert self.r_mag is not None
        return ((pre - self.b_enc[latent]) * self.r_mag.exp()[latent] + self.b_mag[latent]).relu()

    def encode(self, x: Float[Tensor, "*batch d_in"]) -> Float[Tensor, "*batch latent"]:
        """Latent activations, zeros included. ValueError where x has another width."""
        return self.active(self.rows_of(x)).dense(self.n_latents).view(*x.shape[:-1], self.n_latents)

    def decode(self, latents: Float[Tensor, "*batch latent"]) -> Float[Tensor, "*batch d_out"]:
        """What these latents stand for, without the skip path."""
        return latents @ self.W_dec + self.b_dec

    def decode_active(self, active: ActiveLatents) -> Float[Tensor, "row d_out"]:
        """`decode` of the sparse form: the same result at a fraction of the cost."""
        pattern = Pattern(active.starts, active.latent, self.n_latents)
        return sparse_decode(active.values, pattern, self.W_dec) + self.b_dec

    def reconstruct(self, x: Float[Tensor, "row d_in"], active: ActiveLatents) -> Float[Tensor, "row d_out"]:
        """`decode_active`, with what the skip path adds."""
        out = self.decode_active(active)
        return out if self.W_skip is None else out + x.to(out.dtype) @ self.W_skip

    def forward(self, x: Float[Tensor, "*batch d_in"]) -> Float[Tensor, "*batch d_out"]:
        """What it makes of x, in the SAE's own dtype: of an SAE the reconstruction. ValueError for another width."""
        rows = self.rows_of(x)
        return self.reconstruct(rows, self.active(rows)).view(*x.shape[:-1], self.d_out)

    def rows_of(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "row width"]:
        """x with all axes but the last joined. ValueError where it is not of the SAE's width."""
        if x.shape[-1] != self.d_in:
            raise ValueError(f"the SAE reads rows of width {self.d_in}, got {list(x.shape)}: is it another site?")
        return x.reshape(-1, self.d_in)

    def split_target(self, rows: Float[Tensor, "*batch d_out"]) -> dict[str, Tensor]:
        """What is written, site by site."""
        assert self.targets, "the card names no site"
        parts = rows.split([self.widths[name] for name in self.targets], dim=-1)
        return dict(zip(self.targets, parts, strict=True))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write one safetensors file with the card. `load_sae` reads it."""
        own = {
            "architecture": self.architecture,
            "k": self.k,
            "apply_b_dec_to_input": self.apply_b_dec_to_input,
            "d_model": self.d_model,
            "n_latents": self.n_latents,
        }
        return save_artifact(path, "sae", dict(self.state_dict()), {**self.card, **own})

    def extra_repr(self) -> str:
        what = f"k={self.k}, " if self.k else ""
        where = f"{', '.join(self.sites)} -> {', '.join(self.targets)}" if self.is_transcoder else ", ".join(self.sites)
        return f"{self.architecture}, d_in={self.d_in}, n_latents={self.n_latents}, {what}sites={where or None}"


def _check_shapes(W_enc: Tensor, b_enc: Tensor, W_dec: Tensor, b_dec: Tensor) -> None:
    got = [tuple(tensor.shape) for tensor in (W_enc, b_enc, W_dec, b_dec)]
    fits = W_enc.ndim == W_dec.ndim == 2 and got[1] == got[0][1:] == got[2][:1] and got[3] == got[2][1:]
    if not fits or 0 in got[0]:
        raise ValueError(
            f"tensors of shapes {got} do not make an SAE: wanted W_enc [d_in latent], b_enc [latent], "
            "W_dec [latent d_out], b_dec [d_out]"
        )


def _places(card: Mapping[str, Any], d_in: int) -> tuple[tuple[str, ...], tuple[str, ...], dict[str, int]]:
    """Sites read, sites written and their widths, as the card tells them."""
    one = card.get("site")
    sites = tuple(card.get("sites") or ([one] if one else []))
    targets = tuple(card.get("targets") or sites)
    widths = dict(card.get("widths") or ({one: d_in} if one else {}))
    return sites, targets, widths


def load_sae(path: str | os.PathLike[str]) -> SAE:
    """Read an SAE that `SAE.save` wrote.

    Raises:
        ValueError: no such file, another kind of artefact, a damaged one, or an architecture that does not exist here.
    """
    tensors, card = load_artifact(path, "sae")
    required = ("W_enc", "b_enc", "W_dec", "b_dec")
    missing = set(required) - set(tensors)
    if missing:
        raise ValueError(f"{path} lacks {', '.join(sorted(missing))}: make the file again")
    unknown = set(tensors) - {*required, *_OPTIONAL}
    if unknown:
        raise ValueError(f"{path} holds {', '.join(sorted(unknown))}, which no SAE has here: a newer version wrote it")
    return SAE(
        *(tensors[name] for name in required),
        **{name: tensors[name] for name in _OPTIONAL if name in tensors},
        k=card.get("k"),
        architecture=card.get("architecture"),
        apply_b_dec_to_input=card.get("apply_b_dec_to_input"),
        card=card,
    )
