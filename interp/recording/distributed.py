"""Shards computed by other processes: texts go out, a line about each shard comes back.

1. `JobParts` is a `Job` that can travel: its model taken apart, and the place where shards go.
2. A worker assembles the model once. For every task it computes a shard and writes it to the store itself, whole or not
   at all, so that nothing large returns and a worker's death costs one shard's time.
3. This process looks whether it sees each shard: a worker on another machine may have another disk under the same path.
"""

import dataclasses
import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from interp.engine import RayEngine, WorkerLost, as_engine, run_tasks
from interp.model.parts import ModelParts
from interp.recording.forward import record_shard
from interp.recording.job import Job, Run
from interp.recording.texts import Texts
from interp.store.place import Place, as_place, file_sizes, is_local
from interp.store.shard import CARD, write_shard

PATIENCE = 10.0
"""Seconds until a shared folder must show what another machine has written: network file systems remember what was not
there."""


@dataclass(frozen=True, eq=False)
class JobParts:
    """A recording as another process gets it."""

    model: ModelParts
    """The model."""
    options: Mapping[str, Any]
    """The other fields of the job."""
    run: Run
    """How the passes are made."""
    shards: Place
    """The store's folder of shards."""
    device: str
    """Where the workers compute: "cpu" or "cuda"."""
    engine: RayEngine | None
    """With a GPU for each worker where the model is on one; None for this process."""

    @classmethod
    def of(cls, job: Job, run: Run, shards: Any, engine: Any) -> "JobParts":
        """Take a job apart.

        Args:
            job: with a model without hooks.
            run: how the passes are made.
            shards: the store's folder of shards, which every worker must reach by this path or URL.
            engine: "local", "ray" or a `RayEngine`. Workers compute on a GPU if each is given one, else on the CPU.

        Raises:
            ValueError: a model that cannot travel, or one on a device that workers do not have.
        """
        chosen, home = as_engine(engine), job.model.device.type
        if chosen is not None:
            if home not in ("cpu", "cuda"):
                raise ValueError(f"the model is on {home!r}, but workers compute on the CPU or on CUDA: move it to one")
            if chosen.gpus_per_worker is None:
                chosen = dataclasses.replace(chosen, gpus_per_worker=int(home == "cuda"))
            home = "cuda" if chosen.gpus_per_worker else "cpu"
        options = {field.name: getattr(job, field.name) for field in dataclasses.fields(job)}
        del options["model"], options["tokenizer"]  # the tokenizer is the model's
        place = as_place(shards)
        place = place.absolute() if is_local(place) else place  # a worker has another working folder
        return cls(ModelParts.of(job.model), options, run, place, home, chosen)

    def assemble(self) -> Job:
        """The job, in the process that does it."""
        model = self.model.assemble(self.device)
        assert model.tokenizer is not None
        return Job(model=model, tokenizer=model.tokenizer, **self.options)


@dataclass(frozen=True)
class ShardRecord:
    """What comes back for a shard."""

    index: int
    """Number of the shard."""
    texts: int
    """Its texts."""
    tokens: int
    """Tokens that were computed for them."""
    rows: int
    """Its rows."""
    bytes: int
    """Of its files."""


def record_shards(
    parts: JobParts, tasks: Iterable[tuple[int, Texts]], *, threads: int, on_done: Callable[[ShardRecord], Any]
) -> None:
    """Compute shards and write them into the store.

    Args:
        parts: the job and its engine.
        tasks: (number of the shard, its texts), taken one by one as workers get free.
        threads: of torch in each worker. The bytes of the shards are those of one process with the same number.
        on_done: called here for each shard that is finished, in the order in which they are.

    Raises:
        ValueError: bad weights or NaN as in `record_shard`, or a shard that this machine does not see.
        RuntimeError: a shard whose workers died again and again.
        OSError: a worker could not write.
    """
    try:
        for _, record in run_tasks(
            _shard_worker, tasks, shared=(parts,), engine=parts.engine or "local", threads=threads
        ):
            _require_seen(parts.shards, record.index)
            on_done(record)
    except WorkerLost as error:
        raise RuntimeError(f"shard {error.task[0]} cannot be recorded; finished shards are kept. {error}") from error


def _shard_worker(parts: JobParts) -> Callable[[tuple[int, Texts]], ShardRecord]:
    """In a worker: the model once, then shard after shard."""
    shards, job = parts.shards, parts.assemble()
    if is_local(shards) and not shards.is_dir():
        raise ValueError(f"{socket.gethostname()} does not see {shards}: {_SHARE}")

    def run(task: tuple[int, Texts]) -> ShardRecord:
        index, texts = task
        computed = []
        data = record_shard(job, parts.run, index, texts, lambda _texts, tokens: computed.append(tokens))
        folder = write_shard(shards, data)
        size = sum(file_sizes(folder).values())
        return ShardRecord(index, data.examples.num_rows, sum(computed), data.tokens.num_rows, size)

    return run


_SHARE = "use a shared folder that all machines have under one path, or an object store such as s3://bucket/run"


def _require_seen(shards: Place, index: int) -> None:
    folder = shards / f"{index:06d}"
    until = time.monotonic() + (PATIENCE if is_local(shards) else 0.0)
    while CARD not in file_sizes(folder):
        if time.monotonic() > until:
            raise ValueError(
                f"a worker wrote shard {index} to a path that this machine does not see, {shards}: {_SHARE}"
            )
        time.sleep(0.1)
        if is_local(shards):
            os.listdir(shards)  # makes a network file system look again
