"""Stores that live as long as their objects: a private folder in memory, or on the disk where memory has no room."""

import logging
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

from interp.store import files
from interp.store.opening import end_with_its_stores, open_store
from interp.store.reader import Store
from interp.store.writer import require_room

log = logging.getLogger("interp.store")

_S = TypeVar("_S", bound=Store)

_MEMORY = Path("/dev/shm")
_PREFIX = "interp-store-"
_SETTLED = 60.0


def temporary_store(write: Callable[[Path], Any], needed: int, cls: type[_S] = Store) -> _S:
    """Make a store in a private folder that is removed with the returned object, at the latest when Python ends.

    What is opened from that folder later, as by `append` and `add_sites`, keeps it too; so do views and batches.

    Args:
        write: makes the store in the folder that it is given.
        needed: bytes that it will take, about.
        cls: the class of the result.
    """
    parent = _parent(needed)
    _sweep(parent)
    require_room(parent, needed)
    home = parent / f"{_PREFIX}{secrets.token_hex(8)}"
    home.mkdir(mode=0o700)
    stack = ExitStack()
    stack.callback(shutil.rmtree, home, ignore_errors=True)
    try:
        stack.enter_context(files.hold(home))  # so that no other process takes it for a leftover
        write(home / "store")
    except BaseException:
        stack.close()
        raise
    _lifetime = end_with_its_stores(home / "store", stack.close)  # until the store holds it
    return open_store(home / "store", cls)


def _parent(needed: int) -> Path:
    """Memory if the store takes less than half of what is free there, else the usual place for temporary files."""
    if _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK):
        free = min(shutil.disk_usage(_MEMORY).free, os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
        if needed * 2 < free:
            return _MEMORY
    return Path(tempfile.gettempdir())


def _sweep(parent: Path) -> None:
    """Remove the stores of processes that were killed: those whose lock the kernel has freed."""
    for home in parent.glob(f"{_PREFIX}*"):
        try:
            if time.time() - home.stat().st_mtime > _SETTLED:  # a younger one may be between mkdir and its lock
                with files.hold(home, patience=0.0):
                    shutil.rmtree(home)
        except (ValueError, OSError) as error:
            log.debug("%s stays: %s", home, error)
