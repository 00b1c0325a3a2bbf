"""Rows straight from a model that reads texts while an SAE trains: no activation is written down.

1. `live_rows` cuts and tokenises the texts as `record` does, and keeps their ids, four bytes a token.
2. A sample of the texts runs once. It stands for the statistics of a store: moments of the typical rows, and the norm over
   which a row is an outlier. Both are frozen: whatever run uses these rows has the same scale and the same mask.
3. A pass permutes the texts. As many as fill the pool run, up to the deepest site that is needed, texts of one length
   together; their typical rows (the rule of `Store.typical`) go into the pool, which is permuted as a whole and handed out
   in batches. Then come the next texts.

Texts are a random sample each time, so a pool of rows is one too, but for texts being in it whole. Memory is that of one
pool, fixed before the first pass.

Where the iteration stands is a pass, a text and a row: the order follows from the seed and the pass alone, so going on
computes one pool again and then gives the same bits (on the same kind of machine, with as many threads).

End of data: which rows are outliers is known when they were computed, but a learning-rate schedule needs the number of
steps before. So a run of n epochs has as many rows as n times all tokens that are neither first nor special, in full
batches; where outliers were left out, the texts begin once more to make up for them.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Int8
from torch import Tensor

from interp.model import HookedTransformer
from interp.recording.batching import Batch, Prices, make_batches
from interp.recording.forward import run_batch
from interp.recording.job import Job, Run, edited_at
from interp.recording.prepare import prepared, require_model
from interp.recording.texts import joined, offsets_of
from interp.sae.config import SAEConfig
from interp.sae.pool import REASONS, PoolBatches
from interp.sae.roles import site_card, sites_and_targets
from interp.sae.rows import TrainingRows
from interp.store import DTYPES, SiteStats
from interp.store.files import empty_rows
from interp.store.lookup import whole_number
from interp.store.stats import row_norms, site_stats

BUFFER_BYTES = 1 << 30
"""Most memory for the pool."""
SAMPLE_ROWS = 16_384
"""Tokens that the frozen statistics are taken from, about."""
_TEXTS_AT_ONCE = 2000
FIRST, SPECIAL = 1, 2
"""Why a token is no row, whatever its norm."""


@dataclass(frozen=True, eq=False)
class LiveTexts:
    """Tokenised texts, one after the other."""

    ids: Int[np.ndarray, " token"]
    """Token ids, int32."""
    offsets: Int[np.ndarray, " boundary"]
    """Text t has the tokens ids[offsets[t]:offsets[t + 1]]."""
    reason: Int8[np.ndarray, " token"]
    """Why a token is no row: `FIRST` of its text, else `SPECIAL`; 0 for an ordinary one."""
    hash: str
    """Of texts and ids."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def rows_per_text(self) -> Int[np.ndarray, " text"]:
        """Ordinary tokens of each text."""
        return np.add.reduceat(self.reason == 0, self.offsets[:-1], dtype=np.int64)

    def tokens_of(self, texts: Int[np.ndarray, " n"]) -> Int[np.ndarray, " token"]:
        """Numbers of all tokens of some texts, one text after the other."""
        starts, stops = self.offsets[texts].tolist(), self.offsets[texts + 1].tolist()
        return joined([np.arange(start, stop) for start, stop in zip(starts, stops)], np.int64)


