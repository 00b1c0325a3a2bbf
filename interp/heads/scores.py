"""What each attention head attends to, on repeated random tokens and on natural text side by side (Olsson et al. 2022).

1. Make sequences of N random tokens, repeated (`interp/heads/protocol.py`), and cut texts to tokens.
2. Run the model on a few sequences at a time. At each layer the pattern is reduced to the scores at once, so no layer's
   patterns outlive it (`interp/heads/patterns.py`: the scores and their nulls).
3. Intervals by bootstrap over sequences, and over texts; a text counts by its queries.

The diagonal of the whole pattern holds one or two queries that are not in the second copy; they are left out here.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp import artifact, plot
from interp.bootstrap import mean_interval, ratio_interval
from interp.heads.losses import row_losses
from interp.heads.patterns import METRICS, OFFSETS, repeated_scores, text_places, text_scores, uniform_nulls
from interp.heads.protocol import given_tokens, repeated_tokens
from interp.hooks import HookContext, Request, attached
from interp.model import HookedTransformer
from interp.model.inputs import refuse_encoder, refuse_not_finite
from interp.tokens import Tokens

PLACES = 2**22
"""Most numbers of one layer's patterns at once: 16 MB in fp32."""
LONGEST = 256
"""Tokens of a text that are read where the caller does not say."""


@dataclass(frozen=True, eq=False)
class HeadScores:
    """Scores of every head: [layer, head, sequence] tensors and the protocol that made them."""

    scores: dict[str, Float[Tensor, "layer head row"]]
    """Metric -> mean over the queries of each sequence. Entropy in nats, distance in tokens, all else in 0..1."""
    null: Float[Tensor, "layer head"]
    """Largest mean attention to any other offset: the null of induction, previous, duplicate and current token."""
    offset_mean: Float[Tensor, "layer head"]
    """Mean attention to all other offsets. Its largest value over heads is the least that an induction score must pass: the
    null of a head that hardly looks anywhere is next to nothing."""
    losses: dict[str, float]
    """Mean next-token loss in nats over the first copy, and over the second without its first token (nothing
    predicts that one)."""
    card: dict[str, Any]
    """Period, sequences, BOS, seed, model."""
    uniform: dict[str, Float[Tensor, "layer"]] = field(default_factory=dict)
    """The null of the other metrics: what uniform attention has."""
    texts: dict[str, Float[Tensor, "layer head text"]] = field(default_factory=dict)
    """Metric -> sum over the queries of each text, where texts were given."""
    text_nulls: dict[str, Float[Tensor, "layer head text"]] = field(default_factory=dict)
    """The same of the nulls."""
    text_queries: dict[str, Float[Tensor, "layer text"]] = field(default_factory=dict)
    """Metric -> queries that count in each text; layers with a window have fewer."""

    def to_frame(self) -> pd.DataFrame:
        """A line for each head: layer, head, each metric with `_low`, `_high` (95 % over sequences) and `_null`, n.

        With texts also `natural_<metric>` with the same three, and `natural_<metric>_n`, the queries that counted.
        """
        n_layers, n_heads, n_rows = self.scores["induction"].shape
        columns: dict[str, Any] = {
            "layer": np.repeat(np.arange(n_layers), n_heads),
            "head": np.tile(np.arange(n_heads), n_layers),
        }
        seed = int(self.card["seed"])
        for metric, values in self.scores.items():
            columns[metric] = values.mean(-1).flatten().numpy()
            columns[f"{metric}_low"], columns[f"{metric}_high"] = mean_interval(values.flatten(0, 1).numpy(), seed)
        for metric in self.scores:
            if metric in OFFSETS:
                columns[f"{metric}_null"] = self.null.flatten().numpy()
            elif metric in self.uniform:
                columns[f"{metric}_null"] = self.uniform[metric].repeat_interleave(n_heads).numpy()
        columns["induction_floor"] = float(self.offset_mean.max())
        columns["n_sequences"] = n_rows
        columns["n"] = n_rows * int(self.card["period"])
        for metric, sums in self.texts.items():
            n = self.text_queries[metric].repeat_interleave(n_heads, 0).numpy()
            above, null = (tensor.flatten(0, 1).numpy() for tensor in (sums, self.text_nulls[metric]))
            name, total = f"natural_{metric}", n.sum(1)
            some = total > 0
            held = np.full((4, len(total)), np.nan)  # the score, its interval and its null
            held[0, some], held[3, some] = (values[some].sum(1) / total[some] for values in (above, null))
            held[1:3, some] = ratio_interval(above[some], n[some], seed)
            columns |= dict(zip((name, f"{name}_low", f"{name}_high", f"{name}_null"), held, strict=True))
            columns[f"{name}_n"] = total.astype(int)
        return pd.DataFrame(columns)

    def top(self, metric: str = "induction", n: int = 10) -> pd.DataFrame:
        """The n heads with the highest score."""
        frame = self.to_frame()
        known = [*self.scores, *(f"natural_{metric}" for metric in self.texts)]
        if metric not in known:
            raise ValueError(f"unknown metric {metric!r}; known are {', '.join(known)}")
        count = f"{metric}_n" if metric.startswith("natural_") else "n"
        columns = ["layer", "head", metric, f"{metric}_low", f"{metric}_high", count]
        return frame.nlargest(n, metric).loc[:, columns].reset_index(drop=True)

    def plot(self, metric: str = "induction") -> alt.LayerChart | alt.Chart:
        """Layers down, heads across."""
        return plot.head_grid(self.to_frame(), metric)

    def save(self, path: str | Path) -> Path:
        """One safetensors file with a card; `load_head_scores` reads it."""
        groups = {"score": self.scores, "uniform": self.uniform, "text": self.texts, "text_null": self.text_nulls}
        groups["text_n"] = self.text_queries
        tensors = {
            f"{group}.{name}": value.contiguous() for group, held in groups.items() for name, value in held.items()
        }
        return artifact.save_artifact(
            Path(path),
            "head scores",
            tensors | {"null": self.null, "offset_mean": self.offset_mean},
            self.card | {"losses": self.losses},
        )


