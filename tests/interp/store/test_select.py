"""Views of a store, against pandas; what a query may not say; pooling by recorded rules."""

import gc
import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from plain_store import HEADS, SITE, append_texts, card, plain_shard, plain_store

from interp.store import Moments, ShardData, StoreWriter, open_store, temporary_store
from interp.store.query import query_columns

LABELS = [1, 0, None, 1, 0, 1]
SPLITS = ["train", "test", "train", None, "it's `odd`", "train"]


def labelled_shard(index):
    """Three texts of four tokens with labels, splits, a signal, head statistics, and a column that tokens have too."""
    plain = plain_shard(index)
    mine = slice(3 * index, 3 * index + 3)
    ids = [list(range(100 * text, 100 * text + 5 + text)) for text in range(3 * index, 3 * index + 3)]
    examples = plain.examples
    for name, column in (
        ("label", pa.array(LABELS[mine], pa.int64())),
        ("split", pa.array(SPLITS[mine], pa.string())),
        ("position", pa.array([10, 20, 30])),
        ("my column", pa.array([1.5, 2.5, 3.5])),
        ("token_ids", pa.array(ids, pa.list_(pa.int32()))),
    ):
        examples = examples.append_column(name, column)
    tokens = plain.tokens.append_column("entropy", pa.array(np.linspace(index, index + 1, 12, dtype=np.float32)))
    heads = {f"blocks.2/{kind}": torch.rand(12, 3) for kind in ("entropy", "first")}
    plain.acts[SITE][5] *= 300
    return ShardData(index, examples, tokens, plain.acts, heads)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("labelled") / "a"
    with StoreWriter(path, card()) as writer:
        for index in range(2):
            writer.commit(labelled_shard(index))
    return open_store(path)


@pytest.fixture(scope="module")
def merged(store):
    """Tokens beside their examples: what a query is answered from, made by pandas."""
    examples = store.examples.rename(columns={"text": "string", "position": "example_position"})
    return store.tokens.join(examples, on="text")


def expected(merged, mask):
    return np.flatnonzero(mask(merged).fillna(False).to_numpy(dtype=bool))


