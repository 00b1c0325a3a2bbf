"""Full disks, lost permissions, two writers: what may happen around a recording.

What was whole stays readable, the message says what is wrong and how to mend it, and after the mend the same call gives
the bytes of an undisturbed recording.
"""

import errno
import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crash import call, check_rest, file_bytes, goes_on, record_texts, start, wait_for

from interp.store import Store, open_store

N_TEXTS = 24
SITE, DAMAGED = "blocks.1.hook_resid_post", 2
NOBODY = 65534


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Store:
    """An undisturbed recording of about ten shards."""
    path = tmp_path_factory.mktemp("stores") / "whole"
    call(record_texts, path, N_TEXTS)
    return open_store(path)


def half_way(act: Callable[[], Any]) -> Callable[[int, int, int], None]:
    """A progress function that acts once, when half of the texts are done."""
    acted: list[bool] = []

    def progress(done: int, total: int, tokens: int) -> None:
        if done >= total // 2 and not acted:
            acted.append(True)
            act()

    return progress


# Full disks ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A disk of 32 MB in memory."""
    place = tmp_path / "disk"
    place.mkdir()
    if shutil.which("mount") is None:
        pytest.skip("there is no mount command")
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "none", place], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"no disk can be mounted here: {made.stderr.strip()}")
    yield place
    subprocess.run(["umount", place], check=True)


def fill(folder: Path) -> None:
    """Leave no free byte on a disk."""
    for size in (1 << 20, 1 << 12):
        with (folder / f"ballast {size}").open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(size))
            except OSError as error:
                assert error.errno == errno.ENOSPC  # noqa: PT017  # it is what was wanted


def record_and_fill(path: Path) -> None:
    """The disk fills up while a recording is half done."""
    record_texts(path, N_TEXTS, half_way(lambda: fill(path.parent)))


def test_a_full_disk_keeps_what_is_finished(whole, small_disk):
    path = small_disk / "store"
    outcome = start(record_and_fill, path).end()
    assert outcome.error is not None
    assert outcome.error.startswith("OSError")
    assert "the disk is full; finished shards are kept, so make room and record again" in outcome.error
    assert str(path) in outcome.error
    check_rest(path, whole)  # also while it is full
    assert not list((path / "shards").glob(".*"))  # half a shard would take the room that is asked for
    again = start(record_texts, path, N_TEXTS).end().error
    assert again is not None
    assert "has 0 MB free" in again
    check_rest(path, whole)
    for ballast in small_disk.glob("ballast *"):
        ballast.unlink()
    goes_on(path, whole)


def test_a_file_system_that_became_read_only(whole, small_disk):
    """As after an error of the disk: what is there can be read, and recorded to the end once it is mended."""
    path = shutil.copytree(whole.path, small_disk / "store")
    for number in range(4, whole.card["shards"]):
        shutil.rmtree(path / f"shards/{number:06d}")
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    check_rest(path, whole)
    outcome = start(record_texts, path, N_TEXTS).end()
    assert outcome.error is not None
    assert "the file system is read-only" in outcome.error
    assert str(path) in outcome.error
    subprocess.run(["mount", "-o", "remount,rw", small_disk], check=True)
    goes_on(path, whole)


def record_with_short_files(path: Path) -> list[Any]:
    """Half-way no file may grow any more; then the limit falls, and the same process goes on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with pytest.raises(OSError, match="Errno 27") as error:
        record_texts(path, N_TEXTS, half_way(lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    before = open_store(path).n_texts
    return [error.value.errno, str(error.value), before, record_texts(path, N_TEXTS)]


def test_a_file_that_cannot_grow_is_as_a_full_disk(whole, tmp_path):
    """EFBIG, from a limit of the process or the file system: what a full disk is to whoever may not mount one."""
    code, message, before, after = call(record_with_short_files, tmp_path / "store")
    assert code == errno.EFBIG
    assert "finished shards are kept" in message
    assert str(tmp_path / "store") in message
    assert 0 < before < N_TEXTS
    assert after == whole.n_rows
    assert file_bytes(tmp_path / "store") == file_bytes(whole.path)


# Permissions --------------------------------------------------------------------------------------------------------


def drop() -> bool:
    """Become a user whom permissions bind; whether that is possible."""
    try:
        if os.getuid() == 0:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
    except OSError:
        return False
    return True


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that everyone may enter and change."""
    if not call(drop):
        pytest.skip("root, and cannot become a user whom permissions bind")
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o777)
    yield folder
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o777)
    shutil.rmtree(folder)


def record_as_nobody(path: Path) -> None:
    drop()
    record_texts(path, N_TEXTS)


def test_a_read_only_folder_is_a_clear_error(open_folder):
    open_folder.chmod(0o555)
    outcome = start(record_as_nobody, open_folder / "store").end()
    assert outcome.error is not None
    assert "PermissionError" in outcome.error
    assert str(open_folder / "store") in outcome.error
    assert not (open_folder / "store").exists()


def record_and_lose(path: Path) -> list[Any]:
    """The folder of the shards becomes read-only half-way; then it is given back."""
    drop()
    shards = path / "shards"
    with pytest.raises(OSError, match="Errno 13") as error:
        record_texts(path, N_TEXTS, half_way(lambda: shards.chmod(0o555)))
    rows = len(open_store(path).rows(SITE, slice(None)))
    shards.chmod(0o755)
    return [str(error.value), rows, record_texts(path, N_TEXTS)]


