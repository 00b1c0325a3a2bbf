"""What an SAE explains of activations, measured so that the numbers mean what they say.

    FVU = sum ||y - y_hat||^2 / sum ||y - mean||^2     over all rows: one ratio, one mean, both of these rows

accumulated in float64. Means of ratios per row or per batch, or the mean of one batch, give other numbers. y is what is
to be written: for an SAE the row that it reads, for a transcoder the row of its target, for a crosscoder the rows of all
its sites side by side, each also measured alone.

In most models a few rows (the first token, special tokens, outliers) carry nearly all variance, and any method explains
those: the figures are of typical rows, and those of all rows stand beside them.

Rows of a text resemble each other, so the intervals come from drawing whole texts (where they are pieces of documents,
whole documents) again; without a store each row is drawn alone. The mean row is held fixed in the draws. To bound the
memory, texts beyond 1,024 are drawn in 1,024 bundles.
"""

import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float64, Int
from torch import Tensor

from interp.artifact import read_json, write_json
from interp.bootstrap import ratio_interval
from interp.sae.model import SAE
from interp.sae.roles import full_name, known_targets
from interp.sae.rows import documents, row_numbers
from interp.sae.sums import MeasuredRows, RowSums
from interp.sae.tensors import moments_of
from interp.store import Store

METRIC_VERSION = "sae-1"
"""Changes whenever a definition does. Figures of different versions are not to be compared."""

DENSE = 0.1
"""A latent is dense when it fires on more than this share of the rows."""


