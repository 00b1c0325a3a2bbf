"""Intervals cover what they should, and say when there is none."""

import numpy as np
import pytest

from interp.bootstrap import grouped_interval, grouped_share, mean_interval, ratio_interval, wilson_interval


@pytest.mark.parametrize("n", [2, 4, 8, 40])
def test_means_are_covered_about_as_often_as_said(n: int) -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(1.0, 2.0, (2000, n))
    low, high = mean_interval(values, seed=1)
    # Of two values the draws hold three means, so the ends can only be those of the values themselves.
    assert 0.92 <= np.mean((low <= 1.0) & (high >= 1.0)) <= 0.98
    assert 0.01 <= np.mean(low > 1.0) <= 0.04


def test_a_ratio_draws_both_its_parts_together() -> None:
    rng = np.random.default_rng(0)
    below = rng.gamma(2.0, 1.0, 30)
    low, high = ratio_interval(0.3 * below, below)
    assert low == pytest.approx(0.3)
    assert high == pytest.approx(0.3)


def test_ends_are_those_of_a_loop_over_the_same_draws() -> None:
    rng = np.random.default_rng(3)
    above, below = rng.normal(size=(2, 3, 7)), rng.gamma(2.0, size=7)
    counts = np.random.default_rng(5).multinomial(7, np.full(7, 1 / 7), 200)
    found = np.array([(above @ count) / (below @ count) for count in counts])
    low, high = ratio_interval(above, below, seed=5, n_boot=200)
    estimate = above.sum(-1) / below.sum()
    wider = 2.4469 / 1.96 * np.sqrt(7 / 6)  # t(6)
    expected = estimate + wider * (np.quantile(found, [0.025, 0.975], axis=0) - estimate)
    np.testing.assert_allclose([low, high], expected, rtol=1e-4)


def test_one_value_has_no_interval_and_nothing_is_not_divided_by() -> None:
    low, high = mean_interval(np.ones((2, 1)))
    assert np.isnan(low).all()
    assert np.isnan(high).all()
    with pytest.raises(ValueError, match="nothing to divide by"):
        ratio_interval(np.ones(3), np.zeros(3))


def test_lines_with_nan_have_no_interval_and_others_keep_theirs() -> None:
    values = np.array([[1.0, 2.0, 3.0], [1.0, np.nan, 3.0]])
    low, high = mean_interval(values)
    assert np.isnan(low).tolist() == np.isnan(high).tolist() == [False, True]
    assert low[0] == mean_interval(values[0])[0]


def test_groups_of_one_size_are_their_means_drawn() -> None:
    values = np.random.default_rng(0).normal(size=(2, 12))
    found = grouped_interval(values, np.arange(12) // 3 * 7, seed=4)
    np.testing.assert_allclose(found, mean_interval(values.reshape(2, 4, 3).mean(2), seed=4))


def test_intervals_draw_groups_and_are_never_of_no_width() -> None:
    groups = np.arange(40) // 4
    ones, halves, mixed = np.ones(40), np.tile([0.0, 1.0], 20), (groups % 2).astype(float)
    low, high = grouped_share(np.stack([ones, halves, mixed]), groups)
    assert list(low[:2] < [1.0, 0.5]) == [True, True]
    assert high[0] == 1.0
    assert high[1] > 0.5
    assert grouped_share(np.array([1.0, 0.0]), np.zeros(2, int)) == pytest.approx(wilson_interval(0.5, 1))
    # Ten groups that each agree within themselves are ten draws, not forty.
    assert high[2] - low[2] == pytest.approx(2 * 2.26 * (0.25 / 9) ** 0.5, rel=0.15)
