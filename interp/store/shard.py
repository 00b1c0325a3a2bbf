"""One shard: a folder that is there whole or not at all.

Writing:
1. In a hidden folder beside the target, one file a site, each with its statistics, written and flushed in parallel
   (one after the other costs a third of the speed).
2. tokens.parquet, which needs every site's outliers and norms, examples.parquet, stats.safetensors and, where asked
   for, head_stats.safetensors.
3. shard.json with the size and hash of each file, last; a folder without it is no shard.
4. The folder is renamed into place. Where fsspec reaches the place, nothing can be renamed: there the files are sent
   under their final names, and shard.json, which comes last, decides alone.

Reading checks a file's size against shard.json first, and the hash of everything but the rows; `Shard.problems` checks all
hashes.
"""

import os
import secrets
import shutil
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import xxhash
from jaxtyping import Bool, Float, Float32, Int
from safetensors.torch import save
from torch import Tensor

from interp.store import files
from interp.store.place import Place, file_sizes, is_local, names
from interp.store.stats import Moments, NormHistogram, SiteStats, site_stats

FORMAT = 2
"""Version of the store format. A reader refuses a newer one, and reads every older one."""
EXAMPLES, TOKENS, STATS, CARD = "examples.parquet", "tokens.parquet", "stats.safetensors", "shard.json"
HEAD_STATS = "head_stats.safetensors"
HEAD_KINDS = ("entropy", "first")
"""Entropy of a head's attention (nats), and its share that goes to the first token of the text."""
_WRITERS = 8


def outlier_column(site: str) -> str:
    """The column of tokens.parquet that says where a site's row is an outlier."""
    return f"is_outlier:{site}"


def norm_column(site: str) -> str:
    """The column of tokens.parquet with the norms of a site's rows; stores of format 1 have none."""
    return f"norm:{site}"


@dataclass(frozen=True, eq=False)
class ShardData:
    """What a shard holds, in memory: the tables and the rows of each site, row i the same token everywhere."""

    index: int
    """Number of the shard."""
    examples: pa.Table
    """A row per text: text_index, text, label, group, split, further columns."""
    tokens: pa.Table
    """A row per kept token: text (its text_index), position, token_id, is_bos, is_special, is_first, rules, signals."""
    acts: Mapping[str, Float[Tensor, "_row d"]]
    """Full site name -> rows, in the dtype of the disk."""
    head_stats: Mapping[str, Float32[Tensor, "_row head"]] = field(default_factory=dict)
    """`blocks.{l}/entropy` (nats) and `blocks.{l}/first` (share of the text's first token) of each head's attention."""

    def __post_init__(self) -> None:
        n_rows = self.tokens.num_rows
        for name, values in {**self.acts, **self.head_stats}.items():
            if len(values) != n_rows:
                raise ValueError(f"{name} has {len(values)} rows, but there are {n_rows} kept tokens")
        for name, values in self.head_stats.items():
            if not bool(torch.isfinite(values).all()):
                raise ValueError(f"{name} holds NaN or infinite values: it cannot be stored")


# ---------------------------------------------------------------------------------------------------------- writing


def write_shard(shards: Place, data: ShardData) -> Place:
    """Write a shard into the folder `shards`; its own folder. One that another writer finished meanwhile is kept.

    Raises:
        OSError: the disk is full or the folder not writable; nothing of the shard is left behind.
    """
    target = shards / f"{data.index:06d}"
    if is_local(target):
        _write_and_rename(target, data)
    elif not (target / CARD).is_file():
        files.make_folder(target)
        _fill(target, data)
    return target


