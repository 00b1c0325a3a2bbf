"""Texts of several recordings in one store: their columns, the numbers of their documents, and what is said of them."""

import logging

import numpy as np
import pyarrow as pa
import pytest
from plain_store import ADDED, HEADS, SITE, add_sites, append_texts, card, commit, contents, plain_shard, plain_store

from interp.store import ShardData, StoreWriter, merge_stores, open_store
from interp.store.fitting import joint_columns
from interp.store.parts import part_writer


def shard_with(seed=0, **columns):
    """A shard of three texts with further columns."""
    data = plain_shard(0, seed=seed)
    examples = data.examples
    for name, values in columns.items():
        examples = examples.append_column(name, values if isinstance(values, pa.Array) else pa.array(values))
    return ShardData(0, examples, data.tokens, data.acts)


def store_with(path, seed=0, texts=None, long="error", **columns):
    """A store of one such shard."""
    said = card(shards=1, hash=f"seed {seed}", long=long)
    with StoreWriter(path, said | {"texts": said["texts"] | (texts or {})}) as writer:
        writer.commit(shard_with(seed, **columns))
    return open_store(path)


def append_with(path, seed=1, texts=None, long="error", **columns):
    """Append one such shard."""
    data, said = shard_with(seed, **columns), card(shards=1, hash=f"seed {seed}", long=long)
    said = said | {"texts": said["texts"] | (texts or {})}
    with part_writer(path, said, adds="texts", columns=data.examples.schema) as writer:
        writer.commit(data)


# Columns ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", [["a", "b", "c"], [[1], [2], [3]], [{"x": 1}, {"x": 2}, {"x": 3}]])
def test_a_column_of_another_type_is_refused_before_anything_is_written(tmp_path, other):
    path = tmp_path / "a"
    store_with(path, k=[1, 2, 3])
    before = contents(path)
    with pytest.raises(ValueError, match=rf"column 'k' holds int64 in {path} but .* in the new texts: give its values"):
        append_with(path, k=other)
    assert not (path / "parts").exists()
    store_with(tmp_path / "b", seed=1, k=other)
    with pytest.raises(ValueError, match=rf"column 'k' holds int64 in {path} but .* in {tmp_path / 'b'}"):
        merge_stores([path, tmp_path / "b"], tmp_path / "c")
    assert not (tmp_path / "c").exists()
    assert contents(path) == before


def test_types_that_go_together(tmp_path):
    """Whole numbers become fractions, and what was always missing becomes anything, in either order."""
    columns = [
        {"k": [1, 2, 3], "v": pa.nulls(3)},
        {"k": [0.5, 1.5, 2.5], "v": ["x", "y", "z"]},
        {"k": pa.nulls(3), "w": [True, False, True]},
    ]
    for order in ([0, 1, 2], [2, 1, 0]):
        path = tmp_path / str(order[0])
        store_with(path, **columns[order[0]])
        for seed, number in enumerate(order[1:], 1):
            append_with(path, seed, **columns[number])
        frame = open_store(path).examples
        assert frame.k.dropna().tolist() == [value for n in order[:3] if n < 2 for value in columns[n]["k"]]
        assert frame.v.dropna().tolist() == ["x", "y", "z"]
        assert frame.w.dropna().tolist() == [True, False, True]
        assert open_store(path).verify().empty


def test_columns_are_compared_with_those_of_every_part(tmp_path):
    store_with(tmp_path / "a")
    append_with(tmp_path / "a", 1, k=["x", "y", "z"])
    with pytest.raises(ValueError, match=r"column 'k' holds string in .*/parts/0001 but double in the new texts"):
        append_with(tmp_path / "a", 2, k=[0.5, 1.0, 1.5])
    assert open_store(tmp_path / "a").card["parts"] == ["parts/0001"]


def test_joint_columns():
    both = joint_columns(
        [("a", pa.schema([("k", pa.int64()), ("a", pa.bool_())])), ("b", pa.schema([("k", pa.float64())]))]
    )
    assert both == pa.schema([("k", pa.float64()), ("a", pa.bool_())])


# Documents ----------------------------------------------------------------------------------------------------------


def test_documents_are_numbered_on(tmp_path):
    """As texts are: pieces of two inputs would else pass for pieces of one."""
    for name, seed in (("a", 0), ("b", 2)):
        store_with(tmp_path / name, seed, {"documents": 2}, "chunk", document=[0, 0, 1])
    append_with(tmp_path / "a", 1, {"documents": 3}, "chunk", document=[0, 1, 2])
    assert open_store(tmp_path / "a").examples.document.tolist() == [0, 0, 1, 2, 3, 4]
    merged = merge_stores([tmp_path / "a", tmp_path / "b"], tmp_path / "c")
    assert merged.examples.document.tolist() == [0, 0, 1, 2, 3, 4, 5, 5, 6]
    assert merged.card["texts"]["documents"] == 7
    with part_writer(tmp_path / "a", card(shards=1, hash="seed 0", sites=(ADDED,)), adds="sites") as writer:
        writer.commit(plain_shard(0, sites=(ADDED,)))
    with part_writer(
        tmp_path / "a", card(shards=1, hash="seed 1", sites=(ADDED,)), adds="sites", to="parts/0001"
    ) as writer:
        writer.commit(plain_shard(0, sites=(ADDED,), seed=1))
    grown = open_store(tmp_path / "a")
    assert grown.sites == [HEADS, SITE, ADDED]
    assert grown.examples.document.tolist() == [0, 0, 1, 2, 3, 4]


