"""Statistics of rows against numpy in extended precision: far from zero, with outliers, with equal rows, of any width."""

import numpy as np
import pytest
import torch

from interp.store.stats import Moments, row_norms, site_stats


def assert_moments(moments, rows):
    """Count, mean and M2 are those of the rows, to float64's last digits."""
    exact = rows.double().numpy().astype(np.longdouble)
    mean = exact.mean(0)
    assert moments.count == len(rows)
    np.testing.assert_allclose(moments.mean, mean.astype(float), rtol=1e-14, atol=1e-14 * float(np.abs(exact).max()))
    np.testing.assert_allclose(moments.M2, ((exact - mean) ** 2).sum(0).astype(float), rtol=1e-13)
    assert moments.norms.count == len(rows)


@pytest.mark.parametrize("d", [1, 37, 576, 40_000])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_site_stats_of_many_blocks(d, dtype):
    """With sinks that are not ordinary, and outliers that are known only after the sums were made."""
    generator = torch.Generator().manual_seed(d)
    n = 700 if d < 40_000 else 12
    rows = torch.randn(n, d, generator=generator) + 30 * torch.randn(d, generator=generator)
    ordinary = np.arange(n) % 10 != 0
    rows[torch.from_numpy(~ordinary)] *= 100
    outliers = [5] if n == 12 else [3, 4, 399, 699]
    rows[outliers] = (rows[outliers] + 3).sign() * 1000.0
    rows = rows.to(dtype)
    stats, outlier, norms = site_stats(rows, ordinary)
    exact = np.linalg.norm(rows.double().numpy(), axis=1)
    np.testing.assert_allclose(norms, exact, rtol=1e-14)
    np.testing.assert_array_equal(row_norms(rows), norms)
    over = exact > 10 * np.median(exact[ordinary])
    np.testing.assert_array_equal(outlier, over)
    assert over[outliers].all()
    typical = torch.from_numpy(ordinary & ~over)
    assert_moments(stats.typical, rows[typical])
    assert_moments(stats.all, rows)


def test_rows_far_from_zero_lose_nothing():
    """A mean a million times the deviation: the difference of two sums of squares would have four digits left."""
    rows = torch.randn(500, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 1e6
    moments = Moments.of(rows)
    exact = rows.numpy().astype(np.longdouble)
    np.testing.assert_allclose(moments.M2, ((exact - exact.mean(0)) ** 2).sum(0).astype(float), rtol=1e-12)


@pytest.mark.parametrize("value", [0.0, 0.1, 1 / 3, 3e4])
def test_equal_rows_have_no_variance(value):
    rows = torch.full((1000, 3), value)
    assert Moments.of(rows).M2.tolist() == [0.0, 0.0, 0.0]
    assert Moments.of(rows).mean.tolist() == rows[0].double().tolist()


def test_a_huge_row_among_those_that_deviations_are_taken_from():
    """It is left out of their mean, and the other row keeps its digits."""
    rows = torch.ones(300, 5)
    rows[0] = 1e30
    chosen = np.zeros(300, dtype=bool)
    chosen[[0, 7]] = True
    assert_moments(Moments.of(rows, chosen), rows[[0, 7]])
    chosen[0] = False
    assert_moments(Moments.of(rows, chosen), rows[[7]])


@pytest.mark.parametrize(("n", "d"), [(0, 5), (4, 0)])
def test_nothing_is_no_error(n, d):
    moments = Moments.of(torch.zeros(n, d))
    assert (moments.count, moments.mean.shape, moments.M2.tolist()) == (n, (d,), [0.0] * d)
    stats, outlier, norms = site_stats(torch.zeros(n, d), np.ones(n, dtype=bool))
    assert (stats.all.count, len(outlier), len(norms)) == (n, n, n)


@pytest.mark.parametrize(("n", "d"), [(2000, 576), (5, 40_000)])
def test_the_threads_of_torch_decide_no_bit(n, d):
    rows = (torch.randn(n, d, generator=torch.Generator().manual_seed(1)) + 5).bfloat16()
    ordinary = np.arange(n) % 64 != 0
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append(site_stats(rows, ordinary))
    finally:
        torch.set_num_threads(before)
    (one, _, norms), (three, _, others) = found
    np.testing.assert_array_equal(norms, others)
    for name in ("mean", "M2"):
        assert torch.equal(getattr(one.all, name), getattr(three.all, name))
        assert torch.equal(getattr(one.typical, name), getattr(three.typical, name))
