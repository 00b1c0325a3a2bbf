"""The kinds of probe by name, and the choice of strength and threshold inside a training part.

A kind turns one design and many *problems* (labels, row weights, strengths) into one reader a problem: the folds and
strengths of a cross-validation are one batch, and so are the real and the permuted labels. Each kind lies in `kinds/`.
"""

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Int

from interp.probe.figures import auroc, best_threshold
from interp.probe.kinds.attention import fit_attention
from interp.probe.kinds.ccs import fit_ccs
from interp.probe.kinds.inlp import fit_inlp
from interp.probe.kinds.lda import fit_lda
from interp.probe.kinds.logistic import fit_logistic
from interp.probe.kinds.mass_mean import fit_mass_mean, fit_mass_mean_cov
from interp.probe.kinds.mlp import fit_mlp
from interp.probe.kinds.ttpd import fit_ttpd
from interp.probe.solver import Design, log_loss

GRID = (1e-3, 1e-2, 1e-1, 1.0)
"""Strengths to choose from: scikit-learn's C, per row, on standardised features."""


@dataclass(frozen=True)
class Method:
    """How a kind is fitted, and what it needs."""

    fit: Callable[..., Any]
    """(design, y [problem row], mask [problem row], C [problem], seed) -> `Readers`, or what has the same
    `logit` and `one`; mask is 1 for rows that count."""
    penalised: bool = False
    """Whether it has a strength C to choose."""
    needs: tuple[str, ...] = ()
    """Columns of `Labelled` that it cannot do without."""
    reads: str = "row"
    """`row`: one vector a row. `tokens`: all kept tokens of each text."""


METHODS = {
    "logistic": Method(fit_logistic, penalised=True),
    "mass_mean": Method(fit_mass_mean),
    "mass_mean_cov": Method(fit_mass_mean_cov),
    "lda": Method(fit_lda),
    "ccs": Method(fit_ccs, needs=("polarity", "pair")),
    "ttpd": Method(fit_ttpd, needs=("polarity",)),
    "inlp": Method(fit_inlp, penalised=True),
    "mlp": Method(fit_mlp, penalised=True),
    "attention": Method(fit_attention, penalised=True, reads="tokens"),
}


def method(kind: str) -> Method:
    """The method of a kind. ValueError with the nearest kind where there is none."""
    if kind not in METHODS:
        near = difflib.get_close_matches(kind, METHODS, 1) or list(METHODS)
        raise ValueError(f"unknown kind of probe {kind!r}; did you mean {' or '.join(map(repr, near))}?")
    return METHODS[kind]


@dataclass(frozen=True, eq=False)
class Choice:
    """What cross-validation inside a training part chose, and what it saw."""

    C: float | None
    """Strength with the lowest held-out log loss; None for kinds without one."""
    threshold: float
    """Log-odds above which the answer is positive: highest held-out accuracy."""
    auroc: float
    """Held-out AUROC at that C: what layers are chosen by. Never reported, for it was chosen."""
    losses: dict[float, float]
    """C -> mean held-out log loss in nats."""


def choose(
    kind: str,
    design: Design,
    y: Int[np.ndarray, " row"],
    folds: list[Int[np.ndarray, " _held_out"]],
    grid: Sequence[float] = GRID,
    seed: int = 0,
) -> Choice:
    """Choose the strength and the threshold on held-out rows of the folds, all folds and strengths in one batch.

    Standardisation is that of the whole training part: it knows no label. Rows that no fold holds out are only fitted.
    """
    way = method(kind)
    strengths = list(grid) if way.penalised else [1.0]
    mask = torch.ones(len(folds), len(y), dtype=torch.float64)
    fold_of_row = np.full(len(y), -1)
    for index, held_out in enumerate(folds):
        mask[index, held_out] = 0.0
        assert (fold_of_row[held_out] < 0).all(), "a row is held out twice"
        fold_of_row[held_out] = index
    judged = np.flatnonzero(fold_of_row >= 0)
    labels = torch.tensor(y, dtype=torch.float64)
    n = len(strengths) * len(folds)
    C = torch.tensor(strengths, dtype=torch.float64).repeat_interleave(len(folds))
    readers = way.fit(design, labels.expand(n, -1), mask.repeat(len(strengths), 1), C, seed)
    logit = readers.logit(design.X).view(len(strengths), len(folds), len(y))[:, fold_of_row[judged], judged]
    losses = log_loss(logit, labels[judged].expand_as(logit), torch.ones_like(logit))[:, 0] / len(judged)
    best = int(losses.argmin())
    found = logit[best].numpy()
    return Choice(
        C=strengths[best] if way.penalised else None,
        threshold=best_threshold(found, y[judged]),
        auroc=float(auroc(found, y[judged])[0]),
        losses={c: float(loss) for c, loss in zip(strengths, losses)} if way.penalised else {},
    )