# Queries ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "mask"),
    [
        ("label == 1", lambda m: m.label == 1),
        ("label == 1 and position > 1", lambda m: (m.label == 1) & (m.position > 1)),
        (
            "label == 1 & position > 1 | is_first",
            lambda m: ((m.label == 1).fillna(False) & (m.position > 1)) | m.is_first,
        ),
        ("not is_first and 0.2 < entropy <= 1.4", lambda m: ~m.is_first & (m.entropy > 0.2) & (m.entropy <= 1.4)),
        ("text in [0, 4]", lambda m: m.text.isin([0, 4])),
        ("text == 3 or text == 1", lambda m: m.text.isin([1, 3])),
        ("text > 1 and label.isna()", lambda m: (m.text > 1) & m.label.isna()),
        ("split == 'train'", lambda m: m.split == "train"),
        ("split in ['train', 'test']", lambda m: m.split.isin(["train", "test"])),
        ('split == "it\'s `odd`"', lambda m: m.split == "it's `odd`"),
        ("split.isna()", lambda m: m.split.isna()),
        ("label.notna() and split.isin(['train'])", lambda m: m.label.notna() & (m.split == "train")),
        ("string.str.contains('text [12]')", lambda m: m.string.str.contains("text [12]")),
        ("string.str.upper().str.startswith('TEXT 2')", lambda m: m.string.str.startswith("text 2")),
        ("split.str.contains('t')", lambda m: m.split.isin(["train", "test", "it's `odd`"])),
        ("example_position == 20", lambda m: m.example_position == 20),
        ("position + 1 == 2 and `my column` * 2 > 4", lambda m: (m.position == 1) & (m["my column"] > 2)),
        ("`label` == 0\n  and `position` == 0", lambda m: (m.label == 0) & (m.position == 0)),
        ("entropy.between(0.5, 1.0)", lambda m: m.entropy.between(0.5, 1.0)),
        ("token_id % 3 == 0 and -position < -2", lambda m: (m.token_id % 3 == 0) & (m.position > 2)),
    ],
)
def test_queries_are_those_of_pandas(store, merged, query, mask):
    rows = expected(merged, mask)
    view = store.select(query)
    assert 0 < len(rows) < store.n_rows
    torch.testing.assert_close(view.rows(SITE, None), store.rows(SITE, rows), rtol=0, atol=0)
    pd.testing.assert_frame_equal(view.tokens, store.tokens.iloc[rows].reset_index(drop=True))
    pd.testing.assert_frame_equal(view.examples, store.examples.loc[sorted(set(merged.text[rows]))])


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("label == @secret", "cannot be parsed"),
        ("label @ label", "MatMult is not allowed"),
        ("__import__('os').system('true')", r"is not one of the methods"),
        ("string.__class__ == 1", "__class__ is not one of the methods"),
        ("string.str.__class__ == 1", "not one of the methods"),
        ("string.str._parent == 1", "not one of the methods"),
        ("string.str._validate(1) == 1", "not one of the methods"),
        ("label.apply(print)", r"label\.apply\(\) is not one"),
        ("label.sum() > 0", r"label\.sum\(\) is not one"),
        ("label.values == 1", r"label\.values is not one"),
        ("sin(label) > 0", r"sin\(\) is not one"),
        ("(lambda: 1)()", "not one of the methods"),
        ("[x for x in label]", "ListComp is not allowed"),
        ("label[0] == 1", "Subscript is not allowed"),
        ("string == f'{label}'", "JoinedStr is not allowed"),
        ("label if label else text", "IfExp is not allowed"),
        ("2 ** 9 > label", "Pow is not allowed"),
        ("label = 1", "cannot be parsed"),
        ("label ==", "cannot be parsed"),
        ("(" * 500 + "label", "cannot be parsed"),
        ("1 == 1", "it names no column"),
        ("label + 1", "not true or false"),
        ("label == 'x' + 1", "cannot be answered"),
        ("label.str.lower() == 'a'", "cannot be answered .*label is Int64"),
        ("string.str.contains('(')", "cannot be answered"),
        ("string.str.extract('(text)')", "its answer is a DataFrame, not one for each row"),
        ("string.str.split(' ')", "its answer is a value, not true or false"),
        ("label + 1 == 'a' * position", "cannot be answered"),
        ("lable == 1", "no column 'lable' .*there is text, position"),
        ("`is_outlier:x` == 1", "no column 'is_outlier:x'"),
        ("os == 1", "no column 'os'"),
        ("", "a query is a condition"),
        (3, "a query is a condition"),
    ],
)
def test_what_is_no_condition_is_refused(store, query, message):
    with pytest.raises(ValueError, match=message):
        store.select(query)


def test_names_that_tokens_and_examples_share():
    assert query_columns(["text", "position", "entropy"], ["text", "position", "string", "label"]) == {
        "text": ("tokens", "text"),
        "position": ("tokens", "position"),
        "entropy": ("tokens", "entropy"),
        "string": ("examples", "text"),
        "example_position": ("examples", "position"),
        "example_string": ("examples", "string"),
        "label": ("examples", "label"),
    }


def test_a_query_that_leaves_nothing_says_what_there_is(store):
    with pytest.raises(
        ValueError, match=r"label goes from 0 to 1, 1 of 6 missing; split holds 'train', 'test', \"it's"
    ):
        store.select("label == 2 and split == 'dev'")
    with pytest.raises(ValueError, match="is_special is true in 0 of 24"):
        store.select("is_special")
    with pytest.raises(ValueError, match="no row is left of 24: texts= has 4 rows; 'text == 0' holds for 4 rows"):
        store.select("text == 0", texts=[1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "something to select by"),
        ({"texts": [6]}, "no text 6: texts go from 0 to 5"),
        ({"texts": "all"}, "numbers of texts"),
        ({"texts": [0.5]}, "numbers of texts"),
        ({"rows": [24]}, "rows go from 0 to 23, asked for 24 to 24"),
        ({"rows": [3, -1]}, "rows go from 0 to 23 and are not counted from the end, got -1: the last is 23"),
        ({"rows": []}, "no row is left of 24: rows= names 0 rows"),
    ],
)
def test_other_choices_are_checked(store, options, message):
    with pytest.raises(ValueError, match=message):
        store.select(**options)


