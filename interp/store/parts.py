"""Parts of a store: what was added after its recording, each written like a store of its own.

    runs/a/parts/0001/     store.json with {"part": {"adds": "texts", "to": "", "base": ...}}, and shards
    runs/a/parts/0002/     ... {"adds": "sites", "to": "parts/0001", ...}: rows as in that part, further sites

1. A *segment* is the base store or a part that adds texts. Its texts follow those of the segments before it, in the
   order of their numbers. A part that adds sites is joined to the rows of one segment.
2. Making a part holds the lock of the whole store, so there is one at a time. The same call finds what it made before,
   finished or not, and goes on with it. Nothing that was there before is written to.
3. Opening joins what is whole. A part that is half-made, or was added to other rows, is left out, and a warning says
   how to go on; a site counts when every segment has it.

A part that was written in a newer format is refused: leaving it out would pass for the whole store.
"""

import contextlib
import logging
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from interp import artifact
from interp.store import files
from interp.store.fitting import Columns, differences_of_texts, refuse_unfit_columns
from interp.store.joined import JoinedShard
from interp.store.place import Place, as_place, is_local, names
from interp.store.shard import CARD, Shard, find_shard, shard_folders, shard_of, site_shapes
from interp.store.writer import (
    CALL_AGAIN,
    SHARDS,
    STORE_CARD,
    StoreWriter,
    differences,
    read_store_card,
    refuse_hooked,
    said_clearly,
)

log = logging.getLogger("interp.store")

PARTS = "parts"
ADDS = ("texts", "sites")
_AGAIN = {"texts": "append", "sites": "add_sites"}
_SHARED_BY_SITES = ("model", "the model's dtype", "hooks on the model", "tokenizer", "dtype")
"""What must be equal between a store and sites that are added to it; whether the rows are the same, the rows say."""


@dataclass(frozen=True, eq=False)
class Part:
    """A part as it lies there, finished or not."""

    name: str
    """`parts/0001`."""
    card: dict[str, Any]
    """The content of its store.json."""
    shards: list[Shard]
    """Its whole shards."""

    @property
    def adds(self) -> str:
        """ "texts" or "sites"."""
        return self.card["part"]["adds"]

    @property
    def to(self) -> str:
        """Name of the segment that sites are added to; "" is the base store."""
        return self.card["part"]["to"]

    @property
    def complete(self) -> bool:
        """Whether every shard is there."""
        return len(self.shards) == self.card["shards"]


@dataclass(frozen=True, eq=False)
class Segment:
    """Texts that were recorded together, with all the sites that belong to them."""

    name: str
    """`parts/0001`; "" is the base store."""
    card: dict[str, Any]
    """The content of its store.json."""
    shards: list[JoinedShard]
    """Its whole shards, with the sites that were added."""
    shapes: Mapping[str, tuple[int, ...]]
    """Full site name -> shape of a row."""
    parts: tuple[str, ...] = ()
    """Names of the parts that added sites."""

    @property
    def n_texts(self) -> int:
        """Texts when it is complete, so that the numbers of later ones do not depend on a lost shard."""
        known = self.card["texts"].get("count")
        return sum(shard.n_texts for shard in self.shards) if known is None else known

    @property
    def n_documents(self) -> int:
        """Inputs that the texts were cut from; where the card does not say, as many as can be."""
        return self.card["texts"].get("documents", self.n_texts)


# ---------------------------------------------------------------------------------------------------------- reading


def read_shards(path: Place) -> list[Shard]:
    """The whole shards of a store or part, in order; one with a damaged card is left out with a warning."""
    shards, folders = [], shard_folders(path / SHARDS)
    for folder, data in zip(folders, files.read_all([folder / CARD for folder in folders])):
        try:
            shard = shard_of(folder, data)
        except ValueError as error:
            log.warning("%s is left out: %s", folder, error)
            continue
        if shard is not None:
            shards.append(shard)
    return shards


def part_names(path: Place) -> list[str]:
    """Names of the folders of parts, in order, whatever is in them."""
    return [f"{PARTS}/{name}" for name in names(path / PARTS) if name.isdigit()]


def read_parts(path: Place) -> list[Part]:
    """The parts of a store, in order; one with a damaged card is left out with a warning.

    Raises:
        ValueError: a part of a newer format.
    """
    found = []
    for name in part_names(path):
        if not (path / name / STORE_CARD).is_file():
            continue  # its writer was killed before it wrote anything
        try:
            files.read_sealed(path / name / STORE_CARD)
        except ValueError as error:
            log.warning("%s is left out: %s", path / name, error)
            continue
        card = read_store_card(path / name)
        if card.get("part", {}).get("adds") in ADDS:
            found.append(Part(name, card, read_shards(path / name)))
        else:
            log.warning("%s is left out: it is a store of its own, not a part of this one", path / name)
    return found


