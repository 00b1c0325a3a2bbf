"""Which latents fire where: a sparse matrix [row latent] of all rows that were read, in memory or as parquet files.

    activations/
      rows.parquet             a row per row of the texts: row (its number in the store), text, position, token_id, and
                               whether it was read (it was not where it is not typical)
      by_row/000000.parquet    row, latent, value in the order of the rows; whole texts
      by_latent.parquet        the same in the order of the latents, and of one latent in the order of the rows
      latents.parquet          latent, start, stop: where in by_latent.parquet its entries stand

The parts by row are written as the rows come. The copy by latent is made of them afterwards, a range of latents at a
time, so that neither takes memory that grows with the store.
"""

import functools
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Bool, Float32, Int
from scipy import sparse

PART_ENTRIES = 1 << 20
"""Entries of a part by row, at least."""
RANGE_ENTRIES = 1 << 22
"""Entries of the latents that are worked on at a time, at most, but for one latent with more."""
_GROUP = 1 << 15
"""Entries of a row group of the copy by latent: what is read, at least, for one latent."""


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of the texts that were read, whether or not they are typical; ascending."""

    row: Int[np.ndarray, " row"]
    """Number in the store."""
    text: Int[np.ndarray, " row"]
    position: Int[np.ndarray, " row"]
    token_id: Int[np.ndarray, " row"]
    read: Bool[np.ndarray, " row"]
    """Whether the SAE was asked about it."""

    @functools.cached_property
    def places(self) -> Int[np.ndarray, " read"]:
        """Where the rows that were read stand in these: place i belongs to row i of the sparse matrix."""
        return np.flatnonzero(self.read)

    def of_place(self, name: str) -> Int[np.ndarray, " read"]:
        """A column, of the rows that were read."""
        return getattr(self, name)[self.places]

    def write(self, path: Path) -> None:
        """Write them as parquet."""
        columns = {name: getattr(self, name) for name in ("row", "text", "position", "token_id", "read")}
        pq.write_table(pa.table(columns), path)

    @classmethod
    def load(cls, path: Path) -> "Rows":
        """What `write` wrote."""
        table = read_table(path)
        return cls(*(table.column(name).to_numpy() for name in ("row", "text", "position", "token_id", "read")))


@dataclass(frozen=True, eq=False)
class Part:
    """Consecutive rows of the sparse matrix."""

    start: int
    """Its first row in the whole matrix."""
    matrix: sparse.csr_array
    """[row latent], float32."""

    @property
    def n_rows(self) -> int:
        """Rows, those in which nothing fires included."""
        return len(self.matrix.indptr) - 1

    @property
    def entry_rows(self) -> Int[np.ndarray, " entry"]:
        """Row of each entry, in the whole matrix."""
        return np.repeat(np.arange(self.n_rows), np.diff(self.matrix.indptr)) + self.start


@dataclass(frozen=True, eq=False)
class LatentRange:
    """Consecutive latents, their entries in the order of latent and row."""

    start: int
    """The first latent."""
    counts: Int[np.ndarray, " latent"]
    """Entries of each."""
    row: Int[np.ndarray, " entry"]
    """Row of the whole matrix."""
    value: Float32[np.ndarray, " entry"]

    @property
    def latent(self) -> Int[np.ndarray, " entry"]:
        """Latent of each entry."""
        return np.repeat(np.arange(len(self.counts)), self.counts) + self.start


class Activations(ABC):
    """The sparse matrix [row latent] of an SAE on the typical rows of a store."""

    rows: Rows
    n_latents: int

    @abstractmethod
    def parts(self) -> Iterator[Part]:
        """The matrix, some rows at a time."""

    @abstractmethod
    def ranges(self) -> Iterator[LatentRange]:
        """The matrix, some latents at a time."""

    @abstractmethod
    def write(self, folder: Path) -> None:
        """Write the files of this module's description into a new folder."""

    @abstractmethod
    def _entries(self, latent: int) -> tuple[Int[np.ndarray, " n"], Float32[np.ndarray, " n"]]:
        """Rows of the store and values of a latent that exists."""

    @property
    def n_rows(self) -> int:
        """Rows that were read."""
        return len(self.rows.places)

    def of_latent(self, latent: int | Any) -> tuple[Int[np.ndarray, " n"], Float32[np.ndarray, " n"]]:
        """Rows of the store in which a latent fires, ascending, and its values there. ValueError for no such latent."""
        return self._entries(self.number(latent))

    def number(self, latent: int | Any) -> int:
        """The number of a latent as a plain int. ValueError where there is no such latent."""
        if isinstance(latent, bool) or not isinstance(latent, int | np.integer) or not 0 <= latent < self.n_latents:
            raise ValueError(f"there is no latent {latent}: they go from 0 to {self.n_latents - 1}")
        return int(latent)

    def to_frame(self) -> pd.DataFrame:
        """A row per entry: row (its number in the store), latent, value; by row. It takes 20 bytes an entry."""
        rows = self.rows.of_place("row")
        parts = [(rows[part.entry_rows], part.matrix.indices, part.matrix.data) for part in self.parts()]
        row, latent, value = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        return pd.DataFrame({"row": row, "latent": latent, "value": value})


