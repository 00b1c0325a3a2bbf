"""Opening a store: what is whole is taken, what is half-made is ignored, what is wrong is refused with a hint."""

import difflib
import logging
import os
import shutil
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from interp.store import files
from interp.store.parts import joined_card, part_names, segments
from interp.store.place import Place, as_place, is_local, names
from interp.store.reader import Store
from interp.store.shard import leftovers
from interp.store.writer import SHARDS, STORE_CARD, read_store_card

log = logging.getLogger("interp.store")


_S = TypeVar("_S", bound=Store)


class Lifetime:
    """Held by every store that is open at one place; with the last of them it goes away, and ends the place."""


_LIFETIMES: weakref.WeakValueDictionary[Path, Lifetime] = weakref.WeakValueDictionary()


def end_with_its_stores(path: Path, end: Callable[[], Any]) -> Lifetime:
    """Call `end` when no store that was opened at a path is left, nor the result; at the latest when Python ends."""
    lifetime = _LIFETIMES[path] = Lifetime()
    weakref.finalize(lifetime, end)
    return lifetime


def _let_go(lifetime: Lifetime) -> None:
    """Of a store that went away; until then its finalizer held the lifetime."""


def open_store(path: str | os.PathLike[str] | Place, cls: type[_S] = Store) -> _S:
    """Open a store for reading, also one that is not finished; what killed writers left behind is ignored and removed.

    What was added to it later (`interp.store.parts`) is joined.

    Args:
        path: folder or URL of the store.
        cls: the class of the result: `Store`, or one made from it.

    Returns:
        The store, a `cls`.

    Raises:
        ValueError: no such folder (with the nearest stores), not a store, damaged, or of a newer format.
    """
    path = as_place(path)
    if not (path / STORE_CARD).is_file():
        raise ValueError(no_store(path))
    card = read_store_card(path)
    for name in ("", *part_names(path)):
        _sweep(path / name)
    found = segments(path, card)
    base = found[0]
    if len(base.shards) != card["shards"]:
        log.warning("%s has %d of %d shards; record again to go on with it", path, len(base.shards), card["shards"])
    store = cls(path, joined_card(path, found), [shard for segment in found for shard in segment.shards])
    if is_local(path) and (lifetime := _LIFETIMES.get(path)) is not None:
        weakref.finalize(store, _let_go, lifetime)
    return store


def _sweep(path: Place) -> None:
    """Remove half-made shards, if no writer is at work: then they belong to one that was killed."""
    if not leftovers(path / SHARDS):
        return
    try:
        with files.hold(path, patience=0.0):
            for leftover in leftovers(path / SHARDS):
                shutil.rmtree(leftover)
    except (ValueError, OSError) as error:  # a writer at work, or a folder that may only be read: they do no harm
        log.debug("leftovers in %s stay: %s", path, error)


def no_store(path: Place) -> str:
    """What to tell somebody who took a path for a store."""
    if SHARDS in names(path):
        return f"{path} has shards but no {STORE_CARD}: it is half of a copy or of a merge, so make that again"
    if path.is_dir():
        return f"{path} is a folder but not a store (it has no {STORE_CARD}): give the path that record() was given"
    near: Sequence[str] = ()
    if path.parent != path:
        stores = [name for name in names(path.parent) if (path.parent / name / STORE_CARD).is_file()]
        near = difflib.get_close_matches(path.name, stores, 3, 0.4) or stores[:3]
    hint = f"; stores beside it: {', '.join(near)}" if near else ""
    return f"there is no store at {path}{hint}"
