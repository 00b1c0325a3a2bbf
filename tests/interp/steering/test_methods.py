"""The formulas against other code, planted directions, and what may not matter: order of pairs and rows."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from torch import Tensor

from interp.steering.methods import METHODS, Sides, held_out_separation, method_of

D, N = 12, 40


def planted(shift: float = 3.0, paired: bool = True, seed: int = 0, noise: float = 1.0) -> tuple[Sides, Tensor]:
    """Pairs that share a base and differ by +-shift / 2 along a direction, with features of unequal size."""
    generator = torch.Generator().manual_seed(seed)
    scale = torch.linspace(0.5, 2.0, D)
    base = 4 * torch.randn(N, D, generator=generator)
    direction = torch.randn(D, generator=generator)
    direction /= direction.norm()
    left, right = (scale * noise * torch.randn(N, D, generator=generator) for _ in range(2))
    groups = [f"g{i // 2}" for i in range(N)]
    sides = Sides(
        base + shift / 2 * direction + left, base - shift / 2 * direction + right, paired, groups * 2, None, 0
    )
    return sides, direction


def unit(values: Any) -> np.ndarray:
    values = np.asarray(values, dtype=float).ravel()
    return values / np.linalg.norm(values)


def found(name: str, sides: Sides) -> np.ndarray:
    return unit(METHODS[name].fit(sides).direction)


@pytest.mark.parametrize("name", list(METHODS))
def test_a_planted_direction_is_found(name: str) -> None:
    sides, direction = planted(shift=12.0)
    cosine = found(name, sides) @ unit(direction)
    assert cosine > (0.9 if name in ("mean_difference", "mass_mean", "pca") else 0.5)
    swapped = Sides(sides.negative, sides.positive, True, sides.groups, None, 0)
    np.testing.assert_allclose(found(name, swapped), -found(name, sides), atol=1e-3)


def test_pca_is_that_of_pairs_centred_by_their_own_mean() -> None:
    sides, direction = planted(shift=6.0)
    middle = (sides.positive + sides.negative) / 2
    oracle = PCA(1).fit(torch.cat([sides.positive - middle, sides.negative - middle]).double().numpy())
    own = METHODS["pca"].fit(sides)
    assert abs(unit(own.direction) @ unit(oracle.components_[0])) == pytest.approx(1, abs=1e-6)
    assert own.facts["explained_variance"] == pytest.approx(oracle.explained_variance_ratio_[0], abs=1e-6)
    differences = (sides.positive - sides.negative).double().numpy()
    agree = (differences @ unit(own.direction) > 0).mean()
    assert own.facts["pairs_that_agree"] == pytest.approx(agree)
    assert agree > 0.5
    assert own.raw_norm == pytest.approx(differences.mean(0) @ unit(own.direction), rel=1e-6)
    # Centring the differences over pairs, as other code does, would lose it.
    lost = PCA(1).fit(differences).components_[0]
    assert unit(own.direction) @ unit(direction) > 0.9 > 0.6 > abs(unit(lost) @ unit(direction))


def test_the_sign_of_pca_is_that_of_the_majority_not_of_the_mean() -> None:
    positive = torch.tensor([[1.0, 0.0]] * 5 + [[-20.0, 0.0]])
    sides = Sides(positive, torch.zeros(6, 2), True)
    own = METHODS["pca"].fit(sides)
    np.testing.assert_allclose(unit(own.direction), [1, 0], atol=1e-6)
    assert own.raw_norm is None  # the mean points the other way: no length along the component means anything
    assert own.facts["pairs_that_agree"] == pytest.approx(5 / 6)


def test_lda_and_logistic_are_those_of_scikit_learn() -> None:
    sides, _ = planted()
    X, y = sides.X.numpy(), sides.y
    lda = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto").fit(X, y)
    np.testing.assert_allclose(found("lda", sides), unit(lda.coef_), atol=1e-5)
    own = METHODS["logistic"].fit(Sides(sides.positive, sides.negative, True, None, 0.1))
    standard = (X - X.mean(0)) / X.std(0)
    oracle = LogisticRegression(C=0.1, tol=1e-8, max_iter=5000).fit(standard, y)
    np.testing.assert_allclose(unit(own.direction), unit(oracle.coef_ / X.std(0)), atol=1e-5)
    assert (own.raw_norm, own.facts) == (None, {"C": 0.1})
    assert METHODS["logistic"].fit(sides).facts["C"] in (1e-3, 1e-2, 1e-1, 1.0)
    assert METHODS["lda"].fit(sides).raw_norm is None


def test_mean_difference_has_its_length_and_mass_mean_is_the_same() -> None:
    sides, _ = planted()
    expected = (sides.positive.mean(0) - sides.negative.mean(0)).double()
    for name in ("mean_difference", "mass_mean"):
        own = METHODS[name].fit(sides)
        torch.testing.assert_close(own.direction, expected, atol=1e-5, rtol=1e-5)
        assert own.raw_norm == pytest.approx(float(expected.norm()), rel=1e-5)


@pytest.mark.parametrize("name", list(METHODS))
def test_the_order_of_the_pairs_does_not_matter(name: str) -> None:
    sides, _ = planted()
    order = torch.randperm(N, generator=torch.Generator().manual_seed(5))
    groups = [str(sides.groups[i]) for i in order]  # type: ignore[index]
    shuffled = Sides(sides.positive[order], sides.negative[order], True, groups * 2, None, 0)
    np.testing.assert_allclose(found(name, shuffled), found(name, sides), atol=1e-5)


def test_held_out_rows_are_of_groups_that_the_direction_has_not_seen() -> None:
    """Against a loop of its own; and where groups, not labels, decide, the figure is chance, not memory."""
    sides, _ = planted(shift=4.0)
    own = held_out_separation("mean_difference", sides)
    assert own["low"] < own["auroc"] < own["high"] + 1e-9
    assert (own["n"], own["n_groups"], own["folds"]) == (2 * N, N // 2, 5)
    # One fold a group is another division of the same: near it.
    names, score = np.array(sides.groups), np.zeros(2 * N)
    X, y = sides.X.numpy(), sides.y
    for name in set(names):
        seen = names != name
        means = [X[seen & (y == label)].mean(0) for label in (1, 0)]
        score[~seen] = (X[~seen] - np.mean(means, 0)) @ unit(means[0] - means[1])
    assert own["auroc"] == pytest.approx(roc_auc_score(y, score), abs=0.05)
    assert own["pairs_in_order"] >= own["auroc"] - 0.1

    noise, _ = planted(shift=0.0, noise=0.3)
    nothing = held_out_separation("logistic", noise)
    assert 0.2 < nothing["auroc"] < 0.75


def test_what_is_not_measured_says_why() -> None:
    sides, _ = planted()
    bare = Sides(sides.positive, sides.negative, False)
    assert "not known" in held_out_separation("lda", bare)["why"]
    few = Sides(sides.positive[:4], sides.negative[:4], True, list("abcd") * 2)
    assert held_out_separation("mean_difference", few) == {
        "auroc": None,
        "why": "not measured: 4 groups, and at least 5 are needed",
    }
    six = Sides(sides.positive[:6], sides.negative[:6], True, list("abcdef") * 2)
    assert held_out_separation("mean_difference", six)["auroc"] is not None
    assert "at least 7" in held_out_separation("logistic", six)["why"]
    by_row = Sides(sides.positive, sides.negative, False, "rows")
    assert held_out_separation("mean_difference", by_row)["n_groups"] == 2 * N


def test_refusals() -> None:
    sides, _ = planted()
    with pytest.raises(ValueError, match="come in none: give contrast pairs"):
        METHODS["pca"].fit(Sides(sides.positive, sides.negative, False))
    with pytest.raises(ValueError, match="groups"):
        METHODS["logistic"].fit(Sides(sides.positive, sides.negative, False))
    with pytest.raises(ValueError, match="did you mean 'logistic'"):
        method_of("logistics")
    assert all(way.formula for way in METHODS.values())
