"""Files as streams of rows, with a memory that does not grow with the file.

1. The ending says the format; `.gz` may follow the ending of any format that is text.
2. CSV, TSV, JSONL and text come a piece at a time, Parquet in batches, a JSON array object by object.
3. CSV and TSV know text only. A column where every value is a number becomes numbers, which the last row alone can tell:
   such a file is read twice, first for its column types and no further than `limit`. Files that are read as one table
   are looked through together, so that a column has one type in all of them. What a number would not give back as it is
   written (`007`, a whole number of more than 64 bits) is no number: it is a code, and its column stays text.

`read_rows` is the same for a file that fits into memory: all rows then have the same keys.
"""

import contextlib
import gzip
import io
import json
import math
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path, PurePath
from typing import Any

import pandas as pd
import pyarrow.parquet as pq

from interp.dataset.rows import FIXED, Row, plain

FORMATS = (".csv", ".tsv", ".jsonl", ".parquet", ".txt")
STREAMED = (".csv", ".tsv", ".jsonl", ".json", ".parquet", ".txt")
"""What `iter_rows` reads; all but Parquet also with `.gz` behind."""

PIECE_ROWS = 512
"""Rows of a table that are in memory at a time."""
PIECE_BYTES = 1 << 20
"""Characters of a JSON array that are read at a time, and bytes of a column of Parquet."""

_SPACE = re.compile(r"[ \t\r\n]*")
_WHOLE = re.compile(r"0|-?[1-9]\d{0,18}")
_DECIMAL = re.compile(r"-?(0|[1-9]\d*)(\.\d+([eE][-+]?\d+)?|[eE][-+]?\d+)")


def read_rows(path: Path, as_text: Sequence[str] = FIXED) -> list[Row]:
    """The rows of a CSV, TSV, JSONL, Parquet or text file (one text a line, blank lines left out).

    CSV and TSV hold text only: a column where every value is a number becomes numbers, unless `as_text` names it.

    Raises:
        ValueError: another ending, a damaged file, one that is not UTF-8, or one without rows.
    """
    kind = path.suffix.lower()
    if kind not in FORMATS:
        raise ValueError(f"cannot read {path.name}: the ending says the format, one of {', '.join(FORMATS)}")
    if kind == ".parquet":
        with _damage_named(path):
            refuse_twice(pq.read_schema(path).names)
            rows = [
                {str(name): plain(value) for name, value in row.items()}
                for row in pd.read_parquet(path).to_dict("records")
            ]
    else:
        rows = [row for _, _, row in iter_rows([path], as_text)]
    if not rows:
        raise ValueError(f"{path} has no rows")
    columns = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name) for name in columns} for row in rows]


def iter_rows(
    paths: Sequence[Path], as_text: Sequence[str] = FIXED, limit: int | None = None
) -> Iterator[tuple[Path, int, Row]]:
    """(file, number, row) for each row of one table in one or more files; numbers count from 1 in each file.

    At most `limit` rows. A row of JSON has its own keys only, and every kind of missing value is None. A file without
    rows yields none.

    Raises:
        ValueError: a damaged file, or one that is not UTF-8.
    """
    numbers = _number_columns([path for path in paths if format_of(path) in (".csv", ".tsv")], as_text, limit)
    for path in paths:
        count = 0
        with _damage_named(path):
            for count, row in enumerate(islice(_rows_of(path, numbers, limit), limit), start=1):
                yield path, count, {str(name): plain(value) for name, value in row.items()}
        if limit is not None:
            limit -= count
            if limit == 0:
                return


def format_of(name: str | PurePath) -> str | None:
    """The format that a file's ending says, without `.gz`; None for one that is not read as rows."""
    path = PurePath(name)
    packed = path.suffix.lower() == ".gz"
    kind = PurePath(path.stem).suffix.lower() if packed else path.suffix.lower()
    return kind if kind in STREAMED and not (packed and kind == ".parquet") else None


