"""The linear kinds of probe against scikit-learn, closed forms and planted directions."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from negation import cosine, negated_pairs, problem, unit
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.metrics import roc_auc_score

from interp.probe.kinds.ccs import fit_ccs
from interp.probe.kinds.inlp import fit_inlp
from interp.probe.kinds.lda import fit_lda
from interp.probe.kinds.logistic import fit_logistic
from interp.probe.kinds.mass_mean import RIDGE, fit_mass_mean, fit_mass_mean_cov
from interp.probe.kinds.ttpd import fit_ttpd
from interp.probe.readers import Readers
from interp.probe.solver import Design

FITS: dict[str, Callable[..., Readers]] = {
    "logistic": fit_logistic,
    "mass_mean": fit_mass_mean,
    "mass_mean_cov": fit_mass_mean_cov,
    "lda": fit_lda,
    "ccs": fit_ccs,
    "ttpd": fit_ttpd,
    "inlp": fit_inlp,
}


def stretched(n: int, d: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Correlated features of very different size, one of them constant, with unequal classes."""
    rng = np.random.default_rng(seed)
    y = (rng.random(n) < 0.35).astype(int)
    X = rng.normal(size=(n, d)) @ rng.normal(size=(d, d)) + 3 * np.outer(y, rng.normal(size=d))
    X = X * np.exp(2 * rng.normal(size=d)) + 100 * rng.normal(size=d)
    X[:, 0] = 0.1
    return X, y


@pytest.mark.parametrize(("n", "d"), [(300, 20), (40, 90)])
def test_lda_equals_scikit_learn(n: int, d: int) -> None:
    X, y = stretched(n, d)
    readers = fit_lda(*problem(X, y))
    oracle = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto").fit(X, y)
    scale = X.std(0) + (X.std(0) == 0)
    found, expected = readers.direction[0].numpy() * scale, oracle.coef_[0] * scale
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6 * np.abs(expected).max())
    logit = readers.logit(torch.tensor(X))[0].numpy()
    np.testing.assert_allclose(logit, oracle.decision_function(X), rtol=1e-5, atol=1e-5 * np.abs(logit).max())


def test_lda_without_shrinkage_to_speak_of_equals_the_textbook() -> None:
    rng = np.random.default_rng(0)
    y = np.arange(4000) % 2
    X = rng.normal(size=(4000, 3)) @ np.array([[2.0, 1, 0], [0, 1, 1], [0, 0, 0.5]]) + np.outer(y, [1.0, 0, 0])
    within = sum(np.cov(X[y == k].T, bias=True) for k in (0, 1)) / 2
    expected = np.linalg.solve(within, X[y == 1].mean(0) - X[y == 0].mean(0))
    assert cosine(fit_lda(*problem(X, y)).direction[0], expected) > 0.999


@pytest.mark.parametrize(("n", "d"), [(300, 20), (40, 90)])
def test_mass_mean_cov_equals_its_formula(n: int, d: int) -> None:
    X, y = stretched(n, d)
    design, *rest = problem(X, y)
    Z = ((design.X - design.mean) / design.scale).numpy()
    means = [Z[y == label].mean(0) for label in (1, 0)]
    within = sum((Z[y == label] - mean).T @ (Z[y == label] - mean) for label, mean in zip((1, 0), means)) / n
    weights = np.linalg.solve(within + RIDGE * np.trace(within) / d * np.eye(d), means[0] - means[1])
    readers = fit_mass_mean_cov(design, *rest)
    direction = readers.direction[0].numpy() * design.scale.numpy()
    np.testing.assert_allclose(direction, weights, rtol=1e-5, atol=1e-6 * np.abs(weights).max())
    middle = torch.tensor(X[y == 1].mean(0) + X[y == 0].mean(0)) / 2
    assert float(middle @ readers.direction[0] + readers.bias[0]) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("kind", FITS)
