"""One shard: a folder that is there whole or not at all.

Writing:
1. In a hidden folder beside the target, one file a site, each with its statistics, written and flushed in parallel
   (one after the other costs a third of the speed).
2. tokens.parquet, which needs every site's outliers, examples.parquet and stats.safetensors.
3. shard.json with the size and hash of each file, last; a folder without it is no shard.
4. The folder is renamed into place.

Reading checks a file's size against shard.json first; `Shard.problems` checks the hashes too.
"""

import os
import secrets
import shutil
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Float, Int
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from interp import artifact
from interp.store import files
from interp.store.stats import Moments, NormHistogram, SiteStats, site_stats

FORMAT = 1
"""Version of the store format. A reader refuses a newer one, and reads every older one."""
EXAMPLES, TOKENS, STATS, CARD = "examples.parquet", "tokens.parquet", "stats.safetensors", "shard.json"
_WRITERS = 8


def outlier_column(site: str) -> str:
    """The column of tokens.parquet that says where a site's row is an outlier."""
    return f"is_outlier:{site}"


@dataclass(frozen=True, eq=False)
class ShardData:
    """What a shard holds, in memory: the tables and the rows of each site, row i the same token everywhere."""

    index: int
    """Number of the shard."""
    examples: pa.Table
    """A row per text: text_index, text, label, group, split, further columns."""
    tokens: pa.Table
    """A row per kept token: text (its text_index), position, token_id, is_bos, is_special, is_first, signals."""
    acts: Mapping[str, Float[Tensor, "row d"]]
    """Full site name -> rows, in the dtype of the disk."""


# ---------------------------------------------------------------------------------------------------------- writing


def write_shard(shards: Path, data: ShardData) -> Path:
    """Write a shard into the folder `shards`; its own folder. One that another writer finished meanwhile is kept.

    Raises:
        OSError: the disk is full or the folder not writable; nothing of the shard is left behind.
    """
    target = shards / f"{data.index:06d}"
    building = shards / f".{target.name}.{secrets.token_hex(6)}.part"
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
        files.sync_folder(shards)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return target


def _fill(folder: Path, data: ShardData) -> None:
    flags = [data.tokens.column(name).to_numpy() for name in ("is_special", "is_first")]
    ordinary = ~(flags[0] | flags[1])

    def write_site(site: str) -> tuple[dict[str, Any], SiteStats, Bool[np.ndarray, " row"]]:
        acts = data.acts[site]
        stats, outlier = site_stats(acts, ordinary)
        return (
            files.write_durably(folder / f"{site}.safetensors", files.tensor_bytes(acts, {"site": site})),
            stats,
            outlier,
        )

    def write(entry: tuple[str, bytes]) -> tuple[str, dict[str, Any]]:
        return entry[0], files.write_durably(folder / entry[0], entry[1])

    with ThreadPoolExecutor(_WRITERS, thread_name_prefix="shard") as pool:
        done = dict(zip(data.acts, pool.map(write_site, data.acts)))
        stats = {site: result[1] for site, result in done.items()}
        tokens = _with_outliers(data.tokens, {site: result[2] for site, result in done.items()})
        tables = [(EXAMPLES, files.table_bytes(data.examples)), (TOKENS, files.table_bytes(tokens))]
        records = dict(pool.map(write, [*tables, (STATS, save(_stats_to_tensors(stats)))]))
    records |= {f"{site}.safetensors": result[0] for site, result in done.items()}
    card = {
        "format": FORMAT,
        "index": data.index,
        "first_text": data.examples.column("text_index")[0].as_py(),
        "texts": data.examples.num_rows,
        "rows": data.tokens.num_rows,
        "files": records,
        "sites": {site: _summary(both) for site, both in stats.items()},
    }
    artifact.write_json(folder / CARD, files.sealed(card))