def test_long_ids_keep_all_digits_where_some_are_missing(tmp_path):
    ids = [1234567890123456788, None, 1234567890123456789]
    plain = plain_shard(0)
    examples = plain.examples.append_column("id", pa.array(ids, pa.int64()))
    examples = examples.append_column("small", pa.array([None, None, 3], pa.uint8()))
    with StoreWriter(tmp_path / "a", card(shards=1)) as writer:
        writer.commit(ShardData(0, examples, plain.tokens, plain.acts))
    store = open_store(tmp_path / "a")
    assert (store.examples["id"].dtype, store.examples["small"].dtype) == ("Int64", "UInt8")
    assert store.examples["id"].dropna().tolist() == [ids[0], ids[2]]
    for query, texts in (
        ("id == 1234567890123456788", [0]),
        ("id in [1234567890123456789]", [2]),
        ("id != 1234567890123456788", [2]),
        ("not id == 1234567890123456788", [2]),
        ("id.isna() or position == 3 and id > 1234567890123456788", [1, 2]),
    ):
        assert store.select(query).examples.index.tolist() == texts


# Views --------------------------------------------------------------------------------------------------------------


def test_a_view_reads_as_the_store_does(store):
    rows = np.array([4, 5, 7, 9, 20, 21, 23])
    view = store.select(rows=[23, 5, 4, 7, 9, 20, 21])
    assert (view.n_rows, view.n_texts, view.is_view, store.is_view) == (7, 3, True, False)
    assert "3 texts, 7 rows chosen from 24" in repr(view)
    assert view.examples.index.tolist() == [1, 2, 5]
    torch.testing.assert_close(view.rows(SITE, [6, 0, 0]), store.rows(SITE, [23, 4, 4]), rtol=0, atol=0)
    torch.testing.assert_close(view.activations(text=1)[SITE], store.rows(SITE, [4, 5, 7]), rtol=0, atol=0)
    np.testing.assert_array_equal(view.typical(SITE), store.typical(SITE)[rows])
    np.testing.assert_array_equal(view.norms(SITE), store.norms(SITE)[rows])
    for kind, values in view.head_stats(2).items():
        torch.testing.assert_close(values, store.head_stats(2)[kind][rows], rtol=0, atol=0)
    last, frame = view.pooled(SITE, "last")
    torch.testing.assert_close(last, store.rows(SITE, [7, 9, 23]), rtol=0, atol=0)
    assert frame.index.tolist() == [1, 2, 5]
    assert view.to_pandas(SITE).index.tolist() == [(1, 0), (1, 1), (1, 3), (2, 1), (5, 0), (5, 1), (5, 3)]
    assert view.to_arrow(SITE)["text"].to_pylist() == [1, 1, 1, 2, 5, 5, 5]
    found = torch.cat(list(view.batches(SITE, size=3, typical=False)))
    assert sorted(map(tuple, found.tolist())) == sorted(map(tuple, store.rows(SITE, rows).tolist()))
    assert view.token_ids(5).tolist() == store.token_ids(5).tolist() == list(range(500, 510))
    for call in (view.token_ids, view.activations):
        with pytest.raises(ValueError, match="no text 0: the store has 3"):
            call(0)
    assert view.verify().empty
    assert "token_ids" not in view.examples


