"""What the options of a question are worth to a model in every condition: one pass for each question.

1. All conditions and options of a question begin alike, so their tokens make a tree, and one row of a pass holds it: a
   token sees its own text alone.
2. An option's score is the sum of its tokens' log-probabilities, as in `interp.uncertainty.score_options`, which gives the
   same numbers; only rows that are read are unembedded.
3. Through the logit lens the last token of each prompt says, layer by layer, how far the first token of the stated option
   is ahead of that of the right one: final norm, then two columns of the unembedding.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.dataset import Question
from interp.model import HookedTransformer
from interp.probe.completions import encoded
from interp.tokens import Tokens
from interp.uncertainty.forward import final_stream, logit_chunks
from interp.uncertainty.questions import LETTERS, answer_report, score_options

PADDED = 1.15
"""The longest row of a batch over its shortest, at most."""


@dataclass
class _Tree:
    """The texts of one question as a tree of tokens."""

    item: int
    ids: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    reads: list[tuple[int, int, list[int], list[int]]] = field(default_factory=list)
    """(condition, option, the places that predict its tokens, its tokens)."""
    ends: dict[int, int] = field(default_factory=dict)
    """Condition -> the place that predicts the first token of its options."""
    firsts: tuple[int, int] | None = None
    """First tokens of the right and of the stated option, if they differ and are the same in all conditions."""
    known: dict[tuple[int, int], int] = field(default_factory=dict)

    def add(self, condition: int, option: int, sequence: Sequence[int], start: int, whole: bool) -> None:
        """One text; its last token is read, and fed only where the text is to run as a `whole`."""
        path, node = [], -1
        for token in sequence if whole else sequence[:-1]:
            key = (node, token)
            if key not in self.known:
                self.known[key] = len(self.ids)
                self.ids.append(token)
                self.parents.append(node)
            node = self.known[key]
            path.append(node)
        self.reads.append((condition, option, path[start - 1 : len(sequence) - 1], list(sequence[start:])))
        self.ends[condition] = path[start - 1]


def scored(
    model: HookedTransformer,
    items: Sequence[Mapping[str, Any]],
    *,
    conditions: Sequence[int] | None = None,
    batch_size: int = 32,
    interventions: Sequence[Any] = (),
    lens: Sequence[int] = (),
) -> list[dict[str, Any]]:
    """Scores of each item.

    Args:
        model: a decoder.
        items: what `item_of` gives.
        conditions: which of its prompts; None for all.
        batch_size: questions in a pass.
        interventions: applied to all passes.
        lens: conditions that are read through the logit lens; none for none.

    Returns:
        For each item: logprobs and n_tokens [condition option]; ahead [lens layer], logit of the stated option's first
        token less that of the right one's, nats; None where both begin alike.

    Raises:
        ValueError: an option without tokens, a text longer than the context, NaN in the model.
    """
    trees = [tree for index, item in enumerate(items) for tree in _trees(model, index, item, conditions)]
    n_conditions = len(items[0]["prompts"]) if conditions is None else len(conditions)
    found = [_empty(item, n_conditions, len(lens), model.cfg.n_layers) for item in items]
    with model.intervene(*interventions) if interventions else nullcontext():
        for batch in _batches(trees, batch_size):
            tokens = _tokens(model, batch)
            streams: dict[int, Tensor] = {}
            with _reading(model, batch, lens, streams) if lens else nullcontext():
                stream = final_stream(model, tokens)
            _read_options(model, batch, stream, found)
            if lens:
                _read_lens(model, batch, lens, streams, found)
    return found


def _empty(item: Mapping[str, Any], n_conditions: int, n_lines: int, n_layers: int) -> dict[str, Any]:
    shape = (n_conditions, len(item["options"]))
    return {"logprobs": np.zeros(shape), "n_tokens": np.zeros(shape, int), "ahead": np.zeros((n_lines, n_layers))}


def _trees(
    model: HookedTransformer, index: int, item: Mapping[str, Any], conditions: Sequence[int] | None
) -> Iterator[_Tree]:
    assert model.tokenizer is not None
    chosen = range(len(item["prompts"])) if conditions is None else conditions
    # Where rotations depend on the length of a text, joined texts cannot be run: each goes alone, and whole.
    apart = model.rope is not None and model.rope.by_length
    tree, firsts = _Tree(index), set()
    for place, condition in enumerate(chosen):
        try:
            sequences, start = encoded(model.tokenizer, item["prompts"][condition], item["options"])
        except ValueError as error:
            raise ValueError(f"question {item['plain']!r}: {error}") from None
        firsts.add((sequences[item["answer"]][start], sequences[item["stated"]][start]))
        for option, sequence in enumerate(sequences):
            if apart:
                tree = _Tree(index)
            tree.add(place, option, sequence, start, apart)
            if apart:
                yield tree
    if not apart:
        right, stated = next(iter(firsts))
        tree.firsts = (right, stated) if len(firsts) == 1 and right != stated else None
        yield tree


def _batches(trees: Sequence[_Tree], batch_size: int) -> Iterator[list[_Tree]]:
    """Trees of like size together: pads cost as much as tokens."""
    batch: list[_Tree] = []
    for tree in sorted(trees, key=lambda tree: len(tree.ids)):
        if batch and (len(batch) == batch_size or len(tree.ids) > PADDED * len(batch[0].ids)):
            yield batch
            batch = []
        batch.append(tree)
    yield batch


def _tokens(model: HookedTransformer, batch: Sequence[_Tree]) -> Tokens:
    width = max(len(tree.ids) for tree in batch)
    ids = torch.zeros((len(batch), width), dtype=torch.int64)
    mask = torch.zeros((len(batch), width), dtype=torch.bool)
    parents = torch.full((len(batch), width), -1, dtype=torch.int64)
    for row, tree in enumerate(batch):
        n = len(tree.ids)
        ids[row, :n], mask[row, :n] = torch.tensor(tree.ids), True
        parents[row, :n] = torch.tensor(tree.parents)
    straight = all(tree.parents == list(range(-1, len(tree.ids) - 1)) for tree in batch)
    return model.tokenize(Tokens(ids, mask, parents=None if straight else parents))


def _read_options(
    model: HookedTransformer, batch: Sequence[_Tree], stream: Float[Tensor, "batch pos d_model"], found: list[Any]
) -> None:
    """Fill in the sum of each option's log-probabilities."""
    nodes: dict[tuple[int, int], int] = {}
    wanted: list[tuple[int, int]] = []
    owners: list[tuple[int, int, int]] = []
    for row, tree in enumerate(batch):
        for condition, option, places, targets in tree.reads:
            found[tree.item]["n_tokens"][condition, option] = len(targets)
            for place, target in zip(places, targets, strict=True):
                wanted.append((nodes.setdefault((row, place), len(nodes)), target))
                owners.append((tree.item, condition, option))
    at = torch.tensor(list(nodes), device=stream.device)
    unique = stream[at[:, 0], at[:, 1]]
    pairs = torch.tensor(wanted)
    values = torch.empty(len(pairs), dtype=torch.float64)
    for rows, logits in logit_chunks(model, unique):
        here = ((pairs[:, 0] >= rows.start) & (pairs[:, 0] < rows.stop)).nonzero()[:, 0]
        where = pairs[here].to(logits.device)
        values[here] = logits.log_softmax(-1)[where[:, 0] - rows.start, where[:, 1]].to("cpu", torch.float64)
    if bool(values.isnan().any()):
        raise ValueError("the model gives NaN logits for these questions: look for NaN in its weights, or steer less")
    for (item, condition, option), value in zip(owners, values.tolist(), strict=True):
        found[item]["logprobs"][condition, option] += value


