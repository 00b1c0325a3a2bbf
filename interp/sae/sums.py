"""Sums over rows and what an SAE makes of them, from which every figure of `evaluate` follows.

They add up over batches in float64, so the figures know nothing of the batches; and they are kept for each unit (a text,
a row) that the intervals draw again.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from interp.sae.model import SAE
from interp.sae.tensors import require_finite

_UNITS = 1024
"""Most units that are drawn again; beyond, texts are drawn in bundles, which bounds the memory."""


@dataclass(frozen=True, eq=False)
class MeasuredRows:
    """Rows that are all typical, or all not."""

    x: Float[Tensor, "row d_in"]
    y: Float[Tensor, "row d_out"]
    unit: Int[np.ndarray, " row"]
    """The text of each row, or its own number: what is drawn again."""
    typical: bool = True


class RowSums:
    """What adds up over batches of one kind of rows, in float64; for each unit what the intervals need.

    Squares are taken from a centre, the first row of all: exact for equal rows, and near enough for any others.
    """

    def __init__(self, sae: SAE, widths: tuple[int, ...]) -> None:
        self.sae, self.widths = sae, list(widths)
        self.n, self.l0_sum = torch.zeros(2, _UNITS, dtype=torch.float64)
        self.error, self.square = torch.zeros(2, _UNITS, len(widths), dtype=torch.float64)
        self.sums = torch.zeros(_UNITS, sae.d_out, dtype=torch.float64)
        self.scalars = torch.zeros(6, dtype=torch.float64)
        """Sums over the rows: cosine, norm, norm of what is made, its square, its product with the row, L1."""
        self.l0: list[Int[np.ndarray, " row"]] = []
        self.units: set[int] = set()
        self.fired = torch.zeros(sae.n_latents, dtype=torch.int64)
        self.length = self._by_target(sae.W_dec.double().square()).sqrt().sum(1)

    def _by_target(self, squares: Float64[Tensor, "row d_out"]) -> Float64[Tensor, "row target"]:
        return torch.stack([part.sum(1) for part in squares.split(self.widths, dim=1)], dim=1)

    @torch.no_grad()
    def add(self, batch: MeasuredRows, centre: Float64[Tensor, " d_out"]) -> None:
        """Take in a batch. ValueError for NaN, infinity, or another width."""
        x = self.sae.rows_of(batch.x).to(self.sae.W_enc)
        require_finite(x)
        if batch.y.shape != (len(x), self.sae.d_out):
            raise ValueError(
                f"the SAE writes rows of width {self.sae.d_out}, got {list(batch.y.shape)} to compare with"
            )
        require_finite(batch.y)
        active = self.sae.active(x)
        made = self.sae.reconstruct(x, active).double().cpu()
        y = batch.y.detach().double().cpu()
        unit = torch.from_numpy(batch.unit % _UNITS)
        self.n.index_add_(0, unit, torch.ones(len(y), dtype=torch.float64))
        self.l0_sum.index_add_(0, unit, active.counts.double().cpu())
        self.error.index_add_(0, unit, self._by_target((y - made).square()))
        self.square.index_add_(0, unit, self._by_target((y - centre).square()))
        self.sums.index_add_(0, unit, y - centre)
        rows = [torch.cosine_similarity(y, made, dim=1), y.norm(dim=1), made.norm(dim=1), made.square().sum(1)]
        l1 = (active.values.double() * self.length[active.latent]).sum().cpu()
        self.scalars += torch.stack([*(row.sum() for row in rows), (made * y).sum(), l1])
        self.l0.append(active.counts.cpu().numpy())
        self.units.update(np.unique(batch.unit).tolist())
        self.fired += torch.bincount(active.latent, minlength=self.sae.n_latents).cpu()

    def __add__(self, other: "RowSums") -> "RowSums":
        total = RowSums(self.sae, tuple(self.widths))
        for name in ("n", "l0_sum", "error", "square", "sums", "scalars", "l0", "fired"):
            setattr(total, name, getattr(self, name) + getattr(other, name))
        total.units = self.units | other.units
        return total

    @property
    def n_rows(self) -> int:
        return int(self.n.sum())

    def spread(self) -> Float64[Tensor, "unit target"]:
        """Summed squared distances to the mean row of all units. ValueError where a target has none."""
        mean = self.sums.sum(0) / self.n.sum()  # from the centre, as the sums are
        along = self._by_target(self.sums * mean)
        found = self.square - 2 * along + self.n[:, None] * self._by_target(mean.square()[None])
        if not bool((found.sum(0) > 0).all()):
            raise ValueError(f"all {self.n_rows} rows are equal: there is no variance to explain")
        return found
