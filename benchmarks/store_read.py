"""Reading a store against SAELens reading its own cached activations, a Lance dataset and a zarr array of the same rows.

The rows are synthetic and lie in the page cache. All stores use two bytes a number, and everyone hands out batches of 4096
rows in float32: in shuffled order over an epoch, in stored order, and rows picked at random.

Shuffling is compared at two depths, for it costs what it mixes. `lance` and `zarr` permute all rows, as ours does here;
`lance_blocks` and `zarr_blocks` permute large blocks and mix only what a window of memory holds of them. `same_text` says
how well each mixes: pairs of rows of one text in a batch, over what a permutation of all rows gives. 1 is perfect. Buffers
and blocks of a peer are those that were fastest for it, tried once on these very rows.

    python benchmarks/store_read.py                # some minutes
    python benchmarks/store_read.py --rounds 1 --texts 448
"""

import argparse
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance  # pyright: ignore[reportMissingImports]
import numpy as np
import pyarrow as pa
import torch
import zarr  # pyright: ignore[reportMissingImports]
from datasets import Array2D, Dataset, Features, concatenate_datasets, disable_progress_bars
from measure import alternate, ratio, report
from sae_lens.training.activations_store import ActivationsStore  # pyright: ignore[reportMissingImports]
from sae_lens.training.mixing_buffer import mixing_buffer  # pyright: ignore[reportMissingImports]
from torch import Tensor, nn
from zarr.storage import LocalStore  # pyright: ignore[reportMissingImports]

from interp.store import ShardData, Store, StoreWriter, open_store

SITE, D, LENGTH = "blocks.15.hook_resid_post", 576, 128
TEXTS_PER_SHARD, BATCH, PICKED = 112, 4096, 16_384
WINDOW = 28 * BATCH
"""Rows that Lance and zarr mix in memory at a time: 132 MB."""


@dataclass(frozen=True)
class Reader:
    """One store's ways of reading. Each gives rows in float32."""

    shuffled: Callable[[int], Iterable[Tensor]]
    """Seed -> the batches of one epoch."""
    scan: Callable[[], Iterable[Tensor]]
    """The batches in stored order."""
    gather: Callable[[np.ndarray], Tensor] | None = None
    """Row numbers in any order -> those rows; None where there is no such way."""
    blocks: Callable[[int], Iterable[Tensor]] | None = None
    """As `shuffled`, but large blocks are permuted and mixed a window at a time."""


