"""Removing a store, and nothing else: each file must be one that a store has.

1. Everything below the folder is listed. A file or folder that no store has ends it before anything is removed.
2. The locks of the store and of its parts are taken, so that no writer is at work.
3. store.json goes first. Then there is no store any more, whatever happens; the same call removes the rest.
"""

import contextlib
import os
import re
import shutil
from collections.abc import Iterator

from interp.store import files
from interp.store.opening import no_store
from interp.store.parts import part_names
from interp.store.place import Place, as_place, is_local
from interp.store.writer import SHARDS, STORE_CARD

_PART = r"(parts/\d+/)?"
_HALF = r"(\.\w[\w.]*\.[0-9a-f]+\.part)"
_KNOWN = re.compile(
    rf"{_PART}(\.lock|store\.json|{_HALF}|shards/)"
    rf"|{_PART}shards/(\d+/|\.\d+\.[0-9a-f]+\.part/)([\w.-]+\.(parquet|safetensors)|shard\.json|{_HALF})?"
    r"|parts/(\d+/)?"
)
"""Paths inside a store; those of folders end in a slash."""


def remove_store(path: str | os.PathLike[str] | Place) -> None:
    """Remove a store with its parts, finished or not.

    Raises:
        ValueError: no store there; a file in it that does not belong to a store, or a link; a writer at work.
        OSError: it may not be removed.
    """
    path = as_place(path)
    found = [] if _is_link(path) else list(_below(path))
    if foreign := sorted(name for name in found if not _KNOWN.fullmatch(name)):
        raise ValueError(
            f"{path} holds what does not belong to a store ({', '.join(foreign[:3])}): nothing was removed; take that "
            "elsewhere first, or remove the folder yourself"
        )
    if STORE_CARD not in found and not any(name.startswith(f"{SHARDS}/") for name in found):
        raise ValueError(f"{path} is a link, not a folder: remove it yourself" if _is_link(path) else no_store(path))
    with contextlib.ExitStack() as stack:
        for name in ("", *part_names(path)):
            stack.enter_context(files.hold(path / name))
        if not is_local(path):
            if STORE_CARD in found:
                path.fs.rm_file((path / STORE_CARD).path)
            path.fs.rm(path.path, recursive=True)
            path.fs.invalidate_cache(path.path)
            return
        (path / STORE_CARD).unlink(missing_ok=True)
        files.sync_folder(path)
        shutil.rmtree(path)
        files.sync_folder(path.parent)


def _is_link(path: Place) -> bool:
    return is_local(path) and path.is_symlink()


def _below(path: Place) -> Iterator[str]:
    """Everything below a folder, relative to it; folders with a slash at their end, links with an @, as none has."""
    if not is_local(path):
        root = path.path.strip("/")
        path.fs.invalidate_cache(path.path)
        yield from (name.strip("/").removeprefix(root).lstrip("/") for name in path.fs.find(path.path))
        return
    for folder, folders, inside in os.walk(path):
        where = os.path.relpath(folder, path)
        for name in folders + inside:
            full = name if where == "." else f"{where}/{name}"
            kind = "@" if os.path.islink(path / full) else "/" if name in folders else ""
            yield full + kind
