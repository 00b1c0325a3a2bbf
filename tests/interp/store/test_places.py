"""Stores elsewhere than in a folder of this machine, and places that cannot be written."""

import contextlib
import errno
import logging
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem
from plain_store import HEADS, SITE, all_rows, card, commit, contents, plain_rows, plain_shard, plain_store
from upath import UPath

from interp.store import StoreWriter, as_place, files, open_store, require_room
from interp.store.parts import problems
from interp.store.place import file_sizes, is_local, names


@pytest.fixture
def memory(tmp_path):
    """A URL in memory that no other test uses; what a test leaves there goes away."""
    url = f"memory://{tmp_path.name}/a"
    yield url
    fs = MemoryFileSystem()
    for path in [path for path in fs.store if path.startswith(f"/{tmp_path.name}/")]:
        fs.rm_file(path)


# Names --------------------------------------------------------------------------------------------------------------


def test_a_path_or_a_url_is_a_place(tmp_path):
    assert as_place("runs/a") == as_place(Path("runs/a")) == Path.cwd() / "runs" / "a"
    for url in (f"file://{tmp_path}/a", f"local://{tmp_path}/a", UPath(tmp_path / "a")):
        assert as_place(url) == tmp_path / "a"
        assert is_local(as_place(url))
    place = as_place("memory://runs/a/")
    assert (place.name, str(place / "b"), is_local(place)) == ("a", "memory://runs/a/b", False)
    assert as_place(place) == place


@pytest.mark.parametrize("path", [7, None, Path("s3://bucket/runs"), "nonesuch://runs/a", "dropbox://runs/a"])
def test_what_is_no_place_is_refused(path):
    with pytest.raises(ValueError, match=r"path or a URL|pass it as a str|cannot be reached"):
        as_place(path)


def test_a_path_stays_the_same_place(tmp_path, monkeypatch):
    """Also after the process has changed its folder."""
    monkeypatch.chdir(tmp_path)
    store = plain_store("a")
    (tmp_path / "b").mkdir()
    monkeypatch.chdir("b")
    assert store.path == tmp_path / "a"
    assert torch.equal(store.rows(SITE, slice(None)), all_rows(SITE, (0, 0), (1, 0)))


def test_a_tilde_is_the_users_own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert as_place("~/a") == as_place(Path("~") / "a") == tmp_path / "a"
    assert as_place(f"{tmp_path}/~/a") == tmp_path / "~" / "a"
    with pytest.raises(ValueError, match="~nobody-of-that-name/a begins with the name of no user"):
        as_place("~nobody-of-that-name/a")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("file/a", r"file/a cannot be a folder, since .*/file is a file: choose another path"),
        ("file/a/b", r"since .*/file is a file"),
        ("x" * 300, "File name too long"),
        ("a\0b", "cannot be the name of a folder"),
        ("a\ud800b", "cannot be the name of a folder"),
        ("loop/a", "cannot be a folder"),
    ],
)
def test_a_path_that_no_folder_can_have(tmp_path, name, message):
    (tmp_path / "file").write_text("x")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for call in (as_place, open_store, lambda path: StoreWriter(path, card())):
        with pytest.raises(ValueError, match=message):
            call(f"{tmp_path}/{name}")


def test_a_folder_that_cannot_be_made(tmp_path, monkeypatch):
    """Nobody moved it: some file systems, as that of /proc, have no folders but their own."""

    def refuse(path, *_, **__):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(FileNotFoundError, match="no folder can be made there: choose another path"):
        commit(StoreWriter(tmp_path / "a", card()))


@pytest.mark.parametrize("where", ["local", "memory"])
def test_listings(tmp_path, memory, where):
    place = as_place(memory if where == "memory" else tmp_path)
    assert names(place / "not there") == []
    assert file_sizes(place / "not there") == {}
    files.make_folder(place / "b")
    files.write_durably(place / "b" / "x", b"123")
    files.write_durably(place / "y", b"1")
    assert names(place) == ["b", "y"]
    assert file_sizes(place) == {"y": 1}
    assert file_sizes(place / "b") == {"x": 3}


