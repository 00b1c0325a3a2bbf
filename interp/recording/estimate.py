"""What a recording will take, before it begins: texts, tokens, passes, bytes, memory and time.

Texts and rows are counted exactly, for the plan is made as `record` makes it. Passes are counted over some shards, evenly
spread, and the time is that of one small pass, measured here and now, times the work.
"""

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch

from interp.model import HookedTransformer
from interp.recording.batching import Batch, Prices, make_batches
from interp.recording.forward import prompt_batches, run_batch
from interp.recording.job import shard_ranges
from interp.recording.prepare import Prepared, prepared, refuse_inside
from interp.store import StoreWriter
from interp.store.writer import free_room

SAMPLED_SHARDS = 16
"""Shards whose passes are counted; the others are taken to be like them."""
TIMED_TOKENS = 512
"""Tokens of the pass that is measured, about."""


@dataclass(frozen=True)
class RecordingPlan:
    """What `record` with the same arguments would do."""

    examples: int
    """Examples in the data."""
    texts: int
    """Texts; the pieces of a long one count each."""
    over_max_length: int
    """Examples over the limit of tokens."""
    duplicates: int
    """Examples whose text stands earlier in the data, apart from case and spacing."""
    contradictions: int
    """Texts that carry more than one label."""
    tokens: int
    """Tokens of all texts; with generation the most there can be."""
    computed: int
    """Tokens that the passes compute: what texts begin with alike counts once."""
    padding: int
    """Places of the passes that hold no token."""
    rows: int
    """Rows of the store; with generation the most there can be."""
    forwards: int
    """Forward passes; with generation the most there can be."""
    layers: int
    """Blocks that run."""
    shards: int
    """Shards: what a crash can cost is one of them."""
    bytes: int
    """Of the store, on the safe side."""
    free_bytes: int | None
    """Free at the path; None without one, and where it is not known."""
    memory_bytes: int
    """Weights, two shards and the largest pass, about."""
    tokens_per_second: float
    """Measured on one small pass."""
    seconds: float
    """The whole, about, without waiting for the disk."""

    @property
    def fits(self) -> bool:
        """Whether there is room for it."""
        return self.free_bytes is None or self.bytes <= self.free_bytes

    def to_frame(self) -> pd.DataFrame:
        """Two columns: quantity, value."""
        values = {**self.__dict__, "fits": self.fits}
        return pd.DataFrame({"quantity": list(values), "value": list(values.values())})


def recording_plan(
    model: HookedTransformer | Any,
    data: Any,
    sites: str | Iterable[Any] = "resid_post:*",
    tokens: Any = "all",
    path: str | os.PathLike[str] | None = None,
    dtype: str | torch.dtype = "bfloat16",
    *,
    engine: Any = "local",
    bos: bool | Any | None = None,
    long: str | None = None,
    max_length: int | Any = None,
    stride: int | Any = None,
    signals: bool | Any = False,
    head_stats: bool | Any = False,
    generate: Any = None,
    batch_size: int | Any = None,
    limit: int | Any = None,
    text: str = "text",
    label: str | None = "label",
    group: str | None = None,
) -> RecordingPlan:
    """What `record` with these arguments would do, without writing anything: all texts are read, one small pass is run.

    Arguments and errors as in `record`, but for too little room, which `RecordingPlan.fits` says.
    """
    refuse_inside(data, path)
    ready = prepared(
        model, data, sites=sites, tokens=tokens, dtype=dtype, engine=engine, bos=bos, long=long, stride=stride,
        max_length=max_length, signals=signals, head_stats=head_stats, generate=generate, batch_size=batch_size,
        limit=limit, text=text, label=label, group=group,
    )  # fmt: skip
    with ready as it:
        if path is not None:
            StoreWriter(path, it.card).check()  # what writes is its block, which is not entered
        room = None if path is None else free_room(path)
        return _measured(it, None if room is None else room[1])


def _measured(it: Prepared, free: int | None) -> RecordingPlan:
    plan, job, run = it.plan, it.job, it.run
    ranges = [(first, last) for _, first, last in shard_ranges(plan.n_texts, run.texts_per_shard)]
    chosen = sorted({round(i) for i in np.linspace(0, len(ranges) - 1, min(len(ranges), SAMPLED_SHARDS))})
    batches = [batch for index in chosen for batch in _batches(it, *ranges[index])]
    sampled_texts = sum(ranges[index][1] - ranges[index][0] for index in chosen)
    scale = plan.n_texts / sampled_texts
    computed = sum(batch.computed for batch in batches)
    places = sum(batch.tokens.ids.numel() for batch in batches)
    new = 0 if job.generate is None else job.generate["max_new_tokens"]
    rate, step = _speed(it, batches, new)
    seconds = computed / rate + step * new * len(batches)
    weights = sum(weight.nbytes for weight in job.model.parameters())
    shard = max(1, round(plan.n_rows / len(ranges))) * job.row_bytes
    largest = max(batch.tokens.ids.numel() for batch in batches)
    width = sum(np.prod(shape) for shape in job.shapes.values()) + 8 * max(job.model.cfg.d_mlp, job.model.cfg.d_model)
    return RecordingPlan(
        examples=plan.n_inputs,
        texts=plan.n_texts,
        over_max_length=plan.n_long,
        duplicates=plan.duplicates,
        contradictions=plan.contradictions,
        tokens=plan.n_tokens,
        computed=round(computed * scale) + new * plan.n_texts,
        padding=round((places - computed) * scale),
        rows=plan.n_rows,
        forwards=round(len(batches) * scale) * (1 + new),
        layers=job.n_layers,
        shards=len(ranges),
        bytes=it.n_bytes,
        free_bytes=free,
        memory_bytes=int(weights + 2 * shard + largest * width * 4),
        tokens_per_second=rate,
        seconds=seconds * scale,
    )


def _batches(it: Prepared, first: int, last: int) -> list[Batch]:
    texts = it.plan.shard(first, last)
    if it.job.generate is not None:
        return [prompts.batch for prompts in prompt_batches(it.job, it.run, texts)]
    prices = Prices(it.job.model.cfg)
    return list(make_batches(texts.ids, texts.offsets, it.run.limits, prices, it.job.tokenizer.pad_id))


def _speed(it: Prepared, batches: list[Batch], new: int) -> tuple[float, float]:
    """Tokens a second of a pass, and seconds of a step of generation."""
    batch = min(batches, key=lambda each: abs(each.computed - TIMED_TOKENS))
    with torch.inference_mode():
        if not new:
            run_batch(it.job, batch)  # the first pass reads the weights from the disk
            began = time.perf_counter()
            run_batch(it.job, batch)
            return batch.computed / (time.perf_counter() - began), 0.0
        options = {**(it.job.generate or {}), "max_new_tokens": min(new, 3)}
        timing = it.job.model.generate(batch.tokens, **options).timing
    return batch.computed / timing.prefill_s, timing.decode_s / max(options["max_new_tokens"] - 1, 1)
