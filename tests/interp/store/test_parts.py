"""What is added to a store later, stores that are put together, and stores that are removed."""

import json
import logging
import shutil

import numpy as np
import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem
from plain_store import (
    ADDED,
    HEADS,
    LENGTH,
    SITE,
    add_sites,
    all_rows,
    append_texts,
    card,
    commit,
    contents,
    plain_rows,
    plain_shard,
    plain_store,
)

from interp.store import JoinedShard, ShardData, StoreWriter, as_place, files, merge_stores, open_store, remove_store
from interp.store.parts import part_writer, problems, read_shards, segments
from interp.store.shard import norm_column, outlier_column
from interp.store.writer import read_store_card


@pytest.fixture(params=["local", "memory"])
def root(request, tmp_path):
    """A place for stores, on this machine and elsewhere."""
    if request.param == "local":
        yield str(tmp_path)
        return
    yield f"memory://{tmp_path.name}"
    fs = MemoryFileSystem()
    for path in [path for path in fs.store if path.startswith(f"/{tmp_path.name}/")]:
        fs.rm_file(path)


@pytest.fixture
def path(tmp_path):
    """A store of two shards of three texts."""
    return plain_store(tmp_path / "a").path


# Texts --------------------------------------------------------------------------------------------------------------


def test_appended_texts_follow(root):
    path = f"{root}/a"
    plain_store(path)
    before = contents(path)
    append_texts(path, seed=1)
    append_texts(path, seed=2)
    store = open_store(path)
    assert (store.n_texts, store.n_rows, store.complete) == (18, 72, True)
    assert store.examples.index.tolist() == list(range(18))
    assert store.examples.text.tolist() == [f"text {i} of {seed}" for seed in range(3) for i in range(6)]
    assert store.tokens.text.tolist() == np.repeat(np.arange(18), LENGTH).tolist()
    every = [(index, seed) for seed in range(3) for index in range(2)]
    assert torch.equal(store.rows(SITE, slice(None)), all_rows(SITE, *every))
    assert torch.equal(store.activations(text=16)[HEADS], plain_rows(HEADS, 1, seed=2)[4:8])
    assert store.stats(SITE).all.count == 72
    assert store.card["parts"] == ["parts/0001", "parts/0002"]
    assert store.card["texts"]["count"] == 18
    assert store.verify().empty
    after = contents(path)
    assert {name: after[name] for name in before} == before


def test_appended_texts_may_have_other_columns(path):
    data = plain_shard(0, seed=1)
    labelled = ShardData(0, data.examples.append_column("label", [[1, 0, 1]]), data.tokens, data.acts)
    with part_writer(path, card(shards=1, hash="seed 1"), adds="texts") as writer:
        writer.commit(labelled)
    labels = open_store(path).examples.label
    assert labels[:6].isna().all()
    assert labels[6:].tolist() == [1, 0, 1]


def test_the_same_call_appends_once(path):
    append_texts(path)
    before = contents(path)
    append_texts(path)
    assert contents(path) == before


def test_half_appended_is_left_out_and_gone_on_with(path, caplog):
    append_texts(path, indices=[1])
    with caplog.at_level(logging.WARNING):
        store = open_store(path)
    assert "parts/0001 is left out, since it has 1 of 2 shards; make the same call of append again" in caplog.text
    assert (store.n_texts, store.complete) == (6, True)
    with pytest.raises(ValueError, match="parts/0001 holds texts of another append and has 1 of 2 shards"):
        append_texts(path, seed=2)
    append_texts(path)
    assert open_store(path).n_texts == 12
    whole = contents(path)
    plain_store(path.parent / "b")
    append_texts(path.parent / "b")
    assert contents(path.parent / "b") == whole


def test_a_part_that_never_began_is_nothing(path):
    with part_writer(path, card(hash="seed 1"), adds="texts") as writer:
        assert writer.path == path / "parts" / "0001"
    assert not (path / "parts").exists()
    (path / "parts" / "0002").mkdir(parents=True)
    append_texts(path, seed=2)
    store = open_store(path)
    assert store.card["parts"] == ["parts/0002"]
    assert store.n_texts == 12


