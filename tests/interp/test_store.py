"""The store against numpy, pandas and safetensors, and against damage. No model: rows are plain tensors."""

import json
import logging
import multiprocessing
import shutil

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from interp.store import Moments, NormHistogram, ShardData, Store, StoreWriter, batches, files, open_store, require_room
from interp.store.shard import leftovers, write_shard

SITE, HEADS = "blocks.0.hook_resid_post", "blocks.0.attn.hook_z"
CARD = {
    "model": {"name": "plain", "fingerprint": "f00", "dtype": "float32", "edited_at": []},
    "tokenizer": {"name": "none", "hash": "a11"},
    "sites": [{"name": HEADS, "shape": [2, 4]}, {"name": SITE, "shape": [6]}],
    "dtype": "float32",
    "tokens": "all",
    "bos": False,
    "long": "error",
    "max_length": 16,
    "signals": False,
    "texts": {"hash": "7e47", "columns_hash": "c01"},
    "shards": 3,
    "run": {"texts_per_shard": 5},
}


def plain_shard(index, n_texts=5, length=7, seed=0, dtype=torch.float32):
    """A shard of random rows with planted sinks (first tokens), a special token, and one outlier."""
    generator = torch.Generator().manual_seed(1000 * seed + index)
    n = n_texts * length
    position = np.tile(np.arange(length, dtype=np.int32), n_texts)
    acts = {
        SITE: torch.randn(n, 6, generator=generator) + torch.arange(6.0),
        HEADS: torch.randn(n, 8, generator=generator),
    }
    acts[SITE][torch.from_numpy(position == 0)] *= 100
    acts[SITE][4] *= 50
    texts = np.arange(index * n_texts, (index + 1) * n_texts)
    examples = {
        "text_index": texts,
        "text": [f"text {i}" for i in texts],
        "label": pa.array([None] * n_texts, pa.int64()),
    }
    tokens = {
        "text": np.repeat(texts, length),
        "position": position,
        "token_id": np.arange(n, dtype=np.int32),
        "is_bos": np.zeros(n, dtype=bool),
        "is_special": position == 2,
        "is_first": position == 0,
    }
    return ShardData(index, pa.table(examples), pa.table(tokens), {name: rows.to(dtype) for name, rows in acts.items()})


def make_store(path, n_shards=3, dtype=torch.float32, **shard) -> Store:
    card = CARD | {"dtype": str(dtype).removeprefix("torch."), "shards": n_shards}
    with StoreWriter(path, card) as writer:
        for index in range(n_shards):
            writer.commit(plain_shard(index, dtype=dtype, **shard))
    return open_store(path)


@pytest.fixture
def store(tmp_path) -> Store:
    return make_store(tmp_path / "a")


def expected_rows(site=SITE, n_shards=3):
    return torch.cat([plain_shard(index).acts[site] for index in range(n_shards)])


def file_bytes(folder):
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in sorted(folder.rglob("*"))
        if p.is_file() and p.name != ".lock"
    }


# Reading ------------------------------------------------------------------------------------------------------------


def test_rows_come_back_in_any_order_and_with_repeats(store):
    wanted = [44, 3, 3, 104, 0, 35, 34]
    torch.testing.assert_close(store.rows(SITE, wanted), expected_rows()[wanted], rtol=0, atol=0)
    mask = np.arange(105) % 3 == 0
    torch.testing.assert_close(
        store.rows("resid_post:0", mask), expected_rows()[torch.from_numpy(mask)], rtol=0, atol=0
    )
    torch.testing.assert_close(store.rows(SITE, slice(30, 40)), expected_rows()[30:40], rtol=0, atol=0)
    assert store.rows(SITE, []).shape == (0, 6)


def test_the_store_describes_itself(store):
    assert store.sites == [HEADS, SITE]
    assert (store.n_rows, store.n_texts, store.dtype, store.complete) == (105, 15, "float32", True)
    assert store.shapes[HEADS] == (2, 4)
    assert store.width(HEADS) == 8
    assert "15 texts, 105 rows" in repr(store)
    frame = store.to_frame()
    assert frame.site.tolist() == [HEADS, SITE]
    assert frame["rows"].tolist() == [105, 105]
    assert frame.layer.tolist() == [0, 0]
    assert list(store.examples.index) == list(range(15))


