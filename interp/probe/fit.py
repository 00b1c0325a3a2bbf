"""`fit_probe` makes one `Probe` of any kind from activations, labels and groups.

1. Refuse what would be silently wrong (`inputs`): one label, NaN, constant rows, a kind without the columns that it needs,
   and a strength that would be chosen by cross-validation without groups, for a split with the same entity on both sides
   measures memory.
2. Choose C, and the threshold of the yes/no answer, by cross-validation over groups (`methods.choose`).
3. Fit on all rows, and express the direction in the units of raw activations: score = X @ direction + bias.

A fitted probe says nothing about how well it does on new rows: `probe_sweep` does.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float64, Int
from scipy.special import expit
from torch import Tensor

from interp import artifact
from interp.probe.folds import held_out
from interp.probe.inputs import (
    ROWS,
    Column,
    check_activations,
    check_groups,
    check_labels,
    check_strengths,
    check_whole,
)
from interp.probe.labelled import BY_ROWS, Labelled, meanings
from interp.probe.methods import GRID, Method, choose, method
from interp.probe.reading import TokenRows
from interp.probe.solver import Design
from interp.probe.value import Activations, Probe, as_token_rows, load_probe

__all__ = ["Probe", "fit_probe", "load_probe"]


def fit_probe(
    X: Activations | Any,
    y: Column,
    kind: str = "logistic",
    groups: Column | str | None = None,
    C: float | Sequence[float] | Any | None = None,
    seed: int | Any = 0,
    site: str | None = None,
    n_folds: int | Any = 5,
    *,
    polarity: Column | None = None,
    pair: Column | None = None,
    topic: Column | None = None,
    starts: Column | None = None,
    head: int | None = None,
) -> Probe:
    """Fit a probe to activations of one place.

    Args:
        X: [row d] raw activations; for "attention" `TokenRows`, one [token d] a text, or all tokens with `starts`.
        y: 0 or 1 for each row (text).
        kind: "logistic" (L2-penalised, standardised features), "mass_mean" (difference of the class means),
            "mass_mean_cov", "lda", "ccs", "ttpd", "inlp", "mlp" (one hidden layer), "attention" (pooling over tokens).
        groups: the entity that each row is about; needed when C is chosen, so that no entity stands on both sides of a
            split. "rows" splits by row on purpose.
        C: strength as in scikit-learn (smaller is a stronger penalty); several to choose from; None for 0.001 to 1.
        seed: of the folds, and of what the kind draws.
        site: full name of the site, kept with the probe.
        n_folds: folds of the cross-validation. It chooses the threshold too; without groups that is 1/2.
        polarity: "affirmative" or "negated" (or 1 and -1) for each row; for "ttpd" and "ccs".
        pair: the same for a negated row and its affirmative one; for "ccs".
        topic: set or subject of each row; for kinds that centre by it.
        starts: [text + 1] bounds of the texts in X [token d]; for "attention".
        head: the head of the site that X belongs to, kept with the probe.

    Raises:
        ValueError: an unknown kind, or one without the columns that it needs; activations that are no real numbers, NaN or
            constant; labels other than 0 and 1, or of one kind only; counts that differ; a C to choose without groups, or
            with fewer than 5; a C for a kind that has none; pairs that do not contradict each other, or that groups divide.
    """
    check_whole(2, n_folds=n_folds)
    check_whole(seed=seed)
    way = method(kind)
    grid = _grid(kind, way, C)
    rows, n = _read(kind, way, X, starts)
    labels = check_labels(y, n)
    codes = None if groups is None else check_groups(groups, n, n_folds)
    said = BY_ROWS if codes is None or isinstance(groups, str) else "given by the caller"
    side = _side(labels, codes, said, polarity=polarity, pair=pair, topic=topic)
    side.check_pairs()
    side.need(kind, way.needs)
    return fit_labelled(rows, side, kind, grid, seed, site, n_folds, head, grouped=codes is not None)


def fit_labelled(
    rows: Float64[Tensor, "row d"] | TokenRows,
    side: Labelled,
    kind: str,
    grid: Sequence[float],
    seed: int,
    site: str | None,
    n_folds: int,
    head: int | None,
    *,
    grouped: bool = True,
) -> Probe:
    """`fit_probe` of rows that are checked, with all that is known of them; without `grouped` their groups say nothing."""
    way, labels = method(kind), side.y
    design = Design(rows, side)
    grid = tuple(grid) if way.penalised else (1.0,)
    chosen, threshold, selection = _choose(kind, design, labels, side.groups if grouped else None, grid, n_folds, seed)
    if grouped and side.by_rows:
        selection["groups"] = ROWS
    target = torch.tensor(labels, dtype=torch.float64)[None]
    reader = way.fit(design, target, torch.ones_like(target), target.new_tensor([chosen]), seed)
    card: dict[str, Any] = {
        "n": len(labels),
        "positives": int(labels.sum()),
        "C": chosen if way.penalised else None,
        **selection,
        "provenance": artifact.provenance(seed=seed),
    }
    if isinstance(rows, TokenRows):
        card["n_tokens"] = len(rows.X)
    else:
        card["typical_norm"] = float(np.median(rows.norm(dim=1)))
    found = _rounded(reader.one(0), design)
    return Probe(**found, kind=kind, threshold=threshold, site=site, head=head, card=card)


def _grid(kind: str, way: Method, C: float | Sequence[float] | Any | None) -> tuple[float, ...]:
    if C is not None and not way.penalised:
        raise ValueError(f"{kind} has no strength to set (C={C!r}): leave C out, or use kind='logistic'")
    return check_strengths(C, GRID) if way.penalised else (1.0,)


def _read(kind: str, way: Method, X: Any, starts: Any) -> tuple[Any, int]:
    """What the design holds, and the number of rows that have a label."""
    if way.reads == "tokens":
        texts = as_token_rows(X, starts)
        check_activations(texts.X)
        return texts, len(texts)
    if starts is not None:
        raise ValueError(f"{kind} reads one row a text: leave starts out, or use kind='attention'")
    if not isinstance(X, Tensor | np.ndarray):
        raise ValueError(f"{kind} reads one row a text: X must be an array [row d], got {type(X).__name__}")
    rows = check_activations(X)
    return rows, len(rows)


def _side(
    y: Int[np.ndarray, " row"], codes: Int[np.ndarray, " row"] | None, groups_from: str, **columns: Column | None
) -> Labelled:
    """What is known of the rows beside their activations. Their texts are not."""
    known = {name: values for name, values in columns.items() if values is not None}
    listed = {name: v.tolist() if isinstance(v, Tensor | np.ndarray) else list(v) for name, v in known.items()}
    return Labelled(
        texts=[""] * len(y),
        y=y,
        groups=np.arange(len(y)) if codes is None else codes,
        groups_from=groups_from,
        frame=pd.DataFrame({"label": y}),
        **meanings(listed, len(y)),
    )


def _rounded(found: dict[str, Any], design: Design) -> dict[str, Any]:
    """A reader's fields in float32, as a probe holds them."""
    tensors = {name: part.detach().cpu().float() for name, part in found["tensors"].items()}
    exact = found["direction"]
    if exact is None:
        return {**found, "tensors": tensors}
    direction = exact.float()
    # The bias that belongs to the rounded direction: at the mean of the training rows nothing is lost.
    bias = found["bias"] + float((exact - direction.double()) @ design.mean)
    own = {"direction": direction, "bias": bias, "tensors": tensors}
    return {**found, **own, "mean": design.mean.float(), "scale": design.scale.float()}


def _choose(
    kind: str,
    design: Design,
    y: Int[np.ndarray, " row"],
    codes: Int[np.ndarray, " row"] | None,
    grid: Sequence[float],
    n_folds: int,
    seed: int,
) -> tuple[float, float, dict[str, Any]]:
    """C, the threshold as a probability, and what the card says about their choice."""
    if codes is None:
        if len(grid) > 1:
            raise ValueError(
                "C would be chosen by cross-validation, and without groups rows about the same entity would stand on "
                "both sides: give groups= (the entity of each row), groups='rows' to split by row on purpose, or one C"
            )
        return grid[0], 0.5, {"groups": None, "selection": None}
    choice = choose(kind, design, y, held_out(y, codes, n_folds, seed), grid, seed)
    selection = {
        "folds": n_folds,
        "C": "lowest held-out log loss" if choice.losses else None,
        "threshold": "highest held-out accuracy",
        "held_out_log_loss": [[c, loss] for c, loss in choice.losses.items()],
    }
    groups = int(codes.max()) + 1
    return choice.C or grid[0], float(expit(choice.threshold)), {"groups": groups, "selection": selection}
