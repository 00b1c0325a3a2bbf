"""Where the rows of a run come from: a store, a model that reads texts, tensors, or batches that can be read more than once.

1. Which sites are read and which are written: one site for an SAE, several for a crosscoder, a `target` for a transcoder.
   The rows of several sites stand beside each other, row i of each being the same token.
2. Which rows count. A store leaves out rows that are not typical (position 0, special tokens, outlier norms) at any of
   these sites. Tensors and batches are taken as they are, every row of them.
3. One scale for each site, frozen before the first step: it brings the site to variance 1 per dimension. Of a store it
   follows from the statistics of all its typical rows, also where `rows=` holds some out or another site leaves some out;
   so every run on a store, whatever its split, works in the same units. Other data takes a pass of its own for it.

Processes that train together (`rank` of `world_size`) share the rows of a store or of tensors; scale, steps and identity
are the same for all of them.
"""

import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float32, Float64, Int
from torch import Tensor

from interp.artifact import hash_json
from interp.dataset import grouped_split
from interp.sae.config import SAEConfig
from interp.sae.roles import UNNAMED, full_name, one_name, plain_card, site_card, sites_and_targets
from interp.sae.tensors import moments_of, require_finite, same_length, tensor_batches
from interp.store import Batches, Moments, Store, lookup
from interp.store.lookup import find_site, whole_number

_ROWS_AT_ONCE = 8192
"""Rows of a tensor whose moments are taken together; a number of its own, so that no choice of a run changes the scale."""
_MOVING = ("epoch", "first", "row", "rows", "batches", "left_out", "rank")
"""What a state says of where the iteration stands, and for which process; the rest of it is the order of the rows."""


@runtime_checkable
class Resumable(Protocol):
    """Batches that know where they stand."""

    def state(self) -> dict[str, Any]:
        """Where the iteration stands, JSON-ready."""
        ...

    def load_state(self, state: dict[str, Any]) -> None:
        """Let the next iteration begin there."""
        ...