def columns_of(path: Path) -> list[str] | None:
    """The columns that a file declares; None where each row has its own (JSON) or there are none (text)."""
    with _damage_named(path):
        if format_of(path) in (".csv", ".tsv"):
            _refuse_twice_in_header(path)
            return list(pd.read_csv(path, sep=separator(path), encoding="utf-8-sig", dtype=str, nrows=0).columns)
        return list(pq.read_schema(path).names) if format_of(path) == ".parquet" else None


def read_document(path: Path) -> str:
    """A whole text file as one text; UTF-8, also with `.gz`."""
    with _damage_named(path), _open_text(path) as file:
        return file.read()


def separator(path: Path) -> str:
    """What stands between the columns of a CSV or TSV file."""
    name = path.stem if path.suffix.lower() == ".gz" else path.name
    return "\t" if name.lower().endswith(".tsv") else ","


@contextlib.contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    """What pandas, pyarrow, gzip and the JSON reader raise for damaged files, with the file's name."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 ({error}): save it as UTF-8") from None
    except pd.errors.EmptyDataError:
        raise ValueError(
            f"{path} is empty: write a line with the names of the columns, and the rows under it"
        ) from None
    except (ValueError, OSError, EOFError, zlib.error) as error:
        raise ValueError(f"cannot read {path}: {error}") from None


def _open_text(path: Path) -> io.TextIOWrapper:
    if path.suffix.lower() == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig")
    return path.open(encoding="utf-8-sig")


def _rows_of(path: Path, numbers: dict[str, type], limit: int | None) -> Iterator[dict[Any, Any]]:
    kind = format_of(path)
    if kind in (".csv", ".tsv"):
        for frame in _frames(path, limit):
            for name in numbers.keys() & set(frame.columns):
                values = [numbers[name](value) for value in frame[name]]
                frame[name] = pd.Series(values, index=frame.index, dtype=object)
            yield from frame.to_dict("records")
    elif kind == ".parquet":
        yield from _parquet_rows(path)
    else:
        with _open_text(path) as file:
            if kind == ".txt":
                yield from ({"text": line} for _, line in _lines(file))
            elif kind == ".json":
                yield from _json_rows(file)
            else:
                yield from (_json_row(number, line) for number, line in _lines(file))


# ------------------------------------------------------------------------------------------------------ CSV, Parquet


def refuse_twice(columns: Iterable[Any]) -> None:
    """Refuse a table in which two columns have one name: a row could hold only one of them."""
    counts = Counter(map(str, columns))
    if twice := [name for name in counts if counts[name] > 1]:
        raise ValueError(f"{counts[twice[0]]} of its columns are called {twice[0]!r}: rename or drop all but one")


def _refuse_twice_in_header(path: Path) -> None:
    # Read as a row: of a header pandas makes `text` and `text.1`. Columns without a name get one from it.
    header = pd.read_csv(
        path, sep=separator(path), encoding="utf-8-sig", dtype=str, keep_default_na=False, header=None, nrows=1
    )
    refuse_twice(name for name in header.iloc[0] if name)


def _frames(path: Path, limit: int | None) -> Iterator[pd.DataFrame]:
    """Pieces of a CSV or TSV file, at most `limit` rows."""
    _refuse_twice_in_header(path)
    # Everything is read as text, since pandas would take the text `NA` for a missing one.
    with pd.read_csv(
        path,
        sep=separator(path),
        encoding="utf-8-sig",
        dtype=str,
        keep_default_na=False,
        chunksize=PIECE_ROWS,
        nrows=limit,
    ) as pieces:
        for frame in pieces:
            # pandas takes what stands before the columns of the header for an index.
            if not isinstance(frame.index, pd.RangeIndex):
                raise ValueError("its rows have more values than its header has names: name every column")
            yield frame


def _number_columns(paths: Sequence[Path], as_text: Sequence[str], limit: int | None) -> dict[str, type]:
    """The columns where every value of the first `limit` rows is a number, and its type."""
    kinds: dict[str, int] = {}  # which of _NUMBERS all values so far are; past the last one for text
    for path in paths:
        count = 0
        with _damage_named(path):
            for frame in _frames(path, limit):
                count += len(frame)
                for name in frame.columns.difference(list(as_text)):
                    values, kind = frame[name].tolist(), kinds.get(name, 0)
                    while kind < len(_NUMBERS) and not all(map(_NUMBERS[kind][0], values)):
                        kind += 1
                    kinds[name] = kind
                if all(kind == len(_NUMBERS) for kind in kinds.values()):
                    return {}
        if limit is not None:
            limit -= count
            if limit == 0:
                break
    return {name: _NUMBERS[kind][1] for name, kind in kinds.items() if kind < len(_NUMBERS)}


def _is_int(value: Any) -> bool:
    """Whether 64 bits hold a value, which is written without zeros in front."""
    return isinstance(value, str) and _WHOLE.fullmatch(value) is not None and -(2**63) <= int(value) < 2**63


def _is_float(value: Any) -> bool:
    """Whether a float holds a value: a decimal number of its range, or a whole one of which it keeps every digit."""
    if not isinstance(value, str):
        return False
    if _DECIMAL.fullmatch(value):
        return math.isfinite(float(value))
    return _WHOLE.fullmatch(value) is not None and abs(int(value)) <= 2**53


_NUMBERS = ((_is_int, int), (_is_float, float))
"""What the columns of CSV and TSV files are tried as, in this order."""


def _parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    # Without `pre_buffer`, which holds the pages of a whole row group.
    with pq.ParquetFile(path, pre_buffer=False, buffer_size=PIECE_BYTES) as file:
        # pandas writes the index of a filtered table as a column without a name of its own.
        refuse_twice(file.schema_arrow.names)
        names = [name for name in file.schema_arrow.names if not re.fullmatch(r"__index_level_\d+__", name)]
        for batch in file.iter_batches(PIECE_ROWS, columns=names):
            yield from batch.to_pylist()


# --------------------------------------------------------------------------------------------------------- text, JSON


def _lines(file: io.TextIOWrapper) -> Iterator[tuple[int, str]]:
    """Number and text of each line that is not blank."""
    yield from ((number, line.strip("\r\n")) for number, line in enumerate(file, start=1) if line.strip())


def _json_row(number: int, line: str) -> Row:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"line {number} is not JSON ({error})") from None
    if not isinstance(row, dict):
        raise ValueError(f"line {number} is a {type(row).__name__}, not an object with columns")
    return row


def _json_rows(file: io.TextIOWrapper) -> Iterator[Row]:
    """The objects of a JSON array; a file that does not begin with `[` is read line by line."""
    start = file.read(PIECE_BYTES).lstrip()
    if not start.startswith("["):
        rest = file.readline()  # the piece may end inside a line
        lines = (line for part in (io.StringIO(start + rest), file) for line in part)
        yield from (_json_row(number, line) for number, line in enumerate(lines, start=1) if line.strip())
        return
    decoder, buffer, at, count, comma_due = json.JSONDecoder(), start, 1, 0, False
    while True:
        at = _SPACE.match(buffer, at).end()  # type: ignore[union-attr]  # it matches nothing as well
        if buffer[at : at + 1] == "]" and (comma_due or not count):
            if buffer[at + 1 :].strip() or file.read().strip():
                raise ValueError("there is more after the end of the array")
            return
        if comma_due and at < len(buffer):
            if buffer[at] != ",":
                raise ValueError(f"after object {count} there is neither a comma nor the end of the array")
            at, comma_due = at + 1, False
            continue
        try:
            row, end = decoder.raw_decode(buffer, at)
        except json.JSONDecodeError as error:
            # An object that the piece cuts fails at its end, or in a text without an end. Any other is damaged.
            cut = error.pos > len(buffer) - 16 or error.msg.startswith("Unterminated")
            more = file.read(max(PIECE_BYTES, len(buffer) - at)) if cut else ""
            if not more:
                raise ValueError(f"object {count + 1} is not JSON ({error.msg})") from None
            buffer, at = buffer[at:] + more, 0
            continue
        count += 1
        if not isinstance(row, dict):
            raise ValueError(f"object {count} is a {type(row).__name__}, not an object with columns")
        at, comma_due = end, True
        yield row
