"""Going on with a store that is there: what must be equal, and what needs no writing."""

import errno
import os
import shutil
import subprocess

import pytest
import torch
from plain_store import SITE, all_rows, card, commit, contents, plain_shard, plain_store

from interp.store import StoreWriter, files, open_store
from interp.store.parts import part_writer
from interp.store.writer import differences

HOOKED = card()["model"] | {"edited_at": ["blocks.0.attn.hook_z"]}


def with_texts(**texts):
    """A card whose texts say more."""
    return card() | {"texts": card()["texts"] | texts}


# Which tokens are kept ----------------------------------------------------------------------------------------------


def test_another_rule_of_the_same_name_is_other_input(tmp_path):
    """Two functions can have one name; the tokens that they keep tell them apart."""
    commit(StoreWriter(tmp_path / "a", with_texts(rows_hash="r1")), [0])
    before = contents(tmp_path / "a")
    with pytest.raises(ValueError, match=r"which of the tokens are kept \(r1 there, r2 now\)\. Choose another path"):
        commit(StoreWriter(tmp_path / "a", with_texts(rows_hash="r2")))
    assert contents(tmp_path / "a") == before
    commit(StoreWriter(tmp_path / "a", with_texts(rows_hash="r1")))
    assert open_store(tmp_path / "a").complete


def test_what_follows_is_not_said_twice():
    there = with_texts(rows_hash="r1")
    assert differences(there, with_texts(rows_hash="r2", hash="other")) == ["texts (7e47 there, other now)"]
    assert differences(there, card()) == differences(card(), there) == []  # a card of format 1 does not say


# Hooks --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("indices", [[0], [0, 1]])
def test_what_was_recorded_under_hooks_is_not_gone_on_with(tmp_path, indices):
    """Of a function no more is known than where it is attached."""
    commit(StoreWriter(tmp_path / "a", card(model=HOOKED)), indices)
    before = contents(tmp_path / "a")
    with pytest.raises(
        ValueError, match=r"hooks on the model \(blocks\.0\.attn\.hook_z\).*cannot be seen: choose another"
    ):
        commit(StoreWriter(tmp_path / "a", card(model=HOOKED)))
    with pytest.raises(ValueError, match=r"hooks on the model \(1: blocks\.0\.attn\.hook_z there, none now\)"):
        commit(StoreWriter(tmp_path / "a", card()))
    assert contents(tmp_path / "a") == before
    assert open_store(tmp_path / "a").rows(SITE, [0]).shape == (1, 6)


def test_nothing_is_added_to_what_was_recorded_under_hooks(tmp_path):
    commit(StoreWriter(tmp_path / "a", card(model=HOOKED)))
    for adds in ("texts", "sites"):
        with (
            pytest.raises(ValueError, match=r"hooks on the model .* nothing can be added to it"),
            part_writer(tmp_path / "a", card(model=HOOKED, hash="more"), adds=adds),
        ):
            pass
    assert not (tmp_path / "a" / "parts").exists()


# Without writing ----------------------------------------------------------------------------------------------------


@pytest.fixture
def read_only(monkeypatch):
    """No file can be opened for writing, as on a disk that is read-only."""
    plain = os.open

    def refuse(path, flags, *rest, **further):
        if flags & (os.O_RDWR | os.O_WRONLY | os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return plain(path, flags, *rest, **further)

    return lambda: monkeypatch.setattr(files.os, "open", refuse)


def test_a_finished_store_needs_no_writing(tmp_path, read_only):
    plain_store(tmp_path / "a")
    commit(StoreWriter(tmp_path / "b", card()), [0])
    read_only()
    with StoreWriter(tmp_path / "a", card(hash="seed 0")) as writer:
        assert writer.finished() == {0, 1}
    with pytest.raises(ValueError, match="other inputs"):
        StoreWriter(tmp_path / "a", card()).__enter__()
    with pytest.raises(OSError, match=r"is read-only.*record again"):
        StoreWriter(tmp_path / "b", card()).__enter__()


def test_a_disk_that_is_read_only(tmp_path):
    if shutil.which("mount") is None:
        pytest.skip("there is no mount command")
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", place], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"no disk can be mounted here: {made.stderr.strip()}")
    try:
        plain_store(place / "a")
        subprocess.run(["mount", "-o", "remount,ro", place], check=True)
        assert torch.equal(plain_store(place / "a").rows(SITE, slice(None)), all_rows(SITE, (0, 0), (1, 0)))
    finally:
        subprocess.run(["umount", place], check=True)


def test_a_check_writes_nothing(tmp_path):
    assert StoreWriter(tmp_path / "a", card()).check() is False
    assert not (tmp_path / "a").exists()
    plain_store(tmp_path / "a")
    before = contents(tmp_path / "a")
    assert StoreWriter(tmp_path / "a", card(hash="seed 0")).check() is True
    with pytest.raises(ValueError, match=r"texts \(seed 0 there, 7e47 now\)"):
        StoreWriter(tmp_path / "a", card()).check()
    assert contents(tmp_path / "a") == before


# Room ---------------------------------------------------------------------------------------------------------------


def test_too_little_room_for_more_texts(tmp_path, caplog):
    """What a caller of `append` can do is said, and nothing is left behind that would be warned of at each opening."""
    path = tmp_path / "a"
    plain_store(path)
    for adds, sites in (("texts", {}), ("sites", {"sites": ("blocks.1.hook_resid_post",)})):
        with (
            pytest.raises(
                ValueError, match=rf"adding {adds} needs about .* free: make room there, or add fewer {adds}$"
            ),
            part_writer(path, card(hash="seed 0" if sites else "more", **sites), adds=adds) as writer,
        ):
            writer.require_room(1 << 60)
    assert not (path / "parts").exists()
    open_store(path)
    assert caplog.text == ""
    with (
        pytest.raises(ValueError, match=r"recording needs .*dtype='bfloat16'"),
        StoreWriter(tmp_path / "b", card()) as writer,
    ):
        writer.require_room(1 << 60)


def test_a_full_disk_while_adding(tmp_path, monkeypatch):
    """The mend is that of the call that was made."""
    plain_store(tmp_path / "a")

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def append():
        with part_writer(tmp_path / "a", card(hash="more"), adds="texts") as writer:
            monkeypatch.setattr(files, "write_durably", full)
            writer.commit(plain_shard(0, seed=1))

    with pytest.raises(OSError, match="make room and make the same call again"):
        append()
    assert not (tmp_path / "a" / "parts").exists()
