"""One place and one kind of probe under the protocol: choices inside each training part, log-odds for rows never seen.

1. `place_parts`: for each outer fold the training rows as a `Design`, and inner folds for the choices. In a transfer matrix
   the folds of a train set have fewer training rows, never fewer test rows.
2. `held_out_logits`: choose C and the threshold on the inner folds, fit on the whole training part, score the test part.
   Permuted labels go through the same folds with the C that the real ones chose, all in one batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int

from interp.probe.folds import Fold
from interp.probe.labelled import Labelled
from interp.probe.methods import Choice, choose, method
from interp.probe.reading import TokenRows
from interp.probe.solver import Design

Rows = Any
"""What a kind reads: a vector a row [row d], or the `TokenRows` of each."""


@dataclass(frozen=True, eq=False)
class Held:
    """What one kind gave at one place: a choice for each outer fold, and log-odds for rows that it never saw."""

    choices: list[Choice]
    """One an outer fold; its AUROC, from the inner folds, is what places are chosen by."""
    logit: Float[np.ndarray, " row"]
    """Of every row that some fold tests; NaN for the others."""
    permuted: Float[np.ndarray, "draw row"]
    """The same by probes that were fitted to permuted labels."""


@dataclass(frozen=True, eq=False)
class Part:
    """An outer fold at one place."""

    train: Int[np.ndarray, " _train"]
    """Rows that the probe may learn from."""
    inner: list[Int[np.ndarray, " _held_out"]]
    """Held-out rows of the inner folds, counted within `train`."""
    test: Int[np.ndarray, " _test"]
    """Rows to score."""
    design: Design
    """The training rows."""
    unseen: Rows
    """The test rows."""


def take_rows(X: Rows, rows: Int[np.ndarray, " taken"]) -> Rows:
    """Some rows, in the order given."""
    return X.take(rows) if isinstance(X, TokenRows) else X[torch.from_numpy(rows)]


def place_parts(X: Rows, data: Labelled, folds: Sequence[Fold]) -> list[Part]:
    """The folds at one place; X is what stands there, in the order of `data`."""
    parts = []
    for fold in folds:
        assert not np.isin(data.groups[fold.test], data.groups[fold.train]).any(), "a group on both sides"
        design = Design(take_rows(X, fold.train), data.take(fold.train))
        parts.append(Part(fold.train, fold.inner, fold.test, design, take_rows(X, fold.test)))
    return parts


def held_out_logits(
    X: Rows | list[Part],
    data: Labelled,
    folds: Sequence[Fold],
    kind: str,
    grid: Sequence[float],
    *,
    permuted: Int[np.ndarray, "draw row"] | None = None,
    seed: int = 0,
) -> Held:
    """Choices and held-out log-odds of one kind at one place.

    Args:
        X: activations [row d] or the tokens of each row; or the `place_parts` of them, which several kinds can share.
        data: labels, groups and columns of the same rows.
        folds: outer folds.
        kind: kind of probe.
        grid: strengths to choose from, for kinds that have one.
        permuted: labels without meaning, fitted beside the real ones.
        seed: of kinds that start at random.
    """
    data.need(kind, method(kind).needs)
    parts = X if isinstance(X, list) else place_parts(X, data, folds)
    labels = data.y[None] if permuted is None else np.vstack([data.y[None], permuted])
    logit = np.full(labels.shape, np.nan)
    choices = []
    for part in parts:
        choice = choose(kind, part.design, data.y[part.train], part.inner, grid, seed)
        target = torch.tensor(labels[:, part.train], dtype=torch.float64)
        C = torch.full((len(target),), 1.0 if choice.C is None else choice.C, dtype=torch.float64)
        readers = method(kind).fit(part.design, target, torch.ones_like(target), C, seed)
        logit[:, part.test] = readers.logit(part.unseen).numpy()
        choices.append(choice)
    return Held(choices, logit[0], logit[1:])
