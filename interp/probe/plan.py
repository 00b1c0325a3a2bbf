"""What is the same at every place of a sweep: rows, folds, bootstrap draws, and labels without meaning for the controls."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from interp.probe.controls import permuted_labels
from interp.probe.figures import Resamples
from interp.probe.folds import Fold, nested_folds, one_split
from interp.probe.inputs import Column, check_strengths, check_whole
from interp.probe.labelled import Labelled, of_tokens, spread
from interp.probe.methods import GRID, METHODS, method
from interp.probe.reading import EVERY, ActivationSource, asked_places, read_place

PROTOCOLS = ("nested", "split")
CONTROL_DRAWS = 3
"""Random labels of the entities in the control task; their accuracies are averaged."""


@dataclass(frozen=True, eq=False)
class SweepPlan:
    """Everything about a sweep but the activations."""

    data: Labelled
    """Rows, labels and groups."""
    places: list[str]
    """Sites, or single heads, in the model's order."""
    kinds: tuple[str, ...]
    """Kinds of probe."""
    tokens: str
    """Which token of each text is read."""
    grid: tuple[float, ...]
    """Strengths to choose from."""
    protocol: str
    """`nested` or `split`."""
    folds: list[Fold]
    """One for `split`."""
    resamples: Resamples
    """The draws of the bootstrap, one set for every figure."""
    permuted: Int[np.ndarray, "draw row"]
    """Labels without meaning."""
    seed: int
    """Of folds, draws, random directions, permutations and networks."""
    text_scores: dict[str, Float[np.ndarray, " row"]]
    """Numbers that need no probe, such as the log-likelihood of each text."""

    @cached_property
    def fold_of_row(self) -> Int[np.ndarray, " row"]:
        """The fold that tests a row; -1 for none."""
        return _tested_by(self.folds, self.data.n)

    @property
    def judged(self) -> Bool[np.ndarray, " row"]:
        """Rows that some fold tests."""
        return self.fold_of_row >= 0

    @property
    def parts(self) -> list[tuple[Int[np.ndarray, " _train"], Int[np.ndarray, " _test"]]]:
        """(train, test) of each fold."""
        return [(fold.train, fold.test) for fold in self.folds]

    @cached_property
    def control_halves(self) -> Bool[np.ndarray, " row"]:
        """Half of the rows of each group, for the control task; groups of one row lie in neither half."""
        rng = np.random.default_rng(self.seed)
        order = np.lexsort((rng.random(self.data.n), self.data.groups))
        place = np.empty(self.data.n, dtype=int)
        starts = np.r_[0, np.cumsum(np.bincount(self.data.groups))][self.data.groups]
        place[order] = np.arange(self.data.n)
        return (place - starts) < self.group_sizes // 2

    @cached_property
    def group_sizes(self) -> Int[np.ndarray, " row"]:
        """Rows in the group of each row."""
        return np.bincount(self.data.groups)[self.data.groups]

    @cached_property
    def control_labels(self) -> Int[np.ndarray, "draw row"]:
        """One random label for all rows of an entity, in the shares of the real labels (Hewitt & Liang 2019): else the
        accuracy of always saying the larger class would count as selectivity."""
        rng = np.random.default_rng([self.seed, 1])
        n = int(self.data.groups.max()) + 1
        positive = np.arange(n) < np.clip(round(float(self.data.y.mean()) * n), 1, n - 1)
        return np.stack([rng.permutation(positive).astype(int)[self.data.groups] for _ in range(CONTROL_DRAWS)])


def sweep_plan(
    store: ActivationSource,
    sites: str | Sequence[str] | None = None,
    kinds: str | Sequence[str] = ("logistic", "mass_mean"),
    tokens: str = "last",
    C: float | Sequence[float] | Any | None = GRID,
    n_folds: int | Any = 5,
    seed: int | Any = 0,
    n_boot: int | Any = 1000,
    groups: Column | str | None = None,
    n_controls: int = 19,
    protocol: str = "nested",
    text_scores: Mapping[str, Column] | None = None,
) -> SweepPlan:
    """Check what a sweep is asked for, and draw everything that is drawn once. Arguments and errors: `probe_sweep`."""
    check_whole(seed=seed, n_controls=n_controls, n_folds=n_folds, n_boot=n_boot)
    kinds = (kinds,) if isinstance(kinds, str) else tuple(kinds)
    for kind in kinds:
        method(kind)
    if not kinds or n_controls < 1:
        raise ValueError(f"a sweep needs at least one kind and one control, got kinds={kinds}, n_controls={n_controls}")
    if protocol not in PROTOCOLS:
        raise ValueError(f"unknown protocol {protocol!r}: use {' or '.join(map(repr, PROTOCOLS))}")
    every = tokens.partition(":")[0] == EVERY
    if every and any(METHODS[kind].reads == "tokens" for kind in kinds):
        raise ValueError(
            "kinds that read whole texts have no use for tokens='every', where each token is a row of its own"
        )
    places = asked_places(sites, store)
    _, frame = read_place(store, places[0], tokens)
    data = (of_tokens if every else Labelled.of)(frame, groups, n_folds)
    for kind in kinds:
        data.need(kind, method(kind).needs)
    folds = _folds(data, protocol, n_folds, seed)
    return SweepPlan(
        data=data,
        places=places,
        kinds=kinds,
        tokens=tokens,
        grid=check_strengths(C, GRID),
        protocol=protocol,
        folds=folds,
        resamples=Resamples.of(data.groups, n_boot, seed),
        permuted=_permuted(data, _tested_by(folds, data.n), every, n_controls, seed),
        seed=seed,
        text_scores={
            name: _score(name, spread(values, frame) if every else values, data.n)
            for name, values in (text_scores or {}).items()
        },
    )


def _folds(data: Labelled, protocol: str, n_folds: int, seed: int) -> list[Fold]:
    if protocol == "nested":
        return nested_folds(data.y, data.groups, n_folds, seed)
    names = list(data.frame["split"]) if "split" in data.frame else []
    named = any(isinstance(name, str) for name in names)
    return [one_split(data.y, data.groups, names if named else None, seed)]


def _permuted(
    data: Labelled, fold: Int[np.ndarray, " row"], every: bool, n: int, seed: int
) -> Int[np.ndarray, "draw row"]:
    """Labels without meaning. Tokens of a text keep one label: shuffled one by one, the control would be far too narrow."""
    if not every:
        return permuted_labels(data.y, data.groups, fold, n, seed)
    _, first, text = np.unique(data.frame["text_index"], return_index=True, return_inverse=True)
    return permuted_labels(data.y[first], data.groups[first], fold[first], n, seed)[:, text]


def _tested_by(folds: Sequence[Fold], n: int) -> Int[np.ndarray, " row"]:
    found = np.full(n, -1)
    for index, fold in enumerate(folds):
        found[fold.test] = index
    return found


def _score(name: str, values: Column, n: int) -> Float[np.ndarray, " row"]:
    """Numbers of a baseline, one a row."""
    found = np.asarray(values, dtype=float)
    if found.shape != (n,) or not np.isfinite(found).all():
        raise ValueError(f"text_scores[{name!r}] must be one finite number for each of the {n} rows, in their order")
    return found