def test_a_part_that_was_killed_in_its_first_shard(root):
    """Elsewhere files of half a shard lie under their final names; the place is used again."""
    path = f"{root}/a"
    plain_store(path)
    half = as_place(path) / "parts" / "0001" / "shards" / "000000"
    files.make_folder(half)
    entry = card(hash="seed 1") | {"format": 2, "part": {"adds": "texts", "to": "", "base": "b"}}
    files.write_sealed(as_place(path) / "parts" / "0001" / "store.json", entry)
    files.write_durably(half / f"{SITE}.safetensors", b"half")
    append_texts(path, seed=2)
    append_texts(path, seed=1)
    store = open_store(path)
    assert store.card["parts"] == ["parts/0001", "parts/0002"]
    assert torch.equal(store.rows(SITE, slice(24, 36)), plain_rows(SITE, 0, seed=2))
    assert store.verify().empty


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": card()["model"] | {"fingerprint": "bad"}}, r"model \(f00 there, bad now\)"),
        ({"dtype": "float16"}, r"dtype \(float32 there, float16 now\)"),
        ({"tokens": "last"}, r"tokens \(all there, last now\)"),
        ({"sites": [{"name": SITE, "shape": [6]}]}, "sites .*hook_z.* there, blocks.0.hook_resid_post now"),
        ({"head_stats": True}, "head statistics"),
    ],
)
def test_texts_are_appended_as_the_store_was_recorded(path, change, message):
    with pytest.raises(ValueError, match=message), part_writer(path, card(hash="other") | change, adds="texts"):
        pass
    assert not (path / "parts").exists()


def test_only_a_finished_store_is_added_to(tmp_path):
    commit(StoreWriter(tmp_path / "a", card()), [0])
    with pytest.raises(ValueError, match="1 of 2 shards: finish it first"):
        append_texts(tmp_path / "a")
    with pytest.raises(ValueError, match="there is no file"):
        append_texts(tmp_path / "b")


def test_one_writer_at_a_time(path, monkeypatch):
    hold = files.hold
    monkeypatch.setattr(files, "hold", lambda folder, patience=0.0: hold(folder, 0.0))
    with part_writer(path, card(hash="seed 1"), adds="texts"):
        for call in (lambda: append_texts(path, seed=2), lambda: remove_store(path)):
            with pytest.raises(ValueError, match="written by another process"):
                call()
        assert open_store(path).n_texts == 6
    append_texts(path, seed=2)


# Sites --------------------------------------------------------------------------------------------------------------


def test_added_sites_join_the_rows(root):
    path = f"{root}/a"
    plain_store(path)
    before = contents(path)
    add_sites(path)
    store = open_store(path)
    assert store.sites == [HEADS, SITE, ADDED]
    assert store.shapes[ADDED] == (5,)
    assert (store.n_texts, store.n_rows) == (6, 24)
    wanted = [23, 0, 12, 11]
    for site in store.sites:
        assert torch.equal(store.rows(site, wanted), all_rows(site, (0, 0), (1, 0))[wanted])
    assert store.stats(ADDED).all.count == store.stats(SITE).all.count == 24
    assert store.to_frame().site.tolist() == store.sites
    assert store.typical(ADDED).sum() == 18
    assert store.verify().empty
    after = contents(path)
    assert {name: after[name] for name in before} == before
    add_sites(path)
    assert contents(path) == after


def test_columns_of_added_sites(path):
    data = plain_shard(0, sites=(ADDED,))
    data.acts[ADDED][5] *= 1000
    with part_writer(path, card(sites=(ADDED,)), adds="sites") as writer:
        writer.commit(data)
        writer.commit(plain_shard(1, sites=(ADDED,)))
    shard = segments(path, read_store_card(path))[0].shards[0]
    names = [norm_column(ADDED), "position", outlier_column(ADDED), norm_column(SITE), outlier_column(SITE)]
    table = shard.tokens(names)
    assert table.column_names == names
    assert table[outlier_column(ADDED)].to_numpy().nonzero()[0].tolist() == [5]
    assert not table[outlier_column(SITE)].to_numpy().any()
    np.testing.assert_allclose(table[norm_column(ADDED)], data.acts[ADDED].norm(dim=1), rtol=1e-6)
    assert shard.tokens([norm_column(ADDED)]).column_names == [norm_column(ADDED)]
    assert open_store(path).tokens.is_outlier.to_numpy().nonzero()[0].tolist() == [5]


