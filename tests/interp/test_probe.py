"""The nested protocol: planted truths that it must find, and leaks that it must not see."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from planted import SITE, MemoryStore, frame_of, paired, planted
from sklearn.metrics import brier_score_loss, roc_auc_score
from tiny import tiny_model

from interp.dataset import Example
from interp.probe import ProbeReport, fit_probe, load_probe_report, probe_sweep, text_baseline
from interp.probe import folds as fold_module
from interp.probe.controls import permuted_labels
from interp.probe.figures import Resamples, auroc, best_threshold
from interp.probe.folds import nested_folds
from interp.recording import record

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
        MemoryStore([rng.normal(size=(120, 8)) for _ in range(20)], frame_of(y, groups)), kinds="mass_mean", n_boot=200
    )
    assert report.to_frame().auroc.max() > 0.6  # the luckiest of twenty
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
        ({}, {"kinds": ["css"]}, "unknown kind"),
        ({}, {"kinds": ["ccs"]}, "needs the column .polarity"),
        ({}, {"sites": "resid_pst:0"}, "did you mean resid_post:0"),
        ({}, {"sites": "resid_post:1"}, "resid_post:1: all 40 rows are the same"),
        ({}, {"n_boot": 10}, "too few"),
        ({}, {"n_folds": 2}, "at least 3 folds"),
        ({}, {"n_controls": 0}, "at least one kind and one control"),
        ({"group": [f"g{i % 4}" for i in range(40)]}, {}, "4 groups are too few"),
    ],
)
def test_a_sweep_refuses_what_it_cannot_judge(change: dict[str, Any], options: dict[str, Any], words: str) -> None:
    X, y, groups = planted(40, 6)
    store = MemoryStore([X, np.ones_like(X)], frame_of(y, groups).assign(**change))
    options = {"sites": "resid_post:0", **options}
    with pytest.raises(ValueError, match=words):
        probe_sweep(store, **options)


def test_a_text_in_two_groups_is_said(caplog: pytest.LogCaptureFixture) -> None:
    X, y, groups = planted(40, 6)
    texts = ["the same", *(f"text {i}" for i in range(1, 39)), "the same"]
    report = probe_sweep(MemoryStore([X], frame_of(y, groups, texts)), n_boot=100, n_controls=1)
    assert "1 texts stand in more than one group: 2 groups were tied into 1" in caplog.text
    assert "1 texts stand in more than one group" in report.summary()
    assert (report.card["texts_in_several_groups"], report.card["groups_tied"]) == (1, [2, 1])


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
    examples = [
        Example(text, int(label), city) for text, label, city in zip(cities.statement, cities.label, cities.city)
    ]
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
