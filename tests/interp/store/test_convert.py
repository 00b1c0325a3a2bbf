"""Rows as tensors, arrays, frames and Arrow tables, against the rows that were written; and DuckDB on the files."""

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from plain_store import SITE, add_sites, all_rows, append_texts, plain_store

from interp.store import convert, open_store

WANTED = [20, 3, 3, 0, 23]


@pytest.fixture
def store(tmp_path):
    return plain_store(tmp_path / "a")


@pytest.fixture
def rows():
    return all_rows(SITE, (0, 0), (1, 0))


def test_tensors_and_arrays(store, rows):
    assert store.to_torch(SITE).dtype == torch.float32
    torch.testing.assert_close(store.to_torch("resid_post:0"), rows, rtol=0, atol=0)
    torch.testing.assert_close(store.to_torch(SITE, WANTED), rows[WANTED], rtol=0, atol=0)
    array = store.to_numpy(SITE, np.arange(24) % 2 == 0)
    assert array.dtype == np.float32
    np.testing.assert_array_equal(array, rows[::2].numpy())


def test_rows_in_pieces_are_the_same(store, rows, monkeypatch):
    monkeypatch.setattr(convert, "ROWS_AT_ONCE", 3)
    torch.testing.assert_close(store.to_torch(SITE), rows, rtol=0, atol=0)
    torch.testing.assert_close(store.rows(SITE, WANTED), rows[WANTED], rtol=0, atol=0)
    typical = torch.from_numpy(store.typical(SITE)).view(6, 4, 1)
    mean = (rows.view(6, 4, 6) * typical).sum(1) / typical.sum(1)
    torch.testing.assert_close(store.pooled(SITE, "mean")[0], mean, rtol=1e-6, atol=1e-6)


def test_frames(store, rows):
    frame = store.to_pandas(SITE)
    assert frame.index.names == ["text", "position"]
    assert list(frame.columns) == list(range(6))
    np.testing.assert_array_equal(frame.loc[4].to_numpy(), rows[16:20].numpy())
    np.testing.assert_array_equal(frame.loc[(4, 2)].to_numpy(), rows[18].numpy())
    some = store.to_pandas(SITE, WANTED)
    assert some.index.tolist() == [(5, 0), (0, 3), (0, 3), (0, 0), (5, 3)]
    np.testing.assert_array_equal(some.to_numpy(), rows[WANTED].numpy())


def test_arrow_tables(store, rows):
    table = store.to_arrow(SITE, WANTED)
    assert table.schema.field("acts").type == pa.list_(pa.float32(), 6)
    assert table.column_names == [*store.tokens.columns, "acts"]
    np.testing.assert_array_equal(np.array(table["acts"].to_pylist(), dtype=np.float32), rows[WANTED].numpy())
    expected = store.tokens.iloc[WANTED].reset_index(drop=True)
    pd.testing.assert_frame_equal(table.drop_columns("acts").to_pandas(), expected)


def test_what_does_not_fit_is_refused_with_both_numbers(store, monkeypatch):
    monkeypatch.setattr(convert, "free_memory", lambda: 500)
    for call in (store.to_torch, store.to_numpy, store.to_pandas, store.to_arrow):
        with pytest.raises(
            ValueError, match=r"24 rows of .* take 5\.76e-07 GB in float32, but 5e-07 GB are free.*rows="
        ):
            call(SITE)
        call(SITE, range(20))


def test_the_free_memory_is_that_of_a_machine():
    assert 1 << 20 < convert.free_memory() < 1 << 50


def test_added_texts_and_sites_are_converted_too(tmp_path, store):
    append_texts(store.path)
    add_sites(store.path)
    add_sites(store.path, to="parts/0001", seed=1)
    joined = open_store(store.path)
    expected = all_rows("blocks.1.hook_resid_post", (0, 0), (1, 0), (0, 1), (1, 1))
    torch.testing.assert_close(joined.to_torch("resid_post:1"), expected, rtol=0, atol=0)
    assert joined.to_pandas(SITE).index.get_level_values("text").unique().tolist() == list(range(12))
    norms = np.linalg.norm(expected.double().numpy(), axis=1).astype(np.float32)
    np.testing.assert_array_equal(joined.norms("resid_post:1"), norms)


def test_duckdb_reads_the_files_as_they_lie(store):
    shards = store.path / "shards" / "*"
    found = duckdb.sql(f"""
        SELECT e.text AS text, t.is_first AS is_first, count(*) AS n, sum(t.token_id) AS ids
        FROM '{shards}/tokens.parquet' t JOIN '{shards}/examples.parquet' e ON t.text = e.text_index
        GROUP BY ALL ORDER BY ALL
    """).df()
    frame = store.tokens.assign(text=store.examples.text.loc[store.tokens.text].to_numpy())
    expected = frame.groupby(["text", "is_first"]).agg(n=("token_id", "size"), ids=("token_id", "sum")).reset_index()
    pd.testing.assert_frame_equal(found, expected, check_dtype=False)
