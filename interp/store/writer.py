"""Writing a store: one writer, a card that is written once, and shards that are flushed while the next is computed.

1. `StoreWriter` makes the folder, or checks that what is there was recorded from the same inputs, and locks it.
2. Leftovers of killed writers are swept; finished shards are kept and need not be computed again.
3. `commit` hands a shard to a thread. One shard may be on its way at a time, so memory stays at two shards.

What fails (a full disk, a folder that may not be written) fails the shard that was on its way, and nothing else:
finished shards stay, the lock is free, and the error says what to do before the same call is made again.
"""

import contextlib
import errno
import logging
import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any

from interp import artifact
from interp.store import files
from interp.store.place import Place, as_place, is_local, names
from interp.store.shard import CARD, FORMAT, ShardData, find_shard, leftovers, shard_folders, write_shard

log = logging.getLogger("interp.store")

STORE_CARD, SHARDS = "store.json", "shards"
WHAT_COUNTS = {
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
    "stride": ("stride",),
    "generate": ("generate",),
    "signals": ("signals",),
    "head statistics": ("head_stats",),
    "texts": ("texts", "hash"),
    "labels, groups or further columns": ("texts", "columns_hash"),
    "what it is a part of": ("part",),
    "which of the tokens are kept": ("texts", "rows_hash"),
}
"""What decides the content of a store: name for people -> where it stands in store.json."""
_HOOKS, _KEPT = "hooks on the model", "which of the tokens are kept"
_MENDS = {
    errno.ENOSPC: "the disk is full; finished shards are kept, so make room and {again}",
    errno.EDQUOT: "your share of the disk is used up; finished shards are kept, so make room and {again}",
    errno.EROFS: "the file system is read-only; finished shards are kept: choose another path, or mount it for writing "
    "and {again}",
    errno.EACCES: "it may not be written; finished shards are kept: give yourself the permission and {again}, or choose "
    "another path",
    errno.ENOENT: "it was moved or removed while it was written: put it back and {again}",
}
_MENDS[errno.EFBIG] = (
    "a file may not grow any further; finished shards are kept, so raise the limit (ulimit -f) or choose another disk, and "
    "{again}"
)
_MENDS[errno.EPERM] = _MENDS[errno.EACCES]
"""What to do about an error of the operating system."""
RECORD_AGAIN, CALL_AGAIN = "record again", "make the same call again"
"""What goes on with a recording, and with whatever else writes a store."""