def test_frames_cannot_be_changed_from_outside(store):
    frame = store.tokens
    frame["position"] = -1
    assert store.tokens.position.max() == 6


def test_activations_of_one_text(store):
    acts = store.activations(text=7)
    torch.testing.assert_close(acts[SITE], expected_rows()[49:56], rtol=0, atol=0)
    assert list(store.activations(text=7, sites="z:0")) == [HEADS]
    with pytest.raises(ValueError, match="no text 15"):
        store.activations(text=15)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_anyone_can_read_the_files(tmp_path, dtype):
    """safetensors, pandas and json alone give what the store gives."""
    store = make_store(tmp_path / "a", dtype=dtype)
    shard = tmp_path / "a" / "shards" / "000001"
    with safe_open(shard / f"{SITE}.safetensors", "pt") as file:
        rows, metadata = file.get_tensor("acts"), file.metadata()
    assert rows.dtype == dtype
    torch.testing.assert_close(rows.float(), store.rows(SITE, slice(35, 70)), rtol=0, atol=0)
    assert list(metadata) == ["card"]
    tokens = pd.read_parquet(shard / "tokens.parquet")
    assert tokens.columns.tolist()[:6] == ["text", "position", "token_id", "is_bos", "is_special", "is_first"]
    assert (tokens.text == store.tokens.text[35:70].to_numpy()).all()
    assert pd.read_parquet(shard / "examples.parquet").text.tolist() == store.examples.text[5:10].tolist()
    assert json.loads((tmp_path / "a" / "store.json").read_text())["format"] == 2
    assert sorted(json.loads((shard / "shard.json").read_text())["files"]) == sorted(
        p.name for p in shard.iterdir() if p.name != "shard.json"
    )


def test_pooling(store):
    rows = expected_rows().view(15, 7, 6)
    last, frame = store.pooled(SITE, tokens="last")
    torch.testing.assert_close(last, rows[:, -1], rtol=0, atol=0)
    assert frame.text.tolist() == [f"text {i}" for i in range(15)]
    torch.testing.assert_close(store.pooled(SITE, tokens="first")[0], rows[:, 0], rtol=0, atol=0)
    typical = torch.from_numpy(store.typical(SITE)).view(15, 7, 1)
    mean = (rows * typical).sum(1) / typical.sum(1)
    torch.testing.assert_close(store.pooled(SITE, tokens="mean")[0], mean, rtol=1e-6, atol=1e-6)
    with pytest.raises(ValueError, match="'max' cannot be read"):
        store.pooled(SITE, tokens="max")


def test_pooling_refuses_what_was_not_kept(tmp_path):
    with StoreWriter(tmp_path / "a", CARD | {"tokens": "last", "shards": 1}) as writer:
        writer.commit(plain_shard(0, length=1))
    store = open_store(tmp_path / "a")
    assert store.pooled(SITE, tokens="last")[0].shape == (5, 6)
    with pytest.raises(ValueError, match=r"kept tokens='last'.*record with tokens='all'"):
        store.pooled(SITE, tokens="mean")


def test_a_text_without_typical_tokens_has_no_mean(tmp_path):
    store = make_store(tmp_path / "a", length=1)
    with pytest.raises(ValueError, match="text 0 has no typical token"):
        store.pooled(SITE, tokens="mean")


