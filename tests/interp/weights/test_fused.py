"""Parts of joint projections, on rows that say what they are."""

import pytest
import torch
from tiny import tiny_config
from torch import Tensor

from interp.weights.fused import grouped, half, joined


def rows(part: str, heads: int, d_head: int = 8) -> list[tuple[str, int, int]]:
    return [(part, head, index) for head in range(heads) for index in range(d_head)]


def matrix(labels: list[tuple[str, int, int]]) -> tuple[Tensor, dict[tuple[str, int, int], float]]:
    """A matrix whose every row is a number of its own, and the number of each label."""
    return torch.arange(len(labels)).float()[:, None].expand(-1, 32).clone(), {
        label: i for i, label in enumerate(labels)
    }


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_grouped_rows(kv_heads: int) -> None:
    cfg, queries = tiny_config(n_kv_heads=kv_heads), 4 // kv_heads
    labels = []
    for group in range(kv_heads):
        for head in range(group * queries, (group + 1) * queries):
            labels += [("q", head, index) for index in range(8)]
        labels += [("k", group, index) for index in range(8)] + [("v", group, index) for index in range(8)]
    joint, number = matrix(labels)
    for part, heads in (("q", 4), ("k", kv_heads), ("v", kv_heads)):
        expected = torch.tensor([float(number[label]) for label in rows(part, heads)])
        assert torch.equal(grouped(part)(joint, cfg)[:, 0], expected)
        assert torch.equal(grouped(part)(joint[:, 0], cfg), expected), "a bias"


def test_joined_rows_are_views() -> None:
    cfg = tiny_config(n_kv_heads=2)
    joint, number = matrix([*rows("q", 4), *rows("k", 2), *rows("v", 2)])
    for part, heads in (("q", 4), ("k", 2), ("v", 2)):
        found = joined(part)(joint, cfg)
        assert torch.equal(found[:, 0], torch.tensor([float(number[label]) for label in rows(part, heads)]))
        assert found.untyped_storage().data_ptr() == joint.untyped_storage().data_ptr()


def test_a_matrix_of_another_size_is_refused() -> None:
    cfg = tiny_config(n_kv_heads=2)
    for rows in (63, 65, 96):
        for view in (grouped("q"), joined("v")):
            with pytest.raises(ValueError, match=rf"has {rows} outputs.*4 query and 2 key heads of 8 need 64"):
                view(torch.zeros(rows, 32), cfg)
    with pytest.raises(ValueError, match="has 7 rows, which two equal parts cannot have"):
        half(0)(torch.zeros(7, 2), cfg)


def test_halves_are_views() -> None:
    joint = torch.arange(12.0).view(6, 2)
    assert torch.equal(torch.cat([half(0)(joint, tiny_config()), half(1)(joint, tiny_config())]), joint)
    assert half(1)(joint, tiny_config()).data_ptr() == joint[3].data_ptr()
