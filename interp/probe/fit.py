"""`Probe`, a linear reader of activations with a card that says how it came about; `fit_probe` makes one.

1. Refuse what would be silently wrong (`inputs`): one label, NaN, constant rows, and a strength that would be chosen by
   cross-validation without groups, for a split with the same entity on both sides measures memory.
2. Choose C, and the threshold of the yes/no answer, by cross-validation over groups (`methods.choose`).
3. Fit on all rows, and express the direction in the units of raw activations: score = X @ direction + bias.

A fitted probe says nothing about how well it does on new rows: `probe_sweep` does.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int
from scipy.special import expit
from torch import Tensor

from interp import artifact
from interp.probe.folds import held_out
from interp.probe.inputs import ROWS, Column, check_activations, check_groups, check_labels, check_strengths
from interp.probe.methods import GRID, choose, method
from interp.probe.solver import Design


@dataclass(frozen=True, eq=False)
class Probe:
    """A linear reader of one site. Call it for probabilities: `probe(X)`, with X `[... d]` raw activations."""

    direction: Float32[Tensor, "d"]
    """In raw activation space, towards the label 1; for `logistic` the weights divided by each feature's scale."""
    bias: float
    """score = X @ direction + bias."""
    kind: str
    """`logistic` or `mass_mean`."""
    mean: Float32[Tensor, "d"] = field(repr=False)
    """Mean of the training rows."""
    scale: Float32[Tensor, "d"] = field(repr=False)
    """Standard deviation of each feature over the training rows, 1 where it is constant."""
    slope: float = 1.0
    """probability = sigmoid(slope * score + intercept); 1 and 0 for `logistic`, whose score is the log-odds."""
    intercept: float = 0.0
    """See `slope`."""
    threshold: float = 0.5
    """Probability above which `predict` says 1."""
    site: str | None = None
    """Full name of the site that it reads."""
    card: dict[str, Any] = field(default_factory=dict, repr=False)
    """n, groups, C, how it was chosen, seed, provenance; after a sweep also the figure and its protocol."""

    def __post_init__(self) -> None:
        if not bool(torch.isfinite(self.direction).all()) or not bool(self.direction.any()):
            raise ValueError("a probe needs a finite direction other than zero")

    def score(self, X: Tensor | np.ndarray) -> Float[Tensor, "*row"]:
        """X @ direction + bias for activations [... d]: log-odds (`logistic`) or the signed projection (`mass_mean`).

        Raises:
            ValueError: another width than the probe's, or NaN.
        """
        rows = torch.as_tensor(X)
        if rows.ndim == 0 or rows.shape[-1] != len(self.direction):
            where = f" at {self.site}" if self.site else ""
            raise ValueError(
                f"this probe reads activations of width {len(self.direction)}{where}, got the shape {list(rows.shape)}:"
                " give it activations of the site and model that it was fitted on"
            )
        # Residual streams reach tens of thousands in single dimensions: the sum is taken in float64.
        score = rows.double() @ self.direction.to(rows.device).double() + self.bias
        if bool(score.isnan().any()):
            raise ValueError(f"NaN or infinity in the activations of {int(score.isnan().sum())} rows: leave them out")
        return score.float()

    def __call__(self, X: Tensor | np.ndarray) -> Float[Tensor, "*row"]:
        """Probability of the label 1 for activations [... d]."""
        return torch.sigmoid(self.slope * self.score(X) + self.intercept)

    def predict(self, X: Tensor | np.ndarray) -> Bool[Tensor, "*row"]:
        """Whether the probability is above the threshold."""
        return self(X) > self.threshold

    def save(self, path: str | Path) -> Path:
        """One safetensors file with a card; `load_probe` reads it."""
        tensors = {"direction": self.direction, "mean": self.mean, "scale": self.scale}
        numbers = {name: getattr(self, name) for name in ("bias", "slope", "intercept", "threshold", "site")}
        return artifact.save_artifact(path, "probe", tensors, {**self.card, "probe": {**numbers, "kind": self.kind}})


