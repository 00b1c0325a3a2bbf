"""One number for a run, on a scale whose 0 is the corrupted run and whose 1 is the clean one.

1. Read the logits at each prompt's last token: `logit_diff` (log-odds of the answers against the others; for one token
   each, their logit difference), `log_probability` and `probability` of the answers, `rank` (log10 of 1 + the best answer's
   rank), `kl` (KL(clean || run), nats); or a function of the caller's.
2. Take the corrupted run's value off, and divide by the mean gap between clean and corrupted. The gap is that of all
   pairs together: one pair with a gap near zero would otherwise outweigh the rest.

Denoising (clean values put into the corrupted run) so begins at 0 and noising begins at 1, on one scale.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from interp.bootstrap import ratio_interval
from interp.model import HookedTransformer
from interp.rerun import BaseRun, base_run
from interp.task.pairs import PromptPairs

FLOORS = {"logit_diff": 0.05, "log_probability": 0.05, "probability": 0.005, "rank": 0.05, "kl": 0.005}
"""Smallest mean gap between clean and corrupted that can be divided by."""
OWN_FLOOR = 1e-6
"""The same for a metric of the caller's, whose unit is unknown."""
METRICS = tuple(FLOORS)
Metric = str | Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Effect:
    """Means over pairs, and their 95 % bootstrap intervals."""

    mean: Float[np.ndarray, "*places"]
    """Of the normalised metric."""
    low: Float[np.ndarray, "*places"]
    """Lower end; NaN for one pair, which has no interval."""
    high: Float[np.ndarray, "*places"]
    """Upper end."""
    n: int
    """Pairs."""


@dataclass(frozen=True, eq=False)
class PairMetric:
    """A metric of some pairs, with its value in the clean and in the corrupted run."""

    name: str
    """`logit_diff`, ..., or the name of the caller's function."""
    pairs: PromptPairs
    """What it is of."""
    clean: Float[Tensor, "pair"]
    """Value in the clean run, fp64."""
    corrupted: Float[Tensor, "pair"]
    """Value in the corrupted run, fp64."""
    clean_logits: Float[Tensor, "pair d_vocab"]
    """Logits at the last token of the clean run."""
    fn: Callable[[Tensor], Tensor] | None = None
    """The caller's: logits [pair pos d_vocab] -> [pair]."""

    @property
    def needs_all_logits(self) -> bool:
        """Whether `raw` reads the logits at every token: so does a function of the caller's."""
        return self.fn is not None

    @property
    def gap(self) -> float:
        """Mean difference between clean and corrupted.

        Raises:
            ValueError: it is too small to divide by.
        """
        gap = float((self.clean - self.corrupted).mean())
        floor = FLOORS.get(self.name, OWN_FLOOR)
        if not abs(gap) >= floor:
            raise ValueError(
                f"{self.name} is {float(self.clean.mean()):.4g} in the clean run and {float(self.corrupted.mean()):.4g} in the "
                f"corrupted one: a gap under {floor:g} says nothing. Choose prompts that the model tells apart, or another metric"
            )
        return gap

    @property
    def n_reversed(self) -> int:
        """Pairs whose gap has another sign than the mean."""
        gaps = self.clean - self.corrupted
        return int((gaps * gaps.mean().sign() < 0).sum())

    def raw(self, logits: Float[Tensor, "pair *rest"]) -> Float[Tensor, "pair"]:
        """The value of each pair, differentiable, in fp64.

        Args:
            logits: [pair d_vocab] at the last tokens; for a function of the caller's [pair pos d_vocab].
        """
        if self.fn is not None:
            return _checked(self.fn, logits, len(self.pairs))
        return _values(self.name, self.pairs, logits, self.clean_logits)

    def of_streams(
        self, base: BaseRun, streams: Float[Tensor, "copies pair pos d_model"]
    ) -> Float[Tensor, "copies pair"]:
        """The values of runs side by side, from their final streams; fp64 on the CPU, without gradients."""
        with torch.no_grad():
            if self.needs_all_logits:  # of one run at a time: the logits of all tokens are large
                return torch.stack([self.raw(base.model.unembed_logits(one)) for one in streams]).cpu()
            return torch.stack([self.raw(one) for one in base.last_logits(streams)]).cpu()

    def effect(self, raw: Float[Tensor, "*places pair"], seed: int = 0) -> Effect:
        """Mean of the normalised metric over pairs, with its interval."""
        gap = self.gap
        return mean_effect(raw, self.clean, self.corrupted, gap, seed)


