"""The one-layer network: planted truths that no line can read, its objective, and that problems do not touch each other."""

import numpy as np
import pytest
import torch
from planted import planted
from sklearn.metrics import roc_auc_score
from sklearn.neural_network import MLPClassifier
from torch.nn.functional import gelu, softplus

from interp.probe.fit import fit_probe
from interp.probe.kinds import mlp
from interp.probe.kinds.mlp import Networks, fit_mlp
from interp.probe.network import base_log_odds, blocks
from interp.probe.solver import Design


def exclusive(n: int = 600, d: int = 32, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two hidden facts along two random directions; the label is that exactly one of them holds."""
    rng = np.random.default_rng(seed)
    facts = rng.choice([-1.0, 1.0], (n, 2))
    axes = np.linalg.qr(rng.normal(size=(d, d)))[0]
    X = rng.normal(size=(n, d)) + 3 * facts @ axes[:2]
    return 5 * X + 100, (facts.prod(1) < 0).astype(int), np.arange(n) // 4


def problems(n: int = 120, d: int = 10) -> tuple[Design, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Three problems over one design: other labels, other rows, another strength."""
    X, y, _ = planted(n, d)
    rng = np.random.default_rng(1)
    labels = torch.tensor(np.stack([y, rng.permutation(y), 1 - y])).double()
    mask = torch.tensor(rng.integers(0, 2, (3, n))).double()
    mask[0] = 1
    return Design(torch.tensor(X)), labels, mask, torch.tensor([0.1, 1.0, 0.01]).double()


def test_it_reads_what_linear_kinds_cannot() -> None:
    X, y, groups = exclusive()
    train, test = np.arange(450), np.arange(450, 600)
    for kind in ("logistic", "mass_mean"):
        blind = fit_probe(X[train], y[train], kind, groups[train])
        assert 0.35 < roc_auc_score(y[test], blind(X[test])) < 0.65
    probe = fit_probe(X[train], y[train], "mlp", groups[train])
    assert roc_auc_score(y[test], probe(X[test])) > 0.97
    assert (probe.predict(X[test]).numpy() == y[test]).mean() > 0.93
    assert probe.direction is None
    assert probe.card["C"] in dict(probe.card["selection"]["held_out_log_loss"])


def test_its_probabilities_are_calibrated_where_the_label_is_noisy() -> None:
    """The best that can be said is 0.9 or 0.1: a network that learnt the noise by heart would say 1 and 0."""
    X, y, groups = exclusive(1200, 16)
    flipped = np.random.default_rng(3).random(len(y)) < 0.1
    noisy = np.where(flipped, 1 - y, y)
    probe = fit_probe(X[:800], noisy[:800], "mlp", groups[:800])
    p, truth = probe(X[800:]).numpy().astype(float), noisy[800:]
    loss = -np.log(np.where(truth == 1, p, 1 - p)).mean()
    best = -(0.9 * np.log(0.9) + 0.1 * np.log(0.1))
    assert loss < best + 0.15
    for low, high in ((0.0, 0.3), (0.7, 1.0)):
        inside = (p >= low) & (p <= high)
        assert inside.sum() > 100
        assert p[inside].mean() == pytest.approx(truth[inside].mean(), abs=0.08)


def test_without_a_signal_it_says_the_base_rate() -> None:
    rng = np.random.default_rng(0)
    y = (rng.random(400) < 0.2).astype(int)
    probe = fit_probe(rng.normal(size=(400, 20)), y, "mlp", "rows")
    fresh = probe(rng.normal(size=(1000, 20)))
    assert probe.card["C"] <= 0.01
    assert fresh.mean().item() == pytest.approx(0.2, abs=0.06)
    assert fresh.std().item() < 0.1


def test_problems_trained_together_equal_problems_trained_alone() -> None:
    design, y, mask, C = problems()
    together = fit_mlp(design, y, mask, C, seed=4).logit(design.X)
    for k in range(3):
        alone = fit_mlp(design, y[k : k + 1], mask[k : k + 1], C[k : k + 1], seed=4).logit(design.X)
        torch.testing.assert_close(together[k], alone[0], atol=2e-3, rtol=2e-3)


def test_a_problem_is_cut_into_blocks_without_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    design, y, mask, C = problems()
    whole = fit_mlp(design, y, mask, C).logit(design.X)
    monkeypatch.setattr("interp.probe.network._MOST_NUMBERS", 2 * 120 * mlp.WIDTH)
    assert [cut.stop - cut.start for cut in blocks(3, 120 * mlp.WIDTH)] == [2, 1]
    torch.testing.assert_close(fit_mlp(design, y, mask, C).logit(design.X), whole, atol=2e-3, rtol=2e-3)


def test_rows_that_a_problem_may_not_see_do_not_matter() -> None:
    design, y, mask, C = problems()
    changed = torch.where(mask == 1, y, 1 - y)
    before, after = fit_mlp(design, y, mask, C), fit_mlp(design, changed, mask, C)
    assert torch.equal(before.hidden, after.hidden)
    assert torch.equal(before.bias, after.bias)


def test_the_same_seed_gives_the_same_bits_and_leaves_the_global_state() -> None:
    X, y, _ = planted(80, 6)
    state = torch.get_rng_state()
    first, again, other = (fit_probe(X, y, "mlp", C=0.1, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first(X), again(X))
    assert not torch.equal(first(X), other(X))


def test_it_works_inside_inference_mode() -> None:
    X, y, _ = planted(80, 6)
    outside = fit_probe(X, y, "mlp", C=0.1)
    with torch.inference_mode():
        inside = fit_probe(torch.tensor(X) + 0, y, "mlp", C=0.1)
        assert torch.equal(inside(X), outside(X))


def objective(networks: Networks, design: Design, y: torch.Tensor, C: float) -> float:
    z = networks.logit(design.X)[0]
    size = networks.hidden.square().sum() + networks.output.square().sum()
    return float((softplus(z) - y * z).sum() + size / (2 * C))


def test_the_objective_falls_to_what_scikit_learn_reaches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another activation (ReLU) and another optimiser (L-BFGS to the end), the same objective: alpha is 1 / C."""
    X, y, _ = exclusive(300, 12)
    design, labels, C = Design(torch.tensor(X)), torch.tensor(y).double(), 0.3
    problem = labels[None], torch.ones(1, 300).double(), torch.tensor([C]).double()
    networks = fit_mlp(design, *problem)
    Z = ((design.X - design.mean) / design.scale).numpy()
    oracle = MLPClassifier(mlp.WIDTH, alpha=1 / C, solver="lbfgs", max_iter=500, random_state=0).fit(Z, y)
    assert objective(networks, design, labels, C) < 1.2 * oracle.loss_ * 300
    with monkeypatch.context() as longer:
        longer.setattr(mlp, "STEPS", 400)
        assert objective(fit_mlp(design, *problem), design, labels, C) < 1.03 * oracle.loss_ * 300
    # The hidden layer by hand.
    hidden = gelu(torch.tensor(Z).float() @ networks.hidden[0].T + networks.hidden_bias[0])
    by_hand = (hidden @ networks.output[0] + networks.bias[0]).double()
    torch.testing.assert_close(by_hand, networks.logit(design.X)[0], atol=1e-4, rtol=1e-4)


def test_the_bias_starts_at_the_base_rate() -> None:
    y = torch.tensor([[1.0, 1, 0, 1], [0, 0, 0, 1]]).double()
    mask = torch.tensor([[1.0, 1, 1, 1], [1, 1, 1, 0]]).double()
    torch.testing.assert_close(base_log_odds(y, mask).double(), torch.tensor([3.5 / 1.5, 0.5 / 3.5]).double().log())


def test_leading_axes_and_large_means() -> None:
    X, y, _ = planted(80, 6)
    probe, shifted = fit_probe(X, y, "mlp", C=0.1), fit_probe(X * 1e2 + 25_000, y, "mlp", C=0.1)
    assert probe(X.reshape(8, 10, 6)).shape == (8, 10)
    torch.testing.assert_close(probe(X.reshape(8, 10, 6)).flatten(), probe(X))
    torch.testing.assert_close(shifted(X * 1e2 + 25_000), probe(X), atol=1e-3, rtol=1e-3)