def test_nan_is_neither_stored_nor_pooled(store, tmp_path):
    shard = plain_shard(0)
    shard.acts[SITE][6, 0] = torch.inf
    with pytest.raises(ValueError, match="row 6 holds NaN"):
        write_shard(tmp_path, shard)
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
    path = store.path / "shards" / "000001" / f"{SITE}.safetensors"
    path.write_bytes(path.read_bytes()[:-4] + np.float32(np.nan).tobytes())
    with pytest.raises(ValueError, match="NaN or infinite"):
        store.pooled(SITE)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: s.rows("resid_post:7", [0]), "not in this store, which has z:0, resid_post:0"),
        (lambda s: s.rows("resid_pots:0", [0]), "resid_post:0"),
        (lambda s: s.rows(SITE, [105]), "rows go from 0 to 104"),
        (lambda s: s.rows(SITE, [-1]), "rows go from 0 to 104"),
        (lambda s: s.rows(SITE, [0.5]), "integers or by a boolean mask"),
        (lambda s: s.rows(SITE, np.ones(4, dtype=bool)), "boolean mask with 105 entries"),
        (lambda s: s.batches(SITE, size=0), "size must be at least 1"),
        (lambda s: s.batches(SITE, seed=-1), "seed must be at least 0"),
        (lambda s: s.batches(SITE, epochs=0), "epochs must be at least 1"),
        (lambda s: s.batches(SITE, rows=[0]), "no row of .* is left"),
    ],
)
def test_bad_requests_are_refused(store, call, message):
    with pytest.raises(ValueError, match=message):
        call(store)


# Statistics ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_statistics_equal_numpy(tmp_path, dtype):
    store = make_store(tmp_path / "a", dtype=dtype)
    rows, tokens = store.rows(SITE, slice(None)).double().numpy(), store.tokens
    norms = np.linalg.norm(rows, axis=1)
    typical = np.zeros(105, dtype=bool)
    for shard in range(3):  # the median of each shard decides
        part = slice(35 * shard, 35 * shard + 35)
        ordinary = ~(tokens.is_special | tokens.is_first).to_numpy()[part]
        typical[part] = ordinary & (norms[part] <= 10 * np.median(norms[part][ordinary]))
    assert typical.sum() == 3 * (35 - 5 - 5 - 1)  # sinks, special tokens, the planted outlier
    np.testing.assert_array_equal(store.typical(SITE), typical)
    stats = store.stats("resid_post:0")
    for moments, chosen in ((stats.all, rows), (stats.typical, rows[typical])):
        assert moments.count == len(chosen)
        np.testing.assert_allclose(moments.mean, chosen.mean(0), rtol=1e-12)
        np.testing.assert_allclose(moments.M2, ((chosen - chosen.mean(0)) ** 2).sum(0), rtol=1e-12)
        np.testing.assert_allclose(moments.variance, chosen.var(0), rtol=1e-12)
        for q in (0.0, 0.1, 0.5, 0.9, 1.0):
            exact = np.quantile(np.linalg.norm(chosen, axis=1), q, method="closest_observation")
            assert moments.norms.quantile(q) == pytest.approx(exact, rel=0.06)  # few rows: neighbours lie far apart
    assert stats.left_out == 105 - typical.sum()
    assert len(stats.outlier_norms) == 3
    assert stats.typical_norm == pytest.approx(np.median(norms[typical]), rel=0.03)
    assert stats.typical_norm * 5 < np.median(norms[tokens.is_first])


def test_an_outlier_at_one_site_is_marked_there_and_overall(store):
    assert store.tokens.is_outlier.to_numpy().nonzero()[0].tolist() != []
    shard = pd.read_parquet(store.path / "shards" / "000000" / "tokens.parquet")
    marked = shard[f"is_outlier:{SITE}"].to_numpy().nonzero()[0].tolist()
    assert marked == [0, 4, 7, 14, 21, 28]
    assert not shard[f"is_outlier:{HEADS}"].to_numpy().any()
    assert (shard.is_outlier == shard[f"is_outlier:{SITE}"]).all()
    assert not store.typical(SITE)[4]
    assert store.typical(HEADS)[4]


def test_without_typical_rows_there_is_no_typical_norm(tmp_path):
    store = make_store(tmp_path / "a", length=1)
    stats = store.stats(SITE)
    assert stats.outlier_norms == (None, None, None)
    assert stats.typical.count == 0
    assert torch.isnan(stats.typical.mean).all()
    with pytest.raises(ValueError, match="none of the 15 rows is typical"):
        _ = stats.typical_norm
    with pytest.raises(ValueError, match="no variance"):
        _ = stats.typical.variance
    assert store.to_frame().typical_norm.isna().all()


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=60), st.data())
@settings(deadline=None)
def test_histograms_merge_exactly_in_any_order(norms, data):
    norms = np.array(norms)
    cut = data.draw(st.integers(0, len(norms)))
    whole, a, b = NormHistogram.of(norms), NormHistogram.of(norms[:cut]), NormHistogram.of(norms[cut:])
    for merged in (a.merge(b), b.merge(a)):
        assert torch.equal(merged.bins, whole.bins)
        assert torch.equal(merged.counts, whole.counts)
    assert whole.count == len(norms)


