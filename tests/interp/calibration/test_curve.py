"""Bins of equal width and mass, and the smooth curve: by hand, and on the diagonal where the source is calibrated."""

import math

import numpy as np
import pandas as pd
import pytest

from interp.calibration import calibration_report
from interp.calibration.curve import reliability_bins, reliability_curve


def drawn(n: int = 4000, power: float = 1.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    p = rng.random(n)
    return p, (rng.random(n) < p**power).astype(int)


def test_bins_of_equal_width_are_those_of_the_report() -> None:
    p, y = drawn(500)
    pd.testing.assert_frame_equal(
        reliability_bins(p, y, 12), calibration_report(p_true=p, y=y, n_bins=12, n_boot=0, n_null=0).bins
    )


def test_bins_of_equal_mass_by_hand() -> None:
    found = reliability_bins([0.1, 0.2, 0.6, 0.8], [0, 1, 1, 1], 2, "mass")
    assert found["n"].tolist() == [2, 2]
    assert found["confidence"].tolist() == pytest.approx([0.15, 0.7])
    assert found["accuracy"].tolist() == [0.5, 1.0]
    assert found["low"].tolist() == pytest.approx([0.0, 0.4])
    assert found["high"].tolist() == pytest.approx([0.4, 1.0])
    tied = reliability_bins([0.5] * 6, [0, 1] * 3, 3, "mass")
    assert tied["n"].tolist() == [6]
    even = reliability_bins(*drawn(999), 10, "mass")["n"]
    assert set(even) <= {99, 100}


def test_the_ece_of_equal_mass_is_that_of_the_bins() -> None:
    p, y = drawn(700, power=2.0)
    bins = reliability_bins(p, y, 15, "mass")
    ece = float((bins["n"] * (bins["confidence"] - bins["accuracy"]).abs()).sum()) / len(p)
    assert ece == pytest.approx(calibration_report(p_true=p, y=y, n_boot=0, n_null=0).ece_mass)


def test_a_calibrated_source_lies_on_the_diagonal_up_to_its_ends() -> None:
    found = reliability_curve(*drawn(20_000), sigma=0.08, n_boot=0)
    assert found["observed"].notna().all()
    assert float((found["observed"] - found["p"]).abs().max()) < 0.04
    assert np.trapezoid(found["density"], found["p"]) == pytest.approx(1.0, abs=1e-3)
    assert "low" not in found


def test_another_source_is_found_and_the_band_holds_the_curve() -> None:
    found = reliability_curve(*drawn(6000, power=2.0), n_points=21, n_boot=100)
    inner = found.loc[found["p"].between(0.1, 0.9)]
    assert float((inner["observed"] - inner["p"] ** 2).abs().max()) < 0.06
    assert (inner["low"] <= inner["observed"]).all()
    assert (inner["observed"] <= inner["high"]).all()


def test_the_value_at_a_place_by_hand() -> None:
    found = reliability_curve([0.5, 0.6], [1, 0], sigma=0.1, n_points=11, n_boot=0).set_index("p")
    near = math.exp(-0.5)
    assert found["observed"].iloc[5] == pytest.approx(0.5 + (0.5 * 1 - 0.6 * near) / (1 + near), abs=1e-6)


def test_order_changes_nothing_and_what_is_far_from_every_row_is_not_said() -> None:
    p, y = drawn(300)
    p = 0.4 + 0.2 * p
    order = np.random.default_rng(1).permutation(len(p))
    one, other = (reliability_curve(p[o], y[o], n_boot=0) for o in (np.arange(len(p)), order))
    pd.testing.assert_frame_equal(one, other)
    assert one.loc[~one["p"].between(0.39, 0.61), "observed"].isna().all()
    assert one.loc[one["p"].between(0.41, 0.59), "observed"].notna().all()


def test_groups_are_drawn_whole() -> None:
    p, y = drawn(400)
    twice = reliability_curve(np.repeat(p, 5), np.repeat(y, 5), sigma=0.1, groups=np.repeat(np.arange(400), 5))
    alone = reliability_curve(np.repeat(p, 5), np.repeat(y, 5), sigma=0.1)
    width = (twice["high"] - twice["low"]) / (alone["high"] - alone["low"])
    assert float(width.median()) == pytest.approx(math.sqrt(5), rel=0.2)
    assert "low" not in reliability_curve(p, y, groups=["one"] * 400)


@pytest.mark.parametrize(
    ("p", "y", "options", "said"),
    [
        ([0.5, math.nan], [0, 1], {}, "NaN"),
        ([0.5, 1.2], [0, 1], {}, "must lie in"),
        ([0.5, 0.2], [0, 2], {}, "0 or 1"),
        ([0.5, 0.2], [0, 1], {"sigma": 0.0}, "sigma must be above 0"),
        ([0.5, 0.2], [0, 1], {"n_points": 1}, "n_points 2 or more"),
    ],
)
def test_what_is_refused(p: list[float], y: list[int], options: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        reliability_curve(p, y, **options)


def test_bins_refuse_another_way_and_no_bins() -> None:
    with pytest.raises(ValueError, match="width or mass"):
        reliability_bins([0.5], [1], 5, "size")
    with pytest.raises(ValueError, match="at least 1"):
        reliability_bins([0.5], [1], 0, "mass")
