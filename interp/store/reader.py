"""`Store`: frames of texts and tokens, rows of a site, pooled rows, shuffled batches, statistics, views, checks.

A view (`Store.select`) is a store too. It keeps the numbers of the chosen rows and reads through the store that it was
made from; texts keep their numbers, rows are counted anew.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from jaxtyping import Bool, Float32, Int, Shaped
from torch import Tensor

from interp import sites as site_names
from interp.store import batches as batching
from interp.store import convert, files, parts, pooling, view
from interp.store.batches import Batches
from interp.store.joined import JoinedShard
from interp.store.lookup import find_site, row_numbers, whole_number
from interp.store.place import Place
from interp.store.shard import norm_column, outlier_column, site_shapes
from interp.store.stats import SiteStats

TOKEN_IDS = "token_ids"
"""Column of examples.parquet with the tokens of each whole text."""


class Store:
    """Recorded activations on the disk. Row i is the same token at every site; texts and rows stand in recorded order.

    Made by `open_store` and `record`; its views by `select`. Nothing is read before it is asked for, and no file stays
    open. Wherever a site is asked for, its full name and its shorthand (`resid_post:6`) both do.

    Raises:
        ValueError: from whatever reads a file that is damaged; the message names it.
    """

    def __init__(self, path: Place, card: dict[str, Any], shards: Sequence[JoinedShard]) -> None:
        self.path, self.card = path, card
        self.shapes: Mapping[str, tuple[int, ...]] = site_shapes(card)
        """Full site name -> shape of a row before it was flattened, in the model's order."""
        self._shards = list(shards)
        self._starts = np.cumsum([0] + [shard.n_rows for shard in shards])
        self._stats: dict[str, SiteStats] = {}
        self._last_ids: tuple[JoinedShard, pa.ChunkedArray] | None = None
        self._parent: Store | None = None
        self._chosen: Int[np.ndarray, " row"] | None = None

    def __repr__(self) -> str:
        sites = ", ".join(map(site_names.short_name, self.sites[:3])) + " ..." * (len(self.sites) > 3)
        state = "" if self.complete else f"; {len(self._shards)} of {self.card['shards']} shards so far"
        part = f" chosen from {self._whole.n_rows}" if self.is_view else ""
        return (
            f"Store({str(self.path)!r}: {self.card['model']['name']}, {self.n_texts} texts, {self.n_rows} rows{part} "
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
        """Number of rows: kept tokens, and averages."""
        return int(self._starts[-1]) if self._chosen is None else len(self._chosen)

    @property
    def n_texts(self) -> int:
        """Number of texts; of a view those that have a row in it."""
        return len(self._texts[0]) if self.is_view else sum(shard.n_texts for shard in self._shards)

    @property
    def complete(self) -> bool:
        """Whether every shard is there; False after an interrupted recording, which `record` goes on with."""
        return len(self._shards) == self.card["shards"]

    @property
    def is_view(self) -> bool:
        """Whether this is a view, made by `select`."""
        return self._chosen is not None

    @property
    def _whole(self) -> "Store":
        """The store that a view was chosen from; itself where it is none. Not kept: a temporary store ends with its object."""
        return self if self._parent is None else self._parent

    def width(self, site: str) -> int:
        """Numbers in a row of a site."""
        return math.prod(self.shapes[self._site(site)])

    @property
    def examples(self) -> pd.DataFrame:
        """A row per text, indexed by the text's number: text, label, group, split, the caller's columns; for texts cut
        from long ones also document (number of the input) and chunk. Whole numbers of which some are missing are Int64.
        The texts' tokens: `token_ids`."""
        return self._examples.copy(deep=False)

    @property
    def tokens(self) -> pd.DataFrame:
        """A row per row of the sites: text (its number), position and token_id (-1 for an average), is_bos, is_special,
        is_first (first token of its text), is_outlier (at any recorded site); `rule:<name>` where several token rules
        were recorded; logprob (nats, null at position 0), entropy (nats), top1 (token id) and rank where they were
        recorded. Of one site: `typical`, `norms`."""
        return self._tokens.copy(deep=False)

    def token_ids(self, text: int | Any) -> Int[np.ndarray, " token"]:
        """All tokens of a text, also those that were not kept, as the model read them.

        Raises:
            ValueError: no such text; a store of format 1, which did not keep them.
        """
        shard, whole = self._shard_of(text), self._whole
        if whole._last_ids is None or whole._last_ids[0] is not shard:
            table = shard.examples()
            if TOKEN_IDS not in table.column_names:
                raise ValueError(
                    f"{self.path} does not hold the tokens of its texts: it was written in format 1, so record again at "
                    "another path"
                )
            whole._last_ids = shard, table.column(TOKEN_IDS)  # texts are often asked for one after the other
        return whole._last_ids[1][int(text) - shard.first_text].values.to_numpy()

    def typical(self, site: str) -> Bool[np.ndarray, " row"]:
        """For each row whether it is typical: not special, not first in its text, not an outlier at this site; and no
        average, in a store that has single tokens too."""
        names = ["is_special", "is_first", outlier_column(self._site(site))]
        table = self._columns([*names, "position"])
        typical = ~np.logical_or.reduce([table.column(name).to_numpy() for name in names])
        if pooling.holds_averages_among_tokens(self.card):
            typical &= table.column("position").to_numpy() >= 0
        return typical

    def outliers(self, site: str) -> Bool[np.ndarray, " row"]:
        """For each row whether it is an outlier at this site: of a norm over ten times the median of the ordinary rows."""
        return self._columns([outlier_column(self._site(site))]).column(0).to_numpy()

    def norms(self, site: str) -> Float32[np.ndarray, " row"]:
        """Euclidean norm of each row of a site, as it was recorded. ValueError for a store of format 1."""
        return self._columns([norm_column(self._site(site))]).column(0).to_numpy()

    def head_stats(self, layer: int) -> dict[str, Float32[Tensor, "row head"]]:
        """Of each row and head of a layer the "entropy" of its attention (nats), and the share of it that goes to the
        "first" token of the text. ValueError where they were not recorded, by `record(..., head_stats=True)`."""
        found = [shard.head_stats(layer) for shard in self._finished()]
        joined = {kind: torch.cat([part[kind] for part in found]) for kind in found[0]}
        if self._chosen is None:
            return joined
        return {kind: values[torch.from_numpy(self._chosen)] for kind, values in joined.items()}

    def stats(self, site: str) -> SiteStats:
        """Statistics of a site: of all rows (`.all`) and of typical ones (`.typical`). Those of a view read its rows once."""
        site = self._site(site)
        self._add_stats([site])
        return self._stats[site]

    def summary(self) -> dict[str, Any]:
        """What it is, JSON-ready: path, model, texts, rows, tokens, dtype, finished, sites with the shape of a row."""
        return convert.summary(self)

    def to_frame(self) -> pd.DataFrame:
        """A row per site: site, layer, shape, dtype, rows, typical_norm (NaN without typical rows), left_out."""
        self._add_stats(self.sites)
        return convert.sites_frame(self)

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
        return convert.in_order(functools.partial(self._read, site), self._numbers(index), self.width(site))

    def activations(self, text: int | Any, sites: Any = None) -> dict[str, Float32[Tensor, "pos d"]]:
        """The rows of one text: full site name -> [pos d]; their positions stand in `tokens`.

        Args:
            text: number of the text, as in the index of `examples`.
            sites: sites or shorthand, None for all.

        Raises:
            ValueError: no such text or site.
        """
        wanted = self.sites if sites is None else site_names.expand(sites, self.sites)
        self._shard_of(text)
        numbers, start, stop = self._texts
        at = np.searchsorted(numbers, text)
        if at == len(numbers) or numbers[at] != text:
            return {site: torch.empty(0, self.width(site)) for site in wanted}
        rows = np.arange(start[at], stop[at])
        return {site: self._read(site, rows).float() for site in wanted}

    def pooled(self, site: str, tokens: str | Any = "last") -> tuple[Float32[Tensor, "text d"], pd.DataFrame]:
        """One row a text, and the frame of texts that it is aligned with (those that have rows).

        Args:
            site: full name or shorthand.
            tokens: of the kept tokens of each text the "last", the "first", or the "mean" over the typical ones; a
                recorded rule that kept one row a text, by its name; or "pick:rule" for the tokens that one of several
                recorded rules kept, as in "mean:answer".

        Raises:
            ValueError: tokens that were not recorded; a text without a row, or without typical rows for the mean; NaN.
        """
        site = self._site(site)
        pooled = pooling.pooled_rows(self, site, tokens)
        if not bool(torch.isfinite(pooled).all()):
            raise ValueError(f"{site} holds NaN or infinite values: store.verify() lists what is damaged")
        return pooled, self._examples.loc[self._texts[0]]

    def batches(
        self,
        site: str | Sequence[str],
        size: int | Any = 4096,
        seed: int | Any = 0,
        typical: bool = True,
        rows: Any = None,
        epochs: int | Any | None = 1,
        drop_last: bool = False,
        rank: int | Any = 0,
        world_size: int | Any = 1,
        prefetch: bool = True,
        block: int | Any | None = None,
    ) -> Batches[Any]:
        """Shuffled rows of a site as Float32 [size, d], mixed over the whole store; see `Batches` for state and resume.

        Args:
            site: full name or shorthand; a list of them for batches {full name: Float32 [size, d]} of the same rows.
            size: rows in a batch; the last of an epoch is smaller, or left out with `drop_last`.
            seed: decides the order.
            typical: only the rows that are `typical` (with several sites: at all of them).
            rows: restrict to these rows (as in `rows`), for a held-out part.
            epochs: passes over the rows, None for no end.
            rank, world_size: number of this process, and how many share the rows. In an epoch the ranks have no row in
                common and all the same number of batches of the same sizes; of all rows at most a block a rank is left
                out, other ones in each epoch. `size` is that of each rank.
            prefetch: let a thread read ahead, if the consumer does more than take the batches.
            block: neighbouring rows that are read in one go and stay together until they are mixed in a window of 96 MB.
                1 is a permutation of all rows; larger ones read a cold disk or an object store faster and mix less (how
                much: `interp.store.batches`). None is 1 up to 4 GB of rows on this machine's disk, else 64.

        Raises:
            ValueError: an unknown site, no whole number or one out of range, no row left, or too few for `world_size`.
        """
        return batching.of_store(
            self, site, typical, rows, block, size=size, seed=seed, epochs=epochs, drop_last=drop_last, rank=rank,
            world_size=world_size, prefetch=prefetch,
        )  # fmt: skip

    def to_torch(self, site: str, rows: Any = None) -> Float32[Tensor, "n d"]:
        """Rows of a site (as in `rows`, None for all). ValueError where they take more than the free memory."""
        return convert.to_torch(self, self._site(site), self._numbers(rows))

    def to_numpy(self, site: str, rows: Any = None) -> Float32[np.ndarray, "n d"]:
        """As `to_torch`, as an array."""
        return self.to_torch(site, rows).numpy()

    def to_pandas(self, site: str, rows: Any = None) -> pd.DataFrame:
        """As `to_torch`, as a frame with columns 0 to d - 1, indexed by text and position."""
        return convert.to_pandas(self, self._site(site), self._numbers(rows))

    def to_arrow(self, site: str, rows: Any = None) -> pa.Table:
        """As `to_torch`, as a table: the columns of `tokens`, and `acts` as fixed_size_list<float>[d]."""
        return convert.to_arrow(self, self._site(site), self._numbers(rows), self._columns(None))

    # ------------------------------------------------------------------------------------------------------ views

    def select(self, query: str | Any = None, *, texts: Any = None, rows: Any = None) -> "Store":
        """A view of some rows, with all that reading a store can; nothing is copied. What is given must all hold.

        Texts keep their numbers; those without a row in the view are not in it. Rows are counted anew, in their order.
        A view cannot grow: sites and texts are added to the store that it was made from.

        Args:
            query: a pandas query over the columns of `tokens` and `examples`, such as
                "label == 1 and position > 3 and string.str.contains('Paris')". `text` is the text's number, `string` the
                text; where both frames have a name it is the token's, and `example_<name>` the example's.
            texts: numbers of texts.
            rows: rows, as in `rows`.

        Raises:
            ValueError: nothing was given; no such text or row; a query that is refused (see `interp.store.query`); no row
                fulfils all. The message says what the columns hold.
        """
        found = Store(self.path, self.card, self._shards)
        chosen = view.choose_rows(self, query, texts, rows)
        found._parent, found._chosen = self._whole, chosen if self._chosen is None else self._chosen[chosen]
        return found

    # ----------------------------------------------------------------------------------------------------- checks

    def verify(self) -> pd.DataFrame:
        """Read every byte and compare: a row per problem (shard, file, problem); of a view, the whole store is verified."""
        return pd.DataFrame(parts.problems(self.path), columns=pd.Index(["shard", "file", "problem"]))

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

    def _finished(self) -> list[JoinedShard]:
        if not self._shards:
            raise ValueError(f"{self.path} has no finished shard yet: record again to go on with it")
        return self._shards

    def _numbers(self, index: Any) -> Int[np.ndarray, " n"]:
        self._finished()
        return row_numbers(index, self.n_rows)

    def _site(self, site: str) -> str:
        return find_site(site, self.sites)

    def _columns(self, names: list[str] | None) -> pa.Table:
        """Columns of tokens, None for all but those of one site."""
        table = pa.concat_tables([s.tokens(names) for s in self._finished()], promote_options="permissive")
        return table if self._chosen is None else table.take(pa.array(self._chosen))

    @functools.cached_property
    def _tokens(self) -> pd.DataFrame:
        if self._chosen is not None:
            return self._whole._tokens.iloc[self._chosen].reset_index(drop=True)
        return self._columns(None).to_pandas()

    @functools.cached_property
    def _examples(self) -> pd.DataFrame:
        if self._chosen is not None:
            return self._whole._examples.loc[self._texts[0]]
        table = pa.concat_tables([s.examples() for s in self._finished()], promote_options="permissive")
        kept = [name for name in table.column_names if name != TOKEN_IDS]
        return convert.examples_frame(table.select(kept))

    @functools.cached_property
    def _texts(self) -> tuple[Int[np.ndarray, " text"], Int[np.ndarray, " text"], Int[np.ndarray, " text"]]:
        """Number, first row, and one past the last row of each text that has rows."""
        text = self._tokens["text"].to_numpy()
        start = np.flatnonzero(np.diff(text, prepend=-1))
        return text[start], start, np.append(start[1:], len(text))

    def _shard_of(self, text: int | Any) -> JoinedShard:
        number, shards = whole_number("text", text), self._finished()
        shard = next((s for s in shards if 0 <= number - s.first_text < s.n_texts), None)
        if shard is None or (self._chosen is not None and number not in self._examples.index):
            raise ValueError(f"there is no text {number}: the store has {self.n_texts}, see its examples")
        return shard

    def _add_stats(self, sites: list[str]) -> None:
        """Let the statistics of sites be known."""
        missing = [site for site in sites if site not in self._stats]
        if self._chosen is not None:
            for site in missing:
                norms = self._whole.stats(site).outlier_norms
                self._stats[site] = view.stats_of_rows(functools.partial(self._read, site), self.typical(site), norms)
        elif missing:
            found = [shard.stats(missing) for shard in self._finished()]
            self._stats |= {site: functools.reduce(SiteStats.merge, (part[site] for part in found)) for site in missing}

    def _read(self, site: str, index: Int[np.ndarray, " n"]) -> Shaped[Tensor, "n d"]:
        """Rows `index` (ascending, in range) in the dtype of the disk."""
        index = index if self._chosen is None else self._chosen[index]
        out = files.empty_rows(len(index), self.width(site), files.DTYPES[self.dtype])
        cuts = np.searchsorted(index, self._starts).tolist()
        for shard, start, a, b in zip(self._shards, self._starts.tolist(), cuts, cuts[1:]):
            if b > a:
                shard.read_rows(site, index[a:b] - start, out[a:b])
        return out