class StoreWriter:
    """The one writer of a store, for a `with` block.

    Args:
        path: folder or URL of the store; made if it is not there.
        card: what store.json will say, see `interp.store`. Entries under `run` (how the work is cut) are taken from the
            store that is there, if there is one, since they decide the last bits of the numbers.
        resume: go on with a store that is there; False refuses one.

    A store that is finished needs no writing: it may lie on a disk that is read-only.

    Raises:
        ValueError: the path is something else, holds a store of other inputs or half of one of an older format, or
            another process writes there; what is there was recorded with hooks on the model.
        OSError: the place cannot be written; the message says what to do.
    """

    def __init__(self, path: str | os.PathLike[str] | Place, card: Mapping[str, Any], *, resume: bool = True) -> None:
        self.path = as_place(path)
        _check_place(self.path, resume)
        self._card = {"format": FORMAT, **card}
        self._again = CALL_AGAIN if "part" in card else RECORD_AGAIN
        self._stack = contextlib.ExitStack()
        self._pool: ThreadPoolExecutor | None = None
        self._on_its_way: Future[Place] | None = None

    def __enter__(self) -> "StoreWriter":
        with said_clearly(self.path, self._again, making=True):
            files.make_folder(self.path)
        with contextlib.ExitStack() as stack:
            stack.enter_context(said_clearly(self.path, self._again))
            try:
                stack.enter_context(files.hold(self.path))
            except OSError as error:
                if error.errno == errno.EROFS and self.check() and len(self.finished()) == self._card["shards"]:
                    return self
                raise
            begun = self.check()
            files.make_folder(self.path / SHARDS)
            if is_local(self.path):
                artifact.sweep_temporary(self.path / STORE_CARD)
            for leftover in leftovers(self.path / SHARDS):
                shutil.rmtree(leftover)
            if not begun:  # also a card that a recording left which failed before its first shard
                files.write_sealed(self.path / STORE_CARD, self._card)
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

    def check(self) -> bool:
        """Whether there are shards to go on with. Nothing is written.

        Raises:
            ValueError: they were recorded from other inputs or under hooks, or are half of a store of an older format.
        """
        if not _has_shards(self.path):
            return False
        self._card = _same_inputs(read_store_card(self.path), self._card, self.path)
        _refuse_older(self._card, self.path)
        return True

    def require_room(self, needed: int) -> None:
        """Refuse to begin what the disk has no room for. ValueError with both numbers.

        Args:
            needed: bytes that are still to come.
        """
        if "part" in self._card:
            adds = self._card["part"]["adds"]
            require_room(self.path, needed, f"adding {adds}", f"make room there, or add fewer {adds}")
        else:
            require_room(self.path, needed)

    def finished(self) -> set[int]:
        """Numbers of the shards that are there, whole. ValueError if one is damaged."""
        found = set()
        for folder in shard_folders(self.path / SHARDS):
            try:
                shard = find_shard(folder)
            except ValueError as error:
                raise ValueError(
                    f"{error}: remove the folder {folder} and {self._again}; the other shards are kept"
                ) from None
            if shard is not None and (broken := shard.cut_off()):
                raise ValueError(
                    f"{folder} is damaged ({', '.join(broken)} missing or cut off): remove that folder and "
                    f"{self._again}; the other shards are kept"
                )
            if shard is not None:
                found.add(shard.index)
        return found

    def commit(self, shard: ShardData) -> None:
        """Write a shard in the background; waits for the one before it, and raises what went wrong with that."""
        self.flush()
        assert self._pool is not None, "a store that is finished takes no shard"
        self._on_its_way = self._pool.submit(write_shard, self.path / SHARDS, shard)

    def flush(self) -> None:
        """Wait until everything committed is on the disk."""
        pending, self._on_its_way = self._on_its_way, None
        if pending is None:
            return
        with said_clearly(self.path, self._again):
            pending.result()


