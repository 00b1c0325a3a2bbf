"""Small stores of plain random rows, without a model: what is written is known, so reading can be compared with it."""

from contextlib import AbstractContextManager

import numpy as np
import pyarrow as pa
import torch

from interp.store import ShardData, StoreWriter, as_place, open_store
from interp.store.parts import part_writer

SITE, HEADS, ADDED = "blocks.0.hook_resid_post", "blocks.0.attn.hook_z", "blocks.1.hook_resid_post"
SHAPES = {SITE: [6], HEADS: [2, 4], ADDED: [5]}
LENGTH = 4


def card(*, sites=(HEADS, SITE), shards=2, texts_per_shard=3, hash="7e47", **changes):
    """What store.json says."""
    return {
        "kind": "activation store",
        "model": {"name": "plain", "fingerprint": "f00", "dtype": "float32", "edited_at": []},
        "tokenizer": {"name": "none", "hash": "a11"},
        "sites": [{"name": site, "shape": SHAPES[site]} for site in sites],
        "dtype": "float32",
        "tokens": "all",
        "bos": False,
        "long": "error",
        "max_length": 16,
        "signals": False,
        "texts": {"count": shards * texts_per_shard, "hash": hash, "columns_hash": "c01"},
        "shards": shards,
        "run": {"texts_per_shard": texts_per_shard},
        **changes,
    }


def plain_rows(site, index, seed=0, rows=3 * LENGTH):
    """The rows of a site in a shard."""
    generator = torch.Generator().manual_seed(1_000_003 * seed + 101 * index + sorted(SHAPES).index(site))
    return torch.randn(rows, int(np.prod(SHAPES[site])), generator=generator)


def plain_shard(index, *, sites=(HEADS, SITE), seed=0, n_texts=3, **further):
    """A shard of `n_texts` texts with four tokens each."""
    texts, n = np.arange(index * n_texts, (index + 1) * n_texts), n_texts * LENGTH
    position = np.tile(np.arange(LENGTH, dtype=np.int32), n_texts)
    examples = {"text_index": texts, "text": [f"text {i} of {seed}" for i in texts]}
    tokens = {
        "text": np.repeat(texts, LENGTH),
        "position": position,
        "token_id": (np.arange(n) + 1000 * seed).astype(np.int32),
        "is_bos": np.zeros(n, dtype=bool),
        "is_special": np.zeros(n, dtype=bool),
        "is_first": position == 0,
    }
    acts = {site: plain_rows(site, index, seed, n) for site in sites}
    return ShardData(index, pa.table(examples), pa.table(tokens), acts, **further)


def commit(writer: AbstractContextManager[StoreWriter], indices=(0, 1), **shard):
    """Write shards with a writer."""
    with writer as open_writer:
        finished = open_writer.finished()
        for index in indices:
            if index not in finished:
                open_writer.commit(plain_shard(index, **shard))


def plain_store(path, shards=2, **shard):
    """A store at a path or URL."""
    sites = {"sites": shard["sites"]} if "sites" in shard else {}
    commit(StoreWriter(path, card(shards=shards, hash=f"seed {shard.get('seed', 0)}", **sites)), range(shards), **shard)
    return open_store(path)


def append_texts(path, indices=(0, 1), seed=1, sites=(HEADS, SITE)):
    """Append texts to a store, or as many shards of them as `indices` says."""
    commit(part_writer(path, card(hash=f"seed {seed}", sites=sites), adds="texts"), indices, seed=seed, sites=sites)


def add_sites(path, to="", indices=(0, 1), seed=0, site=ADDED):
    """Add a site to the texts of one segment."""
    wanted = card(hash=f"seed {seed}", sites=(site,))
    commit(part_writer(path, wanted, adds="sites", to=to), indices, seed=seed, sites=(site,))


def all_rows(site, *shards):
    """Rows of (index, seed) after one another."""
    return torch.cat([plain_rows(site, index, seed) for index, seed in shards])


def contents(path):
    """Name -> bytes of every file of a store but its locks, wherever it lies."""
    place = as_place(path)
    found = {str(file): file for file in place.rglob("*") if file.is_file() and file.name != ".lock"}
    return {name.removeprefix(str(place)).strip("/"): file.read_bytes() for name, file in sorted(found.items())}
