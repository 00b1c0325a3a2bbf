"""What a direction does to a score: taken out of every write to the stream, and added at its own site.

Directions stand side by side in one batch, each in its own copy of the texts; an addition starts at its own layer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float64
from torch import Tensor

from interp import sites as site_names
from interp.hooks import HookContext
from interp.intervene.writes import write_sites
from interp.model import HookedTransformer
from interp.model.vocabulary import token_id, token_labels
from interp.probe.directions import Spot
from interp.rerun import base_run

Score = Callable[[Tensor], Tensor]
"""Logits [row d_vocab] at the last position -> how much each row shows the behaviour."""


def scorer(model: HookedTransformer, target: Any) -> tuple[Score, str]:
    """The score as a function of the last logits, and in words."""
    if callable(target):

        def own(logits: Tensor) -> Tensor:
            found = target(logits)
            if (
                not isinstance(found, Tensor)
                or found.shape != logits.shape[:1]
                or not bool(torch.isfinite(found).all())
            ):
                got = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
                raise ValueError(f"target= must give one finite number for each of {len(logits)} rows, got {got}")
            return found.double()

        return own, getattr(target, "__name__", type(target).__name__)
    listed = target.tolist() if isinstance(target, Tensor | np.ndarray) else target
    given = listed if isinstance(listed, list | tuple) else [listed]
    ids = [token_id(model, each, "target") for each in given]
    if not ids or len(set(ids)) < len(ids):
        raise ValueError(f"target= names at least one token, and each once; got {given!r}")
    wanted = torch.tensor(ids, device=model.device)

    def log_odds(logits: Tensor) -> Tensor:
        wide = logits.double()
        rest = wide.index_fill(-1, wanted, -torch.inf).logsumexp(-1)
        return wide[:, wanted].logsumexp(-1) - rest

    return log_odds, f"log-odds of {', '.join(map(repr, token_labels(model, ids)))}"


@dataclass(eq=False)
class CandidateRuns:
    """Scores of prompts: unsteered, with directions taken out everywhere, and with them added at a site."""

    model: HookedTransformer
    score: Score
    batch_size: int
    progress: Callable[[int, int], None] | None
    done: int = 0
    total: int = 0

    def __post_init__(self) -> None:
        inside = [name for name in write_sites(self.model) if site_names.layer_of(name) is not None]
        # The stream into block 0 is the sum of all that is embedded.
        self.writes = ["blocks.0.hook_resid_pre", *inside]

    def expect(self, total: int) -> None:
        """How many runs there will be."""
        self.done, self.total = 0, total

    def _count(self, runs: int) -> None:
        self.done += runs
        if self.progress is not None and self.total:
            self.progress(min(self.done, self.total), self.total)

    def _batches(self, texts: Sequence[str]) -> list[tuple[slice, list[str]]]:
        starts = range(0, len(texts), self.batch_size)
        return [(slice(i, i + self.batch_size), list(texts[i : i + self.batch_size])) for i in starts]

    def plain(self, texts: Sequence[str]) -> Float64[np.ndarray, " prompt"]:
        """Scores without any direction."""
        found = np.zeros(len(texts))
        for here, batch in self._batches(texts):
            base = base_run(self.model, batch, [])
            found[here] = self.score(base.last_logits(base.final)).cpu().numpy()
        return found

    def ablated(
        self, texts: Sequence[str], directions: Float64[Tensor, "candidate d_model"]
    ) -> tuple[Float64[np.ndarray, "candidate prompt"], Float64[np.ndarray, "candidate prompt"]]:
        """(scores, KL of the next token, unsteered against ablated) with each direction taken out of every write."""
        scores, kl = np.zeros((2, len(directions), len(texts)))
        for here, batch in self._batches(texts):
            base = base_run(self.model, batch, [0])
            before = base.last_logits(base.final).double().log_softmax(-1)
            step = base.copies_at_once()
            for start in range(0, len(directions), step):
                taken = directions[start : start + step]
                stream = base.stream(0, dict.fromkeys(self.writes, _taking_out(taken)), len(taken))
                for i, logits in enumerate(base.last_logits(stream)):
                    scores[start + i, here] = self.score(logits).cpu().numpy()
                    after = logits.double().log_softmax(-1)
                    kl[start + i, here] = (before.exp() * (before - after)).sum(-1).cpu().numpy()
                self._count(len(taken) * len(batch))
        return scores, kl

    def added(
        self, texts: Sequence[str], frame: pd.DataFrame, directions: Float64[Tensor, "candidate d_model"]
    ) -> Float64[np.ndarray, "candidate prompt"]:
        """Scores with each candidate's difference added at its own site, at every token."""
        scores = np.zeros((len(frame), len(texts)))
        lengths = torch.tensor(frame["length"].to_numpy(), dtype=torch.float64)
        differences = (lengths[:, None] * directions).float()
        layers, names = frame["layer"].tolist(), frame["site"].to_numpy()
        for here, batch in self._batches(texts):
            base = base_run(self.model, batch, layers)
            for name in dict.fromkeys(names):
                rows = np.flatnonzero(names == name)
                spot = Spot(name, layers[rows[0]], None)
                step = base.copies_at_once()
                for some in (rows[i : i + step] for i in range(0, len(rows), step)):
                    hook = spot.adding(differences[torch.from_numpy(some)], base.tokens.mask)
                    logits = base.last_logits(base.stream(spot.layer, {name: hook}, len(some)))
                    for row, own in zip(some, logits, strict=True):
                        scores[row, here] = self.score(own).cpu().numpy()
                    self._count(len(some) * len(batch))
        return scores


def _taking_out(directions: Float64[Tensor, "copies d_model"]) -> Callable[[Tensor, HookContext], Tensor]:
    """A hook that takes direction c out of copy c of the texts."""

    def take_out(value: Tensor, ctx: HookContext) -> Tensor:  # noqa: ARG001
        unit = directions.to(value)[:, None, :, None]
        copies = value.unflatten(0, (len(directions), -1))
        return (copies - (copies @ unit) * unit.mT).flatten(0, 1)

    return take_out