@dataclass(frozen=True, eq=False)
class TrainingRows:
    """Batches for one run, and what training must know of them before it starts."""

    batches: Iterable[Any]
    """Yields Float [row d] of one site, or {site: Float [row d]} of the same rows; `pair` takes both. To resume,
    `Resumable` ones are put where they stood, others read up to there."""
    sites: tuple[str, ...]
    """What is read, in the order in which the columns of `pair` stand; `UNNAMED` where nobody named it."""
    targets: tuple[str, ...]
    """What is written: the sites themselves, but for a transcoder."""
    widths: Mapping[str, int]
    """Site -> width of its rows."""
    moments: Mapping[str, Moments]
    """Site -> count, mean and squared deviations that the scale follows from."""
    n_rows: int
    """Rows of the whole run, every epoch and every rank counted."""
    n_steps: int
    """Batches of the whole run, the same for every rank."""
    card: Mapping[str, Any]
    """What goes into the SAE's card: sites, model, statistics, what was left out."""

    def __post_init__(self) -> None:
        for site, moments in self.moments.items():
            if not float(moments.variance.sum()) > 0:
                where = f" of {site}" if len(self.moments) > 1 else ""
                raise ValueError(f"all {moments.count} rows{where} are equal: there is nothing to learn from them")

    @property
    def is_paired(self) -> bool:
        """Whether other sites are written than read."""
        return self.targets != self.sites

    @functools.cached_property
    def scales(self) -> dict[str, float]:
        """Site -> factor to variance 1 per dimension: with it, a squared error per entry is an FVU."""
        return {
            site: math.sqrt(self.widths[site] / float(moments.variance.sum())) for site, moments in self.moments.items()
        }

    @functools.cached_property
    def mean_in(self) -> Float64[Tensor, " d_in"]:
        """Mean of the raw rows that are read."""
        return torch.cat([self.moments[site].mean for site in self.sites])

    @functools.cached_property
    def mean_out(self) -> Float64[Tensor, " d_out"]:
        """Mean of the raw rows that are written."""
        return torch.cat([self.moments[site].mean for site in self.targets])

    @functools.cached_property
    def scale_in(self) -> Float64[Tensor, " d_in"]:
        """Factor of each column that is read; the columns of a site have the same."""
        return self._columns(self.sites)

    @functools.cached_property
    def scale_out(self) -> Float64[Tensor, " d_out"]:
        """Factor of each column that is written."""
        return self._columns(self.targets)

    @property
    def identity(self) -> dict[str, Any]:
        """What tells these rows and their order from others, JSON-ready, so that a checkpoint is not continued on other
        data. All ranks have the same, and it does not change while the batches are read."""
        numbers = [[moments.mean.tolist(), float(moments.variance.sum())] for moments in self.moments.values()]
        order = {name: value for name, value in (self.state() or {}).items() if name not in _MOVING}
        found = {"statistics": hash_json(numbers), "order": hash_json(order)}
        return {"n_rows": self.n_rows, "n_steps": self.n_steps, **found, **self.card}

    def pair(
        self, batch: Tensor | Mapping[str, Tensor]
    ) -> tuple[Float32[Tensor, "row d_in"], Float32[Tensor, "row d_out"]]:
        """Scaled rows that are read, and those that are to be written: for an SAE or a crosscoder one and the same tensor.

        Raises:
            ValueError: NaN or infinity in a row.
        """
        read = self._scaled(batch, self.sites)
        return read, self._scaled(batch, self.targets) if self.is_paired else read

    def state(self) -> dict[str, Any] | None:
        """Where the batches stand, for any of the ranks; None for batches that do not know."""
        if not isinstance(self.batches, Resumable):
            return None
        return {name: value for name, value in self.batches.state().items() if name != "rank"}

    def load_state(self, state: Mapping[str, Any] | Any) -> None:
        """Let the next reading of the batches go on where `state` was taken, by whichever rank. ValueError if that was of
        other batches."""
        assert isinstance(self.batches, Resumable), "only batches that know where they stand have a state"
        own = {"rank": self.batches.rank} if isinstance(self.batches, Batches) else {}
        self.batches.load_state({**state, **own})

    def _columns(self, sites: Sequence[str]) -> Float64[Tensor, " d"]:
        factors = torch.tensor([self.scales[site] for site in sites], dtype=torch.float64)
        return factors.repeat_interleave(torch.tensor([self.widths[site] for site in sites]))

    def _scaled(self, batch: Tensor | Mapping[str, Tensor], sites: Sequence[str]) -> Float32[Tensor, "row d"]:
        parts = [batch] if isinstance(batch, Tensor) else [batch[site] for site in sites]
        for part in parts:
            # A sum is NaN or infinite where a value is. Where finite values add up to infinity, the look at each tells.
            if not math.isfinite(float(part.sum())):
                require_finite(part)
        if len(parts) == 1:
            return parts[0].float() * self.scales[sites[0]]
        scaled = parts[0].new_empty(len(parts[0]), sum(self.widths[site] for site in sites), dtype=torch.float32)
        columns = scaled.split([self.widths[site] for site in sites], dim=1)
        for part, site, place in zip(parts, sites, columns, strict=True):
            torch.mul(part.float(), self.scales[site], out=place)
        return scaled


@runtime_checkable
class RowSource(Protocol):
    """Data that makes its own batches, such as `live_rows`."""

    def training_rows(
        self, config: SAEConfig, *, site: str | Sequence[str] | None, target: str | None, world_size: int
    ) -> TrainingRows:
        """Batches for one run; the arguments are those of the function of this name."""
        ...


# ------------------------------------------------------------------------------------------------ from data to batches


