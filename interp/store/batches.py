"""Shuffled batches over a whole store, and a state of a few numbers from which they go on exactly.

1. The selected rows are cut into blocks of neighbours, and the blocks are permuted over the whole store. With several
   ranks (processes that train together) the blocks are then dealt out, and each goes on with its own.
2. A window of blocks is read, neighbours in one go, and its rows are permuted in memory. A selection that fits into one
   window is therefore permuted as a whole, and so is every selection with blocks of one row.
3. Batches are cut from that stream, also across two windows; only the last one of an epoch may be smaller.

While a window is handed out, a thread reads the next: two windows are in memory, never more. It begins once the consumer
has taken as much time for the batches as they took to cut. One that takes less has nothing to read behind, and two
threads that only copy get in each other's way.

Every permutation follows from the seed, the epoch and the number of the window alone. So the state is the epoch and how
many rows of it were handed out: nothing that was shuffled or read ahead needs to be kept.

How well this mixes: of the pairs of rows in a batch, 1 + (k - 1) (b - 1) / (t - 1) times as many are of the same text as
under a permutation of all rows, for k windows, blocks of b rows and texts of t >= b rows.
"""

import functools
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import numpy as np
import torch
import xxhash
from jaxtyping import Float, Float32, Int
from torch import Tensor

from interp.store.files import DTYPES, empty_rows
from interp.store.lookup import whole_number
from interp.store.place import is_local

if TYPE_CHECKING:
    from interp.store.reader import Store

BLOCK_ROWS = 64
"""Neighbouring rows that stay together until they are mixed in the window, where single rows would be read too slowly."""
WINDOW_BYTES = 96 << 20
"""Memory for the window that is mixed; there are two, see above."""
SINGLE_ROWS_BYTES = 4 << 30
"""Up to this size the rows of a store on this machine's disk are read one by one: its memory holds the file."""
_ONE_CORE = (1 << 15) - 1
"""Most numbers that torch converts on one core, whatever the number of its threads."""

Batch = TypeVar("Batch")
"""Float32 [size, d] for one site; for several, full site name -> Float32 [size, d]."""


def of_store(
    store: "Store", site: str | Sequence[str], typical: bool, rows: Any, block: int | Any | None, **options: Any
) -> "Batches[Any]":
    """The batches of `Store.batches`; `options` are those of `Batches`."""
    joint = not isinstance(site, str)
    names = list(dict.fromkeys(store._site(name) for name in (site if joint else [site])))
    if not names:
        raise ValueError("no site was asked for: pass one, or a list of them")
    chosen = np.zeros(store.n_rows, dtype=bool)
    chosen[store._numbers(rows)] = True
    for name in names if typical else ():
        chosen &= store.typical(name)
    if not chosen.any():
        raise ValueError(
            f"no row of {', '.join(names)} is left: typical={typical} and rows= leave out all {store.n_rows}"
        )
    widths = [store.width(name) for name in names]
    row_bytes = sum(widths) * DTYPES[store.dtype].itemsize
    if block is None:
        single = is_local(store.path) and store._whole.n_rows * row_bytes <= SINGLE_ROWS_BYTES
        block = 1 if single else BLOCK_ROWS

    def read(index: Int[np.ndarray, " n"]) -> Any:
        return {name: store._read(name, index) for name in names} if joint else store._read(names[0], index)

    where = {"site": names, "d": widths} if joint else {"site": names[0], "d": widths[0]}
    return Batches(read, np.flatnonzero(chosen), **where, row_bytes=row_bytes, block=block, **options)


