"""Damaged stores and halves of copies: a clear error or a clean continuation.

Reading says which file is wrong and how to mend it, verify() lists it, the other shards stay readable, and recording again
gives the bytes of an undisturbed recording.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from crash import call, check_rest, file_bytes, goes_on, record_texts, start

from interp.store import SiteStats, Store, open_store

N_TEXTS = 24
SITE, DAMAGED = "blocks.1.hook_resid_post", 2


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


# Damage -------------------------------------------------------------------------------------------------------------


def reader_of(store: Store, name: str) -> Callable[[], Any]:
    """What reads a file of a shard."""
    readers: dict[str, Callable[[], Any]] = {
        "examples.parquet": lambda: store.examples,
        "tokens.parquet": lambda: store.tokens,
        "stats.safetensors": lambda: store.stats(SITE),
        "head_stats.safetensors": lambda: store.head_stats(1),
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
    assert len(found) == 8
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