def test_quantiles_of_many_norms():
    norms = np.random.default_rng(0).lognormal(5, 1, 100_000)
    histogram = NormHistogram.of(norms)
    for q in (0.001, 0.25, 0.5, 0.75, 0.999):
        assert histogram.quantile(q) == pytest.approx(np.quantile(norms, q), rel=0.003)
    with pytest.raises(ValueError, match=r"between 0 and 1, got 1\.5"):
        histogram.quantile(1.5)
    with pytest.raises(ValueError, match="no rows"):
        NormHistogram.of(np.empty(0)).quantile(0.5)
    assert NormHistogram.of(np.zeros(3)).quantile(0.5) == 0.0


def test_moments_merge():
    rows = torch.from_numpy(np.random.default_rng(0).normal(3, 2, (700, 4)).astype(np.float32))
    first = np.arange(700) < 123

    def moments(chosen):
        return Moments.of(rows, chosen)

    whole, nothing = moments(np.ones(700, dtype=bool)), moments(np.zeros(700, dtype=bool))
    for other in (moments(first).merge(moments(~first)), whole.merge(nothing), nothing.merge(whole)):
        assert other.count == 700
        torch.testing.assert_close(other.mean, whole.mean, rtol=1e-12, atol=0)
        torch.testing.assert_close(other.M2, whole.M2, rtol=1e-12, atol=0)
    with pytest.raises(ValueError, match="width 4 and 3"):
        whole.merge(Moments.of(rows[:, :3], first))


# Batches ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_windows(monkeypatch):
    """Blocks of 4 rows and windows of 5 blocks, so that a small store has many."""
    monkeypatch.setattr(batches, "BLOCK_ROWS", 4)
    monkeypatch.setattr(batches, "WINDOW_BYTES", 5 * 4 * 24)


def rows_of(found):
    """Sorted rows, for comparing sets of rows."""
    return sorted(map(tuple, torch.cat(found).tolist()))


@pytest.mark.usefixtures("small_windows")
def test_an_epoch_is_every_row_once(store):
    found = list(store.batches(SITE, size=10, typical=False))
    assert [len(batch) for batch in found] == [10] * 10 + [5]
    assert rows_of(found) == rows_of([expected_rows()])
    assert not torch.equal(torch.cat(found), expected_rows())
    assert [len(batch) for batch in store.batches(SITE, size=10, typical=False, drop_last=True)] == [10] * 10


@pytest.mark.usefixtures("small_windows")
def test_batches_leave_out_what_they_should(store):
    typical = store.typical(SITE)
    assert rows_of(list(store.batches(SITE, size=10))) == rows_of([expected_rows()[torch.from_numpy(typical)]])
    held_out = (store.tokens.text >= 10).to_numpy()
    found = list(store.batches(SITE, size=10, rows=held_out))
    assert rows_of(found) == rows_of([expected_rows()[torch.from_numpy(typical & held_out)]])
    assert rows_of(list(store.batches(SITE, rows=[3, 1], typical=False))) == rows_of([expected_rows()[[1, 3]]])


