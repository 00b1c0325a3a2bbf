"""Activations made of known features, to see whether an autoencoder finds them.

1. Directions: random unit vectors, more of them than dimensions, so that they overlap.
2. Frequencies follow Zipf's law: the feature of rank r = 1, 2 ... fires on a share `most_frequent / r^zipf` of the rows.
3. Features of one block fire together: each has a normal variable, of which those of a block share the part
   `correlation`, and fires where it lies below the quantile of its frequency (a Gaussian copula). So the frequencies are
   exact, and two features of a block fire together with the probability of the bivariate normal distribution there.
4. An active feature has a log-normal magnitude of median 1. A row is codes @ directions, and noise.

The idea of a benchmark with such features is that of SynthSAEBench, https://arxiv.org/abs/2602.14687.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, Float64, Int64
from scipy import special
from torch import Tensor

from interp.sae.model import ActiveLatents

SPREAD = 0.5
"""Standard deviation of the logarithm of a magnitude."""
_ROWS_AT_A_TIME = 4096
"""Rows whose normal variables, one for each feature, are in memory at once."""


@dataclass(frozen=True, eq=False)
class PlantedRows:
    """Activations and what they are made of."""

    activations: Float32[Tensor, "row d_model"]
    """codes @ directions, and noise."""
    codes: ActiveLatents
    """Which features fire on each row, and with what magnitude."""


@dataclass(frozen=True, eq=False)
class PlantedDictionary:
    """Features that are known, made by `planted_dictionary`, and any number of rows of them."""

    directions: Float32[Tensor, "feature d_model"]
    """Unit rows, the most frequent feature first."""
    frequencies: Float64[Tensor, " feature"]
    """Share of the rows on which each feature fires."""
    block: Int64[Tensor, " feature"]
    """Which features fire together: those with one number."""
    correlation: float
    """Correlation of the normal variables of two features of a block."""
    noise: float
    """Standard deviation of the noise in each entry of a row."""
    seed: int
    """Of the directions and the blocks; the rows depend on it too."""

    @property
    def n_features(self) -> int:
        """Number of features."""
        return len(self.directions)

    @property
    def l0(self) -> float:
        """Mean number of features that fire on a row."""
        return self.frequencies.sum().item()

    def rows(self, n: int | Any, seed: int | Any) -> PlantedRows:
        """n rows. The same seed gives the same rows, another one others: a number for each batch makes a stream.

        Raises:
            ValueError: no rows, or a negative seed.
        """
        _require("n", n, n >= 1, "at least 1")
        _require("seed", seed, seed >= 0, "at least 0")
        rng = np.random.default_rng([self.seed, seed, _ROWS])
        fires = [
            self._fires(rng, min(_ROWS_AT_A_TIME, n - start)) + np.array([[start], [0]])
            for start in range(0, n, _ROWS_AT_A_TIME)
        ]
        row, feature = torch.from_numpy(np.concatenate(fires, axis=1))
        magnitudes = torch.from_numpy(np.exp(SPREAD * rng.standard_normal(len(row)))).float()
        starts = torch.cat([row.new_zeros(1), torch.bincount(row, minlength=n).cumsum(0)])
        noise = torch.from_numpy(rng.standard_normal((n, self.directions.shape[1]), dtype=np.float32))
        made = torch.nn.functional.embedding_bag(
            feature, self.directions, starts, per_sample_weights=magnitudes, mode="sum", include_last_offset=True
        )
        return PlantedRows(made + self.noise * noise, ActiveLatents(magnitudes, feature, starts))

    def _fires(self, rng: np.random.Generator, n: int) -> Int64[np.ndarray, "2 fire"]:
        """Row and feature of each firing on n rows, in the order of the rows."""
        shared = rng.standard_normal((n, int(self.block.max()) + 1), dtype=np.float32)
        own = rng.standard_normal((n, self.n_features), dtype=np.float32)
        normal = math.sqrt(self.correlation) * shared[:, self.block.numpy()] + math.sqrt(1 - self.correlation) * own
        return np.stack(np.nonzero(normal < special.ndtri(self.frequencies.numpy())))


_DIRECTIONS, _ROWS = 0, 1
"""Streams of random numbers of one seed."""


def planted_dictionary(
    n_features: int | Any,
    d_model: int | Any,
    *,
    seed: int | Any,
    zipf: float | Any = 0.5,
    most_frequent: float | Any = 0.4,
    correlation: float | Any = 0.3,
    block: int | Any = 8,
    noise: float | Any = 0.05,
) -> PlantedDictionary:
    """Draw features whose truth is known.

    Args:
        n_features: number of features.
        d_model: width of the rows.
        seed: of the directions and of who fires together.
        zipf: exponent of the frequencies; 0 makes all equal.
        most_frequent: share of the rows on which the most frequent feature fires.
        correlation: of the normal variables of two features of a block; 0 lets every feature fire for itself.
        block: features in a block, drawn from all frequencies; the last block may be smaller.
        noise: standard deviation of the noise in each entry. A single feature adds a row of length about 1.

    Raises:
        ValueError: a number out of its range.
    """
    for name, value in (("n_features", n_features), ("d_model", d_model), ("block", block)):
        _require(name, value, value >= 1, "at least 1")
    _require("seed", seed, seed >= 0, "at least 0")
    _require("zipf", zipf, 0 <= zipf < math.inf, "at least 0")
    _require("most_frequent", most_frequent, 0 < most_frequent < 1, "a share between 0 and 1")
    _require("correlation", correlation, 0 <= correlation < 1, "at least 0 and below 1")
    _require("noise", noise, 0 <= noise < math.inf, "at least 0")
    rng = np.random.default_rng([seed, _DIRECTIONS])
    directions = rng.standard_normal((n_features, d_model))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    ranks = np.arange(1, n_features + 1, dtype=np.float64)
    return PlantedDictionary(
        directions=torch.from_numpy(directions).float(),
        frequencies=torch.from_numpy(most_frequent * ranks**-zipf),
        block=torch.from_numpy(rng.permutation(n_features) // block),
        correlation=correlation,
        noise=noise,
        seed=seed,
    )


def _require(name: str, value: object, good: bool, rule: str) -> None:
    if not good:
        raise ValueError(f"{name} must be {rule}, got {value!r}")
