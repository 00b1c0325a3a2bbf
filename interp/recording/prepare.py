"""From a call of `record` to what will be done: the plan of texts, the job for each shard, and the store's card.

Everything is checked here, before the first forward pass.
"""

import difflib
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch

from interp import artifact
from interp.dataset import iter_examples
from interp.dataset.sources import folder_of
from interp.engine import as_engine
from interp.model import HookedTransformer
from interp.recording.cutting import LONG_RULES
from interp.recording.job import Job, Run, can_share, edited_at, site_shapes, stop_layer
from interp.recording.plan import Plan, make_plan
from interp.recording.rules import parse_rules
from interp.store import DTYPES, as_place
from interp.store.place import is_local

BATCH_TOKENS, GPU_BATCH_TOKENS = 4096, 32_768
"""Most places in a forward pass of several rows: what keeps a processor busy is soon reached, a GPU takes more."""
NEW_TOKENS = 20
"""New tokens of each text, where `generate` does not say."""
_GENERATE = (
    "max_new_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed", "stop", "stop_at_eos",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Prepared:
    """A recording that is checked and not yet begun."""

    job: Job
    """What is done with each shard."""
    plan: Plan
    """Texts and rows."""
    run: Run
    """How the passes are made."""
    card: dict[str, Any]
    """What store.json will say."""

    @property
    def n_bytes(self) -> int:
        """Of the whole store, on the safe side."""
        columns = 4 * len(self.job.shapes) + (16 if self.job.signals else 0)  # norms and signals of a row
        return self.plan.n_bytes(self.job.row_bytes) + columns * self.plan.n_rows


@contextmanager
def prepared(
    model: HookedTransformer | Any,
    data: Any,
    *,
    sites: str | Iterable[Any],
    tokens: Any,
    dtype: str | torch.dtype,
    engine: Any,
    bos: bool | Any | None,
    long: str | None,
    stride: Any,
    max_length: Any,
    signals: bool | Any,
    head_stats: bool | Any,
    generate: Any,
    batch_size: Any,
    limit: Any,
    text: str,
    label: str | None,
    group: str | None,
) -> Iterator[Prepared]:
    """Check the options of `record`, read the data, and say what will be done. The plan is closed on the way out."""
    require_model(model)
    for name, switch in (("bos", bos), ("signals", signals), ("head_stats", head_stats)):
        if not isinstance(switch, bool) and not (name == "bos" and switch is None):
            also = ", or None for what the tokenizer does" if name == "bos" else ""
            raise ValueError(f"{name} is True or False{also}; got {switch!r}")
    dtype = str(dtype).removeprefix("torch.")
    require_word("dtype", dtype, tuple(DTYPES))
    require_word("long", long, (*LONG_RULES, None))
    if batch_size is not None and not (isinstance(batch_size, int) and batch_size >= 1):
        raise ValueError(f"batch_size must be at least 1, got {batch_size!r}")
    if model.tokenizer is None:
        raise ValueError("this model has no tokenizer, so it cannot read texts; load it with one")
    max_length = model.cfg.n_ctx if max_length is None else max_length
    if not (isinstance(max_length, int) and 1 <= max_length <= model.cfg.n_ctx):
        raise ValueError(f"max_length must be 1 to {model.cfg.n_ctx} (the model's context), got {max_length!r}")
    rules, options = parse_rules(tokens), _generate_options(generate)
    if rules.needs_generation and options is None:
        raise ValueError(
            f"tokens={rules.card!r} asks for generated tokens: pass generate={{'max_new_tokens': {NEW_TOKENS}}}"
        )
    names = model.expand_sites(sites)
    if not names:
        raise ValueError("no site was asked for: pass for example sites='resid_post:*'")
    shapes = site_shapes(model, names)
    _refuse_unfit(model, engine, signals, head_stats, options)
    stop = stop_layer(names, model.cfg.n_layers, signals)
    examples = iter_examples(data, text=text, label=label, group=group, limit=limit)
    new_tokens = None
    if options is not None:
        new_tokens = options["max_new_tokens"]
        max_length = min(max_length, model.cfg.n_ctx - 1)  # the last new token is fed, which needs one to come after it
    plan = make_plan(
        examples, model.tokenizer, rules, bos=bos, long=long, stride=stride, max_length=max_length, generate=new_tokens
    )
    try:
        job = Job(model, model.tokenizer, shapes, dtype, stop, signals, head_stats, options, rules)
        run = Run(
            texts_per_shard=plan.texts_per_shard(job.row_bytes),
            batch_size=batch_size,
            batch_tokens=BATCH_TOKENS if model.device.type == "cpu" else GPU_BATCH_TOKENS,
            share=can_share(model),
            threads=torch.get_num_threads(),
        )
        said = {"bos": model.tokenizer.add_bos if bos is None else bos, "max_length": max_length, "stride": stride}
        yield Prepared(job, plan, run, _card(job, plan, run, said))
    finally:
        plan.close()


def require_model(model: Any) -> None:
    """Refuse what is no model, such as the name of one."""
    if isinstance(model, HookedTransformer):
        return
    if isinstance(model, str):
        raise ValueError(f"{model!r} is the name of a model: pass the model, interp.load({model!r})")
    raise ValueError(f"a {type(model).__name__} is no model that can be recorded: pass the one that interp.load gives")


def refuse_inside(data: Any, path: Any) -> None:
    """Refuse a store inside the folder that is read: the next call would take the files of the store for data."""
    folder = folder_of(data)
    place = None if path is None or folder is None else as_place(path)
    if folder is None or place is None or not is_local(place):
        return
    home, store = folder.resolve(), place.expanduser().resolve()
    # What is hidden is not read.
    if store.is_relative_to(home) and not any(part.startswith(".") for part in store.relative_to(home).parts):
        raise ValueError(
            f"the store {path} would lie in {os.fspath(folder)}, the folder of the data, where its files would be read as "
            "data the next time: choose a path outside it"
        )


def require_word(name: str, value: Any, known: Iterable[Any]) -> None:
    """Refuse a word that is not known, with the nearest."""
    known = list(known)
    if value not in known:
        near = difflib.get_close_matches(str(value), [word for word in known if word], 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"{name}={value!r} is unknown, there is {', '.join(map(repr, known))}{hint}")


def _generate_options(generate: Any) -> dict[str, Any] | None:
    """The options of `model.generate`, with the number of new tokens."""
    if generate is None:
        return None
    if isinstance(generate, int) and not isinstance(generate, bool):
        generate = {"max_new_tokens": generate}
    if not isinstance(generate, Mapping):
        raise ValueError(f"generate is a number of new tokens or a mapping of options, got {generate!r}")
    for name in generate:
        if name not in _GENERATE:
            near = difflib.get_close_matches(str(name), _GENERATE, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"generate has no option {name!r}, there is {', '.join(_GENERATE)}{hint}")
    options = {"max_new_tokens": NEW_TOKENS, **generate}
    n = options["max_new_tokens"]
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        raise ValueError(f"generate: max_new_tokens must be a whole number of 1 or more, got {n!r}")
    return options


def _refuse_unfit(
    model: HookedTransformer, engine: Any, signals: bool, head_stats: bool, generate: Mapping[str, Any] | None
) -> None:
    as_engine(engine)
    if signals and not model.cfg.causal:
        raise ValueError(f"{model.cfg.name} is an encoder: it predicts no next token, so signals=True means nothing")
    if head_stats and generate is not None:
        raise ValueError(
            "head_stats cannot be recorded while generating: record first, and then the texts of its examples again"
        )


def _card(job: Job, plan: Plan, run: Run, said: Mapping[str, Any]) -> dict[str, Any]:
    """What store.json says."""
    model = job.model
    return {
        "kind": "activation store",
        "model": {
            "name": model.cfg.name,
            "note": model.note,
            "fingerprint": model.fingerprint,
            "dtype": str(model.dtype).removeprefix("torch."),
            "edited_at": edited_at(model),
        },
        "tokenizer": {"name": job.tokenizer.name, "hash": job.tokenizer.hash},
        "sites": [{"name": site, "shape": list(shape)} for site, shape in job.shapes.items()],
        "dtype": job.dtype,
        "tokens": plan.rules.card,
        **said,
        "long": plan.long,
        "signals": job.signals,
        "head_stats": job.head_stats,
        "generate": None if job.generate is None else dict(job.generate),
        "texts": {
            "count": plan.n_texts,
            "documents": plan.n_inputs,
            "over_max_length": plan.n_long,
            "duplicates": plan.duplicates,
            "contradictions": plan.contradictions,
            "tokens": plan.n_tokens,
            "rows": plan.n_rows,
            **plan.hashes(),
        },
        "shards": math.ceil(plan.n_texts / run.texts_per_shard),
        "run": asdict(run),
        "provenance": artifact.provenance(),
    }
