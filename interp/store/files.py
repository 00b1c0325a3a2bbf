"""Files that survive a crash: what is written is on the disk, and what is read is checked first.

Everything here knows bytes, not activations. A JSON file carries the hash of its own content (`sealed`), so that one
flipped byte is seen before a number is believed. Rows of a tensor are read by position and not mapped, though they
could be: a mapped file that shrinks kills its reader, mapped pages count as the reader's memory, and gathering blocks
from fresh maps measured twenty times slower.
"""

import contextlib
import fcntl
import io
import json
import math
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import xxhash
from jaxtyping import Float, Int
from safetensors.torch import save
from torch import Tensor

from interp import artifact

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
_SAFETENSORS_NAMES = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32"}
_SEAL = "xxh3"

# ---------------------------------------------------------------------------------------------------------- writing


def write_durably(path: Path, data: bytes) -> dict[str, Any]:
    """Write a new file, wait until the disk has it, and return its record: size in bytes and xxh3."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return {"bytes": len(data), "xxh3": xxhash.xxh3_64_hexdigest(data)}


def sync_folder(path: Path) -> None:
    """Wait until the disk has the names in a folder (a file's own fsync does not cover its name)."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def table_bytes(table: pa.Table) -> bytes:
    """A table as one parquet file; equal tables give equal bytes."""
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()


def tensor_bytes(acts: Float[Tensor, "row d"], card: dict[str, Any]) -> bytes:
    """One site's rows as a safetensors file: `acts` and, as its only metadata key, a card with sorted keys."""
    return save({"acts": acts.contiguous()}, metadata={"card": json.dumps(card, sort_keys=True)})


def sealed(obj: dict[str, Any]) -> dict[str, Any]:
    """The object with a hash over its content."""
    return {**obj, _SEAL: artifact.hash_json(obj)}


# ---------------------------------------------------------------------------------------------------------- reading


def read_sealed(path: Path) -> dict[str, Any]:
    """Read a JSON object that `sealed` made. ValueError where it is not there, not JSON, or not what was written."""
    obj = artifact.read_json(path)
    if not isinstance(obj, dict) or _SEAL not in obj:
        raise ValueError(f"{path} does not belong to an activation store: it has no {_SEAL} entry")
    content = {key: value for key, value in obj.items() if key != _SEAL}
    if artifact.hash_json(content) != obj[_SEAL]:
        raise ValueError(f"{path} was changed after it was written: its content does not fit its hash")
    return content


def hash_file(path: Path) -> str:
    """xxh3 of a file, read piece by piece."""
    state = xxhash.xxh3_64()
    with path.open("rb") as file:
        while piece := file.read(1 << 22):
            state.update(piece)
    return state.hexdigest()


def read_table(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a parquet file, whole or some columns. ValueError where it is damaged."""
    with _parquet(path) as file:
        return file.read(columns=list(columns) if columns is not None else None)


def table_columns(path: Path) -> list[str]:
    """Names of the columns of a parquet file. ValueError where it is damaged."""
    with _parquet(path) as file:
        return file.schema_arrow.names


@contextlib.contextmanager
def _parquet(path: Path) -> Iterator[pq.ParquetFile]:
    try:
        with pq.ParquetFile(path) as file:
            yield file
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path} cannot be read ({error}): store.verify() lists what is damaged") from None


def read_rows(path: Path, rows: int, index: Int[np.ndarray, " n"], out: Float[Tensor, "n d"]) -> None:
    """Read the rows `index` (ascending) of `acts` [rows, d] into `out`, neighbours in one go. The dtypes must be equal.

    Raises:
        ValueError: the file is not the tensor that it should be, or ends too early.
    """
    if not len(index):
        return
    row_bytes = out.shape[1] * out.element_size()
    # numpy has no bfloat16, so the buffer is seen as bytes.
    buffer = out.view(torch.uint8).numpy().reshape(-1).data
    breaks = np.flatnonzero(np.diff(index) != 1) + 1
    starts = np.concatenate([[0], breaks])
    stops = np.concatenate([breaks, [len(index)]])
    with path.open("rb", buffering=0) as file:
        data = _data_offset(file, path, rows, out)
        for first, start, stop in zip(index[starts].tolist(), starts.tolist(), stops.tolist()):
            file.seek(data + first * row_bytes)
            _read_into(file, buffer[start * row_bytes : stop * row_bytes], path)


def _data_offset(file: io.FileIO, path: Path, rows: int, out: Tensor) -> int:
    """Where the numbers begin; the header must describe exactly the expected tensor."""
    length = int.from_bytes(file.read(8), "little")
    try:
        header = json.loads(file.read(length)) if length < 1 << 20 else {}
    except (json.JSONDecodeError, UnicodeDecodeError):
        header = {}
    shape = [rows, out.shape[1]]
    size = math.prod(shape) * out.element_size()
    expected = {"dtype": _SAFETENSORS_NAMES[out.dtype], "shape": shape, "data_offsets": [0, size]}
    if not isinstance(header, dict) or header.get("acts") != expected:
        raise ValueError(f"{path} does not hold acts {shape} in {out.dtype}: store.verify() lists the damage")
    return 8 + length


def _read_into(file: io.FileIO, buffer: memoryview, path: Path) -> None:
    filled = 0
    while filled < len(buffer):
        count = file.readinto(buffer[filled:])
        if not count:
            raise ValueError(f"{path} ends too early: store.verify() lists what is damaged")
        filled += count


# ---------------------------------------------------------------------------------------------------------- locking


@contextlib.contextmanager
def hold(folder: Path, patience: float = 2.0) -> Iterator[None]:
    """Be the only writer of a folder. The kernel frees the lock when its process ends, however that happens.

    Args:
        folder: an existing folder; the lock is its file `.lock`, which stays.
        patience: seconds to wait for a reader that is sweeping.

    Raises:
        ValueError: another process holds it; the message says which.
    """
    handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
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
