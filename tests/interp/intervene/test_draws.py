"""Random directions: orthogonal, where activations lie, and their rank."""

import numpy as np
import pytest
import torch

from interp.intervene.draws import orthogonal_draw, rank_among


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_draws_are_orthogonal_however_the_direction_is_stored(dtype: torch.dtype) -> None:
    own = torch.randn(8, generator=generator(0), dtype=torch.float64)
    own = (own / own.norm()).to(dtype)
    rows = torch.randn(3, 8, generator=generator(1))
    for given in (None, rows):
        drawn = orthogonal_draw(own, given, generator(2))
        assert float(drawn.norm()) == pytest.approx(1.0, abs=1e-12)
        assert abs(float(drawn @ own.double())) < 1e-12
        assert torch.equal(drawn, orthogonal_draw(own, given, generator(2)))
    # With the covariance of three rows it lies in their span, and the direction's.
    space = torch.cat([rows.double(), own.double()[None]])
    assert float((drawn - drawn @ torch.linalg.pinv(space) @ space).norm()) < 1e-10


def test_what_has_no_other_direction_is_refused() -> None:
    with pytest.raises(ValueError, match="single dimension"):
        orthogonal_draw(torch.ones(1), None, generator(0))
    with pytest.raises(ValueError, match="constant"):
        orthogonal_draw(torch.eye(3)[0], torch.zeros(5, 3), generator(0))


def test_rank() -> None:
    randoms = np.array([-2.0, 0.5, 1.0, 3.0])
    assert rank_among(2.0, randoms) == rank_among(-2.0, randoms) == 3 / 5
    assert rank_among(9.0, randoms) == 1 / 5
