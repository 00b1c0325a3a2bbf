"""The statistics of a steering experiment: against numpy and hand counts, and the properties that they must have."""

import math

import numpy as np
import pytest

from interp.bootstrap import mean_interval
from interp.steering.figures import (
    distinct_n,
    group_mean,
    item_slopes,
    largest_within,
    mean_change,
    random_band,
    repetition,
    way_of,
    wrong_share,
)

RNG = np.random.default_rng(0)

# ------------------------------------------------------------------------------------------------------------ changes


def test_the_effect_is_the_mean_change_with_its_interval() -> None:
    base, values = RNG.normal(size=20), RNG.normal(1.0, 1.0, size=20)
    found = mean_change(values, base, 0.1, seed=3)
    low, high = mean_interval(values - base, seed=3)
    assert found.effect == pytest.approx((values - base).mean())
    assert (found.low, found.high) == pytest.approx((float(low), float(high)))
    assert (found.n, found.n_groups) == (20, 20)


def test_changes_are_subtracted_before_they_are_averaged() -> None:
    base = np.full(4, 1e9)
    assert mean_change(base + np.arange(1.0, 5.0), base, 1.0).effect == 2.5


def test_repeating_a_group_adds_no_certainty() -> None:
    once = RNG.normal(size=8)
    mean, low, high, n_groups = group_mean(np.repeat(once, 5), [i // 5 for i in range(40)])
    assert (mean, low, high) == pytest.approx(group_mean(once)[:3])
    assert n_groups == 8
    narrow = group_mean(np.repeat(once, 5))
    assert narrow[2] - narrow[1] < 0.6 * (high - low)


def test_groups_may_be_of_different_sizes_and_items_may_have_none() -> None:
    values, groups = np.array([1.0, 1.0, 1.0, 5.0]), ["a", "a", "a", None]
    mean, *_, n_groups = group_mean(values, groups)
    assert (mean, n_groups) == (2.0, 2)
    assert group_mean(values, [None] * 4)[3] == group_mean(values, [math.nan] * 4)[3] == 4


def test_wrong_way_depends_on_the_sign_of_the_strength() -> None:
    base = np.zeros(4)
    values = np.array([1.0, 2.0, -1.0, 0.0])
    up, down = mean_change(values, base, 0.1), mean_change(values, base, -0.1)
    assert (up.wrong_way, down.wrong_way) == (0.25, 0.5)
    assert math.isnan(mean_change(values, base, 0.0).wrong_way)


def test_what_is_taken_out_should_move_values_the_other_way() -> None:
    base = np.zeros(4)
    values = np.array([-3.0, -2.0, -1.0, 1.0])
    out = mean_change(values, base, 1.0, way=way_of("ablate"))
    assert (out.effect, out.wrong_way) == (-1.25, 0.25)
    assert mean_change(values, base, 1.0, way=way_of("rotate")).wrong_way == 0.75
    none = mean_change(values, base, 1.0, way=way_of("piecewise"))
    assert none.effect == -1.25
    assert math.isnan(none.wrong_way)
    assert math.isnan(none.wrong_low)


def test_no_wrong_item_of_few_is_not_none_at_all() -> None:
    share, low, high = wrong_share(np.zeros(10, bool))
    assert (share, low) == (0.0, 0.0)
    assert high == pytest.approx(1.96**2 / (10 + 1.96**2), abs=1e-3)


def test_a_single_item_has_no_interval() -> None:
    found = mean_change(np.array([1.0]), np.array([0.0]), 1.0)
    assert found.effect == 1.0
    assert math.isnan(found.low)
    assert math.isnan(found.high)


@pytest.mark.parametrize(
    ("values", "base", "options", "message"),
    [
        ([], [], {}, "at least one"),
        ([1.0], [1.0, 2.0], {}, "the same items; got 1 and 2"),
        ([math.nan], [0.0], {}, "finite"),
        ([1.0, 2.0], [0.0, 0.0], {"groups": ["a"]}, "each of the 2 items, got 1"),
    ],
)
def test_bad_items(values: list, base: list, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mean_change(values, base, 1.0, **options)


# ------------------------------------------------------------------------------------------------------------- slopes


def test_slopes_are_those_of_numpys_fit() -> None:
    grid = np.array([0.0, -0.1, 0.1, 0.25])  # in any order, at any distance
    values = RNG.normal(size=(7, 4))
    expected = [np.polyfit(grid, row, 1)[0] for row in values]
    np.testing.assert_allclose(item_slopes(values, grid), expected, rtol=1e-10)


def test_with_one_strength_the_slope_says_what_the_change_says() -> None:
    base, values = np.zeros(30), RNG.normal(size=30)
    for strength in (0.2, -0.2):
        slopes = item_slopes(np.stack([base, values], 1), [0.0, strength])
        np.testing.assert_allclose(slopes, values / strength)
        assert (slopes < 0).mean() == mean_change(values, base, strength).wrong_way


def test_slopes_need_a_value_at_every_strength() -> None:
    with pytest.raises(ValueError, match="two different strengths"):
        item_slopes(np.zeros((2, 2)), [0.1, 0.1])
    with pytest.raises(ValueError, match="with 3 strengths"):
        item_slopes(np.zeros((2, 2)), [0.0, 0.1, 0.2])
    with pytest.raises(ValueError, match="at every strength"):
        item_slopes(np.array([[0.0, math.nan]]), [0.0, 0.1])


# --------------------------------------------------------------------------------------------------------------- band


def test_band() -> None:
    randoms = np.array([-1.0, 0.0, 1.0])
    found = random_band(4.0, 3.0, 5.0, randoms)
    assert (found["n"], found["mean"], found["std"], found["low"], found["high"]) == (3, 0.0, 1.0, -1.0, 1.0)
    assert found["p"] == 1 / 4
    assert found["z"] == 3.0
    assert random_band(-4.0, -5.0, -3.0, randoms)["z"] == -3.0


def test_p_counts_size_and_not_sign() -> None:
    assert random_band(0.9, 0.8, 1.0, np.array([-1.0, 0.0, 1.0]))["p"] == 3 / 4
    assert random_band(1.0, 0.8, 1.2, np.array([-1.0, 0.0, 0.5]))["p"] == 2 / 4  # as large counts


def test_an_interval_around_the_mean_is_at_no_distance() -> None:
    assert random_band(0.5, -0.5, 1.5, np.array([-1.0, 0.0, 1.0]))["z"] == 0.0


def test_a_distance_needs_spread_and_an_interval() -> None:
    assert math.isnan(random_band(1.0, 0.5, 1.5, np.array([0.1]))["z"])
    assert math.isnan(random_band(1.0, 0.5, 1.5, np.array([0.1, 0.1]))["z"])
    assert math.isnan(random_band(1.0, math.nan, math.nan, np.array([0.1, 0.2]))["z"])


def test_p_of_a_meaningless_direction_is_uniform() -> None:
    below = [
        random_band(draw[0], draw[0], draw[0], draw[1:])["p"] <= 0.05
        for draw in np.random.default_rng(1).normal(size=(4000, 20))
    ]
    assert np.mean(below) == pytest.approx(0.05, abs=0.011)  # three standard errors


# --------------------------------------------------------------------------------------------------------------- text


def test_distinct_and_repetition_by_hand() -> None:
    text = ["a", "b"] * 3
    assert distinct_n([text], 1) == 2 / 6
    assert distinct_n([text], 2) == 2 / 5
    assert distinct_n([text], 3) == 2 / 4
    assert repetition([text]) == 1 / 3  # abab, baba, abab
    assert repetition([list("abcdefg")]) == 0.0
    assert repetition([[7] * 10]) == 6 / 7


def test_texts_are_pooled_for_distinct_and_kept_apart_for_repetition() -> None:
    text = [1, 2, 3, 4, 5]
    assert distinct_n([text, text], 1) == 0.5
    assert repetition([text, text]) == 0.0
    assert distinct_n([[1, 2], [3, 4]], 2) == 1.0  # no gram crosses from one text to the next


def test_texts_that_are_too_short_have_no_figure() -> None:
    assert math.isnan(distinct_n([[1], []], 2))
    assert math.isnan(repetition([[1, 2, 3]]))
    with pytest.raises(ValueError, match="n = 0"):
        distinct_n([[1]], 0)


# ---------------------------------------------------------------------------------------------------- largest strength

GRID = [-0.2, -0.1, 0.0, 0.1, 0.2, 0.3, 0.4]
HARM = [0.03, 0.01, 0.0, 0.02, 0.30, 0.01, 0.50]
"""0.3 looks harmless: the model says one fluent phrase over and over."""


def test_the_first_failure_ends_the_search() -> None:
    assert largest_within(GRID, HARM, 0.05, 1) == 0.1
    assert largest_within(GRID, HARM, 0.05, -1) == -0.2
    assert largest_within(GRID, HARM, 0.05) == -0.2
    assert largest_within(GRID, HARM, 0.3, 1) == 0.3
    assert largest_within(GRID, HARM, 1.0) == 0.4


def test_the_order_of_the_grid_does_not_matter() -> None:
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(len(GRID))
        assert largest_within(np.array(GRID)[order], np.array(HARM)[order], 0.05, 1) == 0.1


def test_the_bound_itself_passes_and_nothing_may() -> None:
    assert largest_within(GRID, HARM, 0.02, 1) == 0.1
    assert largest_within(GRID, HARM, 0.019, 1) == 0.0
    assert largest_within([-0.1, 0.0, 0.1], [0.0, 0.0, 0.0], 0.0) == 0.1  # of equal ends the positive one


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bound": -1.0}, "0 or more, got -1"),
        ({"bound": math.nan}, "0 or more, got nan"),
        ({"side": 2}, "1, -1 or None, got 2"),
        ({"damage": [math.nan] * 7}, "not measured"),
        ({"strengths": [0.0, 0.1], "damage": [0.0, 0.0], "side": -1}, "no strength on that side"),
    ],
)
def test_a_search_that_cannot_be_made(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        largest_within(**{"strengths": GRID, "damage": HARM, "bound": 0.05, **options})
