"""The choices of a run: their rules, and what follows from them."""

import itertools
from typing import Any

import pytest

from interp.sae import SAEConfig


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "gated"}, "'gated' does not exist; there is: topk"),
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
    assert SAEConfig().peak_lr(2**14) == 2e-4
    assert SAEConfig().peak_lr(2**12) == 4e-4
    assert SAEConfig(lr=1e-3).peak_lr(2**12) == 1e-3


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
