"""CCS and TTPD: kinds that need to know which statements are negated."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from negation import cosine, negated_pairs, problem, unit
from sklearn.metrics import roc_auc_score

from interp.probe.kinds.ccs import _Pairs, fit_ccs
from interp.probe.kinds.mass_mean import fit_mass_mean
from interp.probe.kinds.ttpd import fit_ttpd

# ------------------------------------------------------------------------------------------------ TTPD


def test_ttpd_directions_equal_least_squares() -> None:
    """Unequal classes in each topic and polarity, by the normal equations with an intercept for each."""
    X, y, side, _ = negated_pairs(400, 10, turning=2.0)
    rows = np.sort(np.random.default_rng(0).permutation(400)[:271])
    side = side.take(rows)
    X, y = X[rows], y[rows]
    assert side.topic is not None
    assert side.polarity is not None
    t, p = 2 * y - 1, side.polarity
    cells = np.unique(np.char.add(np.array(side.topic), p.astype(str)), return_inverse=True)[1]
    regressors = np.column_stack([t, t * p, np.eye(cells.max() + 1)[cells]])
    solution = np.linalg.lstsq(regressors, X, rcond=None)[0]
    readers = fit_ttpd(*problem(X, y, side))
    np.testing.assert_allclose(readers.parts["t_g"][0].numpy(), solution[0], atol=1e-10)
    np.testing.assert_allclose(readers.parts["t_p"][0].numpy(), solution[1], atol=1e-10)


def test_ttpd_tells_truth_from_what_turns_with_polarity() -> None:
    X, y, side, truth = negated_pairs(2000, 64, truth=3.0, turning=6.0, polarity=4.0, n_topics=1)
    readers = fit_ttpd(*problem(X, y, side))
    parts = readers.one(0)["tensors"]
    assert cosine(parts["t_g"], truth) > 0.95
    assert cosine(parts["t_p"], unit(64, 102)) > 0.98
    assert cosine(parts["polarity_direction"], unit(64, 103)) > 0.85
    assert roc_auc_score(y, readers.logit(torch.tensor(X))[0].numpy()) > 0.9
    # What is learnt from affirmative statements alone is upside down on negated ones.
    affirmative = torch.tensor(side.polarity == 1)
    design, labels, mask, C = problem(X, y, side)
    half = fit_mass_mean(design, labels, mask * affirmative, C)
    assert roc_auc_score(y[~affirmative.numpy()], half.logit(design.X)[0].numpy()[~affirmative.numpy()]) < 0.2


def test_ttpd_folds_into_a_logistic_regression_on_two_projections() -> None:
    X, y, side, _ = negated_pairs(300, 16, turning=2.0)
    readers = fit_ttpd(*problem(X, y, side))
    plane = torch.stack([readers.parts["t_g"][0], readers.parts["polarity_direction"][0]])
    inside = torch.linalg.lstsq(plane.T, readers.direction[0][:, None]).solution
    torch.testing.assert_close((plane.T @ inside)[:, 0], readers.direction[0])
    assert readers.slope.tolist() == [1.0]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (lambda y, p: p == 1, "no row is negated"),
        (lambda y, p: (p == 1) | (y == 1), "negated rows have one label only"),
    ],
)
def test_ttpd_refuses_rows_that_cannot_tell_truth_from_polarity(
    rows: Callable[[np.ndarray, np.ndarray], np.ndarray], words: str
) -> None:
    X, y, side, _ = negated_pairs(200, 8)
    keep = np.flatnonzero(rows(y, side.polarity))
    with pytest.raises(ValueError, match=words):
        fit_ttpd(*problem(X[keep], y[keep], side.take(keep)))


def test_both_refuse_rows_of_unknown_polarity() -> None:
    X, y, side, _ = negated_pairs(200, 8)
    for fit in (fit_ttpd, fit_ccs):
        with pytest.raises(ValueError, match="polarity="):
            fit(*problem(X, y))
        with pytest.raises(ValueError, match="polarity"):
            fit(*problem(X, y, replace(side, polarity=None)))


# ------------------------------------------------------------------------------------------------ CCS


def test_ccs_needs_labels_for_the_sign_alone() -> None:
    X, y, side, truth = negated_pairs(600, 32, truth=4.0, n_topics=1)
    design, labels, mask, C = problem(X, y, side)
    readers = fit_ccs(design, labels, mask, C)
    assert cosine(readers.direction[0], truth) > 0.95
    upside_down = fit_ccs(design, 1 - labels, mask, C)
    torch.testing.assert_close(upside_down.direction, -readers.direction)
    torch.testing.assert_close(upside_down.logit(design.X), -readers.logit(design.X))
    assert float(readers.slope[0]) > 0
    assert readers.one(0)["tensors"]["n_pairs"] == 300
    assert readers.one(0)["tensors"]["n_unpaired"] == 0


def test_ccs_is_blind_to_polarity() -> None:
    """Affirmative and negated rows lie far apart, and yet one bias serves both."""
    X, y, side, _ = negated_pairs(600, 32, truth=4.0, polarity=50.0)
    readers = fit_ccs(*problem(X, y, side))
    apart = X[side.polarity == 1].mean(0) - X[side.polarity == -1].mean(0)
    assert abs(cosine(readers.direction[0], apart)) < 1e-6
    assert ((readers.logit(torch.tensor(X))[0].numpy() > 0) == y).mean() > 0.98


def test_ccs_gradient_is_that_of_its_loss() -> None:
    X, *_ = negated_pairs(80, 9)
    rows = torch.tensor(X) / 3
    seen = torch.tensor(np.random.default_rng(0).integers(0, 2, (3, 40))).double()
    loss = _Pairs.of(rows[::2], rows[1::2], seen)
    owner = torch.tensor([0, 1, 2, 2])
    readers = torch.randn(4, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(loss.loss(readers, loss.scores(readers, owner), owner).sum(), readers)
    along = loss.polarity[owner]
    expected[:, :-1] -= (expected[:, :-1] * along).sum(1, True) * along
    fixed = readers.detach()
    torch.testing.assert_close(loss.gradient(fixed, loss.scores(fixed, owner), owner), expected)


def test_ccs_counts_rows_without_a_partner_and_refuses_where_no_pair_is_left() -> None:
    X, y, side, _ = negated_pairs(200, 12)
    keep = np.arange(200)[np.r_[0:160, 160:200:2]]
    some = fit_ccs(*problem(X[keep], y[keep], side.take(keep)))
    assert some.one(0)["tensors"]["n_pairs"] == 80
    assert some.one(0)["tensors"]["n_unpaired"] == 20
    halves = np.arange(0, 200, 2)
    with pytest.raises(ValueError, match=r"100 rows hold none \(0 in all rows\)"):
        fit_ccs(*problem(X[halves], y[halves], side.take(halves)))
    design, labels, mask, C = problem(X, y, side)
    with pytest.raises(ValueError, match=r"100 rows hold none \(100 in all rows\)"):
        fit_ccs(design, labels, mask * torch.tensor(np.arange(200) % 2 == 0), C)


def test_ccs_repeats_itself_and_another_seed_ends_in_the_same_place() -> None:
    X, y, side, _ = negated_pairs(600, 32, truth=4.0)
    args = problem(X, y, side)
    first = fit_ccs(*args, seed=1)
    assert torch.equal(first.direction, fit_ccs(*args, seed=1).direction)
    assert cosine(first.direction[0], fit_ccs(*args, seed=2).direction[0]) > 0.99