class KeptActivations(Activations):
    """In memory: 16 bytes an entry."""

    def __init__(self, rows: Rows, n_latents: int) -> None:
        self.rows, self.n_latents = rows, n_latents
        self._parts: list[Part] = []

    def add(self, part: Part) -> None:
        """Take in the next rows."""
        self._parts.append(part)

    def parts(self) -> Iterator[Part]:
        return iter(self._parts)

    def ranges(self) -> Iterator[LatentRange]:
        starts = self._by_latent.indptr.astype(np.int64)
        for a, b in cut_latents(np.diff(starts)):
            inside = slice(starts[a], starts[b])
            found = self._by_latent
            yield LatentRange(a, np.diff(starts[a : b + 1]), found.indices[inside], found.data[inside])

    def write(self, folder: Path) -> None:
        spilled = SpilledActivations(folder, self.rows, self.n_latents)
        for part in self._parts:
            spilled.add(part)
        spilled.close()

    @functools.cached_property
    def _by_latent(self) -> sparse.csc_array:
        return sparse.csc_array(sparse.vstack([part.matrix for part in self._parts], format="csr"))

    def _entries(self, latent: int) -> tuple[Int[np.ndarray, " n"], Float32[np.ndarray, " n"]]:
        inside = slice(*self._by_latent.indptr[latent : latent + 2])
        return self.rows.of_place("row")[self._by_latent.indices[inside]], self._by_latent.data[inside]


class SpilledActivations:
    """Parts on their way to the disk; `close` makes the rest of the files and gives the `StoredActivations`."""

    def __init__(self, folder: Path, rows: Rows, n_latents: int) -> None:
        self.folder, self.rows, self.n_latents = folder, rows, n_latents
        (folder / "by_row").mkdir(parents=True)
        rows.write(folder / "rows.parquet")
        self._n_parts = 0
        self._counts = np.zeros(n_latents, dtype=np.int64)
        self._row = rows.of_place("row")

    def add(self, part: Part) -> None:
        """Write the next rows."""
        matrix = part.matrix
        self._counts += np.bincount(matrix.indices, minlength=self.n_latents)
        table = _table(self._row[part.entry_rows], matrix.indices, matrix.data)
        pq.write_table(table, self.folder / "by_row" / f"{self._n_parts:06d}.parquet", **_ENCODING)
        self._n_parts += 1

    def close(self) -> "StoredActivations":
        """Write the copy by latent."""
        stop = np.cumsum(self._counts)
        index = {"latent": np.arange(self.n_latents), "start": stop - self._counts, "stop": stop}
        pq.write_table(pa.table(index), self.folder / "latents.parquet")
        stored = StoredActivations(self.folder)
        with pq.ParquetWriter(self.folder / "by_latent.parquet", _SCHEMA, **_ENCODING) as writer:
            for a, b in cut_latents(self._counts):
                parts = [sparse.csr_array(part.matrix[:, a:b]) for part in stored.parts()]
                found = sparse.csc_array(sparse.vstack(parts, format="csr"))
                latent = np.repeat(np.arange(a, b), np.diff(found.indptr))
                writer.write_table(_table(self._row[found.indices], latent, found.data), row_group_size=_GROUP)
        return stored