# The same store elsewhere -------------------------------------------------------------------------------------------


def test_a_store_elsewhere_is_the_same_store(tmp_path, memory):
    here, there = plain_store(tmp_path / "a"), plain_store(memory)
    assert contents(here.path) == contents(there.path)
    assert repr(there).startswith(f"Store('{memory}'")
    for site in (SITE, HEADS):
        assert torch.equal(there.rows(site, [20, 3, 3, 0]), all_rows(site, (0, 0), (1, 0))[[20, 3, 3, 0]])
        assert torch.equal(there.stats(site).typical.M2, here.stats(site).typical.M2)
    assert there.examples.equals(here.examples)
    assert there.tokens.equals(here.tokens)
    found = torch.cat(list(there.batches(SITE, size=7, typical=False)))
    assert sorted(map(tuple, found.tolist())) == sorted(map(tuple, here.rows(SITE, slice(None)).tolist()))
    assert there.verify().empty


def test_recording_elsewhere_goes_on_where_it_stopped(memory):
    commit(StoreWriter(memory, card()), [1])
    with pytest.raises(ValueError, match="recorded from other inputs"):
        commit(StoreWriter(memory, card(dtype="bfloat16")))
    assert open_store(memory).n_rows == 12
    half = as_place(memory) / "shards" / "000000"
    files.write_durably(half / f"{SITE}.safetensors", b"half")  # killed before shard.json
    assert open_store(memory).n_rows == 12
    with StoreWriter(memory, card()) as writer, StoreWriter(memory, card()) as other:  # no lock: the same bytes twice
        assert writer.finished() == other.finished() == {1}
        writer.commit(plain_shard(0))
        other.commit(plain_shard(0))
    store = open_store(memory)
    assert store.complete
    assert problems(store.path) == []
    with pytest.raises(ValueError, match="resume=False"):
        StoreWriter(memory, card(), resume=False)


def test_damage_elsewhere_is_a_clear_error(memory):
    store = plain_store(memory)
    folder = store.path / "shards" / "000001"
    site = folder / f"{SITE}.safetensors"
    whole = site.read_bytes()
    for damaged in (whole[:-1], whole[:50], whole[:8] + b"x" + whole[9:]):
        site.write_bytes(damaged)
        with pytest.raises(ValueError, match=rf"{SITE}.*store\.verify\(\) lists"):
            store.rows(SITE, [0, 23])
        assert store.verify().file.tolist() == [site.name]
    site.unlink()
    with pytest.raises(ValueError, match=r"store\.verify\(\) lists"):
        store.rows(SITE, [23])
    (folder / "tokens.parquet").write_bytes(b"short")
    with pytest.raises(ValueError, match="5 bytes long"):
        _ = store.tokens
    assert store.verify().file.tolist() == [site.name, "tokens.parquet"]
    assert torch.equal(store.rows(SITE, [0]), plain_rows(SITE, 0)[:1])
    with pytest.raises(ValueError, match=r"no store at memory://.*stores beside it: a"):
        open_store(memory + "b")


def test_some_rows_are_read_by_their_bytes(memory, monkeypatch):
    """A few rows cost a few requests and little more than their bytes; all rows cost few requests."""
    rows, d = 40_000, 64
    tensor = torch.arange(rows * d, dtype=torch.float32).view(rows, d)
    path = as_place(memory) / "site"
    record = files.write_tensor(path, tensor, {})
    asked = []
    plain = MemoryFileSystem.cat_file

    def count(self, path, start=None, end=None, **further):
        asked.append((start, end))
        return plain(self, path, start, end, **further)

    monkeypatch.setattr(MemoryFileSystem, "cat_file", count)

    def read(index):
        asked.clear()
        index = np.asarray(index)
        out = torch.empty(len(index), d)
        files.read_rows(path, rows, index, out, record["bytes"])
        assert torch.equal(out, tensor[torch.from_numpy(index)])
        return len(asked), sum(end - start for start, end in asked) - len(index) * d * 4

    assert read([17]) < (3, 1000)
    requests, more = read([0, 1, 2, 9, 5000, 5004, 39_999])
    assert requests == 4  # the header, and three runs
    assert more < 10 * d * 4 + 1000
    requests, more = read(np.arange(rows))
    assert requests <= 4
    assert more < 1000
    requests, more = read(np.arange(0, rows, 2))
    assert requests <= 4