@dataclass(frozen=True)
class SAEReport:
    """How well an SAE describes rows. `_all` marks figures of all rows, with those that are not typical."""

    fvu: float
    """Fraction of variance unexplained; 0 is perfect, 1 is no better than the mean. Of several targets together the
    joint one, in raw units: a target with large rows weighs more."""
    fvu_low: float | None
    """Lower end of the 95 % interval, `n_units` drawn again; None for a single unit."""
    fvu_high: float | None
    """Upper end."""
    fvu_by_site: dict[str, float]
    """Target -> its own FVU; empty where the SAE does not say its sites."""
    l0: float
    """Active latents per row."""
    l0_low: float | None
    l0_high: float | None
    l0_p10: float
    l0_p50: float
    l0_p90: float
    l0_p99: float
    l0_max: int
    l0_wanted: float | None
    """The L0 that the thresholds were calibrated to, else the one that training aimed at: k, or the target of the
    penalty; None where there was none, or the card does not say."""
    l1: float
    """Mean sum of activation times length of the decoder row (of several targets the sum of the lengths), per row."""
    dead_share: float
    """Share of the latents that fire on none of these `n_rows` rows."""
    dense_share: float
    """Share of the latents that fire on more than a tenth of the rows."""
    cosine: float
    """Mean cosine of a row and what is made for it, both as they are (not centred)."""
    relative_norm: float
    """Summed norm of what is made over summed norm of the rows; below 1 is shrinkage."""
    reconstruction_bias: float | None
    """sum ||y_hat||^2 / sum y . y_hat: below 1 where a longer y_hat would be nearer (Rajamanoharan et al. 2024,
    https://arxiv.org/abs/2404.16014); None where y_hat is zero."""
    n_rows: int
    """Rows that the figures are of."""
    n_left_out: int
    """Rows that are not typical; they are in the `_all` figures only."""
    n_units: int
    """Texts or documents of a store, else rows: what the intervals draw again."""
    n_latents: int
    fvu_all: float
    l0_all: float
    cosine_all: float
    relative_norm_all: float
    site: str | None
    """What it reads; several sites with commas between them."""
    target: str | None
    """What it writes."""
    metric_version: str = METRIC_VERSION

    @property
    def explained_variance(self) -> float:
        """1 - FVU."""
        return 1 - self.fvu

    @property
    def l0_error(self) -> float | None:
        """l0 / l0_wanted - 1: how far a learned threshold is from the L0 that training aimed at."""
        return self.l0 / self.l0_wanted - 1 if self.l0_wanted else None

    def to_frame(self) -> pd.DataFrame:
        """One row, a column for each figure; of several targets also `fvu:<target>`."""
        figures = dataclasses.asdict(self)
        by_site = figures.pop("fvu_by_site")
        parts = {f"fvu:{name}": fvu for name, fvu in by_site.items()} if len(by_site) > 1 else {}
        return pd.DataFrame([{**figures, **parts}])

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the figures as JSON; `load_sae_report` reads it."""
        return write_json(path, {"kind": "sae_report", **dataclasses.asdict(self)})


def load_sae_report(path: str | os.PathLike[str]) -> SAEReport:
    """Read what `SAEReport.save` wrote. ValueError for another file, or figures of another metric version."""
    return SAEReport(**read_figures(path, "sae_report", SAEReport))


def read_figures(path: str | os.PathLike[str], kind: str, report: type[Any]) -> dict[str, Any]:
    """The fields of a saved report. ValueError for a file of another kind, another metric version, or a part of one."""
    content = read_json(path)
    if not isinstance(content, dict) or content.pop("kind", None) != kind:
        raise ValueError(f"{path} holds no {kind.replace('_', ' ')}")
    if content.get("metric_version") != METRIC_VERSION:
        raise ValueError(
            f"{path} has figures of version {content.get('metric_version')!r}, these are {METRIC_VERSION!r}: they are not "
            "to be compared, so measure again"
        )
    fields = {field.name for field in dataclasses.fields(report)}
    if set(content) != fields:
        raise ValueError(f"{path} is not a whole report ({', '.join(sorted(fields ^ set(content)))}): measure again")
    return content


def evaluate_sae(
    sae: SAE,
    data: object,
    *,
    site: str | Sequence[str] | None = None,
    target: Any = None,
    rows: Any = None,
    batch_size: int | Any = 4096,
    seed: int = 0,
) -> SAEReport:
    """Measure an SAE, transcoder or crosscoder on rows that its training did not see.

    Args:
        sae: the SAE.
        data: a store; a float tensor [row d_in], or {site: tensor [row d]} of the same rows; or batches of either. Only a
            store knows which rows are not typical (at any of the sites involved); of the others every row counts.
        site: for a store: what is read, where it is not what the card says; a list for a crosscoder.
        target: for a transcoder: of a store, of {site: tensor} or of batches of them the site that it writes, where it is
            not what the card says; for a tensor the tensor [row d_out] that it should write.
        rows: for a store: numbers, a mask or a slice of its rows, None for all; `split_rows` makes them.
        batch_size: rows at a time. It does not change the result.
        seed: of the draws for the intervals.

    Raises:
        ValueError: no rows, NaN or infinity, another width, no site or target, or rows without variance.
    """
    if not isinstance(batch_size, int) or batch_size < 1:
        raise ValueError(f"batch_size is a number of rows, at least 1; got {batch_size!r}")
    if isinstance(data, Store):
        sae.require_raw()
        plan = _of_store(sae, data, site, target, rows, batch_size)
    elif rows is not None:
        raise ValueError("rows= chooses rows of a store: give it with a store, or index the tensor yourself")
    else:
        plan = _of_batches(sae, data, site, target, batch_size)
    typical, rest = RowSums(sae, plan.widths), RowSums(sae, plan.widths)
    centre: Tensor | None = None
    for batch in plan.batches:
        if len(batch.x):
            centre = batch.y[0].detach().double().cpu() if centre is None else centre
            (typical if batch.typical else rest).add(batch, centre)
    return _report(plan, typical, rest, seed)


@dataclass(frozen=True)
class _Plan:
    """What is read, and what it is called."""

    batches: Iterator[MeasuredRows]
    sites: tuple[str, ...]
    targets: tuple[str, ...]
    widths: tuple[int, ...]
    """Columns of y that belong to each target, in order; one entry where the targets are not known."""


def _of_store(
    sae: SAE, store: Store, site: str | Sequence[str] | None, target: Any, rows: Any, batch_size: int
) -> _Plan:
    sites = _sites(sae, site)
    if not sites:
        raise ValueError(f"the SAE does not say its site: give site=..., one of {', '.join(store.sites)}")
    if target is not None and not isinstance(target, str):
        raise ValueError(f"of a store, target= is the name of a site, got {type(target).__name__}")
    targets = (full_name(target),) if target is not None else known_targets(sae) if sae.is_transcoder else sites
    wanted = row_numbers(store, rows)
    typical = np.logical_and.reduce([store.typical(name) for name in dict.fromkeys((*sites, *targets))])
    unit = documents(store)

    def read(names: tuple[str, ...], numbers: Int[np.ndarray, " row"]) -> Tensor:
        return torch.cat([store.rows(name, numbers) for name in names], dim=1)

    def batches() -> Iterator[MeasuredRows]:
        for kind in (True, False):
            numbers = wanted[typical[wanted] == kind]
            for start in range(0, len(numbers), batch_size):
                part = numbers[start : start + batch_size]
                x = read(sites, part)
                yield MeasuredRows(x, x if targets == sites else read(targets, part), unit[part], kind)

    return _Plan(batches(), sites, targets, tuple(store.width(name) for name in targets))


def _sites(sae: SAE, site: str | Sequence[str] | None) -> tuple[str, ...]:
    """Full names of what is read."""
    named = () if site is None else (site,) if isinstance(site, str) else tuple(site)
    return tuple(map(full_name, named)) or sae.sites


def _of_batches(sae: SAE, data: object, site: str | Sequence[str] | None, target: Any, batch_size: int) -> _Plan:
    if not isinstance(data, Iterable):
        raise ValueError(f"evaluation takes a store, batches or a tensor [row d_in], got {type(data).__name__}")
    if target is not None and not isinstance(target, Tensor if isinstance(data, Tensor) else str):
        raise ValueError(
            "of a tensor, target= is the tensor [row d_out] that should be written; of {site: tensor}, the name of a site"
        )
    sites = _sites(sae, site)
    targets, written = ((full_name(target),), None) if isinstance(target, str) else (_targets(sae, sites), target)
    if isinstance(data, Mapping):
        data, y = _of_sites(sae, data, sites, targets)
        written = None if y is data else y
    if isinstance(data, Tensor) and written is not None and len(data) != len(written):
        raise ValueError(f"there are {len(data)} rows to read and {len(written)} to write: they are the same rows")

    def pairs() -> Iterator[tuple[Tensor, Tensor]]:
        if isinstance(data, Tensor):
            read = data.split(batch_size)
            yield from zip(read, read if written is None else written.split(batch_size), strict=True)
        else:
            yield from (_of_sites(sae, batch, sites, targets) for batch in data)

    def batches() -> Iterator[MeasuredRows]:
        n = 0
        for x, y in pairs():
            if x is y and (sae.is_transcoder or targets != sites):
                raise ValueError(
                    "a transcoder writes other rows than it reads: give target=, or batches {site: tensor}"
                )
            yield MeasuredRows(x, y, np.arange(n, n + len(x)))
            n += len(x)

    known = bool(targets) and all(name in sae.widths for name in targets)
    return _Plan(batches(), sites, targets, tuple(sae.widths[name] for name in targets) if known else (sae.d_out,))


def _targets(sae: SAE, sites: tuple[str, ...]) -> tuple[str, ...]:
    """What is written where `sites` are read; none where the card of a transcoder does not say."""
    if not sae.is_transcoder:
        return sites
    return sae.targets if sae.targets != sae.sites else ()


def _of_sites(sae: SAE, batch: Any, sites: tuple[str, ...], targets: tuple[str, ...]) -> tuple[Tensor, Tensor]:
    """What is read and what is to be written, of a batch in either form."""
    if not isinstance(batch, Mapping):
        return batch, batch
    targets = targets or known_targets(sae)
    missing = [name for name in (*sites, *targets) if name not in batch]
    if missing or not sites:
        raise ValueError(
            f"a batch holds {', '.join(batch)}, but not {', '.join(missing) or 'what the SAE calls its site'}"
        )
    x = torch.cat([batch[name] for name in sites], dim=1)
    return x, x if targets == sites else torch.cat([batch[name] for name in targets], dim=1)


def _report(plan: _Plan, typical: RowSums, rest: RowSums, seed: int) -> SAEReport:
    if typical.n_rows == 0:
        raise ValueError(f"there is nothing to measure on: no row, or none of {rest.n_rows} is typical")
    every = typical + rest
    l0 = np.concatenate(typical.l0)
    error, spread = typical.error, typical.spread()
    fvu, by_site = error.sum() / spread.sum(), (error.sum(0) / spread.sum(0)).tolist()
    there = typical.n > 0
    fvu_ends = _ends(error.sum(1)[there], spread.sum(1)[there], seed)
    l0_ends = _ends(typical.l0_sum[there], typical.n[there], seed)
    cosine, norm, norm_hat, square_hat, along, l1 = typical.scalars.tolist()
    cosine_all, norm_all, norm_hat_all = every.scalars.tolist()[:3]
    return SAEReport(
        fvu=fvu.item(),
        fvu_low=fvu_ends[0],
        fvu_high=fvu_ends[1],
        fvu_by_site=dict(zip(plan.targets, by_site)) if len(plan.targets) == len(plan.widths) else {},
        l0=l0.mean().item(),
        l0_low=l0_ends[0],
        l0_high=l0_ends[1],
        **{f"l0_p{p}": np.quantile(l0, p / 100).item() for p in (10, 50, 90, 99)},
        l0_max=int(l0.max()),
        l0_wanted=(typical.sae.card.get("calibrated") or {}).get("l0") or trained_l0(typical.sae),
        l1=l1 / typical.n_rows,
        dead_share=(typical.fired == 0).double().mean().item(),
        dense_share=(typical.fired > DENSE * typical.n_rows).double().mean().item(),
        cosine=cosine / typical.n_rows,
        relative_norm=norm_hat / norm,
        reconstruction_bias=square_hat / along if along != 0 else None,
        n_rows=typical.n_rows,
        n_left_out=rest.n_rows,
        n_units=len(typical.units),
        n_latents=typical.sae.n_latents,
        fvu_all=(every.error.sum() / every.spread().sum()).item(),
        l0_all=np.concatenate(every.l0).mean().item(),
        cosine_all=cosine_all / every.n_rows,
        relative_norm_all=norm_hat_all / norm_all,
        site=", ".join(plan.sites) or None,
        target=", ".join(plan.targets) or None,
    )


def _ends(
    above: Float64[Tensor, " unit"], below: Float64[Tensor, " unit"], seed: int
) -> tuple[float, float] | tuple[None, None]:
    if len(above) == 1:
        return None, None
    low, high = ratio_interval(above.numpy(), below.numpy(), seed)
    return low.item(), high.item()


def trained_l0(sae: SAE) -> float | None:
    """The L0 that training aimed at; None where a weight of the penalty was given instead, or the card does not say."""
    config = sae.card.get("config") or {}
    target = None if config.get("l0_coefficient") is not None else config.get("l0")
    wanted = config.get("k") or target or sae.k
    return None if wanted is None else float(wanted)


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