def test_where_a_card_does_not_count_documents_none_is_used_twice(tmp_path):
    store_with(tmp_path / "a", long="chunk", document=[0, 1, 1])
    append_with(tmp_path / "a", long="chunk", document=[0, 1, 1])
    assert open_store(tmp_path / "a").examples.document.tolist() == [0, 1, 1, 3, 4, 4]


def test_a_callers_own_documents_are_left_alone(tmp_path):
    """Where no text was cut to pieces, the names of pieces are free."""
    store_with(tmp_path / "a", document=["x", "y", "z"])
    append_with(tmp_path / "a", document=["x", "y", "z"])
    assert open_store(tmp_path / "a").examples.document.tolist() == ["x", "y", "z"] * 2


def test_whole_texts_beside_pieces_are_documents_of_one_piece(tmp_path):
    none_long = {"documents": 3, "over_max_length": 0}
    store_with(tmp_path / "whole", 0, none_long)
    store_with(tmp_path / "pieces", 1, none_long, long="chunk", document=[0, 1, 2], chunk=[0, 0, 0], start=[0, 0, 0])
    for order, names in ((["whole", "pieces"], "ab"), (["pieces", "whole"], "cd")):
        merged = merge_stores([tmp_path / name for name in order], tmp_path / names)
        assert merged.examples.document.tolist() == [0, 1, 2, 3, 4, 5]
        assert merged.examples.chunk.tolist() == merged.examples.start.tolist() == [0] * 6
    store_with(tmp_path / "own", 2, none_long, document=[7, 7, 8])
    with pytest.raises(ValueError, match=r"own has a column 'document' of its own.*long='chunk'.*rename it"):
        merge_stores([tmp_path / "pieces", tmp_path / "own"], tmp_path / "e")


# What was done with long texts --------------------------------------------------------------------------------------


def test_long_counts_where_a_text_is_long(tmp_path):
    """Labelled texts are recorded with long="error", others with "chunk": the same where none is long."""

    def stored(name, long, over):
        said = card(hash=name, long=long)
        commit(StoreWriter(tmp_path / name, said | {"texts": said["texts"] | {"over_max_length": over}}))
        return tmp_path / name

    a, b, c = stored("a", "error", 0), stored("b", "chunk", 0), stored("c", "chunk", 2)
    assert merge_stores([a, b], tmp_path / "ab").n_texts == 12
    for pair in ([a, c], [c, a]):
        with pytest.raises(ValueError, match=r"long \((error|chunk) there, (error|chunk) now\)"):
            merge_stores(pair, tmp_path / "no")


# What is said -------------------------------------------------------------------------------------------------------


def test_what_was_appended_before_is_said(tmp_path, caplog):
    plain_store(tmp_path / "a")
    append_texts(tmp_path / "a", seed=1)
    append_texts(tmp_path / "a", [0], seed=2)
    assert "appended before" not in caplog.text
    append_texts(tmp_path / "a", seed=2)  # the rest of them
    assert "appended before" not in caplog.text
    before = contents(tmp_path / "a")
    with caplog.at_level(logging.WARNING):
        append_texts(tmp_path / "a", seed=1)
    assert "these texts were appended before, as parts/0001, so nothing is appended" in caplog.text
    assert contents(tmp_path / "a") == before


def test_a_handle_that_is_older_than_its_store(tmp_path):
    path = tmp_path / "a"
    plain_store(path)
    add_sites(path)
    with pytest.raises(
        ValueError, match=rf"has grown since it was opened, by {ADDED}: use the store that add_sites ret"
    ):
        append_texts(path, sites=(HEADS, SITE))
    append_texts(path, sites=(HEADS, SITE, ADDED))
    assert open_store(path).n_texts == 12


# Typical rows -------------------------------------------------------------------------------------------------------


def test_averages_beside_single_tokens_are_not_typical(tmp_path):
    """They would count their tokens twice; in a shard that has nothing else, they are its rows."""

    def stats(name, averaged):
        data = plain_shard(0)
        position = np.where(averaged, -1, data.tokens["position"].to_numpy()).astype(np.int32)
        first = data.tokens["is_first"].to_numpy() & ~averaged
        tokens = data.tokens.set_column(1, "position", [position]).set_column(5, "is_first", [first])
        with StoreWriter(tmp_path / name, card(shards=1)) as writer:
            writer.commit(ShardData(0, data.examples, tokens, data.acts))
        return open_store(tmp_path / name).stats(SITE), data.acts[SITE].double()

    last = np.arange(12) % 4 == 3
    found, rows = stats("both", last)
    chosen = rows[np.isin(np.arange(12) % 4, [1, 2])]
    assert (found.all.count, found.typical.count) == (12, 6)
    np.testing.assert_allclose(found.typical.mean, chosen.mean(0))
    assert stats("averages", np.ones(12, dtype=bool))[0].typical.count == 12
