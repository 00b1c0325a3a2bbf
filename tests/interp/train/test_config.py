"""Choices of a run: the schedule's values, and what is refused."""

import inspect
import math

import pytest

from interp.train import TrainConfig


def test_the_learning_rate_rises_linearly_and_falls_as_half_a_cosine() -> None:
    config = TrainConfig(n_steps=101, lr=1.0, warmup=0.2, lr_floor=0.1)
    rates = [config.lr_at(step) for step in range(101)]
    assert rates[:20] == pytest.approx([(step + 1) / 21 for step in range(20)])
    assert rates[20] == 1.0
    assert rates[60] == pytest.approx(0.55)  # half way between the peak and the floor
    assert rates[40] == pytest.approx(0.1 + 0.9 * (1 + math.cos(math.pi / 4)) / 2)
    assert rates[100] == pytest.approx(0.1)
    assert all(0 < rate <= 1 for rate in rates)


def test_a_run_without_warmup_begins_at_the_peak() -> None:
    assert TrainConfig(n_steps=10, lr=0.5, warmup=0).lr_at(0) == 0.5
    assert TrainConfig(n_steps=1, lr=0.5, warmup=0).lr_at(0) == 0.5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_steps": 0}, "n_steps must be at least 1"),
        ({"lr": 0.0}, "lr must be above 0"),
        ({"lr": math.nan}, "lr must be a finite number"),
        ({"grad_clip": math.inf}, "grad_clip must be a finite number or None"),
        ({"max_skips": -1}, "max_skips must be at least 0"),
        ({"warmup": 1.5}, "warmup must be a share"),
        ({"weight_decay": -0.1}, "weight_decay must be at least 0"),
        ({"betas": (0.9, 1.0)}, "betas must be two of"),
        ({"grad_clip": 0.0}, "grad_clip must be above 0, or None"),
        ({"spike_factor": 1.0}, "spike_factor must be above 1"),
        ({"keep": 0}, "keep must be at least 1"),
    ],
)
def test_a_choice_that_makes_no_sense_is_refused(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainConfig(**change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_steps": 2.5}, r"n_steps must be a whole number \(an int\), got 2.5"),
        ({"n_steps": True}, "n_steps must be a whole number"),
        ({"lr": "a"}, r"lr must be a number \(a float\), got 'a'"),
        ({"betas": 0.9}, "betas must be a tuple of numbers, got 0.9"),
        ({"betas": (0.9, "a")}, r"betas\[1\] must be a number"),
        ({"autocast": "no"}, "autocast must be True or False"),
        ({"keep": 1.5}, "keep must be a whole number .* or None"),
    ],
)
def test_a_choice_of_another_type_is_refused_by_its_name(change: dict, message: str) -> None:
    made = object.__new__(TrainConfig)  # past the type checker of the test run, which would speak first
    with pytest.raises(ValueError, match=message):
        inspect.unwrap(TrainConfig.__init__)(made, **change)