# ------------------------------------------------------------------------------------------------------------- lens


def _reading(model: HookedTransformer, batch: Sequence[_Tree], lens: Sequence[int], streams: dict[int, Tensor]) -> Any:
    """Hooks that keep the stream after each block at the ends of the prompts, and nothing else: [row line d_model]."""
    ends = torch.tensor([[tree.ends.get(line, 0) for line in lens] for tree in batch], device=model.device)
    rows = torch.arange(len(batch), device=model.device)[:, None]

    def keep(layer: int) -> Any:
        return lambda value, _ctx: streams.__setitem__(layer, value[rows, ends].clone())

    return model.hooks({f"blocks.{layer}.hook_resid_post": keep(layer) for layer in range(model.cfg.n_layers)})


def _read_lens(
    model: HookedTransformer, batch: Sequence[_Tree], lens: Sequence[int], streams: dict[int, Tensor], found: list[Any]
) -> None:
    pairs = torch.tensor([tree.firsts or (0, 0) for tree in batch])
    for layer, stream in streams.items():
        logits = token_logits(model, stream, pairs[:, None].expand(-1, len(lens), -1)).double().cpu()
        ahead = (logits[..., 1] - logits[..., 0]).numpy()
        for row, tree in enumerate(batch):
            if tree.firsts is None:
                found[tree.item]["ahead"] = None
            else:
                found[tree.item]["ahead"][:, layer] = ahead[row]


