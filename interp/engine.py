"""Many tasks, in this process or over the workers of a Ray cluster: one call, one result for each task.

1. `make(*shared)` is called once in every worker and returns the function that turns a task into its result. What is
   large and the same for all tasks (weights, a store's path) goes into `shared`; Ray keeps one copy of it a machine.
2. Tasks are taken from their iterator when a worker has room for them, never ahead.
3. A worker that dies is replaced, and what it had not finished runs again elsewhere. A task must therefore give the same
   result each time, and bear running twice.
4. However the caller leaves the iterator, the workers go away, and so does the cluster if it was started here.

This is the only file that knows Ray, and it is imported only where a caller asks for it.
"""

import contextlib
import dataclasses
import difflib
import itertools
import logging
import math
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import interp

log = logging.getLogger("interp.engine")

ENGINES = ("local", "ray")
_IN_FLIGHT = 2
"""Tasks that a worker holds: one that runs, and one so that it need not wait for the next."""
_PATIENCE = 30.0
"""Seconds without any worker before the log says what is being waited for."""


@dataclass(frozen=True)
class RayEngine:
    """Where and how tasks run on Ray."""

    workers: int | Any = None
    """Processes; None for as many as the cluster's nodes hold. Never more are started than there are tasks."""
    cpus_per_worker: float | Any = None
    """CPUs that Ray sets aside for each; None for its number of threads, or for 1 beside a GPU."""
    gpus_per_worker: float | Any = None
    """GPUs of each: 1, a share such as 0.5 for two workers on one, or 0. None for what the caller's work needs: one where
    its model is on a GPU, else none."""
    address: str | Any = None
    """Of the cluster. None for the one that this process is connected to, else RAY_ADDRESS, else a new one on this machine.
    """
    retries: int | Any = 3
    """How often a task runs again because its worker died."""

    def __post_init__(self) -> None:
        _require(self.workers is None or _is_whole(self.workers, 1), "workers", self.workers, "1 or more, or None")
        cpus, gpus = self.cpus_per_worker, self.gpus_per_worker
        _require(cpus is None or (_is_number(cpus) and cpus > 0), "cpus_per_worker", cpus, "over 0, or None")
        fits = gpus is None or (_is_number(gpus) and gpus >= 0 and (gpus < 1 or gpus == int(gpus)))
        _require(fits, "gpus_per_worker", gpus, "a whole number, a share below 1, or None")
        address = self.address
        _require(
            address is None or (isinstance(address, str) and address != ""), "address", address, "such as 'host:6379'"
        )
        _require(_is_whole(self.retries, 0), "retries", self.retries, "0 or more")


class WorkerLost(RuntimeError):
    """A task whose workers died, each time that it was tried."""

    def __init__(self, index: int, task: Any, tries: int, why: str) -> None:
        super().__init__(index, tries, why)
        self.index, self.task, self.tries, self.why = index, task, tries, why

    def __str__(self) -> str:
        return (
            f"task {self.index} has lost its worker {self.tries} times, the last time like this: {self.why}. A process that "
            "is killed without a word has mostly run out of memory: use fewer workers on a machine, or smaller batches"
        )


def as_engine(engine: Any) -> RayEngine | None:
    """The engine as it is used: None for "local", a RayEngine for "ray" or itself. ValueError for anything else."""
    if isinstance(engine, RayEngine):
        return engine
    if isinstance(engine, str) and engine in ENGINES:
        return RayEngine() if engine == "ray" else None
    near = difflib.get_close_matches(str(engine).lower(), ENGINES, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"engine={engine!r} is unknown, there is 'local', 'ray' and RayEngine(...){hint}")


def run_tasks(
    make: Callable[..., Callable[[Any], Any]],
    tasks: Iterable[Any],
    *,
    shared: Sequence[Any] = (),
    engine: str | RayEngine | Any = "local",
    threads: int | Any = None,
) -> Iterator[tuple[int, Any]]:
    """Run `make(*shared)(task)` for every task.

    Args:
        make: called once in each worker. With Ray it is sent there: a function of an installed module by its name, any
            other by its code. It must not rely on this process's working folder, nor on anything that is only here.
        tasks: taken one by one as workers get free; each worker holds at most two.
        shared: arguments of `make`. Ray keeps one copy on each machine; numpy arrays in it are read in place and cannot
            be written to.
        engine: "local" for this process, "ray", or a `RayEngine`.
        threads: of torch in each worker; None for the number in this process. The same number gives the same bytes with
            every engine, on one kind of machine.

    Returns:
        (number of the task, its result): in order with "local", as they are finished with Ray. Closing it, an exception
        or Ctrl-C stops the work that is left.

    Raises:
        ValueError: an unknown engine, no Ray, a worker that no node has room for, or other versions on the workers.
        WorkerLost: a task whose workers died more than `retries` times.
        Exception: what `make` or a task raises, as it is; it is not tried again.
    """
    chosen = as_engine(engine)
    _require(threads is None or _is_whole(threads, 1), "threads", threads, "1 or more, or None")
    threads = torch.get_num_threads() if threads is None else threads
    if chosen is None:
        return _run_local(make, tasks, shared, threads)
    ray = _import_ray()
    return _run_ray(ray, chosen, make, tasks, shared, threads)


