"""Files that survive a crash: what is written is on the disk, and what is read is checked first.

Everything here knows bytes, not activations. A JSON file carries the hash of its own content (`sealed`), so that one
flipped byte is seen before a number is believed. Rows of a tensor are read by position and not mapped, though they
could be: a mapped file that shrinks kills its reader, mapped pages count as the reader's memory, and gathering blocks
from fresh maps measured twenty times slower.

Where fsspec reaches the place (`interp.store.place`), a file is sent whole under its final name, and rows are asked for
by their bytes: neighbours, and those with a small gap between them, in one request, many requests at once.
"""

import contextlib
import fcntl
import io
import json
import math
import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import xxhash
from jaxtyping import Float, Int, UInt8
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor
from upath import UPath

from interp import artifact
from interp.store.place import Place, is_local

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
_SAFETENSORS_NAMES = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32"}
_SEAL = "xxh3"
_LARGEST_HEADER = 100 << 20
LOCK = ".lock"
"""The file in a folder whose holder is its writer."""
_PIECE = 1 << 22
_LOCAL_GAP_BYTES = 1 << 16
"""Bytes between two rows that are read along, on a disk of this machine, where the rows stand close together."""
_CLOSE = 1 / 8
"""Rows stand close together if so large a part of what lies between the first and the last is asked for; else each run of
neighbours is cheaper to read by itself."""
_LOCAL_BYTES = 1 << 20
"""Most bytes that are read along with gaps at a time."""
_GAP_BYTES = 1 << 15
"""Bytes between two rows that are cheaper to read along than to ask for the rows one by one, elsewhere."""
_REQUEST_BYTES = 8 << 20
"""Most bytes in one request."""
_AT_ONCE_BYTES = 64 << 20
"""Most bytes of all requests that are on their way together: memory beside the rows that were asked for."""

# ---------------------------------------------------------------------------------------------------------- writing


def make_folder(path: Place) -> None:
    """Make a folder and those above it, if they are not there. An object store may have none, and says nothing."""
    if is_local(path):
        path.mkdir(parents=True, exist_ok=True)
    else:
        path.fs.makedirs(path.path, exist_ok=True)


def write_durably(path: Place, *parts: bytes | memoryview) -> dict[str, Any]:
    """Write a new file of these parts, wait until the disk has it, and return its record: size in bytes and xxh3."""
    if is_local(path):
        with path.open("xb", buffering=0) as file:
            for part in parts:
                rest = memoryview(part)
                while len(rest):
                    rest = rest[file.write(rest) :]
            os.fsync(file.fileno())
    else:
        path.fs.pipe_file(path.path, b"".join(parts))
    state = xxhash.xxh3_64()
    for part in parts:
        state.update(part)
    return {"bytes": sum(map(len, parts)), "xxh3": state.hexdigest()}


def copy_durably(source: Place, target: Place) -> dict[str, Any]:
    """Copy a file piece by piece, as `write_durably` would have written it; the record of what was read."""
    state, size = xxhash.xxh3_64(), 0
    with source.open("rb") as file, target.open("xb" if is_local(target) else "wb") as copy:
        while piece := file.read(_PIECE):
            state.update(piece)
            size += copy.write(piece)
        if is_local(target):
            copy.flush()
            os.fsync(copy.fileno())
    return {"bytes": size, "xxh3": state.hexdigest()}


def write_sealed(path: Place, obj: dict[str, Any]) -> None:
    """Write a JSON object with the hash of its content, whole or not at all. Equal objects are equal bytes."""
    if is_local(path):
        artifact.write_json(path, sealed(obj))
    else:
        text = json.dumps(sealed(obj), sort_keys=True, allow_nan=False, ensure_ascii=False, indent=1)
        path.fs.pipe_file(path.path, (text + "\n").encode())


def sync_folder(path: Place) -> None:
    """Wait until the disk has the names in a folder (a file's own fsync does not cover its name)."""
    if not is_local(path):
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def table_bytes(table: pa.Table) -> bytes:
    """A table as one parquet file; equal tables give equal bytes."""
    sink = io.BytesIO()
    # Hardly two norms are equal: a dictionary of them takes ten times as long, and half as much room again.
    encoded: Any = [field.name for field in table.schema if not pa.types.is_floating(field.type)]
    pq.write_table(table, sink, compression="zstd", use_dictionary=encoded)
    return sink.getvalue()