@torch.inference_mode()
def token_logits(
    model: HookedTransformer, rows: Float[Tensor, "*rows d_model"], ids: Int[Tensor, "*rows k"]
) -> Float[Tensor, "*rows k"]:
    """Logits of a few tokens of each row: those columns of `model.unembed_logits(rows)`, in at least fp32."""
    normed = rows if model.ln_final is None else model.ln_final.silent(rows)
    columns = model.W_U.T[ids.to(rows.device)]
    logits = (columns @ normed[..., None])[..., 0]
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if model.unembed_bias is not None:
        logits = logits + model.unembed_bias[ids.to(rows.device)]
    cap = model.cfg.final_softcap
    return logits if cap is None else cap * torch.tanh(logits / cap)


# ------------------------------------------------------------------------------------------------------------ pieces


def score_piece(
    model: HookedTransformer, settings: Mapping[str, Any], inputs: Any
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The work on some questions: what `scored` gives as arrays, and whether the letter format gets them right."""
    items: list[dict[str, Any]] = inputs["items"]
    steer = settings.get("steers", {}).get(inputs.get("steer"))
    lens = list(settings.get("lens", ()))
    rows = scored(
        model, items, conditions=settings.get("conditions"), batch_size=settings["batch_size"],
        interventions=[] if steer is None else [steer], lens=lens,
    )  # fmt: skip
    most = settings["most_options"]
    n_conditions = rows[0]["logprobs"].shape[0]
    shape = (len(items), n_conditions, most)
    found = {"logprobs": np.zeros(shape), "n_tokens": np.zeros(shape, np.int64)}
    for index, row in enumerate(rows):
        n = row["logprobs"].shape[1]
        for name in found:
            found[name][index, :, :n] = row[name]
    if lens:
        none = np.zeros((len(lens), model.cfg.n_layers))
        found["told_apart"] = np.array([row["ahead"] is not None for row in rows])
        found["ahead"] = np.stack([none if row["ahead"] is None else row["ahead"] for row in rows])
    if settings.get("letters"):
        found["letter_right"] = _letters(model, items, settings["batch_size"])
    return found, {}


def _letters(model: HookedTransformer, items: Sequence[Mapping[str, Any]], batch_size: int) -> np.ndarray:
    questions = [Question(item["plain"], tuple(item["options"]), item["answer"]) for item in items]
    frame = score_options(model, questions, format="letter", batch_size=batch_size)
    return answer_report(frame, n_boot=10, n_null=10).choices["right"].to_numpy(bool)


def lettered(most_options: int) -> bool:
    """Whether there are letters enough."""
    return most_options <= len(LETTERS)
