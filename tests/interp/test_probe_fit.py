"""Fitted probes against scikit-learn and planted directions, and what `fit_probe` refuses."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from planted import SITE, planted
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import StandardScaler

from interp.probe import fit_probe, load_probe, text_baseline
from interp.probe.folds import held_out
from interp.probe.inputs import check_groups
from interp.probe.solver import calibrate, solve

# ------------------------------------------------------------------------------------------------ fitting: oracles


@pytest.mark.parametrize("C", [1e-3, 1e-1, 10.0])
@pytest.mark.parametrize(("n", "d"), [(300, 40), (80, 200)])
def test_logistic_equals_scikit_learn(n: int, d: int, C: float) -> None:
    rng = np.random.default_rng(0)
    # Correlated features of very different size, and a constant one, as residual streams have them.
    X = rng.normal(size=(2 * n, d)) @ rng.normal(size=(d, d)) * np.exp(rng.normal(size=d)) + 100 * rng.normal(size=d)
    X[:, 0] = 0.1
    y = (X[:, 1] / X[:, 1].std() + rng.normal(size=2 * n) > np.median(X[:, 1] / X[:, 1].std())).astype(int)
    probe = fit_probe(X[:n], y[:n], C=C)
    scaler = StandardScaler().fit(X[:n])
    oracle = LogisticRegression(C=C, tol=1e-10, max_iter=20_000).fit(scaler.transform(X[:n]), y[:n])
    direction = oracle.coef_[0] / scaler.scale_
    assert np.linalg.norm(probe.direction.numpy() - direction) < 1e-3 * np.linalg.norm(direction)
    expected = oracle.decision_function(scaler.transform(X[n:]))
    np.testing.assert_allclose(probe.score(X[n:]).numpy(), expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())
    assert roc_auc_score(y[n:], probe(X[n:]).numpy()) == pytest.approx(roc_auc_score(y[n:], expected), abs=1e-4)


def test_problems_solved_together_equal_problems_solved_alone() -> None:
    X, y, _ = planted(200, 30)
    rng = np.random.default_rng(1)
    masks, C = rng.integers(0, 2, (6, 200)), np.repeat([1e-2, 1.0, 10.0], 2)
    labels = np.stack([y, 1 - y, rng.integers(0, 2, 200), y, y, rng.integers(0, 2, 200)])
    W, b = solve(torch.tensor(X), torch.tensor(labels).double(), torch.tensor(masks * C[:, None]))
    for k in range(6):
        seen = masks[k] == 1
        oracle = LogisticRegression(C=C[k], tol=1e-10, max_iter=20_000).fit(X[seen], labels[k][seen])
        assert np.linalg.norm(W[k].numpy() - oracle.coef_[0]) < 1e-4 * np.linalg.norm(oracle.coef_[0])
        assert b[k].item() == pytest.approx(oracle.intercept_[0], abs=1e-4)


def test_calibration_equals_scikit_learn_and_stays_finite_when_separable() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, (2, 100))
    score = np.stack([5 + 3 * rng.normal(size=100) + 2 * y[0], 1e3 * y[1]])
    slope, intercept = calibrate(*(torch.tensor(v, dtype=torch.float64) for v in (score, y, np.ones((2, 100)))))
    for k in range(2):
        oracle = LogisticRegression(C=1.0, tol=1e-10).fit(StandardScaler().fit_transform(score[k][:, None]), y[k])
        assert slope[k].item() == pytest.approx(oracle.coef_[0, 0] / score[k].std(), rel=1e-4)
        assert intercept[k].item() == pytest.approx(oracle.intercept_[0] - slope[k].item() * score[k].mean(), rel=1e-4)


@pytest.mark.parametrize("kind", ["logistic", "mass_mean"])
@pytest.mark.parametrize("spread", ["every feature", "one direction"])
def test_a_planted_direction_is_found(kind: str, spread: str) -> None:
    """n = 2,000, d = 576: signal and noise of equal power in every feature (SNR 1), or two classes 8 noise units apart."""
    rng = np.random.default_rng(0)
    n, d = 2000, 576
    y, direction = rng.integers(0, 2, n), rng.choice([-1.0, 1.0], d)
    if spread == "one direction":
        direction = rng.normal(size=d)
        direction *= 4 / np.linalg.norm(direction)
    X = rng.normal(size=(n, d)) + np.outer(2 * y - 1, direction)
    probe = fit_probe(X, y, kind, groups=np.arange(n) // 2)
    found = torch.cosine_similarity(probe.direction, torch.tensor(direction).float(), dim=0)
    assert found > 0.95
    assert (probe.predict(X).numpy() == y).mean() > 0.99


def test_mass_mean_is_the_difference_of_means_with_the_zero_half_way() -> None:
    X, y, _ = planted()
    probe = fit_probe(X, y, "mass_mean")
    above, below = X[y == 1].mean(0), X[y == 0].mean(0)
    np.testing.assert_allclose(probe.direction, above - below, rtol=1e-5, atol=1e-6)
    assert probe.score((above + below) / 2).item() == pytest.approx(0.0, abs=1e-5)
    assert probe(X).numpy().mean() == pytest.approx(y.mean(), abs=1e-3)  # a logistic regression keeps the base rate
    assert probe.card["C"] is None
    assert probe.threshold == 0.5


def test_score_is_raw_and_takes_any_leading_axes() -> None:
    X, y, _ = planted()
    X = X * 1e3 + 25_000  # a massive activation in every dimension must not eat the digits
    probe = fit_probe(X, y, C=0.1)
    expected = X @ probe.direction.double().numpy() + probe.bias
    np.testing.assert_allclose(probe.score(X), expected, rtol=1e-5, atol=1e-5)
    oracle = LogisticRegression(C=0.1, tol=1e-10).fit(StandardScaler().fit_transform(X), y)
    np.testing.assert_allclose(probe(X), oracle.predict_proba(StandardScaler().fit_transform(X))[:, 1], atol=1e-4)
    batched = probe(torch.tensor(X).view(40, 10, -1))
    assert batched.shape == (40, 10)
    torch.testing.assert_close(batched.flatten(), probe(X))


def test_strength_and_threshold_are_chosen_by_group_and_stand_in_the_card() -> None:
    X, y, groups = planted()
    probe = fit_probe(X, y, groups=groups, C=[1.0, 1e-3, 1e-1], seed=3)
    losses = dict(probe.card["selection"]["held_out_log_loss"])
    assert list(losses) == [1e-3, 1e-1, 1.0]
    assert probe.card["C"] == min(losses, key=lambda c: losses[c])
    assert probe.card["groups"] == 100
    # The same by hand, with scikit-learn.
    expected = 0.0
    for part in held_out(y, check_groups(groups, len(y), 5), 5, 3):
        rest = np.setdiff1d(np.arange(len(y)), part)
        scaler = StandardScaler().fit(X)
        oracle = LogisticRegression(C=0.1, tol=1e-10).fit(scaler.transform(X[rest]), y[rest])
        p = oracle.predict_proba(scaler.transform(X[part]))[np.arange(len(part)), y[part]]
        expected -= np.log(p).sum() / len(y)
    assert losses[1e-1] == pytest.approx(expected, rel=1e-4)


def test_a_probe_survives_its_file(tmp_path: Path) -> None:
    X, y, groups = planted()
    for kind in ("logistic", "mass_mean"):
        probe = fit_probe(X, y, kind, groups=groups, site=SITE.format(3))
        again = load_probe(probe.save(tmp_path / f"{kind}.safetensors"))
        for field in dataclasses.fields(probe):
            before, after = getattr(probe, field.name), getattr(again, field.name)
            assert torch.equal(before, after) if isinstance(before, torch.Tensor) else before == after, field.name
        assert torch.equal(probe(X), again(X))
    with pytest.raises(ValueError, match="there is no file"):
        load_probe(tmp_path / "nothing.safetensors")


# ------------------------------------------------------------------------------------------------ fitting: refusals

X0, Y0, G0 = planted(40, 6)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: fit_probe(X0, Y0), "groups='rows'"),
        (lambda: fit_probe(X0, Y0, C=[0.1, 1.0]), "both sides"),
        (lambda: fit_probe(X0, np.ones(40), C=1.0), "rows of both labels"),
        (lambda: fit_probe(X0, Y0 + 1, C=1.0), "0 and 1"),
        (lambda: fit_probe(X0, np.arange(40) % 3, C=1.0), "got 3 values"),
        (lambda: fit_probe(X0, ["true", "false"] * 20, C=1.0), "labels are strings"),
        (lambda: fit_probe(X0, [None, *Y0[1:]], C=1.0), "no label"),
        (lambda: fit_probe(X0, Y0[:-1], C=1.0), "39 labels for 40 rows"),
        (lambda: fit_probe(X0, Y0, groups=G0[:-1]), "39 groups for 40 rows"),
        (lambda: fit_probe(X0, Y0, groups=np.arange(40) % 4), "4 groups are too few"),
        (lambda: fit_probe(X0, Y0, groups=[None, *G0[1:]]), "have no group"),
        (lambda: fit_probe(X0, Y0, groups="city"), "one value a row"),
        (lambda: fit_probe(X0, np.arange(40) < 3, groups="rows"), "lack a class"),
        (lambda: fit_probe(np.where(X0[3, 3] == X0, np.nan, X0), Y0, C=1.0), "the first is row 3"),
        (lambda: fit_probe(np.ones_like(X0), Y0, C=1.0), "all 40 rows are the same"),
        (lambda: fit_probe(X0[0], Y0, C=1.0), r"shape \[6\]"),
        (lambda: fit_probe(X0, Y0, "logstic", C=1.0), "did you mean 'logistic'"),
        (lambda: fit_probe(X0, Y0, "mass_mean", C=1.0), "no strength"),
        (lambda: fit_probe(X0, Y0, C=-1.0), "must be positive"),
        (lambda: fit_probe(X0, Y0, C=1.0)(X0[:, :5]), "width 6"),
        (lambda: fit_probe(X0, Y0, C=1.0)(X0 * np.nan), "NaN"),
        (lambda: text_baseline(["a", " "] * 20, Y0, G0), "empty"),
        (lambda: text_baseline(["a"] * 40, Y0, G0, kind="words"), "bag_of_words"),
    ],
)
def test_bad_input_is_refused_with_the_mend(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()
