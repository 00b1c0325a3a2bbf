"""model_diff: two models on the same text, from the loss down to the heads.

1. The models must give probabilities to the same tokens: one vocabulary, and texts cut alike.
2. Each batch of texts runs through both. At every place with a next token: the loss of each, KL both ways, the top tokens.
   The places of the largest KL are kept with their context.
3. Where layers, heads and width agree, both streams advance block by block (`measure`): how far the streams and heads are
   apart in the whole runs, and how far each block's parts are apart on the *same* input, a's stream. The first grows from
   the first change on; the second is zero wherever nothing was changed.
4. Quotients are sums of |a - b| over sums of |a|, over typical rows: not the first of a text, no outliers. Distances of
   attention patterns count every real query, the first of a text too, which sees itself alone.
5. Head scores of both models on the same repeated random tokens.

Intervals are 95 %, by bootstrap over texts; differences are paired, for both models read the same ones.
"""

import heapq
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from interp import artifact
from interp.bootstrap import ratio_interval
from interp.diff.checks import refuse_other_tokens, refuse_unlike, why_not_layers
from interp.diff.measure import (
    HEAD_FIGURES,
    LAYER_FIGURES,
    Predictions,
    Sums,
    final_streams,
    predictions,
    run_layers,
)
from interp.diff.result import KIND, ModelDiff
from interp.heads import head_scores
from interp.lens.batches import token_batches, token_rows
from interp.model import HookedTransformer
from interp.tokens import Tokens

BATCH_TOKENS = 1024
BOUNDS = ("_low", "_high")
CONTEXT = 8
"""Tokens before a place that its line shows."""


def model_diff(
    model_a: HookedTransformer,
    model_b: HookedTransformer,
    texts: Any,
    *,
    heads: bool = True,
    top: int | Any = 50,
    max_length: int | Any = None,
    seed: int = 0,
    progress: Callable[[int, int], object] | None = None,
) -> ModelDiff:
    """Compare two models on the same texts: base and tuned, full and quantised.

    Args:
        model_a: the reference: differences are b - a, quotients over a.
        model_b: the other one. On another device it is compared on a's.
        texts: what `model.tokenize` takes, and rows of ids of any lengths.
        heads: compare head scores on repeated tokens as well.
        top: places of the largest KL that are kept.
        max_length: texts are cut after so many tokens; None for the smaller context of the two.
        seed: of the bootstrap and of the repeated tokens.
        progress: called with (texts done, texts in all).

    Raises:
        ValueError: encoders, vocabularies or tokenizers that differ (the first difference is named), or texts without a token
            that has a next one.
    """
    if not isinstance(top, int) or isinstance(top, bool) or top < 1:
        raise ValueError(f"top must be a whole number of at least 1, got {top!r}")
    refuse_unlike(model_a, model_b)
    limit = min(model_a.cfg.n_ctx, model_b.cfg.n_ctx) if max_length is None else max_length
    rows = token_rows(model_a, texts, limit)
    refuse_other_tokens(model_a, model_b, rows, token_rows(model_b, texts, limit))
    numbers = [number for number, row in enumerate(rows) if len(row) > 1]
    kept = [rows[number] for number in numbers]
    if not kept:
        raise ValueError("the texts have one token each: there is no next token to predict")
    note = why_not_layers(model_a, model_b)
    gathered = _Gathered(model_a, kept, numbers, top)
    done = 0
    for indices, tokens in token_batches(kept, BATCH_TOKENS):
        gathered.add(indices, tokens, model_a, model_b, layers=not note)
        done += len(indices)
        if progress is not None:
            progress(done, len(kept))
    card = artifact.provenance(
        analysis=KIND, model_a=model_a.cfg.name, fingerprint_a=model_a.fingerprint, model_b=model_b.cfg.name,
        fingerprint_b=model_b.fingerprint, data=artifact.hash_json(kept), seed=seed, n_too_short=len(rows) - len(kept),
        notes=f"Layers and heads are not compared: {note}." if note else "",
    )  # fmt: skip
    scored = heads and not note
    return ModelDiff(
        summary=gathered.summary(seed),
        texts=gathered.texts(),
        tokens=gathered.tokens(),
        layers=pd.DataFrame() if note else gathered.layers(seed),
        heads=pd.DataFrame() if note else gathered.heads(seed),
        scores=_scores(model_a, model_b, seed) if scored else pd.DataFrame(),
        card=card,
    )