def training_rows(
    data: object,
    config: SAEConfig,
    *,
    site: str | Sequence[str] | None = None,
    target: str | None = None,
    rows: Any = None,
    rank: int | Any = 0,
    world_size: int | Any = 1,
) -> TrainingRows:
    """Make batches of whatever `train_sae` was given.

    Args:
        data: a store; `live_rows(...)`; a tensor [row d_model]; {site: tensor} of the same rows, or (x, y) with a target;
            batches that can be read more than once, of tensors or of {site: tensor}: a list, or `store.batches(...)`.
            Batches keep their own order, size and epochs, and are read from their beginning, also after `load_state`.
        config: its batch_size, seed and epochs are used.
        site: what is read, several sites for a crosscoder. Required for a store; None is everything else but the target.
        target: what is written, for a transcoder.
        rows: numbers, a mask or a slice of the store rows to train on; those that are not typical are left out in any
            case.
        rank, world_size: number of this process, and how many share the rows. `config.batch_size` is that of all of them
            together, so that a run has the same steps however many processes there are.

    Raises:
        ValueError: nothing to train on, rows that are not finite or all equal, sites that are not in the data, or data
            that processes cannot share.
    """
    world_size, rank = whole_number("world_size", world_size, 1), whole_number("rank", rank, 0)
    if isinstance(data, Store):
        return _of_store(data, config, site, target, rows, rank, world_size)
    if rows is not None:
        raise ValueError("rows= chooses rows of a store: give it with a store, or index the tensor yourself")
    if isinstance(data, RowSource):
        return data.training_rows(config, site=site, target=target, world_size=world_size)
    if isinstance(data, Tensor):
        data = {one_name(site, target): data}
    elif isinstance(data, tuple) and target is not None and len(data) == 2:
        data = {one_name(site, None) or "x": data[0], target: data[1]}
    if isinstance(data, Mapping):
        return _of_tensors(data, config, site, target, rank, world_size)
    if isinstance(data, Iterator | str) or not isinstance(data, Iterable):
        raise ValueError(
            "training takes a store, live_rows(...), a tensor [row d_model], {site: tensor}, or batches that can be read "
            f"more than once (a list, store.batches(...)), not {type(data).__name__}"
        )
    if world_size > 1:
        raise ValueError(
            f"{world_size} processes share the rows of a store or of a tensor: give one of these instead of batches"
        )
    return _of_batches(data, site, target)


def _of_store(
    store: Store,
    config: SAEConfig,
    site: str | Sequence[str] | None,
    target: str | None,
    rows: Any,
    rank: int,
    world_size: int,
) -> TrainingRows:
    if site is None or not len(site):
        raise ValueError(f"say which site to train on, site=...; this store has {', '.join(store.sites)}")
    sites, targets = sites_and_targets(store.sites, site, target, lambda name: find_site(name, store.sites))
    names = list(dict.fromkeys([*sites, *targets]))
    batches = store.batches(
        names if len(names) > 1 else names[0], size=_share(config.batch_size, world_size), seed=config.seed, typical=True,
        rows=rows, epochs=config.epochs, rank=rank, world_size=world_size,
    )  # fmt: skip
    stats = {name: store.stats(name) for name in names}
    typical = np.logical_and.reduce([store.typical(name) for name in names])[row_numbers(store, rows)]
    card = {
        **site_card(sites, targets, batches.widths),
        "model": store.model_fingerprint,
        "typical_norm": stats[names[0]].typical_norm if len(names) == 1 else None,
        "typical_norms": {name: each.typical_norm for name, each in stats.items()},
        "n_rows_of_store": store.n_rows,
        "left_out": int(np.count_nonzero(~typical)),
    }
    moments = {name: each.typical for name, each in stats.items()}
    n_rows = config.epochs * batches.n_rows * world_size
    return TrainingRows(batches, sites, targets, batches.widths, moments, n_rows, len(batches), card)


def _of_tensors(
    data: Mapping[Any, Any],
    config: SAEConfig,
    site: str | Sequence[str] | None,
    target: str | None,
    rank: int,
    world_size: int,
) -> TrainingRows:
    if not data or not all(isinstance(name, str) for name in data):
        raise ValueError(f"several tensors are given as {{site name: tensor [row d]}}, got the names {list(data)}")
    given, data = data, {full_name(name): each for name, each in data.items()}
    if len(data) != len(given):
        raise ValueError(f"two of {', '.join(given)} are the same site")
    sites, targets = sites_and_targets(list(data), site, target)
    tensors = {name: data[name] for name in dict.fromkeys([*sites, *targets])}
    alone = next(iter(tensors.values())) if len(tensors) == 1 else None
    size = _share(config.batch_size, world_size)
    options = {"size": size, "seed": config.seed, "epochs": config.epochs, "rank": rank, "world_size": world_size}
    batches = tensor_batches(tensors if alone is None else alone, **options)
    moments = {name: moments_of(each.split(_ROWS_AT_ONCE)) for name, each in tensors.items()}
    widths = {name: each.shape[1] for name, each in tensors.items()}
    n_rows = config.epochs * batches.n_rows * world_size
    return TrainingRows(
        batches, sites, targets, widths, moments, n_rows, len(batches), plain_card(sites, targets, widths)
    )


