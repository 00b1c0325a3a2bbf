"""The forward passes of one shard: texts in, the rows of every site out.

1. Texts are sorted by length and run in batches, padded on the right; rows go to the places of their own text, so the
   order on the disk is the order of the texts.
2. The pass stops after the deepest site that was asked for. Signals need the whole stack; the unembedding then runs
   over the rows that are needed only.
3. A NaN or infinite value ends the recording with its place; nothing of the shard is written.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp import sites as site_names
from interp.model import HookedTransformer
from interp.recording.plan import Plan
from interp.store import DTYPES, ShardData
from interp.tokens import Tokenizer, Tokens

_LOGIT_ROWS = 512


@dataclass(frozen=True)
class Run:
    """How the passes are made. It decides the last bits of the numbers, so it stands in store.json for good."""

    texts_per_shard: int
    """Texts in a shard."""
    batch_size: int
    """Most texts in a batch."""
    batch_tokens: int
    """Most tokens in a batch, pads included, if it has more than one text."""
    threads: int
    """Threads of torch."""


@dataclass(frozen=True, eq=False)
class Job:
    """What is recorded: the texts of a plan, at some sites of a model."""

    model: HookedTransformer
    """The model."""
    tokenizer: Tokenizer
    """Its tokenizer."""
    plan: Plan
    """Texts and kept tokens."""
    shapes: Mapping[str, tuple[int, ...]]
    """Full site name -> shape of a row."""
    dtype: str
    """dtype on the disk."""
    stop: int | None
    """Blocks to run, None for the whole model."""
    signals: bool
    """Whether logprob, entropy and top1 are recorded."""

    @property
    def row_bytes(self) -> int:
        """Bytes of one token's activations on the disk."""
        return sum(map(math.prod, self.shapes.values())) * DTYPES[self.dtype].itemsize


def stop_layer(sites: Sequence[str], n_layers: int, signals: bool) -> int | None:
    """How many blocks must run for these sites; None if the final norm is among them."""
    if any(site.startswith("ln_final") for site in sites):
        return None
    layers = [site_names.layer_of(site) for site in sites]
    return n_layers if signals else 1 + max(-1 if layer is None else layer for layer in layers)


