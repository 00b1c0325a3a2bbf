"""Where a store lies: a folder of this machine, or a place that fsspec reaches by a URL.

Both have the methods of a path, so only what differs asks which it is. A folder of this machine has locks, a rename
that happens or does not, and a disk that can be told to flush. An object store has none of them: a file is there whole
once it was sent, its pieces are asked for by their bytes, and each request costs a journey, so few are made.
"""

import errno
import os
import re
from pathlib import Path
from typing import Any

from typing_extensions import TypeIs
from upath import UPath

_WAS_A_URL = re.compile(r"[A-Za-z][\w+.-]+:/")

_NO_NAME = (errno.ENAMETOOLONG, errno.ELOOP)
"""What the system says of a path that nothing can lie at."""

Place = Path | UPath
"""A folder or file of this machine, or one that fsspec reaches."""


def as_place(path: str | os.PathLike[str] | UPath | Any) -> Place:
    """The place that a path or a URL names.

    A path of this machine becomes absolute, so that it is the same place after the process has changed its folder.

    Args:
        path: a path of this machine, in which a leading `~` is the user's own folder; a URL (`memory://runs/a`,
            `s3://bucket/runs/a`, whatever fsspec knows), or a `UPath`, which can carry the options of its file system.

    Raises:
        ValueError: neither path nor URL; a path that no folder can have; a protocol that fsspec does not know, or whose
            package is not installed.
    """
    if isinstance(path, Path) and not isinstance(path, UPath):
        if _WAS_A_URL.match(str(path)):
            raise ValueError(f"{path} was a URL before it became a Path, which drops a slash: pass it as a str")
        return _of_this_machine(path)
    if isinstance(path, str) and "://" not in path:
        return _of_this_machine(Path(path))
    if not isinstance(path, (str, os.PathLike, UPath)):
        raise ValueError(f"a store lies at a path or a URL, got {path!r}")
    try:
        place = UPath(path.rstrip("/") if isinstance(path, str) else path)
        known = place.fs
    except (ImportError, ValueError) as error:
        raise ValueError(f"{path} cannot be reached: {error}") from None
    # Files of this machine keep their locks and renames, however they are named.
    local = "file" in known.protocol or "local" in known.protocol
    return _of_this_machine(Path(place.path)) if local else place


def _of_this_machine(path: Path) -> Path:
    """The path, absolute. ValueError for one that no folder can have."""
    try:
        place = path.expanduser().absolute()
    except RuntimeError:
        raise ValueError(f"{path} begins with the name of no user: write the whole path") from None
    try:
        os.lstat(place)
    except NotADirectoryError:
        file = next((above for above in place.parents if above.exists() and not above.is_dir()), place)
        raise ValueError(f"{path} cannot be a folder, since {file} is a file: choose another path") from None
    except ValueError as error:  # a NUL, or a lone surrogate
        raise ValueError(f"{str(path)!r} cannot be the name of a folder ({error}): choose another path") from None
    except OSError as error:
        if error.errno in _NO_NAME:
            raise ValueError(f"{path} cannot be a folder ({error.strerror}): choose another path") from None
    return place  # also one that is not there: it may be made


def is_local(place: Place) -> TypeIs[Path]:
    """Whether a place is a file or folder of this machine."""
    return isinstance(place, Path)


def file_sizes(folder: Place) -> dict[str, int]:
    """Name -> bytes of the files that lie in a folder, in one request; nothing where there is no folder."""
    if is_local(folder):
        if not folder.is_dir():
            return {}
        with os.scandir(folder) as entries:
            return {entry.name: entry.stat().st_size for entry in entries if entry.is_file()}
    return {name: entry["size"] for name, entry in _listing(folder).items() if entry["type"] == "file"}


def names(folder: Place) -> list[str]:
    """Sorted names of what lies in a folder; nothing where there is no folder."""
    if is_local(folder):
        return sorted(os.listdir(folder)) if folder.is_dir() else []
    return sorted(_listing(folder))


def _listing(folder: UPath) -> dict[str, dict[str, Any]]:
    # What another machine has written meanwhile counts, so nothing remembered is believed.
    folder.fs.invalidate_cache(folder.path)
    try:
        entries = folder.fs.ls(folder.path, detail=True)
    except FileNotFoundError:
        return {}
    found = {entry["name"].rstrip("/").rsplit("/", 1)[-1]: entry for entry in entries}
    found.pop("", None)  # some object stores list the folder itself
    return {name: entry for name, entry in found.items() if entry["name"].strip("/") != folder.path.strip("/")}
