"""The same figures from other libraries: equal where they are right, and where they are not the reason is held here."""

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, brier_score_loss, log_loss, roc_auc_score

from interp.calibration import calibration_report
from interp.calibration.classwise import classwise_calibration

QUICK = {"n_boot": 0, "n_null": 0}
N_BINS = 15


def imported(*names: str) -> list[Any]:
    """Modules whose import itself warns of what they will lose."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [__import__(name, fromlist=["_"]) for name in names]


def rows(n: int = 400, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Sure answers that are less often right than stated; no p on a bin edge, and none exactly 0 or 1."""
    rng = np.random.default_rng(seed)
    p = rng.beta(3, 1, n) * 0.98 + 0.0101
    return p, (rng.random(n) < p**1.5).astype(int)


def test_scikit_learn() -> None:
    p, y = rows()
    report = calibration_report(p_true=p, y=y, **QUICK)
    assert report.brier == pytest.approx(brier_score_loss(y, p), abs=1e-12)
    assert report.nll == pytest.approx(log_loss(y, p), abs=1e-12)
    assert report.auroc == pytest.approx(roc_auc_score(y, p), abs=1e-12)
    # Average precision is another question: it hangs on the share of wrong answers, AUROC does not.
    assert abs(average_precision_score(y, p) - roc_auc_score(y, p)) > 0.05


# ----------------------------------------------------------------------------------------------------------- netcal


def netcal(metric: str, p: np.ndarray, y: np.ndarray, **options: Any) -> float:
    (module,) = imported("netcal.metrics")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(getattr(module, metric)(N_BINS, **options).measure(p, y))


def test_netcal_ece_and_mce() -> None:
    p, y = rows()
    report = calibration_report(p_true=p, y=y, **QUICK)
    assert netcal("ECE", p, y) == pytest.approx(report.ece, abs=1e-9)
    assert netcal("MCE", p, y) == pytest.approx(report.mce, abs=1e-9)


def test_netcal_ace_is_an_unweighted_mean_over_equal_width_bins() -> None:
    p, y = rows()
    report = calibration_report(p_true=p, y=y, **QUICK)
    found = netcal("ACE", p, y)
    gap = (report.bins["confidence"] - report.bins["accuracy"]).abs()
    assert found == pytest.approx(float(gap.mean()), abs=1e-9)
    classes = classwise_calibration(probabilities=np.stack([1 - p, p], 1), labels=y, **QUICK)
    assert abs(found - classes.ace) > 0.005  # Nixon et al.'s: equal mass, every bin by its rows
    # An almost empty bin moves it as much as a full one: a single wrong answer at p = 0.004 costs 1 / 15.
    more_p, more_y = np.append(p, 0.004), np.append(y, 1)
    moved = calibration_report(p_true=more_p, y=more_y, **QUICK)
    assert netcal("ACE", more_p, more_y) - found > 0.02
    assert abs(moved.ece - report.ece) < 0.005


# ------------------------------------------------------------------------------------------------------ torchmetrics


def torchmetrics(p: np.ndarray, y: np.ndarray, norm: str = "l1") -> float:
    (module,) = imported("torchmetrics.functional.classification")
    p_tensor = torch.tensor(p, dtype=torch.float64)
    return float(module.binary_calibration_error(p_tensor, torch.tensor(y), n_bins=N_BINS, norm=norm))


def test_torchmetrics_without_certainty() -> None:
    p, y = rows()
    report = calibration_report(p_true=p, y=y, **QUICK)
    assert torchmetrics(p, y) == pytest.approx(report.ece, abs=1e-9)
    assert torchmetrics(p, y, "max") == pytest.approx(report.mce, abs=1e-9)


def test_torchmetrics_puts_certainty_into_a_bin_of_its_own() -> None:
    # One answer of 0.97 that is right and one of 1.0 that is wrong: in one bin their mean gap is .485, apart they are .03, 1.
    p, y = np.array([0.97, 1.0]), np.array([1, 0])
    report = calibration_report(p_true=p, y=y, **QUICK)
    assert report.ece == pytest.approx(0.485)
    assert len(report.bins) == 1
    assert torchmetrics(p, y) == pytest.approx((0.03 + 1.0) / 2)


def test_torchmetrics_l2_is_the_biased_one() -> None:
    rng = np.random.default_rng(0)
    gaps = []
    for _ in range(20):
        p = rng.random(300)
        y = (rng.random(300) < p).astype(int)  # calibrated: the true error is 0
        gaps.append((torchmetrics(p, y, "l2"), calibration_report(p_true=p, y=y, **QUICK).l2_debiased))
    biased, debiased = np.mean(gaps, axis=0)
    assert biased > 0.06
    assert debiased < biased / 2


# ----------------------------------------------------------------------------------------------------------- relplot


def test_relplot_smooth_ece() -> None:
    relplot = imported("relplot")[0]
    for seed in range(4):
        p, y = rows(500, seed)
        expected, sigma = relplot.smECE(p, y, return_width=True)
        report = calibration_report(p_true=p, y=y, **QUICK)
        # Its bandwidth is halved to the nearest 0.001, and what it gives is the error there: close to the fixed point.
        assert report.smooth_ece == pytest.approx(expected, abs=0.002)
        assert report.smooth_ece_sigma == pytest.approx(sigma, abs=0.002)


def test_relplot_bins_are_ours_but_for_its_rounding() -> None:
    metrics = imported("relplot.metrics")[0]
    p, y = rows()
    report = calibration_report(p_true=p, y=y, n_bins=10, **QUICK)
    assert metrics.binnedECE(p, y, nbins=10) == pytest.approx(report.ece, abs=1e-12)
    # 0.3 / 0.1 is 2.9999999999999996 in floats, so a p on that edge falls into the bin below.
    on_edge, right = np.array([0.29, 0.3]), np.array([0, 1])
    exact = calibration_report(p_true=on_edge, y=right, n_bins=10, **QUICK)
    assert exact.ece == pytest.approx((0.29 + 0.7) / 2)
    assert metrics.binnedECE(on_edge, right, nbins=10) == pytest.approx(abs(0.29 - 0.7) / 2)