def write_tensor(path: Place, acts: Float[Tensor, "row d"], card: dict[str, Any]) -> dict[str, Any]:
    """One site's rows as a safetensors file: `acts` and, as its only metadata key, a card with sorted keys.

    The header is written here, and the rows go to the disk from where they lie: the package's `save` copies them twice,
    which costs as much time as all statistics.
    """
    acts = acts.contiguous()
    entry = {
        "dtype": _SAFETENSORS_NAMES[acts.dtype],
        "shape": list(acts.shape),
        "data_offsets": [0, acts.numel() * acts.element_size()],
    }
    header: dict[str, Any] = {"__metadata__": {"card": json.dumps(card, sort_keys=True)}, "acts": entry}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return write_durably(path, len(text).to_bytes(8, "little") + text, _as_bytes(acts).reshape(-1).data)


def sealed(obj: dict[str, Any]) -> dict[str, Any]:
    """The object with a hash over its content."""
    return {**obj, _SEAL: artifact.hash_json(obj)}


# ---------------------------------------------------------------------------------------------------------- reading


def read_all(paths: Sequence[Place]) -> list[bytes | OSError | None]:
    """The content of small files, many at once where that saves journeys; None for one that is not there, the error for
    one that cannot be read."""
    far = [path for path in paths if not is_local(path)]
    if not far:
        return [_content(path) for path in paths]
    whole = [None] * len(far)
    found = far[0].fs.cat_ranges([path.path for path in far], whole, whole, on_error="return")
    for data in found:
        if isinstance(data, Exception) and not isinstance(data, OSError):
            raise data
    return [None if isinstance(data, FileNotFoundError) else data for data in found]


def _content(path: Place) -> bytes | OSError | None:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return error


def read_sealed(path: Place) -> dict[str, Any]:
    """Read a JSON object that `sealed` made. ValueError where it is not there, not JSON, or not what was written."""
    try:
        return unsealed(path, path.read_bytes())
    except FileNotFoundError:
        raise ValueError(f"there is no file {path}") from None


def unsealed(path: Place, data: bytes) -> dict[str, Any]:
    """The JSON object that `sealed` made, from the bytes of its file. ValueError as for `read_sealed`."""
    try:
        obj = json.loads(data)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid JSON ({error}): it is damaged, or it is another kind of file") from None
    if not isinstance(obj, dict) or _SEAL not in obj:
        raise ValueError(f"{path} does not belong to an activation store: it has no {_SEAL} entry")
    content = {key: value for key, value in obj.items() if key != _SEAL}
    if artifact.hash_json(content) != obj[_SEAL]:
        raise ValueError(f"{path} was changed after it was written: its content does not fit its hash")
    return content


def hash_file(path: Place) -> str:
    """xxh3 of a file, read piece by piece."""
    state = xxhash.xxh3_64()
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            state.update(piece)
    return state.hexdigest()


def read_table(path: Place, columns: Sequence[str] | None = None, but: tuple[str, ...] = ()) -> pa.Table:
    """Read a parquet file.

    Args:
        columns: names, None for all.
        but: beginnings of names; with `columns=None` those columns are left out.

    Raises:
        ValueError: the file is damaged, or has no such column.
    """
    try:
        with contextlib.ExitStack() as stack:
            source = path if is_local(path) else stack.enter_context(path.open("rb"))
            file = stack.enter_context(pq.ParquetFile(source))
            there = file.schema_arrow.names
            wanted = [name for name in there if not name.startswith(but)] if columns is None else list(columns)
            if missing := sorted(set(wanted) - set(there)):
                raise ValueError(f"{path} has no column {missing[0]!r}; it has {', '.join(there)}")
            return file.read(columns=wanted)
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path, error) from None


