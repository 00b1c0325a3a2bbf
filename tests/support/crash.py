"""Processes that may be killed: a server with torch in memory forks one for every call, in milliseconds.

1. `server()` starts a Python process once for the whole test run. It imports torch and interp and waits.
2. `start(function, ...)` lets it fork a child that calls a function of a test module; the test has its process id.
3. `Child.end()` waits for it: what the function returned, the error that it raised, or the signal that killed it.

A fresh interpreter with torch takes seconds, so that sixty kills would take minutes. Forking is safe here and only
here: the server has a single thread (it looks before each fork) and OMP_NUM_THREADS=1, so no lock of another thread and
no OpenMP team is inherited. The test process itself has both, and never forks.
"""

import atexit
import functools
import importlib.util
import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from tiny import tiny_model

import interp
from interp.recording import plan, record
from interp.store import Store, open_store

UNRECORDED = "not recorded, or gone"
"""What verify() says of a shard that is not there."""
_ALONE = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",  # pyarrow's allocator starts a thread on import
}
"""Environment of a process without a second thread."""


@dataclass(frozen=True)
class Outcome:
    """How a child ended."""

    value: Any = None
    """What the function returned, through JSON."""
    error: str | None = None
    """Type and message of the exception that it raised."""
    signal: int | None = None
    """The signal that killed it."""


@dataclass(frozen=True)
class Child:
    """A forked process. Its id stays its own until `end`."""

    pid: int
    """Process id."""

    def kill(self) -> None:
        """Signal 9. A child that has ended already is left alone."""
        os.kill(self.pid, signal.SIGKILL)

    @property
    def ended(self) -> bool:
        """Whether it has ended, by itself or killed."""
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"

    def end(self) -> Outcome:
        """Wait for it."""
        return Outcome(**_ask("end", self.pid))


def start(function: Callable[..., Any], *args: Any) -> Child:
    """Call a function of a module's top level in a child. Paths arrive as `Path`, its result as JSON."""
    return Child(_ask("start", function.__code__.co_filename, function.__name__, args))


def call(function: Callable[..., Any], *args: Any) -> Any:
    """What the function returns in a child; AssertionError with its error if it raises or is killed."""
    outcome = start(function, *args).end()
    assert outcome.error is None, outcome.error
    assert outcome.signal is None, f"killed by signal {outcome.signal}"
    return outcome.value


def wait_for(condition: Callable[[], Any], seconds: float = 30.0) -> None:
    """Wait until a condition holds. AssertionError when it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.001)


# What is interrupted ------------------------------------------------------------------------------------------------


def record_texts(path: Path, n_texts: int, progress: Any = False) -> int:
    """A recording to interrupt, for a child: a tiny model, shards of about 60 rows. The number of rows."""
    small_shards()
    options: dict[str, Any] = {"sites": ["resid_post:*", "z:1"], "head_stats": True, "batch_size": 4}
    return record(tiny_model(), texts(n_texts), path=path, progress=progress, **options).n_rows


def append_texts(path: Path, n_texts: int) -> int:
    """More texts for what `record_texts` made."""
    small_shards()
    return interp.open_store(path).append(tiny_model(), texts(n_texts), batch_size=4, progress=False).n_rows


def add_sites(path: Path) -> int:
    """More sites for what `record_texts` made."""
    return len(interp.open_store(path).add_sites(tiny_model(), ["q:0", "embed"], batch_size=4, progress=False).sites)


def texts(count: int) -> list[str]:
    """Texts of unequal length."""
    return [f"text {number} " * (1 + number % 5) for number in range(count)]


def small_shards(rows: int = 60, tokens: int = 400) -> None:
    """Shards of about so many rows, and at most so many tokens, in this process."""
    plan.SHARD_ROWS, plan.SHARD_TOKENS = rows, tokens


# What must be left of it --------------------------------------------------------------------------------------------


def file_bytes(folder: Path) -> dict[str, bytes]:
    """Every file of a store but its lock: path in it -> content."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def check_rest(path: Path, whole: Store) -> Store:
    """A store that misses shards, and nothing else: what is there has the right rows."""
    store = open_store(path)
    assert 0 < store.n_texts < whole.n_texts
    same = whole.tokens.text.isin(store.tokens.text).to_numpy()
    for site in store.sites:
        assert torch.equal(store.rows(site, slice(None)), whole.rows(site, same))
    assert set(store.verify().problem) == {UNRECORDED}
    return store


def goes_on(path: Path, whole: Store) -> None:
    """The same call finishes the store, and its bytes are those of the undisturbed one."""
    call(record_texts, path, whole.n_texts)
    assert file_bytes(path) == file_bytes(whole.path)
    assert not list((path / "shards").glob(".*"))


# The server ---------------------------------------------------------------------------------------------------------


@functools.cache
def server() -> Connection:
    """The connection to the server, which ends with the test run."""
    here, there = multiprocessing.Pipe()
    before = {name: os.environ.get(name) for name in _ALONE}
    os.environ.update(_ALONE)
    try:
        process = multiprocessing.get_context("spawn").Process(target=_serve, args=(there,), daemon=True)
        process.start()
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)
    there.close()
    atexit.register(here.close)
    return here


def _ask(*request: Any) -> Any:
    connection = server()
    connection.send(request)
    return connection.recv()


def _serve(connection: Connection) -> None:
    tiny_model()  # torch prepares itself on first use
    pipes: dict[int, int] = {}
    while True:
        try:
            request = connection.recv()
        except (EOFError, KeyboardInterrupt):
            return
        if request[0] == "start":
            pid, pipe = _fork(*request[1:])
            pipes[pid] = pipe
            connection.send(pid)
        else:
            connection.send(_end(request[1], pipes.pop(request[1])))


def _fork(file: str, name: str, args: tuple[Any, ...]) -> tuple[int, int]:
    """Process id of a child that calls the function, and the pipe on which its outcome comes."""
    function = getattr(_module(file), name)
    threads = len(os.listdir("/proc/self/task"))
    assert threads == threading.active_count() == 1, f"a process with {threads} threads must not fork"
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    outcome: dict[str, Any] = {}
    try:
        outcome["value"] = function(*args)
    except BaseException as error:  # it is handed to the test, whatever it is
        outcome["error"] = f"{type(error).__name__}: {error}"
    os.write(writing, json.dumps(outcome).encode())
    os._exit(0)


@functools.cache
def _module(file: str) -> ModuleType:
    """A test module. Their names are not unique, so it goes by its file."""
    spec = importlib.util.spec_from_file_location("scenario", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _end(pid: int, pipe: int) -> dict[str, Any]:
    with open(pipe, "rb") as stream:
        outcome = stream.read()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return {"signal": -code} if code else json.loads(outcome)
