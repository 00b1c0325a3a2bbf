"""Recording is killed at random moments, and before every single step that it takes on the disk.

Whatever the moment: the store opens, holds every committed row with its right value, verify() misses only what was not
recorded, and the same call goes on to the very bytes of a recording that nobody disturbed.
"""

import itertools
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from crash import UNRECORDED, Child, add_sites, append_texts, call, file_bytes, record_texts, start

from interp.store import Store, open_store

KILLS = 60


def check(path: Path, whole: Store) -> Store:
    """The store of a killed recording: opened, without a problem but missing shards, each shard as it must be."""
    store = open_store(path)
    assert set(store.verify().problem) <= {UNRECORDED}
    for folder in finished(path):
        assert file_bytes(folder) == file_bytes(whole.path / "shards" / folder.name)
    if store.n_rows:
        kept = store.tokens.text < whole.n_texts  # others were appended
        same = whole.tokens.text.isin(store.tokens.text).to_numpy()
        for site in whole.sites:
            assert torch.equal(store.rows(site, kept.to_numpy()), whole.rows(site, same))
    return store


def finished(path: Path) -> list[Path]:
    """Folders of committed shards."""
    return sorted(card.parent for card in (path / "shards").glob("[0-9]*/shard.json"))


def half_made(path: Path) -> list[Path]:
    """Hidden folders of shards that are being written."""
    return list((path / "shards").glob(".*.part"))


# At random moments --------------------------------------------------------------------------------------------------


def kill_somewhere(child: Child, path: Path, chance: random.Random) -> None:
    """Signal 9 while the child reads its inputs and sweeps, anywhere in the next shards, or while it commits one."""
    kind = chance.choice(("start", "shard", "commit"))
    if kind != "start":
        wanted = len(finished(path)) + chance.randrange(1, 6)
        while len(finished(path)) < wanted and not child.ended:
            time.sleep(0.001)
    if kind == "commit":
        while not half_made(path) and not child.ended:
            pass
    time.sleep(chance.random() * {"start": 0.1, "shard": 0.03, "commit": 0.004}[kind])
    child.kill()


@pytest.mark.slow
def test_60_kills_with_signal_9(tmp_path):
    call(record_texts, tmp_path / "whole", 100)
    whole = open_store(tmp_path / "whole")
    assert whole.complete
    assert whole.card["shards"] > 20
    chance = random.Random(0)
    path, rows, inside, outside = tmp_path / "killed", 0, 0, 0
    while inside + outside < KILLS:
        before = set(half_made(path))
        child = start(record_texts, path, 100)
        kill_somewhere(child, path, chance)
        outcome = child.end()
        if outcome.signal is None:  # it was faster
            assert outcome.error is None, outcome.error
            assert file_bytes(path) == file_bytes(whole.path)
            shutil.rmtree(path)
            rows = 0
            continue
        assert outcome.signal == signal.SIGKILL
        hit = bool(set(half_made(path)) - before)
        inside, outside = inside + hit, outside + (not hit)
        if not (path / "store.json").is_file():  # before anything was committed
            assert rows == 0
            continue
        if chance.random() < 0.5:  # then the next recording meets what the kill left, else the opening sweeps it
            place = shutil.copytree(path, tmp_path / f"copy {inside + outside}")
        else:
            place = path
        store = check(place, whole)
        assert store.n_rows >= rows
        assert not half_made(place)
        rows = store.n_rows
    assert inside >= 10, f"only {inside} of {KILLS} kills hit a commit"
    assert outside >= 5, f"only {outside} of {KILLS} kills hit something else"
    call(record_texts, path, 100)
    assert file_bytes(path) == file_bytes(whole.path)


# Before every step --------------------------------------------------------------------------------------------------

ACTS: dict[str, Callable[[Path], int]] = {
    "record": lambda path: record_texts(path, 4),
    "append": lambda path: append_texts(path, 4),
    "add_sites": add_sites,
}
"""What is killed; the recording makes two shards, and so do the others for each of them."""


def act_all(act: str, paths: list[Path]) -> None:
    """The same to several stores, one after the other."""
    for path in paths:
        ACTS[act](path)


def act_dying(act: str, path: Path, step: int) -> int:
    """Killed before step `step` of what it does to files; the number of steps if it has fewer.

    A step is a file that is opened for writing or flushed to the disk, and a name that is made, changed or removed.
    """
    counter, flush = itertools.count(), os.fsync

    def count() -> None:
        if next(counter) == step:
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(event: str, args: tuple[Any, ...]) -> None:
        opened = event == "open" and args[2] & (os.O_WRONLY | os.O_RDWR) and str(args[0]).startswith(str(path))
        if opened or event in ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate"):
            count()

    def counting_flush(handle: Any) -> None:
        count()
        flush(handle)

    os.fsync = counting_flush
    sys.addaudithook(watch)
    ACTS[act](path)
    return next(counter)