def _write_and_rename(target: Path, data: ShardData) -> None:
    building = target.parent / f".{target.name}.{secrets.token_hex(6)}.part"
    building.mkdir()
    try:
        _fill(building, data)
        files.sync_folder(building)
        if target.exists() and not (target / CARD).is_file():
            shutil.rmtree(target)  # half of a copy: no shard
        try:
            os.rename(building, target)
        except OSError:
            if not (target / CARD).is_file():
                raise
        files.sync_folder(target.parent)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _fill(folder: Place, data: ShardData) -> None:
    ordinary = _ordinary(data.tokens)

    def write_site(site: str) -> tuple[dict[str, Any], tuple[SiteStats, Any, Any]]:
        acts = data.acts[site]
        found = site_stats(acts, ordinary)
        record = files.write_tensor(folder / f"{site}.safetensors", acts, {"site": site})
        return record, found

    def write(entry: tuple[str, bytes]) -> tuple[str, dict[str, Any]]:
        return entry[0], files.write_durably(folder / entry[0], entry[1])

    with ThreadPoolExecutor(_WRITERS, thread_name_prefix="shard") as pool:
        done = dict(zip(data.acts, pool.map(write_site, data.acts)))
        stats = {site: found[0] for site, (_, found) in done.items()}
        outliers = {site: found[1] for site, (_, found) in done.items()}
        tokens = _with_norms(data.tokens, outliers, {site: found[2] for site, (_, found) in done.items()})
        others = {
            EXAMPLES: files.table_bytes(data.examples),
            TOKENS: files.table_bytes(tokens),
            STATS: save(_stats_to_tensors(stats)),
        }
        if data.head_stats:
            others[HEAD_STATS] = save({name: values.contiguous() for name, values in data.head_stats.items()})
        records = dict(pool.map(write, others.items()))
    records |= {f"{site}.safetensors": record for site, (record, _) in done.items()}
    card = {
        "format": FORMAT,
        "index": data.index,
        "first_text": data.examples.column("text_index")[0].as_py(),
        "texts": data.examples.num_rows,
        "rows": data.tokens.num_rows,
        "rows_hash": _rows_hash(data.tokens),
        "files": records,
        "sites": {site: _summary(both) for site, both in stats.items()},
    }
    if data.head_stats:
        card["head_layers"] = sorted({int(name.split("/")[0].removeprefix("blocks.")) for name in data.head_stats})
    files.write_sealed(folder / CARD, card)


def _ordinary(tokens: pa.Table) -> Bool[np.ndarray, " row"]:
    """Rows that are typical if they are no outliers: neither special, nor first, nor an average beside single tokens."""
    special, first, position = (tokens.column(name).to_numpy() for name in ("is_special", "is_first", "position"))
    averaged = position < 0
    return ~(special | first | (averaged & ~averaged.all()))


def _with_norms(
    tokens: pa.Table, outliers: Mapping[str, Bool[np.ndarray, " row"]], norms: Mapping[str, Float[np.ndarray, " row"]]
) -> pa.Table:
    tokens = tokens.append_column("is_outlier", pa.array(np.logical_or.reduce(list(outliers.values()))))
    for site, outlier in outliers.items():
        tokens = tokens.append_column(outlier_column(site), pa.array(outlier))
    for site, norm in norms.items():
        tokens = tokens.append_column(norm_column(site), pa.array(norm.astype(np.float32)))
    return tokens


def _rows_hash(tokens: pa.Table) -> str:
    """What two shards share whose rows are the same tokens of the same texts."""
    state = xxhash.xxh3_64()
    for name in _ROW_COLUMNS:
        state.update(np.ascontiguousarray(tokens.column(name).to_numpy(), dtype="<i8").tobytes())
    return state.hexdigest()


_ROW_COLUMNS = ("text", "position", "token_id")


def _summary(stats: SiteStats) -> dict[str, Any]:
    """What a person wants to see of the statistics; the vectors stand in stats.safetensors."""
    return {
        "outlier_norm": stats.outlier_norms[0],
        "typical_norm": stats.typical_norm if stats.typical.count else None,
        "typical_rows": stats.typical.count,
    }


_STATS_TENSORS = ("mean", "M2", "norm_bins", "norm_counts")


