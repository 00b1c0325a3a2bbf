"""Shuffled batches over a whole store, and a state of a few numbers from which they go on exactly.

1. The selected rows are cut into blocks of neighbours, and the blocks are permuted over the whole store.
2. A window of blocks is read (neighbours in one go, so a disk is read in long pieces) and its rows are permuted in
   memory. A selection that fits into one window is therefore permuted as a whole.
3. Batches are cut from that stream, also across two windows; only the last one of an epoch may be smaller.

Every permutation follows from the seed, the epoch and the number of the window alone. So the state is the epoch and how
many rows of it were handed out: nothing that was shuffled needs to be kept.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import xxhash
from jaxtyping import Float, Int
from torch import Tensor

BLOCK_ROWS = 256
"""Neighbouring rows that stay together until they are mixed in the window."""
WINDOW_BYTES = 128 << 20
"""Memory for the window that is mixed."""


class Batches:
    """Iterable of Float32 [size, d], made by `Store.batches`.

    Each `iter()` begins at the start, but the first after `load_state`, which goes on where that state was taken.

    Attributes:
        site: full site name.
        d: width of a row.
        size: rows in a batch.
        n_rows: rows in an epoch.
    """

    def __init__(
        self,
        read: Callable[[Int[np.ndarray, " n"]], Float[Tensor, "n d"]],
        selected: Int[np.ndarray, " n"],
        *,
        site: str,
        d: int,
        row_bytes: int,
        size: int,
        seed: int,
        epochs: int | None,
        drop_last: bool,
    ) -> None:
        self.site, self.d, self.size, self.n_rows = site, d, size, len(selected)
        self._read, self._selected = read, selected
        self._seed, self._epochs, self._drop_last = seed, epochs, drop_last
        self._block = BLOCK_ROWS
        self._blocks_in_window = max(1, WINDOW_BYTES // (row_bytes * BLOCK_ROWS))
        self._at = (0, 0)
        self._resume: tuple[int, int] | None = None

    def __len__(self) -> int:
        """Number of batches over all epochs."""
        if self._epochs is None:
            raise TypeError("batches with epochs=None never end, so they have no length")
        each = self.n_rows / self.size
        return self._epochs * (math.floor(each) if self._drop_last else math.ceil(each))

    def __repr__(self) -> str:
        passes = f"epochs={self._epochs}, seed={self._seed}"
        return f"Batches({self.site!r}, n_rows={self.n_rows}, size={self.size}, {passes})"

    def __iter__(self) -> Iterator[Float[Tensor, "row d"]]:
        (epoch, done), self._resume = self._resume or (0, 0), None
        self._at = (epoch, done)
        while self._epochs is None or epoch < self._epochs:
            for batch in self._epoch(epoch, done):
                done += len(batch)
                self._at = (epoch, done)
                yield batch
            epoch, done = epoch + 1, 0
        self._at = (epoch, 0)

    def state(self) -> dict[str, Any]:
        """Where the iteration stands, as a JSON-ready value: batches that were handed out count as used."""
        epoch, rows = self._resume or self._at
        return {"epoch": epoch, "rows": rows, **self._order()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Let the next `iter()` go on from a state. ValueError if it was taken from other batches."""
        differs = [key for key, value in self._order().items() if state.get(key) != value]
        if differs:
            raise ValueError(
                f"this state belongs to other batches ({', '.join(differs)} differ): make them with the same store, "
                "site, size, seed and selection"
            )
        self._resume = (int(state["epoch"]), int(state["rows"]))

    def _order(self) -> dict[str, Any]:
        """Everything that the order of the rows depends on."""
        return {
            "seed": self._seed,
            "size": self.size,
            "block": self._block,
            "blocks_in_window": self._blocks_in_window,
            "selection": xxhash.xxh3_64_hexdigest(self._selected.tobytes()),
        }

    def _epoch(self, epoch: int, done: int) -> Iterator[Float[Tensor, "row d"]]:
        rest = torch.empty(0, self.d)
        for rows in self._windows(epoch, done):
            by_row = np.argsort(rows)
            block = self._read(rows[by_row])
            place = torch.empty(len(rows), dtype=torch.int64)
            place[torch.from_numpy(by_row)] = torch.arange(len(rows))
            used = 0
            while len(rest) + len(rows) - used >= self.size:
                stop = used + self.size - len(rest)
                batch = block.index_select(0, place[used:stop]).float()
                yield torch.cat([rest, batch]) if len(rest) else batch
                used, rest = stop, rest[:0]
            rest = torch.cat([rest, block.index_select(0, place[used:]).float()])
        if len(rest) and not self._drop_last:
            yield rest

    def _windows(self, epoch: int, done: int) -> Iterator[Int[np.ndarray, " n"]]:
        """Row numbers of each window in the order in which they are handed out, but the first `done`."""
        n_blocks = math.ceil(self.n_rows / self._block)
        order = np.random.default_rng([self._seed, epoch, 0]).permutation(n_blocks)
        for window, start in enumerate(range(0, n_blocks, self._blocks_in_window)):
            blocks = order[start : start + self._blocks_in_window]
            places = (blocks[:, None] * self._block + np.arange(self._block)).ravel()
            rows = self._selected[places[places < self.n_rows]]
            if done >= len(rows):
                done -= len(rows)
                continue
            yield np.random.default_rng([self._seed, epoch, 1 + window]).permutation(rows)[done:]
            done = 0
