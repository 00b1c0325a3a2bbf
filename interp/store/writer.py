"""Writing a store: one writer, a card that is written once, and shards that are flushed while the next is computed.

1. `StoreWriter` makes the folder, or checks that what is there was recorded from the same inputs, and locks it.
2. Leftovers of killed writers are swept; finished shards are kept and need not be computed again.
3. `commit` hands a shard to a thread. One shard may be on its way at a time, so memory stays at two shards.
"""

import contextlib
import errno
import functools
import logging
import shutil
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

from interp import artifact
from interp.store import files
from interp.store.shard import CARD, FORMAT, ShardData, find_shard, leftovers, write_shard

log = logging.getLogger("interp.store")

STORE_CARD, SHARDS = "store.json", "shards"
_WHAT_COUNTS = {
    "model": ("model", "fingerprint"),
    "the model's dtype": ("model", "dtype"),
    "hooks on the model": ("model", "edited_at"),
    "tokenizer": ("tokenizer", "hash"),
    "sites": ("sites",),
    "dtype": ("dtype",),
    "tokens": ("tokens",),
    "bos": ("bos",),
    "long": ("long",),
    "max_length": ("max_length",),
    "signals": ("signals",),
    "texts": ("texts", "hash"),
    "labels, groups or further columns": ("texts", "columns_hash"),
}
"""What decides the content of a store: name for people -> where it stands in store.json."""


class StoreWriter:
    """The one writer of a store, for a `with` block.

    Args:
        path: folder of the store; made if it is not there.
        card: what store.json will say, see `interp.store`. Entries under `run` (how the work is cut) are taken from the
            store that is there, if there is one, since they decide the last bits of the numbers.
        resume: go on with a store that is there; False refuses one.

    Raises:
        ValueError: the path is something else, holds a store of other inputs, or another process writes there.
    """

    def __init__(self, path: Path, card: Mapping[str, Any], *, resume: bool = True) -> None:
        _check_place(path, resume)
        self.path = path
        self._card = {"format": FORMAT, **card}
        self._stack = contextlib.ExitStack()
        self._on_its_way: Future[Path] | None = None

    def __enter__(self) -> "StoreWriter":
        self.path.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            stack.enter_context(files.hold(self.path))
            begun = _has_shards(self.path)
            if begun:
                self._card = _same_inputs(read_store_card(self.path), self._card, self.path)
            (self.path / SHARDS).mkdir(exist_ok=True)
            artifact.sweep_temporary(self.path / STORE_CARD)
            for leftover in leftovers(self.path / SHARDS):
                shutil.rmtree(leftover)
            if not begun:  # also a card that a recording left which failed before its first shard
                artifact.write_json(self.path / STORE_CARD, files.sealed(self._card))
                files.sync_folder(self.path)
            self._pool = stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix="store-writer"))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.flush()
        except OSError:
            if error is None:
                raise
            log.exception("the shard that was on its way could not be written either")
        finally:
            self._stack.close()

    @property
    def card(self) -> dict[str, Any]:
        """What store.json says."""
        return self._card

    def finished(self) -> set[int]:
        """Numbers of the shards that are there, whole. ValueError if one is damaged."""
        found = set()
        for folder in sorted((self.path / SHARDS).glob("[0-9]*")):
            try:
                shard = find_shard(folder)
            except ValueError as error:
                raise ValueError(
                    f"{error}: remove the folder {folder} and record again; the other shards are kept"
                ) from None
            if shard is not None and (broken := shard.cut_off()):
                raise ValueError(
                    f"{folder} is damaged ({', '.join(broken)} missing or cut off): remove that folder and record "
                    "again; the other shards are kept"
                )
            if shard is not None:
                found.add(shard.index)
        return found

    def commit(self, shard: ShardData) -> None:
        """Write a shard in the background; waits for the one before it, and raises what went wrong with that."""
        self.flush()
        self._on_its_way = self._pool.submit(write_shard, self.path / SHARDS, shard)

    def flush(self) -> None:
        """Wait until everything committed is on the disk."""
        pending, self._on_its_way = self._on_its_way, None
        if pending is None:
            return
        try:
            pending.result()
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise OSError(
                    error.errno,
                    "the disk is full; finished shards are kept, so make room and record again",
                    str(self.path),
                ) from error
            raise


def read_store_card(path: Path) -> dict[str, Any]:
    """The content of store.json. ValueError where it is damaged or of a newer format."""
    card = files.read_sealed(path / STORE_CARD)
    if not isinstance(card.get("format"), int) or card["format"] > FORMAT:
        raise ValueError(
            f"{path} has store format {card.get('format')!r}, newer than the {FORMAT} that is known here: update interp"
        )
    return card


def require_room(path: Path, needed: int) -> None:
    """Refuse to start what the disk has no room for. ValueError with both numbers."""
    place = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    free = shutil.disk_usage(place).free
    if needed > free:
        raise ValueError(
            f"recording needs about {needed / 1e6:,.0f} MB but {place} has {free / 1e6:,.0f} MB free: choose another "
            "path, fewer sites or texts, tokens='last', or dtype='bfloat16'"
        )


def _check_place(path: Path, resume: bool) -> None:
    if path.exists() and not path.is_dir():
        raise ValueError(f"{path} is a file; a store is a folder: choose another path")
    if (path / STORE_CARD).is_file():
        if not resume and _has_shards(path):
            raise ValueError(f"{path} holds a store already and resume=False: choose another path, or remove it")
    elif path.is_dir() and (foreign := sorted(p.name for p in path.iterdir() if p.name not in (SHARDS, ".lock"))):
        foreign = [name for name in foreign if not name.endswith(".part")]
        if foreign:
            raise ValueError(f"{path} is not a store and not empty ({foreign[0]!r} lies there): choose another path")


def _has_shards(path: Path) -> bool:
    return any((path / SHARDS).glob(f"[0-9]*/{CARD}"))


def _same_inputs(there: dict[str, Any], wanted: dict[str, Any], path: Path) -> dict[str, Any]:
    """The card that is there, if it describes the same inputs."""
    differs = []
    for name, keys in _WHAT_COUNTS.items():
        old, new = (functools.reduce(lambda entry, key: entry[key], keys, card) for card in (there, wanted))
        if old != new:
            differs.append(f"{name} ({_say(old)} there, {_say(new)} now)")
    if differs:
        raise ValueError(
            f"{path} was recorded from other inputs: {'; '.join(differs)}. Choose another path, or remove the folder; "
            "what is there stays readable"
        )
    return there


def _say(value: Any) -> str:
    if isinstance(value, list):
        names = [entry["name"] if isinstance(entry, dict) else str(entry) for entry in value]
        return f"{len(names)}: {', '.join(names[:3])}{' ...' if len(names) > 3 else ''}" if names else "none"
    return str(value)
