"""Shard after shard into a store, by this process or by the workers of an engine."""

from collections.abc import Callable, Iterator
from typing import Any

from interp.engine import as_engine, fixed_threads
from interp.recording.distributed import JobParts, ShardRecord, record_shards
from interp.recording.forward import record_shard
from interp.recording.job import Job, Run, shard_ranges
from interp.recording.progress import Report, Status
from interp.recording.texts import Texts
from interp.store import StoreWriter
from interp.store.writer import SHARDS


def write_shards(
    job: Job,
    writer: StoreWriter,
    n_texts: int,
    texts_of: Callable[[int, int], Texts],
    n_bytes: int,
    engine: Any,
    report: Report,
) -> None:
    """Compute and commit the shards that are missing.

    Args:
        job: what is done with each.
        writer: of the store; its card says how the work is cut.
        n_texts: in the whole store.
        texts_of: the texts from one number to before another.
        n_bytes: of the whole store.
        engine: "local", "ray" or a `RayEngine`.
        report: told how far it is, after each pass or each shard.
    """
    run = Run(**writer.card["run"])
    finished = writer.finished()
    ranges = {index: (first, last) for index, first, last in shard_ranges(n_texts, run.texts_per_shard)}
    missing = [index for index in ranges if index not in finished]
    left = sum(last - first for first, last in map(ranges.__getitem__, missing))
    writer.require_room(n_bytes * left // n_texts)
    status = Status(n_texts - left, n_texts)
    if as_engine(engine) is None:
        with fixed_threads(run.threads):
            for index in missing:

                def computed(texts: int, tokens: int) -> None:
                    status.add(texts, tokens)
                    report(status)

                data = record_shard(job, run, index, texts_of(*ranges[index]), computed)
                writer.commit(data)
                status.bytes += sum(acts.nbytes for acts in data.acts.values())
        return

    def tasks() -> Iterator[tuple[int, Texts]]:
        for index in missing:
            yield index, texts_of(*ranges[index])

    def done(record: ShardRecord) -> None:
        status.add(record.texts, record.tokens)
        status.bytes += record.bytes
        report(status)

    parts = JobParts.of(job, run, writer.path / SHARDS, engine)
    record_shards(parts, tasks(), threads=run.threads, on_done=done)