def test_head_statistics_of_an_added_part(path):
    values = {f"blocks.3/{kind}": torch.rand(12, 2) for kind in ("entropy", "first")}
    wanted = card(sites=(ADDED,), head_stats=True)
    commit(part_writer(path, wanted, adds="sites"), sites=(ADDED,), head_stats=values)
    shard = segments(path, read_store_card(path))[0].shards[1]
    assert torch.equal(shard.head_stats(3)["first"], values["blocks.3/first"])
    with pytest.raises(ValueError, match="layer 0"):
        shard.head_stats(0)


def test_sites_count_when_all_texts_have_them(path, caplog):
    append_texts(path)
    add_sites(path)
    with caplog.at_level(logging.WARNING):
        assert open_store(path).sites == [HEADS, SITE]
    assert f"{ADDED} are left out, since some texts do not have them" in caplog.text
    add_sites(path, to="parts/0001", seed=1)
    store = open_store(path)
    assert store.sites == [HEADS, SITE, ADDED]
    assert store.n_texts == 12
    assert torch.equal(store.rows(ADDED, slice(None)), all_rows(ADDED, (0, 0), (1, 0), (0, 1), (1, 1)))
    append_texts(path, seed=2, sites=(HEADS, SITE, ADDED))
    store = open_store(path)
    assert (store.n_texts, store.sites) == (18, [HEADS, SITE, ADDED])
    assert torch.equal(store.rows(ADDED, slice(48, 60)), plain_rows(ADDED, 0, seed=2))
    assert store.verify().empty


def test_half_added_sites_are_left_out(path, caplog):
    add_sites(path, indices=[0])
    with caplog.at_level(logging.WARNING):
        assert open_store(path).sites == [HEADS, SITE]
    assert "1 of 2 shards; make the same call of add_sites again" in caplog.text
    append_texts(path)  # another part may come first
    assert open_store(path).n_texts == 12
    add_sites(path)
    assert open_store(path).card["parts"] == ["parts/0001", "parts/0002"]


def test_sites_that_cannot_be_added(path):
    with pytest.raises(ValueError, match=f"has {SITE} already"):
        add_sites(path, site=SITE)
    with pytest.raises(ValueError, match="no texts 'parts/0007'"):
        add_sites(path, to="parts/0007")
    other = card(sites=(ADDED,), tokenizer={"name": "none", "hash": "b22"})
    with pytest.raises(ValueError, match=r"tokenizer \(a11 there, b22 now\)"), part_writer(path, other, adds="sites"):
        pass
    with pytest.raises(ValueError, match="adds 'texts', or 'sites'"), part_writer(path, other, adds="rows"):
        pass
    assert not (path / "parts").exists()


def test_sites_of_other_rows_are_left_out(path, caplog):
    """What a careless copy of a part may bring: other tokens, or another base store."""
    add_sites(path, seed=3)
    with caplog.at_level(logging.WARNING):
        assert open_store(path).sites == [HEADS, SITE]
    assert "parts/0001 is left out: the rows of" in caplog.text
    assert "are other tokens than those of" in caplog.text
    other = plain_store(path.parent / "other", seed=9).path
    add_sites(other, seed=9)
    shutil.copytree(other / "parts" / "0001", path / "parts" / "0002")
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert open_store(path).sites == [HEADS, SITE]
    assert "parts/0002 is left out: it was added to another recording" in caplog.text


def test_shards_that_do_not_fit_are_not_joined(path):
    shard, other = read_shards(path)
    with pytest.raises(ValueError, match=r"3 texts and 12 rows, but .* has 1 and 4"):
        JoinedShard(_shard_of_one_text(path.parent), [shard])
    with pytest.raises(ValueError, match="are other tokens"):
        JoinedShard(shard, [other])
    with pytest.raises(ValueError, match=f"has .*{SITE} already, and they were added once more"):
        JoinedShard(shard, [shard])


def _shard_of_one_text(folder):
    commit(StoreWriter(folder / "one", card(shards=1)), [0], n_texts=1)
    return read_shards(folder / "one")[0]


