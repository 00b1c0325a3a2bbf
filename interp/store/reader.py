"""`Store`: frames of texts and tokens, rows of a site, pooled rows, shuffled batches, statistics, checks."""

import functools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from jaxtyping import Bool, Float32, Int, Shaped
from torch import Tensor

from interp import sites as site_names
from interp.store import files
from interp.store.batches import Batches
from interp.store.shard import Shard, find_shard, outlier_column, site_shapes
from interp.store.stats import SiteStats
from interp.store.writer import SHARDS

POOLING = ("last", "first", "mean")


class Store:
    """Recorded activations on the disk. Row i is the same token at every site; texts and rows stand in recorded order.

    Made by `open_store` and `record`. Nothing is read before it is asked for, and no file stays open. Wherever a site
    is asked for, its full name and its shorthand (`resid_post:6`) both do.

    Raises:
        ValueError: from whatever reads a file that is damaged; the message names it.
    """

    def __init__(self, path: Path, card: dict[str, Any], shards: list[Shard]) -> None:
        self.path, self.card = path, card
        self.shapes: Mapping[str, tuple[int, ...]] = site_shapes(card)
        """Full site name -> shape of a row before it was flattened, in the model's order."""
        self._shards = shards
        self._starts = np.cumsum([0] + [shard.n_rows for shard in shards])
        self._stats: dict[str, SiteStats] = {}

    def __repr__(self) -> str:
        sites = ", ".join(map(site_names.short_name, self.sites[:3])) + " ..." * (len(self.sites) > 3)
        state = "" if self.complete else f"; {len(self._shards)} of {self.card['shards']} shards so far"
        return (
            f"Store({str(self.path)!r}: {self.card['model']['name']}, {self.n_texts} texts, {self.n_rows} rows "
            f"(tokens={self.card['tokens']!r}), {len(self.sites)} sites in {self.dtype}: {sites}{state})"
        )

    # ---------------------------------------------------------------------------------------------- what is in it

    @property
    def sites(self) -> list[str]:
        """Full names of the recorded sites, in the model's order."""
        return list(self.shapes)

    @property
    def dtype(self) -> str:
        """dtype on the disk; whatever it is, rows are handed out in float32."""
        return self.card["dtype"]

    @property
    def model_fingerprint(self) -> str:
        """Fingerprint of the model that made the activations."""
        return self.card["model"]["fingerprint"]

    @property
    def n_rows(self) -> int:
        """Number of kept tokens."""
        return int(self._starts[-1])

    @property
    def n_texts(self) -> int:
        """Number of texts."""
        return sum(shard.n_texts for shard in self._shards)

    @property
    def complete(self) -> bool:
        """Whether every shard is there; False after an interrupted recording, which `record` goes on with."""
        return len(self._shards) == self.card["shards"]

    def width(self, site: str) -> int:
        """Numbers in a row of a site."""
        return math.prod(self.shapes[self._site(site)])

    @property
    def examples(self) -> pd.DataFrame:
        """A row per text, indexed by the text's number: text, label, group, split, the caller's columns; for texts cut
        from long ones also document (number of the input) and chunk."""
        return self._examples.copy(deep=False)

    @property
    def tokens(self) -> pd.DataFrame:
        """A row per kept token: text (its number), position, token_id, is_bos, is_special, is_first (first token of its
        text), is_outlier (at any recorded site); logprob (nats, null at position 0), entropy (nats) and top1 (token id)
        where they were recorded. Outliers of one site: `typical`."""
        return self._tokens.copy(deep=False)

    def typical(self, site: str) -> Bool[np.ndarray, " row"]:
        """For each row whether it is typical: not special, not first in its text, not an outlier at this site."""
        columns = ["is_special", "is_first", outlier_column(self._site(site))]
        table = pa.concat_tables([shard.tokens(columns) for shard in self._finished()])
        return ~np.logical_or.reduce([table.column(name).to_numpy() for name in columns])

    def stats(self, site: str) -> SiteStats:
        """Statistics of a site, of all rows (`.all`) and of typical rows (`.typical`), merged over the shards."""
        site = self._site(site)
        if site not in self._stats:
            self._stats |= self._merged_stats([site])
        return self._stats[site]

    def to_frame(self) -> pd.DataFrame:
        """A row per site: site, layer, shape, dtype, rows, typical_norm (NaN without typical rows), left_out."""
        self._stats |= self._merged_stats(self.sites)
        rows = [
            {
                "site": site,
                "layer": site_names.layer_of(site),
                "shape": " ".join(map(str, shape)),
                "dtype": self.dtype,
                "rows": self._stats[site].all.count,
                "typical_norm": self._stats[site].typical_norm if self._stats[site].typical.count else math.nan,
                "left_out": self._stats[site].left_out,
            }
            for site, shape in self.shapes.items()
        ]
        return pd.DataFrame(rows).astype({"layer": "Int64"})

    # ------------------------------------------------------------------------------------------------------- rows

    def rows(self, site: str, index: Any) -> Float32[Tensor, "n d"]:
        """Rows of a site, in the order asked for.

        Args:
            site: full name or shorthand.
            index: integers (array, tensor or list), a boolean mask over all rows, or a slice.

        Raises:
            ValueError: an unknown site, or an index outside the rows.
        """
        site = self._site(site)
        ascending, place = np.unique(self._row_numbers(index), return_inverse=True)
        found = self._read(site, ascending).float()
        in_order = np.array_equal(place, np.arange(len(ascending)))
        return found if in_order else found[torch.from_numpy(place)]

    def activations(self, text: int, sites: Any = None) -> dict[str, Float32[Tensor, "pos d"]]:
        """The kept rows of one text: full site name -> [pos d]; their positions stand in `tokens`.

        Args:
            text: number of the text, as in the index of `examples`.
            sites: sites or shorthand, None for all.

        Raises:
            ValueError: no such text or site.
        """
        wanted = self.sites if sites is None else site_names.expand(sites, self.sites)
        numbers, start, stop = self._texts
        found = np.flatnonzero(numbers == text)
        if not len(found):
            raise ValueError(f"there is no text {text!r}: the store has {self.n_texts}, see its examples")
        rows = np.arange(self.n_rows)[start[found[0]] : stop[found[0]]]
        return {site: self._read(site, rows).float() for site in wanted}

    def pooled(self, site: str, tokens: str = "last") -> tuple[Float32[Tensor, "text d"], pd.DataFrame]:
        """One row a text, and the frame of texts that it is aligned with.

        Args:
            site: full name or shorthand.
            tokens: of the kept tokens of each text the "last", the "first", or the "mean" over the typical ones.

        Raises:
            ValueError: tokens that were not recorded; a text without typical rows for the mean; NaN.
        """
        site, kept = self._site(site), self.card["tokens"]
        possible = (kept,) if kept in POOLING else POOLING
        if tokens not in possible:
            raise ValueError(
                f"tokens={tokens!r} cannot be read from a store that kept tokens={kept!r}: it has "
                f"{', '.join(map(repr, possible))}; record with tokens='all' for the others"
            )
        _, start, stop = self._texts
        if tokens == "mean":
            pooled = self._mean_of_typical(site)
        else:
            pooled = self.rows(site, stop - 1 if tokens == "last" else start)
        if not bool(torch.isfinite(pooled).all()):
            raise ValueError(f"{site} holds NaN or infinite values: store.verify() lists what is damaged")
        return pooled, self.examples

    def batches(
        self,
        site: str,
        size: int = 4096,
        seed: int = 0,
        typical: bool = True,
        rows: Any = None,
        epochs: int | None = 1,
        drop_last: bool = False,
    ) -> Batches:
        """Shuffled rows of a site as Float32 [size, d], mixed over the whole store; see `Batches` for state and resume.

        Args:
            site: full name or shorthand.
            size: rows in a batch; the last of an epoch is smaller, or left out with `drop_last`.
            seed: decides the order.
            typical: leave out special tokens, first tokens and outliers.
            rows: restrict to these rows (as in `rows`), for a held-out part.
            epochs: passes over the rows, None for no end.

        Raises:
            ValueError: an unknown site, a size, seed or number of epochs out of range, or no row left.
        """
        site = self._site(site)
        for name, value, least in (("size", size, 1), ("seed", seed, 0), ("epochs", epochs, 1)):
            if value is not None and value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        chosen = np.zeros(self.n_rows, dtype=bool)
        chosen[slice(None) if rows is None else self._row_numbers(rows)] = True
        if typical:
            chosen &= self.typical(site)
        if not chosen.any():
            raise ValueError(f"no row of {site} is left: typical={typical} and rows= leave out all {self.n_rows}")
        return Batches(
            functools.partial(self._read, site),
            np.flatnonzero(chosen),
            site=site,
            d=self.width(site),
            row_bytes=self.width(site) * files.DTYPES[self.dtype].itemsize,
            size=size,
            seed=seed,
            epochs=epochs,
            drop_last=drop_last,
        )

    # ----------------------------------------------------------------------------------------------------- checks

    def verify(self) -> pd.DataFrame:
        """Read every byte and compare: a row per problem (shard, file, problem), no row if the store is whole."""
        found: list[tuple[int, str, str]] = []
        for index in range(self.card["shards"]):
            try:
                shard = find_shard(self.path / SHARDS / f"{index:06d}")
            except ValueError as error:
                found.append((index, "shard.json", str(error)))
                continue
            problems = [("shard.json", "not recorded, or gone")] if shard is None else shard.problems()
            found += [(index, name, problem) for name, problem in problems]
        return pd.DataFrame(found, columns=pd.Index(["shard", "file", "problem"]))

    def check_model(self, model: Any) -> None:
        """Refuse a model that did not make this store. ValueError says whether weights or tokenizer differ."""
        pairs = (
            ("model", self.card["model"]["fingerprint"], model.fingerprint),
            ("tokenizer", self.card["tokenizer"]["hash"], getattr(model.tokenizer, "hash", None)),
        )
        differs = [f"{name} ({old} there, {new} now)" for name, old, new in pairs if old != new]
        if differs:
            raise ValueError(
                f"{self.path} was recorded from {self.card['model']['name']} with another "
                f"{' and another '.join(differs)}: load the same, or record again"
            )

    # ---------------------------------------------------------------------------------------------------- helpers

    def _finished(self) -> list[Shard]:
        if not self._shards:
            raise ValueError(f"{self.path} has no finished shard yet: record again to go on with it")
        return self._shards

    @functools.cached_property
    def _examples(self) -> pd.DataFrame:
        frame = pa.concat_tables([shard.examples() for shard in self._finished()]).to_pandas().set_index("text_index")
        return frame.rename_axis(index=None)

    @functools.cached_property
    def _tokens(self) -> pd.DataFrame:
        return pa.concat_tables([shard.tokens() for shard in self._finished()]).to_pandas()

    @functools.cached_property
    def _texts(self) -> tuple[Int[np.ndarray, " text"], Int[np.ndarray, " text"], Int[np.ndarray, " text"]]:
        """Number, first row, and one past the last row of each text."""
        text = self._tokens["text"].to_numpy()
        start = np.flatnonzero(np.diff(text, prepend=-1))
        return text[start], start, np.append(start[1:], len(text))

    def _merged_stats(self, sites: list[str]) -> dict[str, SiteStats]:
        parts = [shard.stats(sites) for shard in self._finished()]
        return {site: functools.reduce(SiteStats.merge, (part[site] for part in parts)) for site in sites}

    def _site(self, site: str) -> str:
        if site in self.shapes:
            return site
        try:
            found = site_names.expand(site, self.sites)
        except ValueError as error:
            have = ", ".join(map(site_names.short_name, self.sites[:8])) + " ..." * (len(self.sites) > 8)
            raise ValueError(f"{site!r} is not in this store, which has {have}: {error}") from None
        if len(found) != 1:
            raise ValueError(f"{site!r} names {len(found)} sites, one is needed here, for example {found[0]!r}")
        return found[0]

    def _row_numbers(self, index: Any) -> Int[np.ndarray, " n"]:
        if isinstance(index, slice):
            return np.arange(self.n_rows)[index]
        wanted = np.atleast_1d(np.asarray(index))
        if wanted.dtype == bool and wanted.shape == (self.n_rows,):
            return np.flatnonzero(wanted)
        if not wanted.size:
            return np.empty(0, dtype=np.int64)
        if wanted.ndim != 1 or not np.issubdtype(wanted.dtype, np.integer):
            raise ValueError(
                f"rows are chosen by integers or by a boolean mask with {self.n_rows} entries, got {wanted.dtype} "
                f"{wanted.shape}"
            )
        if wanted.min() < 0 or wanted.max() >= self.n_rows:
            raise ValueError(f"rows go from 0 to {self.n_rows - 1}, asked for {wanted.min()} to {wanted.max()}")
        return wanted.astype(np.int64)

    def _read(self, site: str, index: Int[np.ndarray, " n"]) -> Shaped[Tensor, "n d"]:
        """Rows `index` (ascending, in range) in the dtype of the disk."""
        out = torch.empty(len(index), self.width(site), dtype=files.DTYPES[self.dtype])
        cuts = np.searchsorted(index, self._starts).tolist()
        for shard, start, a, b in zip(self._shards, self._starts.tolist(), cuts, cuts[1:]):
            if b > a:
                shard.read_rows(site, index[a:b] - start, out[a:b])
        return out

    def _mean_of_typical(self, site: str) -> Float32[Tensor, "text d"]:
        typical, (numbers, start, stop) = self.typical(site), self._texts
        text_of_row = np.repeat(np.arange(len(numbers)), stop - start)
        counts = np.bincount(text_of_row[typical], minlength=len(numbers))
        if not counts.all():
            raise ValueError(
                f"text {numbers[np.argmin(counts)]} has no typical token (each is special, its first one or an "
                "outlier), so it has no mean: leave it out, or use tokens='last'"
            )
        sums = torch.zeros(len(numbers), self.width(site), dtype=torch.float64)
        for first, last in zip(self._starts[:-1], self._starts[1:]):  # a shard at a time bounds the memory
            rows = first + np.flatnonzero(typical[first:last])
            sums.index_add_(0, torch.from_numpy(text_of_row[rows]), self._read(site, rows).double())
        return (sums / torch.from_numpy(counts)[:, None]).float()
