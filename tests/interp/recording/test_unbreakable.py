"""Full disks, lost permissions, damaged and half-copied stores, two writers: a clear error or a clean continuation.

Each test breaks something around a recording, or in its store. What was whole must stay readable, the message must say
what is wrong and how to mend it, and after the mend the same call must give the bytes of an undisturbed recording.
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
import torch
from crash import call, file_bytes, record_texts, start, wait_for

from interp.store import SiteStats, Store, open_store

N_TEXTS = 24
SITE, DAMAGED = "blocks.1.hook_resid_post", 2
NOBODY = 65534


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Store:
    """An undisturbed recording of about ten shards."""
    path = tmp_path_factory.mktemp("stores") / "whole"
    call(record_texts, path, N_TEXTS)
    return open_store(path)


@pytest.fixture
def store(whole, tmp_path) -> Store:
    """A copy of it to damage."""
    return open_store(shutil.copytree(whole.path, tmp_path / "store"))


def check_rest(path: Path, whole: Store, n_least: int = 1) -> Store:
    """A store that misses something: what is left of it has the right rows."""
    store = open_store(path)
    assert n_least <= store.n_texts < N_TEXTS
    same = whole.tokens.text.isin(store.tokens.text).to_numpy()
    for site in store.sites:
        assert torch.equal(store.rows(site, slice(None)), whole.rows(site, same))
    assert set(store.verify().problem) == {"not recorded, or gone"}
    return store


def goes_on(path: Path, whole: Store) -> None:
    """The same call finishes the store, and its bytes are those of the undisturbed one."""
    call(record_texts, path, N_TEXTS)
    assert file_bytes(path) == file_bytes(whole.path)
    assert not list((path / "shards").glob(".*"))


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


# Damage -------------------------------------------------------------------------------------------------------------


def reader_of(store: Store, name: str) -> Callable[[], Any]:
    """What reads a file of a shard."""
    readers: dict[str, Callable[[], Any]] = {
        "examples.parquet": lambda: store.examples,
        "tokens.parquet": lambda: store.tokens,
        "stats.safetensors": lambda: store.stats(SITE),
    }
    return readers.get(name, lambda: store.rows(name.removesuffix(".safetensors"), slice(None)))


def rows_of_others(store: Store, whole: Store) -> None:
    """The rows that lie in other shards than the damaged one are read as ever."""
    numbers = whole._shards[DAMAGED].first_text + np.arange(whole._shards[DAMAGED].n_texts)
    index = np.flatnonzero(~whole.tokens.text.isin(numbers))
    for site in whole.sites:
        there = index if store.n_rows == whole.n_rows else slice(None)
        assert torch.equal(store.rows(site, there), whole.rows(site, index))


def files_of_a_shard(store: Store) -> list[Path]:
    """Every file of the shard that will be damaged."""
    found = sorted((store.path / f"shards/{DAMAGED:06d}").iterdir())
    assert len(found) >= 7
    return found


def refused_and_mended(store: Store, whole: Store) -> None:
    """Recording refuses a damaged shard, says what to remove, and makes that shard anew."""
    folder = store.path / f"shards/{DAMAGED:06d}"
    refused = start(record_texts, store.path, N_TEXTS).end().error
    assert refused is not None
    assert f"{folder}" in refused
    assert "remove" in refused
    assert "record again" in refused
    shutil.rmtree(folder)
    check_rest(store.path, whole)
    goes_on(store.path, whole)


def test_a_truncated_file_is_named_and_mended(store, whole):
    for path in files_of_a_shard(store):
        content = path.read_bytes()
        for size in (0, len(content) // 2, len(content) - 2):
            os.truncate(path, size)
            found = open_store(store.path)
            assert found.verify()[["shard", "file"]].to_numpy().tolist() == [[DAMAGED, path.name]]
            if path.name == "shard.json":
                assert found.n_texts < N_TEXTS
            else:
                with pytest.raises(ValueError, match="record again") as error:
                    reader_of(found, path.name)()
                assert str(path) in str(error.value)
            if path.name not in ("tokens.parquet", "examples.parquet"):
                rows_of_others(found, whole)
            path.write_bytes(content)
    assert open_store(store.path).verify().empty


@pytest.mark.parametrize("name", ["examples.parquet", "tokens.parquet", "shard.json", f"{SITE}.safetensors"])
def test_a_truncated_shard_is_made_anew(store, whole, name):
    path = store.path / f"shards/{DAMAGED:06d}/{name}"
    os.truncate(path, path.stat().st_size // 2)
    refused_and_mended(store, whole)


def test_a_flipped_byte_is_found_in_every_file(store, whole):
    """verify() names it; whatever reads the file names it too, or gives the right values of the other shards."""
    for path in files_of_a_shard(store):
        content = path.read_bytes()
        for at in np.random.default_rng(0).choice(len(content), 12, replace=False).tolist():
            path.write_bytes(content[:at] + bytes([content[at] ^ 16]) + content[at + 1 :])
            found = open_store(store.path)
            assert found.verify()[["shard", "file"]].to_numpy().tolist() == [[DAMAGED, path.name]], at
            rows_of_others(found, whole)
        path.write_bytes(content)
    assert open_store(store.path).verify().empty


@pytest.mark.parametrize("name", ["examples.parquet", "tokens.parquet", "stats.safetensors"])
def test_a_flipped_byte_is_never_read_as_a_value(store, whole, name):
    """No text, token or statistic comes from a damaged file: reading it names it, or the flip changed no value."""
    path = store.path / f"shards/{DAMAGED:06d}/{name}"
    content, expected, wrong = path.read_bytes(), values(reader_of(whole, name)()), []
    for at in np.random.default_rng(1).choice(len(content), 60, replace=False).tolist():
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        try:
            same = values(reader_of(open_store(store.path), name)()) == expected
        except ValueError as error:
            same = str(path) in str(error)
        wrong += [] if same else [at]
    assert not wrong, f"flips that were read as if nothing had happened: bytes {sorted(wrong)} of {len(content)}"


def values(read: Any) -> Any:
    """A frame or statistics as something that can be compared."""
    if isinstance(read, SiteStats):
        return [
            (m.mean.tolist(), m.M2.tolist(), m.norms.bins.tolist(), m.norms.counts.tolist())
            for m in (read.all, read.typical)
        ]
    return repr(read.to_dict("list"))


def test_a_damaged_card_of_the_store_says_so(store, whole):
    path = store.path / "store.json"
    content = path.read_bytes()
    for at in np.random.default_rng(0).choice(len(content), 12, replace=False).tolist():
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with pytest.raises(ValueError, match=r"store\.json"):
            open_store(store.path)
    os.truncate(path, len(content) // 2)
    with pytest.raises(ValueError, match=r"store\.json.*not valid JSON"):
        open_store(store.path)
    refused = start(record_texts, store.path, N_TEXTS).end().error
    assert refused is not None
    assert "store.json" in refused
    shards = {name: data for name, data in file_bytes(whole.path).items() if name != "store.json"}
    assert {name: data for name, data in file_bytes(store.path).items() if name != "store.json"} == shards


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


# Half a copy --------------------------------------------------------------------------------------------------------


def test_a_shard_without_some_of_its_files(store, whole):
    folder = store.path / f"shards/{DAMAGED:06d}"
    (folder / f"{SITE}.safetensors").unlink()
    (folder / "stats.safetensors").unlink()
    found = open_store(store.path)
    with pytest.raises(ValueError, match=r"is missing.*record again"):
        found.rows(SITE, slice(None))
    with pytest.raises(ValueError, match=r"is missing.*record again"):
        found.stats(SITE)
    rows_of_others(found, whole)
    assert found.verify().problem.tolist() == ["missing", "missing"]
    refused_and_mended(store, whole)


def test_a_shard_without_its_card_is_made_anew(store, whole):
    (store.path / f"shards/{DAMAGED:06d}/shard.json").unlink()
    check_rest(store.path, whole)
    goes_on(store.path, whole)


def test_an_empty_folder_of_a_shard_is_made_anew(store, whole):
    folder = store.path / f"shards/{DAMAGED:06d}"
    shutil.rmtree(folder)
    folder.mkdir()
    check_rest(store.path, whole)
    goes_on(store.path, whole)


def test_the_card_of_the_store_alone(store, whole):
    shutil.rmtree(store.path / "shards")
    found = open_store(store.path)
    assert found.n_rows == 0
    with pytest.raises(ValueError, match="no finished shard yet: record again"):
        found.stats(SITE)
    goes_on(store.path, whole)


def test_shards_without_the_card_of_the_store(store, whole):
    """Nothing says what made them: they are neither read nor overwritten."""
    (store.path / "store.json").unlink()
    with pytest.raises(ValueError, match=r"no store\.json"):
        open_store(store.path)
    before = file_bytes(store.path)
    refused = start(record_texts, store.path, N_TEXTS).end().error
    assert refused is not None
    assert refused.startswith("ValueError")
    assert "store.json" in refused
    assert str(store.path) in refused
    assert file_bytes(store.path) == before


def copy_while_recording(path: Path) -> None:
    record_texts(path, N_TEXTS, half_way(lambda: shutil.copytree(path, path.parent / "copy")))


def test_a_copy_that_was_made_while_recording(whole, tmp_path):
    """With whatever was half-made at that moment, and the lock file of the one who wrote."""
    call(copy_while_recording, tmp_path / "store")
    assert file_bytes(tmp_path / "store") == file_bytes(whole.path)
    check_rest(tmp_path / "copy", whole)
    goes_on(tmp_path / "copy", whole)
