"""What an SAE explains of activations, measured so that the numbers mean what they say.

    FVU = sum ||x - x_hat||^2 / sum ||x - mean||^2     over all rows: one ratio, one mean, both of these rows

accumulated in float64. Means of ratios per row or per batch, or the mean of one batch, give other numbers. In most
models a few rows (the first token, special tokens, outliers) carry nearly all variance, and any method explains those:
the figures are of typical rows, and those of all rows stand beside them.
"""

import dataclasses
import functools
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from interp.artifact import write_json
from interp.sae.model import SAE
from interp.sae.rows import moments_of, row_numbers
from interp.store import Moments, Store

METRIC_VERSION = "sae-1"
"""Changes whenever a definition does. Figures of different versions are not to be compared."""

DENSE = 0.1
"""A latent is dense when it fires on more than this share of the rows."""


@dataclass(frozen=True)
class SAEReport:
    """How well an SAE describes rows. `_all` marks figures of all rows, with those that are not typical."""

    fvu: float
    """Fraction of variance unexplained; 0 is perfect, 1 is no better than the mean."""
    l0: float
    """Active latents per row."""
    l0_p50: float
    l0_p90: float
    dead_share: float
    """Share of the latents that fire on none of these `n_rows` rows."""
    dense_share: float
    """Share of the latents that fire on more than a tenth of the rows."""
    cosine: float
    """Mean cosine of a row and its reconstruction, both as they are (not centred)."""
    relative_norm: float
    """Summed norm of the reconstructions over summed norm of the rows; below 1 is shrinkage."""
    n_rows: int
    """Rows that the figures are of."""
    n_left_out: int
    """Rows that are not typical; they are in the `_all` figures only."""
    fvu_all: float
    l0_all: float
    cosine_all: float
    relative_norm_all: float
    site: str | None
    metric_version: str = METRIC_VERSION

    def to_frame(self) -> pd.DataFrame:
        """One row, a column for each figure."""
        return pd.DataFrame([dataclasses.asdict(self)])

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the figures as JSON."""
        return write_json(path, {"kind": "sae_report", **dataclasses.asdict(self)})


def evaluate_sae(
    sae: SAE, data: object, *, site: str | None = None, rows: Any = None, batch_size: int = 4096
) -> SAEReport:
    """Measure an SAE on rows that its training did not see.

    Args:
        sae: the SAE.
        data: a float tensor [row d_model], batches of such, or a store. Only a store knows which rows are not typical;
            of the others every row counts.
        site: for a store: the site, where it is not the one in the SAE's card.
        rows: for a store: numbers or a mask of its rows, None for all; `split_rows` makes them.
        batch_size: rows at a time. It does not change the result.

    Raises:
        ValueError: no rows, NaN or infinity, another width, no site, or rows without variance.
    """
    typical, rest = _Sums(sae), _Sums(sae)
    if isinstance(data, Store):
        name = site or sae.site
        if name is None:
            raise ValueError(f"the SAE does not say its site: give site=..., one of {', '.join(data.sites)}")
        wanted, is_typical = row_numbers(data, rows), data.typical(name)
        for sums, numbers in ((typical, wanted[is_typical[wanted]]), (rest, wanted[~is_typical[wanted]])):
            for start in range(0, len(numbers), batch_size):
                sums.add(data.rows(name, numbers[start : start + batch_size]))
    else:
        if rows is not None:
            raise ValueError("rows= chooses rows of a store: give it with a store, or index the tensor yourself")
        if not isinstance(data, Iterable):
            raise ValueError(f"evaluation takes a store, batches or a tensor [row d_model], got {type(data).__name__}")
        name = site or sae.site
        for batch in data.split(batch_size) if isinstance(data, Tensor) else data:
            typical.add(batch)
    return _report(typical, rest, name)


class _Sums:
    """What adds up over batches of one kind of rows, in float64."""

    def __init__(self, sae: SAE) -> None:
        self.sae = sae
        self.moments: Moments | None = None
        self.error = self.cosine = self.norm = self.norm_hat = 0.0
        self.l0 = np.empty(0, dtype=np.int64)
        self.fired = torch.zeros(sae.n_latents, dtype=torch.int64)

    @torch.no_grad()
    def add(self, x: Float[Tensor, "row d_model"]) -> None:
        """Take in a batch. ValueError for NaN, infinity, or another width."""
        if len(x) == 0:
            return
        x = self.sae.rows_of(x).to(self.sae.W_enc)
        part = moments_of([x])
        self.moments = part if self.moments is None else self.moments.merge(part)
        active = self.sae.active(x)
        x, x_hat = x.double(), self.sae.decode_active(active).double()
        self.error += (x - x_hat).square().sum().item()
        self.cosine += torch.cosine_similarity(x, x_hat, dim=1).sum().item()
        self.norm += x.norm(dim=1).sum().item()
        self.norm_hat += x_hat.norm(dim=1).sum().item()
        fires = active.values > 0
        self.l0 = np.append(self.l0, fires.sum(1).cpu().numpy())
        self.fired += torch.bincount(active.index[fires], minlength=self.sae.n_latents).cpu()

    def __add__(self, other: "_Sums") -> "_Sums":
        total = _Sums(self.sae)
        for name in ("error", "cosine", "norm", "norm_hat", "fired"):
            setattr(total, name, getattr(self, name) + getattr(other, name))
        total.l0 = np.append(self.l0, other.l0)
        total.moments = functools.reduce(
            Moments.merge, [part.moments for part in (self, other) if part.moments is not None]
        )
        return total

    @property
    def n_rows(self) -> int:
        return len(self.l0)

    @property
    def fvu(self) -> float:
        assert self.moments is not None
        spread = self.moments.M2.sum().item()
        if not spread > 0:
            raise ValueError(f"all {self.n_rows} rows are equal: there is no variance to explain")
        return self.error / spread


def _report(typical: _Sums, rest: _Sums, site: str | None) -> SAEReport:
    if typical.n_rows == 0:
        raise ValueError(f"there is nothing to measure on: no row, or none of {rest.n_rows} is typical")
    every = typical + rest
    return SAEReport(
        fvu=typical.fvu,
        l0=typical.l0.mean().item(),
        l0_p50=np.quantile(typical.l0, 0.5).item(),
        l0_p90=np.quantile(typical.l0, 0.9).item(),
        dead_share=(typical.fired == 0).double().mean().item(),
        dense_share=(typical.fired > DENSE * typical.n_rows).double().mean().item(),
        cosine=typical.cosine / typical.n_rows,
        relative_norm=typical.norm_hat / typical.norm,
        n_rows=typical.n_rows,
        n_left_out=rest.n_rows,
        fvu_all=every.fvu,
        l0_all=every.l0.mean().item(),
        cosine_all=every.cosine / every.n_rows,
        relative_norm_all=every.norm_hat / every.norm,
        site=site,
    )


def pca_baseline(
    train: Tensor | Iterable[Tensor], held_out: Tensor | Iterable[Tensor], ranks: Iterable[int] = (8, 32, 64, 128)
) -> pd.DataFrame:
    """What plain principal components explain of held-out rows: the least that an SAE must beat.

    Mean and components come from the training rows (exact eigenvectors of the covariance, float64), the variance in the
    denominator from the held-out rows, as in `evaluate_sae`.

    Args:
        train: float tensor [row d_model], or batches of such that can be read twice, such as `store.batches(...)`.
        held_out: likewise.
        ranks: numbers of components.

    Returns:
        A row per rank: rank, fvu, n_train, n_held_out.

    Raises:
        ValueError: no rows, NaN or infinity, different widths, or a rank outside 1 ... d_model.
    """
    ranks = sorted(set(ranks))
    train, held_out = _batches(train), _batches(held_out)
    moments, held_out_moments = moments_of(train), moments_of(held_out)
    d_model = len(moments.mean)
    if len(held_out_moments.mean) != d_model:
        raise ValueError(f"the training rows have width {d_model}, the held-out rows {len(held_out_moments.mean)}")
    if not ranks or not 1 <= ranks[0] <= ranks[-1] <= d_model:
        raise ValueError(f"ranks lie between 1 and the width of the rows, {d_model}; got {ranks}")
    covariance = torch.zeros(d_model, d_model, dtype=torch.float64)
    for batch in train:
        centred = batch.double() - moments.mean
        covariance.addmm_(centred.T, centred)
    components = torch.linalg.eigh(covariance).eigenvectors.flip(1)[:, : ranks[-1]]
    total, explained = 0.0, torch.zeros(ranks[-1], dtype=torch.float64)
    for batch in held_out:
        centred = batch.double() - moments.mean
        total += centred.square().sum().item()
        explained += (centred @ components).square().sum(0)
    spread = held_out_moments.M2.sum().item()
    unexplained = (total - explained.cumsum(0)) / spread
    return pd.DataFrame(
        {
            "rank": ranks,
            "fvu": [unexplained[rank - 1].item() for rank in ranks],
            "n_train": moments.count,
            "n_held_out": held_out_moments.count,
        }
    )


def _batches(data: Tensor | Iterable[Tensor]) -> Iterable[Tensor]:
    if isinstance(data, Iterator):
        raise ValueError("the baseline reads batches twice: give a tensor, a list or store.batches(...), no iterator")
    return data.split(4096) if isinstance(data, Tensor) else data