def site_shapes(model: HookedTransformer, sites: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """The shape of a row of each site. ValueError for sites that have no row per token."""
    sizes = model.sites().set_index("site")["size"]
    for site in sites:
        shape = site_names.kind_of(site).shape
        if not shape.startswith("batch pos"):
            raise ValueError(
                f"{site} is [{shape}]: it has no row for each token, so it cannot be recorded into a store; "
                "run_with_cache gives it for single texts, head_scores its statistics"
            )
    return {site: tuple(map(int, str(sizes[site]).split()[2:])) for site in sites}


def shard_texts(plan: Plan, run: Run, index: int) -> range:
    """Numbers of the texts of a shard."""
    first = index * run.texts_per_shard
    return range(first, min(first + run.texts_per_shard, plan.n_texts))


def record_shard(job: Job, run: Run, index: int, report: Callable[[int, int], Any]) -> ShardData:
    """Run the texts of shard `index`; what it holds.

    Args:
        report: called after each batch with the texts and the tokens that it had.
    """
    plan, texts = job.plan, shard_texts(job.plan, run, index)
    first, last = texts.start, texts.stop
    starts = np.cumsum(np.concatenate([[0], plan.kept[first:last]]))
    n_rows = int(starts[-1])
    acts = {site: torch.empty(n_rows, math.prod(s), dtype=DTYPES[job.dtype]) for site, s in job.shapes.items()}
    signals = {name: torch.empty(n_rows, dtype=dtype) for name, dtype in _SIGNALS.items() if job.signals}
    with torch.inference_mode():
        for batch in _batches(plan, texts, run):
            _run_batch(job, batch, _Place.of(batch, plan, starts[np.array(batch) - first]), acts, signals)
            report(len(batch), int(plan.lengths[batch].sum()))
    return ShardData(index, plan.examples(first, last), _token_table(job, first, last, signals), acts)


_SIGNALS = {"logprob": torch.float32, "entropy": torch.float32, "top1": torch.int32}


@dataclass(frozen=True, eq=False)
class _Place:
    """Where the kept tokens of a batch come from and go to: entry i is one token."""

    text: Int[Tensor, " n"]
    """Row of the batch."""
    position: Int[Tensor, " n"]
    """Position in it."""
    row: Int[Tensor, " n"]
    """Row of the shard."""

    @classmethod
    def of(cls, batch: list[int], plan: Plan, starts: Int[np.ndarray, " text"]) -> "_Place":
        kept = plan.kept[batch]
        within = np.concatenate([np.arange(n) for n in kept])
        text = np.repeat(np.arange(len(batch)), kept)
        position = np.repeat(plan.keep_from[batch], kept) + within
        row = np.repeat(starts, kept) + within
        return cls(torch.from_numpy(text), torch.from_numpy(position), torch.from_numpy(row))


def _batches(plan: Plan, texts: range, run: Run) -> Iterator[list[int]]:
    """Texts of like length together, shortest first; ties keep their order."""
    batch: list[int] = []
    for text in sorted(texts, key=plan.lengths.__getitem__):
        if batch and (len(batch) == run.batch_size or (len(batch) + 1) * plan.lengths[text] > run.batch_tokens):
            yield batch
            batch = []
        batch.append(text)
    yield batch


def _run_batch(
    job: Job, batch: list[int], place: _Place, acts: Mapping[str, Tensor], signals: Mapping[str, Tensor]
) -> None:
    """One forward pass; its kept rows go into `acts` and `signals`."""
    model, stored_dtype = job.model, DTYPES[job.dtype]
    tokens = _pad([job.plan.tokens_of(text) for text in batch], job.tokenizer.pad_id)
    stream = f"blocks.{model.cfg.n_layers - 1}.hook_resid_post"
    wanted = dict.fromkeys([*job.shapes, *([stream] if job.signals else [])])
    _, cache = model.run_with_cache(tokens, sites=list(wanted), stop_at_layer=job.stop)
    source = (place.text * tokens.ids.shape[1] + place.position).to(model.device)
    for site in job.shapes:
        value = cache[site].flatten(0, 1).flatten(1).index_select(0, source)
        stored = value.to(stored_dtype)
        if not bool(torch.isfinite(stored).all()):
            raise ValueError(_not_finite(site, value, stored, batch, place, job.dtype))
        acts[site][place.row] = stored.cpu()
    if job.signals:
        for name, values in _signals(model, cache[stream], tokens, place).items():
            signals[name][place.row] = values.cpu()


def _pad(rows: list[Int[np.ndarray, " _"]], pad_id: int) -> Tokens:
    width = max(map(len, rows))
    ids = torch.full((len(rows), width), pad_id)
    mask = torch.zeros(len(rows), width, dtype=torch.bool)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = torch.from_numpy(row)
        mask[index, : len(row)] = True
    return Tokens(ids, mask)


def _signals(
    model: HookedTransformer, stream: Float[Tensor, "batch pos d_model"], tokens: Tokens, place: _Place
) -> dict[str, Tensor]:
    """logprob of each kept token given those before it (NaN at position 0), and entropy and top1 of what comes next."""
    n_pos = stream.shape[1]
    here = place.text * n_pos + place.position
    before = here - (place.position > 0).long()
    needed, where = torch.unique(torch.cat([here, before]), return_inverse=True)
    ids = tokens.ids.to(stream.device).flatten()
    following = ids[torch.clamp(needed + 1, max=len(ids) - 1)]
    entropy, top1, logprob = [], [], []
    for part, target in zip(needed.split(_LOGIT_ROWS), following.split(_LOGIT_ROWS)):
        logp = model.unembed_logits(stream.flatten(0, 1)[part]).float().log_softmax(dim=-1)
        entropy.append(-(logp.exp() * logp).sum(dim=-1))
        top1.append(logp.argmax(dim=-1).int())
        logprob.append(logp.gather(1, target[:, None])[:, 0])
    at, previous = where.split(len(here))
    found = torch.cat(logprob)[previous]
    found = torch.where(place.position.to(found.device) > 0, found, torch.nan)
    entropies = torch.cat(entropy)[at]
    if not bool(torch.isfinite(entropies).all()):
        raise ValueError(
            "the model's next-token distribution is NaN or infinite: its weights are damaged, or its dtype too narrow"
        )
    return {"logprob": found, "entropy": entropies, "top1": torch.cat(top1)[at]}


def _not_finite(site: str, value: Tensor, stored: Tensor, batch: list[int], place: _Place, dtype: str) -> str:
    first = int((~torch.isfinite(stored)).any(dim=1).nonzero()[0, 0])
    where = f"{site}, text {batch[int(place.text[first])]}, position {int(place.position[first])}"
    if bool(torch.isfinite(value[first]).all()):
        largest = float(value[first].abs().max())
        return f"{where}: a value of {largest:.3g} does not fit {dtype}: record with dtype='bfloat16' or 'float32'"
    return (
        f"{where}: the activation is NaN or infinite; nothing of this shard was written. The weights are damaged, or "
        "the computing dtype is too narrow: load the model in float32"
    )


def _token_table(job: Job, first: int, last: int, signals: Mapping[str, Tensor]) -> pa.Table:
    plan, tokenizer = job.plan, job.tokenizer
    kept = plan.kept[first:last]
    within = np.concatenate([np.arange(n) for n in kept])
    position = np.repeat(plan.keep_from[first:last], kept) + within
    ids = plan.ids[np.repeat(plan.offsets[first:last], kept) + position]
    columns = {
        "text": pa.array(np.repeat(np.arange(first, last), kept)),
        "position": pa.array(position.astype(np.int32)),
        "token_id": pa.array(ids),
        "is_bos": pa.array(ids == (-1 if tokenizer.bos_id is None else tokenizer.bos_id)),
        "is_special": pa.array(np.isin(ids, np.array(sorted(tokenizer.special_ids), dtype=np.int32))),
        "is_first": pa.array(position == 0),
    }
    columns |= {name: pa.array(values.numpy(), from_pandas=True) for name, values in signals.items()}
    return pa.table(columns)
