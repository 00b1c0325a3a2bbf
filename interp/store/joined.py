"""One shard of texts and the sites that were added to it later, read as if they had been recorded together.

A part of a store that adds sites has a shard for each shard that it joins, with the same rows in the same order: that
is checked here, once, by what the shards' cards say of their rows. Numbers of texts begin at 0 in each part that adds
texts, and so do those of the documents that they were cut from; those that come out of here are numbers in the whole
store.
"""

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from jaxtyping import Float, Float32, Int
from torch import Tensor

from interp.store.shard import HEAD_STATS, Shard, norm_column, outlier_column
from interp.store.stats import SiteStats

PIECE_COLUMNS = ("document", "chunk", "start")
"""What examples.parquet says of pieces of long texts: number of the text, number of the piece, its first token."""


@dataclass(frozen=True, eq=False)
class JoinedShard:
    """A finished shard with the shards that add sites to its rows; it reads like a `Shard`.

    Raises:
        ValueError: an added shard has other rows, or a site that is there already.
    """

    base: Shard
    """The shard that holds the texts."""
    added: Sequence[Shard] = ()
    """Shards with further sites of the same rows."""
    text_offset: int = 0
    """Number in the whole store of the first text of the base shard's part."""
    document_offset: int | None = None
    """Number in the whole store of the first document of the base shard's part; None where nothing was cut to pieces."""

    def __post_init__(self) -> None:
        for shard in self.added:
            if shard.n_texts != self.base.n_texts or shard.n_rows != self.base.n_rows:
                raise ValueError(
                    f"{shard.folder} has {shard.n_texts} texts and {shard.n_rows} rows, but the shard that it adds "
                    f"sites to, {self.base.folder}, has {self.base.n_texts} and {self.base.n_rows}"
                )
            if shard.rows_hash() != self.base.rows_hash():
                raise ValueError(f"the rows of {shard.folder} are other tokens than those of {self.base.folder}")
        names = [site for shard in self._shards for site in shard.sites]
        if len(set(names)) < len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise ValueError(f"{self.base.folder} has {', '.join(twice)} already, and they were added once more")

    @property
    def index(self) -> int:
        """Number of the shard in its own part."""
        return self.base.index

    @property
    def n_rows(self) -> int:
        """Kept tokens."""
        return self.base.n_rows

    @property
    def n_texts(self) -> int:
        """Number of texts."""
        return self.base.n_texts

    @property
    def first_text(self) -> int:
        """Number of its first text in the whole store."""
        return self.base.first_text + self.text_offset

    @property
    def sites(self) -> list[str]:
        """Full names of its sites: those recorded with the texts, then the added ones."""
        return list(self._of_site)

    def examples(self) -> pa.Table:
        """The table of texts. Whole texts that stand in one store with pieces of others are documents of one piece."""
        table = self.base.examples()
        if self.document_offset is not None:
            if "document" not in table.column_names:
                table = _with_pieces(table)
            table = _shifted(table, "document", self.document_offset)
        return _shifted(table, "text_index", self.text_offset)

    def tokens(self, columns: Sequence[str] | None = None) -> pa.Table:
        """The table of kept tokens: some columns, or all but the outliers and norms of each site.

        `is_outlier` says where any site's row is one, the added sites included.

        Raises:
            ValueError: a column that it does not have; a store of format 1 has no norms.
        """
        of_base = None if columns is None else [name for name in columns if self._of_column(name) is self.base]
        if of_base == []:
            of_base = ["position"]  # so that the table has its rows also where every column was added
        table = self.base.tokens(of_base)
        if "is_outlier" in table.column_names:
            for shard in self.added:
                either = table["is_outlier"].to_numpy() | shard.tokens(["is_outlier"])["is_outlier"].to_numpy()
                table = table.set_column(table.column_names.index("is_outlier"), "is_outlier", pa.array(either))
        for shard in self.added:
            wanted = [name for name in columns or () if self._of_column(name) is shard]
            for name, column in zip(wanted, shard.tokens(wanted).columns if wanted else ()):
                table = table.append_column(name, column)
        return _shifted(table if columns is None else table.select(list(columns)), "text", self.text_offset)

    def read_rows(self, site: str, index: Int[np.ndarray, " n"], out: Float[Tensor, "n d"]) -> None:
        """Read rows of a site, `index` ascending, into `out`, which has the dtype of the disk."""
        self._of_site[site].read_rows(site, index, out)

    def stats(self, sites: Iterable[str]) -> dict[str, SiteStats]:
        """Statistics of sites."""
        wanted, found = list(sites), {}
        for shard in self._shards:
            here = [site for site in wanted if self._of_site[site] is shard]
            found |= shard.stats(here) if here else {}
        return {site: found[site] for site in wanted}

    def head_stats(self, layer: int) -> dict[str, Float32[Tensor, "row head"]]:
        """Of each row and head of a layer the "entropy" of its attention (nats), and the share of it that goes to the
        "first" token of the text. ValueError if they were not recorded."""
        able = [shard for shard in self._shards if HEAD_STATS in shard.card["files"]]
        holding = [shard for shard in able if layer in shard.card["head_layers"]]
        return (holding or able or [self.base])[0].head_stats(layer)

    def cut_off(self) -> list[str]:
        """Names of the files that are missing or have another size than was written."""
        return [name for shard in self._shards for name in shard.cut_off()]

    def problems(self) -> list[tuple[str, str]]:
        """(file, problem) for every file that is not byte for byte what was written."""
        return [problem for shard in self._shards for problem in shard.problems()]

    @property
    def _shards(self) -> list[Shard]:
        return [self.base, *self.added]

    @functools.cached_property
    def _of_site(self) -> dict[str, Shard]:
        return {site: shard for shard in self._shards for site in shard.sites}

    def _of_column(self, name: str) -> Shard:
        """The shard whose tokens have a column; the base shard for whatever is not of one site."""
        for prefix in (outlier_column(""), norm_column("")):
            if name.startswith(prefix):
                return self._of_site.get(name.removeprefix(prefix), self.base)
        return self.base


def _shifted(table: pa.Table, column: str, by: int) -> pa.Table:
    if not by or column not in table.column_names:
        return table
    numbers = table[column].to_numpy() + by
    return table.set_column(table.column_names.index(column), column, pa.array(numbers, table[column].type))


def _with_pieces(table: pa.Table) -> pa.Table:
    zeros = pa.array(np.zeros(table.num_rows, dtype=np.int64))
    for name, values in zip(PIECE_COLUMNS, (table["text_index"], zeros, zeros)):
        table = table.append_column(name, values)
    return table