class _Gathered:
    """Sums by text of all batches, and the places of the largest KL."""

    def __init__(self, model: HookedTransformer, rows: Sequence[list[int]], numbers: Sequence[int], top: int) -> None:
        self.model, self.rows, self.numbers, self.top = model, rows, numbers, top
        self.n = np.array([len(row) - 1 for row in rows])
        self.sums = torch.zeros(5, len(rows), dtype=torch.float64)
        self.by_layer: list[tuple[Sums, Sums]] = []
        self.places: list[tuple[float, int, int, tuple[Any, ...]]] = []

    def add(
        self, indices: list[int], tokens: Tokens, a: HookedTransformer, b: HookedTransformer, *, layers: bool
    ) -> None:
        """Run a batch through both models."""
        if layers:
            first, second, found = run_layers(a, b, tokens)
            self._add_layers(indices, found)
        else:
            first, second = final_streams(a, b, tokens)
        for part in predictions(a, b, first, second, tokens):
            text = torch.tensor(indices)[part.text]
            agree = (part.top[0] == part.top[1]).double()
            self.sums.index_add_(1, text, torch.stack([*part.loss.double(), *part.kl.double(), agree]))
            self._add_places(text, part)

    def _add_layers(self, indices: list[int], found: list[tuple[Sums, Sums]]) -> None:
        n = len(self.rows)
        if not self.by_layer:
            self.by_layer = [(_empty(layer, n), _empty(heads, n)) for layer, heads in found]
        for pair, new in zip(self.by_layer, found):
            for sums, values in zip(pair, new):
                for name, value in values.items():
                    sums[name][..., indices] = value

    def _add_places(self, text: Tensor, part: Predictions) -> None:
        largest = part.kl[0].topk(min(self.top, len(text))).indices.tolist()
        for i in largest:
            said = (float(part.kl[1, i]), *part.top[:, i].tolist(), *part.top_probs[:, i].tolist())
            heapq.heappush(self.places, (float(part.kl[0, i]), -int(text[i]), -int(part.column[i]), said))
            if len(self.places) > self.top:
                heapq.heappop(self.places)

    # ---------------------------------------------------------------------------------------------------------- tables

    def summary(self, seed: int) -> pd.DataFrame:
        """Means over places."""
        loss_a, loss_b, kl_ab, kl_ba, agreement = self.sums.numpy()
        figures = {
            "loss_a": loss_a,
            "loss_b": loss_b,
            "loss_difference": loss_b - loss_a,
            "kl_ab": kl_ab,
            "kl_ba": kl_ba,
        }
        figures["agreement"] = agreement
        value, low, high = _quotients(np.stack(list(figures.values())), np.tile(self.n, (6, 1)), seed)
        frame = pd.DataFrame({"metric": list(figures), "value": value, "low": low, "high": high})
        return frame.assign(n=int(self.n.sum()), n_texts=len(self.n))

    def texts(self) -> pd.DataFrame:
        """Means of each text."""
        means = (self.sums / torch.from_numpy(self.n)).numpy()
        names = ("loss_a", "loss_b", "kl_ab", "kl_ba", "agreement")
        return pd.DataFrame({"text": list(self.numbers), "n": self.n} | dict(zip(names, means)))

    def tokens(self) -> pd.DataFrame:
        """The kept places, the largest KL first."""
        lines = []
        for kl, text, column, (reverse, top_a, top_b, p_a, p_b) in sorted(self.places, reverse=True):
            row, at = self.rows[-text], -column
            lines.append(
                {
                    "text": self.numbers[-text],
                    "pos": at,
                    "token": self._label(row[at]),
                    "context": self._text(row[: at + 1]),
                    "next": self._label(row[at + 1]),
                    "kl": kl,
                    "kl_reverse": reverse,
                    "top_a": self._label(top_a),
                    "p_a": p_a,
                    "top_b": self._label(top_b),
                    "p_b": p_b,
                }
            )
        return pd.DataFrame(lines)

    def layers(self, seed: int) -> pd.DataFrame:
        """A line for the stream into the first block, and one for the end of each."""
        missing = np.zeros((2, len(self.n)))
        sums = [
            [layer[name].numpy() if name in layer else missing for name in LAYER_FIGURES] for layer, _ in self.by_layer
        ]
        stacked = np.stack([np.stack(line) for line in sums])
        frame = pd.DataFrame({"layer": np.arange(-1, len(sums) - 1)})
        for index, name in enumerate(LAYER_FIGURES):
            of_all = stacked[:, index]
            found = _quotients(of_all[:, 0], of_all[:, 1], seed)
            absent = np.array([name not in layer for layer, _ in self.by_layer])
            for end, values in zip(("", "_low", "_high"), found):
                frame[f"{name}{end}"] = np.where(absent, np.nan, values)
        return frame.assign(n=int(stacked[0, LAYER_FIGURES.index("cosine"), 1].sum()), n_texts=len(self.n))

    def heads(self, seed: int) -> pd.DataFrame:
        """A line for each head."""
        of_heads = [heads for _, heads in self.by_layer[1:]]
        n_heads = of_heads[0]["output"].shape[1]
        frame = pd.DataFrame(
            {"layer": np.repeat(np.arange(len(of_heads)), n_heads), "head": np.tile(np.arange(n_heads), len(of_heads))}
        )
        for name in HEAD_FIGURES:
            sums = torch.cat([heads[name] for heads in of_heads], 1).numpy()
            for end, values in zip(("", "_low", "_high"), _quotients(sums[0], sums[1], seed)):
                frame[f"{name}{end}"] = values
        return frame.assign(n_texts=len(self.n))

    def _label(self, token: int) -> str:
        tokenizer = self.model.tokenizer
        return tokenizer.views([token])[0].display if tokenizer is not None else str(token)

    def _text(self, ids: list[int]) -> str:
        shown, tokenizer = ids[-CONTEXT:], self.model.tokenizer
        text = " ".join(map(str, shown)) if tokenizer is None else tokenizer.decode(shown)
        return text if len(shown) == len(ids) else f"…{text}"


