"""Calibration figures against scikit-learn, closed forms and simulation."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score

from interp.calibration import CalibrationReport, calibration_report, wilson_interval
from interp.calibration.figures import ERRORS, Figures, equal_mass_bins, equal_width_bins, smooth_ece

QUICK = {"n_boot": 0, "n_null": 0}
PLUG_IN = (
    "ece",
    "ece_mass",
    "mce",
    "smooth_ece",
    "ece_sweep",
    "sweep_bins",
    "brier",
    "nll",
    "auroc",
    "mean_p",
    "mean_y",
)


def source(n: int, distort: Callable[[np.ndarray], np.ndarray] = lambda p: p, seed: int = 0) -> Any:
    """p uniform, y ~ Bernoulli(distort(p)): calibrated for the identity."""
    rng = np.random.default_rng(seed)
    p = rng.random(n)
    return p, (rng.random(n) < distort(p)).astype(int)


# -------------------------------------------------------------------------------------------------------- oracles


@pytest.mark.parametrize("n", [20, 300, 5000])
def test_agrees_with_scikit_learn(n: int) -> None:
    p, y = source(n, lambda p: p**2, seed=n)
    p = np.round(p, 2) * 0.98 + 0.011  # ties for AUROC, no bin edges
    report = calibration_report(p_true=p, y=y, **QUICK)
    assert report.brier == pytest.approx(brier_score_loss(y, p), abs=1e-12)
    assert report.nll == pytest.approx(log_loss(y, p), abs=1e-12)
    assert report.auroc == pytest.approx(roc_auc_score(y, p), abs=1e-12)
    accuracy, confidence = calibration_curve(y, p, n_bins=15)
    np.testing.assert_allclose(report.bins["accuracy"], accuracy)
    np.testing.assert_allclose(report.bins["confidence"], confidence)
    weights = report.bins["n"].to_numpy() / n
    assert report.ece == pytest.approx(float(weights @ np.abs(accuracy - confidence)), abs=1e-12)
    assert report.mce == pytest.approx(np.abs(accuracy - confidence).max(), abs=1e-12)


def test_bins_are_closed_below_and_the_last_one_above() -> None:
    p = np.array([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert equal_width_bins(p, 5).tolist() == [0, 1, 2, 3, 4, 4]
    report = calibration_report(p_true=p, y=[0, 0, 0, 1, 1, 1], n_bins=5, **QUICK)
    assert report.bins["n"].tolist() == [1, 1, 1, 1, 2]
    assert report.ece == pytest.approx((0 + 0.2 + 0.4 + 0.4 + 0.2) / 6)
    assert report.bins["high"].iloc[-1] == 1.0


def test_every_p_lies_in_the_bin_that_the_table_shows() -> None:
    p = np.arange(0, 1001) / 1000
    for n_bins in (3, 7, 10, 15):
        bins = equal_width_bins(p, n_bins)
        assert (bins / n_bins <= p).all()
        assert ((p < (bins + 1) / n_bins) | (bins == n_bins - 1)).all()


def test_equal_mass_bins_keep_ties_together() -> None:
    p = np.array([0.9] * 50 + [0.1, 0.2, 0.3, 0.4, 0.5])
    bins = equal_mass_bins(p, 5)
    assert len(set(bins[:50].tolist())) == 1
    assert equal_mass_bins(np.linspace(0, 1, 30), 5).tolist() == sorted([*range(5)] * 6)


def exact_smooth_ece(p: np.ndarray, y: np.ndarray, sigma: float) -> float:
    """The definition: Gaussian bumps and their mirror images at 0 and 1, integrated on a fine grid."""
    grid = (np.arange(20_000) + 0.5) / 20_000
    total = np.zeros_like(grid)
    for image in range(-2, 3):
        for sign in (1, -1):
            centre = 2 * image + sign * p
            bump = np.exp(-0.5 * ((grid[:, None] - centre) / sigma) ** 2) / (sigma * math.sqrt(2 * math.pi))
            total += bump @ (y - p)
    return float(np.abs(total).mean() / len(p))


@pytest.mark.parametrize(("n", "power"), [(5, 1.0), (60, 1.0), (400, 2.0), (400, 0.3)])
def test_smooth_ece_is_the_fixed_point_of_its_definition(n: int, power: float) -> None:
    p, y = source(n, lambda p: p**power, seed=n)
    report = calibration_report(p_true=p, y=y, **QUICK)
    assert report.smooth_ece == report.smooth_ece_sigma
    assert exact_smooth_ece(p, y, report.smooth_ece_sigma) == pytest.approx(report.smooth_ece, rel=2e-3)


def test_smooth_ece_closed_forms() -> None:
    # One stated probability: every residual is at one place, and a kernel integrates to 1.
    report = calibration_report(p_true=[0.3] * 10, y=[1] * 5 + [0] * 5, **QUICK)
    assert report.smooth_ece == pytest.approx(0.2, abs=1e-6)
    assert calibration_report(p_true=[0.0, 1.0, 1.0], y=[0, 1, 1], **QUICK).smooth_ece == 0.0
    assert calibration_report(p_true=[0.0, 1.0], y=[1, 0], **QUICK).ece == 1.0
    assert smooth_ece(np.zeros((3, 64))).tolist() == [0.0, 0.0, 0.0]


def test_brier_parts_by_hand() -> None:
    report = calibration_report(p_true=[0.1, 0.3, 0.6, 0.8], y=[0, 1, 1, 1], n_bins=2, **QUICK)
    parts = report.brier_parts
    assert parts.reliability == pytest.approx(0.5 * (0.2 - 0.5) ** 2 + 0.5 * (0.7 - 1.0) ** 2)
    assert parts.resolution == pytest.approx(0.5 * (0.5 - 0.75) ** 2 + 0.5 * (1.0 - 0.75) ** 2)
    assert parts.uncertainty == pytest.approx(0.75 * 0.25)
    assert parts.within_bin == pytest.approx(0.01 - 2 * (0.1 * 0.5 + 0.1 * 0.5) / 4)


def test_wilson_interval_agrees_with_scipy() -> None:
    from scipy.stats import binomtest

    for right, n in ((0, 10), (3, 10), (87, 100), (50, 50)):
        expected = binomtest(right, n).proportion_ci(method="wilson")
        assert wilson_interval(right / n, n) == pytest.approx((expected.low, expected.high), abs=1e-12)


# ------------------------------------------------------------------------------------------------------ invariances

rows = st.lists(
    st.tuples(st.floats(0, 1) | st.sampled_from([0.0, 0.2, 0.5, 1.0]), st.integers(0, 1)), min_size=1, max_size=40
)


@settings(deadline=None)
@given(rows, st.randoms(use_true_random=False), st.integers(2, 4), st.integers(1, 20))
def test_plug_in_figures_ignore_order_and_duplication_and_stay_in_range(
    data: list[tuple[float, int]], random: Any, times: int, n_bins: int
) -> None:
    first = calibration_report(p_true=[p for p, _ in data], y=[y for _, y in data], n_bins=n_bins, **QUICK)
    again = data * times
    random.shuffle(again)
    second = calibration_report(p_true=[p for p, _ in again], y=[y for _, y in again], n_bins=n_bins, **QUICK)
    for name in PLUG_IN:
        assert getattr(first, name) == pytest.approx(getattr(second, name), abs=1e-9), name
    for name in ("ece", "ece_mass", "mce", "smooth_ece", "ece_sweep", "brier"):
        assert 0 <= getattr(first, name) <= 1 + 1e-12, name
    assert first.nll >= 0
    assert first.auroc is None or 0 <= first.auroc <= 1
    assert first.l2_debiased is None or 0 <= first.l2_debiased <= 1 + 1e-12
    assert first.ece_sweep >= abs(first.mean_p - first.mean_y) - 1e-9
    assert first.ece >= abs(first.mean_p - first.mean_y) - 1e-12
    assert first.mce >= first.ece - 1e-12
    parts = first.brier_parts
    total = parts.reliability - parts.resolution + parts.uncertainty + parts.within_bin
    assert total == pytest.approx(first.brier, abs=1e-12)
    json.dumps(first.to_dict(), allow_nan=False)


def test_groups_make_doubled_rows_count_once() -> None:
    p, y = source(300, lambda p: p**1.5)
    alone = calibration_report(p_true=p, y=y, n_boot=300, n_null=200)
    groups = np.repeat(np.arange(300), 10)
    doubled = {"p_true": np.repeat(p, 10), "y": np.repeat(y, 10), "n_boot": 300, "n_null": 0}
    grouped = calibration_report(**doubled, groups=groups)
    assert grouped.n_groups == 300
    for name in ("brier", "nll", "auroc", "mean_y"):
        assert grouped.intervals[name] == pytest.approx(alone.intervals[name], abs=1e-9), name
    naive = calibration_report(**doubled)
    assert np.diff(naive.intervals["brier"]) < 0.5 * np.diff(grouped.intervals["brier"])


def test_seed_decides_the_draws_and_nothing_else() -> None:
    p, y = source(100)
    assert calibration_report(p_true=p, y=y, seed=3) == calibration_report(p_true=p, y=y, seed=3)
    other = calibration_report(p_true=p, y=y, seed=4)
    assert other.null_band != calibration_report(p_true=p, y=y, seed=3).null_band
    assert other.ece == calibration_report(p_true=p, y=y, seed=3).ece


# ------------------------------------------------------------------------------------------------- sampling noise


@pytest.mark.parametrize("n", [100, 500, 2000])
def test_null_band_holds_95_percent_of_calibrated_sources(n: int) -> None:
    rng = np.random.default_rng(n)
    inside = dict.fromkeys(ERRORS, 0)
    designs, runs = 8, 250
    for design in range(designs):
        p = rng.random(n) if design % 2 else rng.beta(4, 1, n)
        p = np.round(p, 2) if design % 4 > 1 else p  # ties
        figures = Figures.of(p, np.zeros(n), 15)
        bands = figures.null_bands(1000, rng)
        for name, values in figures.errors(rng.random((runs, n)) < p).items():
            inside[name] += int(((bands[name][0] <= values) & (values <= bands[name][1])).sum())
    for name, count in inside.items():
        assert 0.93 <= count / (designs * runs) <= 0.97, (name, count)


def test_verdicts() -> None:
    calibrated = calibration_report(p_true=(s := source(500))[0], y=s[1])
    assert not calibrated.says_miscalibrated
    assert "no sign of miscalibration" in calibrated.verdict
    p, y = source(500, lambda p: p**2)
    boastful = calibration_report(p_true=p, y=y)
    assert boastful.says_miscalibrated
    assert "states more" in boastful.verdict
    modest = calibration_report(p_true=p, y=(np.random.default_rng(0).random(500) < p**0.5).astype(int))
    assert modest.says_miscalibrated
    assert "states less" in modest.verdict
    # Probabilities fitted to these very labels: too good.
    shares = np.array([1, 3, 5, 7, 9])
    fitted = calibration_report(p_true=np.repeat(shares / 10, 100), y=np.arange(500) % 10 < np.repeat(shares, 100))
    assert fitted.ece < 1e-9
    assert not fitted.says_miscalibrated
    assert "closer than chance" in fitted.verdict
    without = calibration_report(p_true=p, y=y, n_null=0)
    assert "cannot be told" in without.verdict
    with pytest.raises(ValueError, match="n_null"):
        _ = without.says_miscalibrated


@pytest.mark.slow
@pytest.mark.parametrize(("slope", "least"), [(0.0, 0.93), (0.2, 0.8), (0.5, 0.85)])
def test_ece_interval_covers_the_true_error(slope: float, least: float) -> None:
    def truth(p: np.ndarray) -> np.ndarray:
        return p + slope * (0.5 - p)

    fine = (np.arange(150_000) + 0.5) / 150_000  # p is uniform
    true = np.abs(np.bincount(equal_width_bins(fine, 15), truth(fine) - fine)).sum() / len(fine)
    covered = 0
    for seed in range(100):
        p, y = source(500, truth, seed)
        low, high = calibration_report(p_true=p, y=y, n_boot=200, n_null=200, seed=seed).ece_interval or (2, 2)
        covered += low <= true <= high
    assert covered / 100 >= least


def test_auroc_interval_is_about_right() -> None:
    rng = np.random.default_rng(0)
    y = np.tile([0, 1], 200)
    score = 1 / (1 + np.exp(-(rng.normal(size=400) + y)))
    report = calibration_report(p_true=score, y=y, n_null=0)
    low, high = report.intervals["auroc"]
    assert report.auroc is not None
    assert low < report.auroc < high
    q1, q2 = report.auroc / (2 - report.auroc), 2 * report.auroc**2 / (1 + report.auroc)  # Hanley & McNeil 1982
    square = report.auroc * (1 - report.auroc) + 199 * (q1 + q2 - 2 * report.auroc**2)
    assert (high - low) / (2 * 1.96 * math.sqrt(square) / 200) == pytest.approx(1.0, abs=0.15)


# ---------------------------------------------------------------------------------------------- meaning and values


def test_an_auroc_without_an_error_is_not_perfect_for_sure() -> None:
    y = np.arange(40) % 4 == 0
    report = calibration_report(p_true=0.5 * y + 0.01 * np.arange(40), y=y, n_boot=100, n_null=0)
    assert report.auroc == 1
    assert report.intervals["auroc"] == pytest.approx((0.7225, 1.0), abs=1e-4)  # Wilson's, 10 of 10
    alone = np.where(y, 0, np.arange(40) + 1)  # one group holds all of y = 1
    report = calibration_report(p_true=0.5 * y + 0.01 * np.arange(40), y=y, groups=alone, n_boot=100, n_null=0)
    assert report.intervals["auroc"] == (0.0, 1.0)


def test_the_two_meanings_are_two_errors() -> None:
    rng = np.random.default_rng(1)
    p = rng.random(2000)
    label = rng.random(2000) < np.where(p > 0.5, p, 0.5 * p)  # too high for p(y = 1) only below one half
    confidence, right = np.maximum(p, 1 - p), label == (p > 0.5)
    by_true, by_top = (
        calibration_report(p_true=p, y=label, **QUICK),
        calibration_report(p_top=confidence, y=right, **QUICK),
    )
    assert (by_true.meaning, by_top.meaning) == ("p_true", "p_top")
    assert abs(by_true.ece - by_top.ece) > 0.001
    assert by_top.bins["low"].to_numpy().min() >= 0.46


def test_any_array_like_gives_the_same_report() -> None:
    p, y = source(64)
    p = np.round(p * 64) / 64  # exact in bfloat16
    expected = calibration_report(p_true=p, y=y, **QUICK)
    tensor = torch.tensor(p, dtype=torch.bfloat16, requires_grad=True)
    for values, labels in (
        (p.tolist(), y.tolist()),
        (tensor, torch.tensor(y).bool()),
        (p.astype("f4"), y.astype(bool)),
    ):
        assert calibration_report(p_true=values, y=labels, **QUICK) == expected


def test_one_class_and_one_group_say_what_is_missing() -> None:
    report = calibration_report(p_top=[0.7, 0.8, 0.9], y=[1, 1, 1], groups=["a", "a", "a"])
    assert report.auroc is None
    assert report.intervals == {}
    assert report.ece_interval is None
    assert any("no pair to rank" in note for note in report.notes)
    assert any("one group" in note for note in report.notes)
    assert report.null_band is not None


def test_a_certain_error_costs_infinitely_and_is_still_saved(tmp_path: Path) -> None:
    report = calibration_report(p_true=[1.0, 0.4, 0.2], y=[0, 1, 0], n_boot=50, n_null=50)
    assert report.nll == math.inf
    assert "nll" not in report.intervals
    assert any("infinite" in note for note in report.notes)
    assert CalibrationReport.load(report.save(tmp_path / "report.json")) == report


def test_save_load_and_frames(tmp_path: Path) -> None:
    p, y = source(200)
    report = calibration_report(p_true=p, y=y, groups=[f"g{i % 20}" for i in range(200)])
    again = CalibrationReport.load(report.save(tmp_path / "a" / "report.json"))
    assert again == report
    assert again.verdict == report.verdict
    assert again.bins.equals(report.bins)
    frame = report.to_frame().set_index("figure")
    assert frame.loc["ece", "value"] == report.ece
    assert (frame.loc["ece", "null_low"], frame.loc["ece", "null_high"]) == report.null_band
    assert set(frame["n"]) == {200}
    assert set(frame["n_groups"]) == {20}
    assert {"low", "high", "n", "confidence", "accuracy"} <= set(report.bins.columns)


def test_a_file_of_format_1_is_read(tmp_path: Path) -> None:
    report = calibration_report(p_true=(s := source(50))[0], y=s[1], n_boot=100, n_null=100)
    path = report.save(tmp_path / "report.json")
    card = json.loads(path.read_text())
    assert card["format"] == 2
    for added in ("l2_debiased", "ece_sweep", "sweep_bins"):
        del card["report"][added]
    path.write_text(json.dumps(card | {"format": 1}))
    old = CalibrationReport.load(path)
    assert (old.ece, old.verdict, old.ece_sweep, old.l2_debiased) == (report.ece, report.verdict, None, None)
    assert "earlier version" in old.notes[-1]
    assert math.isnan(old.to_frame().set_index("figure").loc["ece_sweep", "value"])
    assert CalibrationReport.load(old.save(tmp_path / "again.json")) == old


def test_other_files_are_refused(tmp_path: Path) -> None:
    report = calibration_report(p_true=[0.5, 0.6], y=[0, 1], **QUICK)
    path = report.save(tmp_path / "report.json")
    card = json.loads(path.read_text())
    for change, message in (({"kind": "probe"}, "no calibration report"), ({"format": 99}, "update interp")):
        path.write_text(json.dumps(card | change))
        with pytest.raises(ValueError, match=message):
            CalibrationReport.load(path)
    path.write_text(json.dumps(card | {"report": {"ece": 1}}))
    with pytest.raises(ValueError, match="missing or unknown keys"):
        CalibrationReport.load(path)
    with pytest.raises(ValueError, match="no file"):
        CalibrationReport.load(tmp_path / "absent.json")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"y": [0, 1]}, "exactly one"),
        ({"p_true": [0.1, 0.2], "p_top": [0.1, 0.2], "y": [0, 1]}, "exactly one"),
        ({"p_true": [], "y": []}, "at least one row"),
        ({"p_true": [[0.1, 0.9]], "y": [0]}, r"shape \[n\]"),
        ({"p_true": [0.1, 0.2, 0.3], "y": [0, 1]}, "3 rows and y has 2"),
        ({"p_true": [0.1, math.nan], "y": [0, 1]}, "NaN in 1 of 2 rows, first in row 1"),
        ({"p_true": [0.1, 0.2], "y": [0, math.nan]}, "y is NaN"),
        ({"p_true": [0.1, 1.5], "y": [0, 1]}, r"row 1 is .*1\.5.*logits"),
        ({"p_true": [-1e-9, 0.5], "y": [0, 1]}, r"\[0, 1\]"),
        ({"p_true": [0.1, 0.2], "y": [1, 2]}, "row 1 is .*2"),
        ({"p_top": [0.1, 0.2], "y": [0.5, 1]}, "where the answer was right"),
        ({"p_true": ["a", "b"], "y": [0, 1]}, "numbers"),
        ({"p_true": [0.1, 0.2], "y": [0, 1], "groups": ["a"]}, "1 entries for 2 rows"),
        ({"p_true": [0.1, 0.2], "y": [0, 1], "groups": ["a", None]}, "row 1 has no group"),
        ({"p_true": [0.1, 0.2], "y": [0, 1], "n_bins": 0}, "n_bins"),
        ({"p_true": [0.1, 0.2], "y": [0, 1], "n_boot": -1}, "n_boot"),
    ],
)
def test_bad_input_is_refused_with_the_mend(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        calibration_report(**arguments)