@pytest.fixture(scope="module")
def two_shards(tmp_path_factory) -> Store:
    """What the act "record" makes when nobody disturbs it."""
    path = tmp_path_factory.mktemp("two") / "whole"
    call(act_all, "record", [path])
    assert open_store(path).card["shards"] == 2
    return open_store(path)


@pytest.fixture
def leftovers(two_shards, tmp_path) -> Path:
    """A store with one shard, half a copy of the other, and half a shard of a writer that was killed."""
    path = shutil.copytree(two_shards.path, tmp_path / "leftovers")
    (path / "shards/000001/shard.json").unlink()
    shutil.copytree(path / "shards/000000", path / "shards/.000000.0123.part")
    return path


def killed_at_every_step(act: str, beginning: Path | None, base: Store, folder: Path) -> list[Path]:
    """A store for each step of an act, in which the process that took it was killed just before that step.

    Every second one is opened and checked; the others keep what the next call must sweep itself.
    """
    killed: list[Path] = []
    while True:
        path = folder / f"step {len(killed)}"
        if beginning is not None:
            shutil.copytree(beginning, path)
        outcome = start(act_dying, act, path, len(killed)).end()
        assert outcome.error is None, outcome.error
        killed.append(path)
        if outcome.signal is None:
            assert outcome.value == len(killed) - 1
            return killed
        if not path.exists():
            with pytest.raises(ValueError, match="there is no store"):
                open_store(path)
        elif len(killed) % 2 and (path / "store.json").is_file():
            check(path, base)


@pytest.mark.slow
@pytest.mark.parametrize("beginning", ["nothing", "leftovers"])
def test_recording_is_killed_before_every_step(beginning, two_shards, leftovers, tmp_path):
    killed = killed_at_every_step("record", leftovers if beginning == "leftovers" else None, two_shards, tmp_path)
    assert len(killed) > 15
    call(act_all, "record", killed)
    for path in killed:
        assert file_bytes(path) == file_bytes(two_shards.path), path
        assert not half_made(path)


@pytest.mark.slow
@pytest.mark.parametrize("act", ["append", "add_sites"])
def test_growing_is_killed_before_every_step(act, two_shards, tmp_path):
    """What was there before stays as it was, whatever happens to what is added."""
    grown = shutil.copytree(two_shards.path, tmp_path / "grown")
    call(act_all, act, [grown])
    killed = killed_at_every_step(act, two_shards.path, two_shards, tmp_path)
    assert len(killed) > 15
    # What the last kills came too late for is done already, and adding sites twice is an error.
    call(act_all, act, [path for path in killed if len(open_store(path).card.get("parts", [])) == 0])
    for path in killed:
        assert file_bytes(path) == file_bytes(grown), path
        assert not list(path.rglob(".*.part"))


# A power cut --------------------------------------------------------------------------------------------------------


def watched_record(path: Path) -> list[list[str]]:
    """What a recording does to files, in order: (open, file), (flush, file or folder), (rename, from, to)."""
    seen: list[list[str]] = []
    flush = os.fsync

    def watch(event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and args[2] & (os.O_WRONLY | os.O_RDWR) and str(args[0]).startswith(str(path)):
            seen.append(["open", str(args[0])])
        if event == "os.rename":
            seen.append(["rename", str(args[0]), str(args[1])])

    def seeing_flush(handle: int) -> None:
        seen.append(["flush", str(Path(f"/proc/self/fd/{handle}").readlink())])
        flush(handle)

    os.fsync = seeing_flush
    sys.addaudithook(watch)
    record_texts(path, 4)
    return seen


def test_what_has_a_name_is_on_the_disk(tmp_path):
    """Killing a process loses nothing that it wrote; a power cut does, unless it was flushed before it got its name."""
    path = (tmp_path / "store").resolve()
    seen = call(watched_record, path)
    renames = [number for number, event in enumerate(seen) if event[0] == "rename"]
    assert sorted(Path(seen[at][2]).name for at in renames) == [
        "000000",
        "000001",
        "shard.json",
        "shard.json",
        "store.json",
    ]
    for at in renames:
        _, source, target = seen[at]
        before, after = seen[:at], seen[at:]
        for event in before:
            if event[0] == "open" and event[1].startswith(source):
                assert ["flush", event[1]] in before[before.index(event) :], event
        if Path(target).parent.name == "shards":
            assert ["flush", source] in before  # the names of the files in it
        assert ["flush", str(Path(target).parent)] in after, target  # its own name
