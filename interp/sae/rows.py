"""Where the rows of a run come from: a store, a tensor, or anything that yields batches more than once.

A store leaves out rows that are not typical (position 0, special tokens, outlier norms) and knows its statistics. A
tensor and other batches are taken as they are, every row of them; their statistics take one pass of their own first.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from interp.artifact import hash_json
from interp.dataset import grouped_split
from interp.sae.config import SAEConfig
from interp.store import Batches, Moments, Store


@runtime_checkable
class Resumable(Protocol):
    """Batches that know where they stand."""

    def state(self) -> dict[str, Any]:
        """Where the iteration stands, JSON-ready."""
        ...

    def load_state(self, state: dict[str, Any]) -> None:
        """Let the next iteration begin there."""
        ...


@dataclass(frozen=True)
class TrainingRows:
    """Batches for one run, and what training must know of them before it starts."""

    batches: Iterable[Tensor]
    """Yields Float [row d_model]. To resume, `Resumable` ones are put where they stood, others read up to there."""
    n_rows: int
    """Rows of the whole run, every epoch counted."""
    n_steps: int
    """Batches of the whole run."""
    mean: Float64[Tensor, " d_model"]
    """Mean row."""
    variance: float
    """Mean squared distance of a row to the mean row, summed over dimensions."""
    card: Mapping[str, Any]
    """What goes into the SAE's card: site, model, statistics, what was left out."""

    @property
    def d_model(self) -> int:
        """Width of the rows."""
        return len(self.mean)

    @property
    def scale(self) -> float:
        """Factor that brings the rows to variance 1 per dimension: with it, a squared error per entry is an FVU."""
        return math.sqrt(self.d_model / self.variance)

    @property
    def identity(self) -> dict[str, Any]:
        """What tells these rows from others, so that a checkpoint is not continued on other data."""
        numbers = hash_json([self.mean.tolist(), self.variance])
        return {"n_rows": self.n_rows, "n_steps": self.n_steps, "statistics": numbers, **self.card}


def training_rows(data: object, config: SAEConfig, *, site: str | None, rows: Any) -> TrainingRows:
    """Make batches of whatever `train_sae` was given. ValueError where that is nothing to train on."""
    if isinstance(data, Store):
        return _of_store(data, config, site, rows)
    if rows is not None:
        raise ValueError("rows= chooses rows of a store: give it with a store, or index the tensor yourself")
    if isinstance(data, Tensor):
        return _of_batches(tensor_batches(data, size=config.batch_size, seed=config.seed, epochs=config.epochs), site)
    if isinstance(data, Iterator | str) or not isinstance(data, Iterable):
        raise ValueError(
            "training takes a store, a tensor [row d_model], or batches that can be read more than once (a list, "
            f"store.batches(...)), not {type(data).__name__}"
        )
    return _of_batches(data, site)


def tensor_batches(x: Tensor, *, size: int, seed: int, epochs: int) -> Batches:
    """Shuffled batches of a tensor's rows. ValueError where it is not float [row d_model] or has no row."""
    if x.ndim != 2 or not x.is_floating_point() or len(x) == 0:
        raise ValueError(
            f"activations are a float tensor [row d_model] with at least one row, got {x.dtype} {list(x.shape)}"
        )
    return Batches(
        lambda numbers: x[torch.from_numpy(numbers).to(x.device)],
        np.arange(len(x)),
        site="",
        d=x.shape[1],
        row_bytes=x.shape[1] * x.element_size(),
        size=size,
        seed=seed,
        epochs=epochs,
        drop_last=False,
    )


