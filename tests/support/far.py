"""What a Ray worker would see, without a cluster: everything is pickled on the way there and back, and tasks end out of order.

Clusters have tests of their own (`recording/test_ray.py`, `test_engine.py`); this is for work that is handed to one.
"""

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pytest

from interp.behavior import pieces
from interp.engine import RayEngine


def travelled(value: Any) -> Any:
    """A copy as it arrives elsewhere: functions by their name, numpy arrays read-only, as Ray gives them."""
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    return pickle.loads(data, buffers=[bytes(buffer.raw()) for buffer in buffers])


def far_workers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Pieces of behaviour reports go through `travelled`, the last one first. How many each call to the cluster had."""
    calls: list[int] = []

    def run_tasks(
        make: Callable[..., Callable[[Any], Any]], tasks: Iterable[Any], *, shared: Sequence[Any], engine: RayEngine
    ) -> Iterator[tuple[int, Any]]:
        assert isinstance(engine, RayEngine)
        there, args = travelled((make, list(shared)))
        work, numbered = there(*args), list(enumerate(tasks))
        calls.append(len(numbered))
        for index, task in reversed(numbered):
            yield index, travelled(work(travelled(task)))

    monkeypatch.setattr(pieces, "run_tasks", run_tasks)
    return calls