def _empty(sums: Sums, n_texts: int) -> Sums:
    """Zeros for all texts, in the shapes of a batch's sums."""
    return {name: value.new_zeros(*value.shape[:-1], n_texts) for name, value in sums.items()}


def _quotients(
    above: Float[np.ndarray, "what text"], below: Any, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sums over texts, divided, and 95 % over texts; NaN ends for one text, or where the value is NaN.

    0 over 0 is 0, for nothing differs from nothing; anything else over 0 is NaN.
    """

    def divided(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.divide(x, y, out=np.where(x == 0, 0.0, np.nan), where=y != 0)

    value = divided(above.sum(1), below.sum(1))
    same = below.sum(1) == 0  # no draw has anything to divide by
    ends = ratio_interval(above, np.where(same[:, None], 1.0, below), seed)
    low, high = (np.where(np.isnan(value), np.nan, end) for end in ends)
    return value, low, high


def _scores(a: HookedTransformer, b: HookedTransformer, seed: int) -> pd.DataFrame:
    """Head scores of both models on the same random tokens."""
    first, second = (head_scores(model, seed=seed).to_frame() for model in (a, b))
    keys = ["layer", "head"]
    skipped = (*keys, "n", "n_sequences")
    names = [c for c in first.select_dtypes("number") if c in second and c not in skipped and not _is_bound(str(c))]
    columns = {key: first[key] for key in keys}
    for name in names:
        for side, scores in (("a", first), ("b", second)):
            columns[f"{name}_{side}"] = scores[name].astype(float)
            for end in BOUNDS:
                if f"{name}{end}" in scores:
                    columns[f"{name}_{side}{end}"] = scores[f"{name}{end}"]
        columns[f"{name}_difference"] = columns[f"{name}_b"] - columns[f"{name}_a"]
    return pd.DataFrame(columns)


def _is_bound(column: str) -> bool:
    return column.endswith(BOUNDS)
