"""Tables that wait on the disk, so that the texts of a recording need no memory of their own.

Each table that is appended lies in one temporary file as an Arrow stream of its own, for the types of a column may differ
from one to the next: a column that is all whole numbers for 2,000 rows may then hold 0.5. What fits all of them is known at
the end; a table is cast to it when it is read. The file has no name on systems that allow it: it goes away with the
process, however that ends.
"""

import bisect
import itertools
import json
import tempfile
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from interp import artifact


class Spool:
    """Rows on the disk: appended at the end, read from anywhere. Lives in the folder for temporary files (`TMPDIR`)."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="interp-plan-")  # noqa: SIM115  # closed below
        self._close = weakref.finalize(self, self._file.close)
        self._lock = threading.Lock()
        self._starts, self._places = [0], list[tuple[int, int]]()
        self._types: dict[str, pa.DataType] = {}
        self._latest: tuple[int, pa.Table] | None = None

    @property
    def n_rows(self) -> int:
        """Rows in all."""
        return self._starts[-1]

    @property
    def schema(self) -> pa.Schema:
        """Every column that any table had, in order of appearance, with a type that holds all its values."""
        return pa.schema(list(self._types.items()))

    def append(self, table: pa.Table) -> None:
        """Add rows; columns that a table lacks are null there.

        Raises:
            ValueError: a column whose values have no type in common with those before.
            OSError: the disk is full.
        """
        for field in table.schema:
            self._types[field.name] = _common(field.name, self._types.get(field.name, field.type), field.type)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        data = sink.getvalue()
        with self._lock:
            place = self._file.seek(0, 2)
            self._file.write(data)
        self._places.append((place, data.size))
        self._starts.append(self.n_rows + table.num_rows)

    def read(self, first: int, last: int) -> pa.Table:
        """The rows from `first` to before `last`, read from the tables that hold them alone."""
        assert 0 <= first <= last <= self.n_rows
        found = bisect.bisect_right(self._starts, first) - 1
        parts = []
        while found < len(self._places) and self._starts[found] < last:
            start = self._starts[found]
            parts.append(self._table(found).slice(max(first - start, 0), last - max(start, first)))
            found += 1
        schema = self.schema
        joined = pa.concat_tables([_conformed(part, schema) for part in parts]) if parts else schema.empty_table()
        # A slice holds on to the whole table, also where it is sent to another process.
        return joined.combine_chunks().take(pa.array(np.arange(last - first)))

    def tables(self) -> Iterator[pa.Table]:
        """All rows, as many at a time as were appended together."""
        for first, last in itertools.pairwise(self._starts):
            yield self.read(first, last)

    def close(self) -> None:
        """Give the disk back; nothing can be read any more."""
        self._latest = None
        self._close()

    def _table(self, index: int) -> pa.Table:
        # The shards come in order and are smaller than a table: the latest one is mostly the one that is needed.
        latest = self._latest
        if latest is None or latest[0] != index:
            place, size = self._places[index]
            with self._lock:
                self._file.seek(place)
                data = self._file.read(size)
            latest = self._latest = (index, pa.ipc.open_stream(pa.py_buffer(data)).read_all())
        return latest[1]


class Digest:
    """A hash of columns of bytes, the same however they are cut."""

    def __init__(self) -> None:
        self._states: dict[str, Any] = {}

    def update(self, **parts: Any) -> None:
        """Add bytes (or what has a buffer of them) to the columns of these names."""
        for name, data in parts.items():
            self._states.setdefault(name, xxhash.xxh3_128()).update(data)

    def hexdigest(self) -> str:
        """32 hex digits."""
        return artifact.hash_json([[name, state.hexdigest()] for name, state in sorted(self._states.items())])


def hash_rows(spool: Spool) -> str:
    """Hash of every value of every column, with their names and types. Neither the cut into tables nor the process matters."""
    state = xxhash.xxh3_128(json.dumps([[field.name, str(field.type)] for field in spool.schema]).encode())
    for table in spool.tables():
        for row in zip(*(column.to_pylist() for column in table.columns)):
            state.update(json.dumps(row, sort_keys=True, default=str).encode() + b"\n")
    return state.hexdigest()


def column(name: str, values: list[Any], kind: pa.DataType | None = None) -> pa.Array:
    """Values as a column of one type.

    Raises:
        ValueError: values of types that do not fit each other.
    """
    if any(isinstance(value, set | frozenset) for value in values):
        raise ValueError(f"the column {name!r} holds a set, which has no order: make it a list, sorted(...)")
    try:
        return pa.array(values, type=kind)
    except OverflowError:
        raise ValueError(
            f"the column {name!r} holds a whole number of over 64 bits, which a table has no place for: write it as text"
        ) from None
    except UnicodeEncodeError as error:
        raise ValueError(f"the column {name!r} holds a lone surrogate, which is no character ({error})") from None
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise ValueError(_unfit(name, error, values)) from None


def refuse_empty_dicts(schema: pa.Schema) -> None:
    """Refuse a column of dicts without any key, which Parquet cannot write. ValueError with its name."""
    for field in schema:
        if _has_no_keys(field.type):
            raise ValueError(
                f"the column {field.name!r} holds dicts that have no key in any example, which a table cannot say: leave it "
                "out, or write it as text (json.dumps)"
            )


def _has_no_keys(kind: pa.DataType) -> bool:
    inside = [kind.field(index).type for index in range(kind.num_fields)]
    return (pa.types.is_struct(kind) and not inside) or any(map(_has_no_keys, inside))


def _common(name: str, before: pa.DataType, now: pa.DataType) -> pa.DataType:
    if before.equals(now):
        return before
    try:
        both = [pa.schema([(name, kind)]) for kind in (before, now)]
        return pa.unify_schemas(both, promote_options="permissive").field(0).type
    except pa.ArrowException as error:
        raise ValueError(_unfit(name, error)) from None


def _conformed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    if table.schema.equals(schema):
        return table
    columns = []
    for field in schema:
        if field.name not in table.column_names:
            columns.append(pa.nulls(table.num_rows, field.type))
            continue
        try:
            columns.append(table.column(field.name).cast(field.type))
        except pa.ArrowException as error:
            raise ValueError(_unfit(field.name, error)) from None
    return pa.table(columns, schema=schema)


def _unfit(name: str, error: Exception, values: list[Any] | None = None) -> str:
    """What is wrong with a column: one value that no table can hold, or values that do not go together."""
    for value in values or ():
        try:
            pa.array([value])
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            return (
                f"the column {name!r} holds {value!r:.80} ({type(value).__name__}), which does not fit a table ({error}): "
                "make it of text, numbers, lists of one kind, and dicts with text as keys, or leave the column out"
            )
    return f"the column {name!r} does not fit a table ({error}): give all its values one type"