def test_problems_fitted_together_equal_problems_fitted_alone(kind: str) -> None:
    X, y, side, _ = negated_pairs(240, 20, turning=1.0)
    design = Design(torch.tensor(X), side)
    rng = np.random.default_rng(0)
    flipped = y ^ rng.integers(0, 2, 120).repeat(2)
    labels = torch.tensor(np.stack([y, y, flipped, flipped, 1 - y]), dtype=torch.float64)
    folds = (np.arange(240) // 2) % 4
    mask = torch.tensor(np.stack([folds != k for k in (0, 1, 1, 2, 9)]), dtype=torch.float64)
    C = torch.tensor([0.1, 1e-2, 0.1, 1.0, 0.1], dtype=torch.float64)
    together = FITS[kind](design, labels, mask, C, seed=3)
    for k in range(5):
        alone = FITS[kind](design, labels[[k]], mask[[k]], C[[k]], seed=3)
        here, there = together.one(k), alone.one(0)
        torch.testing.assert_close(together.logit(design.X)[k], alone.logit(design.X)[0], rtol=1e-4, atol=1e-4)
        assert cosine(here["direction"], there["direction"]) > 1 - 1e-8
        assert here["tensors"].keys() == there["tensors"].keys()
        for name, part in here["tensors"].items():
            torch.testing.assert_close(part, there["tensors"][name], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", FITS)
def test_rows_that_a_problem_may_not_see_do_not_matter(kind: str) -> None:
    """But for the units of the features, which are those of the design: labels of hidden rows change nothing."""
    X, y, side, _ = negated_pairs(200, 12)
    hidden = np.arange(200) < 60
    spoilt = np.where(hidden, 1 - y, y)
    mask = torch.tensor(~hidden, dtype=torch.float64)[None]
    design, labels, _, C = problem(X, y, side)
    first = FITS[kind](design, labels, mask, C, seed=0)
    second = FITS[kind](design, torch.tensor(spoilt, dtype=torch.float64)[None], mask, C, seed=0)
    torch.testing.assert_close(first.logit(design.X), second.logit(design.X))


@pytest.mark.parametrize("kind", FITS)
def test_labels_without_meaning_are_read_at_chance(kind: str) -> None:
    """Whole pairs flipped at random; trained on half of the pairs, read on the other half."""
    X, y, side, _ = negated_pairs(600, 24)
    rng = np.random.default_rng(1)
    labels = np.stack([y ^ rng.integers(0, 2, 300).repeat(2) for _ in range(8)])
    train = np.arange(600) < 300
    mask = torch.tensor(train, dtype=torch.float64).expand(8, -1)
    design = Design(torch.tensor(X), side)
    readers = FITS[kind](
        design, torch.tensor(labels, dtype=torch.float64), mask, torch.full((8,), 0.01).double(), seed=0
    )
    logit = readers.logit(design.X).numpy()
    read = [roc_auc_score(own[~train], score[~train]) for own, score in zip(labels, logit)]
    # CCS has one direction for all eight, and the chance that it is turned the wrong way is 1/2 for each.
    assert np.mean(read) == pytest.approx(0.5, abs=0.06)
    real = FITS[kind](*problem(X, y, side), seed=0).logit(design.X)[0].numpy()
    assert roc_auc_score(y, real) > 0.95


SPREAD = np.exp(np.linspace(-0.6, 0.6, 576))
"""Of coloured noise: its power differs tenfold between directions."""


@pytest.fixture(scope="module")
def wide() -> list[tuple[tuple, np.ndarray, np.ndarray]]:
    """n = 2,000, d = 576, classes 8 noise units apart, in white and in coloured noise. The kinds share a design."""
    made = []
    for noise in (np.eye(576), np.diag(SPREAD)):
        X, y, side, truth = negated_pairs(2000, 576, truth=4.0, noise=noise, n_topics=1)
        made.append((problem(X, y, side), y, truth))
    return made


@pytest.mark.parametrize(
    ("kind", "white", "coloured"),
    [
        ("logistic", 0.95, 0.80),
        ("mass_mean", 0.97, 0.85),
        ("mass_mean_cov", 0.83, 0.83),  # the inverse of a covariance of 576 features from 2,000 rows: sqrt(1 - d / n)
        ("lda", 0.95, 0.80),
        ("ccs", 0.95, 0.80),
        ("ttpd", 0.97, 0.85),
        ("inlp", 0.95, 0.80),
    ],
)
def test_a_planted_direction_is_found(wide: list, kind: str, white: float, coloured: float) -> None:
    """What a whitening kind looks for is not the truth's direction but the noise's inverse covariance times it."""
    for (args, y, truth), bound, spread in zip(wide, (white, coloured), (1.0, SPREAD)):
        wanted = truth / spread**2 if kind in ("mass_mean_cov", "lda") else truth
        found = FITS[kind](*args, seed=0)
        assert cosine(found.direction[0], wanted) > bound
        assert roc_auc_score(y, found.logit(args[0].X)[0].numpy()) > 0.95


def test_whitening_turns_away_from_what_varies_within_a_class() -> None:
    """The truth lies half in a direction of large variance: the means' difference follows it, the others do not."""
    rng = np.random.default_rng(0)
    y = np.arange(2000) % 2
    loud, quiet = unit(30, 1), unit(30, 2)
    quiet -= loud * (quiet @ loud)
    X = rng.normal(size=(2000, 30)) + np.outer(8 * rng.normal(size=2000), loud) + np.outer(2 * y - 1, loud + quiet)
    for kind, expected in (("mass_mean", False), ("mass_mean_cov", True), ("lda", True), ("logistic", True)):
        direction = FITS[kind](*problem(X, y)).direction[0]
        assert (abs(cosine(direction, loud)) < 0.15) is expected, kind
