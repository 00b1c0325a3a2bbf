"""Where the rows of a run come from: a store, a tensor, or anything that yields batches more than once.

A store leaves out rows that are not typical (position 0, special tokens, outlier norms) and knows its statistics. A tensor
and other batches are taken as they are, every row of them; their statistics take one pass of their own beforehand.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from interp.artifact import hash_json
from interp.sae.config import SAEConfig
from interp.store import Moments, Store


@dataclass(frozen=True)
class TrainingRows:
    """Batches for one run, and what training must know of them before it starts."""

    batches: Iterable[Tensor]
    """Yields Float [row d_model]; where it has `state()` and `load_state()`, resuming uses them."""
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


class TensorBatches:
    """The rows of a tensor in an order drawn anew in each epoch. The state is two numbers, so resuming is exact."""

    def __init__(self, rows: Float[Tensor, "row d_model"], *, size: int, seed: int, epochs: int) -> None:
        self.rows, self.size, self.seed, self.epochs = rows, size, seed, epochs
        self.epoch = self.cursor = 0

    def __iter__(self) -> Iterator[Tensor]:
        while self.epoch < self.epochs:
            order = torch.from_numpy(np.random.default_rng([self.seed, self.epoch]).permutation(len(self.rows)))
            while self.cursor < len(self.rows):
                chosen = order[self.cursor : self.cursor + self.size]
                # Before the yield, for whoever asks for the state while this batch is worked on wants to go on after it.
                self.cursor += self.size
                yield self.rows[chosen.to(self.rows.device)].float()
            self.epoch, self.cursor = self.epoch + 1, 0

    def state(self) -> dict[str, Any]:
        """Where it stands: JSON-ready."""
        return {"epoch": self.epoch, "cursor": self.cursor}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        self.epoch, self.cursor = state["epoch"], state["cursor"]


def training_rows(data: object, config: SAEConfig, *, site: str | None, rows: object) -> TrainingRows:
    """Make batches of whatever `train_sae` was given. ValueError where that is nothing to train on."""
    if isinstance(data, Store):
        return _from_store(data, config, site, rows)
    if rows is not None:
        raise ValueError("rows= chooses rows of a store; give it with a store, or index the tensor yourself")
    card = {"site": site, "model": None, "left_out": None, "typical_norm": None}
    if isinstance(data, Tensor):
        if data.ndim != 2 or not data.is_floating_point() or len(data) == 0:
            raise ValueError(f"training takes a float tensor [row d_model], got {data.dtype} {list(data.shape)}")
        batches = TensorBatches(data, size=config.batch_size, seed=config.seed, epochs=config.epochs)
        moments = moments_of(data.split(config.batch_size))
        steps = config.epochs * math.ceil(len(data) / config.batch_size)
        return _checked(batches, config.epochs * len(data), steps, moments, card)
    if not isinstance(data, Iterable):
        raise ValueError(f"training takes a store, batches or a tensor [row d_model], got {type(data).__name__}")
    if isinstance(data, Iterator):
        raise ValueError("training reads batches more than once: give a list or store.batches(...), not an iterator")
    return _from_batches(data, card)


def moments_of(batches: Iterable[Tensor]) -> Moments:
    """Count, mean and squared deviations of all rows. ValueError for NaN, infinity, several widths, or no row at all."""
    total: Moments | None = None
    for batch in batches:
        require_finite(batch)
        rows = batch.detach().cpu().float().numpy()
        part = Moments.of(rows, np.sqrt(np.einsum("rd,rd->r", rows, rows, dtype=np.float64)))
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
