"""Probes against scikit-learn, planted truths, and leaks that an honest protocol must not see."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import brier_score_loss, roc_auc_score
from sklearn.preprocessing import StandardScaler
from tiny import tiny_model

from interp.dataset import Example
from interp.probe import ProbeReport, fit_probe, load_probe, load_probe_report, probe_sweep, text_baseline
from interp.probe import folds as fold_module
from interp.probe.controls import permuted_labels
from interp.probe.figures import Resamples, auroc, best_threshold
from interp.probe.folds import held_out, nested_folds
from interp.probe.inputs import check_groups
from interp.probe.solver import calibrate, solve
from interp.recording import record

SITE = "blocks.{}.hook_resid_post"


class MemoryStore:
    """What a sweep reads of a store, held in memory: one array a layer."""

    def __init__(self, layers: list[np.ndarray], frame: pd.DataFrame) -> None:
        self.layers, self.frame, self.card = layers, frame, {"tokens": "last"}

    @property
    def sites(self) -> list[str]:
        return [SITE.format(layer) for layer in range(len(self.layers))]

    def pooled(self, site: str, tokens: str = "last") -> tuple[torch.Tensor, pd.DataFrame]:
        return torch.tensor(self.layers[self.sites.index(site)].copy(), dtype=torch.float32), self.frame


def frame_of(y: np.ndarray, groups: np.ndarray | None, texts: list[str] | None = None) -> pd.DataFrame:
    texts = texts or [f"text {i}" for i in range(len(y))]
    names = [None] * len(y) if groups is None else [f"entity {g}" for g in groups]
    return pd.DataFrame({"text": texts, "label": y, "group": names, "split": None})


def paired(n: int = 300, d: int = 64, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """n entities, each in one true and one false statement, at random: activations know the entity, not the truth."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(n), 2)
    first = rng.integers(0, 2, n)
    y = np.stack([first, 1 - first], 1).ravel()
    X = rng.normal(size=(n, d))[groups] + 0.3 * rng.normal(size=(2 * n, d))
    return X, y, groups


def planted(
    n: int = 400, d: int = 24, strength: float = 1.5, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows whose mean along one direction is the label, in groups of four of one entity."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)
    direction = rng.normal(size=d)
    X = rng.normal(size=(n, d)) + strength * np.outer(y - 0.5, direction / np.linalg.norm(direction))
    return X, y, np.arange(n) // 4


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


# ------------------------------------------------------------------------------------------------ figures and folds


def test_auroc_and_interval_equal_scikit_learn_draw_by_draw() -> None:
    rng = np.random.default_rng(0)
    groups = rng.integers(0, 40, 150)
    groups = pd.factorize(groups)[0]
    y = rng.integers(0, 2, 150)
    score = np.round(rng.normal(size=150) + y, 1)  # many ties
    assert auroc(score, y)[0] == pytest.approx(roc_auc_score(y, score))
    resamples = Resamples.of(groups, 200, seed=1)
    drawn = [roc_auc_score(y, score, sample_weight=counts[groups]) for counts in resamples.counts]
    assert resamples.interval(score, y) == pytest.approx(tuple(np.quantile(drawn, [0.025, 0.975])))
    assert (resamples.counts.sum(1) == groups.max() + 1).all()
    assert np.isnan(auroc(score, y, (y == 1)[None].astype(float)))  # a draw without negatives


def test_threshold_has_the_highest_accuracy_of_all() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 60)
    logit = np.round(rng.normal(size=60) + 1 + y, 1)
    found = best_threshold(logit, y)
    every = [((logit > t) == y).mean() for t in np.linspace(logit.min() - 1, logit.max() + 1, 5001)]
    assert ((logit > found) == y).mean() == pytest.approx(max(every))
    assert best_threshold(np.array([-3.0, 4.0]), np.array([0, 1])) == pytest.approx(0.5)