def test_views_of_views(store):
    outer = store.select("label == 1")
    inner = outer.select("position > 1")
    assert inner.tokens.equals(store.select("label == 1 and position > 1").tokens)
    counted_inside = outer.select(rows=[0, 5])
    torch.testing.assert_close(counted_inside.rows(SITE, None), outer.rows(SITE, [0, 5]), rtol=0, atol=0)
    assert inner.select(texts=[3]).tokens.text.unique().tolist() == [3]
    with pytest.raises(ValueError, match="there is no text 1"):
        inner.select(texts=[1])
    with pytest.raises(ValueError, match="rows go from 0 to 5"):
        inner.select(rows=[6])


def test_statistics_of_a_view(store):
    view = store.select("text != 4 and position < 3")
    rows, typical = view.rows(SITE, None), view.typical(SITE)
    assert 0 < typical.sum() < len(typical)
    stats = view.stats(SITE)
    for moments, chosen in ((stats.all, rows), (stats.typical, rows[torch.from_numpy(typical)])):
        assert moments.count == len(chosen)
        torch.testing.assert_close(moments.mean, chosen.double().mean(0), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(moments.M2, Moments.of(chosen).M2, rtol=1e-9, atol=1e-9)
    assert stats.outlier_norms == store.stats(SITE).outlier_norms
    assert view.to_frame()["rows"].tolist() == [15, 15]
    everything = store.select(rows=slice(None)).stats(SITE)
    torch.testing.assert_close(everything.typical.M2, store.stats(SITE).typical.M2, rtol=1e-9, atol=1e-9)
    assert everything.typical_norm == store.stats(SITE).typical_norm


def test_a_view_keeps_its_store(tmp_path):
    store = temporary_store(lambda folder: plain_store(folder), 1 << 16)
    view, folder = store.select(texts=[1, 4]), store.path
    expected = store.rows(SITE, [4, 5, 6, 7, 16, 17, 18, 19])
    del store
    gc.collect()
    torch.testing.assert_close(view.rows(SITE, None), expected, rtol=0, atol=0)
    del view
    gc.collect()
    assert not folder.exists()


def test_appended_texts_have_their_own_numbers(tmp_path):
    plain_store(tmp_path / "a")
    append_texts(tmp_path / "a")
    store = open_store(tmp_path / "a")
    view = store.select("text == 7 or string == 'text 5 of 0'")
    assert view.examples.text.to_dict() == {5: "text 5 of 0", 7: "text 1 of 1"}
    torch.testing.assert_close(view.activations(7)[SITE], store.rows(SITE, range(28, 32)), rtol=0, atol=0)


@pytest.mark.parametrize("text", ["0", None, 1.5, 1.0, True, [1]])
def test_a_text_is_named_by_a_whole_number(store, text):
    for call in (store.activations, store.token_ids):
        with pytest.raises(ValueError, match="text must be a whole number, got"):
            call(text)
    assert store.token_ids(np.int64(1)).tolist() == store.token_ids(1).tolist()
    assert store.activations(np.int32(1))[SITE].shape == (4, 6)


def test_a_store_without_a_shard_says_so_whatever_is_asked_for(tmp_path):
    with StoreWriter(tmp_path / "a", card()):
        pass
    empty = open_store(tmp_path / "a")
    assert (empty.n_rows, empty.n_texts, empty.summary()["finished"]) == (0, 0, False)
    for call in (
        lambda: empty.rows(SITE, [0]),
        lambda: empty.to_numpy(SITE),
        lambda: empty.to_pandas(SITE),
        lambda: empty.to_arrow(SITE),
        lambda: empty.activations(0),
        lambda: empty.token_ids(0),
        lambda: empty.pooled(SITE),
        lambda: empty.batches(SITE, typical=False),
        lambda: empty.select(rows=[0]),
        lambda: empty.select(texts=[0]),
        lambda: empty.examples,
        lambda: empty.tokens,
        lambda: empty.stats(SITE),
    ):
        with pytest.raises(ValueError, match="has no finished shard yet: record again to go on with it"):
            call()


def test_a_summary_is_ready_for_json(store):
    assert json.loads(json.dumps(store.summary())) == {
        "path": str(store.path),
        "model": "plain",
        "model_fingerprint": "f00",
        "texts": 6,
        "rows": 24,
        "tokens": "all",
        "dtype": "float32",
        "finished": True,
        "view": False,
        "sites": {HEADS: [2, 4], SITE: [6]},
    }
    view = store.select(texts=[1]).summary()
    assert (view["texts"], view["rows"], view["view"]) == (1, 4, True)


def test_what_was_not_recorded_is_named(tmp_path, store):
    plain = plain_store(tmp_path / "a")
    with pytest.raises(ValueError, match="head_stats=True"):
        plain.head_stats(2)
    with pytest.raises(ValueError, match="layer 7"):
        store.head_stats(7)
    with pytest.raises(ValueError, match=r"does not hold the tokens of its texts.*record again"):
        plain.token_ids(0)


# Pooling by rule ----------------------------------------------------------------------------------------------------


def ruled_store(path, tokens, positions, rules=None, n_texts=3):
    """A store of texts with one row for each position (-1 is an average); rules: name -> flags of those rows."""
    n, length = n_texts * len(positions), len(positions)
    position = np.tile(np.array(positions, dtype=np.int32), n_texts)
    columns = {
        "text": np.repeat(np.arange(n_texts), length),
        "position": position,
        "token_id": np.where(position < 0, -1, 7).astype(np.int32),
        "is_bos": np.zeros(n, dtype=bool),
        "is_special": np.zeros(n, dtype=bool),
        "is_first": position == 0,
        **{f"rule:{name}": np.tile(np.array(flags, dtype=bool), n_texts) for name, flags in (rules or {}).items()},
    }
    examples = pa.table({"text_index": np.arange(n_texts), "text": [f"text {i}" for i in range(n_texts)]})
    acts = torch.randn(n, 6, generator=torch.Generator().manual_seed(0))
    with StoreWriter(path, card(shards=1, sites=(SITE,), tokens=tokens)) as writer:
        writer.commit(ShardData(0, examples, pa.table(columns), {SITE: acts}))
    return open_store(path), acts.view(n_texts, length, 6)


def test_one_row_a_text_has_every_fitting_name(tmp_path):
    store, rows = ruled_store(tmp_path / "a", "mean:answer", [-1])
    for tokens in ("mean", "mean:answer"):
        torch.testing.assert_close(store.pooled(SITE, tokens)[0], rows[:, 0], rtol=0, atol=0)
    with pytest.raises(ValueError, match=r"'last' cannot be read.*'mean:answer', 'mean'; record with tokens='all'"):
        store.pooled(SITE, "last")


def test_a_span_has_the_picks(tmp_path):
    store, rows = ruled_store(tmp_path / "a", "answer", [3, 4, 6])
    for tokens, pooled in (("last", rows[:, -1]), ("first:answer", rows[:, 0]), ("mean", rows.mean(1))):
        torch.testing.assert_close(store.pooled(SITE, tokens)[0], pooled, rtol=1e-6, atol=1e-6)
    with pytest.raises(ValueError, match="kept 3 tokens of text 0, one is needed: say 'last:answer'"):
        store.pooled(SITE, "answer")


def test_several_rules(tmp_path):
    flags = {"all": [1, 1, 1, 0], "answer": [0, 1, 1, 0], "mean": [0, 0, 0, 1]}
    store, rows = ruled_store(tmp_path / "a", list(flags), [0, 1, 2, -1], flags)
    for tokens, pooled in (
        ("last", rows[:, 2]),
        ("first", rows[:, 0]),
        ("first:answer", rows[:, 1]),
        ("mean:answer", rows[:, 1:3].mean(1)),
        ("mean", rows[:, 3]),
        ("mean:text", rows[:, 3]),
        ("mean:all", rows[:, 1:3].mean(1)),
    ):
        torch.testing.assert_close(store.pooled(SITE, tokens)[0], pooled, rtol=1e-6, atol=1e-6)
    for tokens in (None, 5, ["last"], b"last"):
        with pytest.raises(ValueError, match=r"cannot be read from a store that kept tokens=.*it has 'answer'"):
            store.pooled(SITE, tokens)
    view = store.select("`rule:answer` and position == 1")
    torch.testing.assert_close(view.pooled(SITE, "last:answer")[0], rows[:, 1], rtol=0, atol=0)
    with pytest.raises(ValueError, match="text 0 has no row of tokens='mean'"):
        view.pooled(SITE, "mean")
    with pytest.raises(ValueError, match="'max' cannot be read"):
        store.pooled(SITE, "max")


def test_an_average_is_no_typical_row_beside_single_tokens(tmp_path):
    flags = {"all": [1, 1, 0], "mean": [0, 0, 1]}
    both, _ = ruled_store(tmp_path / "a", list(flags), [0, 1, -1], flags)
    assert both.typical(SITE).tolist() == [False, True, False] * 3
    assert both.batches(SITE).n_rows == 3
    view = both.select("position < 0", texts=[1, 2])
    assert view.typical(SITE).tolist() == [False, False]
    alone, _ = ruled_store(tmp_path / "b", "mean:answer", [-1])
    two_kinds = {"mean": [1, 0], "mean:answer": [0, 1]}
    averages, _ = ruled_store(tmp_path / "c", list(two_kinds), [-1, -1], two_kinds)
    for store in (alone, averages):
        assert store.typical(SITE).all()
        assert store.batches(SITE).n_rows == store.n_rows


def test_a_column_of_lists_is_no_condition(tmp_path):
    plain = plain_shard(0)
    averaged = pa.array([[0, 1]] * 6 + [None] * 6, pa.list_(pa.int32()))
    with StoreWriter(tmp_path / "a", card(shards=1)) as writer:
        tokens = plain.tokens.append_column("averaged", averaged)
        writer.commit(ShardData(0, plain.examples, tokens, plain.acts))
    store = open_store(tmp_path / "a")
    assert store.select("averaged.notna()").n_rows == 6
    for query in ("averaged == 1", "averaged < 3", "averaged > position"):
        with pytest.raises(ValueError, match="averaged holds lists") as error:
            store.select(query)
        assert "\n" not in str(error.value)
        assert "truth value" not in str(error.value)


def test_without_all_tokens_a_pick_needs_its_rule(tmp_path):
    flags = {"answer": [1, 1, 0], "first": [1, 0, 0], "mean:answer": [0, 0, 1]}
    store, rows = ruled_store(tmp_path / "a", list(flags), [0, 1, -1], flags)
    torch.testing.assert_close(store.pooled(SITE, "first")[0], rows[:, 0], rtol=0, atol=0)
    torch.testing.assert_close(store.pooled(SITE, "mean:answer")[0], rows[:, 2], rtol=0, atol=0)
    with pytest.raises(ValueError, match=r"'last' cannot be read.*'last:answer'"):
        store.pooled(SITE, "last")


def test_a_text_without_rows_is_not_pooled(tmp_path):
    text = np.array([0, 0, 2, 2])
    columns = {
        "text": text,
        "position": np.array([0, 1, 0, 1], dtype=np.int32),
        "token_id": np.zeros(4, dtype=np.int32),
    }
    columns |= {name: np.zeros(4, dtype=bool) for name in ("is_bos", "is_special", "is_first")}
    examples = pa.table({"text_index": np.arange(3), "text": ["a", "b", "c"]})
    with StoreWriter(tmp_path / "a", card(shards=1, sites=(SITE,), tokens="answer")) as writer:
        writer.commit(ShardData(0, examples, pa.table(columns), {SITE: torch.randn(4, 6)}))
    store = open_store(tmp_path / "a")
    pooled, frame = store.pooled(SITE)
    torch.testing.assert_close(pooled, store.rows(SITE, [1, 3]), rtol=0, atol=0)
    assert frame.text.tolist() == ["a", "c"]
    assert store.activations(text=1)[SITE].shape == (0, 6)
    assert (store.n_texts, store.select(texts=[0, 1]).n_texts) == (3, 1)