def load_head_scores(path: str | Path) -> HeadScores:
    """Read what `HeadScores.save` wrote; files of version 0.1.0 have no `offset_mean`, which is then 0."""
    tensors, card = artifact.load_artifact(Path(path), "head scores")

    def held(group: str) -> dict[str, Tensor]:
        return {name: tensors[f"{group}.{name}"] for name in METRICS if f"{group}.{name}" in tensors}

    even = tensors.get("offset_mean", torch.zeros_like(tensors["null"]))
    return HeadScores(
        held("score"), tensors["null"], even, card.pop("losses"), card, held("uniform"), held("text"), held("text_null"),
        held("text_n"),
    )  # fmt: skip


@torch.no_grad()
def head_scores(
    model: HookedTransformer,
    tokens: object = None,
    period: int | None = None,
    bos: int | bool | None = None,
    seed: int = 0,
    *,
    texts: str | Sequence[str] | Any = None,
    max_length: int | None = None,
) -> HeadScores:
    """Score every head on repeated tokens, and on natural text beside them.

    Args:
        model: any loaded model that predicts the next token.
        tokens: ids [row pos]: one copy (it is repeated here), or the repeated sequence with or without its BOS. None
            draws 8 rows of 64, or as many as the context holds twice.
        period: length of one copy; found from the tokens if None.
        bos: an id to put in front, True for the tokenizer's, False for none. None: the tokenizer's where this function
            makes the repetition, nothing where the sequence is given whole.
        seed: of the random tokens and of the bootstrap.
        texts: natural texts, as a list.
        max_length: tokens of a text that are read, 256 or what the context holds; the card says how many texts are longer.

    Raises:
        ValueError: tokens that do not repeat, or that do not fit the context; an encoder; texts of one token.
    """
    refuse_encoder(model.cfg, "a score of what heads take from the text before")
    if period is not None and period < 2:
        raise ValueError(f"one copy needs at least two tokens, got period={period}")
    if tokens is None:
        room = (model.cfg.n_ctx - 1) // 2
        if room < 2 or (period is not None and period > room):
            raise ValueError(
                f"two copies of {period or 2} tokens and a BOS do not fit the context of {model.cfg.n_ctx}; give a smaller one"
            )
        ids, n_bos = repeated_tokens(model, period=period or min(64, room), bos=bos, seed=seed)
    else:
        ids, n_bos = given_tokens(model, torch.as_tensor(tokens), period, bos)
    n = (ids.shape[1] - n_bos) // 2
    max_length = min(LONGEST, model.cfg.n_ctx) if max_length is None else max_length
    cut = None if texts is None else _cut(model, [texts] if isinstance(texts, str) else list(texts), max_length)
    scores, null, offset_mean, losses = _on_repeated(model, ids, n, n_bos)
    natural = ({}, {}, {}) if cut is None else _on_texts(model, cut, max_length)
    window = [uniform_nulls(n, n_bos, seen) for seen in _windows(model)]
    uniform = {metric: torch.tensor([one[metric] for one in window]) for metric in window[0]}
    counted: dict[str, Any] = {}
    if cut is not None:
        counted = {"n_texts": len(cut), "max_length": max_length, "n_cut": sum(len(row) > max_length for row in cut)}
    card = artifact.provenance(
        analysis="head scores", model=model.cfg.name, fingerprint=model.fingerprint, period=n, n_sequences=ids.shape[0],
        bos=int(ids[0, 0]) if n_bos else None, seed=seed, **counted,
    )  # fmt: skip
    return HeadScores(scores, null, offset_mean, losses, card, uniform, *natural)


