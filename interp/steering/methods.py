"""The formulas by which two sets of rows become a direction, and how well such a direction separates rows it has not seen.

- `mean_difference`: mean(positive) - mean(negative). Its length is that of the stream (Rimsky et al. 2024, arXiv 2312.06681).
- `pca`: the first principal component of pairs, each centred by its own mean. Centring the *differences* over pairs would
  remove their mean, which is the signal. A component has no sign: it points the way that most pairs go.
- `mass_mean`: the difference of the class means as a probe has it, which is the mean difference.
- `lda`: covariance^-1 (mean(positive) - mean(negative)), with the shrinkage of Ledoit & Wolf.
- `logistic`: weights of an L2-penalised logistic regression in raw units; its strength is chosen in folds of groups.

A classifier's weights are best to read, not best to write: where features are correlated, the mean difference moves a model
more (Marks & Tegmark 2023, arXiv 2310.06824, section 5). They have no length in the stream either, so no raw norm.
"""

import difflib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from interp.probe.figures import Resamples, auroc
from interp.probe.fit import fit_probe
from interp.probe.folds import held_out
from interp.probe.inputs import MIN_GROUPS, check_groups

N_FOLDS = 5
"""Folds of groups, for a strength that is chosen and for the held-out separation."""
N_BOOT = 1000


@dataclass(frozen=True, eq=False)
class Sides:
    """Rows of the two kinds at one site, and what a method may need to know of them."""

    positive: Float[Tensor, "positive d"]
    negative: Float[Tensor, "negative d"]
    paired: bool
    """Whether row i of the one side belongs to row i of the other."""
    groups: list[str] | str | None = None
    """The group of each row, the positive ones first; "rows" where each is its own; None where they are not known."""
    C: Any = None
    """Strength of a penalty, or several to choose from."""
    seed: int = 0
    """Of the folds."""

    @property
    def X(self) -> Float64[Tensor, "row d"]:
        """Positive rows, then negative ones."""
        return torch.cat([self.positive, self.negative]).double()

    @property
    def y(self) -> Int[np.ndarray, " row"]:
        """1 for each positive row, then 0 for each negative one."""
        return np.repeat([1, 0], [len(self.positive), len(self.negative)])

    def take(self, rows: Int[np.ndarray, " some"]) -> "Sides":
        """Some of the rows, by their numbers among the positive and negative ones together; of a pair both or none."""
        n = len(self.positive)
        above, below = rows[rows < n], rows[rows >= n] - n
        assert not self.paired or np.array_equal(above, below), "a pair is divided"
        known = self.groups if self.groups is None or isinstance(self.groups, str) else [self.groups[i] for i in rows]
        return Sides(self.positive[above], self.negative[below], self.paired, known, self.C, self.seed)


@dataclass(frozen=True, eq=False)
class Found:
    """What a method found at one site."""

    direction: Float64[Tensor, "d"]
    """Towards the positive rows, of any length."""
    raw_norm: float | None
    """Its length in the stream; None where the method knows none."""
    facts: dict[str, Any] = field(default_factory=dict)
    """For the card."""


def by_mean_difference(sides: Sides) -> Found:
    """mean(positive) - mean(negative)."""
    direction = sides.positive.double().mean(0) - sides.negative.double().mean(0)
    return Found(direction, float(direction.norm()))


def by_pca(sides: Sides) -> Found:
    """First principal component of pairs, each centred by its own mean; its raw norm is the mean difference along it.

    Raises:
        ValueError: rows that do not come in pairs.
    """
    if not sides.paired:
        raise ValueError(
            "method='pca' takes the principal component of pairs, and these texts come in none: give contrast pairs, or use "
            "method='mean_difference'"
        )
    # A pair centred by its own mean is +-half its difference, so the rows of all pairs have the mean 0 as they are.
    differences = (sides.positive.double() - sides.negative.double()) / 2
    _, sizes, components = torch.linalg.svd(differences, full_matrices=False)
    projected = differences @ components[0]
    up = int((projected > 0).sum()) - int((projected < 0).sum())
    sign = 1.0 if (up or float(projected.sum())) >= 0 else -1.0
    along = 2 * sign * float(projected.mean())
    facts = {
        "explained_variance": float(sizes[0] ** 2 / (sizes**2).sum()) if float(sizes[0]) > 0 else 0.0,
        "pairs_that_agree": float((sign * projected > 0).double().mean()),
    }
    return Found(sign * components[0] * (1.0 if float(sizes[0]) > 0 else 0.0), along if along > 0 else None, facts)


def by_mass_mean(sides: Sides) -> Found:
    """Difference of the class means, by `interp.probe`."""
    direction = _probe_direction(sides, "mass_mean")[0]
    return Found(direction, float(direction.norm()))


