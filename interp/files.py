"""Files on disk, whole or not at all: atomic writing of files and folders, JSON, and checksums.

A reader never sees half a file. Everything is written under a temporary name in the target's own folder, flushed to the
disk, and renamed: the rename happens or it does not. Nothing here needs torch, so a process that only watches starts quickly.
"""

import contextlib
import glob
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# ------------------------------------------------------------------------------------------------- atomic writing


def atomic_write(path: str | os.PathLike[str], data: bytes | str) -> Path:
    """Write a file whole or not at all, replacing one that is there; text is UTF-8. Missing folders are made."""
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"{path} is a folder; give the name of a file in it")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path)
    try:
        with temporary.open("xb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


@contextlib.contextmanager
def atomic_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A folder that appears whole or not at all.

    Yields a temporary folder beside `path`; on a clean exit its files are flushed and it is renamed to `path`, on an
    exception it is removed.

    Raises:
        ValueError: `path` exists already (an empty folder is replaced).
    """
    path = Path(path)
    _refuse_existing(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path)
    temporary.mkdir()
    try:
        yield temporary
        for file in sorted(p for p in temporary.rglob("*") if p.is_file()):
            with file.open("rb") as handle:
                os.fsync(handle.fileno())
        _refuse_existing(path)
        os.replace(temporary, path)
    finally:
        if temporary.exists():
            shutil.rmtree(temporary)


def sweep_temporary(path: str | os.PathLike[str]) -> list[Path]:
    """Remove what killed writers of `path` left behind, and return it. Only for the holder of a lock on `path`."""
    path = Path(path)
    leftovers = sorted(path.parent.glob(f".{glob.escape(path.name)}.*.part"))
    for leftover in leftovers:
        if leftover.is_dir():
            shutil.rmtree(leftover)
        else:
            leftover.unlink()
    return leftovers


def _temporary(path: Path) -> Path:
    # The same folder, so that the rename stays on one file system; hidden, so that no reader lists it.
    return path.with_name(f".{path.name}.{secrets.token_hex(6)}.part")


def _refuse_existing(path: Path) -> None:
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise ValueError(f"{path} exists already: remove it, or choose another place")


# ------------------------------------------------------------------------------------------------------------ JSON


def write_json(path: str | os.PathLike[str], obj: Any) -> Path:
    """Write JSON atomically, keys sorted, so that equal values are equal bytes.

    Raises:
        ValueError: NaN or infinity (JSON has neither), or a value that JSON cannot hold.
    """
    return atomic_write(path, dump(obj, where=str(path), indent=1) + "\n")


def read_json(path: str | os.PathLike[str]) -> Any:
    """Read a JSON file. ValueError where it is not there, is a folder or is not JSON."""
    path = Path(path)
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ValueError(f"there is no file {path}") from None
    except (IsADirectoryError, NotADirectoryError):
        raise ValueError(f"{path} is a folder, or lies in what is none; give the file itself") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid JSON ({error}): it is damaged, or it is another kind of file") from None


def dump(obj: Any, *, where: str, indent: int | None = None) -> str:
    try:
        return json.dumps(obj, sort_keys=True, allow_nan=False, ensure_ascii=False, indent=indent)
    except ValueError as error:
        raise ValueError(
            f"{where}: NaN and infinity have no JSON form ({error}); use None for a missing value"
        ) from None
    except TypeError as error:
        raise ValueError(f"{where}: not a JSON value ({error}); convert numpy and torch numbers with .item()") from None


def records(frame: Any) -> list[dict[str, Any]]:
    """Rows of a data frame for JSON, where what was not measured (NaN) is null."""
    return frame.astype(object).where(frame.notna(), None).to_dict("records")


# ------------------------------------------------------------------------------------------------------- checksums


def sha256_file(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file as 64 hex digits, for what comes from outside."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