def mean_effect(
    raw: Float[Tensor, "*places pair"],
    clean: Float[Tensor, "pair"],
    corrupted: Float[Tensor, "pair"],
    gap: float,
    seed: int = 0,
) -> Effect:
    """Mean of (raw - corrupted) / gap over pairs, with the interval of a ratio: both its parts are drawn together."""
    shift = (raw.double() - corrupted).cpu().numpy()
    gaps = (clean - corrupted).cpu().numpy()
    low, high = ratio_interval(shift, gaps, seed)
    return Effect(np.asarray(shift.mean(-1) / gap), low, high, len(gaps))


def pair_metric(model: HookedTransformer, pairs: PromptPairs, metric: Any = "logit_diff") -> PairMetric:
    """Run both prompts of each pair once and read the metric.

    Args:
        model: any loaded model that predicts the next token.
        pairs: the prompts.
        metric: a name of `METRICS`, or fn(logits [pair pos d_vocab]) -> [pair], by torch operations.

    Raises:
        ValueError: an unknown name, `logit_diff` without `against`, or a function that gives something else.
    """
    if not model.cfg.causal:
        raise ValueError(f"{model.cfg.name} is an encoder: no next token answers its prompts")
    pairs.check_tokenizer(model)
    if isinstance(metric, str):
        if metric not in METRICS:
            raise ValueError(f"metric={metric!r} is unknown; choose from {', '.join(METRICS)}, or give a function")
        if metric == "logit_diff" and pairs.againsts is None:
            raise ValueError(
                "logit_diff needs against=, the token that the answer is compared with; or take log_probability"
            )
    elif not callable(metric):
        raise ValueError(f"metric must be a name or a function of logits, got {type(metric).__name__}")
    runs = [base_run(model, side, []) for side in (pairs.clean, pairs.corrupted)]
    clean, corrupted = (run.last_logits(run.final) for run in runs)
    if not bool(torch.isfinite(clean).all() and torch.isfinite(corrupted).all()):
        raise ValueError(
            f"{model.cfg.name} gives NaN or infinite logits: its weights are damaged (interp doctor says where)"
        )
    if isinstance(metric, str):
        first, second = (_values(metric, pairs, logits, clean) for logits in (clean, corrupted))
        return PairMetric(metric, pairs, first, second, clean)
    if not pairs.same_length:
        raise ValueError(
            "a function of logits would read pads where prompts have unequal lengths, as logits[:, -1] does: take pairs of one "
            "length, or a metric by name"
        )
    own: Any = metric
    with torch.no_grad():
        first, second = (_checked(own, model.unembed_logits(run.final), len(pairs)) for run in runs)
    return PairMetric(f"own:{getattr(own, '__name__', 'function')}", pairs, first, second, clean, own)


def _values(
    name: str, pairs: PromptPairs, logits: Float[Tensor, "pair d_vocab"], clean: Tensor
) -> Float[Tensor, "pair"]:
    if name == "kl":
        wide, reference = logits.double().log_softmax(-1), clean.double().log_softmax(-1)
        return (reference.exp() * (reference - wide)).sum(-1)
    if name == "rank":
        best = _of(pairs.answers, logits).amax(-1)
        return torch.log10(1.0 + (logits > best[:, None]).sum(-1).double())
    if name == "logit_diff":
        assert pairs.againsts is not None
        return _log_sum(pairs.answers, logits) - _log_sum(pairs.againsts, logits)
    logp = _log_sum(pairs.answers, logits) - logits.double().logsumexp(-1)
    return logp if name == "log_probability" else logp.exp()


def _of(ids: Tensor, logits: Float[Tensor, "pair d_vocab"]) -> Float[Tensor, "pair k"]:
    """Logits of a set of tokens; -inf where a pair has fewer."""
    return logits.gather(1, ids.clamp(min=0)).masked_fill(ids < 0, -torch.inf)


def _log_sum(ids: Tensor, logits: Float[Tensor, "pair d_vocab"]) -> Float[Tensor, "pair"]:
    found = _of(ids, logits.double())
    return found[:, 0] if ids.shape[1] == 1 else found.logsumexp(-1)


def _checked(fn: Callable[[Tensor], Tensor], logits: Tensor, n: int) -> Float[Tensor, "pair"]:
    value = fn(logits)
    if isinstance(value, Tensor) and n == 1 and value.numel() == 1:
        value = value.reshape(1)
    if not isinstance(value, Tensor) or value.shape != (n,):
        got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(
            f"the metric returned {got}; it must return a tensor with a value for each of the {n} pairs (sweeps average them)"
        )
    if not bool(value.isfinite().all()):
        raise ValueError("the metric returned NaN or infinity")
    return value.double()