def _of_batches(batches: Iterable[Any], site: str | Sequence[str] | None, target: str | None) -> TrainingRows:
    if isinstance(batches, Resumable):
        next(iter(batches), None)  # a state that was loaded is for one reading: the next begins at the start
    if not isinstance(batches, Batches):
        moments, n_steps = _moments_by_site(batches, site, target)
        n_rows = next(iter(moments.values())).count
    else:
        try:
            n_steps = len(batches)
        except TypeError:
            raise ValueError(
                "batches without an end cannot be trained on: give store.batches(..., epochs=...)"
            ) from None
        first_epoch = takewhile(lambda _: batches.state()["epoch"] == 0, batches)
        moments, _ = _moments_by_site(first_epoch, site, target, batches.sites)
        count = next(iter(moments.values())).count
        n_rows = n_steps // math.ceil(count / batches.size) * count
    sites, targets = sites_and_targets(list(moments), site, target)
    chosen = {name: moments[name] for name in dict.fromkeys([*sites, *targets])}
    widths = {name: len(each.mean) for name, each in chosen.items()}
    return TrainingRows(batches, sites, targets, widths, chosen, n_rows, n_steps, plain_card(sites, targets, widths))


def _moments_by_site(
    batches: Iterable[Any], site: str | Sequence[str] | None, target: str | None, names: Sequence[str] = (UNNAMED,)
) -> tuple[dict[str, Moments], int]:
    """Moments of each site, and the number of batches; `names` are those that the batches know themselves."""
    if list(names) != [UNNAMED]:
        sites_and_targets(names, site, target)  # a wrong site is refused before the rows are read
    total: dict[str, Moments] = {}
    n_steps = 0
    for batch in batches:
        n_steps += 1
        if isinstance(batch, Tensor):
            name = names[0] or one_name(site, target)
            batch = {name: batch}
        same_length(batch)
        for name, rows in batch.items():
            part = moments_of([rows])
            total[name] = part if name not in total else total[name].merge(part)
    if not total:
        raise ValueError("there are no rows")
    return total, n_steps


def _share(batch_size: int, world_size: int) -> int:
    """Rows of a batch that each process takes."""
    if batch_size % world_size:
        raise ValueError(f"batch_size={batch_size} cannot be dealt out to {world_size} processes: choose a multiple")
    return batch_size // world_size


# ------------------------------------------------------------------------------------------------------ rows of a store


def row_numbers(store: Store, rows: Any) -> Int[np.ndarray, " n"]:
    """Numbers, a mask or a slice of store rows, or None for all, as ascending numbers, each once. ValueError for rows that
    are not there."""
    return np.unique(lookup.row_numbers(rows, store.n_rows))


def documents(store: Store) -> Int[np.ndarray, " row"]:
    """The document of each row: texts cut from one long text have the same number, any other text has one of its own."""
    text, examples = store.tokens["text"].to_numpy(np.int64), store.examples
    if "document" not in examples:
        return text
    document = examples["document"]
    own = document.where(document.notna(), -1 - document.index.to_series())
    return own.astype("int64").loc[text].to_numpy()


def split_rows(
    store: Store, held_out: float = 0.2, seed: int = 0
) -> tuple[Int[np.ndarray, " train"], Int[np.ndarray, " held"]]:
    """Numbers of the store rows to train on and to hold out, such that no text stands on both sides.

    Texts of one group stay together; where texts have no groups, pieces of one document do.

    Args:
        store: the store.
        held_out: share of the rows to hold out, kept to within the size of the largest group.
        seed: which groups they are.

    Raises:
        ValueError: a share that is not between 0 and 1, or a single group.
    """
    if not 0 < held_out < 1:
        raise ValueError(f"held_out is a share between 0 and 1, got {held_out}")
    examples = store.examples
    if "group" in examples and bool(examples["group"].notna().to_numpy().all()):
        groups = examples["group"]
    else:
        groups = examples["document"] if "document" in examples else examples.index.to_series()
    train, held = grouped_split(groups.loc[store.tokens["text"]].tolist(), (1 - held_out, held_out), seed)
    return train, held