def read_tensors(path: Place, names: Collection[str]) -> dict[str, Tensor]:
    """Some tensors of a safetensors file; only their bytes are read.

    Raises:
        ValueError: the file is damaged, or has no such tensor.
    """
    try:
        with path.open("rb") as file:
            header, start = _header(file.read)
            found = {}
            for name in names:
                begin, end = header[name]["data_offsets"]
                file.seek(start + begin)
                entry = {name: {**header[name], "data_offsets": [0, end - begin]}}
                alone = json.dumps(entry).encode()
                found |= load(len(alone).to_bytes(8, "little") + alone + file.read(end - begin))
            return found
    except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Place, error: Exception) -> ValueError:
    return ValueError(f"{path} cannot be read ({error}): store.verify() lists what is damaged")


# ------------------------------------------------------------------------------------------------------------- rows


def empty_rows(n: int, d: int, dtype: torch.dtype) -> Float[Tensor, "n d"]:
    """Rows to be filled. Their memory is numpy's, which asks the system for large pages: fresh memory costs less than half
    of the time, and it is what shuffled reading mostly waits for."""
    return torch.from_numpy(np.empty((n, d * dtype.itemsize), dtype=np.uint8)).view(dtype)


def read_rows(path: Place, rows: int, index: Int[np.ndarray, " n"], out: Float[Tensor, "n d"], n_bytes: int) -> None:
    """Read the rows `index` (ascending) of `acts` [rows, d] into `out`, neighbours in one go. The dtypes must be equal.

    Args:
        n_bytes: size of the file; where the place is not of this machine, it saves asking where the numbers begin.

    Raises:
        ValueError: the file is not the tensor that it should be, or ends too early.
    """
    if not len(index):
        return
    if not is_local(path):
        _read_ranges(path, rows, index, out, n_bytes)
        return
    row_bytes = out.shape[1] * out.element_size()
    buffer = _as_bytes(out).reshape(-1).data
    target = _as_bytes(out)
    close = len(index) >= _CLOSE * (int(index[-1]) - int(index[0]) + 1)
    gap = _LOCAL_GAP_BYTES // row_bytes if close else 0
    starts, stops = _runs(index, 1 + gap, max(1, _LOCAL_BYTES // row_bytes))
    firsts, lasts = index[starts], index[stops - 1]
    scratch = np.empty((int((lasts - firsts).max()) + 1, row_bytes), dtype=np.uint8)
    with path.open("rb", buffering=0) as file:
        data = _data_offset(file.read, path, rows, out)
        for first, last, start, stop in zip(firsts.tolist(), lasts.tolist(), starts.tolist(), stops.tolist()):
            n, offset = last - first + 1, data + first * row_bytes
            if n == stop - start:  # no gap
                _read_at(file, buffer[start * row_bytes : stop * row_bytes], offset, path)
            else:
                _read_at(file, scratch[:n].reshape(-1).data, offset, path)
                scratch.take(index[start:stop] - first, axis=0, out=target[start:stop], mode="clip")


def _read_ranges(path: UPath, rows: int, index: Int[np.ndarray, " n"], out: Float[Tensor, "n d"], n_bytes: int) -> None:
    """Rows by their bytes; the header comes along with the first of them."""
    row_bytes = out.shape[1] * out.element_size()
    data = n_bytes - rows * row_bytes
    target = _as_bytes(out)
    starts, stops = _runs(index, 1 + _GAP_BYTES // row_bytes, max(1, _REQUEST_BYTES // row_bytes))
    firsts, lasts = index[starts], index[stops - 1]
    group = np.cumsum((lasts - firsts + 1) * row_bytes) // _AT_ONCE_BYTES
    for number in np.unique(group).tolist():
        some = np.flatnonzero(group == number).tolist()
        spans = [(data + int(firsts[i]) * row_bytes, data + int(lasts[i] + 1) * row_bytes) for i in some]
        header, *pieces = _ranges(path, [(0, data), *spans])
        _data_offset(io.BytesIO(header).read, path, rows, out)
        for i, piece in zip(some, pieces):
            block = np.frombuffer(piece, dtype=np.uint8).reshape(-1, row_bytes)
            part = slice(int(starts[i]), int(stops[i]))
            target[part] = block[index[part] - firsts[i]]


def _ranges(path: UPath, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    starts, stops = (list(ends) for ends in zip(*ranges))
    pieces = path.fs.cat_ranges([path.path] * len(ranges), starts, stops, on_error="return")
    for piece, start, stop in zip(pieces, starts, stops):
        if isinstance(piece, Exception):
            raise _unreadable(path, piece)
        if len(piece) != stop - start:
            raise _too_short(path)
    return pieces


def _runs(
    index: Int[np.ndarray, " n"], step: int, most: int | None = None
) -> tuple[Int[np.ndarray, " run"], Int[np.ndarray, " run"]]:
    """Where runs of `index` begin and end: no step in them is over `step`, and none spans more than `most` rows."""
    steps = np.diff(index)
    breaks = (steps > step) | (steps < 1)
    if most is not None:
        breaks |= np.diff(index // most) > 0
    cuts = np.flatnonzero(breaks) + 1
    return np.concatenate([[0], cuts]), np.concatenate([cuts, [len(index)]])


def _as_bytes(out: Float[Tensor, "n d"]) -> UInt8[np.ndarray, "n row_bytes"]:
    """A tensor's memory; numpy has no bfloat16, so it is seen as bytes."""
    return out.view(torch.uint8).numpy()


def _header(read: Callable[[int], bytes]) -> tuple[dict[str, Any], int]:
    """The header of a safetensors file without its metadata (empty where it has none), and where the numbers begin."""
    length = int.from_bytes(read(8), "little")
    try:
        header = json.loads(read(length)) if length < _LARGEST_HEADER else {}
    except (json.JSONDecodeError, UnicodeDecodeError):
        header = {}
    entries = header.items() if isinstance(header, dict) else ()
    return {name: entry for name, entry in entries if name != "__metadata__"}, 8 + length


def _data_offset(read: Callable[[int], bytes], path: Place, rows: int, out: Tensor) -> int:
    """Where the numbers begin; the header must describe exactly the expected tensor."""
    shape = [rows, out.shape[1]]
    size = math.prod(shape) * out.element_size()
    expected = {"dtype": _SAFETENSORS_NAMES[out.dtype], "shape": shape, "data_offsets": [0, size]}
    header, start = _header(read)
    if header.get("acts") != expected:
        raise ValueError(f"{path} does not hold acts {shape} in {out.dtype}: store.verify() lists the damage")
    return start


def _read_at(file: io.FileIO, buffer: memoryview, offset: int, path: Place) -> None:
    filled = os.preadv(file.fileno(), (buffer,), offset)  # one call: half the time of seek and read
    if filled < len(buffer):
        file.seek(offset + filled)
        _read_into(file, buffer[filled:], path)


def _read_into(file: io.FileIO, buffer: memoryview, path: Place) -> None:
    filled = 0
    while filled < len(buffer):
        count = file.readinto(buffer[filled:])
        if not count:
            raise _too_short(path)
        filled += count


def _too_short(path: Place) -> ValueError:
    return ValueError(f"{path} ends too early: store.verify() lists what is damaged")


# ---------------------------------------------------------------------------------------------------------- locking


@contextlib.contextmanager
def hold(folder: Place, patience: float = 2.0) -> Iterator[None]:
    """Be the only writer of a folder. The kernel frees the lock when its process ends, however that happens.

    Only this machine has locks; elsewhere nothing is held. Two writers of the same shard then write the same bytes.

    Args:
        folder: an existing folder; the lock is its file `.lock`, which stays.
        patience: seconds to wait for a reader that is sweeping.

    Raises:
        ValueError: another process holds it; the message says which.
    """
    if not is_local(folder):
        yield
        return
    handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _acquire(handle, folder, time.monotonic() + patience)
        os.truncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(handle)


def _acquire(handle: int, folder: Path, deadline: float) -> None:
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                owner = os.pread(handle, 32, 0).decode() or "unknown"
                raise ValueError(
                    f"{folder} is being written by another process (pid {owner}): wait for it, or choose another path"
                ) from None
            time.sleep(0.02)
