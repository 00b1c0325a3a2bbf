"""Memory: ten times the text needs no more of it to record, and a store of 3 GB is read with less than 512 MB.

Each figure is taken in a child of its own, which samples the memory that belongs to it alone while it works.
"""

import json
import random
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from crash import call, small_shards
from tiny import tiny_model

from interp.recording import record
from interp.store import ShardData, StoreWriter, files, open_store


class Peak:
    """The most memory that a process has had over what it had at the beginning, in MB."""

    def __init__(self, field: str) -> None:
        self._field, self._stop = field, threading.Event()
        self._begin = self._most = self._now()
        self._thread = threading.Thread(target=self._sample)

    def __enter__(self) -> "Peak":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def mb(self) -> float:
        """The peak so far."""
        return (self._most - self._begin) / 1024

    def _sample(self) -> None:
        while not self._stop.wait(0.005):
            self._most = max(self._most, self._now())

    def _now(self) -> int:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{self._field}:"):
                return int(line.split()[1])
        raise AssertionError(f"the kernel does not tell {self._field}")


# Recording ----------------------------------------------------------------------------------------------------------


def write_jsonl(path: Path, megabytes: int) -> None:
    """Rows of about 1,000 characters that nothing can compress."""
    chance = random.Random(0)
    with path.open("w") as file:
        for number in range(megabytes * 1000):
            row = {"text": f"{number} {chance.randbytes(100).hex()}", "note": chance.randbytes(400).hex()}
            file.write(json.dumps(row) + "\n")


def peaks_of_recording(folder: Path) -> list[float]:
    """MB of a recording of 3 MB, twice, and of one of 30 MB."""
    small_shards(2000, 200_000)
    model = tiny_model(n_ctx=256)
    peaks = []
    for name in ("small", "small", "large"):
        with Peak("RssAnon") as peak:
            store = record(
                model,
                folder / f"{name}.jsonl",
                sites="embed",
                tokens="last",
                path=folder / f"store {len(peaks)}",
                progress=False,
            )
        peaks.append(peak.mb)
    return [*peaks, store.n_texts]


@pytest.mark.slow
def test_ten_times_the_text_needs_no_more_memory(tmp_path):
    write_jsonl(tmp_path / "small.jsonl", 3)
    write_jsonl(tmp_path / "large.jsonl", 30)
    warm, small, large, n_texts = call(peaks_of_recording, tmp_path)
    assert n_texts == 30_000
    # All texts in memory would be 30 MB, and their tokens as much again.
    assert large < small + 25, f"{warm=:.0f}, {small=:.0f}, {large=:.0f} MB"


# Reading ------------------------------------------------------------------------------------------------------------

SITE, D, LENGTH, TEXTS_IN_SHARD = "blocks.0.hook_resid_post", 1024, 256, 64
SHARD_ROWS = LENGTH * TEXTS_IN_SHARD
SHARDS = 1 + (3 << 30) // (SHARD_ROWS * D * 2)
CARD = {
    "model": {"name": "plain", "fingerprint": "f00", "dtype": "bfloat16", "edited_at": []},
    "tokenizer": {"name": "none", "hash": "a11"},
    "sites": [{"name": SITE, "shape": [D]}],
    "dtype": "bfloat16",
    "tokens": "all",
    "bos": False,
    "long": "error",
    "max_length": LENGTH,
    "signals": False,
    "texts": {"count": SHARDS * TEXTS_IN_SHARD, "hash": "7e47", "columns_hash": "c01"},
    "shards": SHARDS,
    "run": {"texts_per_shard": TEXTS_IN_SHARD},
}


def tables(index: int) -> tuple[pa.Table, pa.Table]:
    """Examples and tokens of a shard."""
    texts = np.arange(index * TEXTS_IN_SHARD, (index + 1) * TEXTS_IN_SHARD)
    position = np.tile(np.arange(LENGTH, dtype=np.int32), TEXTS_IN_SHARD)
    examples = {"text_index": texts, "text": [f"text {number}" for number in texts], "label": texts % 2}
    tokens = {"text": np.repeat(texts, LENGTH), "position": position, "token_id": position * 7 % 1000}
    flags = {name: position == at for name, at in (("is_bos", -1), ("is_special", -1), ("is_first", 0))}
    return pa.table(examples), pa.table(tokens | flags)


def write_large_store(path: Path) -> None:
    """A store whose shards all have the same activations, in one file with many names: 3 GB that take 32 MB."""
    acts = torch.randn(SHARD_ROWS, D, generator=torch.Generator().manual_seed(0)).bfloat16()
    with StoreWriter(path, CARD) as writer:
        writer.commit(ShardData(0, *tables(0), {SITE: acts}))
    first = path / "shards/000000"
    card = files.read_sealed(first / "shard.json")
    of_sites = files.read_table(first / "tokens.parquet").drop_columns(tables(0)[1].column_names)
    for index in range(1, SHARDS):
        folder = path / f"shards/{index:06d}"
        folder.mkdir()
        for name in (f"{SITE}.safetensors", "stats.safetensors"):
            (folder / name).hardlink_to(first / name)
        examples, tokens = tables(index)
        for name in of_sites.column_names:
            tokens = tokens.append_column(name, of_sites.column(name))
        own = {"examples.parquet": examples, "tokens.parquet": tokens}
        records = {name: files.write_durably(folder / name, files.table_bytes(table)) for name, table in own.items()}
        changed = {"index": index, "first_text": index * TEXTS_IN_SHARD, "files": card["files"] | records}
        kept = {key: value for key, value in card.items() if key != "rows_hash"}  # then it is taken from the rows
        (folder / "shard.json").write_text(json.dumps(files.sealed(kept | changed)))


def peaks_of_reading(path: Path) -> dict[str, float]:
    """MB after each of the things that a reader does."""
    peaks: dict[str, float] = {}
    with Peak("VmRSS") as peak:
        store = open_store(path)
        assert store.n_rows == SHARDS * SHARD_ROWS
        assert len(store.examples) == SHARDS * TEXTS_IN_SHARD
        assert len(store.tokens) == store.n_rows
        peaks["frames"] = peak.mb
        assert store.stats(SITE).all.count == store.n_rows
        assert store.to_frame()["rows"].tolist() == [store.n_rows]
        peaks["stats"] = peak.mb
        assert sum(len(batch) for batch, _ in zip(store.batches(SITE), range(60))) == 60 * 4096
        peaks["batches"] = peak.mb
        for pick in ("last", "mean"):
            assert store.pooled(SITE, tokens=pick)[0].shape == (store.n_texts, D)
        peaks["pooled"] = peak.mb
        view = store.select("label == 1 and position > 3")
        assert view.n_rows == SHARDS * TEXTS_IN_SHARD // 2 * (LENGTH - 4)
        assert len(next(iter(view.batches(SITE)))) == 4096
        peaks["select"] = peak.mb
        assert store.verify().empty
        peaks["verify"] = peak.mb
    return peaks


@pytest.mark.slow
def test_a_store_of_3_gb_is_read_in_512_mb(tmp_path):
    write_large_store(tmp_path / "large")
    large = open_store(tmp_path / "large")
    assert large.n_rows * D * 2 >= 3 << 30
    peaks = call(peaks_of_reading, tmp_path / "large")
    assert max(peaks.values()) < 512, peaks