class Batches(Generic[Batch]):
    """Iterable of Float32 [size, d], or of {site: Float32 [size, d]} of the same rows, made by `Store.batches`.

    Each `iter()` begins at the start, but the first after `load_state`, which goes on where that state was taken. The
    thread that reads ahead is gone when an iteration ends or is given up; what it meets is raised where the window that
    it was reading is due.

    Attributes:
        widths: full site name -> width of a row.
        size: rows in a batch.
        n_rows: rows in an epoch, of this rank.
        rank, world_size: as given.
    """

    def __init__(
        self,
        read: Callable[[Int[np.ndarray, " n"]], Any],
        selected: Int[np.ndarray, " n"],
        *,
        site: str | Sequence[str],
        d: int | Sequence[int],
        row_bytes: int,
        size: int | Any,
        seed: int | Any,
        epochs: int | Any | None,
        drop_last: bool,
        block: int | Any = 1,
        rank: int | Any = 0,
        world_size: int | Any = 1,
        prefetch: bool = False,
    ) -> None:
        """As for `Store.batches`, and

        Args:
            read: gives rows, asked for in ascending order, in any dtype: [n d], or for several sites {site: [n d]}.
            selected: ascending numbers of the rows to hand out.
            site, d: name and width, or those of several sites.
            row_bytes: bytes of a row in the dtype of `read`, of all sites together.

        Raises:
            ValueError: no whole number, one out of range, or too few rows for `world_size`.
        """
        size, seed = whole_number("size", size, 1), whole_number("seed", seed, 0)
        epochs = None if epochs is None else whole_number("epochs", epochs, 1)
        block, world_size = whole_number("block", block, 1), whole_number("world_size", world_size, 1)
        rank = whole_number("rank", rank)
        if not 0 <= rank < world_size:
            raise ValueError(f"rank must be 0 to world_size - 1, got rank={rank} of world_size={world_size}")
        self._joint = not isinstance(site, str)
        names, widths = (site, d) if self._joint else ([site], [d])
        self.widths: dict[str, int] = dict(zip(cast(Sequence[str], names), cast(Sequence[int], widths), strict=True))
        self.size, self.rank, self.world_size = size, rank, world_size
        self._read, self._selected, self._prefetch = read, selected, prefetch
        self._seed, self._epochs, self._drop_last, self._block = seed, epochs, drop_last, block
        self._blocks_in_window = max(1, WINDOW_BYTES // (row_bytes * block))
        # Ranks share whole blocks only, so that all have the same number of rows.
        self._all_blocks = math.ceil(len(selected) / block) if world_size == 1 else len(selected) // block
        self._own_blocks = self._all_blocks // world_size
        if not self._own_blocks:
            raise ValueError(
                f"{len(selected)} rows are {self._all_blocks} whole blocks of {block}, too few for "
                f"world_size={world_size}: choose more rows, or a smaller block"
            )
        self.n_rows = len(selected) if world_size == 1 else self._own_blocks * block
        self._at = (0, 0)
        self._resume: tuple[int, int] | None = None

    @property
    def sites(self) -> list[str]:
        """Full names of the sites."""
        return list(self.widths)

    @property
    def site(self) -> str:
        """Full name of the site. ValueError where there are several."""
        if self._joint:
            raise ValueError(f"these batches are of several sites ({', '.join(self.sites)}), one is needed here")
        return self.sites[0]

    @property
    def d(self) -> int:
        """Width of a row. ValueError where there are several sites."""
        return self.widths[self.site]

    def __len__(self) -> int:
        """Number of batches over all epochs."""
        epochs = self._epochs
        if epochs is None:
            raise TypeError("batches with epochs=None never end, so they have no length")
        each = self.n_rows / self.size
        return epochs * (math.floor(each) if self._drop_last else math.ceil(each))

    def __repr__(self) -> str:
        what = self.sites if self._joint else self.site
        share = f", rank={self.rank}, world_size={self.world_size}" if self.world_size > 1 else ""
        passes = f"epochs={self._epochs}, seed={self._seed}{share}"
        return f"Batches({what!r}, n_rows={self.n_rows}, size={self.size}, {passes})"

    def __iter__(self) -> Iterator[Batch]:
        (epoch, done), self._resume = self._resume or (0, 0), None
        self._at = (epoch, done)
        plan = self._windows(epoch, done)
        rest: dict[str, Tensor] = {}
        waiting = _Call(lambda: self._load(plan))
        cutting = consuming = 0.0
        try:
            # One name for the window: the old one is gone before the one after the next is begun.
            while (window := waiting.result()) is not None:
                waiting = _Call(lambda: self._load(plan))
                epoch, done = (epoch, done) if window.epoch == epoch else (window.epoch, 0)
                used, n = 0, len(window.place)
                while used < n:
                    if self._prefetch and consuming > cutting:
                        waiting.start()
                    began = perf_counter()
                    stop = min(n, used + self.size - batch_length(rest))
                    rest = join_batches(rest, window.rows(used, stop))
                    used = stop
                    cutting += perf_counter() - began
                    if batch_length(rest) < self.size and (self._drop_last or not window.last):
                        continue
                    batch, rest = rest, {}
                    done += batch_length(batch)
                    self._at = (epoch, done)
                    given = perf_counter()
                    yield cast(Batch, batch if self._joint else batch[self.site])
                    consuming += perf_counter() - given
                    del batch
                rest = {} if window.last else rest
        finally:
            waiting.join()
        self._at = (cast(int, self._epochs), 0)

    def state(self) -> dict[str, Any]:
        """Where the iteration stands, as a JSON-ready value: batches that were handed out count as used."""
        epoch, rows = self._resume or self._at
        return {"epoch": epoch, "rows": rows, **self._order()}

    def load_state(self, state: Mapping[str, Any] | Any) -> None:
        """Let the next `iter()` go on from a state. ValueError if it is none, or was taken from other batches."""
        if not isinstance(state, Mapping) or not {"epoch", "rows"} <= set(state):
            raise ValueError(f"a state is what state() of batches returned, got {state!r}")
        differs = [key for key, value in self._order().items() if state.get(key) != value]
        if differs:
            raise ValueError(
                f"this state belongs to other batches ({', '.join(differs)} differ): make them with the same store, "
                "site, size, seed, selection, rank and world_size"
            )
        self._resume = (whole_number("epoch", state["epoch"], 0), whole_number("rows", state["rows"], 0))

    def _order(self) -> dict[str, Any]:
        """Everything that the order of the rows depends on."""
        return {
            "seed": self._seed,
            "size": self.size,
            "block": self._block,
            "blocks_in_window": self._blocks_in_window,
            "rank": self.rank,
            "world_size": self.world_size,
            "selection": self._selection,
        }

    @functools.cached_property
    def _selection(self) -> str:
        """A hash of the selected rows."""
        return xxhash.xxh3_64_hexdigest(np.ascontiguousarray(self._selected).data)

    def _windows(self, epoch: int, done: int) -> Iterator[tuple[int, bool, Int[np.ndarray, " n"]]]:
        """Epoch, whether it is its last, and row numbers of each window in the order in which they are handed out, but
        the first `done` of the first epoch."""
        block, dealt = self._block, self._own_blocks * self.world_size
        while self._epochs is None or epoch < self._epochs:
            order = np.arange(self._all_blocks, dtype=np.int32 if self._all_blocks < 1 << 31 else np.int64)
            np.random.default_rng([self._seed, epoch, 0]).shuffle(order)
            order = order[:dealt][self.rank :: self.world_size]
            for number, start in enumerate(range(0, len(order), self._blocks_in_window)):
                stop = start + self._blocks_in_window
                places = (order[start:stop, None].astype(np.int64) * block + np.arange(block)).ravel()
                rows = self._selected[places[places < len(self._selected)]]
                if done >= len(rows):
                    done -= len(rows)
                    continue
                if block > 1:
                    rows = np.random.default_rng([self._seed, epoch, 1 + number]).permutation(rows)
                yield epoch, stop >= len(order), rows[done:]
                done = 0
            epoch, done = epoch + 1, 0

    def _load(self, plan: Iterator[tuple[int, bool, Int[np.ndarray, " n"]]]) -> "_Window | None":
        """Read the next window; None where there is none."""
        step = next(plan, None)
        if step is None:
            return None
        epoch, last, rows = step
        by_row = np.argsort(rows)
        place = np.empty_like(by_row)
        place[by_row] = np.arange(len(rows))
        found = self._read(rows[by_row])
        return _Window(epoch, last, place, found if self._joint else {self.site: found})


@dataclass(frozen=True, eq=False)
class _Window:
    """Rows in memory, as they stand on the disk."""

    epoch: int
    last: bool
    """Whether no other window of the epoch follows."""
    place: Int[np.ndarray, " n"]
    """Where each row stands, in the order in which they are handed out."""
    acts: Mapping[str, Float[Tensor, "n _"]]
    """Full site name -> rows, ascending."""

    def rows(self, start: int, stop: int) -> dict[str, Float32[Tensor, "row _"]]:
        """Rows `start` to `stop` in the order in which they are handed out."""
        return {site: _take(acts, self.place[start:stop]) for site, acts in self.acts.items()}


def _take(acts: Float[Tensor, "n d"], place: Int[np.ndarray, " row"]) -> Float32[Tensor, "row d"]:
    bits = {2: torch.int16, 4: torch.int32}.get(acts.element_size())
    if bits is None or acts.device.type != "cpu":
        return acts.index_select(0, torch.from_numpy(place).to(acts.device)).float()
    # All on one core: what torch shares among all cores waits for each of them, and the reading thread, or whatever else is
    # at work, keeps it waiting for longer than the rest takes. numpy copies whole rows twice as fast as index_select.
    bits_of = acts.detach().view(bits).numpy()
    if acts.dtype == torch.float32:
        return torch.from_numpy(bits_of.take(place, axis=0)).view(torch.float32)
    found = empty_rows(len(place), acts.shape[1], torch.float32)
    step = max(1, _ONE_CORE // acts.shape[1])
    for start, part in zip(range(0, len(place), step), found.split(step)):
        part.copy_(torch.from_numpy(bits_of.take(place[start : start + step], axis=0)).view(acts.dtype))
    return found


def batch_length(rows: Mapping[str, Tensor]) -> int:
    """Rows of a batch of several sites; 0 for an empty mapping."""
    return len(next(iter(rows.values()))) if rows else 0


def join_batches(first: dict[str, Tensor], second: dict[str, Tensor]) -> dict[str, Tensor]:
    """The rows of both, one after the other; the first may be empty."""
    return {site: torch.cat([first[site], rows]) for site, rows in second.items()} if first else second


class _Call:
    """A call in a thread of its own from `start` on, or where its result is due. What it raises, `result` raises, from
    where it was."""

    def __init__(self, call: Callable[[], "_Window | None"]) -> None:
        self._call = call
        self._found: _Window | None = None
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Let a thread make the call, if none does."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="interp-batches")
            self._thread.start()

    def _run(self) -> None:
        try:
            self._found = self._call()
        except BaseException as error:  # whatever it is, the consumer has to see it
            self._error = error

    def result(self) -> "_Window | None":
        """Wait for the result, which is given once, or raise."""
        if self._thread is None:
            return self._call()
        self._thread.join()
        found, self._found = self._found, None
        error, self._error = self._error, None
        if error is not None:
            raise error
        return found

    def join(self) -> None:
        """Wait for the thread, whatever comes of it."""
        if self._thread is not None:
            self._thread.join()