def test_damaged_parts(path, caplog):
    append_texts(path)
    add_sites(path)
    part = path / "parts" / "0002"
    tokens = part / "shards" / "000001" / "tokens.parquet"
    tokens.write_bytes(tokens.read_bytes()[:-1] + b"?")
    name = str(tokens.relative_to(path))
    assert problems(path) == [(1, name, "content changed since it was written (hash differs)")]
    assert name == "parts/0002/shards/000001/tokens.parquet"
    entry = files.read_sealed(part / "store.json")
    (part / "store.json").write_text(json.dumps(files.sealed(entry) | {"shards": 3}))
    with caplog.at_level(logging.WARNING):
        assert open_store(path).sites == [HEADS, SITE]
    assert "changed after it was written" in caplog.text
    assert [file for _, file, _ in problems(path)] == ["parts/0002/store.json"]
    (part / "store.json").write_text(json.dumps(files.sealed(entry | {"format": 3})))
    with pytest.raises(ValueError, match="format 3, newer than the 2"):
        open_store(path)


# Putting stores together --------------------------------------------------------------------------------------------


def test_merged_stores_are_one(root):
    first, second = plain_store(f"{root}/a"), plain_store(f"{root}/b", seed=1)
    append_texts(first.path, seed=2)
    for to, seed in (("", 0), ("parts/0001", 2)):
        add_sites(first.path, to=to, seed=seed)
    add_sites(second.path, seed=1)
    store = merge_stores([f"{root}/a", second], f"{root}/c")
    remove_store(first.path)
    remove_store(second.path)
    assert (store.n_texts, store.sites, store.complete) == (18, [HEADS, SITE, ADDED], True)
    every = [(index, seed) for seed in (0, 2, 1) for index in range(2)]
    for site in store.sites:
        assert torch.equal(store.rows(site, slice(None)), all_rows(site, *every))
    assert store.examples.index.tolist() == list(range(18))
    assert store.verify().empty
    append_texts(store.path, seed=4, sites=(HEADS, SITE, ADDED))
    assert open_store(f"{root}/c").n_texts == 24


def test_stores_that_do_not_go_together(path, tmp_path):
    other = tmp_path / "b"
    commit(StoreWriter(other, card(sites=(SITE,))), sites=(SITE,))
    with pytest.raises(ValueError, match=r"b does not go together with .*a: sites .* there, blocks"):
        merge_stores([path, other], tmp_path / "c")
    commit(StoreWriter(tmp_path / "d", card(model=card()["model"] | {"fingerprint": "bad"})))
    with pytest.raises(ValueError, match=r"model \(f00 there, bad now\)"):
        merge_stores([path, tmp_path / "d"], tmp_path / "c")
    with pytest.raises(ValueError, match="two stores or more, got 1"):
        merge_stores([path], tmp_path / "c")
    with pytest.raises(ValueError, match="exists already"):
        merge_stores([path, path], other)
    with pytest.raises(ValueError, match="view"):
        merge_stores([path, open_store(path).select(rows=[1, 2])], tmp_path / "c")
    commit(StoreWriter(tmp_path / "e", card()), [1])
    with pytest.raises(ValueError, match="1 of 2 shards: finish it first"):
        merge_stores([path, tmp_path / "e"], tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_damage_is_not_passed_on(path, tmp_path):
    file = path / "shards" / "000001" / f"{SITE}.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.raises(ValueError, match=f"{SITE}.* is not as it was written"):
        merge_stores([path, path], tmp_path / "c")
    file.unlink()
    with pytest.raises(ValueError, match=f"{SITE}.* is not as it was written"):
        merge_stores([path, path], tmp_path / "c")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a"]


def test_a_merge_that_fails_leaves_no_store(root, monkeypatch):
    first, second = plain_store(f"{root}/a"), plain_store(f"{root}/b", seed=1)
    plain, left = files.copy_durably, [13]

    def copy(source, target):
        left[0] -= 1
        if not left[0]:
            raise OSError("stop")
        return plain(source, target)

    monkeypatch.setattr(files, "copy_durably", copy)
    with pytest.raises(OSError, match="stop"):
        merge_stores([first, second], f"{root}/c")
    with pytest.raises(ValueError, match="no store at"):
        open_store(f"{root}/c")
    assert merge_stores([first, second], f"{root}/c").n_texts == 12


def test_what_a_killed_merge_left_is_no_store_and_is_swept(path, tmp_path):
    leftover = tmp_path / ".c.0123456789ab.part"
    shutil.copytree(path, leftover)
    with files.hold(leftover):  # a merge at work keeps its folder
        merge_stores([path, path], tmp_path / "c")
        assert leftover.exists()
    remove_store(tmp_path / "c")
    merge_stores([path, path], tmp_path / "c")
    assert not leftover.exists()


def test_half_a_merge_elsewhere_is_made_anew(tmp_path):
    path = as_place(f"memory://{tmp_path.name}/a")
    plain_store(path)
    (path / "store.json").unlink()
    (path / "shards" / "000007").mkdir()
    (path / "shards" / "000007" / "shard.json").write_bytes(b"{}")
    with pytest.raises(ValueError, match=r"shards but no store\.json: it is half of a copy"):
        open_store(path)
    first, second = (plain_store(tmp_path / name, seed=seed) for seed, name in enumerate("ab"))
    store = merge_stores([first, second], path)
    assert store.n_texts == 12
    assert "shards/000007/shard.json" not in contents(path)
    remove_store(path)


def test_merging_needs_room(path, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 10, 0))
    with pytest.raises(ValueError, match=r"merging needs about .* free: choose another path"):
        merge_stores([path, path], tmp_path / "c")


