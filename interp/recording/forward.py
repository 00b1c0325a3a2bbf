"""The forward passes of one shard: texts in, the rows of every site out.

1. The texts are laid out in passes (`batching`); rows go to the places of their own text, so the order on the disk is the
   order of the texts. Texts that are continued are generated first, a batch of prompts at a time, and recorded meanwhile.
2. The pass stops after the deepest site that was asked for. Signals need the whole stack; the unembedding then runs
   over the rows that are needed only.
3. A NaN or infinite value ends the recording with its place; nothing of the shard is written.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from interp.model.activations import ActivationCache
from interp.recording.batching import Batch, Limits, Prices, make_batches
from interp.recording.job import Job, Run
from interp.recording.rows import ShardRows
from interp.recording.signals import HeadReader
from interp.recording.texts import Texts, generated_texts
from interp.store import ShardData

Report = Callable[[int, int], Any]
"""fn(texts, tokens that were computed for them), after each pass."""


def record_shard(job: Job, run: Run, index: int, texts: Texts, report: Report) -> ShardData:
    """Run the texts of shard `index`; what it holds."""
    with torch.inference_mode():
        if job.generate is not None:
            return _generated_shard(job, run, index, texts, report)
        rows = ShardRows(job, texts)
        for batch in make_batches(texts.ids, texts.offsets, run.limits, Prices(job.model.cfg), job.tokenizer.pad_id):
            values, stream, heads = run_batch(job, batch)
            rows.take(batch.texts, batch.cells, values, stream, heads)
            report(len(batch.texts), batch.computed)
        return ShardData(index, texts.examples, rows.token_table(), rows.acts, rows.heads)


def run_batch(job: Job, batch: Batch) -> tuple[dict[str, Tensor], Tensor | None, dict[str, Tensor]]:
    """One forward pass: [cell d] of each site, the final stream where signals need it, and what the heads look at."""
    wanted, last = _wanted(job)
    if not job.head_stats:
        _, cache = job.model.run_with_cache(batch.tokens, sites=wanted, stop_at_layer=job.stop)
        heads = {}
    else:
        reader = HeadReader(job.model, job.n_layers)
        with reader.reading(batch.tokens):
            _, cache = job.model.run_with_cache(batch.tokens, sites=wanted, stop_at_layer=job.stop)
        heads = reader.values
    values = {site: cache[site].flatten(0, 1).flatten(1) for site in job.shapes}
    return values, cache[last].flatten(0, 1) if job.signals else None, heads


def _wanted(job: Job) -> tuple[list[str], str]:
    """Sites that the pass must keep, and the name of the final stream."""
    last = f"blocks.{job.model.cfg.n_layers - 1}.hook_resid_post"
    return list(dict.fromkeys([*job.shapes, *([last] if job.signals else [])])), last


# ---------------------------------------------------------------------------------------------------------- generating


@dataclass(frozen=True, eq=False)
class Prompts:
    """Prompts that are continued together. Equal ones are continued once, for draws depend on the prompt alone."""

    batch: Batch
    """What runs: each prompt once."""
    texts: list[list[int]]
    """For each row of it the texts with that prompt, counted inside the shard."""


def _generated_shard(job: Job, run: Run, index: int, texts: Texts, report: Report) -> ShardData:
    done: list[tuple[list[int], list[ActivationCache]]] = []
    new_ids: list[list[int]] = [[] for _ in range(len(texts))]
    for prompts in prompt_batches(job, run, texts):
        out = job.model.generate(prompts.batch.tokens, sites=_wanted(job)[0], **_one_more(job))
        pairs = [(text, row.cache) for row, same in zip(out.rows, prompts.texts, strict=True) for text in same]
        caches = [cache for _, cache in pairs if cache is not None]
        for (text, _), cache in zip(pairs, caches, strict=True):
            fed = cache.tokens.ids[0].tolist()
            new_ids[text] = fed[len(texts.tokens_of(text)) :]
        done.append(([text for text, _ in pairs], caches))
        report(len(pairs), prompts.batch.computed + sum(len(new_ids[same[0]]) for same in prompts.texts))
    assert job.rules is not None
    whole = generated_texts(job.rules, texts, new_ids, job.tokenizer)
    rows = ShardRows(job, whole)
    for chosen, caches in done:
        values, stream = _side_by_side(job, caches)
        n_tokens = sum(len(whole.tokens_of(text)) for text in chosen)
        rows.take(np.array(chosen), np.arange(n_tokens), values, stream, {})
    return ShardData(index, whole.examples, rows.token_table(), rows.acts)


def _one_more(job: Job) -> dict[str, Any]:
    """The options of generation with room for one more token: it is chosen and thrown away, for only then is the last one
    that was asked for fed to the model and has activations."""
    options = dict(job.generate or {})
    return {**options, "max_new_tokens": int(options["max_new_tokens"]) + 1}


def prompt_batches(job: Job, run: Run, texts: Texts) -> list[Prompts]:
    """Prompts of like length together, and no more than fit with their new tokens."""
    assert job.generate is not None
    same: dict[bytes, list[int]] = {}
    for text in range(len(texts)):
        same.setdefault(texts.tokens_of(text).tobytes(), []).append(text)
    copies = list(same.values())
    ids = [texts.tokens_of(each[0]) for each in copies]
    longest = max(map(len, ids)) + int(job.generate["max_new_tokens"])
    most = max(1, run.batch_tokens // longest)
    limits = Limits(min(most, run.batch_size or most), run.batch_tokens, share=False)
    offsets = np.cumsum([0, *map(len, ids)])
    batches = make_batches(np.concatenate(ids), offsets, limits, Prices(job.model.cfg), job.tokenizer.pad_id)
    return [Prompts(batch, [copies[row] for row in batch.texts.tolist()]) for batch in batches]


def _side_by_side(job: Job, caches: Sequence[ActivationCache]) -> tuple[dict[str, Tensor], Tensor | None]:
    """[cell d] of each site, one text after the other, and the final stream where signals need it."""
    values = {site: torch.cat([cache[site] for cache in caches]).flatten(1) for site in job.shapes}
    last = _wanted(job)[1]
    return values, torch.cat([cache[last] for cache in caches]) if job.signals else None
