"""Debiased L2 error and the sweep against their definitions, in simulation, and where they cannot be had."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from interp.calibration import calibration_report
from interp.calibration.figures import Figures, debiased_square, equal_mass_bins

QUICK = {"n_boot": 0, "n_null": 0}


def source(n: int, distort: Callable[[np.ndarray], np.ndarray] = lambda p: p, seed: int = 0) -> Any:
    """p uniform, y ~ Bernoulli(distort(p)): calibrated for the identity."""
    rng = np.random.default_rng(seed)
    p = rng.random(n)
    return p, (rng.random(n) < distort(p)).astype(int)


def test_debiased_l2_by_hand_and_against_its_definition() -> None:
    # Bins of two: gaps (.1 + .3 - 0) / 2 and (.6 + .8 - 1) / 2; the second has variance .25 / (2 - 1).
    report = calibration_report(p_true=[0.1, 0.3, 0.6, 0.8], y=[0, 0, 0, 1], n_bins=2, **QUICK)
    assert report.l2_debiased == pytest.approx(math.sqrt(max((0.2**2 + 0.2**2 - 0.25) / 2, 0)))
    p, y = source(900, lambda p: p**2)
    bins = equal_mass_bins(p, 15)
    square = 0.0
    for b in range(15):
        stated, came = p[bins == b], y[bins == b]
        square += len(came) / 900 * ((stated.mean() - came.mean()) ** 2 - came.var() / (len(came) - 1))
    assert calibration_report(p_true=p, y=y, **QUICK).l2_debiased == pytest.approx(math.sqrt(square), abs=1e-12)


def test_debiased_l2_has_no_bias_and_the_plug_in_has() -> None:
    rng = np.random.default_rng(0)
    p = np.sort(rng.random(300))
    draws = (rng.random((4000, 300)) < p + 0.3 * (0.5 - p)).astype(float)
    figures = Figures.of(p, draws[0], 15)
    gaps = (draws - p) @ figures.basis[:, 15:30]
    n = np.broadcast_to(figures.mass_n, gaps.shape)
    true = float(((0.3 * (0.5 - p)) @ figures.basis[:, 15:30] / figures.mass_n) ** 2 @ figures.mass_n / 300)
    found = debiased_square(gaps, gaps + figures.mass_p, n)
    assert found.mean() == pytest.approx(true, abs=4 * found.std() / math.sqrt(4000))
    assert ((gaps / n) ** 2 * n / 300).sum(1).mean() > 1.5 * true


def test_doubled_rows_raise_the_debiased_error_alone() -> None:
    p, y = source(200, lambda p: p**1.3, seed=3)
    once, twice = (calibration_report(p_true=np.repeat(p, k), y=np.repeat(y, k), **QUICK) for k in (1, 2))
    assert once.l2_debiased is not None
    assert twice.l2_debiased is not None
    assert twice.l2_debiased > once.l2_debiased + 0.005
    assert (twice.ece_mass, twice.ece_sweep) == pytest.approx((once.ece_mass, once.ece_sweep), abs=1e-12)


def swept(p: np.ndarray, y: np.ndarray) -> tuple[float, int]:
    """The definition, one number of bins after another; p without ties."""
    order, best = np.argsort(p), (abs(float(p.mean() - y.mean())), 1)
    for n_bins in range(2, len(p) + 1):
        bins = (2 * np.arange(len(p)) + 1) * n_bins // (2 * len(p))
        parts = [order[bins == b] for b in range(n_bins)]
        height = [float(y[part].mean()) for part in parts]
        if any(after < before for before, after in itertools.pairwise(height)):
            break
        best = (sum(abs(float((p[part] - y[part]).sum())) for part in parts) / len(p), n_bins)
    return best


@pytest.mark.parametrize(("n", "power"), [(1, 1.0), (7, 1.0), (60, 2.0), (400, 0.5), (2000, 1.0)])
def test_the_sweep_is_its_definition(n: int, power: float) -> None:
    p, y = source(n, lambda p: p**power, seed=n)
    report = calibration_report(p_true=p, y=y, **QUICK)
    assert (report.ece_sweep, report.sweep_bins) == pytest.approx(swept(p, y), abs=1e-12)


def test_outcomes_that_p_sorts_completely_cost_what_they_do_row_by_row() -> None:
    p = np.linspace(0.01, 0.99, 3000)
    report = calibration_report(p_true=p, y=p > 0.5, **QUICK)
    assert report.ece_sweep == pytest.approx(np.abs(p - (p > 0.5)).mean(), abs=1e-4)


@pytest.mark.parametrize(("slope", "least"), [(0.0, 0.95), (0.4, 0.88)])
def test_debiased_l2_interval_covers_the_true_error(slope: float, least: float) -> None:
    fine = slope * (0.5 - (np.arange(15_000) + 0.5) / 15_000)
    true, covered = math.sqrt((fine.reshape(15, -1).mean(1) ** 2).mean()), 0
    for seed in range(40):
        p, y = source(400, lambda p: p + slope * (0.5 - p), seed)
        low, high = calibration_report(p_true=p, y=y, n_boot=100, n_null=100, seed=seed).intervals["l2_debiased"]
        covered += low <= true <= high
    assert covered / 40 >= least


def test_bins_with_a_single_row_are_named() -> None:
    report = calibration_report(p_true=[0.1, 0.2, 0.9], y=[0, 1, 1], n_boot=100, n_null=100)
    assert report.l2_debiased is None
    assert "l2_debiased" not in report.null_bands
    assert "l2_debiased" not in report.intervals
    assert any("no bin of equal mass has two rows" in note for note in report.notes)
    p, y = source(20)
    some = calibration_report(p_true=p, y=y, n_boot=100, n_null=100)
    assert some.l2_debiased is not None
    assert "l2_debiased" not in some.intervals
    assert any("leaves out" in note for note in some.notes)
    grouped = calibration_report(p_true=p, y=y, n_bins=3, groups=np.arange(20) // 2, n_boot=100, n_null=100)
    assert "l2_debiased" not in grouped.intervals
    assert "l2_debiased" in calibration_report(p_true=p, y=y, n_bins=3, n_boot=100, n_null=100).intervals