def test_rows_in_groups(memory, monkeypatch):
    """Reading stays whole when the requests must go in several groups."""
    monkeypatch.setattr(files, "_REQUEST_BYTES", 100)
    monkeypatch.setattr(files, "_AT_ONCE_BYTES", 250)
    monkeypatch.setattr(files, "_GAP_BYTES", 24)
    store = plain_store(memory)
    wanted = np.array([0, 1, 3, 4, 8, 9, 10, 11, 13, 20, 23])
    assert torch.equal(store.rows(SITE, wanted), all_rows(SITE, (0, 0), (1, 0))[wanted])


def test_room_elsewhere_is_not_known(memory, caplog):
    with caplog.at_level(logging.DEBUG, "interp.store"):
        require_room(memory, 1 << 60)
    assert "whether there is room" in caplog.text


# Places that cannot be written --------------------------------------------------------------------------------------


@contextlib.contextmanager
def nobody():
    """Without the rights of root, which may write everywhere."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@pytest.fixture
def own_folder():
    """A folder of a user without rights, outside of pytest's, which only its maker may enter."""
    with nobody():
        folder = Path(tempfile.mkdtemp(dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


def record_but_after_the_first_shard(path, interfere):
    """Record two shards; something happens between them."""
    with StoreWriter(path, card()) as writer:
        writer.commit(plain_shard(0))
        writer.flush()
        interfere()
        writer.commit(plain_shard(1))


def test_a_folder_that_may_not_be_written(own_folder):
    own_folder.chmod(0o500)
    with nobody(), pytest.raises(PermissionError, match=r"may not be written.*give yourself the permission"):
        commit(StoreWriter(own_folder / "a", card()))
    own_folder.chmod(0o700)
    with nobody():
        assert plain_store(own_folder / "a").complete


def test_a_permission_that_is_lost_on_the_way(own_folder):
    path = own_folder / "a"
    with nobody():
        expected = contents(plain_store(own_folder / "expected").path)
        with pytest.raises(PermissionError, match="finished shards are kept"):
            record_but_after_the_first_shard(path, lambda: (path / "shards").chmod(0o500))
        assert torch.equal(open_store(path).rows(SITE, slice(None)), plain_rows(SITE, 0))
        (path / "shards").chmod(0o700)
        commit(StoreWriter(path, card()))
        assert contents(path) | {"store.json": b""} == expected | {"store.json": b""}


@pytest.mark.parametrize(("number", "words"), [(errno.ENOSPC, "the disk is full"), (errno.EROFS, "is read-only")])
def test_a_disk_that_takes_no_more(tmp_path, monkeypatch, number, words):
    path, plain, left = tmp_path / "a", os.fsync, [20]

    def fsync(handle):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(number, os.strerror(number))
        plain(handle)

    with StoreWriter(path, card()) as writer:
        writer.commit(plain_shard(0))
        writer.flush()
        left[0] = 3
        monkeypatch.setattr(os, "fsync", fsync)
        writer.commit(plain_shard(1))
        with pytest.raises(OSError, match=f"{words}.*finished shards are kept.*record again"):
            writer.flush()
    monkeypatch.undo()
    assert sorted(p.name for p in (path / "shards").iterdir()) == ["000000"]
    assert torch.equal(open_store(path).rows(SITE, slice(None)), plain_rows(SITE, 0))
    commit(StoreWriter(path, card()))
    assert contents(path) == contents(plain_store(tmp_path / "b").path) | {"store.json": contents(path)["store.json"]}


def test_a_folder_that_is_moved_away_on_the_way(tmp_path):
    path = tmp_path / "a"
    with pytest.raises(FileNotFoundError, match="put it back and record again"):
        record_but_after_the_first_shard(path, lambda: path.rename(tmp_path / "b"))
    assert open_store(tmp_path / "b").n_rows == 12
