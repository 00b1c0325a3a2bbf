"""Record a model's activations into a store.

1. `plan`: the texts are read and tokenised, what is kept and how the work is cut is decided from the inputs alone.
2. `forward`: shard by shard, texts of like length run together, up to the deepest site that was asked for.
3. `interp.store`: a thread writes a shard while the next is computed; finished shards are never computed again.
"""

import contextlib
import difflib
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from interp import artifact
from interp.model import HookedTransformer
from interp.recording.forward import Job, Run, record_shard, shard_texts, site_shapes, stop_layer
from interp.recording.plan import LONG_RULES, TOKEN_RULES, make_plan
from interp.recording.progress import Report, reporter
from interp.store import DTYPES, Store, StoreWriter, open_store, require_room, temporary_store

BATCH_TOKENS = 8192
"""Most tokens in a batch. With the unembedding a quarter, for logits are large."""
ENGINES = ("local",)


def record(
    model: HookedTransformer,
    data: Any,
    sites: str | Iterable[Any] = "resid_post:*",
    tokens: str = "all",
    path: str | os.PathLike[str] | None = None,
    dtype: str | torch.dtype = "bfloat16",
    engine: str = "local",
    resume: bool = True,
    bos: bool | None = None,
    long: str | None = None,
    max_length: int | None = None,
    signals: bool = False,
    batch_size: int = 32,
    progress: Any = None,
) -> Store:
    """Run a model over texts and keep its activations.

    The same call again, after an interruption or not, goes on where the store stands and gives the same bytes on one
    kind of machine: batches and thread count are taken from the store that is there.

    Args:
        model: a model with its tokenizer. Hooks that are attached to it stay at work; the store's card says where.
        data: a text, an iterable of texts or `Example`s, or a `Dataset`.
        sites: names, shorthand or patterns of sites with a row per token; heads are flattened, [head d_head] -> [d].
        tokens: which tokens of each text: "all", "last", "first", or "answer": those that overlap the characters
            `meta["answer_span"] = (start, end)` of the example, or `meta["answer_start"]` to the end.
        path: folder of the store; None keeps it in memory (a private folder that goes away with the returned object).
        dtype: on the disk: bfloat16, float16 or float32. The model computes in its own.
        engine: "local".
        resume: go on with a store that is there; False refuses one.
        bos: put a BOS before each text; None follows the tokenizer.
        long: texts over `max_length`: "error", "chunk" (pieces that do not overlap, each a text with its `document` and
            `chunk`), or "truncate". None is "error" if any example has a label, else "chunk".
        max_length: most tokens of a text, BOS included; None is the model's context.
        signals: also keep each token's logprob (nats, null at position 0) and the entropy (nats) and top1 token of the
            next-token distribution there; the whole model then runs.
        batch_size: most texts in a forward pass.
        progress: None for a bar on a terminal and log lines elsewhere, False for nothing, or
            fn(texts done, texts in all, tokens computed).

    Returns:
        The store, open for reading.

    Raises:
        ValueError: bad input, a path that holds something else, too little room, NaN activations. What was recorded
            before stays readable.
        OSError: the disk is full or cannot be written.
    """
    dtype = _checked(tokens, dtype, engine, long, batch_size)
    if model.tokenizer is None:
        raise ValueError("this model has no tokenizer, so it cannot read texts; load it with one")
    max_length = model.cfg.n_ctx if max_length is None else max_length
    if not 1 <= max_length <= model.cfg.n_ctx:
        raise ValueError(f"max_length must be 1 to {model.cfg.n_ctx} (the model's context), got {max_length}")
    names = model.expand_sites(sites)
    if not names:
        raise ValueError("no site was asked for: pass for example sites='resid_post:*'")
    shapes = site_shapes(model, names)
    plan = make_plan(data, model.tokenizer, tokens=tokens, bos=bos, long=long, max_length=max_length)
    job = Job(model, model.tokenizer, plan, shapes, dtype, stop_layer(names, model.cfg.n_layers, signals), signals)
    run = Run(
        texts_per_shard=plan.texts_per_shard(job.row_bytes),
        batch_size=batch_size,
        batch_tokens=BATCH_TOKENS if job.stop is not None else BATCH_TOKENS // 4,
        threads=torch.get_num_threads(),
    )
    rules = {"tokens": tokens, "bos": model.tokenizer.add_bos if bos is None else bos, "max_length": max_length}
    with reporter(progress) as report:

        def write(folder: Path) -> None:
            _write(job, _card(job, run, rules), folder, resume, report)

        if path is None:
            return temporary_store(write, plan.n_bytes(job.row_bytes))
        write(Path(path))
        return open_store(path)


def _checked(tokens: str, dtype: str | torch.dtype, engine: str, long: str | None, batch_size: int) -> str:
    """Refuse words that are not known, with the nearest; the dtype's name."""
    dtype = str(dtype).removeprefix("torch.")
    for name, value, known in (
        ("tokens", tokens, TOKEN_RULES),
        ("dtype", dtype, tuple(DTYPES)),
        ("engine", engine, ENGINES),
        ("long", long, (*LONG_RULES, None)),
    ):
        if value not in known:
            near = difflib.get_close_matches(str(value), [word for word in known if word], 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"{name}={value!r} is unknown, there is {', '.join(map(repr, known))}{hint}")
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    return dtype


def _card(job: Job, run: Run, rules: Mapping[str, Any]) -> dict[str, Any]:
    """What store.json says."""
    model, plan = job.model, job.plan
    return {
        "kind": "activation store",
        "model": {
            "name": model.cfg.name,
            "note": model.note,
            "fingerprint": model.fingerprint,
            "dtype": str(model.dtype).removeprefix("torch."),
            "edited_at": [name for name, point in model.hook_dict.items() if point.handles],
        },
        "tokenizer": {"name": job.tokenizer.name, "hash": job.tokenizer.hash},
        "sites": [{"name": site, "shape": list(shape)} for site, shape in job.shapes.items()],
        "dtype": job.dtype,
        **rules,
        "long": plan.long,
        "signals": job.signals,
        "texts": {
            "count": plan.n_texts,
            "documents": plan.columns.num_rows,
            "over_max_length": plan.n_long,
            "tokens": len(plan.ids),
            "rows": int(plan.kept.sum()),
            **plan.hashes(),
        },
        "shards": math.ceil(plan.n_texts / run.texts_per_shard),
        "run": asdict(run),
        "provenance": artifact.provenance(),
    }


def _write(job: Job, card: Mapping[str, Any], path: Path, resume: bool, report: Report) -> None:
    """Compute and commit the shards that are missing."""
    plan = job.plan
    with StoreWriter(path, card, resume=resume) as writer:
        run = Run(**writer.card["run"])
        finished = writer.finished()
        missing = [index for index in range(writer.card["shards"]) if index not in finished]
        left = sum(len(shard_texts(plan, run, index)) for index in missing)
        require_room(path, plan.n_bytes(job.row_bytes) * left // plan.n_texts)
        counts = [plan.n_texts - left, 0]

        def batch_done(texts: int, tokens: int) -> None:
            counts[0] += texts
            counts[1] += tokens
            report(counts[0], plan.n_texts, counts[1])

        with _threads(run.threads):
            for index in missing:
                writer.commit(record_shard(job, run, index, batch_done))


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    """torch with a fixed number of threads: their number can decide the last bit of a product."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
