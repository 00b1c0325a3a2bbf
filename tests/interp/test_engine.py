"""run_tasks in this process, what a RayEngine accepts, and a cluster that is started for one call."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from interp.engine import RayEngine, WorkerLost, as_engine, run_tasks


def times(factor: int) -> Callable[[int], int]:
    """The `make` of these tests."""
    return lambda task: factor * task


def test_local_results_come_in_order_from_one_function() -> None:
    made: list[int] = []

    def make(factor: int) -> Callable[[int], int]:
        made.append(factor)
        return times(factor)

    assert list(run_tasks(make, iter([5, 6, 7]), shared=(3,))) == [(0, 15), (1, 18), (2, 21)]
    assert made == [3]
    assert list(run_tasks(times, [], shared=(3,))) == []


def test_local_tasks_are_taken_one_by_one() -> None:
    taken: list[int] = []

    def source() -> Iterator[int]:
        for task in range(5):
            taken.append(task)
            yield task

    results = run_tasks(times, source(), shared=(1,))
    assert taken == []
    assert [next(results), next(results)] == [(0, 0), (1, 1)]
    assert taken == [0, 1]


def test_local_threads_are_set_for_the_tasks_only() -> None:
    before = torch.get_num_threads()
    wanted = before + 1

    def make() -> Callable[[int], int]:
        assert torch.get_num_threads() == wanted
        return lambda task: torch.get_num_threads()

    for _, seen in run_tasks(make, [0, 1], threads=wanted):
        assert (seen, torch.get_num_threads()) == (wanted, before)
    with pytest.raises(ZeroDivisionError):
        list(run_tasks(lambda: lambda task: 1 // task, [0], threads=wanted))
    assert torch.get_num_threads() == before


def test_engines_are_words_or_objects() -> None:
    assert as_engine("local") is None
    assert as_engine("ray") == RayEngine()
    assert as_engine(RayEngine(2)) == RayEngine(workers=2)
    with pytest.raises(ValueError, match=r"engine='rya' is unknown.*did you mean 'ray'\?"):
        run_tasks(times, [1], engine="rya")
    with pytest.raises(ValueError, match=r"engine=3 is unknown, there is 'local', 'ray' and RayEngine"):
        run_tasks(times, [1], engine=3)
    with pytest.raises(ValueError, match="threads must be 1 or more, or None; got 0"):
        run_tasks(times, [1], threads=0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("workers", 0),
        ("workers", True),
        ("cpus_per_worker", 0),
        ("cpus_per_worker", float("nan")),
        ("gpus_per_worker", -1),
        ("gpus_per_worker", 1.5),
        ("address", ""),
        ("retries", -1),
        ("retries", 1.0),
    ],
)
def test_a_wrong_field_is_named(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{field} must be .*; got {value!r}"):
        RayEngine(**{field: value})


def test_without_ray_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"pip install 'interp-workbench\[ray\]'"):
        run_tasks(times, [1], engine="ray")


def test_a_lost_task_is_named_with_what_helps() -> None:
    error = WorkerLost(7, ("the", "task"), 4, "signal 9")
    assert str(error).startswith("task 7 has lost its worker 4 times, the last time like this: signal 9.")
    assert error.task == ("the", "task")


def test_a_cluster_that_was_started_for_a_call_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray", reason="Ray is an extra: pip install 'interp-workbench[ray]'")
    assert not ray.is_initialized()
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    on_term, environment = signal.getsignal(signal.SIGTERM), dict(os.environ)
    assert list(run_tasks(times, iter([]), engine="ray")) == []
    with pytest.raises(ValueError, match=r"no room for 1 worker with 1 CPU and 999 GPU each.*room for 0\. Pass"):
        list(run_tasks(times, [1], shared=(1,), engine=RayEngine(gpus_per_worker=999), threads=1))
    assert not ray.is_initialized()
    assert signal.getsignal(signal.SIGTERM) is on_term
    assert os.environ.get("RAY_USAGE_STATS_ENABLED") == environment.get("RAY_USAGE_STATS_ENABLED")