@pytest.mark.usefixtures("small_windows")
def test_order_follows_the_seed_and_the_epoch(store):
    first, again, other = (torch.cat(list(store.batches(SITE, seed=seed, typical=False))) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    both = torch.cat(list(store.batches(SITE, typical=False, epochs=2)))
    assert torch.equal(both[:105], first)
    assert not torch.equal(both[105:], first)


def test_iterating_again_begins_again(store):
    shuffled = store.batches(SITE, size=10)
    first = next(iter(shuffled))
    assert torch.equal(next(iter(shuffled)), first)
    assert len(list(shuffled)) == len(shuffled)


def test_batches_without_end(store):
    endless = store.batches(SITE, size=50, epochs=None)
    found = [batch for batch, _ in zip(endless, range(7))]
    assert len(found) == 7
    with pytest.raises(TypeError, match="no length"):
        len(endless)


@given(
    size=st.integers(1, 130),
    stops=st.lists(st.integers(0, 12), max_size=4),
    epochs=st.integers(1, 3),
    drop_last=st.booleans(),
    typical=st.booleans(),
)
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.usefixtures("small_windows")
def test_going_on_from_a_state_is_exact(store, size, stops, epochs, drop_last, typical):
    """Stopped at arbitrary points and reloaded from JSON each time, the batches are those of a run without stops."""

    def fresh():
        return store.batches(SITE, size=size, seed=3, epochs=epochs, drop_last=drop_last, typical=typical)

    expected, found, state = list(fresh()), [], fresh().state()
    for stop in [*stops, None]:
        part = fresh()
        part.load_state(json.loads(json.dumps(state)))
        assert part.state() == state
        for number, batch in enumerate(part, start=1):
            found.append(batch)
            if number == stop:
                break
        state = part.state()
    assert len(found) == len(expected)
    assert all(torch.equal(a, b) for a, b in zip(found, expected))
    assert len(expected) == len(fresh())


def test_a_state_of_other_batches_is_refused(store):
    state = store.batches(SITE, size=10).state()
    with pytest.raises(ValueError, match="size differ"):
        store.batches(SITE, size=11).load_state(state)
    with pytest.raises(ValueError, match="selection differ"):
        store.batches(SITE, size=10, rows=np.arange(50)).load_state(state)


def test_mixing_is_that_of_a_full_permutation(tmp_path):
    """Pairs of rows from the same text are as rare in a batch as under a permutation of all rows."""
    store = make_store(tmp_path / "a", n_shards=4, n_texts=50, length=20)
    number = {tuple(row): text for row, text in zip(store.rows(SITE, slice(None)).tolist(), store.tokens.text)}
    shares = []
    for batch in store.batches(SITE, size=400, typical=False, epochs=5):
        text = np.array([number[tuple(row)] for row in batch.tolist()])
        same = (text[:, None] == text).sum() - len(text)
        shares.append(same / (len(text) * (len(text) - 1)))
    expected = 19 / 3999
    assert np.mean(shares) == pytest.approx(expected, rel=0.1)


# Writing, crashes, damage -------------------------------------------------------------------------------------------


def test_writing_twice_gives_the_same_bytes(tmp_path):
    make_store(tmp_path / "a")
    make_store(tmp_path / "b")
    assert file_bytes(tmp_path / "a") == file_bytes(tmp_path / "b")


def test_one_process_and_another_give_the_same_bytes(tmp_path):
    make_store(tmp_path / "a")
    child = multiprocessing.get_context("spawn").Process(target=make_store, args=(tmp_path / "b",))
    child.start()
    child.join()
    assert file_bytes(tmp_path / "a") == file_bytes(tmp_path / "b")


def test_finished_shards_are_known(store):
    with StoreWriter(store.path, CARD) as writer:
        assert writer.finished() == {0, 1, 2}
    with pytest.raises(ValueError, match="resume=False"):
        StoreWriter(store.path, CARD, resume=False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": CARD["model"] | {"fingerprint": "bad"}}, r"model \(f00 there, bad now\)"),
        ({"dtype": "bfloat16"}, r"dtype \(float32 there, bfloat16 now\)"),
        ({"sites": CARD["sites"][:1]}, r"sites \(2: blocks\.0\.attn\.hook_z, blocks\.0\.hook_resid_post there, 1: "),
        ({"texts": {"hash": "other", "columns_hash": "c01"}}, r"texts \(7e47 there, other now\)"),
        ({"texts": {"hash": "7e47", "columns_hash": "other"}}, "labels, groups or further columns"),
        ({"tokens": "last"}, r"tokens \(all there, last now\)"),
    ],
)
def test_other_inputs_at_the_same_path_are_refused(store, change, message):
    before = file_bytes(store.path)
    with pytest.raises(ValueError, match=message) as error, StoreWriter(store.path, CARD | change):
        pass
    assert "Choose another path" in str(error.value)
    assert file_bytes(store.path) == before
    assert open_store(store.path).verify().empty


