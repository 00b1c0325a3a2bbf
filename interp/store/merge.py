"""Several stores as one: copies of their files, so that the result does not need them any more.

1. What must be equal is compared: model, tokenizer, sites, dtype, and how tokens were chosen; and the types of columns.
2. The first store becomes the base, each later one a part that adds texts (`interp.store.parts`); what the stores were
   themselves put together from becomes parts as well. Texts are numbered on in the order of the stores.
3. Every file is hashed while it is copied. A damaged one ends the merge; so no damage is passed on.
4. The new store appears whole or not at all: on this machine by a rename, elsewhere because store.json comes last.
"""

import contextlib
import glob
import logging
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from interp import artifact
from interp.store import files
from interp.store.fitting import Columns, differences_of_texts, refuse_unfit_columns
from interp.store.opening import open_store
from interp.store.parts import PARTS, Segment, columns_of, joined_card, read_parts, segments
from interp.store.place import Place, as_place, is_local, names
from interp.store.reader import Store
from interp.store.remove import remove_store
from interp.store.shard import CARD, Shard
from interp.store.writer import SHARDS, STORE_CARD, read_store_card, require_room

log = logging.getLogger("interp.store")


@dataclass(frozen=True, eq=False)
class _Copy:
    """A base store or part that goes into the merged store."""

    card: dict[str, Any]
    """Its store.json, without what it was a part of."""
    shards: list[Shard]
    """Its shards."""
    to: int | None
    """With sites the number of the copy whose rows they join; None for texts."""


def merge_stores(
    stores: Iterable[Store | str | os.PathLike[str] | Place], path: str | os.PathLike[str] | Place
) -> Store:
    """Put stores together into a new one, which holds copies of their files.

    Args:
        stores: two or more stores or their paths, of one model, tokenizer, dtype, set of sites and choice of tokens.
            Texts that stand in several of them are there several times.
        path: folder or URL of the new store.

    Returns:
        The new store: texts of the first, then of the second, and so on.

    Raises:
        ValueError: fewer than two stores; stores that differ, with what differs; a column that has another type in one of
            them; an unfinished or damaged store; a view of some rows; a path that holds something; too little room.
        OSError: the place cannot be written. Nothing is left of the merge that could be taken for a store.
    """
    stores = list(stores)  # held until the end: one that lives in memory goes away with its object
    places = [_place_of(store) for store in stores]
    if len(places) < 2:
        raise ValueError(f"a merge needs two stores or more, got {len(places)}")
    path = as_place(path)
    copies = _collect(places)
    with _appearing(path) as folder:
        needed = sum(r["bytes"] for copy in copies for shard in copy.shards for r in shard.card["files"].values())
        require_room(folder, needed, doing="merging", mend="choose another path")
        names_of = ["", *(f"{PARTS}/{number:04d}" for number in range(1, len(copies)))]
        base_hash = artifact.hash_json(copies[0].card)
        for name, copy in reversed(list(zip(names_of, copies))):  # the base last: it decides whether there is a store
            to = "" if copy.to is None else names_of[copy.to]
            part = {"part": {"adds": "texts" if copy.to is None else "sites", "to": to, "base": base_hash}}
            for shard in copy.shards:
                _copy_shard(shard, folder / name / SHARDS / shard.folder.name)
            files.make_folder(folder / name / SHARDS)
            files.write_sealed(folder / name / STORE_CARD, copy.card | part if name else copy.card)
    return open_store(path)


def _place_of(store: Any) -> Place:
    if not isinstance(store, Store):
        return as_place(store)
    if store.is_view:
        raise ValueError(f"{store!r} is a view of some rows of a store: merge the whole store, and select afterwards")
    return store.path


def _segments(place: Place) -> list[Segment]:
    return segments(place, read_store_card(place))


def _collect(places: list[Place]) -> list[_Copy]:
    """What is copied, texts before the sites that join them. ValueError for stores that do not go together."""
    copies: list[_Copy] = []
    columns: list[Columns] = []
    first = None
    for place in places:
        found = _segments(open_store(place).path)
        first = (place, found) if first is None else first
        if differs := differences_of_texts(joined_card(*first), joined_card(place, found)):
            raise ValueError(f"{place} does not go together with {first[0]}: {'; '.join(differs)}")
        parts = {part.name: part for part in read_parts(place)}
        for segment in found:
            if len(segment.shards) != segment.card["shards"]:
                raise ValueError(
                    f"{place} has {len(segment.shards)} of {segment.card['shards']} shards: finish it first, with the "
                    "call that recorded it"
                )
            columns.append(columns_of(place, segment))
            number = len(copies)
            copies.append(_Copy(_alone(segment.card), [shard.base for shard in segment.shards], None))
            for name in segment.parts:
                copies.append(_Copy(_alone(parts[name].card), parts[name].shards, number))
    refuse_unfit_columns(columns)
    return copies


def _alone(card: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in card.items() if key != "part"}


def _copy_shard(shard: Shard, target: Place) -> None:
    """Copy a shard's files, its card last. ValueError if a file is not what was written."""
    files.make_folder(target)
    for name, record in shard.card["files"].items():
        try:
            copied = files.copy_durably(shard.folder / name, target / name)
        except FileNotFoundError:
            copied = None
        if copied != record:
            raise ValueError(
                f"{shard.folder / name} is not as it was written: store.verify() lists what is damaged; remove "
                f"{shard.folder} and record again, then merge"
            )
    files.write_sealed(target / CARD, shard.card)
    files.sync_folder(target)


@contextlib.contextmanager
def _appearing(path: Place) -> Iterator[Place]:
    """A folder to write to that becomes `path` on a clean exit, and is removed otherwise."""
    if is_local(path):
        _sweep(path)
        with contextlib.ExitStack() as stack, artifact.atomic_folder(path) as folder:
            stack.enter_context(files.hold(folder))  # as long as it has its temporary name, it is nobody's leftover
            yield folder
        files.sync_folder(path.parent)
        return
    there = names(path)
    if STORE_CARD in there or set(there) - {SHARDS, PARTS}:
        raise ValueError(f"{path} exists already: remove it, or choose another place")
    if there:
        remove_store(path)  # of a merge or a writer that was killed
    try:
        yield path
    except BaseException:
        if names(path):
            remove_store(path)
        raise


def _sweep(path: Path) -> None:
    """Remove what killed merges into `path` left behind: those folders whose lock the kernel has freed."""
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        try:
            with files.hold(leftover, patience=0.0):
                shutil.rmtree(leftover)
        except (ValueError, OSError) as error:
            log.debug("%s stays: %s", leftover, error)