def test_folds_share_no_group_and_nest() -> None:
    _, y, groups = paired(40)
    folds = nested_folds(y, groups, 5, seed=0)
    assert sorted(np.concatenate([fold.test for fold in folds])) == list(range(80))
    for fold in folds:
        assert not set(groups[fold.train]) & set(groups[fold.test])
        assert sorted(np.concatenate(fold.inner)) == list(range(len(fold.train)))
        for part in fold.inner:
            rest = np.setdiff1d(np.arange(len(fold.train)), part)
            assert not set(groups[fold.train][part]) & set(groups[fold.train][rest])


def test_a_split_that_ignores_groups_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y, groups = paired(40)

    def by_row(groups: np.ndarray, n: int, seed: int, labels: np.ndarray) -> list[np.ndarray]:
        return np.array_split(np.random.default_rng(seed).permutation(len(groups)), n)

    monkeypatch.setattr(fold_module, "grouped_folds", by_row)
    with pytest.raises(AssertionError, match="a group on both sides"):
        probe_sweep(MemoryStore([X], frame_of(y, groups)))
    with pytest.raises(AssertionError, match="a group on both sides"):
        fit_probe(X, y, groups=groups)


def test_permuted_labels_keep_the_structure() -> None:
    _, y, groups = paired(50)
    for labels in permuted_labels(y, groups, groups % 5, 20, seed=0):
        flips = (labels != y).reshape(50, 2)
        assert (flips[:, 0] == flips[:, 1]).all()  # whole pairs
        assert 5 < flips[:, 0].sum() < 45
    # One label a group, three rows each: whole groups change their label, each fold keeps its number of positives.
    groups = np.repeat(np.arange(40), 3)
    y, fold = (np.random.default_rng(0).random(40) < 0.4).astype(int)[groups], groups % 5
    drawn = permuted_labels(y, groups, fold, 20, seed=0)
    assert len({tuple(labels) for labels in drawn}) == 20
    for labels in drawn:
        assert (np.bincount(groups, labels) % 3 == 0).all()
        assert (np.bincount(fold, labels) == np.bincount(fold, y)).all()


# ------------------------------------------------------------------------------------------------ the protocol


def test_paired_statements_without_truth_give_chance_and_a_row_split_does_not() -> None:
    X, y, groups = paired()
    countries = np.random.default_rng(1).integers(0, 50, len(y))
    texts = [f"The city of Name{group} lies in Country{country}." for group, country in zip(groups, countries)]
    store = MemoryStore([X], frame_of(y, groups, texts))
    honest, leaking = probe_sweep(store), probe_sweep(store, groups="rows")
    for kind in ("logistic", "mass_mean"):
        assert honest.selected[kind].low < 0.5 < honest.selected[kind].high
        assert honest.selected[kind].n_groups == 300
        # The partner of a test row is in the training part with the opposite label.
        assert leaking.selected[kind].high < 0.35
    assert honest.baselines["bag_of_words"].low < 0.5 < honest.baselines["bag_of_words"].high
    assert leaking.baselines["bag_of_words"].high < 0.35
    assert text_baseline(texts, y, groups) == honest.baselines["bag_of_words"]
    assert "on purpose" in leaking.summary()
    assert "on purpose" not in honest.summary()


def test_choices_do_not_look_at_the_test_rows() -> None:
    """Flip the labels and spoil the activations of one fold's test pairs: what that fold chose must not change."""
    X, y, groups = paired(60, 12)
    X[:, 0] += 2 * y
    layers = [X, X + np.random.default_rng(1).normal(size=X.shape)]
    before = probe_sweep(MemoryStore(layers, frame_of(y, groups)), n_boot=100, n_controls=1)
    test = before.predictions.query("kind == 'logistic' and fold == 0").row.to_numpy()
    flipped, spoilt = y.copy(), [layer.copy() for layer in layers]
    flipped[test] = 1 - flipped[test]
    for layer in spoilt:
        layer[test] = 1e3 * layer[test] + 7
    after = probe_sweep(MemoryStore(spoilt, frame_of(flipped, groups)), n_boot=100, n_controls=1)
    for kind in ("logistic", "mass_mean"):
        assert before.selected[kind].sites[0] == after.selected[kind].sites[0]
        assert before.selected[kind].strengths[0] == after.selected[kind].strengths[0]
    chosen = [
        r.predictions.query("fold == 0").groupby("kind")["threshold"].unique().map(tuple) for r in (before, after)
    ]
    assert (chosen[0] == chosen[1]).all()
    assert before.selected["logistic"].auroc > 0.9 > after.selected["logistic"].auroc