@contextlib.contextmanager
def said_clearly(path: Place, again: str, *, making: bool = False) -> Iterator[None]:
    """Errors of the operating system, with what to do about them.

    Args:
        path: the store.
        again: what goes on after the mend.
        making: whether its folder is not there yet.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _MENDS or not is_local(path):
            raise
        mend = _MENDS[error.errno].format(again=again)
        if making and error.errno == errno.ENOENT:  # some file systems have no folders but their own, such as /proc
            mend = "no folder can be made there: choose another path"
        raise OSError(error.errno, mend, str(path)) from error


def read_store_card(path: Place) -> dict[str, Any]:
    """The content of store.json. ValueError where it is damaged or of a newer format."""
    card = files.read_sealed(path / STORE_CARD)
    if not isinstance(card.get("format"), int) or card["format"] > FORMAT:
        raise ValueError(
            f"{path} has store format {card.get('format')!r}, newer than the {FORMAT} that is known here: update interp"
        )
    return card


def require_room(
    path: str | os.PathLike[str] | Place,
    needed: int,
    doing: str = "recording",
    mend: str = "choose another path, fewer sites or texts, tokens='last', or dtype='bfloat16'",
) -> None:
    """Refuse to start what the disk has no room for. ValueError with both numbers.

    Args:
        path: where it is to lie, also where no folder is yet.
        needed: bytes.
        doing: what it is, for the message.
        mend: what to do about it, for the message.
    """
    found = free_room(path)
    if found is None:
        log.debug("%s: whether there is room for %.0f MB is not known", path, needed / 1e6)
        return
    place, free = found
    if needed > free:
        raise ValueError(
            f"{doing} needs about {needed / 1e6:,.0f} MB but {place} has {free / 1e6:,.0f} MB free: {mend}"
        )


def free_room(path: str | os.PathLike[str] | Place) -> tuple[Place, int] | None:
    """The nearest folder that is there already, and the bytes that are free in it; None where that is not known."""
    path = as_place(path)
    if not is_local(path):
        return None
    place = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    return place, shutil.disk_usage(place).free


def _check_place(path: Place, resume: bool) -> None:
    if path.is_file():
        raise ValueError(f"{path} is a file; a store is a folder: choose another path")
    there = names(path)
    if STORE_CARD in there:
        if not resume and _has_shards(path):
            raise ValueError(f"{path} holds a store already and resume=False: choose another path, or remove it")
        return
    foreign = [name for name in there if name not in (SHARDS, files.LOCK) and not name.endswith(".part")]
    if foreign:
        raise ValueError(f"{path} is not a store and not empty ({foreign[0]!r} lies there): choose another path")


def _has_shards(path: Place) -> bool:
    return any((folder / CARD).is_file() for folder in shard_folders(path / SHARDS))


def _same_inputs(there: dict[str, Any], wanted: dict[str, Any], path: Place) -> dict[str, Any]:
    """The card that is there, if it describes the same inputs."""
    if differs := differences(there, wanted):
        raise ValueError(
            f"{path} was recorded from other inputs: {'; '.join(differs)}. Choose another path, or remove the folder; "
            "what is there stays readable"
        )
    refuse_hooked(there, path, "choose another path, or remove the folder")
    return there


def refuse_hooked(card: Mapping[str, Any], path: Place, mend: str) -> None:
    """Refuse to go on with what was recorded with hooks on the model: of a function no more is known than its place."""
    if hooked := _value(card, _HOOKS):
        raise ValueError(
            f"{path} was recorded with hooks on the model ({', '.join(hooked[:3])}), and whether the same functions are at "
            f"work there now cannot be seen: {mend}; what is there stays readable"
        )


def differences(
    there: Mapping[str, Any], wanted: Mapping[str, Any], of: Collection[str] = tuple(WHAT_COUNTS)
) -> list[str]:
    """What differs between two store cards, in words.

    Args:
        of: names of what is compared, as in `WHAT_COUNTS`.
    """
    differs = []
    for name in of:
        old, new = _value(there, name), _value(wanted, name)
        # An option that a card does not name was not known when it was written, which is the same as off.
        if old == new or not (old or new):
            continue
        # Which tokens are kept follows from the texts and the rule, unless that is a function; stores of format 1 do not say.
        if name != _KEPT or (old and new and not differs):
            differs.append(f"{name} ({_say(old)} there, {_say(new)} now)")
    return differs


def _value(card: Any, name: str) -> Any:
    for key in WHAT_COUNTS[name]:
        card = None if card is None else card.get(key)
    return card


def _refuse_older(card: Mapping[str, Any], path: Place) -> None:
    """Shards of two formats would not fit together. What is finished needs no more shards, so it is no matter."""
    there = sum((folder / CARD).is_file() for folder in shard_folders(path / SHARDS))
    if card["format"] < FORMAT and there < card["shards"]:
        raise ValueError(
            f"{path} was begun in store format {card['format']} and has {there} of {card['shards']} shards; new ones are "
            f"written in format {FORMAT}. Record at another path; what is there stays readable"
        )


def _say(value: Any) -> str:
    if isinstance(value, list):
        names = [entry["name"] if isinstance(entry, dict) else str(entry) for entry in value]
        return f"{len(names)}: {', '.join(names[:3])}{' ...' if len(names) > 3 else ''}" if names else "none"
    return str(value)