def main() -> None:
    """Write the stores, check that each gives every row once, and time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--texts", type=int, default=3136, help=f"texts of {LENGTH} rows, a multiple of {TEXTS_PER_SHARD}"
    )
    parser.add_argument(
        "--folder", help="where the stores are written; the usual place for temporary files if not given"
    )
    options = parser.parse_args()
    assert options.texts % TEXTS_PER_SHARD == 0, f"--texts must be a multiple of {TEXTS_PER_SHARD}"
    with tempfile.TemporaryDirectory(prefix="store-read-", dir=options.folder) as home:
        n_rows = options.texts * LENGTH
        readers = {
            "ours": ours(Path(home), options.texts),
            "saelens": saelens(Path(home), options.texts),
            "lance": of_lance(Path(home), n_rows),
            "zarr": of_zarr(Path(home), n_rows),
        }
        rows = measured(readers, n_rows, options.rounds)
    report("store_read", rows)


def measured(readers: dict[str, Reader], n_rows: int, rounds: int) -> list[dict[str, Any]]:
    """The rows of the result file."""
    shuffled = {name: reader.shuffled for name, reader in readers.items()}
    shuffled |= {f"{name}_blocks": reader.blocks for name, reader in readers.items() if reader.blocks is not None}
    mixing = {name: same_text(name, epoch(1), n_rows) for name, epoch in shuffled.items()}
    picked = np.random.default_rng(0).integers(0, n_rows, PICKED)
    gather = {name: reader.gather for name, reader in readers.items() if reader.gather is not None}
    for name, pick in gather.items():
        assert np.array_equal(numbers(pick(picked)), picked), f"{name} gathers other rows"
    cases = {
        f"shuffled batches of {BATCH}, one epoch": {
            name: lambda epoch=epoch: drain(epoch(0)) for name, epoch in shuffled.items()
        },
        f"batches of {BATCH} in stored order": {
            name: lambda scan=reader.scan: drain(scan()) for name, reader in readers.items()
        },
        "single rows at random, one call": {name: lambda pick=pick: pick(picked) for name, pick in gather.items()},
    }
    counts = (n_rows, n_rows, PICKED)
    found = [row(what, n, contestants, rounds) for (what, contestants), n in zip(cases.items(), counts, strict=True)]
    found[0]["same_text"] = mixing
    return found


def same_text(name: str, batches: Iterable[Tensor], n_rows: int) -> float:
    """How well an epoch is mixed, see above. It must give every row once."""
    given = [numbers(batch) for batch in batches]
    every = np.concatenate(given)
    assert np.array_equal(np.sort(every), np.arange(n_rows)), f"{name} does not give every row once"
    pairs = expected = 0.0
    for batch in given:
        counts = np.bincount(batch // LENGTH)
        pairs += (counts * (counts - 1)).sum()
        expected += len(batch) * (len(batch) - 1) * (LENGTH - 1) / (n_rows - 1)
    return round(float(pairs / expected), 3)


def row(what: str, n_rows: int, contestants: dict[str, Callable[[], Any]], rounds: int) -> dict[str, Any]:
    """Rows a second of each, and how many times faster ours is."""
    seconds = alternate(contestants, rounds=rounds)
    speeds = {f"{name}_rows_per_s": round(n_rows / statistics.median(values)) for name, values in seconds.items()}
    ratios = {f"{name}_over_ours": ratio(seconds, "ours", name) for name in contestants if name != "ours"}
    return {"what": what, "rows": n_rows, "d": D, **speeds, **ratios, "rounds": rounds}


def drain(batches: Iterable[Tensor]) -> None:
    """Take every batch and keep none."""
    for batch in batches:
        assert batch.dtype == torch.float32


def fastest(ways: Iterable[Callable[[int], Iterable[Tensor]]]) -> Callable[[int], Iterable[Tensor]]:
    """The one that takes least for an epoch; each is tried once, the first one twice, for it warms the cache."""

    def seconds(way: Callable[[int], Iterable[Tensor]]) -> float:
        start = time.perf_counter()
        drain(way(0))
        return time.perf_counter() - start

    ways = list(ways)
    drain(ways[0](0))
    return min(ways, key=seconds)


# ------------------------------------------------------------------------------------------------------------- rows


def synthetic(start: int, stop: int) -> Tensor:
    """Rows in bfloat16 that float16 holds exactly; the first three numbers of each spell its place in the store."""
    rows = torch.randn(stop - start, D, generator=torch.Generator().manual_seed(start)) * 4
    rows[rows.abs() < 2**-13] = 0
    place = torch.arange(start, stop)
    rows[:, :3] = torch.stack([place // 16384, place // 128 % 128, place % 128], dim=1).float()
    return rows.bfloat16()


def numbers(rows: Tensor) -> np.ndarray:
    """The places that rows spell."""
    return (rows[:, :3].double() @ torch.tensor([16384.0, 128.0, 1.0], dtype=torch.float64)).long().numpy()


def halves(start: int, stop: int) -> np.ndarray:
    """The same rows in float16."""
    rows = synthetic(start, stop)
    found = rows.half()
    assert torch.equal(found.float(), rows.float())
    return found.numpy()


def pieces(n_rows: int) -> Iterator[tuple[int, int]]:
    """The rows as our shards hold them."""
    size = TEXTS_PER_SHARD * LENGTH
    for start in range(0, n_rows, size):
        yield start, start + size


# ----------------------------------------------------------------------------------------------------------- stores


def ours(home: Path, n_texts: int) -> Reader:
    """Our store, read with `batches` and `rows`."""
    card = {
        "model": {"name": "synthetic", "fingerprint": "0", "dtype": "bfloat16", "edited_at": []},
        "tokenizer": {"name": "none", "hash": "0"},
        "sites": [{"name": SITE, "shape": [D]}],
        "dtype": "bfloat16",
        "tokens": "all",
        "bos": False,
        "long": "error",
        "max_length": LENGTH,
        "signals": False,
        "texts": {"count": n_texts, "hash": "0", "columns_hash": "0"},
        "shards": n_texts // TEXTS_PER_SHARD,
        "run": {"texts_per_shard": TEXTS_PER_SHARD},
    }
    with StoreWriter(home / "ours", card) as writer:
        for index, (start, stop) in enumerate(pieces(n_texts * LENGTH)):
            writer.commit(shard(index, synthetic(start, stop)))
    store: Store = open_store(home / "ours")

    def scan() -> Iterator[Tensor]:
        for start in range(0, store.n_rows, BATCH):
            yield store.rows(SITE, slice(start, start + BATCH))

    return Reader(
        lambda seed: store.batches(SITE, size=BATCH, seed=seed, typical=False), scan, lambda at: store.rows(SITE, at)
    )


def shard(index: int, rows: Tensor) -> ShardData:
    """Rows with the tables that a store wants."""
    texts = np.arange(index * TEXTS_PER_SHARD, (index + 1) * TEXTS_PER_SHARD)
    position = np.tile(np.arange(LENGTH, dtype=np.int32), len(texts))
    examples = {"text_index": texts, "text": [f"text {text}" for text in texts]}
    tokens = {
        "text": np.repeat(texts, LENGTH),
        "position": position,
        "token_id": position,
        "is_bos": np.zeros(len(rows), dtype=bool),
        "is_special": np.zeros(len(rows), dtype=bool),
        "is_first": position == 0,
    }
    return ShardData(index, pa.table(examples), pa.table(tokens), {SITE: rows})


def saelens(home: Path, n_texts: int) -> Reader:
    """A dataset as SAELens' CacheActivationsRunner lays it out, read by its ActivationsStore and its mixing buffer."""
    disable_progress_bars()
    site = "blocks.15.hook_resid_post"
    features = Features({site: Array2D(shape=(LENGTH, D), dtype="float16")})
    for start, stop in pieces(n_texts * LENGTH):
        acts = halves(start, stop).reshape(-1, LENGTH, D)
        folder = home / "saelens_parts" / f"{start:08d}"
        Dataset.from_dict({site: acts}, features=features).save_to_disk(folder)
    parts = [Dataset.load_from_disk(str(part)) for part in sorted((home / "saelens_parts").iterdir())]
    concatenate_datasets(parts).save_to_disk(home / "saelens")

    def store(buffer_batches: int) -> ActivationsStore:
        return ActivationsStore(
            model=nn.Module(),  # pyright: ignore[reportArgumentType]  # reads no model where activations are cached
            dataset=None,
            streaming=False,
            hook_name=site,
            hook_head_index=None,
            context_size=LENGTH,
            d_in=D,
            n_batches_in_buffer=buffer_batches,
            total_training_tokens=n_texts * LENGTH,
            store_batch_size_prompts=BATCH // LENGTH,
            train_batch_size_tokens=BATCH,
            prepend_bos=False,
            normalize_activations="none",
            device=torch.device("cpu"),
            dtype="float32",
            cached_activations_path=str(home / "saelens"),
        )

    def loaded(source: ActivationsStore) -> Iterator[Tensor]:
        try:
            while True:
                yield source.get_filtered_llm_batch(raise_on_epoch_end=True)
        except StopIteration:
            return

    def shuffled_by(buffer_batches: int) -> Callable[[int], Iterable[Tensor]]:
        def shuffled(seed: int) -> Iterator[Tensor]:
            torch.manual_seed(seed)
            source = store(buffer_batches)
            # What its get_data_loader returns, over one epoch: it would begin the next while rows of this one are left.
            return mixing_buffer(buffer_batches * LENGTH, BATCH, loaded(source), source.activations_mixing_fraction)

        return shuffled

    warnings.filterwarnings("ignore", module="sae_lens")
    return Reader(fastest(map(shuffled_by, (64, 256, 1024))), lambda: loaded(store(64)))


