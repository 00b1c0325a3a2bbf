"""Positions against transformers' own tables, and against their definitions."""

import math
from typing import Any

import pytest
import torch
from tiny import tiny_config, tiny_model

from interp.model import RopeScaling
from interp.model.position import Rope, alibi_bias, alibi_slopes, sinusoids

transformers = pytest.importorskip("transformers", reason="the tables are compared with transformers' (extra hf)")

WIDTH = 16
SCALINGS: dict[str, tuple[dict[str, Any], RopeScaling]] = {
    "linear": ({"rope_type": "linear", "factor": 4.0}, RopeScaling("linear", 4.0)),
    "dynamic": (
        {"rope_type": "dynamic", "factor": 4.0},
        RopeScaling("dynamic", 4.0, original_n_ctx=64),
    ),
    "llama3": (
        {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
        RopeScaling("llama3", 8.0, original_n_ctx=32),
    ),
    "yarn": (
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        RopeScaling("yarn", 4.0, original_n_ctx=64),
    ),
    "yarn, all options": (
        {
            "rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 64, "beta_fast": 16, "beta_slow": 2,
            "mscale": 0.7, "mscale_all_dim": 1.1, "truncate": False,
        },
        RopeScaling("yarn", 40.0, original_n_ctx=64, beta_fast=16, beta_slow=2, mscale=0.7, mscale_all_dim=1.1, truncate=False),
    ),
    "longrope": (
        {
            "rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 64,
            "short_factor": [1.0 + i / 10 for i in range(8)], "long_factor": [2.0 + i for i in range(8)],
        },
        RopeScaling(
            "longrope", 4.0, original_n_ctx=64, short_factor=tuple(1.0 + i / 10 for i in range(8)),
            long_factor=tuple(2.0 + i for i in range(8)),
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("length", [20, 200])
@pytest.mark.parametrize("kind", SCALINGS)
def test_frequencies_are_transformers(kind: str, length: int) -> None:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    theirs, ours = SCALINGS[kind]
    n_ctx = 64 if kind == "dynamic" else 256
    config = transformers.LlamaConfig(
        head_dim=WIDTH, max_position_embeddings=n_ctx, rope_parameters={**theirs, "rope_theta": 5000.0}
    )
    frequencies, factor = ROPE_INIT_FUNCTIONS[theirs["rope_type"]](config, device=torch.device("cpu"), seq_len=length)
    rope = Rope(tiny_config("llama", d_head=WIDTH, rope_theta=5000.0, rope_scaling=ours))
    torch.testing.assert_close(rope.frequencies(torch.tensor([length]))[0], frequencies.float(), rtol=1e-6, atol=0)
    assert rope.factor == pytest.approx(factor)
    plain = Rope(tiny_config("llama", d_head=WIDTH, rope_theta=5000.0)).frequencies(torch.tensor([length]))[0]
    assert (kind == "dynamic" and length <= 64) or not torch.allclose(frequencies.float(), plain)


def test_ntk_keeps_the_fastest_pair_and_stretches_the_slowest_by_the_factor() -> None:
    plain = Rope(tiny_config("llama", d_head=WIDTH)).frequencies(torch.tensor([1]))[0]
    scaled = Rope(tiny_config("llama", d_head=WIDTH, rope_scaling=RopeScaling("ntk", 8.0))).frequencies(
        torch.tensor([1])
    )[0]
    assert float(scaled[0] / plain[0]) == pytest.approx(1.0)
    assert float(plain[-1] / scaled[-1]) == pytest.approx(8.0, rel=1e-5)


def test_dynamic_frequencies_follow_each_row_of_a_batch() -> None:
    rope = Rope(tiny_config("llama", rope_scaling=RopeScaling("dynamic", 4.0, original_n_ctx=8)))
    both = rope.frequencies(torch.tensor([5, 30]))
    assert torch.equal(both[0], Rope(tiny_config("llama")).frequencies(torch.tensor([5]))[0])
    assert torch.equal(both[1], rope.frequencies(torch.tensor([30]))[0])
    assert not torch.equal(both[0], both[1])
    assert not rope.moves(torch.tensor([5]), torch.tensor([6]))
    assert rope.moves(torch.tensor([5, 8]), torch.tensor([6, 9]))


def test_adjacent_pairing_is_the_half_one_with_dimensions_reordered() -> None:
    x = torch.randn(1, 1, 1, 8, generator=torch.Generator().manual_seed(0))
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
    from interp.model.position import rotate

    position = torch.tensor([[13]])
    half = Rope(tiny_config("llama")).angles(position, torch.float32)
    adjacent = Rope(tiny_config("llama", rope_pairing="adjacent")).angles(position, torch.float32)
    torch.testing.assert_close(rotate(x, *adjacent, "adjacent")[..., order], rotate(x[..., order], *half, "half"))


def test_sinusoids_by_the_papers_formula() -> None:
    table = sinusoids(50, 6)
    for position in (0, 1, 17):
        for i in range(3):
            angle = position / 10000 ** (2 * i / 6)
            assert float(table[position, 2 * i]) == pytest.approx(math.sin(angle))
            assert float(table[position, 2 * i + 1]) == pytest.approx(math.cos(angle))


@pytest.mark.parametrize("n_heads", [1, 2, 3, 4, 8, 12, 71])
@pytest.mark.parametrize("family", ["bloom", "falcon"])
def test_alibi_is_transformers(family: str, n_heads: int) -> None:
    if family == "bloom":
        from transformers.models.bloom.modeling_bloom import build_alibi_tensor
    else:
        from transformers.models.falcon.modeling_falcon import build_alibi_tensor
    mask = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]])
    theirs = build_alibi_tensor(mask, n_heads, torch.float32).view(2, n_heads, 1, 5)
    places = (mask.cumsum(1) - 1).clamp(min=0)
    ours = alibi_bias(alibi_slopes(n_heads), places, torch.float32, rounded=family == "falcon")
    real = mask.bool()[:, None, None].expand_as(theirs)
    torch.testing.assert_close(ours[real], theirs[real], rtol=1e-6, atol=1e-6)


def test_alibi_depends_on_the_distance_alone() -> None:
    """A pattern does not change when all positions move, although the bias is the key's position."""
    model = tiny_model("bloom")
    scores, later = (
        torch.softmax(alibi_bias(model.slopes, torch.arange(start, start + 6)[None], torch.float64, rounded=False), -1)
        for start in (0, 40)
    )
    torch.testing.assert_close(scores, later)