def load_probe(path: str | Path) -> Probe:
    """Read what `Probe.save` wrote. ValueError for any other file."""
    tensors, card = artifact.load_artifact(path, "probe")
    if {"direction", "mean", "scale"} - set(tensors) or "probe" not in card:
        raise ValueError(f"{path} is not a whole probe: fit and save it again")
    fields = card.pop("probe")
    own = {key: value for key, value in card.items() if key not in ("kind", "format")}
    return Probe(**tensors, **fields, card=own)


def fit_probe(
    X: Tensor | np.ndarray,
    y: Column,
    kind: str = "logistic",
    groups: Column | str | None = None,
    C: float | Sequence[float] | None = None,
    seed: int = 0,
    site: str | None = None,
    n_folds: int = 5,
) -> Probe:
    """Fit a linear probe to activations of one site.

    Args:
        X: [row d] raw activations.
        y: 0 or 1 for each row.
        kind: "logistic" (L2-penalised, standardised features) or "mass_mean" (difference of the class means).
        groups: the entity that each row is about; needed when C is chosen, so that no entity stands on both sides of a
            split. "rows" splits by row on purpose.
        C: strength as in scikit-learn (smaller is a stronger penalty); several to choose from; None for 0.001 to 1.
        seed: of the folds.
        site: full name of the site, kept with the probe.
        n_folds: folds of the cross-validation. It chooses the threshold too; without groups that is 1/2.

    Raises:
        ValueError: an unknown kind; NaN or constant activations; labels other than 0 and 1, or of one kind only; counts
            that differ; a C to choose without groups, or with fewer than 5; a C for `mass_mean`, which has none.
    """
    way = method(kind)
    rows = check_activations(X)
    labels = check_labels(y, len(rows))
    if C is not None and not way.penalised:
        raise ValueError(f"{kind} has no strength to set (C={C!r}): leave C out, or use kind='logistic'")
    grid = check_strengths(C, GRID) if way.penalised else (1.0,)
    design = Design(rows)
    chosen, threshold, selection = _choose(kind, design, labels, groups, grid, n_folds, seed)
    target = torch.tensor(labels, dtype=torch.float64)[None]
    reader = way.fit(design, target, torch.ones_like(target), target.new_tensor([chosen]))
    direction = reader.direction[0].float()
    # The bias that belongs to the rounded direction: at the mean of the training rows nothing is lost.
    bias = float(reader.bias[0] + (reader.direction[0] - direction.double()) @ design.mean)
    card = {
        "n": len(rows),
        "positives": int(labels.sum()),
        "C": chosen if way.penalised else None,
        **selection,
        "provenance": artifact.provenance(seed=seed),
    }
    return Probe(
        direction=direction,
        bias=bias,
        kind=kind,
        mean=design.mean.float(),
        scale=design.scale.float(),
        slope=float(reader.slope[0]),
        intercept=float(reader.intercept[0]),
        threshold=threshold,
        site=site,
        card=card,
    )


def _choose(
    kind: str,
    design: Design,
    y: Int[np.ndarray, " row"],
    groups: Column | str | None,
    grid: Sequence[float],
    n_folds: int,
    seed: int,
) -> tuple[float, float, dict[str, Any]]:
    """C, the threshold as a probability, and what the card says about their choice."""
    if groups is None:
        if len(grid) > 1:
            raise ValueError(
                "C would be chosen by cross-validation, and without groups rows about the same entity would stand on "
                "both sides: give groups= (the entity of each row), groups='rows' to split by row on purpose, or one C"
            )
        return grid[0], 0.5, {"groups": None, "selection": None}
    codes = check_groups(groups, len(y), n_folds)
    choice = choose(kind, design, y, held_out(y, codes, n_folds, seed), grid)
    selection = {
        "folds": n_folds,
        "C": "lowest held-out log loss" if choice.losses else None,
        "threshold": "highest held-out accuracy",
        "held_out_log_loss": [[c, loss] for c, loss in choice.losses.items()],
    }
    by_row = isinstance(groups, str) and groups == ROWS
    n_groups = "rows" if by_row else int(codes.max()) + 1
    threshold = float(expit(choice.threshold))
    return choice.C or grid[0], threshold, {"groups": n_groups, "selection": selection}