def _of_store(store: Store, config: SAEConfig, site: str | None, rows: Any) -> TrainingRows:
    if site is None:
        raise ValueError(f"say which site to train on, site=...; this store has {', '.join(store.sites)}")
    batches = store.batches(
        site, size=config.batch_size, seed=config.seed, typical=True, rows=rows, epochs=config.epochs
    )
    stats = store.stats(site)
    card = {
        "site": batches.site,
        "model": store.model_fingerprint,
        "typical_norm": stats.typical_norm,
        "n_rows_of_store": stats.all.count,
        "left_out": stats.left_out,
    }
    return _checked(batches, config.epochs * batches.n_rows, len(batches), stats.typical, card)


def _of_batches(batches: Iterable[Tensor], site: str | None) -> TrainingRows:
    card = {"site": site, "model": None, "typical_norm": None, "n_rows_of_store": None, "left_out": None}
    if not isinstance(batches, Batches):
        moments, n_steps = moments_of(batches), sum(1 for _ in batches)
        return _checked(batches, moments.count, n_steps, moments, card)
    if batches.site and site not in (None, batches.site):
        raise ValueError(f"the batches are of {batches.site}, not of {site}")
    try:
        n_steps = len(batches)
    except TypeError:
        raise ValueError("batches without an end cannot be trained on: give store.batches(..., epochs=...)") from None
    moments = moments_of(takewhile(lambda _: batches.state()["epoch"] == 0, batches))
    epochs = n_steps // math.ceil(moments.count / batches.size)
    return _checked(batches, epochs * moments.count, n_steps, moments, {**card, "site": batches.site or site})


def _checked(
    batches: Iterable[Tensor], n_rows: int, n_steps: int, moments: Moments, card: dict[str, Any]
) -> TrainingRows:
    variance = moments.variance.sum().item()
    if not variance > 0:
        raise ValueError(f"all {moments.count} rows are equal: there is nothing to learn from them")
    return TrainingRows(batches, n_rows, n_steps, moments.mean, variance, card)


def moments_of(batches: Iterable[Tensor]) -> Moments:
    """Count, mean and squared deviations of all rows. ValueError for NaN, infinity, several widths, or no row."""
    total: Moments | None = None
    for batch in batches:
        require_finite(batch)
        part = Moments.of(batch.detach().cpu())
        total = part if total is None else total.merge(part)
    if total is None or total.count == 0:
        raise ValueError("there are no rows")
    return total


def require_finite(batch: Float[Tensor, "row d_model"]) -> None:
    """ValueError where a batch of activations holds NaN or infinity."""
    bad = (~batch.isfinite().all(dim=1)).nonzero().flatten()
    if len(bad):
        raise ValueError(
            f"{len(bad)} of {len(batch)} rows of a batch hold NaN or infinity (the first is row {int(bad[0])}): "
            "leave them out, or record them again in float32"
        )


def row_numbers(store: Store, rows: Any) -> Int[np.ndarray, " n"]:
    """Numbers or a mask of store rows, or None for all, as ascending numbers."""
    if rows is None:
        return np.arange(store.n_rows)
    rows = np.asarray(rows)
    return np.flatnonzero(rows) if rows.dtype == bool else np.unique(rows)


def split_rows(
    store: Store, held_out: float = 0.2, seed: int = 0
) -> tuple[Int[np.ndarray, " train"], Int[np.ndarray, " held"]]:
    """Numbers of the store rows to train on and to hold out, such that no text stands on both sides.

    Texts of one group stay together; where texts have no groups, pieces of one document do.

    Args:
        store: the store.
        held_out: share of the rows to hold out, kept to within the size of the largest group.
        seed: which groups they are.

    Raises:
        ValueError: a share that is not between 0 and 1, or a single group.
    """
    if not 0 < held_out < 1:
        raise ValueError(f"held_out is a share between 0 and 1, got {held_out}")
    examples = store.examples
    if "group" in examples and bool(examples["group"].notna().to_numpy().all()):
        groups = examples["group"]
    else:
        groups = examples["document"] if "document" in examples else examples.index.to_series()
    train, held = grouped_split(groups.loc[store.tokens["text"]].tolist(), (1 - held_out, held_out), seed)
    return train, held