def segments(path: Place, card: dict[str, Any]) -> list[Segment]:
    """The texts of a store with all their sites: the base store first, then each part that adds texts.

    Args:
        path: the store.
        card: the content of its store.json.

    Raises:
        ValueError: a part of a newer format.
    """
    parts = [part for part in read_parts(path) if _usable(path, card, part)]
    found, text, document = [], 0, 0
    recorded = [("", card, read_shards(path)), *((p.name, p.card, p.shards) for p in parts if p.adds == "texts")]
    cut = any(own_card.get("long") == "chunk" for _, own_card, _ in recorded)
    for name, own_card, shards in recorded:
        plain = [JoinedShard(shard, (), text, document if cut else None) for shard in shards]
        segment = Segment(name, own_card, plain, site_shapes(own_card))
        for part in parts:
            if part.adds == "sites" and part.to == name:
                segment = _with_sites(path, segment, part)
        found.append(segment)
        text, document = text + segment.n_texts, document + segment.n_documents
    for part in parts:
        if part.adds == "sites" and part.to not in {segment.name for segment in found}:
            log.warning("%s is left out: it adds sites to %s, which is not there", path / part.name, part.to)
    return found


def _usable(path: Place, card: Mapping[str, Any], part: Part) -> bool:
    if part.card["part"]["base"] != artifact.hash_json(card):
        log.warning("%s is left out: it was added to another recording than the one that is there", path / part.name)
    elif not part.complete:
        log.warning(
            "%s is left out, since it has %d of %d shards; make the same call of %s again to go on with it",
            path / part.name, len(part.shards), part.card["shards"], _AGAIN[part.adds],
        )  # fmt: skip
    else:
        return True
    return False


def _with_sites(path: Place, segment: Segment, part: Part) -> Segment:
    """The segment with a part's sites; the same where they are not of its rows, with a warning."""
    of_index = {shard.index: shard for shard in part.shards}
    try:
        if part.card["shards"] != segment.card["shards"]:
            raise ValueError(f"it has {part.card['shards']} shards where {segment.card['shards']} are needed")
        joined = [replace(shard, added=(*shard.added, of_index[shard.index])) for shard in segment.shards]
    except ValueError as error:
        log.warning("%s is left out: %s", path / part.name, error)
        return segment
    shapes = {**segment.shapes, **site_shapes(part.card)}
    return Segment(segment.name, segment.card, joined, shapes, (*segment.parts, part.name))


def joined_card(path: Place, found: Sequence[Segment]) -> dict[str, Any]:
    """What store.json would say if all had been recorded at once; `parts` names what was joined.

    A site is there when every segment has it; one that some lack is named in a warning.
    """
    base = found[0].card
    parts = [name for segment in found for name in ([segment.name] if segment.name else []) + list(segment.parts)]
    if not parts:
        return base
    shapes = {site: shape for segment in found for site, shape in segment.shapes.items()}
    everywhere = {site: shape for site, shape in shapes.items() if all(site in s.shapes for s in found)}
    if lacking := sorted(set(shapes) - set(everywhere)):
        log.warning(
            "%s: %s are left out, since some texts do not have them; make the same call of add_sites again",
            path, ", ".join(lacking),
        )  # fmt: skip
    texts = [segment.card["texts"] for segment in found]
    counts = {key: sum(entry.get(key, 0) for entry in texts) for key, value in texts[0].items() if _is_count(value)}
    hashes = {
        key: artifact.hash_json([entry.get(key) for entry in texts]) if len(texts) > 1 else value
        for key, value in texts[0].items()
        if key.endswith("hash")
    }
    return {
        **base,
        "sites": [{"name": site, "shape": list(shape)} for site, shape in everywhere.items()],
        "texts": {**texts[0], **counts, **hashes},
        "shards": sum(segment.card["shards"] for segment in found),
        "parts": sorted(parts),
    }


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def problems(path: Place) -> list[tuple[int, str, str]]:
    """Read every byte of a store and its parts: (shard, file, problem) of what is not as it was written.

    Files of a part are named from the store's folder: `parts/0001/shards/000000/tokens.parquet`.
    """
    found = _problems(path, read_store_card(path))
    for name in part_names(path):
        if not (path / name / STORE_CARD).is_file():
            found.append((0, f"{name}/{STORE_CARD}", "not recorded, or gone"))
            continue
        try:
            found += _problems(path / name, read_store_card(path / name), f"{name}/")
        except ValueError as error:
            found.append((0, f"{name}/{STORE_CARD}", str(error)))
    return found


def _problems(path: Place, card: Mapping[str, Any], part: str = "") -> list[tuple[int, str, str]]:
    found: list[tuple[int, str, str]] = []
    for index in range(card["shards"]):
        prefix = part and f"{part}{SHARDS}/{index:06d}/"
        try:
            shard = find_shard(path / SHARDS / f"{index:06d}")
        except ValueError as error:
            found.append((index, f"{prefix}shard.json", str(error)))
            continue
        seen = [("shard.json", "not recorded, or gone")] if shard is None else shard.problems()
        found += [(index, f"{prefix}{name}", problem) for name, problem in seen]
    return found


# ----------------------------------------------------------------------------------------------------------- making


