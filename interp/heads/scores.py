"""What each attention head does on repeated random tokens (Olsson et al. 2022, on in-context learning).

1. Make sequences of N random tokens, repeated: t_0..t_{N-1} t_0..t_{N-1}, behind one BOS. Nothing but the first copy
   can predict the second, so what a head attends to there is what it is for.
2. Run the model once and average each head's attention over the queries that carry the meaning:
   - *induction*: from a token of the second copy to the one after its first occurrence, k = q - (N - 1);
   - *duplicate token*: from a token of the second copy to its first occurrence, k = q - N;
   - *previous token*: from any token but the first to the one before, k = q - 1;
   - *current token*, *first token* (the sink) and the entropy of the attention, over the queries of the second copy.
3. Intervals by bootstrap over sequences. The *null* of a score is the largest mean attention that the head pays to any
   other fixed offset: a head that attends evenly, or to the sink, does not pass it.

The diagonal of the whole pattern holds one or two queries that are not in the second copy; they are left out here.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp import artifact, plot
from interp.hooks import HookContext
from interp.model import HookedTransformer

METRICS = ("induction", "previous_token", "duplicate_token", "current_token", "first_token", "attention_entropy")


@dataclass(frozen=True, eq=False)
class HeadScores:
    """Scores of every head: [layer, head, sequence] tensors and the protocol that made them."""

    scores: dict[str, Float[Tensor, "layer head row"]]
    """Metric -> mean over the queries of each sequence. Attention entropy in nats, all else in 0..1."""
    null: Float[Tensor, "layer head"]
    """Largest mean attention to any other offset."""
    losses: dict[str, float]
    """Mean next-token loss in nats over the first copy, and over the second without its first token (nothing
    predicts that one)."""
    card: dict[str, Any]
    """Period, sequences, BOS, seed, model."""

    def to_frame(self) -> pd.DataFrame:
        """A line for each head: layer, head, metrics with `_low` and `_high` (95 % over sequences), the null, n."""
        first = self.scores["induction"]
        n_layers, n_heads, n_rows = first.shape
        frame = pd.DataFrame(
            {"layer": np.repeat(np.arange(n_layers), n_heads), "head": np.tile(np.arange(n_heads), n_layers)}
        )
        for metric, values in self.scores.items():
            low, high = _interval(values.flatten(0, 1).numpy(), int(self.card["seed"]))
            frame[metric] = values.mean(-1).flatten().numpy()
            frame[f"{metric}_low"], frame[f"{metric}_high"] = low, high
        frame["induction_null"] = self.null.flatten().numpy()
        frame["n_sequences"] = n_rows
        frame["n"] = n_rows * int(self.card["period"])
        return frame

    def top(self, metric: str = "induction", n: int = 10) -> pd.DataFrame:
        """The n heads with the highest score."""
        if metric not in self.scores:
            raise ValueError(f"unknown metric {metric!r}; known are {', '.join(self.scores)}")
        columns = ["layer", "head", metric, f"{metric}_low", f"{metric}_high", "n"]
        return self.to_frame().nlargest(n, metric).loc[:, columns].reset_index(drop=True)

    def plot(self, metric: str = "induction") -> alt.LayerChart | alt.Chart:
        """Layers down, heads across."""
        return plot.head_grid(self.to_frame(), metric)

    def save(self, path: str | Path) -> Path:
        """One safetensors file with a card; `load_head_scores` reads it."""
        tensors = {f"score.{name}": value.contiguous() for name, value in self.scores.items()} | {"null": self.null}
        return artifact.save_artifact(Path(path), "head scores", tensors, self.card | {"losses": self.losses})


def load_head_scores(path: str | Path) -> HeadScores:
    """Read what `HeadScores.save` wrote."""
    tensors, card = artifact.load_artifact(Path(path), "head scores")
    scores = {metric: tensors[f"score.{metric}"] for metric in METRICS}
    return HeadScores(scores, tensors["null"], card.pop("losses"), card)


def repeated_tokens(
    model: HookedTransformer, *, n_rows: int = 8, period: int = 64, bos: int | bool | None = None, seed: int = 0
) -> tuple[Int[Tensor, "row pos"], int]:
    """Random ids repeated twice behind a BOS, and the number of BOS columns (0 or 1).

    Ids are drawn from 1000..40000 (as far as the vocabulary goes), which leaves out special tokens, single bytes and
    the rarest words. `bos=None` uses the tokenizer's BOS if it has one; an id uses that; False none.
    """
    low, high = min(1000, model.cfg.d_vocab // 4), min(40000, model.cfg.d_vocab)
    ids = torch.randint(low, high, (n_rows, period), generator=torch.Generator().manual_seed(seed))
    return _behind_bos(model, ids.repeat(1, 2), bos)


@torch.inference_mode()
def head_scores(
    model: HookedTransformer,
    tokens: object = None,
    period: int | None = None,
    bos: int | bool | None = None,
    seed: int = 0,
) -> HeadScores:
    """Score every head on repeated tokens.

    Args:
        model: any loaded model.
        tokens: ids [row pos]: one copy (it is repeated here), or the repeated sequence with or without its BOS. None
            draws 8 rows of 64, or as many as the context holds twice.
        period: length of one copy; found from the tokens if None.
        bos: an id to put in front, True for the tokenizer's, False for none. None: the tokenizer's where this function
            makes the repetition, nothing where the sequence is given whole.
        seed: of the random tokens and of the bootstrap.

    Raises:
        ValueError: tokens that do not repeat, or that do not fit the context.
    """
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
    shape = (model.cfg.n_layers, model.cfg.n_heads, ids.shape[0])
    scores = {metric: torch.zeros(shape) for metric in METRICS}
    null = torch.zeros(shape[:2])

    def read(pattern: Tensor, ctx: HookContext) -> None:
        assert ctx.layer is not None
        found, null[ctx.layer] = pattern_scores(pattern.float().cpu(), n, n_bos)
        for metric, value in found.items():
            scores[metric][ctx.layer] = value

    with model.hooks({"pattern:*": read}):
        losses = model.loss(ids, per_token=True)
    copies = {
        "first_copy": float(losses[:, : n_bos + n - 1].mean()),
        "second_copy": float(losses[:, n_bos + n :].mean()),
    }
    card = artifact.provenance(
        analysis="head scores", model=model.cfg.name, fingerprint=model.fingerprint, period=n, n_sequences=ids.shape[0],
        bos=int(ids[0, 0]) if n_bos else None, seed=seed,
    )  # fmt: skip
    return HeadScores(scores, null, copies, card)


def pattern_scores(
    pattern: Float[Tensor, "row head query key"], period: int, n_bos: int = 0
) -> tuple[dict[str, Float[Tensor, "head row"]], Float[Tensor, "head"]]:
    """All metrics of one layer's patterns on repeated tokens, and the null of the induction score.

    Args:
        pattern: attention [row head query key]; query and key run over n_bos + 2 * period places.
        period: N, the length of one copy.
        n_bos: places before the first copy, 0 or 1.

    Returns:
        ({metric: [head row]}, null [head]).
    """
    end = n_bos + 2 * period
    if pattern.shape[-1] != end:
        raise ValueError(f"the pattern has {pattern.shape[-1]} keys; {n_bos} + 2 x {period} = {end} were expected")
    second = torch.arange(n_bos + period, end)
    inner = torch.arange(n_bos + 1, end)

    def offset(queries: Tensor, distance: int) -> Float[Tensor, "head row"]:
        return pattern[:, :, queries, queries - distance].mean(-1).T

    found = {
        "induction": offset(second, period - 1),
        "previous_token": offset(inner, 1),
        "duplicate_token": offset(second, period),
        "current_token": offset(second, 0),
        "first_token": pattern[:, :, second, 0].mean(-1).T,
        "attention_entropy": torch.special.entr(pattern[:, :, second]).sum(-1).mean(-1).T,
    }
    others = []
    for distance in range(2, end):
        queries = second[second - distance >= n_bos]
        if distance not in (period - 1, period) and len(queries) >= period // 4:
            others.append(offset(queries, distance).mean(-1))
    null = torch.stack(others).amax(0) if others else torch.zeros(pattern.shape[1])
    return found, null


def _behind_bos(model: HookedTransformer, ids: Tensor, bos: int | bool | None) -> tuple[Int[Tensor, "row pos"], int]:
    known = model.tokenizer.bos_id if model.tokenizer is not None else None
    if bos is True and known is None:
        raise ValueError("bos=True, but the tokenizer has no BOS; give the id to put in front, or bos=False")
    token = known if bos is None or bos is True else bos
    if token is None or token is False:
        return ids, 0
    return torch.cat([torch.full((ids.shape[0], 1), int(token)), ids], dim=1), 1


def given_tokens(
    model: HookedTransformer, ids: Tensor, period: int | None, bos: int | bool | None
) -> tuple[Int[Tensor, "row pos"], int]:
    """The whole repeated sequence from what the caller gave, and its BOS columns."""
    if ids.is_floating_point() or ids.ndim not in (1, 2) or not ids.numel():
        raise ValueError(f"tokens must be integer ids of shape [row pos], got {ids.dtype} {tuple(ids.shape)}")
    ids = ids.long() if ids.ndim == 2 else ids.long()[None]
    width = ids.shape[1]
    for n_bos in (0, 1):
        n = (width - n_bos) // 2
        whole = (width - n_bos) % 2 == 0 and n >= 2 and torch.equal(ids[:, n_bos : n_bos + n], ids[:, n_bos + n :])
        if whole and period in (None, n):
            return (ids, n_bos) if n_bos or bos in (None, False) else _behind_bos(model, ids, bos)
    if period not in (None, width):
        raise ValueError(
            f"the tokens ({width} columns) are neither one copy of {period} nor that copy twice, with or without a BOS"
        )
    if width < 2:
        raise ValueError("one copy needs at least two tokens")
    return _behind_bos(model, ids.repeat(1, 2), bos)


def _interval(values: Float[np.ndarray, "head row"], seed: int, n_boot: int = 1000) -> tuple[np.ndarray, np.ndarray]:
    rows = np.random.default_rng(seed).integers(0, values.shape[1], (n_boot, values.shape[1]))
    means = np.stack([values[:, draw].mean(1) for draw in rows])
    low, high = np.quantile(means, [0.025, 0.975], axis=0)
    return low, high
