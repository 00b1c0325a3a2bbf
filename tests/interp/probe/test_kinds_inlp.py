"""INLP: how many directions hold a label, and the probe inside them."""

import numpy as np
import pandas as pd
import pytest
import torch
from negation import cosine, problem, unit
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from interp.probe.kinds.inlp import fit_inlp
from interp.probe.labelled import Labelled


def two_ways(n: int = 2400, d: int = 24, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A label that stands in two directions, in one of them behind loud noise along a third."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 2
    t = 2 * y - 1
    axes = np.linalg.qr(np.stack([unit(d, k) for k in range(3)]).T)[0].T
    X = rng.normal(size=(n, d)) + np.outer(1.5 * t, axes[0]) + np.outer(rng.normal(size=n) * 6, axes[2])
    return X + np.outer(t + rng.normal(size=n), axes[1]), y


def test_directions_are_orthonormal_and_hold_the_label() -> None:
    X, y = two_ways()
    design, *rest = problem(X, y, C=0.01)
    readers = fit_inlp(design, *rest)
    directions = readers.one(0)["tensors"]["directions"].numpy()
    np.testing.assert_allclose(directions @ directions.T, np.eye(len(directions)), atol=1e-8)
    Z = ((design.X - design.mean) / design.scale).numpy()
    train, test = np.arange(1200), np.arange(1200, 2400)
    before = LogisticRegression(C=0.01).fit(Z[train], y[train]).score(Z[test], y[test])
    left = Z - Z @ directions.T @ directions
    after = LogisticRegression(C=0.01).fit(left[train], y[train]).score(left[test], y[test])
    assert before > 0.9
    assert after < 0.6


def test_the_first_direction_is_the_logistic_one_and_the_probe_lies_inside() -> None:
    X, y = two_ways()
    design, labels, mask, C = problem(X, y, C=0.01)
    readers = fit_inlp(design, labels, mask, C)
    directions = readers.one(0)["tensors"]["directions"]
    scaler = StandardScaler().fit(X)
    oracle = LogisticRegression(C=0.01, tol=1e-10, max_iter=1000).fit(scaler.transform(X), y)
    assert cosine(directions[0], oracle.coef_[0]) > 1 - 1e-6
    weights = readers.direction[0] * design.scale
    torch.testing.assert_close(weights @ directions.T @ directions, weights)
    coordinates = StandardScaler().fit_transform(scaler.transform(X) @ directions.T.numpy())
    inside = LogisticRegression(tol=1e-10).fit(coordinates, y).decision_function(coordinates)
    np.testing.assert_allclose(readers.logit(design.X)[0].numpy(), inside, atol=1e-3, rtol=1e-3)


def test_labels_without_meaning_leave_one_direction() -> None:
    X, _ = two_ways(800)
    labels = np.random.default_rng(1).integers(0, 2, 800)
    readers = fit_inlp(*problem(X, labels, C=0.01))
    assert readers.one(0)["tensors"]["directions"].shape == (1, 24)


def test_groups_too_few_to_hold_some_out_are_refused() -> None:
    X, y = two_ways(200)
    side = Labelled([""] * 200, y, y, "given by the caller", pd.DataFrame())  # each label its own group
    with pytest.raises(ValueError, match="gather more groups"):
        fit_inlp(*problem(X, y, side))