# Removing stores ----------------------------------------------------------------------------------------------------


def test_a_removed_store_is_gone(root):
    path = f"{root}/a"
    plain_store(path)
    plain_store(f"{root}/b")
    append_texts(path)
    add_sites(path, indices=[1])
    remove_store(path)
    assert not as_place(path).exists()
    assert open_store(f"{root}/b").complete
    with pytest.raises(ValueError, match="no store at"):
        remove_store(path)


def test_what_is_not_a_stores_is_kept(path):
    before = contents(path)
    for name in ("notes.txt", "shards/000000/notes.txt", "shards/more/shard.json", "parts/0001/shards/a.parquet"):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text("mine")
        with pytest.raises(ValueError, match=r"what does not belong to a store.*nothing was removed"):
            remove_store(path)
        (path / name).unlink()
    assert contents(path) == before
    (path / "shards" / "000009").symlink_to(path.parent)
    with pytest.raises(ValueError, match="shards/000009@"):
        remove_store(path)


def test_what_is_no_store_is_not_removed(path, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(path)
    (tmp_path / "file").write_text("x")
    for name, message in (
        ("empty", "not a store"),
        ("link", "is a link"),
        ("none", "no store at"),
        ("file", "no store"),
    ):
        with pytest.raises(ValueError, match=message):
            remove_store(tmp_path / name)
    with pytest.raises(ValueError, match="does not belong to a store"):
        remove_store(tmp_path)
    assert open_store(path).complete


def test_interrupted_stores_are_removed(tmp_path):
    """Whatever a kill may leave: a lock, half a card, half a shard, half of a removal."""
    path = tmp_path / "a"
    commit(StoreWriter(path, card()), [1])
    half = path / "shards" / ".000000.0123456789ab.part"
    shutil.copytree(path / "shards" / "000001", half)
    (half / ".shard.json.0123456789ab.part").write_text("{")
    (path / ".store.json.0123456789ab.part").write_text("{")
    (path / "parts" / "0001").mkdir(parents=True)
    (path / "store.json").unlink()
    remove_store(path)
    assert list(tmp_path.iterdir()) == []


def test_rows_that_carry_averages_join_too(path):
    """Averages have position -1 and token -1; the hash of the rows takes them as they are."""
    data = plain_shard(0)
    position = np.where(np.arange(12) % 4 == 3, -1, data.tokens["position"].to_numpy()).astype(np.int32)
    tokens = data.tokens.set_column(1, "position", [position])
    base, added = (ShardData(0, data.examples, tokens, {site: plain_rows(site, 0)}) for site in (SITE, ADDED))
    with StoreWriter(path.parent / "b", card(shards=1, sites=(SITE,))) as writer:
        writer.commit(base)
    with part_writer(path.parent / "b", card(shards=1, sites=(ADDED,)), adds="sites") as writer:
        writer.commit(added)
    assert open_store(path.parent / "b").sites == [SITE, ADDED]