class LiveRows:
    """What `live_rows` returns: give it to `train_sae` in place of a store.

    Attributes:
        model_fingerprint: of the model when the sample ran.
        sites, targets: full names of what is read and written, as in `TrainingRows`.
        widths: site -> width of a row.
        buffer_rows: rows that the pool holds.
        n_rows: tokens that are neither first nor special, outliers included: the rows of one epoch.
        n_sample_rows: tokens of the sample.
        stats: site -> statistics of the sample; `stats[site].typical_norm` as of a store.
        outlier_norms: site -> norm over which a row is an outlier, None where the median norm is 0.
        card: model, texts, sample and counts, JSON-ready.
    """

    def __init__(
        self,
        job: Job,
        run: Run,
        texts: LiveTexts,
        *,
        model_fingerprint: str,
        sites: Sequence[str],
        targets: Sequence[str],
        buffer_rows: int,
        sample_rows: int,
        seed: int,
    ) -> None:
        """As `live_rows` makes it; the sample runs here."""
        self.job, self.run, self.texts = job, run, texts
        self.model_fingerprint = model_fingerprint
        self.sites, self.targets = tuple(sites), tuple(targets)
        self.names = list(dict.fromkeys([*sites, *targets]))
        self.widths = {name: int(np.prod(job.shapes[name])) for name in self.names}
        self.buffer_rows, self._counts = buffer_rows, texts.rows_per_text
        self.usable = np.flatnonzero(self._counts)
        """Numbers of the texts that have an ordinary token."""
        self.n_rows = int(self._counts.sum())
        self.stats, self.n_sample_rows = self._sample(sample_rows, seed)
        self.outlier_norms = {name: stats.outlier_norms[0] for name, stats in self.stats.items()}
        self.card = self._card(seed)

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that the rows of a pool depend on, JSON-ready."""
        return {
            "model": self.model_fingerprint,
            "texts_hash": self.texts.hash,
            "buffer_rows": self.buffer_rows,
            "widths": self.widths,
            "dtype": self.job.dtype,
            "outlier_norms": self.outlier_norms,
        }

    def __repr__(self) -> str:
        what = ", ".join(self.sites) + (f" -> {', '.join(self.targets)}" if self.targets != self.sites else "")
        name = self.job.model.cfg.name
        return f"LiveRows({name}: {len(self.texts)} texts, {self.n_rows} rows, pool of {self.buffer_rows}, {what})"

    def batches(self, size: int | Any = 4096, seed: int | Any = 0, epochs: int | Any | None = 1) -> "PoolBatches":
        """Shuffled typical rows, each once in an epoch; None for no end. All batches are full but the last one."""
        return PoolBatches(self, size=size, seed=seed, epochs=epochs)

    def training_rows(
        self,
        config: SAEConfig,
        *,
        site: str | Sequence[str] | None = None,
        target: str | None = None,
        world_size: int = 1,
    ) -> TrainingRows:
        """Batches for one run, see the head of this module for its length. ValueError for other sites, a model that has
        changed, or several ranks."""
        if world_size > 1:
            raise ValueError(
                f"{world_size} processes cannot share live rows, for how many rows a text gives is not known before: "
                "record the texts into a store"
            )
        sites = self.sites if site is None else sites_and_targets(self.names, site, None)[0]
        targets = self.targets if target is None else sites_and_targets(self.names, None, target)[1]
        if (sites, targets) != (self.sites, self.targets):
            raise ValueError(
                f"these live rows go from {list(self.sites)} to {list(self.targets)}, not from site={site!r} to "
                f"target={target!r}: say it in live_rows(...)"
            )
        if self.job.model.fingerprint != self.model_fingerprint:
            raise ValueError("the model's weights have changed since live_rows(...): call it again")
        if edited_at(self.job.model) != self.card["live"]["edited_at"]:
            raise ValueError(
                "other hooks are attached to the model than at live_rows(...): attach the same, or call it again"
            )
        n_steps = max(1, config.epochs * self.n_rows // config.batch_size)
        batches = PoolBatches(self, size=config.batch_size, seed=config.seed, epochs=None, n_batches=n_steps)
        moments = {name: stats.typical for name, stats in self.stats.items()}
        return TrainingRows(
            batches, self.sites, self.targets, self.widths, moments, n_steps * config.batch_size, n_steps, self.card
        )

    def pools(self, order: Int[np.ndarray, " text"]) -> Iterator[tuple[int, int]]:
        """(first, last) of the texts of each pool, as places in `order`: as many as are sure to fit."""
        ends = np.cumsum(self._counts[order])
        longest, first, before = int(self._counts.max()), 0, 0
        while first < len(order):
            # Pools of one size: a small last one would mix less than the others.
            left = int(ends[-1]) - before
            even = math.ceil(left / math.ceil(left / self.buffer_rows))
            most = min(self.buffer_rows, even + longest)
            last = int(np.searchsorted(ends, before + most, side="right"))
            assert last > first, "live_rows refuses a pool that does not hold the longest text"
            yield first, last
            first, before = last, int(ends[last - 1])

    def empty_pool(self) -> dict[str, Tensor]:
        """Memory for one pool."""
        return {name: empty_rows(self.buffer_rows, self.widths[name], DTYPES[self.job.dtype]) for name in self.names}

    def fill(self, pool: Mapping[str, Tensor], units: Int[np.ndarray, " n"]) -> tuple[int, dict[str, int]]:
        """Run texts and put their typical rows into the pool; their number, and that of the tokens left out, by reason."""
        n = 0
        left_out: dict[str, int] = dict.fromkeys(REASONS, 0)

        def take(tokens: Int[np.ndarray, " token"], values: Mapping[str, Tensor]) -> None:
            nonlocal n
            reason = self.texts.reason[tokens]
            typical = reason == 0
            for name, limit in self.outlier_norms.items():
                if limit is not None:
                    typical &= row_norms(values[name]) <= limit
            index = torch.from_numpy(np.flatnonzero(typical))
            for name, rows in values.items():
                torch.index_select(rows, 0, index, out=pool[name][n : n + len(index)])
            n += len(index)
            ordinary, first, special = np.bincount(reason, minlength=3).tolist()
            for name, count in zip(REASONS, (first, special, ordinary - len(index)), strict=True):
                left_out[name] += count

        self._run(units, take)
        return n, left_out

    def _run(
        self, texts: Int[np.ndarray, " n"], take: Callable[[Int[np.ndarray, " token"], dict[str, Tensor]], None]
    ) -> None:
        """Run some texts; `take` gets the numbers of the tokens of each pass, and their rows on the CPU."""
        every = self.texts
        ids, offsets = every.ids[every.tokens_of(texts)], offsets_of(np.diff(every.offsets)[texts])
        prices, pad_id = Prices(self.job.model.cfg), self.job.tokenizer.pad_id
        with torch.inference_mode():
            for batch in make_batches(ids, offsets, self.run.limits, prices, pad_id):
                tokens = every.tokens_of(texts[batch.texts])
                take(tokens, self._rows_of(batch, tokens))

    def _rows_of(self, batch: Batch, tokens: Int[np.ndarray, " token"]) -> dict[str, Float[Tensor, "token _"]]:
        values, _, _ = run_batch(self.job, batch)
        cells = torch.from_numpy(batch.cells)
        found = {}
        for name in self.names:
            rows = values[name].index_select(0, cells.to(values[name].device))
            found[name] = rows = rows.to("cpu", DTYPES[self.job.dtype])
            bad = None if np.isfinite(float(rows.sum(dtype=torch.float32))) else ~rows.isfinite().all(dim=1)
            if bad is not None and bool(bad.any()):
                token = int(tokens[int(bad.nonzero()[0, 0])])
                text = int(np.searchsorted(self.texts.offsets, token, side="right")) - 1
                raise ValueError(
                    f"{name}, text {text}, position {token - int(self.texts.offsets[text])}: the activation is NaN or "
                    f"infinite in {self.job.dtype}. The weights are damaged, or the dtype is too narrow: load the model in "
                    "float32, and take dtype='float32'"
                )
        return found

    def _sample(self, most: int, seed: int) -> tuple[dict[str, SiteStats], int]:
        """Statistics of whole texts, drawn by the seed, of at most so many tokens (one text at least)."""
        order = np.random.default_rng(seed).permutation(self.usable)
        lengths = np.diff(self.texts.offsets)[order]
        texts = np.sort(order[: max(1, int(np.searchsorted(np.cumsum(lengths), most, side="right")))])
        n = len(self.texts.tokens_of(texts))
        rows = {name: empty_rows(n, width, DTYPES[self.job.dtype]) for name, width in self.widths.items()}
        seen: list[Int[np.ndarray, " token"]] = []

        def take(tokens: Int[np.ndarray, " token"], values: Mapping[str, Tensor]) -> None:
            done = sum(map(len, seen))
            for name, found in values.items():
                rows[name][done : done + len(tokens)] = found
            seen.append(tokens)

        self._run(texts, take)
        ordinary = self.texts.reason[np.concatenate(seen)] == 0
        return {name: site_stats(rows[name], ordinary)[0] for name in self.names}, n

    def _card(self, seed: int) -> dict[str, Any]:
        job, texts, stats = self.job, self.texts, self.stats
        alone = len(self.names) == 1
        ordinary = min(each.all.count - each.left_out for each in stats.values())
        return {
            **site_card(self.sites, self.targets, self.widths),
            "model": self.model_fingerprint,
            "typical_norm": stats[self.names[0]].typical_norm if alone else None,
            "typical_norms": {name: each.typical_norm for name, each in stats.items()},
            "n_rows_of_store": None,
            "left_out": len(texts.ids) - self.n_rows,
            "live": {
                "texts": len(texts),
                "texts_hash": texts.hash,
                "tokens": len(texts.ids),
                "edited_at": edited_at(job.model),
                "dtype": job.dtype,
                "buffer_rows": self.buffer_rows,
                "outlier_norms": self.outlier_norms,
                "sample": {"seed": seed, "tokens": self.n_sample_rows, "typical": ordinary},
            },
        }


def live_rows(
    model: HookedTransformer | Any,
    data: Any,
    site: str | Sequence[str],
    *,
    target: str | None = None,
    buffer_rows: int | Any | None = None,
    buffer_bytes: int | Any = BUFFER_BYTES,
    sample_rows: int | Any = SAMPLE_ROWS,
    seed: int | Any = 0,
    dtype: str | torch.dtype = "float32",
    bos: bool | Any | None = None,
    long: str | None = None,
    max_length: int | Any = None,
    batch_size: int | Any = None,
    limit: int | Any = None,
    text: str = "text",
    label: str | None = "label",
    group: str | None = None,
) -> LiveRows:
    """Rows that a model computes while an SAE trains on them, as a value that `train_sae` takes in place of a store.

    Hold texts out by giving others to `record` or to a second call.

    Args:
        model: a model with its tokenizer. Hooks that are attached to it stay at work.
        data: texts, as for `record`.
        site: what the SAE reads; several sites for a crosscoder.
        target: what it writes, for a transcoder.
        buffer_rows: rows of the pool that is mixed; None for as many as `buffer_bytes` hold.
        buffer_bytes: most memory for the pool.
        sample_rows: tokens of the sample that the frozen statistics come from; `buffer_bytes` hold for it too.
        seed: which texts are the sample. The order of training follows from the seed of its configuration.
        dtype: of the rows in the pool: bfloat16 takes half the memory of float32. Batches are float32.
        bos, long, max_length, batch_size, limit, text, label, group: as for `record`.

    Raises:
        ValueError: bad input as for `record`, a pool that takes more than `buffer_bytes` or does not hold the longest text,
            a sample without typical rows, NaN activations.
    """
    require_model(model)
    wanted = [site] if isinstance(site, str) else list(site)
    sites = list(dict.fromkeys(full for name in wanted for full in model.expand_sites(name)))
    targets = [] if target is None else model.expand_sites(target)
    if not sites or len(targets) > 1 or set(sites) & set(targets):
        raise ValueError(
            f"site= names what is read and target= one other site, got site={site!r} ({len(sites)}) and target={target!r}"
        )
    with prepared(
        model, data, sites=[*sites, *targets], tokens="all", dtype=dtype, engine="local", bos=bos, long=long, stride=None,
        max_length=max_length, signals=False, head_stats=False, generate=None, batch_size=batch_size, limit=limit, text=text,
        label=label, group=group,
    ) as it:  # fmt: skip
        cuts = range(0, it.plan.n_texts, _TEXTS_AT_ONCE)
        ids = joined([it.plan.shard(a, min(a + _TEXTS_AT_ONCE, it.plan.n_texts)).ids for a in cuts], np.int32)
        offsets, digest = offsets_of(it.plan.lengths), it.plan.hashes()["hash"]
    special = np.array(sorted(it.job.tokenizer.special_ids), dtype=np.int32)
    reason = np.where(np.isin(ids, special), SPECIAL, 0).astype(np.int8)
    reason[offsets[:-1]] = FIRST
    texts = LiveTexts(ids, offsets, reason, digest)
    most_bytes, row_bytes = whole_number("buffer_bytes", buffer_bytes, 1), it.job.row_bytes
    return LiveRows(
        it.job, it.run, texts, model_fingerprint=it.card["model"]["fingerprint"], sites=sites, targets=targets or sites,
        seed=whole_number("seed", seed, 0),
        buffer_rows=_pool_rows(texts, row_bytes, buffer_rows, most_bytes),
        sample_rows=min(whole_number("sample_rows", sample_rows, 1), most_bytes // row_bytes),
    )  # fmt: skip


def _pool_rows(texts: LiveTexts, row_bytes: int, asked: int | Any | None, most_bytes: int) -> int:
    """Rows of the pool."""
    per_text = texts.rows_per_text
    if not per_text.any():
        raise ValueError(
            f"none of the {len(texts.ids)} tokens is typical (each is special or first in its text): give longer texts"
        )
    n = min(int(per_text.sum()), most_bytes // row_bytes) if asked is None else whole_number("buffer_rows", asked, 1)
    if n * row_bytes > most_bytes:
        raise ValueError(f"a pool of {n} rows takes {n * row_bytes} bytes, over buffer_bytes={most_bytes}")
    if n < per_text.max():
        raise ValueError(
            f"a text has {per_text.max()} rows, the pool holds {n}: give a larger buffer_rows or buffer_bytes, or a smaller "
            "max_length"
        )
    return n
