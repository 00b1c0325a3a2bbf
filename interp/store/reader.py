"""Reading a store: frames for texts and tokens, rows of a site, pooled rows, shuffled batches, statistics, a check of all bytes."""

import difflib
import functools
import logging
import math
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from jaxtyping import Bool, Float32, Int, Shaped
from torch import Tensor

from interp import sites as site_names
from interp.store.batches import Batches
from interp.store.shard import Shard, leftovers, outlier_column, read_card
from interp.store.stats import SiteStats
from interp.store import files
from interp.store.writer import SHARDS, STORE_CARD, read_store_card

log = logging.getLogger("interp.store")


class Store:
    """Recorded activations on the disk. Row i is the same token at every site; texts and rows stand in recorded order.

    Made by `open_store` and `record`. Nothing is read before it is asked for, and no file stays open.

    Raises:
        ValueError: from any reader, where a file is damaged; the message names it.
    """

    def __init__(self, path: Path, card: dict[str, Any], shards: list[Shard]) -> None:
        self.path = path
        self.card = card
        self._shards = shards
        self._starts = np.cumsum([0] + [shard.n_rows for shard in shards])
        self._stats: dict[str, SiteStats] = {}
        self.shapes = site_shapes(card)
        """Full site name -> shape of a row before it was flattened, in the model's order."""

    def __repr__(self) -> str:
        state = "" if self.complete else f", {len(self._shards)} of {self.card['shards']} shards so far"
        shown = ", ".join(site_names.short_name(site) for site in self.sites[:3]) + (
            " ..." if len(self.sites) > 3 else ""
        )
        return (
            f"Store({str(self.path)!r}: {self.card['model']['name']}, {self.n_texts} texts, {self.n_rows} rows "
            f"(tokens={self.card['tokens']!r}), {len(self.sites)} sites in {self.dtype}: {shown}{state})"
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
        table = pa.concat_tables([shard.tokens(columns) for shard in self._shards])
        return ~np.logical_or.reduce([table.column(name).to_numpy() for name in columns])

    def stats(self, site: str) -> SiteStats:
        """Statistics of a site, of all rows (`.all`) and of typical rows (`.typical`), merged over the shards."""
        site = self._site(site)
        if site not in self._stats:
            parts = [shard.stats([site])[site] for shard in self._shards]
            if not parts:
                raise ValueError(f"{self.path} has no finished shard yet: record again to go on")
            self._stats[site] = functools.reduce(SiteStats.merge, parts)
        return self._stats[site]

    def to_frame(self) -> pd.DataFrame:
        """A row per site: site, layer, shape, dtype, rows, typical_norm (null without typical rows), left_out."""
        rows = []
        for site in self.sites:
            stats = self.stats(site)
            rows.append(
                {
                    "site": site,
                    "layer": site_names.layer_of(site),
                    "shape": "x".join(map(str, self.shapes[site])),
                    "dtype": self.dtype,
                    "rows": stats.all.count,
                    "typical_norm": stats.typical_norm if stats.typical.count else np.nan,
                    "left_out": stats.left_out,
                }
            )
        return pd.DataFrame(rows).astype({"layer": "Int64"})

    # ------------------------------------------------------------------------------------------------------- rows

    def rows(self, site: str, index: Any) -> Float32[Tensor, "n d"]:
        """Rows of a site in the order asked for.

        Args:
            site: full name or shorthand.
            index: integers (array, tensor or list), a boolean mask over all rows, or a slice.

        Raises:
            ValueError: an unknown site, or an index outside the rows.
        """
        site, wanted = self._site(site), self._index(index)
        unique, place = np.unique(wanted, return_inverse=True)
        found = self._read(site, unique).float()
        return (
            found if len(unique) == len(wanted) and (place[1:] > place[:-1]).all() else found[torch.from_numpy(place)]
        )

    def activations(self, text: int, sites: Any = None) -> dict[str, Float32[Tensor, "pos d"]]:
        """The kept rows of one text: full site name -> [pos d]; their positions stand in `tokens`.

        Args:
            text: number of the text, as in the index of `examples`.
            sites: sites or shorthand, None for all.
        """
        wanted = self.sites if sites is None else site_names.expand(sites, self.sites)
        start, stop = self._spans
        if text not in start.index:
            raise ValueError(
                f"there is no text {text!r}: the store has {self.n_texts}, numbered from {self._first_text()}"
            )
        rows = np.arange(start[text], stop[text])
        return {site: self._read(site, rows).float() for site in wanted}

    def pooled(self, site: str, tokens: str = "last") -> tuple[Float32[Tensor, "text d"], pd.DataFrame]:
        """One row a text, and the frame of texts that it is aligned with.

        Args:
            site: full name or shorthand.
            tokens: of the kept tokens of each text the "last", the "first", or the "mean" over the typical ones.

        Raises:
            ValueError: tokens that were not recorded; a text without typical rows for the mean; NaN.
        """
        site = self._site(site)
        self._check_pooling(tokens)
        start, stop = (span.to_numpy() for span in self._spans)
        if tokens == "mean":
            pooled = self._mean_of_typical(site, start, stop)
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
            rows: restrict to these rows (boolean mask or integers), for a held-out part.
            epochs: passes over the rows, None for no end.

        Raises:
            ValueError: an unknown site, a size or seed out of range, or no row left.
        """
        site = self._site(site)
        for name, value, least in (
            ("size", size, 1),
            ("seed", seed, 0),
            ("epochs", 1 if epochs is None else epochs, 1),
        ):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        chosen = np.ones(self.n_rows, dtype=bool)
        if rows is not None:
            chosen = np.zeros(self.n_rows, dtype=bool)
            chosen[self._index(rows)] = True
        if typical:
            chosen &= self.typical(site)
        if not chosen.any():
            raise ValueError(f"no row of {site} is left: of {self.n_rows}, rows= and typical={typical} leave out all")
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
        present = {shard.index for shard in self._shards}
        for index in range(self.card["shards"]):
            folder = self.path / SHARDS / f"{index:06d}"
            try:
                card = read_card(folder)
            except ValueError as error:
                found.append((index, "shard.json", str(error)))
                continue
            if card is None:
                gone = "gone since the store was opened" if index in present else "not recorded (yet)"
                found.append((index, "shard.json", gone))
                continue
            found += [(index, name, problem) for name, problem in _shard(folder, card, self.card).problems()]
        return pd.DataFrame(found, columns=["shard", "file", "problem"])

    def check_model(self, model: Any) -> None:
        """Refuse a model that did not make this store. ValueError says whether weights or tokenizer differ."""
        tokenizer = getattr(model.tokenizer, "hash", None)
        pairs = (
            ("model", self.card["model"]["fingerprint"], model.fingerprint),
            ("tokenizer", self.card["tokenizer"]["hash"], tokenizer),
        )
        differs = [f"{name} ({old} there, {new} now)" for name, old, new in pairs if old != new]
        if differs:
            raise ValueError(
                f"{self.path} was recorded from {self.card['model']['name']}, which is another {' and '.join(differs)}: "
                "load that model, or record again"
            )

    # ---------------------------------------------------------------------------------------------------- helpers

    @functools.cached_property
    def _examples(self) -> pd.DataFrame:
        tables = [shard.examples() for shard in self._shards]
        frame = pa.concat_tables(tables).to_pandas() if tables else pd.DataFrame({"text_index": [], "text": []})
        frame = frame.set_index("text_index")
        frame.index.name = None
        return frame

    @functools.cached_property
    def _tokens(self) -> pd.DataFrame:
        tables = [shard.tokens() for shard in self._shards]
        if not tables:
            return pd.DataFrame({"text": [], "position": [], "token_id": []})
        names = [name for name in tables[0].column_names if not name.startswith(outlier_column(""))]
        return pa.concat_tables([table.select(names) for table in tables]).to_pandas()

    @functools.cached_property
    def _spans(self) -> tuple[pd.Series, pd.Series]:
        """First row, and one past the last row, of each text; indexed by the text's number."""
        text = self._tokens["text"].to_numpy()
        start = np.flatnonzero(np.diff(text, prepend=-1))
        number = pd.Index(text[start])
        return pd.Series(start, number), pd.Series(np.append(start[1:], len(text)), number)

    def _first_text(self) -> int:
        return self._shards[0].first_text if self._shards else 0

    def _site(self, site: str) -> str:
        if site in self.shapes:
            return site
        try:
            found = site_names.expand(site, self.sites)
        except ValueError as error:
            have = ", ".join(site_names.short_name(name) for name in self.sites[:8])
            raise ValueError(
                f"{site!r} is not in this store (it has {have}{' ...' * (len(self.sites) > 8)}): {error}"
            ) from None
        if len(found) != 1:
            raise ValueError(f"{site!r} names {len(found)} sites, one is needed here, for example {found[0]!r}")
        return found[0]

    def _index(self, index: Any) -> Int[np.ndarray, " n"]:
        if isinstance(index, slice):
            return np.arange(self.n_rows)[index]
        wanted = np.atleast_1d(np.asarray(index))
        if wanted.dtype == bool:
            if wanted.shape != (self.n_rows,):
                raise ValueError(f"a mask over rows has one entry a row ({self.n_rows}), this one is {wanted.shape}")
            return np.flatnonzero(wanted)
        if not len(wanted):
            return np.empty(0, dtype=np.int64)
        if wanted.ndim != 1 or not np.issubdtype(wanted.dtype, np.integer):
            raise ValueError(f"rows are chosen by integers or a boolean mask, got {wanted.dtype} {wanted.shape}")
        if wanted.min() < 0 or wanted.max() >= self.n_rows:
            raise ValueError(f"rows go from 0 to {self.n_rows - 1}, asked for {wanted.min()} to {wanted.max()}")
        return wanted.astype(np.int64)

    def _read(self, site: str, index: Int[np.ndarray, " n"]) -> Shaped[Tensor, "n d"]:
        """Rows `index` (ascending, in range) in the dtype of the disk."""
        cuts = np.searchsorted(index, self._starts)
        parts = [
            shard.rows(site, index[a:b] - start)
            for shard, start, a, b in zip(self._shards, self._starts[:-1], cuts[:-1], cuts[1:])
            if b > a
        ]
        if not parts:
            return torch.empty(0, self.width(site), dtype=files.DTYPES[self.dtype])
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _check_pooling(self, tokens: str) -> None:
        kept = self.card["tokens"]
        allowed = {"all": ("last", "first", "mean"), "answer": ("last", "first", "mean")}.get(kept, (kept,))
        if tokens not in allowed:
            raise ValueError(
                f"tokens={tokens!r} cannot be read from a store that kept tokens={kept!r}: choose {' or '.join(map(repr, allowed))}"
                + ("" if kept == "all" else ", or record with tokens='all'")
            )

    def _mean_of_typical(self, site: str, start: Any, stop: Any) -> Float32[Tensor, "text d"]:
        typical = self.typical(site)
        out = torch.empty(len(start), self.width(site))
        for number, (a, b) in enumerate(zip(start.tolist(), stop.tolist())):
            chosen = a + np.flatnonzero(typical[a:b])
            if not len(chosen):
                raise ValueError(
                    f"text {self.examples.index[number]} has no typical token (each is special, its first one or an outlier), "
                    "so it has no mean: leave it out, or use tokens='last'"
                )
            out[number] = self._read(site, chosen).float().mean(dim=0)
        return out


def open_store(path: str | os.PathLike[str]) -> Store:
    """Open a store for reading, also one that is not finished; what killed writers left behind is ignored and removed.

    Raises:
        ValueError: no such folder (with the nearest stores), not a store, damaged, or of a newer format.
    """
    path = Path(path)
    if not (path / STORE_CARD).is_file():
        raise ValueError(_no_store(path))
    card = read_store_card(path)
    _sweep(path)
    shards = []
    for folder in sorted((path / SHARDS).iterdir()) if (path / SHARDS).is_dir() else ():
        if not folder.name.isdigit():
            continue
        try:
            shard_card = read_card(folder)
        except ValueError as error:
            log.warning("%s is left out: %s", folder, error)
            continue
        if shard_card is not None:
            shards.append(_shard(folder, shard_card, card))
    if len(shards) != card["shards"]:
        log.warning("%s has %d of %d shards; record again to go on with it", path, len(shards), card["shards"])
    return Store(path, card, shards)


def site_shapes(card: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Full site name -> shape of a row, from store.json."""
    return {entry["name"]: tuple(entry["shape"]) for entry in card["sites"]}


def _shard(folder: Path, shard_card: dict[str, Any], card: dict[str, Any]) -> Shard:
    widths = {site: math.prod(shape) for site, shape in site_shapes(card).items()}
    return Shard(folder, shard_card, card["dtype"], widths)


def _sweep(path: Path) -> None:
    """Remove half-made shards, if no writer is at work: then they belong to one that was killed."""
    if not leftovers(path / SHARDS):
        return
    try:
        with files.hold(path, patience=0.0):
            for leftover in leftovers(path / SHARDS):
                shutil.rmtree(leftover)
    except (ValueError, PermissionError) as error:
        log.debug("leftovers in %s stay: %s", path, error)


def _no_store(path: Path) -> str:
    if path.is_dir():
        return f"{path} is a folder but not a store (it has no {STORE_CARD}): give the path that record() was given"
    near: Iterable[str] = ()
    if path.parent.is_dir():
        stores = [p.name for p in sorted(path.parent.iterdir()) if (p / STORE_CARD).is_file()]
        near = difflib.get_close_matches(path.name, stores, 3, 0.4) or stores[:3]
    hint = f"; stores beside it: {', '.join(near)}" if near else ""
    return f"there is no store at {path}{hint}"