def test_permission_lost_on_the_way(whole, open_folder):
    path = open_folder / "store"
    message, before, after = call(record_and_lose, path)
    assert str(path) in message
    assert "finished shards are kept" in message
    assert 0 < before < after == whole.n_rows
    assert file_bytes(path) == file_bytes(whole.path)


def read_as_nobody(path: Path) -> list[Any]:
    """What somebody reads who may change nothing, and what is said when they record there."""
    drop()
    store = open_store(path)
    rows, (pooled, frame) = store.rows(SITE, slice(None)), store.pooled(SITE)
    batches = sum(len(batch) for batch in store.batches(SITE, size=100, typical=False))
    with pytest.raises(OSError, match="Errno 13") as error:
        record_texts(path, N_TEXTS)
    return [float(rows.double().sum()), len(pooled), len(frame), batches, len(store.verify()), str(error.value)]


def test_a_read_only_store_is_read_and_left_alone(whole, open_folder):
    path = shutil.copytree(whole.path, open_folder / "store")
    (path / ".lock").unlink(missing_ok=True)
    leftover = shutil.copytree(path / "shards/000000", path / "shards/.000003.0123.part")
    for part in (path, *path.rglob("*")):
        part.chmod(0o555 if part.is_dir() else 0o444)
    total, n_pooled, n_texts, n_batched, n_problems, message = call(read_as_nobody, path)
    assert total == float(whole.rows(SITE, slice(None)).double().sum())
    assert n_pooled == n_texts == N_TEXTS
    assert n_batched == whole.n_rows
    assert n_problems == 0
    assert str(path) in message
    assert leftover.exists()
    assert not (path / ".lock").exists()


def look_as_nobody(path: Path) -> list[Any]:
    """What is read of a store, what a read of all rows says, and what is wrong with it."""
    drop()
    store = open_store(path)
    try:
        message = ""
        store.rows(SITE, slice(None))
    except (OSError, ValueError) as error:
        message = str(error)
    others = np.flatnonzero(store.tokens.text < 3).tolist()
    total = float(store.rows(SITE, others).double().sum())
    return [store.n_texts, message, total, store.verify()[["shard", "file"]].to_numpy().tolist()]


@pytest.mark.parametrize("name", [f"{SITE}.safetensors", "shard.json"])
def test_a_file_that_may_not_be_read_is_named(whole, open_folder, name):
    """As one that a damaged disk does not give: the rest of the store stays readable."""
    path = shutil.copytree(whole.path, open_folder / "store")
    for part in (path, *path.rglob("*")):
        part.chmod(0o755)
    file = path / f"shards/{DAMAGED:06d}/{name}"
    file.chmod(0)
    n_texts, message, total, problems = call(look_as_nobody, path)
    if name == "shard.json":
        assert n_texts == N_TEXTS - whole._shards[DAMAGED].n_texts
    else:
        assert n_texts == N_TEXTS
        assert str(file) in message
    first = np.flatnonzero(whole.tokens.text < 3)
    assert total == float(whole.rows(SITE, first).double().sum())
    assert problems == [[DAMAGED, name]]


# Two at once --------------------------------------------------------------------------------------------------------


def record_slowly(path: Path) -> None:
    """Wait half-way until somebody says go."""

    def wait() -> None:
        (path.parent / "half").touch()
        wait_for((path.parent / "go").exists)

    record_texts(path, N_TEXTS, half_way(wait))


def test_the_second_writer_is_refused_and_told_who_writes(whole, tmp_path):
    path = tmp_path / "store"
    first = start(record_slowly, path)
    wait_for((tmp_path / "half").exists)
    second = start(record_texts, path, N_TEXTS).end()
    assert second.error is not None
    assert f"written by another process (pid {first.pid})" in second.error
    assert str(path) in second.error
    check_rest(path, whole)  # a reader is not disturbed, and does not disturb
    (tmp_path / "go").touch()
    assert first.end().error is None
    assert file_bytes(path) == file_bytes(whole.path)


def test_the_second_writer_goes_on_after_the_first_was_killed(whole, tmp_path):
    path = tmp_path / "store"
    first = start(record_slowly, path)
    wait_for((tmp_path / "half").exists)
    first.kill()
    second = start(record_texts, path, N_TEXTS)  # while the first may still be dying
    assert first.end().signal == 9
    assert second.end().error is None
    assert file_bytes(path) == file_bytes(whole.path)


def test_writers_that_begin_together_make_one_store(whole, tmp_path):
    """Each waits a moment for the other: then it finds all done, or is told who writes."""
    for attempt in range(4):
        path = tmp_path / f"store {attempt}"
        children = [start(record_texts, path, N_TEXTS) for _ in range(3)]
        errors = [child.end().error for child in children]
        assert None in errors
        for error in errors:
            assert error is None or "written by another process" in error
        assert file_bytes(path) == file_bytes(whole.path)


def copy_while_recording(path: Path) -> None:
    record_texts(path, N_TEXTS, half_way(lambda: copy_what_stays(path, path.parent / "copy")))


def copy_what_stays(source: Path, target: Path) -> None:
    """As `cp -r`: files that the writer's thread renames between the listing and the copy are left out."""
    try:
        shutil.copytree(source, target)
    except shutil.Error as error:
        other = [why for _, _, why in error.args[0] if "No such file or directory" not in why]
        assert not other, other


def test_a_copy_that_was_made_while_recording(whole, tmp_path):
    """With whatever was half-made at that moment, and the lock file of the one who wrote."""
    call(copy_while_recording, tmp_path / "store")
    assert file_bytes(tmp_path / "store") == file_bytes(whole.path)
    check_rest(tmp_path / "copy", whole)
    goes_on(tmp_path / "copy", whole)