@contextlib.contextmanager
def fixed_threads(count: int) -> Iterator[None]:
    """torch with this number of threads for the length of the block: it can decide the last bit of a product."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _run_local(
    make: Callable[..., Callable[[Any], Any]], tasks: Iterable[Any], shared: Sequence[Any], threads: int
) -> Iterator[tuple[int, Any]]:
    with fixed_threads(threads):
        run = make(*shared)
    for index, task in enumerate(tasks):
        with fixed_threads(threads):  # between two tasks the caller has its own number
            result = run(task)
        yield index, result


# --------------------------------------------------------------------------------------------------------------- Ray


class _Worker:
    """What an actor is: one process that makes its function once and then answers task after task."""

    def start(
        self, make: Callable[..., Callable[[Any], Any]], versions: dict[str, str], threads: int, *shared: Any
    ) -> None:
        found = _versions()
        if found != versions:
            differs = [
                f"{name} {found[name]} (here {versions[name]})" for name in versions if found[name] != versions[name]
            ]
            raise ValueError(f"a worker has {', '.join(differs)}: install the same versions on every machine")
        torch.set_num_threads(threads)  # Ray lets a worker use one, or as many as it has CPUs
        self._run = make(*shared)

    def run(self, task: Any) -> Any:
        return self._run(task)


def _versions() -> dict[str, str]:
    """What must be alike on all machines: another torch may compute other last bits."""
    return {"interp": interp.__version__, "torch": torch.__version__.split("+")[0]}  # +cpu and +cu may work together


@dataclass(frozen=True, eq=False)
class _Task:
    index: int
    content: Any
    losses: int = 0


@dataclass(eq=False)
class _Actor:
    """A worker as the driver sees it."""

    handle: Any
    starting: Any
    """Reference of its `start`; None once it is through."""
    running: dict[Any, _Task]
    """Reference -> task, in the order in which the worker takes them."""


class _Pool:
    """The workers of one call, and the tasks that they have. A worker is started for a task, not in advance."""

    def __init__(
        self, ray: Any, engine: RayEngine, workers: int, threads: int, start: Sequence[Any], tasks: Iterator[_Task]
    ) -> None:
        self._ray, self._retries, self._workers, self._tasks = ray, engine.retries, workers, tasks
        self._needs = _needs(engine, threads)
        environment = {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}  # waiting threads steal the CPU
        self._remote = ray.remote(
            num_cpus=self._needs["CPU"], num_gpus=self._needs["GPU"], runtime_env={"env_vars": environment}
        )(_Worker)
        self._start = [ray.put(argument) for argument in start]
        self._actors: list[_Actor] = []
        self._waiting: deque[_Task] = deque()
        """Tasks that were taken and have no worker: it is starting, or it died."""
        self._lost_at_start = 0

    @property
    def busy(self) -> bool:
        """Whether a task was taken and is not done."""
        return bool(self._waiting) or any(actor.running for actor in self._actors)

    def hand_out(self) -> None:
        """Give every worker what it has room for, evenly, and first what dead workers left undone."""
        starting = sum(actor.starting is not None for actor in self._actors)
        while len(self._actors) < self._workers and self._take(starting + 1):
            self._add()
            starting += 1
        for room in range(_IN_FLIGHT):
            for actor in self._actors:
                if actor.starting is None and len(actor.running) <= room and self._take(1):
                    task = self._waiting.popleft()
                    actor.running[actor.handle.run.remote(task.content)] = task

    def _take(self, count: int) -> bool:
        """Whether so many tasks are waiting, after taking what is missing."""
        self._waiting.extend(itertools.islice(self._tasks, max(0, count - len(self._waiting))))
        return len(self._waiting) >= count

    def _add(self) -> None:
        handle = self._remote.remote()
        self._actors.append(_Actor(handle, handle.start.remote(*self._start), {}))

    def wait(self) -> Iterator[tuple[int, Any]]:
        """Wait until something happens; the results among it."""
        owners = {ref: actor for actor in self._actors for ref in (actor.starting, *actor.running) if ref is not None}
        done, _ = self._ray.wait(list(owners), timeout=_PATIENCE)
        if not done and all(actor.starting is not None for actor in self._actors):
            log.warning(
                "no worker is ready after %.0f s: they still load, or nothing has %s free", _PATIENCE, self._needs
            )
        for ref in done:
            actor = owners[ref]
            try:
                result = self._ray.get(ref)
            except self._ray.exceptions.RayTaskError as error:
                error.cause.add_note(str(error))  # the traceback in the worker
                raise error.cause from None
            except _lost_errors(self._ray) as error:
                self._remove(actor, error)
                continue
            if ref == actor.starting:
                actor.starting, self._lost_at_start = None, 0
            else:
                yield actor.running.pop(ref).index, result

    def _remove(self, actor: _Actor, error: Exception) -> None:
        """Take a lost worker out; its tasks are the next that are handed out."""
        why = _first_line(error)
        log.warning("a worker was lost (%s): what it had not finished runs again", why)
        self._ray.kill(actor.handle)  # it may live on beyond a broken network
        self._actors.remove(actor)
        self._lost_at_start += actor.starting is not None
        hopeless = getattr(error, "actor_init_failed", False)  # mostly a package that is missing there
        if hopeless or self._lost_at_start > self._retries * self._workers:
            raise RuntimeError(f"workers cannot start: {error}") from error
        # A worker takes its tasks in order, so it died of the first, or with it. A machine that is taken away says so.
        guilty = 0 if getattr(error, "preempted", False) else 1
        tasks = [
            dataclasses.replace(task, losses=task.losses + guilty * (n == 0))
            for n, task in enumerate(actor.running.values())
        ]
        if tasks and tasks[0].losses > self._retries:
            raise WorkerLost(tasks[0].index, tasks[0].content, tasks[0].losses, why) from error
        self._waiting.extendleft(reversed(tasks))

    def close(self) -> None:
        """Remove every worker, now and not when its task is through."""
        for actor in self._actors:
            self._ray.kill(actor.handle)


def _run_ray(
    ray: Any,
    engine: RayEngine,
    make: Callable[..., Callable[[Any], Any]],
    tasks: Iterable[Any],
    shared: Sequence[Any],
    threads: int,
) -> Iterator[tuple[int, Any]]:
    source = (_Task(index, task) for index, task in enumerate(tasks))
    first = next(source, None)
    if first is None:
        return
    with _cluster(ray, engine) as own:
        workers = _how_many(ray, engine, threads, own)
        start = [make, _versions(), threads, *shared]
        pool = _Pool(ray, engine, workers, threads, start, itertools.chain([first], source))
        with contextlib.closing(pool):
            pool.hand_out()
            while pool.busy:
                yield from pool.wait()
                pool.hand_out()


@contextlib.contextmanager
def _cluster(ray: Any, engine: RayEngine) -> Iterator[bool]:
    """Be connected to a cluster; whether it was started for this block, and ends with it."""
    if ray.is_initialized():
        if engine.address is not None:
            log.warning("this process is connected to a Ray cluster: address=%r is not used", engine.address)
        yield False
        return
    # Said outright: without an address Ray would join whatever was left running on this machine.
    address = engine.address or os.environ.get("RAY_ADDRESS") or "local"
    own = address == "local"
    on_term = signal.getsignal(signal.SIGTERM)
    with _environment(RAY_USAGE_STATS_ENABLED="0"):
        options = {"include_dashboard": False} if own else {}
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **options)
    try:
        yield own
    finally:
        ray.shutdown()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, on_term)  # Ray puts its own in its place


@contextlib.contextmanager
def _environment(**variables: str) -> Iterator[None]:
    """Environment variables that stand where the caller has not set them."""
    added = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


def _needs(engine: RayEngine, threads: int) -> dict[str, float]:
    """What Ray sets aside for a worker."""
    gpus = engine.gpus_per_worker or 0
    cpus = (1 if gpus else threads) if engine.cpus_per_worker is None else engine.cpus_per_worker
    return {"CPU": cpus, "GPU": gpus}


def _how_many(ray: Any, engine: RayEngine, threads: int, own: bool) -> int:
    """How many workers to start. A cluster of others may grow, one that was started here cannot."""
    needs = {kind: amount for kind, amount in _needs(engine, threads).items() if amount}
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    room = sum(int(min(node.get(kind, 0) / amount for kind, amount in needs.items()) + 1e-9) for node in nodes)
    wanted = 1 if engine.workers is None else engine.workers
    if room < wanted:
        each = " and ".join(f"{amount:g} {kind}" for kind, amount in needs.items())
        what = f"{wanted} worker{'s' * (wanted > 1)} with {each} each: the {len(nodes)} node(s) have room for {room}"
        if own or engine.workers is None:
            raise ValueError(
                f"there is no room for {what}. Pass fewer workers or cpus_per_worker=, torch.set_num_threads() with a "
                "smaller number, or the address of a larger cluster"
            )
        log.warning("some of %s; the others start when there is more", what)
    return room if engine.workers is None else wanted


def _lost_errors(ray: Any) -> tuple[type[Exception], ...]:
    """What Ray raises where a worker, its node or its result is gone, and not the task at fault."""
    known = ray.exceptions
    return (known.RayActorError, known.WorkerCrashedError, known.NodeDiedError, known.ObjectLostError)


def _import_ray() -> Any:
    try:
        import ray
    except ImportError:
        raise ValueError("engine='ray' needs Ray: pip install 'interp-workbench[ray]'") from None
    return ray


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _require(fine: bool, name: str, value: Any, wanted: str) -> None:
    if not fine:
        raise ValueError(f"{name} must be {wanted}; got {value!r}")
