"""Where a head looks on ordinary text: how strongly, how far back, from which tokens to which, and passages that show it.

1. Each passage is run once; of every query but the first token the strongest key is taken, position 0 left out: many heads
   rest there, and it would hide everything else.
2. Over all queries: the weights of those maxima, their distances, and the mean weight by query token and by key token.
3. Passages are sorted by their largest weight and divided into intervals of equal width from 0 to the largest. The strongest
   passages are shown beside random ones of every lower interval, for the top alone makes any head look tidy.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch

from interp.model import HookedTransformer

LEAST = 3
"""Queries or keys of a token that a mean needs."""


@dataclass(frozen=True, eq=False)
class HeadExamples:
    """What one head does on some passages."""

    maxima: pd.DataFrame
    """A row per query but the first of each passage: text, query, key, weight (its largest but for position 0), distance
    (query - key), query_token, key_token, first_token (weight on position 0)."""
    tokens: pd.DataFrame
    """role ("query", "key"), token, mean (of the weights), n; the highest first in each role. At least three occurrences."""
    passages: pd.DataFrame
    """text, largest (weight), query, key (of it), interval (0: the strongest), share (of all passages in that interval),
    shown (among the examples)."""
    card: dict[str, Any]
    """Model, layer, head, texts, max_length, seed."""

    def examples(self, interval: int = 0) -> pd.DataFrame:
        """The passages that are shown of an interval, the strongest first."""
        mine = (self.passages["interval"] == interval) & self.passages["shown"]
        chosen = self.passages.loc[mine, :]
        return chosen.sort_values(by=["largest"], ascending=False, kind="stable").reset_index(drop=True)


@torch.inference_mode()
def head_examples(
    model: HookedTransformer,
    layer: int,
    head: int,
    texts: Sequence[str],
    *,
    max_length: int = 96,
    n_intervals: int = 5,
    top: int = 10,
    others: int = 3,
    seed: int = 0,
) -> HeadExamples:
    """Run a head over passages.

    Args:
        model: any loaded model.
        layer: of the head.
        head: its number.
        texts: passages; each is cut after `max_length` tokens, and left out with fewer than 3.
        max_length: tokens of a passage.
        n_intervals: intervals of the largest weight.
        top: passages that are shown of the strongest interval.
        others: random passages that are shown of each other one.
        seed: of those.

    Returns:
        The tables.

    Raises:
        ValueError: a model without tokenizer, a layer or head that it has not, or no passage that is long enough.
    """
    if model.tokenizer is None:
        raise ValueError("the model has no tokenizer, which is needed to read passages: load it with one")
    if not 0 <= layer < model.cfg.n_layers or not 0 <= head < model.cfg.n_heads:
        raise ValueError(
            f"the model has layers 0 to {model.cfg.n_layers - 1} and heads 0 to {model.cfg.n_heads - 1}, not {layer} and {head}"
        )
    rows, kept = [], []
    site = f"pattern:{layer}"
    for number, text in enumerate(texts):
        ids = model.tokenizer.encode(text)[: min(max_length, model.cfg.n_ctx)]
        if len(ids) < 3:
            continue
        _, cache = model.run_with_cache(list(ids), sites=site, stop_at_layer=layer + 1)
        pattern = cache[site][0, head].float().numpy()
        rest = pattern[1:].copy()
        first = rest[:, 0].copy()
        rest[:, 0] = -1.0
        keys = rest.argmax(1)
        queries = np.arange(1, len(ids))
        labels = [view.display for view in model.tokenizer.views(list(ids))]
        rows.append(
            pd.DataFrame(
                {
                    "text": number,
                    "query": queries,
                    "key": keys,
                    "weight": rest[queries - 1, keys],
                    "distance": queries - keys,
                    "query_token": [labels[q] for q in queries],
                    "key_token": [labels[k] for k in keys],
                    "first_token": first,
                }
            )
        )
        kept.append(number)
    if not rows:
        raise ValueError("no passage has three tokens or more: give longer texts")
    maxima = pd.concat(rows, ignore_index=True)
    card = {
        "model": model.cfg.name, "layer": layer, "head": head, "n_texts": len(kept), "max_length": max_length, "seed": seed,
    }  # fmt: skip
    return HeadExamples(maxima, _by_token(maxima), _passages(maxima, n_intervals, top, others, seed), card)


def _by_token(maxima: pd.DataFrame) -> pd.DataFrame:
    parts = []
    for role in ("query", "key"):
        found = maxima.groupby(f"{role}_token")["weight"].agg(["mean", "size"]).reset_index()
        found = found.set_axis(["token", "mean", "n"], axis=1)
        found = found.loc[found["n"] >= LEAST].sort_values(["mean", "token"], ascending=[False, True])
        parts.append(found.assign(role=role))
    return pd.concat(parts, ignore_index=True).loc[:, ["role", "token", "mean", "n"]]


def _passages(maxima: pd.DataFrame, n_intervals: int, top: int, others: int, seed: int) -> pd.DataFrame:
    best = maxima.loc[maxima.groupby("text")["weight"].idxmax(), ["text", "weight", "query", "key"]]
    best = best.rename(columns={"weight": "largest"}).reset_index(drop=True)
    end = max(float(best["largest"].max()), 1e-12)
    step = np.minimum((best["largest"].to_numpy() / end * n_intervals).astype(int), n_intervals - 1)
    best["interval"] = n_intervals - 1 - step
    best["share"] = best.groupby("interval")["text"].transform("size") / len(best)
    rng, shown = np.random.default_rng(seed), np.zeros(len(best), dtype=bool)
    for interval in range(n_intervals):
        members = np.flatnonzero(best["interval"].to_numpy() == interval)
        if interval == 0:
            order = np.argsort(-best["largest"].to_numpy()[members], kind="stable")
            shown[members[order[:top]]] = True
        elif len(members):
            shown[rng.choice(members, min(others, len(members)), replace=False)] = True
    return best.assign(shown=shown)
