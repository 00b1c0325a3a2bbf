"""`record`: run a model over texts and keep its activations."""

import os
from collections.abc import Iterable
from typing import Any

import torch

from interp.model import HookedTransformer
from interp.recording.prepare import prepared, refuse_inside
from interp.recording.progress import reporter
from interp.recording.stored import RecordedStore, open_store
from interp.recording.write import write_shards
from interp.store import StoreWriter, as_place, temporary_store


def record(
    model: HookedTransformer | Any,
    data: Any,
    sites: str | Iterable[Any] = "resid_post:*",
    tokens: Any = "all",
    path: str | os.PathLike[str] | None = None,
    dtype: str | torch.dtype = "bfloat16",
    engine: Any = "local",
    resume: bool = True,
    bos: bool | Any | None = None,
    long: str | None = None,
    max_length: int | Any = None,
    signals: bool | Any = False,
    batch_size: int | Any = None,
    progress: Any = None,
    *,
    stride: int | Any = None,
    head_stats: bool | Any = False,
    generate: Any = None,
    limit: int | Any = None,
    text: str = "text",
    label: str | None = "label",
    group: str | None = None,
) -> RecordedStore:
    """Run a model over texts and keep its activations.

    The same call again, after an interruption or not, goes on where the store stands and gives the same bytes on one
    kind of machine: batches and thread count are taken from the store that is there.

    Args:
        model: a model with its tokenizer. Hooks that are attached to it stay at work; the store's card says where.
        data: what `iter_examples` reads: a text, the name of a bundled set, a file or folder, a data set, a table, or
            anything that gives texts, `Example`s, rows or conversations one after the other. Conversations are written by
            the model's chat template; one that prints the date gets 2025-01-01, so that the text is the same on every day.
        sites: names, shorthand or patterns of sites with a row per token; heads are flattened, [head d_head] -> [d].
        tokens: which tokens of each text, one rule or a list of them. Rules are "all", "last", "first", "mean" (one row:
            the mean of the tokens that are neither special nor first), a span such as "answer" (the characters
            `meta["answer_span"] = (start, end)`, or `meta["answer_start"]` to the end; so for any other name), "prompt",
            "generated", or in a conversation "user", "assistant", "system"; a pick of a span such as "last:user" or
            "mean:answer"; a list of positions, negative ones from the end; or fn(TokenView) -> bool. With several rules
            the column `rule:<name>` of `tokens` says which rows each asked for. A turn of a conversation ends with what
            the template writes behind its content: "last:user" is the end sign, or the line break that many templates
            put after that.
        path: folder of the store, or its URL in an object store (`s3://bucket/run`); None keeps it in memory (a private
            folder that goes away with the returned object). It may not lie in the folder that `data` names.
        dtype: on the disk: bfloat16, float16 or float32. The model computes in its own.
        engine: "local", "ray", or a `RayEngine`. The bytes are the same.
        resume: go on with a store that is there; False refuses one.
        bos: put a BOS before each text; None follows the tokenizer.
        long: texts over `max_length`: "error", "chunk" (pieces, each a text with its `document`, `chunk` and `start`; not
            with a span, which may lie across them), or "truncate" (the log names the first ones that were cut). None is
            "error" if any example has a label, else "chunk".
        max_length: most tokens of a text, BOS included; None is the model's context.
        signals: also keep each token's logprob (nats) and rank given those before it (null at position 0), and the
            entropy (nats) and top1 token of the next-token distribution there; the whole model then runs.
        batch_size: most texts in a forward pass; None lets the number of tokens decide.
        progress: None for a bar on a terminal and log lines elsewhere, False for nothing, or
            fn(texts done, texts in all, tokens computed).
        stride: tokens from the beginning of one piece of a long text to that of the next. Each token is kept once, in the
            piece where more stands before it; None for pieces that do not overlap.
        head_stats: also keep for every head of the blocks that run the entropy of its attention (nats) and the share that
            the text's first token gets; `Store.head_stats` reads them.
        generate: continue each text and record what is generated too: options of `model.generate`, or a number of new
            tokens. Draws depend on `seed` and on the text alone, so equal texts are continued alike.
        limit: most examples to read, for data without an end.
        text: name of the column with the texts. A name that is given where the data has no columns is refused; so for
            the next two.
        label: name of the column with the labels; None reads none.
        group: name of the column with the groups.

    Returns:
        The store, open for reading.

    Raises:
        ValueError: bad input, a path that holds something else, too little room, NaN activations. What was recorded
            before stays readable.
        OSError: the disk is full or cannot be written.
        RuntimeError: a shard whose workers died again and again.
    """
    refuse_inside(data, path)
    ready = prepared(
        model, data, sites=sites, tokens=tokens, dtype=dtype, engine=engine, bos=bos, long=long, stride=stride,
        max_length=max_length, signals=signals, head_stats=head_stats, generate=generate, batch_size=batch_size,
        limit=limit, text=text, label=label, group=group,
    )  # fmt: skip
    with reporter(progress) as report, ready as it:

        def write(place: Any) -> None:
            with StoreWriter(place, it.card, resume=resume) as writer:
                write_shards(it.job, writer, it.plan.n_texts, it.plan.shard, it.n_bytes, engine, report)

        if path is None:
            return temporary_store(write, it.n_bytes, RecordedStore)
        place = as_place(path)
        write(place)
        return open_store(place)
