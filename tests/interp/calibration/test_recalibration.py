"""Maps of probabilities against scikit-learn, netcal and planted distortions."""

import json
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from netcal.binning import HistogramBinning
from scipy.optimize import minimize_scalar
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from interp.calibration.recalibrated import RecalibrationReport, recalibrate
from interp.calibration.recalibration import KINDS, Recalibration, fit_recalibration, load_recalibration

MONOTONE = [kind for kind in KINDS if kind != "histogram"]


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def logit(p: Any) -> Any:
    return np.log(p) - np.log1p(-p)


def too_sure(n: int, seed: int = 0, factor: float = 2.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """p whose logits are `factor` times those of the truth, outcomes, and the truth."""
    rng = np.random.default_rng(seed)
    truth = sigmoid(rng.normal(0, 1.2, n))
    return sigmoid(factor * logit(truth)), (rng.random(n) < truth).astype(int), truth


class Logits(ClassifierMixin, BaseEstimator):
    """A fitted classifier whose decision function is its input."""

    def fit(self, X: Any, y: Any) -> "Logits":
        self.classes_ = np.unique(y)
        return self

    def decision_function(self, X: Any) -> Any:
        return X[:, 0]

    def predict(self, X: Any) -> Any:
        return (X[:, 0] > 0).astype(int)


# -------------------------------------------------------------------------------------------------------- oracles


@pytest.mark.parametrize("n", [30, 500])
def test_platt_is_scikit_learns_sigmoid(n: int) -> None:
    p, y, _ = too_sure(n)
    z = logit(p)[:, None]
    oracle = CalibratedClassifierCV(FrozenEstimator(Logits().fit(z, y)), method="sigmoid", ensemble=False).fit(z, y)
    np.testing.assert_allclose(fit_recalibration(p_true=p, y=y)(p), oracle.predict_proba(z)[:, 1], atol=2e-5)


def test_isotonic_is_scikit_learns() -> None:
    p, y, _ = too_sure(400)
    p = np.round(p, 2)  # ties
    new = np.linspace(0, 1, 333)
    oracle = IsotonicRegression(out_of_bounds="clip").fit(p, y)
    found = fit_recalibration(p_true=p, y=y, kind="isotonic")
    np.testing.assert_allclose(found(new), oracle.predict(new), atol=1e-12)


def test_beta_is_the_unpenalised_logistic_regression_of_its_two_logarithms() -> None:
    p, y, _ = too_sure(800)
    X = np.stack([np.log(p), -np.log1p(-p)], axis=1)
    oracle = LogisticRegression(C=np.inf, tol=1e-10, max_iter=5000).fit(X, y)
    found = fit_recalibration(p_true=p, y=y, kind="beta")
    assert min(found.parameters["a"] + found.parameters["b"]) > 0
    np.testing.assert_allclose(found(p), oracle.predict_proba(X)[:, 1], atol=1e-4)


def test_beta_keeps_its_bounds_where_the_free_optimum_breaks_them() -> None:
    rng = np.random.default_rng(3)
    p = rng.random(600)
    y = (rng.random(600) < np.clip(0.9 - 0.5 * (p - 0.5) ** 2 + 0.05 * p, 0, 1)).astype(int)
    X = np.stack([np.log(p), -np.log1p(-p)], axis=1)
    free = LogisticRegression(C=np.inf, tol=1e-10, max_iter=5000).fit(X, y)
    assert free.coef_.min() < 0, "the case is of no use: the free optimum keeps the bounds"
    found = fit_recalibration(p_true=p, y=y, kind="beta").parameters
    assert found["a"][0] >= 0
    assert found["b"][0] >= 0

    def nll(a: float, b: float, c: float) -> float:
        z = a * X[:, 0] + b * X[:, 1] + c
        return float((np.logaddexp(0, z) - y * z).mean())

    best = nll(found["a"][0], found["b"][0], found["c"][0])
    for a in np.linspace(0, 0.5, 11):
        for b in np.linspace(0, 0.5, 11):
            assert minimize_scalar(lambda c, a=a, b=b: nll(a, b, c)).fun >= best - 1e-9


@pytest.mark.parametrize("kind", ["histogram", "isotonic"])
def test_histogram_and_isotonic_keep_the_share_of_positives_of_their_rows(kind: str) -> None:
    p, y, _ = too_sure(997)
    assert fit_recalibration(p_true=p, y=y, kind=kind)(p).mean() == pytest.approx(y.mean(), abs=1e-12)


def test_histogram_is_netcals_where_bins_are_the_same() -> None:
    """Evenly spread p: bins of equal mass are bins of equal width, which is what netcal makes."""
    p = (np.arange(300) + 0.5) / 300
    y = (np.random.default_rng(0).random(300) < 0.2 + 0.6 * p**2).astype(int)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # netcal's own
        oracle = HistogramBinning(bins=10).fit(p, y).transform(p)
    found = fit_recalibration(p_true=p, y=y, kind="histogram", n_bins=10)
    np.testing.assert_allclose(found(p), np.ravel(oracle), atol=1e-12)
    assert found.notes == ()  # 30 rows a bin, and no bin is all right or all wrong, or it would say so


def test_temperature_has_the_least_nll() -> None:
    p, y, _ = too_sure(700, seed=2)

    def nll(t: float) -> float:
        z = logit(p) / t
        return float((np.logaddexp(0, z) - y * z).mean())

    oracle = minimize_scalar(nll, bounds=(0.1, 10), method="bounded", options={"xatol": 1e-9}).x
    found = fit_recalibration(p_true=p, y=y, kind="temperature")
    assert found.parameters["temperature"][0] == pytest.approx(oracle, rel=1e-5)
    assert found(0.5) == pytest.approx(0.5)


@pytest.mark.parametrize("kind", KINDS)
def test_finds_a_planted_distortion(kind: str) -> None:
    p, y, _ = too_sure(20_000, seed=1)
    new, _, truth = too_sure(5000, seed=9)
    off = np.abs(fit_recalibration(p_true=p, y=y, kind=kind, n_bins=30)(new) - truth).mean()
    assert np.abs(new - truth).mean() > 0.1
    assert off < (0.006 if kind in ("platt", "beta", "temperature") else 0.025)


# ----------------------------------------------------------------------------------------------------- what it promises


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=4, max_size=40).filter(
        lambda rows: 0 < sum(y for _, y in rows) < len(rows)
    ),
    st.sampled_from(KINDS),
)
def test_stays_in_range_and_in_order(rows: list[tuple[float, bool]], kind: str) -> None:
    p, y = np.array([p for p, _ in rows]), np.array([y for _, y in rows])
    try:
        found = fit_recalibration(p_true=p, y=y, kind=kind)
    except ValueError:
        if kind not in ("beta", "temperature"):  # the others always have an optimum
            raise
        return
    q = found(np.linspace(0, 1, 401))
    assert ((q >= 0) & (q <= 1)).all()
    if kind != "histogram":
        assert found.monotone
        assert (np.diff(q) >= -1e-12).all()
    assert found.monotone == bool((np.diff(q) >= -1e-12).all())


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_gives_the_same_map(kind: str, tmp_path: Path) -> None:
    p, y, _ = too_sure(300)
    right = np.where(p > 0.5, y, 1 - y)
    found = fit_recalibration(p_top=np.maximum(p, 1 - p), y=right, kind=kind, n_classes=2, groups=np.arange(300) // 2)
    again = load_recalibration(found.save(tmp_path / "map.json"))
    new = np.linspace(0.5, 1, 77)
    np.testing.assert_array_equal(again(new), found(new))
    assert again.to_dict() == found.to_dict()
    assert (again.meaning, again.n, again.n_groups) == ("p_top", 300, 150)
    (tmp_path / "other.json").write_text(json.dumps({"kind": "temperature", "format": 1}))
    with pytest.raises(ValueError, match="holds no recalibration"):
        load_recalibration(tmp_path / "other.json")
    with pytest.raises(ValueError, match="kind 'spline'"):
        Recalibration.from_dict({**found.to_dict(), "kind": "spline"})


def test_takes_any_shape_and_refuses_what_is_no_probability() -> None:
    p, y, _ = too_sure(100)
    found = fit_recalibration(p_true=torch.tensor(p), y=torch.tensor(y))
    assert found(p.reshape(4, 25)).shape == (4, 25)
    assert found(np.zeros((0,))).shape == (0,)
    np.testing.assert_array_equal(found(torch.tensor(p)), found(p))
    for bad, words in ((math.nan, "NaN"), (1.01, r"\[0, 1\]"), (-3.0, "not logits")):
        with pytest.raises(ValueError, match=words):
            found([0.3, bad])


def test_p_that_ranks_the_wrong_way_round_is_not_turned() -> None:
    p, y, _ = too_sure(500)
    for kind in ("platt", "isotonic", "beta"):
        found = fit_recalibration(p_true=1 - p, y=y, kind=kind)
        assert np.ptp(found(np.linspace(0, 1, 50))) < 0.2
        if kind != "isotonic":
            assert np.ptp(found(np.linspace(0, 1, 50))) == 0
            assert "does not rank" in " ".join(found.notes)
    with pytest.raises(ValueError, match="falls without end as T grows"):
        fit_recalibration(p_true=1 - p, y=y, kind="temperature")


def test_says_what_its_rows_can_carry() -> None:
    p, y, _ = too_sure(100)
    assert "follows the noise" in fit_recalibration(p_true=p, y=y, kind="isotonic").notes[0]
    assert "holds 6 rows" in fit_recalibration(p_true=p, y=y, kind="histogram").notes[0]
    assert "4 groups" in fit_recalibration(p_true=p, y=y, groups=np.arange(100) % 4).notes[0]
    edge = np.append(p, [0.0, 1.0])
    assert "2 of 102 p lie within 1e-06" in fit_recalibration(p_true=edge, y=[*y, 0, 1]).notes[0]


def test_refuses_what_means_nothing() -> None:
    p, y, _ = too_sure(60)
    top = np.maximum(p, 1 - p)
    with pytest.raises(ValueError, match="no function of the largest probability"):
        fit_recalibration(p_top=top, y=y, kind="temperature")
    with pytest.raises(ValueError, match="no function of the largest probability"):
        fit_recalibration(p_top=top, y=y, kind="temperature", n_classes=4)
    with pytest.raises(ValueError, match=r"at least 0\.5"):
        fit_recalibration(p_top=p, y=y, kind="temperature", n_classes=2)
    right = (np.where(p > 0.5, y, 1 - y)).astype(int)
    with pytest.raises(ValueError, match=r"at least 0\.5"):
        fit_recalibration(p_top=top, y=right, kind="temperature", n_classes=2)([0.3])
    with pytest.raises(ValueError, match="separates"):
        fit_recalibration(p_true=[0.1, 0.2, 0.8], y=[0, 0, 1], kind="beta")
    with pytest.raises(ValueError, match="all 60 values of y are 1"):
        fit_recalibration(p_true=p, y=np.ones(60))
    with pytest.raises(ValueError, match="exactly one"):
        fit_recalibration(p_true=p, p_top=top, y=y)
    with pytest.raises(ValueError, match="must be one of platt"):
        fit_recalibration(p_true=p, y=y, kind="spline")
    with pytest.raises(ValueError, match="59 rows"):
        fit_recalibration(p_true=p, y=y[1:])
    with pytest.raises(ValueError, match="has no group"):
        fit_recalibration(p_true=p, y=y, groups=[None, *range(59)])


def test_temperature_on_two_options_is_the_same_on_p_true_and_p_top() -> None:
    p, y, _ = too_sure(3000)
    top, right = np.maximum(p, 1 - p), np.where(p > 0.5, y, 1 - y)
    of_true = fit_recalibration(p_true=p, y=y, kind="temperature")
    of_top = fit_recalibration(p_top=top, y=right, kind="temperature", n_classes=2)
    assert of_true.parameters["temperature"] == pytest.approx(of_top.parameters["temperature"], rel=1e-9)
    assert of_top(top).min() >= 0.5


# ------------------------------------------------------------------------------------------------------------- reports


def test_every_map_mends_a_source_that_is_too_sure() -> None:
    p, y, _ = too_sure(4000, factor=2.5)
    report = recalibrate(p_true=p, y=y, n_boot=200, n_null=200)
    assert report.before.says_miscalibrated
    assert set(report.better) == set(KINDS)
    assert {kind for kind, after in report.after.items() if after.says_miscalibrated} <= {"isotonic", "histogram"}
    frame = report.to_frame().set_index("kind")
    assert frame.index.tolist() == ["none", *KINDS]
    assert frame.loc["platt", "auroc"] == frame.loc["none", "auroc"]  # rank is kept
    change = report.after["beta"].brier - report.before.brier
    assert frame.loc["beta", "brier_change"] == pytest.approx(change, abs=1e-12)
    assert report.verdict.startswith(report.better[0])
    assert set(report.bins()["state"]) == {"before", *KINDS}


def test_a_calibrated_source_is_not_said_to_be_mended() -> None:
    p, y, _ = too_sure(1500, factor=1.0)
    report = recalibrate(p_true=p, y=y, n_boot=200, n_null=200)
    assert report.better == []
    assert "No map changes" in report.verdict


def test_no_group_stands_on_both_sides_and_order_does_not_matter() -> None:
    p, y, _ = too_sure(600)
    groups = np.repeat(np.arange(60), 10)
    report = recalibrate(p_true=p, y=y, groups=groups, kinds="isotonic", n_boot=50, n_null=50, fractions=(0.6, 0.4))
    assert report.card["n_groups_fit"] + report.card["n_groups_test"] == 60
    assert report.card["n_fit"] % 10 == 0
    assert report.before.n_groups == report.card["n_groups_test"]
    # an overfitted map, judged on its own rows, would beat the truth; on other groups it does not
    noise = np.random.default_rng(0).random(600)
    own = fit_recalibration(p_true=noise, y=y, kind="isotonic")
    assert ((own(noise) - y) ** 2).mean() < y.mean() * (1 - y.mean()) - 0.003
    held = recalibrate(p_true=noise, y=y, groups=groups, kinds="isotonic", n_boot=50, n_null=0)
    assert held.after["isotonic"].brier > y.mean() * (1 - y.mean()) - 0.001


def test_kinds_that_mean_nothing_or_cannot_be_fitted_are_left_out_aloud() -> None:
    p, y, _ = too_sure(400)
    top, right = np.maximum(p, 1 - p), np.where(p > 0.5, y, 1 - y)
    report = recalibrate(p_top=top, y=right, n_boot=50, n_null=50)
    assert "temperature" not in report.after
    assert report.meaning == "p_top"
    assert "temperature" in recalibrate(p_top=top, y=right, n_classes=2, n_boot=50, n_null=50).after
    asked = recalibrate(p_top=top, y=right, kinds=["platt", "temperature"], n_boot=50, n_null=50)
    assert list(asked.after) == ["platt"]
    assert any(note.startswith("temperature could not be fitted") for note in asked.notes)
    parted = recalibrate(p_true=[0.1, 0.2, 0.8, 0.9] * 5, y=[0, 0, 1, 1] * 5, kinds="beta", n_boot=50, n_null=0)
    assert parted.after == {}
    assert "No map could be fitted" in parted.verdict


def test_an_infinite_nll_has_no_change_but_its_reason() -> None:
    p, y, _ = too_sure(200, seed=5)
    report = recalibrate(p_true=p, y=y, kinds="histogram", n_bins=40, n_boot=50, n_null=0)
    assert math.isinf(report.after["histogram"].nll)
    assert math.isnan(report.to_frame()["nll_change"].iloc[1])
    assert any("makes the NLL infinite" in note for note in report.notes)


def test_two_infinite_nlls_have_no_change_and_no_warning() -> None:
    p, y, _ = too_sure(200, seed=5)
    p, y = np.append(np.zeros(40), p), np.append(np.eye(40, dtype=int)[3], y)
    for seed in range(4):  # the one error at p = 0 stands in the part that judges in some of them
        report = recalibrate(p_true=p, y=y, kinds="isotonic", n_boot=50, n_null=0, seed=seed)
        if math.isinf(report.before.nll) and math.isinf(report.after["isotonic"].nll):
            break
    else:
        pytest.fail("no division put the error into the part that judges")
    assert math.isnan(report.changes["nll_change"].iloc[0])
    assert math.isfinite(report.changes["brier_change"].iloc[0])


def test_one_p_for_all_rows_is_not_said_to_separate_them() -> None:
    for p in (0.3, 0.7, 0.999):  # whose mean over 30 rows is rounded to another number for some of them
        found = fit_recalibration(p_true=np.full(30, p), y=[0, 0, 1] * 10, kind="beta")
        np.testing.assert_allclose(found([0.1, p, 0.9]), 1 / 3, atol=1e-9)
        assert "does not rank" in " ".join(found.notes)


def test_a_single_group_that_judges_is_named() -> None:
    p, y, _ = too_sure(200, seed=5)
    report = recalibrate(p_true=p, y=y, groups=np.arange(200) // 100, kinds="platt", n_boot=50, n_null=0)
    assert report.card["n_groups_test"] == 1
    assert math.isnan(report.changes["brier_low"].iloc[0])
    assert any("judges is a single group" in note for note in report.notes)


def test_report_survives_a_file(tmp_path: Path) -> None:
    p, y, _ = too_sure(200, seed=5)
    report = recalibrate(p_true=p, y=y, n_boot=50, n_null=50)
    again = RecalibrationReport.load(report.save(tmp_path / "r.json"))
    assert again.to_dict() == report.to_dict()
    assert again.verdict == report.verdict
    np.testing.assert_array_equal(again.maps["beta"](p), report.maps["beta"](p))
    with pytest.raises(ValueError, match="no recalibration report"):
        RecalibrationReport.from_dict({"before": {}})
    with pytest.raises(ValueError, match="no two parts"):
        recalibrate(p_true=p, y=y, groups=np.zeros(200))
    with pytest.raises(ValueError, match="kinds must be some"):
        recalibrate(p_true=p, y=y, kinds=["spline"])


def test_reversed_probabilities_are_noted_by_every_kind_that_can_tell() -> None:
    p, y, _ = too_sure(400)
    for kind in ("platt", "beta", "isotonic", "histogram"):
        assert not any("does not rank" in note for note in fit_recalibration(p_true=p, y=y, kind=kind).notes)
        assert any("does not rank" in note for note in fit_recalibration(p_true=1 - p, y=y, kind=kind).notes)
    told = {kind: " ".join(fit_recalibration(p_true=1 - p, y=y, kind=kind).notes) for kind in ("isotonic", "histogram")}
    assert "falls where p rises" in told["histogram"]
    exact = fit_recalibration(p_true=[0.1, 0.2, 0.8, 0.9], y=[1, 1, 0, 0], kind="isotonic")
    assert exact([0.1, 0.9]).tolist() == [0.5, 0.5]
    assert "does not rank y = 1 over y = 0 in these rows: the map is one constant" in exact.notes[0]


def test_recalibration_refuses_other_labels_and_names_plain_numbers() -> None:
    p, y = pd.Series([0.1, 0.2, 0.8, 0.9], index=[1, 2, 3, 4]), pd.Series([0, 1, 0, 1])
    with pytest.raises(ValueError, match="p_true and y are labelled differently"):
        fit_recalibration(p_true=p, y=y)
    with pytest.raises(ValueError, match=r"row 1 is 1\.2:"):
        fit_recalibration(p_true=[0.5, 1.2], y=[0, 1])
    with pytest.raises(ValueError, match=r"at least 0\.5, got 0\.25:"):
        fit_recalibration(p_top=[0.25, 0.7], y=[0, 1], kind="temperature", n_classes=2)