def test_selection_among_many_sites_does_not_lift_the_figure() -> None:
    rng = np.random.default_rng(0)
    y, groups = rng.integers(0, 2, 120), np.arange(120) // 2
    report = probe_sweep(
        MemoryStore([rng.normal(size=(120, 8)) for _ in range(30)], frame_of(y, groups)), kinds="mass_mean"
    )
    assert report.to_frame().auroc.max() > 0.6  # the luckiest of thirty
    assert report.selected["mass_mean"].auroc < 0.55
    assert report.selected["mass_mean"].p_permuted > 0.05


@pytest.fixture(scope="module")
def planted_report() -> ProbeReport:
    """Truth in layer 2 alone; positives are longer texts; a word gives half of them away."""
    X, y, groups = planted(200, 16, strength=3.0)
    noise = np.random.default_rng(5).normal(size=(2, *X.shape))
    texts = [f"{i} {'long ' * 4 * label}{'aha' if label and i % 2 else 'oh'}" for i, label in enumerate(y)]
    return probe_sweep(MemoryStore([noise[0], noise[1], X], frame_of(y, groups, texts)), seed=1)


def test_a_sweep_finds_the_site_and_shows_the_controls(planted_report: ProbeReport) -> None:
    frame = planted_report.to_frame().set_index(["kind", "layer"])
    assert planted_report.selected["logistic"].sites == (SITE.format(2),) * 5
    for kind in ("logistic", "mass_mean"):
        found = planted_report.selected[kind]
        assert found.low > 0.85
        assert found.permuted == pytest.approx(0.5, abs=0.07)
        assert frame.loc[(kind, 2)].random_direction < frame.loc[(kind, 2)].random_direction_max < found.auroc
        assert frame.loc[(kind, 0)].p_permuted > 0.05 == found.p_permuted
    assert frame.loc[("logistic", 2)].C in (1e-3, 1e-2, 1e-1, 1.0)
    assert frame.loc[("logistic", 2)].text_length > 0.95  # the wording gives it away, and the report says so
    assert "wording alone" in planted_report.summary()
    majority = planted_report.baselines["majority"]
    assert majority.auroc == 0.5
    assert majority.accuracy == pytest.approx(0.5, abs=0.06)


def test_figures_follow_from_the_predictions(planted_report: ProbeReport) -> None:
    rows = planted_report.predictions.query("kind == 'logistic'")
    found = planted_report.selected["logistic"]
    assert found.auroc == pytest.approx(roc_auc_score(rows.label, rows.probability))
    assert found.brier == pytest.approx(brier_score_loss(rows.label, rows.probability))
    assert found.accuracy == pytest.approx(((rows.probability > rows.threshold) == rows.label).mean())
    assert rows.row.tolist() == list(range(200))


