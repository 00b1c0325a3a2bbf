"""What a shard holds since format 2, and that stores of format 1 are still read."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from plain_store import ADDED, HEADS, SITE, add_sites, append_texts, card, commit, contents, plain_shard, plain_store
from safetensors import safe_open

from interp.store import JoinedShard, ShardData, StoreWriter, files, open_store
from interp.store.shard import Shard, find_shard, norm_column, outlier_column, write_shard


def written(folder, data) -> Shard:
    """A shard that was written and is read again."""
    shard = find_shard(write_shard(folder, data))
    assert shard is not None
    return shard


def head_stats(layers=(0, 2), rows=12, heads=3):
    generator = torch.Generator().manual_seed(5)
    kinds = [(layer, kind) for layer in layers for kind in ("entropy", "first")]
    return {f"blocks.{layer}/{kind}": torch.rand(rows, heads, generator=generator) for layer, kind in kinds}


def as_format_1(path):
    """Rewrite a store as the library wrote it before there were norms."""
    for folder in sorted((path / "shards").iterdir()):
        tokens = pq.read_table(folder / "tokens.parquet")
        tokens = tokens.drop_columns([name for name in tokens.column_names if name.startswith("norm:")])
        (folder / "tokens.parquet").unlink()
        record = files.write_durably(folder / "tokens.parquet", files.table_bytes(tokens))
        entry = files.read_sealed(folder / "shard.json")
        entry = entry | {"format": 1, "files": entry["files"] | {"tokens.parquet": record}}
        files.write_sealed(folder / "shard.json", {key: value for key, value in entry.items() if key != "rows_hash"})
    files.write_sealed(path / "store.json", files.read_sealed(path / "store.json") | {"format": 1})


# Norms --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norms_stand_beside_the_outliers(tmp_path, dtype):
    data = plain_shard(0)
    acts = {site: rows.to(dtype) for site, rows in data.acts.items()}
    shard = written(tmp_path, ShardData(0, data.examples, data.tokens, acts))
    plain = ["text", "position", "token_id", "is_bos", "is_special", "is_first", "is_outlier"]
    of_sites = [column(site) for column in (outlier_column, norm_column) for site in (HEADS, SITE)]
    assert pq.read_table(shard.folder / "tokens.parquet").column_names == plain + of_sites
    assert shard.tokens().column_names == plain
    for site, rows in acts.items():
        norms = shard.tokens([norm_column(site)]).column(0)
        assert norms.type == pa.float32()
        exact = np.linalg.norm(rows.double().numpy(), axis=1)
        np.testing.assert_array_equal(norms.to_numpy(), exact.astype(np.float32))


def test_a_column_that_is_not_there(tmp_path):
    shard = written(tmp_path, plain_shard(0))
    with pytest.raises(ValueError, match=r"no column 'logprob'; it has text, position"):
        shard.tokens(["text", "logprob"])


# Head statistics ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["local", "memory"])
def test_head_statistics_come_back(tmp_path, where):
    values = head_stats()
    place = tmp_path / "a" if where == "local" else f"memory://{tmp_path.name}/heads"
    commit(StoreWriter(place, card(shards=1, head_stats=True)), [0], head_stats=values)
    shard = find_shard(open_store(place).path / "shards" / "000000")
    assert shard is not None
    for reader in (shard, JoinedShard(shard)):
        found = reader.head_stats(2)
        assert list(found) == ["entropy", "first"]
        assert torch.equal(found["entropy"], values["blocks.2/entropy"])
        assert torch.equal(found["first"], values["blocks.2/first"])
        with pytest.raises(ValueError, match=r"no head statistics of layer 1 .* there are \[0, 2\]"):
            reader.head_stats(1)


def test_head_statistics_are_a_file_like_the_others(tmp_path):
    shard = written(tmp_path, plain_shard(0, head_stats=head_stats()))
    path = shard.folder / "head_stats.safetensors"
    with safe_open(path, "pt") as file:
        assert sorted(file.keys()) == sorted(head_stats())
    assert shard.problems() == []
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert [name for name, _ in shard.problems()] == ["head_stats.safetensors"]
    path.write_bytes(bytes(len(whole)))
    with pytest.raises(ValueError, match=r"hash differs\); store\.verify\(\) lists"):
        shard.head_stats(0)
    path.unlink()
    with pytest.raises(ValueError, match="missing"):
        shard.head_stats(0)


def test_without_head_statistics(tmp_path):
    shard = written(tmp_path, plain_shard(0))
    with pytest.raises(ValueError, match="record with head_stats=True"):
        shard.head_stats(0)


def test_what_does_not_fit_the_rows_is_refused():
    data = plain_shard(0)
    with pytest.raises(ValueError, match=r"blocks\.0/entropy has 11 rows, but there are 12 kept tokens"):
        plain_shard(0, head_stats=head_stats(rows=11))
    with pytest.raises(ValueError, match=f"{SITE} has 3 rows"):
        ShardData(0, data.examples, data.tokens, {SITE: torch.zeros(3, 6)})
    with pytest.raises(ValueError, match=r"blocks\.2/first holds NaN"):
        plain_shard(0, head_stats=head_stats() | {"blocks.2/first": torch.full((12, 3), torch.nan)})


# Tables -------------------------------------------------------------------------------------------------------------


def test_lists_and_rules_are_kept(tmp_path):
    data = plain_shard(0)
    ids = pa.array([[1, 2, 3, 4]] * 3, pa.list_(pa.int32()))
    averaged = pa.array([None, [1, 2], None] * 4, pa.list_(pa.int32()))
    tokens = data.tokens.append_column("averaged", averaged).append_column("rule:last", pa.array([True, False] * 6))
    shard = written(tmp_path, ShardData(0, data.examples.append_column("token_ids", ids), tokens, data.acts))
    assert shard.examples()["token_ids"].to_pylist() == [[1, 2, 3, 4]] * 3
    assert shard.tokens()["averaged"].to_pylist() == averaged.to_pylist()
    assert "rule:last" in shard.tokens().column_names


# Format 1 -----------------------------------------------------------------------------------------------------------


def test_a_store_of_format_1_is_read(tmp_path):
    new, old = plain_store(tmp_path / "new"), tmp_path / "old"
    plain_store(old)
    as_format_1(old)
    assert json.loads((old / "store.json").read_text())["format"] == 1
    store = open_store(old)
    assert store.verify().empty
    assert store.tokens.equals(new.tokens)
    assert store.examples.equals(new.examples)
    assert torch.equal(store.rows(SITE, slice(None)), new.rows(SITE, slice(None)))
    assert torch.equal(store.stats(SITE).all.mean, new.stats(SITE).all.mean)
    np.testing.assert_array_equal(store.typical(SITE), new.typical(SITE))
    shard = find_shard(old / "shards" / "000000")
    assert shard is not None
    with pytest.raises(ValueError, match="written in format 1, which keeps no norms"):
        shard.tokens([norm_column(SITE)])


def test_a_finished_store_of_format_1_is_gone_on_with_and_half_of_one_is_not(tmp_path):
    plain_store(tmp_path / "a")
    as_format_1(tmp_path / "a")
    before = contents(tmp_path / "a")
    commit(StoreWriter(tmp_path / "a", card(hash="seed 0")))
    assert contents(tmp_path / "a") == before
    for file in sorted((tmp_path / "a" / "shards" / "000001").iterdir()):
        file.unlink()
    with pytest.raises(ValueError, match=r"format 1 and has 1 of 2 shards.*Record at another path"):
        commit(StoreWriter(tmp_path / "a", card(hash="seed 0")))
    assert open_store(tmp_path / "a").n_rows == 12


def test_a_store_of_format_1_is_added_to(tmp_path):
    path = tmp_path / "a"
    plain_store(path)
    as_format_1(path)
    add_sites(path)
    append_texts(path, sites=(HEADS, SITE, ADDED))
    store = open_store(path)
    assert (store.sites, store.n_texts) == ([HEADS, SITE, ADDED], 12)
    assert store.rows(ADDED, slice(None)).shape == (48, 5)
    assert store.verify().empty
