"""The choices of a run: their rules, and what follows from them."""

import dataclasses
import itertools
import pickle
from typing import Any

import pytest

from interp.sae import SAEConfig
from interp.sae.config import KINDS, MatryoshkaConfig, TopKConfig


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "lasso"}, "'lasso' does not exist; there are: topk, batchtopk"),
        ({"kind": "jumprelu", "l0": 0}, "l0 must be above 0"),
        ({"kind": "jumprelu", "sparsity_warmup": 2.0}, "sparsity_warmup must be a share"),
        ({"kind": "gated", "l1": -1.0}, "l1 must be at least 0"),
        ({"kind": "batchtopk", "threshold_decay": 1.0}, "threshold_decay must be at least 0 and below 1"),
        ({"kind": "matryoshka", "groups": (0.5, 0.2)}, "shares above 0 that sum to 1"),
        ({"k": 0}, "k must be at least 1, got 0"),
        ({"width": 16}, "width must be at least k = 32, got 16"),
        ({"width": "eight"}, "such as \"8x\", got 'eight'"),
        ({"lr": 0.0}, "lr must be above 0"),
        ({"warmup": 0.6, "decay": 0.6}, "warmup \\+ decay must be at most 1"),
        ({"decay": -0.1}, "decay must be a share"),
        ({"aux_alpha": -1.0}, "aux_alpha must be at least 0"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"dead_window": 0}, "dead_window must be at least 1"),
        ({"grad_clip": 0.0}, "grad_clip must be above 0"),
    ],
)
def test_a_choice_that_makes_no_sense_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SAEConfig(**change)


def test_width_is_a_count_or_a_multiple() -> None:
    assert SAEConfig().n_latents(576) == 4608
    assert SAEConfig(width="1.5x").n_latents(64) == 96
    assert SAEConfig(width=100).n_latents(576) == 100
    with pytest.raises(ValueError, match="16 latents cannot hold k = 32"):
        SAEConfig(width="2x").n_latents(8)


def test_the_learning_rate_follows_the_width_unless_given() -> None:
    assert SAEConfig().peak_lr(2**14, 10**6) == 2e-4
    assert SAEConfig().peak_lr(2**12, 20_000) == 4e-4
    assert SAEConfig().peak_lr(2**14, 5_000) == 4e-4
    assert SAEConfig().peak_lr(2**14, 3) == pytest.approx(16 * 2e-4)
    assert SAEConfig(lr=1e-3).peak_lr(2**12, 5) == 1e-3


def test_the_schedule_rises_stays_and_falls() -> None:
    config = SAEConfig(lr=1.0, warmup=0.1, decay=0.2)
    rates = [config.lr_at(step, 100, 4096) for step in range(100)]
    assert rates[:3] == pytest.approx([1 / 11, 2 / 11, 3 / 11])
    assert rates[10:80] == [1.0] * 70
    assert rates[-1] == pytest.approx(1 / 21)
    assert all(later < earlier for earlier, later in itertools.pairwise(rates[80:]))
    assert SAEConfig(lr=1.0).lr_at(999, 10**6, 4096) == pytest.approx(1000 / 1001)
    assert SAEConfig(lr=1.0, warmup=0.0, decay=0.0).lr_at(0, 1, 4096) == 1.0


def test_the_dead_window_counts_rows() -> None:
    assert SAEConfig().window(800_000) == 80_000
    assert SAEConfig().window(10**9) == 10_000_000
    assert SAEConfig(dead_window=5).window(800_000) == 5


@pytest.mark.parametrize(("kind", "made"), KINDS.items())
def test_the_kind_makes_the_class(kind: str, made: type[SAEConfig]) -> None:
    config = SAEConfig(kind=kind, width=100)
    assert type(config) is made
    assert config == made(width=100)
    assert dataclasses.replace(config, seed=3).seed == 3
    assert pickle.loads(pickle.dumps(config)) == config


def test_a_kind_has_several_spellings_and_one_name() -> None:
    assert SAEConfig(kind="batch_topk").kind == SAEConfig(kind="BatchTopK").kind == "batchtopk"
    assert type(SAEConfig()) is TopKConfig
    with pytest.raises(ValueError, match=r"TopKConfig is of kind 'topk': for 'gated' call SAEConfig\(kind='gated'\)"):
        TopKConfig(kind="gated")


def test_a_choice_of_another_kind_is_refused() -> None:
    with pytest.raises(TypeError, match="l1"):
        SAEConfig(kind="topk", l1=3.0)


def test_groups_end_where_their_shares_do() -> None:
    assert MatryoshkaConfig(k=4).group_ends(64) == [4, 8, 16, 32, 64]
    with pytest.raises(ValueError, match="5 latents are too few for the groups"):
        MatryoshkaConfig(k=4).group_ends(5)