def of_lance(home: Path, n_rows: int) -> Reader:
    """A Lance dataset with one column of fixed width, read by `take`, ascending as it likes it, and in batches."""
    kind = pa.list_(pa.float16(), D)

    def parts() -> Iterator[pa.RecordBatch]:
        for start, stop in pieces(n_rows):
            values = pa.array(halves(start, stop).reshape(-1))
            yield pa.record_batch([pa.FixedSizeListArray.from_arrays(values, D)], names=["acts"])

    lance.write_dataset(pa.RecordBatchReader.from_batches(pa.schema({"acts": kind}), parts()), home / "lance")
    dataset = lance.dataset(home / "lance")

    def halves_of(column: Any) -> np.ndarray:
        return np.concatenate([chunk.flatten().to_numpy().reshape(-1, D) for chunk in column.chunks])

    def take(ascending: np.ndarray) -> np.ndarray:
        return halves_of(dataset.take(ascending, columns=["acts"]).column("acts"))

    def gather(at: np.ndarray) -> Tensor:
        ascending, place = np.unique(at, return_inverse=True)
        return torch.from_numpy(take(ascending)[place]).float()

    def scan() -> Iterator[Tensor]:
        for batch in dataset.to_batches(batch_size=BATCH):
            yield torch.from_numpy(batch.column(0).flatten().to_numpy().reshape(-1, D)).float()

    blocks = [lambda seed, size=size: mixed(take, n_rows, size, seed) for size in (256, BATCH)]

    def by_batch(seed: int) -> Iterator[Tensor]:
        order = np.random.default_rng(seed).permutation(n_rows)
        for start in range(0, n_rows, BATCH):
            yield torch.from_numpy(take(np.sort(order[start : start + BATCH]))).float()

    return Reader(by_batch, scan, gather, fastest(blocks))