def _stats_to_tensors(stats: Mapping[str, SiteStats]) -> dict[str, Tensor]:
    tensors = {}
    for site, both in stats.items():
        for part, moments in (("all", both.all), ("typical", both.typical)):
            values = (moments.mean, moments.M2, moments.norms.bins, moments.norms.counts)
            tensors |= {f"{site}/{part}/{name}": value.clone() for name, value in zip(_STATS_TENSORS, values)}
    return tensors


# ---------------------------------------------------------------------------------------------------------- reading


@dataclass(frozen=True, eq=False)
class Shard:
    """A finished shard on the disk. Nothing stays open between two calls."""

    folder: Place
    """Its folder."""
    card: dict[str, Any]
    """The content of shard.json."""
    _hashed: set[str] = field(default_factory=set, init=False, repr=False)

    @property
    def index(self) -> int:
        """Number of the shard."""
        return self.card["index"]

    @property
    def n_rows(self) -> int:
        """Kept tokens."""
        return self.card["rows"]

    @property
    def first_text(self) -> int:
        """text_index of its first text."""
        return self.card["first_text"]

    @property
    def n_texts(self) -> int:
        """Number of texts."""
        return self.card["texts"]

    def examples(self) -> pa.Table:
        """The table of texts."""
        return files.read_table(self._whole(EXAMPLES))

    def tokens(self, columns: Sequence[str] | None = None) -> pa.Table:
        """The table of kept tokens: some columns, or all but the outliers and norms of each site.

        Raises:
            ValueError: a column that it does not have; a store of format 1 has no norms.
        """
        if self.card["format"] < 2 and any(name.startswith(norm_column("")) for name in columns or ()):
            raise ValueError(
                f"{self.folder} was written in format 1, which keeps no norms: compute them from the rows, or record "
                "again at another path"
            )
        return files.read_table(self._whole(TOKENS), columns, but=(outlier_column(""), norm_column("")))

    def read_rows(self, site: str, index: Int[np.ndarray, " n"], out: Float[Tensor, "n d"]) -> None:
        """Read rows of a site, `index` ascending, into `out`, which has the dtype of the disk."""
        name = f"{site}.safetensors"
        # Elsewhere than on this machine asking for the size costs as much as the rows, and a short file shows anyway.
        path = self._checked(name) if is_local(self.folder) else self.folder / name
        files.read_rows(path, self.n_rows, index, out, self.card["files"][name]["bytes"])

    def stats(self, sites: Iterable[str]) -> dict[str, SiteStats]:
        """Statistics of sites."""
        wanted = list(sites)
        tensors = files.read_tensors(
            self._whole(STATS),
            [f"{site}/{part}/{name}" for site in wanted for part in ("all", "typical") for name in _STATS_TENSORS],
        )
        return {site: self._site_stats(site, tensors) for site in wanted}

    def head_stats(self, layer: int) -> dict[str, Float32[Tensor, "row head"]]:
        """Of each row and head of a layer the "entropy" of its attention (nats), and the share of it that goes to the
        "first" token of the text.

        Raises:
            ValueError: they were not recorded, or not of this layer.
        """
        if HEAD_STATS not in self.card["files"]:
            raise ValueError(f"{self.folder} has no head statistics: record with head_stats=True")
        if layer not in self.card["head_layers"]:
            raise ValueError(
                f"no head statistics of layer {layer!r} were recorded: there are {self.card['head_layers']}"
            )
        names_of = {f"blocks.{layer}/{kind}": kind for kind in HEAD_KINDS}
        tensors = files.read_tensors(self._whole(HEAD_STATS), names_of)
        return {kind: tensors[name] for name, kind in names_of.items()}

    @property
    def sites(self) -> list[str]:
        """Full names of its sites."""
        return list(self.card["sites"])

    def rows_hash(self) -> str:
        """A hash over text, position and token of each row: equal where the rows are the same."""
        return self.card.get("rows_hash") or _rows_hash(self.tokens(_ROW_COLUMNS))

    def _site_stats(self, site: str, tensors: Mapping[str, Tensor]) -> SiteStats:
        summary = self.card["sites"][site]

        def moments(part: str, count: int) -> Moments:
            mean, M2, bins, counts = (tensors[f"{site}/{part}/{name}"] for name in _STATS_TENSORS)
            return Moments(count, mean, M2, NormHistogram(bins, counts))

        typical = moments("typical", summary["typical_rows"])
        return SiteStats(moments("all", self.n_rows), typical, (summary["outlier_norm"],))

    def cut_off(self) -> list[str]:
        """Names of the files that are missing or have another size than was written."""
        sizes = file_sizes(self.folder)
        return [name for name, record in self.card["files"].items() if sizes.get(name) != record["bytes"]]

    def problems(self) -> list[tuple[str, str]]:
        """(file, problem) for every file that is not byte for byte what was written."""
        found, sizes = [], file_sizes(self.folder)
        for name, record in sorted(self.card["files"].items()):
            size = sizes.get(name)
            if size is None:
                found.append((name, "missing"))
            elif size != record["bytes"]:
                found.append((name, f"{size} bytes, {record['bytes']} were written"))
            elif problem := self._hash_problem(name):
                found.append((name, problem))
        return found

    def _hash_problem(self, name: str) -> str | None:
        try:
            same = files.hash_file(self.folder / name) == self.card["files"][name]["xxh3"]
        except OSError as error:
            return f"cannot be read ({error.strerror or error})"
        return None if same else "content changed since it was written (hash differs)"

    def _whole(self, name: str) -> Place:
        """A file that is small beside the rows, hashed when it is first read: no number comes from a damaged one."""
        path = self._checked(name)
        if name not in self._hashed:
            if problem := self._hash_problem(name):
                raise ValueError(
                    f"{path}: {problem}; store.verify() lists what is damaged. The other shards are not touched by it; "
                    f"remove {self.folder} and record again to make this one anew"
                )
            self._hashed.add(name)
        return path

    def _checked(self, name: str) -> Place:
        path, expected = self.folder / name, self.card["files"][name]["bytes"]
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            size = None
        if size != expected:
            state = "missing" if size is None else f"{size} bytes long, but {expected} were written"
            raise ValueError(
                f"{path} is {state}. The other shards are not touched by it; remove {self.folder} and record again to "
                "make this one anew"
            )
        return path


