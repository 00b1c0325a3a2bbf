"""Erasure: the smallest change of activations after which a label cannot be read from them any more.

An eraser is one affine map, x - left (right' (x - mean)), fitted to activations and labels.

- `leace`: after it no linear probe of the rows it was fitted to does better than the constant answer, and among the affine
  maps of which that is true it moves the rows least, in mean square and in every direction at once (Belrose et al. 2023,
  "LEACE: Perfect linear concept erasure in closed form", arXiv 2306.03819). With W = covariance^(-1/2) and U an
  orthonormal basis of W cov(x, z): x - W^-1 U U' W (x - mean).
- `mean`: the orthogonal projection away from the differences of the class means. It erases as well, and moves the rows
  more where features are correlated.
- `inlp`: the directions of repeated logistic regressions (`kinds.inlp`) are projected out among the standardised features.
  It stops when held-out rows are predicted no better than by the labels' shares, so it may leave or take a little.

What holds exactly holds for the rows of the fit. To measure what is left, fit the eraser on training rows alone, and the
new probe on the same ones: an eraser that saw the test rows made their class means lean against those of the training
rows, and the AUROC falls below 1/2.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from interp import artifact
from interp.probe.inputs import ROWS, Column, check_activations, check_groups
from interp.probe.kinds.inlp import nullspace_directions, standardised
from interp.probe.labelled import Labelled
from interp.probe.solver import Design

KINDS = ("leace", "mean", "inlp")
_NO_VARIANCE = 1e-12
"""Share of the largest variance below which a principal axis counts as constant."""
_NO_RELATION = 1e-8
"""Correlation below which a combination of labels counts as unrelated to the activations."""


@dataclass(frozen=True, eq=False)
class Eraser:
    """x - left @ (right' (x - mean)). Call it with raw activations `[... d]` for erased ones."""

    mean: Float64[Tensor, "d"] = field(repr=False)
    """Mean of the rows of the fit; it stays where it is."""
    left: Float64[Tensor, "d rank"] = field(repr=False)
    """Orthonormal directions in which rows are moved."""
    right: Float64[Tensor, "d rank"] = field(repr=False)
    """How far a row is moved along each: (x - mean) @ right. The same as `left` for an orthogonal projection."""
    kind: str
    """`leace`, `mean` or `inlp`."""
    site: str | None = None
    """Full name of the site it was fitted to."""
    card: dict[str, Any] = field(default_factory=dict, repr=False)
    """n, groups, classes, share of the variance that is taken, settings, provenance."""

    def __post_init__(self) -> None:
        if not all(bool(torch.isfinite(part).all()) for part in (self.mean, self.left, self.right)):
            raise ValueError("an eraser needs finite numbers: fit it again")
        d = len(self.mean)
        if self.left.shape != self.right.shape or self.left.ndim != 2 or len(self.left) != d:
            raise ValueError(f"left {list(self.left.shape)} and right {list(self.right.shape)} must both be [{d} rank]")

    @property
    def rank(self) -> int:
        """Directions that are lost."""
        return self.left.shape[1]

    def __call__(self, X: Tensor | np.ndarray) -> Float[Tensor, "*row d"]:
        """Erased activations, of the same shape and dtype (float32 for whole numbers).

        Raises:
            ValueError: another width than the eraser's, or NaN.
        """
        rows = torch.as_tensor(X)
        if not rows.is_floating_point():
            rows = rows.float()
        if rows.ndim == 0 or rows.shape[-1] != len(self.mean):
            where = f" at {self.site}" if self.site else ""
            raise ValueError(
                f"this eraser changes activations of width {len(self.mean)}{where}, got the shape {list(rows.shape)}: give "
                "it activations of the site and model that it was fitted on"
            )
        mean, left, right = (part.to(rows.device) for part in (self.mean, self.left, self.right))
        # Single features reach tens of thousands, and the erased part is a small difference: float64.
        moved = ((rows.double() - mean) @ right) @ left.T
        if bool(moved.isnan().any()):
            raise ValueError(
                f"NaN or infinity in the activations of {int(moved.isnan().any(-1).sum())} rows: leave them out"
            )
        return (rows.double() - moved).to(rows.dtype)

    def to_frame(self) -> pd.DataFrame:
        """One row a direction: `direction` (number), `variance` (share of the fitted rows' variance that is taken)."""
        return pd.DataFrame(
            {"direction": range(self.rank), "variance": self.card.get("variance", [np.nan] * self.rank)}
        )

    def save(self, path: str | Path) -> Path:
        """One safetensors file with a card; `load_eraser` reads it."""
        tensors = {"mean": self.mean, "left": self.left, "right": self.right}
        card = {**self.card, "eraser": {"kind": self.kind, "site": self.site}}
        return artifact.save_artifact(path, "eraser", tensors, card)


def load_eraser(path: str | Path) -> Eraser:
    """Read what `Eraser.save` wrote. ValueError for any other file."""
    tensors, card = artifact.load_artifact(path, "eraser")
    if set(tensors) != {"mean", "left", "right"} or "eraser" not in card:
        raise ValueError(f"{path} is not a whole eraser: fit and save it again")
    fields = card.pop("eraser")
    return Eraser(**tensors, **fields, card={key: v for key, v in card.items() if key not in ("kind", "format")})


def fit_eraser(
    X: Tensor | np.ndarray,
    y: Column,
    kind: str = "leace",
    groups: Column | str | None = None,
    seed: int = 0,
    site: str | None = None,
    C: float | Any = 0.1,
    **provenance: Any,
) -> Eraser:
    """Fit an eraser to activations of one site.

    Args:
        X: [row d] raw activations.
        y: what is erased: classes (two or more values, of any type), or numbers [row column], every column of which is
            erased; a single column [row 1] is one number a row.
        kind: "leace" (least change), "mean" (orthogonal projection) or "inlp" (two classes).
        groups: the entity of each row, for `inlp`, which holds groups out; needed there. "rows" splits by row on purpose.
        seed: of the groups that `inlp` holds out.
        site: full name of the site, kept with the eraser.
        C: strength of `inlp`'s regressions, as in scikit-learn.
        **provenance: kept in the card: model, fingerprint, data.

    Raises:
        ValueError: an unknown kind; NaN or constant activations; labels that are missing, do not match the rows or are all
            the same; for `inlp` more than two classes, no groups, or fewer than 5; a label that the rows do not
            depend on linearly.
    """
    if kind not in KINDS:
        raise ValueError(f"unknown kind of eraser {kind!r}: use {', '.join(map(repr, KINDS))}")
    if not isinstance(C, int | float) or not 0 < C < float("inf"):
        raise ValueError(f"C must be a positive number, got {C!r}")
    rows = check_activations(X)
    concept, classes = _concept(y, len(rows))
    codes = None if groups is None else check_groups(groups, len(rows), n_folds=5)
    design = Design(rows)
    if kind == "inlp":
        left, right = _inlp(rows, concept, classes, codes, C, seed)
    else:
        fit: dict[str, Callable[[Design, Tensor], tuple[Tensor, Tensor]]] = {"leace": _leace, "mean": _mean}
        left, right = fit[kind](design, concept)
    left, right = _orthonormal(left, right)
    centred = rows - design.mean
    taken = (centred @ right).pow(2).mean(0) / centred.pow(2).sum(1).mean()
    card = {
        "n": len(rows),
        "groups": None
        if codes is None
        else "rows"
        if isinstance(groups, str) and groups == ROWS
        else int(codes.max()) + 1,
        "classes": classes,
        "variance": taken.tolist(),
        "C": C if kind == "inlp" else None,
        "provenance": artifact.provenance(seed=seed, **provenance),
    }
    return Eraser(design.mean, left, right, kind, site, card)


def _leace(design: Design, concept: Float64[Tensor, "row column"]) -> tuple[Tensor, Tensor]:
    # The best map does not depend on the units or axes, so it is made where the covariance is diagonal.
    rows = design.rotated
    variance = rows.pow(2).mean(0)
    kept = variance > _NO_VARIANCE * variance.max()
    spread = variance[kept].sqrt()
    U = _basis((rows[:, kept] / spread).T @ concept / len(rows))
    left = torch.zeros(len(kept), U.shape[1], dtype=torch.float64)
    right = left.clone()
    left[kept], right[kept] = spread[:, None] * U, U / spread[:, None]
    # What moves in standard units moves `scale` times as much in raw ones, and is read from (x - mean) / scale.
    return _raw(design, left) * design.scale[:, None], _raw(design, right) / design.scale[:, None]


def _mean(design: Design, concept: Float64[Tensor, "row column"]) -> tuple[Tensor, Tensor]:
    centred = design.X - design.mean
    axes = _basis(centred.T @ concept / (len(concept) * centred.pow(2).mean().sqrt()))
    return axes, axes


def _inlp(
    rows: Float64[Tensor, "row d"],
    concept: Float64[Tensor, "row column"],
    classes: list[str] | None,
    codes: np.ndarray | None,
    C: float,
    seed: int,
) -> tuple[Tensor, Tensor]:
    if classes is None or len(classes) != 2:
        what = "numbers" if classes is None else f"{len(classes)} classes"
        raise ValueError(f"inlp erases a label of two classes, got {what}: use kind='leace', which takes any")
    if codes is None:
        raise ValueError(
            "inlp decides on held-out rows how many directions it takes, and without groups rows about the same entity would "
            "stand on both sides: give groups= (the entity of each row), or groups='rows' to split by row on purpose"
        )
    y = (concept[:, 0] > 0).double()
    names = [""] * len(rows)
    side = Labelled(names, y.long().numpy(), codes, "given by the caller", pd.DataFrame(index=range(len(rows))))
    design = Design(rows, side)
    found = nullspace_directions(design, y[None], torch.ones_like(y)[None], y.new_tensor([C]), seed)[0]
    axes = standardised(design, found).T
    return axes * design.scale[:, None], axes / design.scale[:, None]


def _concept(y: Column, n: int) -> tuple[Float64[Tensor, "row column"], list[str] | None]:
    """Centred columns of unit variance, and the names of the classes where the labels are classes."""
    values = np.asarray(y.detach().cpu() if isinstance(y, Tensor) else y)
    if values.ndim not in (1, 2) or len(values) != n:
        raise ValueError(
            f"y must hold one label, or one row of columns, for each of {n} rows; it has shape {values.shape}"
        )
    missing = pd.isna(values)
    if missing.any():
        first = int(np.argwhere(missing)[0, 0])
        raise ValueError(
            f"{missing.sum()} labels are missing (the first is in row {first}): label them, or leave them out"
        )
    classes = None
    if values.ndim == 1:
        codes, distinct = pd.factorize(values.astype(str) if values.dtype == object else values, sort=True)
        classes = [str(name) for name in distinct]
        if len(classes) > max(2, n // 2):
            raise ValueError(
                f"{len(classes)} classes among {n} rows: give a number as a column, y[:, None]; else use fewer classes"
            )
        # The last class's column comes first, so that of two classes column 0 is positive for the label 1.
        values = np.eye(len(classes))[codes][:, ::-1]
    columns = torch.tensor(values.astype(np.float64))
    if not bool(torch.isfinite(columns).all()):
        raise ValueError("infinity among the columns of y: leave these rows out")
    columns = columns[:, columns.amax(0) > columns.amin(0)]
    if not columns.shape[1]:
        raise ValueError(f"all {n} labels are the same: there is nothing to erase")
    return (columns - columns.mean(0)) / columns.std(0, correction=0), classes


def _basis(related: Float64[Tensor, "d column"]) -> Float64[Tensor, "d rank"]:
    U, size, _ = torch.linalg.svd(related, full_matrices=False)
    kept = size > _NO_RELATION
    if not bool(kept.any()):
        raise ValueError("the activations do not depend on the label linearly: nothing can be erased")
    return U[:, kept]


def _raw(design: Design, along: Float64[Tensor, "rank k"]) -> Float64[Tensor, "d k"]:
    """Columns among the standardised features, from columns among the rotated ones."""
    return standardised(design, along.T).T


def _orthonormal(left: Float64[Tensor, "d k"], right: Float64[Tensor, "d k"]) -> tuple[Tensor, Tensor]:
    """The same product left right' with orthonormal columns on the left."""
    axes, mix = torch.linalg.qr(left)
    return axes, right @ mix.T