def of_zarr(home: Path, n_rows: int) -> Reader:
    """A zarr array without compression. It reads whole chunks, so single rows for a window are picked from all of them."""
    array: Any = zarr.create_array(
        LocalStore(home / "zarr"), shape=(n_rows, D), chunks=(BATCH, D), dtype="float16", compressors=None, filters=None
    )
    for start, stop in pieces(n_rows):
        array[start:stop] = halves(start, stop)

    def chunks(ascending: np.ndarray) -> np.ndarray:
        return np.concatenate([array[start : start + BATCH] for start in ascending[::BATCH].tolist()])

    def rows(ascending: np.ndarray) -> np.ndarray:
        cuts = np.searchsorted(ascending, np.arange(0, n_rows + BATCH, BATCH))
        parts = zip(range(0, n_rows, BATCH), cuts, cuts[1:])
        return np.concatenate([array[start : start + BATCH][ascending[a:b] - start] for start, a, b in parts])

    def gather(at: np.ndarray) -> Tensor:
        ascending, place = np.unique(at, return_inverse=True)
        return torch.from_numpy(array.oindex[ascending][place]).float()

    def scan() -> Iterator[Tensor]:
        for start in range(0, n_rows, BATCH):
            yield torch.from_numpy(array[start : start + BATCH]).float()

    return Reader(
        lambda seed: mixed(rows, n_rows, 1, seed), scan, gather, lambda seed: mixed(chunks, n_rows, BATCH, seed)
    )


def mixed(read: Callable[[np.ndarray], np.ndarray], n_rows: int, block: int, seed: int) -> Iterator[Tensor]:
    """Blocks of neighbours (or rows) in random order, mixed a window at a time: what one writes around such a store."""
    draw = np.random.default_rng(seed)
    starts = draw.permutation(np.arange(0, n_rows, block))
    for first in range(0, len(starts), WINDOW // block):
        chosen = np.sort(starts[first : first + WINDOW // block])
        window = read((chosen[:, None] + np.arange(block)).ravel())
        order = draw.permutation(len(window))
        for start in range(0, len(window), BATCH):
            yield torch.from_numpy(window[order[start : start + BATCH]]).float()


if __name__ == "__main__":
    main()