def test_a_card_without_shards_protects_nothing(tmp_path):
    """A recording that failed before its first shard does not block the next one."""
    with StoreWriter(tmp_path / "a", CARD):
        pass
    with StoreWriter(tmp_path / "a", CARD | {"dtype": "bfloat16"}, resume=False) as writer:
        writer.commit(plain_shard(0, dtype=torch.bfloat16))
    assert open_store(tmp_path / "a").dtype == "bfloat16"


def test_how_the_work_is_cut_comes_from_the_store(store):
    with StoreWriter(store.path, CARD | {"run": {"texts_per_shard": 99}}) as writer:
        assert writer.card["run"] == {"texts_per_shard": 5}


def test_a_place_that_is_something_else_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match="is a file"):
        StoreWriter(tmp_path / "file", CARD)
    with pytest.raises(ValueError, match="not empty"):
        StoreWriter(tmp_path, CARD)


def test_two_writers_cannot_meet(tmp_path):
    with StoreWriter(tmp_path / "a", CARD), pytest.raises(ValueError, match="written by another process"):
        StoreWriter(tmp_path / "a", CARD).__enter__()
    with StoreWriter(tmp_path / "a", CARD):
        pass


def test_a_failing_block_leaves_committed_shards_and_no_lock(tmp_path):
    def fail():
        with StoreWriter(tmp_path / "a", CARD) as writer:
            writer.commit(plain_shard(0))
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    with StoreWriter(tmp_path / "a", CARD) as writer:
        assert writer.finished() == {0}


def test_an_unfinished_store_is_readable_and_says_so(tmp_path, caplog):
    with StoreWriter(tmp_path / "a", CARD) as writer:
        writer.commit(plain_shard(1))
    with caplog.at_level(logging.WARNING):
        store = open_store(tmp_path / "a")
    assert "1 of 3 shards" in caplog.text
    assert not store.complete
    assert "1 of 3 shards" in repr(store)
    assert store.examples.index.tolist() == [5, 6, 7, 8, 9]
    torch.testing.assert_close(store.activations(text=6)[SITE], plain_shard(1).acts[SITE][7:14], rtol=0, atol=0)
    assert store.verify().shard.tolist() == [0, 2]


def test_a_store_without_shards_says_so(tmp_path):
    with StoreWriter(tmp_path / "a", CARD):
        pass
    store = open_store(tmp_path / "a")
    assert (store.n_rows, store.n_texts) == (0, 0)
    for call in (lambda: store.examples, lambda: store.tokens, lambda: store.stats(SITE), lambda: store.batches(SITE)):
        with pytest.raises(ValueError, match="no finished shard"):
            call()


def test_leftovers_are_ignored_and_swept_when_no_writer_is_at_work(store):
    half = store.path / "shards" / ".000007.abc.part"
    shutil.copytree(store.path / "shards" / "000000", half)
    with files.hold(store.path):
        assert open_store(store.path).n_rows == 105
        assert half.exists()
    assert open_store(store.path).n_rows == 105
    assert not half.exists()


def test_half_a_copy_is_no_shard_and_is_made_anew(store):
    before = file_bytes(store.path)
    (store.path / "shards" / "000001" / "shard.json").unlink()
    (store.path / "shards" / "000001" / f"{SITE}.safetensors").write_bytes(b"half")
    assert open_store(store.path).n_rows == 70
    with StoreWriter(store.path, CARD) as writer:
        assert writer.finished() == {0, 2}
        writer.commit(plain_shard(1))
    assert file_bytes(store.path) == before


def test_a_shard_that_another_writer_finished_is_kept(store):
    before = file_bytes(store.path)
    write_shard(store.path / "shards", plain_shard(1, seed=9))
    assert file_bytes(store.path) == before
    assert leftovers(store.path / "shards") == []