def _with_outliers(tokens: pa.Table, outliers: Mapping[str, Bool[np.ndarray, " row"]]) -> pa.Table:
    tokens = tokens.append_column("is_outlier", pa.array(np.logical_or.reduce(list(outliers.values()))))
    for site, outlier in outliers.items():
        tokens = tokens.append_column(outlier_column(site), pa.array(outlier))
    return tokens


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

    folder: Path
    """Its folder."""
    card: dict[str, Any]
    """The content of shard.json."""

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
        return files.read_table(self._checked(EXAMPLES))

    def tokens(self, columns: Sequence[str] | None = None) -> pa.Table:
        """The table of kept tokens: some columns, or all but the outliers of each site."""
        path = self._checked(TOKENS)
        if columns is None:
            columns = [name for name in files.table_columns(path) if not name.startswith(outlier_column(""))]
        return files.read_table(path, columns)

    def read_rows(self, site: str, index: Int[np.ndarray, " n"], out: Float[Tensor, "n d"]) -> None:
        """Read rows of a site, `index` ascending, into `out`, which has the dtype of the disk."""
        files.read_rows(self._checked(f"{site}.safetensors"), self.n_rows, index, out)

    def stats(self, sites: Iterable[str]) -> dict[str, SiteStats]:
        """Statistics of sites."""
        path = self._checked(STATS)
        try:
            tensors = load_file(path)
            return {site: self._site_stats(site, tensors) for site in sites}
        except (SafetensorError, KeyError) as error:
            raise ValueError(f"{path} cannot be read ({error}): store.verify() lists what is damaged") from None

    def _site_stats(self, site: str, tensors: Mapping[str, Tensor]) -> SiteStats:
        summary = self.card["sites"][site]

        def moments(part: str, count: int) -> Moments:
            mean, M2, bins, counts = (tensors[f"{site}/{part}/{name}"] for name in _STATS_TENSORS)
            return Moments(count, mean, M2, NormHistogram(bins, counts))

        typical = moments("typical", summary["typical_rows"])
        return SiteStats(moments("all", self.n_rows), typical, (summary["outlier_norm"],))

    def cut_off(self) -> list[str]:
        """Names of the files that are missing or have another size than was written."""
        return [name for name in self.card["files"] if self._size(name) != self.card["files"][name]["bytes"]]

    def problems(self) -> list[tuple[str, str]]:
        """(file, problem) for every file that is not byte for byte what was written."""
        found = []
        for name, record in sorted(self.card["files"].items()):
            size = self._size(name)
            if size is None:
                found.append((name, "missing"))
            elif size != record["bytes"]:
                found.append((name, f"{size} bytes, {record['bytes']} were written"))
            elif files.hash_file(self.folder / name) != record["xxh3"]:
                found.append((name, "content changed since it was written (hash differs)"))
        return found

    def _size(self, name: str) -> int | None:
        path = self.folder / name
        return path.stat().st_size if path.is_file() else None

    def _checked(self, name: str) -> Path:
        path, expected, size = self.folder / name, self.card["files"][name]["bytes"], self._size(name)
        if size != expected:
            state = "missing" if size is None else f"{size} bytes long, but {expected} were written"
            raise ValueError(
                f"{path} is {state}. The other shards are not touched by it; remove {self.folder} and record again to "
                "make this one anew"
            )
        return path


def find_shard(folder: Path) -> Shard | None:
    """The shard in a folder; None where there is no shard.json: then it is no shard (yet).

    Raises:
        ValueError: shard.json is damaged, or of a newer format.
    """
    if not (folder / CARD).is_file():
        return None
    card = files.read_sealed(folder / CARD)
    if card["format"] > FORMAT:
        raise ValueError(f"{folder} has format {card['format']}, newer than the {FORMAT} known here: update interp")
    return Shard(folder, card)


def leftovers(shards: Path) -> list[Path]:
    """Half-made folders of writers that were killed."""
    return sorted(shards.glob(".*.part"))


def site_shapes(store_card: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Full site name -> shape of a row, from the content of store.json."""
    return {entry["name"]: tuple(entry["shape"]) for entry in store_card["sites"]}
