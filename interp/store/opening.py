"""Opening a store: what is whole is taken, what is half-made is ignored, what is wrong is refused with a hint."""

import difflib
import logging
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from interp.store import files
from interp.store.reader import Store
from interp.store.shard import find_shard, leftovers
from interp.store.writer import SHARDS, STORE_CARD, read_store_card

log = logging.getLogger("interp.store")


def open_store(path: str | os.PathLike[str]) -> Store:
    """Open a store for reading, also one that is not finished; what killed writers left behind is ignored and removed.

    Raises:
        ValueError: no such folder (with the nearest stores), not a store, damaged, or of a newer format.
    """
    path = Path(path)
    if not (path / STORE_CARD).is_file():
        raise ValueError(_no_store(path))
    card = read_store_card(path)
    _sweep(path)
    shards = []
    for folder in sorted((path / SHARDS).glob("[0-9]*")):
        try:
            shard = find_shard(folder)
        except ValueError as error:
            log.warning("%s is left out: %s", folder, error)
            continue
        if shard is not None:
            shards.append(shard)
    if len(shards) != card["shards"]:
        log.warning("%s has %d of %d shards; record again to go on with it", path, len(shards), card["shards"])
    return Store(path, card, shards)


def _sweep(path: Path) -> None:
    """Remove half-made shards, if no writer is at work: then they belong to one that was killed."""
    if not leftovers(path / SHARDS):
        return
    try:
        with files.hold(path, patience=0.0):
            for leftover in leftovers(path / SHARDS):
                shutil.rmtree(leftover)
    except (ValueError, OSError) as error:  # a writer at work, or a folder that may only be read: they do no harm
        log.debug("leftovers in %s stay: %s", path, error)


def _no_store(path: Path) -> str:
    if path.is_dir():
        return f"{path} is a folder but not a store (it has no {STORE_CARD}): give the path that record() was given"
    near: Sequence[str] = ()
    if path.parent.is_dir():
        stores = [folder.name for folder in sorted(path.parent.iterdir()) if (folder / STORE_CARD).is_file()]
        near = difflib.get_close_matches(path.name, stores, 3, 0.4) or stores[:3]
    hint = f"; stores beside it: {', '.join(near)}" if near else ""
    return f"there is no store at {path}{hint}"