def test_verify_sees_every_flipped_byte(store):
    assert store.verify().empty
    assert store.verify().columns.tolist() == ["shard", "file", "problem"]
    names = sorted(p.name for p in (store.path / "shards" / "000001").iterdir())
    assert len(names) == 6
    for name in names:
        path = store.path / "shards" / "000001" / name
        whole = path.read_bytes()
        for at in (0, len(whole) // 2, len(whole) - 2):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            found = store.verify()
            assert found.shard.tolist() == [1], (name, at)
            assert found.file.tolist() == [name]
        path.write_bytes(whole)
    assert store.verify().empty


def test_verify_sees_cut_and_missing_files(store):
    shard = store.path / "shards" / "000002"
    (shard / "tokens.parquet").write_bytes((shard / "tokens.parquet").read_bytes()[:-1])
    (shard / f"{SITE}.safetensors").unlink()
    found = store.verify()
    assert found.file.tolist() == [f"{SITE}.safetensors", "tokens.parquet"]
    assert found.problem[0] == "missing"
    assert "were written" in found.problem[1]


@pytest.mark.parametrize("damage", [lambda whole: whole[:100], lambda whole: whole[: len(whole) // 2]])
def test_a_cut_file_is_a_clear_error_and_the_rest_stays_readable(store, damage):
    path = store.path / "shards" / "000001" / f"{SITE}.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=r"000001.*bytes long, but \d+ were written.*record again"):
        store.rows(SITE, [40])
    with pytest.raises(ValueError, match="damaged"), StoreWriter(store.path, CARD) as writer:
        writer.finished()
    torch.testing.assert_close(store.rows(SITE, [0, 104]), expected_rows()[[0, 104]], rtol=0, atol=0)
    torch.testing.assert_close(store.rows(HEADS, [40]), expected_rows(HEADS)[[40]], rtol=0, atol=0)


@pytest.mark.parametrize("name", [f"{SITE}.safetensors", "tokens.parquet", "examples.parquet", "stats.safetensors"])
def test_a_damaged_header_is_a_clear_error(store, name):
    path = store.path / "shards" / "000001" / name
    whole = path.read_bytes()
    path.write_bytes(bytes(len(whole)))
    reader = {
        "tokens.parquet": lambda: store.tokens,
        "examples.parquet": lambda: store.examples,
        "stats.safetensors": lambda: store.stats(SITE),
    }.get(name, lambda: store.rows(SITE, [40]))
    with pytest.raises(ValueError, match=r"store\.verify\(\) lists"):
        reader()


def test_a_damaged_card_of_a_shard_leaves_the_others_readable(store, caplog):
    card = store.path / "shards" / "000001" / "shard.json"
    card.write_text(card.read_text().replace('"rows": 35', '"rows": 36'))
    with caplog.at_level(logging.WARNING):
        damaged = open_store(store.path)
    assert "changed after it was written" in caplog.text
    assert damaged.n_rows == 70
    assert damaged.verify().file.tolist() == ["shard.json"]


def test_opening_what_is_not_a_store(store, tmp_path):
    with pytest.raises(ValueError, match=r"no store at .*stores beside it: a"):
        open_store(tmp_path / "aa")
    with pytest.raises(ValueError, match=r"no store\.json|folder but not a store"):
        open_store(tmp_path)
    card = store.path / "store.json"
    card.write_text("{}")
    with pytest.raises(ValueError, match="does not belong to an activation store"):
        open_store(store.path)
    card.write_text("not json")
    with pytest.raises(ValueError, match="not valid JSON"):
        open_store(store.path)


def test_a_newer_format_is_refused(store):
    card = files.read_sealed(store.path / "store.json")
    (store.path / "store.json").write_text(json.dumps(files.sealed(card | {"format": 3})))
    with pytest.raises(ValueError, match="format 3, newer than the 2"):
        open_store(store.path)


def test_too_little_room_is_refused_before_the_start(tmp_path):
    with pytest.raises(ValueError, match=r"needs about .* MB but .* free"):
        require_room(tmp_path / "not" / "yet" / "there", 1 << 60)
    require_room(tmp_path / "not" / "yet" / "there", 1)
