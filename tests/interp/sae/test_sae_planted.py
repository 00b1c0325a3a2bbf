"""Planted features are what they claim to be: their law, their company, their sum."""

import itertools
import math
from typing import Any

import pytest
import torch
from scipy.stats import multivariate_normal, norm

from interp.sae.planted import SPREAD, PlantedDictionary, planted_dictionary

N = 20_000


@pytest.fixture(scope="module")
def planted() -> PlantedDictionary:
    return planted_dictionary(48, 16, seed=3, zipf=0.7, most_frequent=0.4, correlation=0.5, block=4, noise=0.1)


@pytest.fixture(scope="module")
def codes(planted: PlantedDictionary) -> torch.Tensor:
    return planted.rows(N, 0).codes.dense(48).double()


def test_frequencies_follow_zipf(planted: PlantedDictionary, codes: torch.Tensor) -> None:
    law = 0.4 / torch.arange(1, 49, dtype=torch.float64) ** 0.7
    torch.testing.assert_close(planted.frequencies, law)
    deviation = (law * (1 - law) / N).sqrt()
    assert (((codes > 0).double().mean(0) - law) / deviation).abs().max() < 4
    assert planted.l0 == pytest.approx(law.sum().item())


def test_features_of_a_block_fire_together_as_the_copula_says(planted: PlantedDictionary, codes: torch.Tensor) -> None:
    fires = (codes > 0).double()
    together = fires.T @ fires / N
    checked = 0
    for i, j in itertools.combinations(range(48), 2):
        alone = planted.frequencies[[i, j]].tolist()
        same = planted.block[i] == planted.block[j]
        rho = planted.correlation if same else 0.0
        covariance: Any = [[1, rho], [rho, 1]]
        expected = float(multivariate_normal.cdf(norm.ppf(alone), mean=[0, 0], cov=covariance))
        deviation = math.sqrt(expected * (1 - expected) / N)
        assert abs(together[i, j].item() - expected) < 5 * deviation
        checked += int(same)
    assert checked == 12 * 6


def test_magnitudes_are_log_normal(codes: torch.Tensor) -> None:
    logarithms = codes[codes > 0].log()
    assert logarithms.mean().item() == pytest.approx(0, abs=5 * SPREAD / math.sqrt(len(logarithms)))
    assert logarithms.std().item() == pytest.approx(SPREAD, rel=0.02)


def test_a_row_is_the_sum_of_its_features_and_noise(planted: PlantedDictionary) -> None:
    torch.testing.assert_close(planted.directions.norm(dim=1), torch.ones(48))
    rows = planted.rows(5000, 1)  # more than are drawn at a time
    assert rows.codes.n_rows == 5000
    noise = rows.activations - rows.codes.dense(48) @ planted.directions
    assert noise.mean().item() == pytest.approx(0, abs=0.002)
    assert noise.std().item() == pytest.approx(0.1, rel=0.02)
    clean = planted_dictionary(48, 16, seed=3, noise=0.0)
    rows = clean.rows(500, 1)
    torch.testing.assert_close(rows.activations, rows.codes.dense(48) @ clean.directions)


def test_a_seed_gives_the_same_rows_and_another_one_others(planted: PlantedDictionary) -> None:
    again = planted_dictionary(48, 16, seed=3, zipf=0.7, most_frequent=0.4, correlation=0.5, block=4, noise=0.1)
    first, second, other = planted.rows(64, 7), again.rows(64, 7), planted.rows(64, 8)
    assert torch.equal(first.activations, second.activations)
    assert torch.equal(first.codes.values, second.codes.values)
    assert not torch.equal(first.activations, other.activations)
    assert not torch.equal(planted.directions, planted_dictionary(48, 16, seed=4).directions)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"n_features": 0}, "n_features"),
        ({"d_model": 0}, "d_model"),
        ({"block": 0}, "block"),
        ({"seed": -1}, "seed"),
        ({"zipf": float("nan")}, "zipf"),
        ({"most_frequent": 1.0}, "most_frequent"),
        ({"correlation": 1.0}, "correlation"),
        ({"noise": -0.1}, "noise"),
    ],
)
def test_a_number_out_of_range_is_named(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        planted_dictionary(**({"n_features": 8, "d_model": 4, "seed": 0} | wrong))


def test_no_rows_and_a_negative_seed_are_refused(planted: PlantedDictionary) -> None:
    with pytest.raises(ValueError, match="n must be at least 1, got 0"):
        planted.rows(0, 0)
    with pytest.raises(ValueError, match="seed must be at least 0, got -1"):
        planted.rows(1, -1)