def find_shard(folder: Place) -> Shard | None:
    """The shard in a folder; None where there is no shard.json: then it is no shard (yet).

    Raises:
        ValueError: shard.json is damaged, cannot be read, or is of a newer format.
    """
    return shard_of(folder, *files.read_all([folder / CARD]))


def shard_of(folder: Place, data: bytes | OSError | None) -> Shard | None:
    """As `find_shard`, from the content of shard.json, or why it cannot be read; None where there is none."""
    if data is None:
        return None
    if isinstance(data, OSError):
        raise ValueError(f"{folder / CARD} cannot be read ({data.strerror or data}): make it readable")
    card = files.unsealed(folder / CARD, data)
    if card["format"] > FORMAT:
        raise ValueError(f"{folder} has format {card['format']}, newer than the {FORMAT} known here: update interp")
    return Shard(folder, card)


def shard_folders(shards: Place) -> list[Place]:
    """Folders of shards, in order, whole or not."""
    return [shards / name for name in names(shards) if name.isdigit()]


def leftovers(shards: Place) -> list[Path]:
    """Half-made folders of writers that were killed. Where nothing is renamed, there are none."""
    return sorted(shards.glob(".*.part")) if is_local(shards) else []


def site_shapes(store_card: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Full site name -> shape of a row, from the content of store.json."""
    return {entry["name"]: tuple(entry["shape"]) for entry in store_card["sites"]}
