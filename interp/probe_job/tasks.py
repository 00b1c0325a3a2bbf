"""The pieces of work of a job: one place and one seed, with a file for each kind of probe.

`TaskFiles` is what `probe_sweep(kept=...)` reads and writes: a finished result is a file, named by place, kind and seed
and by a hash of everything that decides it. Files are written whole or not at all, so a job that was killed goes on with
the next place. `run_places` does the missing ones, here or over the workers of a Ray cluster.

A place is fitted on one thread of torch, wherever that is: its products are small, so that two places side by side take
half the time of two threads for each, and the last bits are the same everywhere.
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from interp import artifact
from interp.engine import as_engine, fixed_threads, run_tasks
from interp.jobs import read_task
from interp.probe.place import PlaceResult, fit_place
from interp.probe.plan import SweepPlan, sweep_plan
from interp.probe.reading import place_name
from interp.probe_job.folder import JobFolder
from interp.store import Store, open_store

KIND = "probe task"
FORMAT = 1
"""Raised when a task gives other results than before, so that old files are not used."""


@dataclass(frozen=True)
class TaskFiles:
    """Results of one seed, as files."""

    folder: JobFolder
    seed: int
    decides: dict[str, Any]
    """JSON: what changes a result, other than place, kind and seed."""

    def path(self, place: str, kind: str) -> Path:
        """File of a result."""
        key = artifact.hash_json([FORMAT, self._card(place, kind), artifact.provenance()])
        return self.folder.task(f"{place_name(place)} {kind} seed {self.seed}", key, ".safetensors")

    def get(self, place: str, kind: str) -> PlaceResult | None:
        """A finished result, None where there is none or its file is damaged."""
        return read_task(self.path(place, kind), _result)

    def put(self, place: str, kind: str, result: PlaceResult) -> None:
        """Keep a result, whole or not at all."""
        arrays, values = result.to_arrays()
        tensors = {
            name: torch.from_numpy(np.array(array)) for name, array in arrays.items()
        }  # Ray's cannot be written to
        artifact.save_artifact(
            self.path(place, kind), KIND, tensors, {"task": self._card(place, kind), "result": values}
        )

    def missing(self, place: str, kinds: Sequence[str]) -> tuple[str, ...]:
        """The kinds that are not done at a place. Files are read, so that a damaged one is found before the work begins."""
        return tuple(kind for kind in kinds if self.get(place, kind) is None)

    def _card(self, place: str, kind: str) -> dict[str, Any]:
        return {"place": place, "kind": kind, "seed": self.seed, **self.decides}


def _result(path: Path) -> PlaceResult:
    tensors, card = artifact.load_artifact(path, KIND)
    return PlaceResult.from_arrays({name: tensor.numpy() for name, tensor in tensors.items()}, card["result"])


@dataclass(frozen=True)
class PlaceTask:
    """One place for one seed."""

    place: str
    seed: int
    kinds: tuple[str, ...]
    """The kinds that are missing."""


def open_tasks(files: Sequence[TaskFiles], places: Sequence[str], kinds: Sequence[str]) -> list[PlaceTask]:
    """What is left to do, seed by seed and in the order of the places."""
    left = [PlaceTask(place, each.seed, each.missing(place, kinds)) for each in files for place in places]
    return [task for task in left if task.kinds]


def run_places(
    store: Store,
    texts: Sequence[int],
    files: Sequence[TaskFiles],
    tasks: Sequence[PlaceTask],
    arguments: dict[str, Any],
    *,
    engine: Any = "local",
    workers: int = 1,
    progress: Callable[[int, int], Any] | None = None,
) -> None:
    """Do tasks and keep their results.

    Args:
        store: the activations; with Ray its folder must be readable on every machine.
        texts: numbers of the texts that are read.
        files: where results go, one a seed.
        tasks: what is done.
        arguments: of `sweep_plan`, without the seed.
        engine: "local", "ray", or a `RayEngine`.
        workers: places that are fitted side by side in this process.
        progress: called with (done, in all); what it raises ends the work between two tasks.
    """
    by_seed = {each.seed: each for each in files}
    shared = (str(store.path), texts, arguments)
    here = as_engine(engine) is None

    def keep(task: PlaceTask, results: dict[str, PlaceResult]) -> None:
        for kind, result in results.items():
            by_seed[task.seed].put(task.place, kind, result)

    found: Any = _in_threads(tasks, shared, workers, keep) if here else _on_ray(tasks, shared, engine, keep)
    with contextlib.closing(found) as finished:
        for done, _ in enumerate(finished, 1):
            if progress is not None:
                progress(done, len(tasks))


Keep = Callable[[PlaceTask, dict[str, PlaceResult]], None]


def _in_threads(tasks: Sequence[PlaceTask], shared: tuple[Any, ...], workers: int, keep: Keep) -> Iterator[None]:
    """One step for each task done and kept. When the caller leaves, what is under way is finished and kept as well, and what
    is not begun is not done."""

    def work(task: PlaceTask) -> None:
        keep(task, run(task))

    with fixed_threads(1), ThreadPoolExecutor(workers, thread_name_prefix="probe-place") as pool:
        run = _make_worker(*shared)
        futures = [pool.submit(work, task) for task in tasks]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _on_ray(tasks: Sequence[PlaceTask], shared: tuple[Any, ...], engine: Any, keep: Keep) -> Iterator[None]:
    """The same over the workers of a cluster; what is under way there when the caller leaves is lost."""
    found: Any = run_tasks(_make_worker, tasks, shared=shared, engine=engine, threads=1)
    with contextlib.closing(found) as results:
        for index, result in results:
            yield keep(tasks[index], result)


def _make_worker(
    path: str, texts: Sequence[int], arguments: dict[str, Any]
) -> Callable[[PlaceTask], dict[str, PlaceResult]]:
    """What a worker does: plans are made once a seed, from the same texts everywhere."""
    store = open_store(path).select(texts=list(texts))

    @functools.cache
    def plan_of(seed: int) -> SweepPlan:
        return sweep_plan(store, **arguments, seed=seed)

    lock = threading.Lock()

    def run(task: PlaceTask) -> dict[str, PlaceResult]:
        with lock:  # one thread makes it, the others wait for it
            plan = plan_of(task.seed)
        return fit_place(store, task.place, task.kinds, plan)

    return run
