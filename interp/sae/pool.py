"""Shuffled batches from a pool that is filled, emptied and filled again, and a state from which they go on exactly.

1. An epoch permutes the units that rows come from (texts) and cuts that order into pools, as its source says.
2. The source fills the pool; its rows are permuted and handed out in batches, which may lie across two pools.
3. Both permutations follow from the seed, the epoch and the first unit of the pool. So the state is epoch, first unit and
   rows handed out, and going on fills one pool.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Float32, Int
from torch import Tensor

from interp.store.batches import batch_length, join_batches
from interp.store.lookup import whole_number

log = logging.getLogger("interp.sae")

REASONS = ("first", "special", "outlier")
"""Why a token is left out, the first that holds."""


@runtime_checkable
class PoolSource(Protocol):
    """Fills pools."""

    names: list[str]
    """Sites."""
    usable: Int[np.ndarray, " unit"]
    """Numbers of the units that give rows."""

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that the rows depend on, JSON-ready."""
        ...

    def pools(self, order: Int[np.ndarray, " unit"]) -> Iterator[tuple[int, int]]:
        """(first, last) of the units of each pool, as places in `order`."""
        ...

    def empty_pool(self) -> dict[str, Tensor]:
        """Memory for one pool: site -> [row d]."""
        ...

    def fill(self, pool: Mapping[str, Tensor], units: Int[np.ndarray, " n"]) -> tuple[int, dict[str, int]]:
        """Put the rows of some units at the beginning of the pool; their number, and the tokens left out by reason."""
        ...


@dataclass(frozen=True)
class _Place:
    """Where an iteration stands: inside the pool that begins with unit `first` of the epoch's order."""

    epoch: int
    first: int
    row: int
    """Rows of the pool that were handed out."""
    batches: int
    """Batches that were handed out, in all."""
    left_out: Mapping[str, int]
    """Before this pool."""


_START = _Place(0, 0, 0, 0, dict.fromkeys(REASONS, 0))


class PoolBatches:
    """Iterable of Float32 [size, d] of one site, or of {site: Float32 [size, d]} of the same rows. All batches are full but
    the very last. Each `iter()` begins at the start, but the first after `load_state`.

    Attributes:
        size: rows in a batch.
        left_out: tokens left out of all pools that were filled, by reason: "first" of their text, "special", "outlier".
    """

    def __init__(
        self,
        source: PoolSource,
        *,
        size: int | Any,
        seed: int | Any,
        epochs: int | Any | None,
        n_batches: int | None = None,
    ) -> None:
        """End after `epochs` passes over the units, or after `n_batches` where that is given; None does not end it.

        Raises:
            ValueError: no whole number, or one out of range.
        """
        self._source, self.size = source, whole_number("size", size, 1)
        self._seed, self._n_batches = whole_number("seed", seed, 0), n_batches
        self._epochs = None if epochs is None else whole_number("epochs", epochs, 1)
        self._at = _START
        self._resume: _Place | None = None
        self.left_out: dict[str, int] = dict(_START.left_out)

    def __len__(self) -> int:
        """Number of batches. TypeError where it is not known: which rows are outliers shows when they are computed."""
        if self._n_batches is None:
            raise TypeError("how many rows a pass gives is known after it, so these batches have no length")
        return self._n_batches

    def __iter__(self) -> Iterator[Any]:
        at, self._resume = self._resume or _START, None
        self._at, self.left_out = at, dict(at.left_out)
        source, rest, done = self._source, dict[str, Tensor](), at.batches
        pool = source.empty_pool()
        for epoch, first, units in self._order_from(at):
            if done == self._n_batches:
                return
            before = self.left_out
            n, left_out = source.fill(pool, units)
            self.left_out = {reason: before[reason] + left_out[reason] for reason in REASONS}
            log.info("epoch %d, pool from text %d on: %d rows, left out %s", epoch, first, n, left_out)
            place = np.random.default_rng([self._seed, epoch, 1 + first]).permutation(n)
            row = at.row if (epoch, first) == (at.epoch, at.first) else 0
            while row < n and done != self._n_batches:
                stop = min(n, row + self.size - batch_length(rest))
                rest = join_batches(rest, {name: _take(rows, place[row:stop]) for name, rows in pool.items()})
                row = stop
                if batch_length(rest) == self.size:
                    batch, rest, done = rest, {}, done + 1
                    self._at = _Place(epoch, first, row, done, before)
                    yield self._as_given(batch)
                    del batch
        if rest and done != self._n_batches:
            assert self._epochs is not None, "without an end there is no last batch"
            self._at = _Place(self._epochs, 0, 0, done + 1, self.left_out)
            yield self._as_given(rest)

    def state(self) -> dict[str, Any]:
        """Where the iteration stands, JSON-ready: batches that were handed out count as used."""
        at = self._resume or self._at
        where = {"epoch": at.epoch, "first": at.first, "row": at.row, "batches": at.batches}
        return {**where, "left_out": dict(at.left_out), **self._order()}

    def load_state(self, state: Mapping[str, Any] | Any) -> None:
        """Let the next `iter()` go on from a state. ValueError if it is none, or was taken from other rows."""
        where = ("epoch", "first", "row", "batches")
        if not isinstance(state, Mapping) or not {*where, "left_out"} <= set(state):
            raise ValueError(f"a state is what state() of these batches returned, got {state!r}")
        differs = [key for key, value in self._order().items() if state.get(key) != value]
        if differs:
            raise ValueError(
                f"this state belongs to other live rows ({', '.join(differs)} differ): make them with the same model, "
                "texts, sample, pool, size and seed, on the same kind of machine"
            )
        epoch, first, row, batches = (whole_number(name, state[name], 0) for name in where)
        self._resume = _Place(epoch, first, row, batches, dict(state["left_out"]))

    def _order_from(self, at: _Place) -> Iterator[tuple[int, int, Int[np.ndarray, " n"]]]:
        """Epoch, place in its order, and units of each pool from that of `at` on."""
        epoch, begin = at.epoch, at.first
        while self._epochs is None or epoch < self._epochs:
            order = np.random.default_rng([self._seed, epoch, 0]).permutation(self._source.usable)
            for first, last in self._source.pools(order):
                if first >= begin:
                    yield epoch, first, order[first:last]
            epoch, begin = epoch + 1, 0

    def _as_given(self, batch: dict[str, Tensor]) -> Tensor | dict[str, Tensor]:
        return batch if len(batch) > 1 else batch[self._source.names[0]]

    def _order(self) -> dict[str, Any]:
        """Everything that the rows and their order depend on."""
        return {"seed": self._seed, "size": self.size, **self._source.identity}


def _take(pool: Float[Tensor, "row d"], place: Int[np.ndarray, " n"]) -> Float32[Tensor, "n d"]:
    return pool.index_select(0, torch.from_numpy(place)).float()