class StoredActivations(Activations):
    """On the disk; read when asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        index = read_table(folder / "latents.parquet")
        self._stop = index.column("stop").to_numpy()
        self.n_latents = len(self._stop)

    @functools.cached_property
    def rows(self) -> Rows:  # pyright: ignore[reportIncompatibleVariableOverride]
        return Rows.load(self.folder / "rows.parquet")

    def parts(self) -> Iterator[Part]:
        row, start = self.rows.of_place("row"), 0
        files = sorted((self.folder / "by_row").iterdir())
        for number, file in enumerate(files):
            table = read_table(file)
            place = np.searchsorted(row, table.column("row").to_numpy())
            # Rows in which nothing fires belong to the part before them; the last part takes those at the end.
            stop = self.n_rows if number == len(files) - 1 else int(place[-1]) + 1 if len(place) else start
            bounds = np.searchsorted(place, np.arange(start, stop + 1)).astype(np.int32)
            entries = (table.column("value").to_numpy(), table.column("latent").to_numpy(), bounds)
            yield Part(start, sparse.csr_array(entries, shape=(stop - start, self.n_latents)))
            start = stop

    def ranges(self) -> Iterator[LatentRange]:
        counts, row = np.diff(self._stop, prepend=0), self.rows.of_place("row")
        for a, b in cut_latents(counts):
            found, value = self._between(int(self._stop[a] - counts[a]), int(self._stop[b - 1]))
            yield LatentRange(a, counts[a:b], np.searchsorted(row, found), value)

    def write(self, folder: Path) -> None:
        shutil.copytree(self.folder, folder)

    def _entries(self, latent: int) -> tuple[Int[np.ndarray, " n"], Float32[np.ndarray, " n"]]:
        return self._between(int(self._stop[latent - 1]) if latent else 0, int(self._stop[latent]))

    def _between(self, start: int, stop: int) -> tuple[Int[np.ndarray, " n"], Float32[np.ndarray, " n"]]:
        """Entries `start` to `stop` of the copy by latent."""
        with pq.ParquetFile(self.folder / "by_latent.parquet") as file:
            sizes = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
            ends = np.cumsum(sizes, dtype=np.int64)
            groups = list(range(np.searchsorted(ends, start, side="right"), np.searchsorted(ends, stop) + 1))
            if start == stop:
                groups = []
            table = file.read_row_groups(groups, columns=["row", "value"])
        offset = start - (ends[groups[0]] - sizes[groups[0]]) if groups else 0
        table = table.slice(offset, stop - start)
        return table.column("row").to_numpy(), table.column("value").to_numpy()


def matrix_of(
    values: Float32[np.ndarray, " n"],
    latent: Int[np.ndarray, " n"],
    counts: Int[np.ndarray, " row"],
    n_latents: int,
) -> sparse.csr_array:
    """A part's matrix from its entries row by row, the latents of a row in ascending order."""
    bounds = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    found = sparse.csr_array((values, latent.astype(np.int32), bounds), shape=(len(counts), n_latents))
    found.sort_indices()
    return found


def cut_latents(counts: Iterable[int] | Int[np.ndarray, " latent"]) -> Iterator[tuple[int, int]]:
    """(start, stop) of ranges of latents with up to RANGE_ENTRIES entries, or one latent with more."""
    ends = np.cumsum(np.asarray(counts))
    start = 0
    while start < len(ends):
        before = ends[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + RANGE_ENTRIES, side="right")))
        yield start, stop
        start = stop


def read_table(path: Path, **options: Any) -> pa.Table:
    """A parquet file. ValueError where it is not there, or damaged."""
    try:
        return pq.read_table(path, **options)
    except (OSError, pa.ArrowInvalid) as error:
        raise ValueError(f"{path} cannot be read ({error}): make the features again") from None


_SCHEMA = pa.schema([("row", pa.int64()), ("latent", pa.int32()), ("value", pa.float32())])
# Values hardly repeat, so a dictionary of them would be built in vain; rows and latents ascend.
_ENCODING = {
    "use_dictionary": ["latent"],
    "column_encoding": {"row": "DELTA_BINARY_PACKED"},
}


def _table(row: np.ndarray, latent: np.ndarray, value: np.ndarray) -> pa.Table:
    return pa.table({"row": row, "latent": latent.astype(np.int32), "value": value}, schema=_SCHEMA)
