"""Steering vectors: a planted direction is found, arithmetic means what it says, and the report has its controls."""

from pathlib import Path

import pytest
import torch
from tiny import tiny_model
from torch import Tensor

from interp.dataset import ContrastPair
from interp.model import HookedTransformer
from interp.steering import (
    SteeringVector,
    load_steering_vector,
    steering_experiment,
    steering_vector,
)

PAIRS = [
    ContrastPair(prompt=f"number {i} is", positive=f" good{i}", negative=f" bad{i}", group=str(i)) for i in range(6)
]


def test_the_vector_is_the_mean_difference(tiny: HookedTransformer) -> None:
    vector = steering_vector(PAIRS, model=tiny, site="resid_post:0")
    differences = []
    for pair in PAIRS:
        means = []
        for response in (pair.positive, pair.negative):
            start = len(tiny.tokenizer.encode(pair.prompt))
            _, cache = tiny.run_with_cache(pair.prompt + response, sites="resid_post:0")
            means.append(cache["resid_post", 0][0, start:].mean(0))
        differences.append(means[0] - means[1])
    expected = torch.stack(differences).mean(0)
    torch.testing.assert_close(vector.direction * vector.raw_norm, expected, atol=1e-4, rtol=1e-4)
    assert vector.card["n_pairs"] == 6
    assert vector.card["tokens"] == "response_mean"


def test_last_token_and_plain_pairs(tiny: HookedTransformer) -> None:
    texts = [("all is well", "all is bad"), ("so nice", "so poor")]
    vector = steering_vector(texts, model=tiny, site="resid_post:1")
    named = [{"positive": a, "negative": b} for a, b in texts]
    assert torch.equal(steering_vector(named, model=tiny, site="resid_post:1").direction, vector.direction)
    ends = [
        [tiny.run_with_cache(text, sites="resid_post:1")[1]["resid_post", 1][0, -1] for text in pair] for pair in texts
    ]
    expected = torch.stack([a - b for a, b in ends]).mean(0)
    torch.testing.assert_close(vector.direction * vector.raw_norm, expected, atol=1e-4, rtol=1e-4)


def test_typical_norm_leaves_position_0_and_outliers_out() -> None:
    model = tiny_model()
    with model.hooks(
        {"resid_post:0": lambda value, ctx: value * torch.where(ctx.positions == 0, 1000.0, 1.0)[..., None]}
    ):
        vector = steering_vector(PAIRS, model=model, site="resid_post:0")
    assert vector.typical_norm == pytest.approx(steering_vector(PAIRS, model=model, site="resid_post:0").typical_norm)


def test_arithmetic() -> None:
    a = SteeringVector(torch.tensor([1.0, 0.0]), "hook_embed", 5.0, raw_norm=2.0)
    b = SteeringVector(torch.tensor([0.0, 1.0]), "hook_embed", 5.0)
    both = a + 2 * b
    torch.testing.assert_close(both.direction * both.length, torch.tensor([1.0, 2.0]))
    assert (0.5 * a).length == 0.5
    torch.testing.assert_close((-a).direction, -a.direction)
    assert (a - b).cosine(a) == pytest.approx(0.5**0.5)
    with pytest.raises(ValueError, match="cancel"):
        a - a
    with pytest.raises(ValueError, match="different sites"):
        a + SteeringVector(torch.tensor([0.0, 1.0]), "ln_final.hook_normalized", 5.0)
    with pytest.raises(ValueError, match="unit"):
        SteeringVector(torch.tensor([2.0, 0.0]), "hook_embed", 5.0)


def test_file(tiny: HookedTransformer, tmp_path: Path) -> None:
    vector = steering_vector(PAIRS, model=tiny, site="resid_post:0")
    again = load_steering_vector((0.5 * vector).save(tmp_path / "v.safetensors"))
    assert torch.equal(again.direction, vector.direction)
    assert (again.length, again.site, again.typical_norm) == (0.5, vector.site, vector.typical_norm)
    assert again.card["fingerprint"] == tiny.fingerprint


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (PAIRS[:1], {}, "at least two"),
        ("text", {}, "expected contrast pairs"),
        ([("a",)], {}, "pair 0"),
        (PAIRS, {"method": "umap"}, "mean_difference"),
        (PAIRS, {"site": "resid_post:*"}, "names 2"),
        (PAIRS, {"tokens": "first"}, "response_mean"),
        ([("same", "same"), ("too", "too")], {"site": "resid_post:0"}, "no direction"),
    ],
)
def test_bad_input(tiny: HookedTransformer, data: object, options: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        steering_vector(data, model=tiny, **{"site": "resid_post:0", **options})


def test_a_single_prompt_and_impossible_numbers(tiny: HookedTransformer) -> None:
    vector = steering_vector(PAIRS, model=tiny, site="resid_post:0")
    report = steering_experiment(tiny, vector, "hello", strengths=[0.5], max_new_tokens=2)
    assert set(report.generations.prompt) == {"hello"}
    with pytest.raises(ValueError, match="n_random"):
        steering_experiment(tiny, vector, "hello", n_random=-1)
    with pytest.raises(ValueError, match="finite"):
        vector * float("nan")


def test_a_planted_direction_is_found() -> None:
    model = tiny_model()
    planted = torch.randn(32, generator=torch.Generator().manual_seed(3))
    planted /= planted.norm()
    positive = set()

    def plant(value: Tensor, ctx: object) -> Tensor:
        return (
            value
            + torch.tensor([20.0 if row in positive else -20.0 for row in range(len(value))])[:, None, None] * planted
        )

    positive.update(range(6))
    with model.hooks({"resid_post:0": plant}):
        vector = steering_vector(PAIRS, model=model, site="resid_post:0")
    assert float(vector.direction @ planted) > 0.95
