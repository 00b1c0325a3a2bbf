"""Tasks and shards on a local Ray cluster with two workers: the same results as here, whatever dies on the way.

The functions that go to workers are made inside the tests: Ray sends such a function by its code, and workers cannot import
a test module.
"""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest
from tiny import tiny_model
from upath import UPath

from interp.engine import RayEngine, WorkerLost, run_tasks
from interp.model import HookedTransformer
from interp.recording.distributed import JobParts, ShardRecord, record_shards
from interp.recording.forward import record_shard
from interp.recording.job import Job, Run, site_shapes
from interp.recording.texts import Texts
from interp.store.shard import write_shard

TWO = RayEngine(workers=2)


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[Any]:
    """Two places for workers, for all tests of this file."""
    ray = pytest.importorskip("ray", reason="Ray is an extra: pip install 'interp-workbench[ray]'")
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield ray
    ray.shutdown()


def processes() -> list[psutil.Process]:
    """The worker processes of the cluster that belong to run_tasks."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if any("_Worker" in word for word in process.cmdline()):
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


# ------------------------------------------------------------------------------------------------------------- tasks


def test_a_task_that_kills_its_worker_runs_again_and_nothing_is_taken_ahead(tmp_path: Path) -> None:
    def make(marker: str, matrix: np.ndarray) -> Callable[[int], tuple[bytes, int]]:
        import os
        import signal

        import torch

        shared = torch.tensor(matrix)

        def run(task: int) -> tuple[bytes, int]:
            product = (shared * (task + 1)) @ shared
            if task == 3 and marker:
                try:
                    os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    pass
                else:
                    os.kill(os.getpid(), signal.SIGKILL)
            return product.numpy().tobytes(), torch.get_num_threads()

        return run

    taken: list[int] = []

    def source() -> Iterator[int]:
        for task in range(12):
            taken.append(task)
            yield task

    matrix = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    found = []
    for index, result in run_tasks(make, source(), shared=(str(tmp_path / "died"), matrix), engine=TWO, threads=1):
        found.append((index, result))
        assert len(taken) <= len(found) + 4  # two workers with two tasks each
    assert (tmp_path / "died").exists()
    here = list(run_tasks(make, range(12), shared=("", matrix), threads=1))
    assert sorted(found) == here
    assert {threads for _, (_, threads) in found} == {1}


def test_a_task_that_always_dies_is_named() -> None:
    def make() -> Callable[[int], int]:
        import os
        import signal
        import time

        def run(task: int) -> int:
            if task == 1:
                time.sleep(2)  # what was done before has left the worker by then
                os.kill(os.getpid(), signal.SIGKILL)
            return task

        return run

    results = run_tasks(make, [0, 1, 2], engine=RayEngine(workers=1, retries=1), threads=1)
    assert next(results) == (0, 0)
    with pytest.raises(WorkerLost, match=r"task 1 has lost its worker 2 times.*fewer workers") as caught:
        list(results)
    assert (caught.value.index, caught.value.task, caught.value.tries) == (1, 1, 2)


def test_workers_that_cannot_start_are_an_error() -> None:
    def make() -> Callable[[int], int]:
        import os
        import signal

        os.kill(os.getpid(), signal.SIGKILL)
        return int

    with pytest.raises(RuntimeError, match="workers cannot start: The actor died"):
        list(run_tasks(make, [0], engine=RayEngine(workers=1, retries=0), threads=1))


def test_an_error_arrives_as_it_was_raised_and_is_not_tried_again(tmp_path: Path) -> None:
    def make(folder: str) -> Callable[[int], int]:
        import os

        def run(task: int) -> int:
            os.mkdir(f"{folder}/{task}")  # a second try would fail with another error
            raise OverflowError(f"task {task} is too large")

        return run

    with pytest.raises(OverflowError) as caught:
        list(run_tasks(make, [5], shared=(str(tmp_path),), engine=RayEngine(workers=1), threads=1))
    assert type(caught.value) is OverflowError
    assert str(caught.value) == "task 5 is too large"
    assert "os.mkdir" not in caught.value.__notes__[0]
    assert "in run" in caught.value.__notes__[0]  # where it was raised over there


def test_leaving_early_removes_the_workers() -> None:
    def make() -> Callable[[int], int]:
        import threading

        def run(task: int) -> int:
            if task:
                threading.Event().wait()  # for ever
            return task

        return run

    results = run_tasks(make, range(100), engine=RayEngine(workers=1), threads=1)
    assert next(results) == (0, 0)
    workers = processes()
    assert workers
    results.close()  # pyright: ignore[reportAttributeAccessIssue]
    _, alive = psutil.wait_procs(workers, timeout=20)
    assert not alive


# ------------------------------------------------------------------------------------------------------------ shards

RUN = Run(texts_per_shard=3, batch_size=None, batch_tokens=256, share=True, threads=1)
N_SHARDS = 8


def job_of(model: HookedTransformer) -> Job:
    """Two sites, in bfloat16."""
    shapes = site_shapes(model, ["blocks.0.hook_resid_post", "blocks.1.attn.hook_z"])
    assert model.tokenizer is not None
    return Job(model, model.tokenizer, shapes, "bfloat16", None)


def texts_of(model: HookedTransformer, shard: int) -> Texts:
    """Three texts, every token a row."""
    assert model.tokenizer is not None
    texts = [f"shard {shard} has a text of number {n * shard}" for n in range(3)]
    ids = [np.array(model.tokenizer.encode(text), dtype=np.int32) for text in texts]
    lengths = [len(each) for each in ids]
    columns = {
        "text_index": pa.array(range(3 * shard, 3 * shard + 3)),
        "text": pa.array(texts),
        "token_ids": pa.array([each.tolist() for each in ids], pa.list_(pa.int32())),
    }
    rows = np.arange(sum(lengths))
    return Texts(
        first=3 * shard,
        examples=pa.table(columns),
        ids=np.concatenate(ids),
        offsets=np.cumsum([0, *lengths]),
        row_text=np.repeat(np.arange(3), lengths),
        row_position=np.concatenate([np.arange(n, dtype=np.int32) for n in lengths]),
        member=rows,
        member_row=rows,
        rules={},
        prompt_lens=None,
    )


def files_of(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.slow  # four workers start, and each imports torch
def test_shards_are_byte_identical_though_workers_were_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("gpt2")
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    job, tasks = job_of(model), [(shard, texts_of(model, shard)) for shard in range(N_SHARDS)]
    for shard, texts in tasks:
        write_shard(here, record_shard(job, RUN, shard, texts, lambda texts, tokens: None))
    done: list[ShardRecord] = []

    def on_done(record: ShardRecord) -> None:
        done.append(record)
        if len(done) == 1:
            for process in processes():
                os.kill(process.pid, signal.SIGKILL)

    monkeypatch.chdir(tmp_path)
    parts = JobParts.of(job, RUN, "there", TWO)  # a relative path: workers have another working folder
    record_shards(parts, iter(tasks), threads=1, on_done=on_done)
    assert sorted(record.index for record in done) == list(range(N_SHARDS))
    # A worker that was killed while it wrote leaves a hidden folder, which whoever opens the store sweeps.
    whole = {name: content for name, content in files_of(there).items() if not name.startswith(".")}
    assert whole == files_of(here)
    for record in done:
        texts, own = tasks[record.index][1], f"{record.index:06d}/"
        size = sum(len(content) for name, content in files_of(here).items() if name.startswith(own))
        assert (record.texts, record.rows, record.bytes) == (3, texts.n_rows, size)
        assert 0 < record.tokens <= len(texts.ids)


def test_a_shard_that_this_machine_does_not_see_is_an_error() -> None:
    model = tiny_model()
    parts = JobParts.of(job_of(model), RUN, UPath("memory://run/shards"), RayEngine(workers=1))
    with pytest.raises(ValueError, match=r"shard 4 to a path that this machine does not see.*use a shared folder"):
        record_shards(parts, [(4, texts_of(model, 4))], threads=1, on_done=lambda record: None)


def test_a_job_is_taken_apart_for_its_engine() -> None:
    model = tiny_model()
    parts = JobParts.of(job_of(model), RUN, "a/shards", "ray")
    assert (parts.shards, parts.device) == (Path("a/shards").absolute(), "cpu")
    assert parts.engine == RayEngine(gpus_per_worker=0)
    assert JobParts.of(job_of(model), RUN, "a", RayEngine(gpus_per_worker=0.5)).device == "cuda"
    assert JobParts.of(job_of(model), RUN, "a", "local").engine is None
    with model.hooks({"resid_post:0": lambda value, ctx: None}), pytest.raises(ValueError, match="engine='local'"):
        JobParts.of(job_of(model), RUN, "a", "ray")


def test_the_local_engine_needs_no_workers(tmp_path: Path) -> None:
    model, done = tiny_model(), []
    (tmp_path / "again").mkdir()
    parts = JobParts.of(job_of(model), RUN, tmp_path, "local")
    record_shards(parts, [(0, texts_of(model, 0))], threads=1, on_done=done.append)
    write_shard(tmp_path / "again", record_shard(job_of(model), RUN, 0, texts_of(model, 0), lambda a, b: None))
    assert files_of(tmp_path / "000000") == files_of(tmp_path / "again" / "000000")
    absent = JobParts.of(job_of(model), RUN, tmp_path / "absent", "local")
    with pytest.raises(ValueError, match=r"does not see .*use a shared folder"):
        record_shards(absent, [(0, texts_of(model, 0))], threads=1, on_done=done.append)