def _on_repeated(
    model: HookedTransformer, ids: Int[Tensor, "row pos"], n: int, n_bos: int
) -> tuple[
    dict[str, Float[Tensor, "layer head row"]],
    Float[Tensor, "layer head"],
    Float[Tensor, "layer head"],
    dict[str, float],
]:
    """Scores, null, mean over other offsets and losses, a few rows at a time."""
    cfg, (n_rows, width) = model.cfg, ids.shape
    scores = {metric: torch.zeros(cfg.n_layers, cfg.n_heads, n_rows) for metric in METRICS}
    others: list[list[Tensor]] = [[] for _ in range(cfg.n_layers)]
    losses = torch.zeros(n_rows, width - 1, dtype=torch.float64)
    at_once = max(1, PLACES // (cfg.n_heads * width * width))
    for rows in torch.arange(n_rows).split(at_once):

        def read(pattern: Tensor, ctx: HookContext, rows: Tensor = rows) -> None:
            assert ctx.layer is not None
            found, by_offset = repeated_scores(pattern.float(), n, n_bos)
            others[ctx.layer].append(by_offset.cpu())
            for metric, value in found.items():
                scores[metric][ctx.layer][:, rows] = value.cpu()

        some = ids[rows].to(model.device)
        stream = _run(model, some, read)
        losses[rows] = row_losses(model, stream[:, :-1].flatten(0, 1), some[:, 1:].flatten()).view(len(rows), -1).cpu()
    by_offset = [torch.cat(layer, 1).mean(1) for layer in others]
    null = torch.stack([layer.amax(1) if layer.shape[1] else torch.zeros(cfg.n_heads) for layer in by_offset])
    copies = {
        "first_copy": float(losses[:, : n_bos + n - 1].mean()),
        "second_copy": float(losses[:, n_bos + n :].mean()),
    }
    even = torch.stack([layer.mean(1) if layer.shape[1] else torch.zeros(cfg.n_heads) for layer in by_offset])
    return scores, null, even, copies


def _windows(model: HookedTransformer) -> list[int | None]:
    """Keys that a query of each layer sees, None for all."""
    cfg = model.cfg
    return [cfg.window if cfg.has_window(layer) else None for layer in range(cfg.n_layers)]


def _on_texts(
    model: HookedTransformer, rows: Sequence[Sequence[int]], max_length: int
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """Sums, sums of the nulls, and queries, by text."""
    shape = (model.cfg.n_layers, model.cfg.n_heads, len(rows))
    sums, nulls = ({metric: torch.zeros(shape) for metric in METRICS} for _ in range(2))
    queries = {metric: torch.zeros(model.cfg.n_layers, len(rows)) for metric in METRICS}
    windows = _windows(model)
    for index, tokens in _batches(model, rows, max_length):
        by_window = {window: text_places(tokens.ids, tokens.mask, window) for window in set(windows)}

        def read(pattern: Tensor, ctx: HookContext, index: list[int] = index, places: Any = by_window) -> None:
            assert ctx.layer is not None
            found, null = text_scores(pattern.float(), places[windows[ctx.layer]])
            for metric in METRICS:
                sums[metric][ctx.layer][:, index] = found[metric].cpu()
                nulls[metric][ctx.layer][:, index] = null[metric].cpu()

        _run(model, tokens, read)
        for metric in METRICS:
            for window, places in by_window.items():
                counted = places.queries.get(metric, places.seen.any(-1)).sum(-1).float().cpu()
                layers = [layer for layer, mine in enumerate(windows) if mine == window]
                queries[metric][torch.tensor(layers)[:, None], torch.tensor(index)] = counted
    return sums, nulls, queries


def _run(model: HookedTransformer, x: Any, read: Any) -> Float[Tensor, "row pos d_model"]:
    """One pass over all blocks in which every layer's pattern is read and not kept; the final stream."""
    entries = [(name, read, "read") for name in model.expand_sites("pattern:*")]
    tokens = model.tokenize(x)
    with attached(model.hook_dict, Request(entries), model.run):
        stream = model(tokens, stop_at_layer=model.cfg.n_layers)
    refuse_not_finite(stream, tokens)
    return stream


def _cut(model: HookedTransformer, texts: list[Any], max_length: int) -> list[list[int]]:
    """Token ids of each text, whole; what is read of them is cut by `_batches`."""
    if not texts or not all(isinstance(text, str) for text in texts):
        raise ValueError("texts= takes a text or a list of them")
    if not 2 <= max_length <= model.cfg.n_ctx:
        raise ValueError(f"max_length={max_length}: 2 to {model.cfg.n_ctx} tokens of a text can be read")
    if model.tokenizer is None:
        raise ValueError("this model has no tokenizer, so it cannot read texts=")
    rows = [model.tokenizer.encode(text)[: max_length + 1] for text in texts]
    short = [index for index, row in enumerate(rows) if len(row) < 2]
    if short:
        raise ValueError(f"text {short[0]} has {len(rows[short[0]])} tokens; a head has nothing to look back at there")
    return rows


def _batches(
    model: HookedTransformer, rows: Sequence[Sequence[int]], max_length: int
) -> Iterator[tuple[list[int], Tokens]]:
    """Texts of like length together, few enough that their patterns stay small, padded on the right."""
    lengths = [min(len(row), max_length) for row in rows]
    order = sorted(range(len(rows)), key=lambda index: lengths[index])
    while order:
        longest, size = lengths[order[0]], 1
        while size < len(order) and model.cfg.n_heads * (size + 1) * lengths[order[size]] ** 2 <= PLACES:
            longest, size = lengths[order[size]], size + 1
        index, order = order[:size], order[size:]
        ids = torch.zeros(size, longest, dtype=torch.long)
        mask = torch.zeros(size, longest, dtype=torch.bool)
        for place, text in enumerate(index):
            ids[place, : lengths[text]] = torch.tensor(rows[text][: lengths[text]])
            mask[place, : lengths[text]] = True
        yield index, Tokens(ids, mask).to(model.device)