def by_lda(sides: Sides) -> Found:
    """Linear discriminant, by `interp.probe`."""
    return Found(_probe_direction(sides, "lda")[0], None)


def by_logistic(sides: Sides) -> Found:
    """Logistic regression, by `interp.probe`.

    Raises:
        ValueError: a strength to choose without groups, or with too few of them.
    """
    direction, card = _probe_direction(sides, "logistic")
    return Found(direction, None, {"C": card["C"]})


def _probe_direction(sides: Sides, kind: str) -> tuple[Float64[Tensor, "d"], dict[str, Any]]:
    # One strength leaves nothing to choose, so that no folds are needed and few groups will do.
    chosen_in_folds = kind == "logistic" and not isinstance(sides.C, int | float)
    groups = sides.groups if chosen_in_folds else None
    probe = fit_probe(sides.X, sides.y, kind, groups, sides.C, sides.seed, n_folds=N_FOLDS)
    assert probe.direction is not None
    return probe.direction.double(), probe.card


@dataclass(frozen=True)
class Method:
    """A way to a direction."""

    fit: Callable[[Sides], Found]
    formula: str
    """For the card: names of methods have changed their meaning, formulas have not."""


METHODS = {
    "mean_difference": Method(by_mean_difference, "mean(positive) - mean(negative)"),
    "pca": Method(
        by_pca, "first principal component of pairs, each centred by its own mean; sign by the majority of pairs"
    ),
    "logistic": Method(by_logistic, "weights of an L2-penalised logistic regression in raw units"),
    "mass_mean": Method(by_mass_mean, "mean(positive) - mean(negative), as a probe"),
    "lda": Method(by_lda, "inverse of the shrunk within-class covariance times (mean(positive) - mean(negative))"),
}


def method_of(name: str) -> Method:
    """The method of a name. ValueError with the nearest ones where there is none."""
    if name not in METHODS:
        near = difflib.get_close_matches(name, METHODS, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"method={name!r} is unknown; {hint}available are {', '.join(METHODS)}")
    return METHODS[name]


def held_out_separation(name: str, sides: Sides) -> dict[str, Any]:
    """How well directions fitted on some groups separate the rows of the others.

    1. The groups are divided into folds; the method is fitted without each fold, with whatever it chooses chosen there.
    2. A held-out row scores its place along that unit direction, counted from the midpoint of the two means.
    3. One AUROC over all held-out rows, its 95 % interval by a bootstrap over groups; of pairs also the share whose positive
       side scores higher.

    Returns:
        auroc, low, high, n (rows), n_groups, folds, and pairs_in_order for pairs; or auroc None and `why` it was not
        measured: groups that are not known, or too few.
    """
    y, groups = sides.y, sides.groups
    if groups is None:
        return {"auroc": None, "why": "not measured: the groups of the texts are not known"}
    n_groups = len(y) if isinstance(groups, str) else len(set(groups))
    # A strength is chosen by groups within each training part, which must have enough of them too.
    least = MIN_GROUPS if name != "logistic" or isinstance(sides.C, int | float) else 7
    if n_groups < least:
        return {"auroc": None, "why": f"not measured: {n_groups} groups, and at least {least} are needed"}
    try:
        codes = check_groups(groups, len(y), N_FOLDS)
        score, folds = _held_out_scores(name, sides, codes), N_FOLDS
    except ValueError as error:  # a fold without a direction, or without a label: the card says so
        return {"auroc": None, "why": f"not measured: {error}"}
    low, high = Resamples.of(codes, N_BOOT, sides.seed).interval(score, y)
    found = {"auroc": float(auroc(score, y)[0]), "low": low, "high": high}
    found |= {"n": len(y), "n_groups": int(codes.max()) + 1, "folds": folds}
    if sides.paired:
        half = len(y) // 2
        found["pairs_in_order"] = float((score[:half] > score[half:]).mean())
    return found


def _held_out_scores(name: str, sides: Sides, codes: Int[np.ndarray, " row"]) -> Float[np.ndarray, " row"]:
    score, X, y = np.full(len(codes), np.nan), sides.X, sides.y
    for fold in held_out(y, codes, N_FOLDS, sides.seed):
        seen = np.setdiff1d(np.arange(len(y)), fold)
        train = sides.take(seen)
        direction = METHODS[name].fit(train).direction
        if not float(direction.norm()) > 0:
            raise ValueError("a fold's two sides have the same mean")
        middle = (train.positive.double().mean(0) + train.negative.double().mean(0)) / 2
        score[fold] = ((X[torch.from_numpy(fold)] - middle) @ (direction / direction.norm())).numpy()
    assert not np.isnan(score).any(), "a row was never held out"
    return score
