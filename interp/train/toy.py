"""Two toys: a model in which induction heads form while one watches, and a batch that a model learns by heart.

Induction (Olsson et al. 2022, arXiv 2209.11895). Two layers of attention, no MLPs, trained on random tokens that repeat
after a distance of its own in each row. Only the tokens before can say what comes next, so the model has to find the
last occurrence of the token at hand and to copy what followed it. That takes two heads in a row: one of the first layer
that looks one token back, and one of the second that reads what the first left there. Neither is of use without the
other; so nothing happens for a while, then both appear within some hundred steps, and the loss falls with them.

Rotary positions make "one token back" easy to say. With learned positions a model of this size learns the task as well,
but by attention that is spread over many tokens: its loss falls, and no head has an induction score above 0.05.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Int
from torch import Tensor

from interp import artifact
from interp.model import HookedTransformer, ModelConfig
from interp.train.checkpoint import checkpoint_steps, load_checkpoint
from interp.train.config import TrainConfig
from interp.train.data import RepeatedBatches, repeated_sequences
from interp.train.loop import TrainResult, train_model

Scores = Mapping[str, float | str]
Score = Callable[[HookedTransformer, Int[Tensor, "row pos"]], Scores]

INDUCTION = ModelConfig(
    n_layers=2, d_model=64, n_heads=4, d_head=16, d_mlp=0, d_vocab=128, n_ctx=64, norm="layer", positional="rope",
    tie_embeddings=False, name="induction-toy",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class InductionToy:
    """A trained toy, and what its checkpoints can do."""

    checkpoints: pd.DataFrame
    """A row for each checkpoint: step, tokens, loss_first_copy, loss_second_copy, and what the score gave."""
    result: TrainResult
    """The run."""

    def to_frame(self) -> pd.DataFrame:
        """The checkpoints."""
        return self.checkpoints

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the rows as JSON, with the steps between which induction rose where it was scored."""
        rows = self.checkpoints.to_dict("records")
        scored = "induction" in self.checkpoints
        found = {"steepest": self.steepest(), "rise": list(self.rise())} if scored else {}
        return artifact.write_json(path, {"checkpoints": rows, **found})

    def steepest(self, column: str = "induction") -> int:
        """The step at whose checkpoint a column has changed most since the one before."""
        change = self.checkpoints[column].diff().abs() / self.checkpoints["step"].diff()
        return int(self.checkpoints["step"].iloc[int(np.nanargmax(change))])

    def rise(self, column: str = "induction", low: float = 0.1, high: float = 0.9) -> tuple[int, int]:
        """The steps between which a column makes its way from `low` to `high` of its whole change.

        The first checkpoint above `high`, and the last one before it that was below `low`.

        Raises:
            ValueError: the column ends where it began.
        """
        values = self.checkpoints[column].to_numpy(float)
        if values[-1] == values[0]:
            raise ValueError(f"{column} is {values[0]:g} at the first checkpoint and at the last: there is no rise")
        share = (values - values[0]) / (values[-1] - values[0])
        steps = self.checkpoints["step"].tolist()
        end = int(np.argmax(share >= high))
        below = np.flatnonzero(share[: end + 1] <= low)
        return steps[int(below[-1])], steps[end]


def train_induction_toy(
    folder: str | os.PathLike[str],
    *,
    score: Score | None = None,
    seed: int = 0,
    n_steps: int = 600,
    checkpoint_every: int = 20,
    batch_size: int = 64,
    progress: Callable[[int, int], object] | None = None,
) -> InductionToy:
    """Train a two-layer attention-only model on repeated random tokens, and measure every checkpoint.

    Takes about a minute on one core. Interrupted and called again it goes on where it was.

    Args:
        folder: for the checkpoints; `load_checkpoint(folder, step)` makes models of them.
        score: fn(model, ids [row pos]) -> columns for the table, such as the best head's induction score. The ids are
            two copies of random tokens that training never saw, the same at every checkpoint.
        seed: of weights and data.
        n_steps: updates.
        checkpoint_every: steps between checkpoints.
        batch_size: rows of a step.
        progress: called with (steps done, steps in all).
    """
    cfg = INDUCTION
    config = TrainConfig(n_steps=n_steps, lr=4e-3, checkpoint_every=checkpoint_every, seed=seed)
    data = RepeatedBatches(batch_size, cfg.n_ctx, cfg.d_vocab, seed)
    model = HookedTransformer(cfg, seed=seed)
    result = train_model(model, data, config, checkpoint=folder, progress=progress)
    period = cfg.n_ctx // 2
    held_out = repeated_sequences(32, cfg.n_ctx, cfg.d_vocab, seed + 1_000_003, periods=period)
    tokens = {record.step: record.tokens for record in result.records}
    rows = []
    for step in checkpoint_steps(folder):
        at = load_checkpoint(folder, step)
        row: dict[str, Any] = {"step": step, "tokens": tokens.get(step, 0)}
        rows.append(row | copy_losses(at, held_out, period) | dict({} if score is None else score(at, held_out)))
    return InductionToy(pd.DataFrame(rows), result)


@torch.no_grad()
def copy_losses(model: HookedTransformer, ids: Int[Tensor, "row pos"], period: int) -> dict[str, float]:
    """Mean loss in nats over the first copy, and over the second without its first token, which nothing predicts."""
    losses = model.loss(ids, per_token=True)
    return {
        "loss_first_copy": float(losses[:, : period - 1].mean()),
        "loss_second_copy": float(losses[:, period : 2 * period - 1].mean()),
    }


def overfit_batch(
    model: HookedTransformer,
    batch: object,
    *,
    target: float = 0.01,
    n_steps: int = 200,
    lr: float = 5e-3,
    progress: Callable[[int, int], object] | None = None,
) -> TrainResult:
    """Learn one batch by heart: the first thing to try with a new architecture, for only a broken one cannot.

    Args:
        model: any causal model; trained in place.
        batch: what `model.tokenize` takes. Rows that begin alike and go on apart cannot be learnt.
        target: nats a token that must be reached.
        n_steps: updates.
        lr: peak learning rate.
        progress: called with (steps done, steps in all).

    Raises:
        ValueError: the loss is above `target` in the end.
    """
    tokens = model.tokenize(batch)
    config = TrainConfig(n_steps=n_steps, lr=lr, weight_decay=0.0)
    result = train_model(model, [tokens], config, progress=progress)
    with torch.no_grad():
        loss = float(model.loss(tokens))
    if not loss < target:
        raise ValueError(
            f"after {n_steps} steps on one batch the loss is {loss:.3g} nats, not below {target:g}: the batch cannot be "
            "learnt (rows that begin alike, a model too small), the steps are too few, or model or gradients are wrong"
        )
    return result