@contextlib.contextmanager
def part_writer(
    path: str | os.PathLike[str] | Place,
    card: Mapping[str, Any],
    *,
    adds: str,
    to: str = "",
    columns: pa.Schema | None = None,
) -> Iterator[StoreWriter]:
    """The writer of a part: of a new one, or of the one that the same call began before. One that gets no shard is removed.

    Args:
        path: the store, which must be finished.
        card: what the part's store.json will say, as for `StoreWriter`; `part` is added.
        adds: "texts", with the sites of the whole store; or "sites", with the rows of one segment.
        to: with "sites" the name of that segment, "" for the base store.
        columns: with "texts" the columns that they come with.

    Raises:
        ValueError: the store is unfinished, or another process writes to it; it was recorded in another way than the
            part, or under hooks; a column has another type there; the sites are there already; another part with texts
            is unfinished.
        OSError: the place cannot be written.
    """
    path = as_place(path)
    if adds not in ADDS or (adds == "texts" and to):
        raise ValueError(f"a part adds 'texts', or 'sites' to a segment, got {adds!r} to {to!r}")
    with contextlib.ExitStack() as stack:
        base = read_store_card(path)
        refuse_hooked(base, path, "nothing can be added to it, so record at another path")
        with said_clearly(path, CALL_AGAIN):
            stack.enter_context(files.hold(path))
        card = {**card, "part": {"adds": adds, "to": to, "base": artifact.hash_json(base)}}
        name = _choose(path, base, card, columns)
        stack.callback(_remove_unbegun, path, name)
        yield stack.enter_context(StoreWriter(path / name, card))


def _remove_unbegun(path: Place, name: str) -> None:
    """A part without a shard holds nothing; left there, it would be warned of whenever the store is opened."""
    part = path / name
    if shard_folders(part / SHARDS) or not names(part):
        return
    if is_local(part):
        shutil.rmtree(part, ignore_errors=True)
        if not names(path / PARTS):
            (path / PARTS).rmdir()
    else:
        part.fs.rm(part.path, recursive=True)
        part.fs.invalidate_cache(part.path)


def _choose(path: Place, base: dict[str, Any], card: dict[str, Any], columns: pa.Schema | None) -> str:
    """Name of the part that a call began before, else of a new one."""
    present, parts = read_shards(path), read_parts(path)
    if len(present) != base["shards"]:
        raise ValueError(
            f"{path} has {len(present)} of {base['shards']} shards: finish it first, with the call that recorded it"
        )
    for part in parts:
        if not differences(part.card, card):
            if part.complete and part.adds == "texts":
                log.warning("%s: these texts were appended before, as %s, so nothing is appended", path, part.name)
            return part.name
    _refuse_unfit(path, base, card, columns)
    for part in parts:
        if part.shards and not part.complete and part.adds == card["part"]["adds"] == "texts":
            raise ValueError(
                f"{path / part.name} holds texts of another append and has {len(part.shards)} of {part.card['shards']} "
                "shards: finish that with the same call, or remove that folder"
            )
    taken, shards_of = part_names(path), {part.name: part.shards for part in parts}
    if not taken:
        return f"{PARTS}/0001"
    last = taken[-1]
    # Nothing is lost with the last one if its writer was killed before its first shard; one whose card is damaged has
    # no entry here, and may hold something.
    if not shards_of.get(last, shard_folders(path / last / SHARDS)):
        return last
    return f"{PARTS}/{int(last.removeprefix(f'{PARTS}/')) + 1:04d}"


def _refuse_unfit(path: Place, base: dict[str, Any], card: dict[str, Any], columns: pa.Schema | None) -> None:
    found = segments(path, base)
    if card["part"]["adds"] == "texts":
        joined = joined_card(path, found)
        if differs := differences_of_texts(joined, card):
            _refuse_outgrown(path, joined, card)
        elif columns is not None:
            there = [columns_of(path, segment) for segment in found]
            refuse_unfit_columns([*there, ("the new texts", card, columns)])
        what = "texts can only be appended as the store was recorded"
    else:
        target = {segment.name: segment for segment in found}.get(card["part"]["to"])
        if target is None:
            raise ValueError(f"{path} has no texts {card['part']['to']!r} to add sites to, or they are not finished")
        if there := sorted(set(site_shapes(card)) & set(target.shapes)):
            raise ValueError(f"{path} has {', '.join(there)} already: add the other sites only")
        differs = differences(target.card, card, _SHARED_BY_SITES)
        what = "sites can only be added from the model, and in the dtype, of the store"
    if differs:
        raise ValueError(f"{path}: {what}, but these differ: {'; '.join(differs)}")


def _refuse_outgrown(path: Place, there: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Say so where the sites are those that the store had before some were added."""
    has, asked = site_shapes(there), site_shapes(wanted)
    added = set(has) - set(asked)
    if added and "parts" in there and asked.items() <= has.items():
        raise ValueError(
            f"{path} has grown since it was opened, by {', '.join(sorted(added))}: use the store that add_sites returned, "
            "or open it again"
        )


def columns_of(path: Place, segment: Segment) -> Columns:
    """What `refuse_unfit_columns` asks of a segment of the store at `path`; every shard has the same columns."""
    return path / segment.name, segment.card, segment.shards[0].base.examples().schema
