"""Cross-validated logistic probes at every layer: all strengths and folds together, against scikit-learn's own path.

The last token of 1,496 statements at 30 layers; 9 strengths and 5 folds by city at each layer, then one fit with the best
strength. Both get the same standardised rows in float64, the same folds and the same threads. scikit-learn runs
`LogisticRegressionCV`, which starts each strength where the one before ended, with the solver that is its fastest here
(newton-cholesky; its default, lbfgs, takes several times as long) at the loosest tolerance whose held-out AUROCs agree
with ours to 1e-4. Coefficients are compared apart, with scikit-learn at a tolerance of 1e-10.

    python benchmarks/probe.py
    python benchmarks/probe.py --layers 10          # every third layer; all thirty take half an hour

Needs the data sets that the tests use (`../shared/data`), or --statements FILE with the columns statement, label and city.
"""

import argparse
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import alternate, ratio, report
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
from sklearn.metrics import roc_auc_score

import interp
from interp.probe.folds import held_out
from interp.probe.methods import method
from interp.probe.solver import Design

STRENGTHS = tuple(np.logspace(-3, 1, 9).tolist())
FOLDS = 5
SOLVER = "newton-cholesky"
TOLERANCES = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7)
STATEMENTS = Path(__file__).parents[2] / "shared" / "data" / "truth" / "cities.csv"


def main() -> None:
    """All layers, round by round."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--statements", type=Path, default=STATEMENTS)
    options = parser.parse_args()
    data = interp.load_dataset(options.statements, group="city")
    store = interp.record(interp.load("smollm2-135m"), data, "resid_post:*", tokens="last")
    sites = store.sites[:: max(1, len(store.sites) // options.layers)][: options.layers]
    layers = [store.pooled(site)[0].double() for site in sites]
    y = store.examples["label"].to_numpy().astype(int)
    groups = np.unique(store.examples["group"].astype(str), return_inverse=True)[1]
    folds = held_out(y, groups, FOLDS, 0)
    standardised = [((X - X.mean(0)) / X.std(0, correction=0).clamp_min(1e-12)).numpy() for X in layers]
    tolerance = loosest(layers, standardised, y, folds)
    found: dict[str, list[Any]] = {}

    def ours() -> None:
        found["ours"] = [ours_at(X, y, folds) for X in layers]

    def theirs() -> None:
        found["scikit-learn"] = [theirs_at(Z, y, folds, tolerance) for Z in standardised]

    seconds = alternate({"ours": ours, "scikit-learn": theirs}, options.rounds, warm_up=0)
    apart = max(
        abs(a - b)
        for one, other in zip(found["ours"], found["scikit-learn"], strict=True)
        for a, b in zip(one[1], other[1], strict=True)
    )
    assert apart < 1e-4, f"the held-out AUROCs are {apart} apart"
    row = {
        "layers": len(layers),
        "strengths": len(STRENGTHS),
        "folds": FOLDS,
        "rows": len(y),
        "width": layers[0].shape[1],
        "ours_s": sorted(seconds["ours"])[options.rounds // 2],
        "sklearn_s": sorted(seconds["scikit-learn"])[options.rounds // 2],
        "ratio": ratio(seconds, "ours", "scikit-learn"),
        "sklearn_solver": SOLVER,
        "sklearn_tol": tolerance,
        "largest_auroc_difference": apart,
        "largest_coefficient_difference": coefficients_apart(layers[len(layers) // 2], y),
        "rounds": options.rounds,
    }
    report("probe", [row])


def ours_at(X: torch.Tensor, y: np.ndarray, folds: list[np.ndarray]) -> tuple[float | None, list[float]]:
    """The strength chosen, and the held-out AUROC of each strength; the probe is fitted once more with that strength."""
    design = Design(X)
    n = len(STRENGTHS) * len(folds)
    mask = torch.ones(len(folds), len(y), dtype=torch.float64)
    for index, part in enumerate(folds):
        mask[index, part] = 0.0
    C = torch.tensor(STRENGTHS, dtype=torch.float64).repeat_interleave(len(folds))
    labels = torch.tensor(y, dtype=torch.float64)
    readers = method("logistic").fit(design, labels.expand(n, -1), mask.repeat(len(STRENGTHS), 1), C, 0)
    logit = readers.logit(X).view(len(STRENGTHS), len(folds), len(y)).numpy()
    held = np.zeros((len(STRENGTHS), len(y)))
    for index, part in enumerate(folds):
        held[:, part] = logit[:, index, part]
    losses = np.logaddexp(0, np.where(y == 1, -held, held)).mean(1)
    best = STRENGTHS[int(losses.argmin())]
    method("logistic").fit(
        design, labels[None], torch.ones(1, len(y), dtype=torch.float64), torch.tensor([best]).double(), 0
    )
    return best, [float(roc_auc_score(y, row)) for row in held]


def theirs_at(Z: np.ndarray, y: np.ndarray, folds: list[np.ndarray], tolerance: float) -> tuple[float, list[float]]:
    """The same by scikit-learn."""
    rows = np.arange(len(y))
    parts = [(np.setdiff1d(rows, part), part) for part in folds]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", FutureWarning)
        settings: Any = {"Cs": list(STRENGTHS), "cv": parts, "scoring": "neg_log_loss", "solver": SOLVER}
        model = LogisticRegressionCV(**settings, tol=tolerance, max_iter=10_000).fit(Z, y)
    paths = np.asarray(next(iter(model.coefs_paths_.values())))  # [fold strength d + 1]
    held = np.zeros((len(STRENGTHS), len(y)))
    for index, part in enumerate(folds):
        held[:, part] = paths[index, :, :-1] @ Z[part].T + paths[index, :, -1:]
    return float(np.ravel(model.C_)[0]), [float(roc_auc_score(y, row)) for row in held]


def loosest(
    layers: list[torch.Tensor], standardised: list[np.ndarray], y: np.ndarray, folds: list[np.ndarray]
) -> float:
    """The largest tolerance at which scikit-learn's held-out AUROCs are within 1e-4 of ours, at three of the layers."""
    chosen = sorted({0, len(layers) // 2, len(layers) - 1})
    exact = [ours_at(layers[index], y, folds)[1] for index in chosen]
    for tolerance in TOLERANCES:
        near = [theirs_at(standardised[index], y, folds, tolerance)[1] for index in chosen]
        if np.abs(np.array(near) - np.array(exact)).max() < 1e-4:
            return tolerance
    raise AssertionError(f"scikit-learn and we differ by more than 1e-4 at a tolerance of {TOLERANCES[-1]}")


def coefficients_apart(X: torch.Tensor, y: np.ndarray) -> float:
    """Largest relative difference of the coefficient vectors over the strengths, scikit-learn at a tolerance of 1e-10."""
    design = Design(X)
    Z = ((X - design.mean) / design.scale).numpy()
    labels = torch.tensor(y, dtype=torch.float64).expand(len(STRENGTHS), -1)
    readers = method("logistic").fit(design, labels, torch.ones_like(labels), torch.tensor(STRENGTHS).double(), 0)
    worst = 0.0
    for C, direction in zip(STRENGTHS, readers.direction, strict=True):
        theirs = LogisticRegression(C=C, tol=1e-10, solver=SOLVER, max_iter=1000).fit(Z, y).coef_[0]
        mine = (direction * design.scale).numpy()
        worst = max(worst, float(np.linalg.norm(mine - theirs) / np.linalg.norm(theirs)))
    return worst


if __name__ == "__main__":
    start = time.perf_counter()
    main()
    print(f"{time.perf_counter() - start:.0f} s in all")