def test_a_report_survives_its_folder(planted_report: ProbeReport, tmp_path: Path) -> None:
    again = load_probe_report(planted_report.save(tmp_path / "report"))
    pd.testing.assert_frame_equal(again.to_frame(), planted_report.to_frame())
    pd.testing.assert_frame_equal(again.predictions, planted_report.predictions)
    assert (again.selected, again.baselines, again.card) == (
        planted_report.selected,
        planted_report.baselines,
        planted_report.card,
    )
    assert again.summary() == planted_report.summary()
    probe = again.probe("logistic")
    assert probe.card == planted_report.probe("logistic").card
    assert probe.site == SITE.format(2)
    assert probe.card["figure"]["auroc"] == planted_report.selected["logistic"].auroc
    assert "not its own" in probe.card["protocol"]
    assert again.plot().to_dict()["layer"]
    with pytest.raises(ValueError, match="exists already"):
        planted_report.save(tmp_path / "report")
    with pytest.raises(ValueError, match="no 'lda' probe"):
        again.probe("lda")
    (tmp_path / "report" / "figures.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(ValueError, match="not a whole probe report"):
        load_probe_report(tmp_path / "report")


def test_a_sweep_repeats_itself_and_reports_progress(planted_report: ProbeReport) -> None:
    X, y, groups = planted(60, 6)
    store, seen = MemoryStore([X, X[:, ::-1]], frame_of(y, groups)), []
    first = probe_sweep(store, n_boot=100, progress=lambda *at: seen.append(at))
    assert seen == [(1, 2), (2, 2)]
    pd.testing.assert_frame_equal(first.to_frame(), probe_sweep(store, n_boot=100).to_frame())
    assert not first.to_frame().equals(probe_sweep(store, n_boot=100, seed=1).to_frame())


@pytest.mark.parametrize(
    ("change", "options", "words"),
    [
        ({"group": None}, {}, "record examples with a group"),
        ({"label": None}, {}, "have no label"),
        ({}, {"groups": "city"}, "no column 'city'"),
        ({}, {"kinds": ["ccs"]}, "unknown kind"),
        ({}, {"sites": "resid_pst:0"}, "did you mean resid_post:0"),
        ({}, {"sites": "resid_post:1"}, "resid_post:1: all 40 rows are the same"),
        ({}, {"n_boot": 10}, "too few"),
        ({}, {"n_folds": 2}, "at least 3 folds"),
        ({}, {"n_controls": 0}, "at least one kind and one control"),
        ({"group": [f"g{i % 4}" for i in range(40)]}, {}, "4 groups are too few"),
    ],
)
def test_a_sweep_refuses_what_it_cannot_judge(change: dict[str, Any], options: dict[str, Any], words: str) -> None:
    store = MemoryStore([X0, np.ones_like(X0)], frame_of(Y0, G0).assign(**change))
    with pytest.raises(ValueError, match=words):
        probe_sweep(store, **({"sites": "resid_post:0"} | options))


def test_a_sweep_reads_a_recorded_store_and_other_groups() -> None:
    rng = np.random.default_rng(0)
    nouns = [f"{a}{b}" for a in "bcdfgklm" for b in ("ale", "orn", "ith", "une", "ask")]
    examples = [
        Example(f"the {noun} is {word} today", int(word == "good"), meta={"noun": noun, "copy": int(rng.integers(9))})
        for noun in nouns
        for word in ("good", "evil")
    ]
    store = record(tiny_model(), examples, sites=["embed", "resid_post:*"], tokens="last", progress=False)
    with pytest.raises(ValueError, match="groups="):
        probe_sweep(store)
    report = probe_sweep(store, groups="noun", n_boot=200, n_controls=3)
    assert report.to_frame().layer.tolist() == [0, 0, 1, 1]
    assert report.selected["logistic"].n_groups == len(nouns)
    assert report.card["groups_from"] == "column 'noun'"
    assert report.probe().card["provenance"]["fingerprint"] == store.model_fingerprint
    assert report.baselines["bag_of_words"].auroc > 0.99
    assert "they show nothing about the model" in report.summary()
    with pytest.raises(ValueError, match=r"embed: all 80 rows are the same"):
        probe_sweep(store, sites="embed", groups="noun")


@pytest.mark.slow
def test_cities_on_the_real_model(smollm: Any, shared_data: Path) -> None:
    """The published curve (shared/data/README): chance in block 0, .94 in the middle; the words alone give nothing."""
    cities = pd.read_csv(shared_data / "truth" / "cities.csv")
    examples = [Example(row.statement, int(row.label), str(row.city)) for row in cities.itertuples()]
    store = record(smollm, examples, sites="resid_post:*", tokens="last", progress=False)
    report = probe_sweep(store)
    frame = report.to_frame().query("kind == 'logistic'").set_index("layer")
    assert report.selected["logistic"].auroc >= 0.92
    assert report.selected["logistic"].n_groups == cities.city.nunique()
    for layer, published in {5: 0.63, 8: 0.65, 10: 0.92, 11: 0.94, 17: 0.94}.items():
        assert frame.auroc[layer] == pytest.approx(published, abs=0.03)
    assert 0.35 <= frame.auroc[0] <= 0.55
    assert 0.35 <= report.baselines["bag_of_words"].auroc <= 0.55
    assert report.selected["logistic"].permuted == pytest.approx(0.5, abs=0.03)
