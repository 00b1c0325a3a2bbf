"""How the next token of a generation is chosen.

At each step: weaken tokens that were used already (Keskar et al. 2019, arXiv 1909.05858), divide by the temperature, keep
the top k, keep the smallest set with probability p (Holtzman et al. 2020, arXiv 1904.09751), keep what is at least min_p
times as probable as the best (Nguyen et al. 2024, arXiv 2407.01082), draw. The order is that of transformers.

A row's random numbers follow from the seed, its own token ids, and how many equal prompts stand before it. So a prompt
gets the same continuation alone and in any batch, and equal prompts get different ones.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xxhash
from jaxtyping import Bool, Float, Int
from torch import Tensor

NUCLEUS = 512
"""Tokens among which a nucleus is looked for before the whole vocabulary is sorted: ten times slower, seldom needed."""
CHUNK_LOGITS = 2**19
"""Logits that one piece of work holds on a CPU: 2 MB in fp32, which stay in its cache from one step to the next."""
STRETCH = 256
"""Tokens whose probabilities are summed together to find the part of the vocabulary that holds a draw."""


def _check_number(name: str, value: Any, kind: Any, optional: bool = False) -> None:
    if (optional and value is None) or (isinstance(value, kind) and not isinstance(value, bool)):
        return
    raise ValueError(f"{name} must be a {'whole ' if kind is int else ''}number, got {value!r}")


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen.

    Raises:
        ValueError: a value outside its range.
    """

    temperature: Any = 0.0
    """0 is greedy: the cuts below then make no difference."""
    top_k: Any = None
    """Keep the k most probable tokens."""
    top_p: Any = None
    """Keep the smallest set of tokens whose probability reaches p."""
    seed: Any = 0
    """Of the random numbers."""
    min_p: Any = None
    """Keep the tokens that are at least this many times as probable as the most probable one."""
    repetition_penalty: Any = 1.0
    """Logits of tokens that the prompt or the new text holds are divided by this if positive, else multiplied."""

    def __post_init__(self) -> None:
        for field in ("temperature", "top_p", "min_p", "repetition_penalty"):
            _check_number(field, getattr(self, field), int | float, optional=field.endswith("_p"))
        _check_number("top_k", self.top_k, int, optional=True)
        _check_number("seed", self.seed, int)
        if not (self.temperature >= 0 and math.isfinite(self.temperature)):
            raise ValueError(f"temperature must be 0 (greedy) or more, got {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k must be at least 1, got {self.top_k}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must lie in (0, 1], got {self.top_p}")
        if self.min_p is not None and not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p must lie in [0, 1], got {self.min_p}")
        if not (self.repetition_penalty > 0 and math.isfinite(self.repetition_penalty)):
            raise ValueError(f"repetition_penalty must be greater than 0, got {self.repetition_penalty}")
        if self.seed < 0:
            raise ValueError(f"seed must be 0 or more, got {self.seed}")

    @property
    def greedy(self) -> bool:
        """The most probable token is taken, nothing is drawn."""
        return self.temperature == 0

    @property
    def plain(self) -> bool:
        """The model's own distribution is drawn from: temperature 1, nothing cut."""
        whole = self.top_k is None and (self.top_p is None or self.top_p == 1) and not self.min_p
        return self.temperature == 1 and whole

    def penalised(
        self, logits: Float[Tensor, "batch d_vocab"], used: Int[Tensor, "batch n_used"] | None
    ) -> Float[Tensor, "batch d_vocab"]:
        """Logits after the repetition penalty on the `used` token ids, each once however often it stands there."""
        if used is None or self.repetition_penalty == 1:
            return logits
        theirs = logits.gather(-1, used)
        weaker = torch.where(theirs < 0, theirs * self.repetition_penalty, theirs / self.repetition_penalty)
        return logits.scatter(-1, used, weaker)

    def filtered(self, logits: Float[Tensor, "batch d_vocab"]) -> Float[Tensor, "batch d_vocab"]:
        """Log-probabilities of the distribution that is drawn from; -inf for what was cut."""
        logits = _wide(logits) / (self.temperature or 1.0)
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            least = logits.topk(self.top_k, dim=-1).values[:, -1:]
            logits = logits.masked_fill(logits < least, -torch.inf)
        if self.top_p is not None and self.top_p < 1:
            logits = logits.masked_fill(~_nucleus(logits, self.top_p), -torch.inf)
        if self.min_p:
            least = logits.amax(-1, keepdim=True) + math.log(self.min_p)
            logits = logits.masked_fill(logits < least, -torch.inf)
        return logits.log_softmax(-1)


@dataclass(frozen=True)
class Choice:
    """One token for each row of a batch."""

    token: Int[Tensor, " batch"]
    """Ids."""
    logprob: Float[Tensor, " batch"]
    """Log-probability under the model itself: temperature 1, no penalty, nothing cut; nats."""
    sampling_logprob: Float[Tensor, " batch"]
    """Log-probability under the distribution that was drawn from; 0 if greedy."""
    entropy: Float[Tensor, " batch"]
    """Of the model's own distribution, in nats."""


def choose(
    logits: Float[Tensor, "batch d_vocab"],
    sampling: Sampling,
    uniform: Float[Tensor, " row"] | None = None,
    used: Int[Tensor, "batch n_used"] | None = None,
) -> Choice:
    """The next token of each row.

    Args:
        logits: of the model.
        sampling: how to choose.
        uniform: a random number in [0, 1) for each row, at which the cumulative distribution is inverted. Not needed if
            greedy. Several times as many as logits are so many draws from each row of logits, one after the other.
        used: token ids that the repetition penalty weakens.
    """
    copies = 1 if uniform is None else len(uniform) // len(logits)
    assert uniform is None or len(uniform) == copies * len(logits)
    size = len(logits) if logits.is_cuda else max(1, CHUNK_LOGITS // logits.shape[-1])
    found = []
    for start in range(0, len(logits), size):
        end = min(start + size, len(logits))
        numbers = None if uniform is None else uniform[start * copies : end * copies].view(-1, copies)
        found.append(_chosen(logits[start:end], sampling, numbers, None if used is None else used[start:end]))
    return Choice(*(torch.cat(parts) for parts in zip(*found, strict=True)))


def _chosen(
    logits: Float[Tensor, "batch d_vocab"],
    sampling: Sampling,
    uniform: Float[Tensor, "batch copies"] | None,
    used: Int[Tensor, "batch n_used"] | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The fields of a Choice, [batch * copies] each, from few enough logits to stay in the processor's cache."""
    wide = _wide(logits)
    below = (wide - wide.amax(-1, keepdim=True)).clamp_(min=-1e4)  # what is impossible, at -inf, adds nothing
    shares = below.exp()
    total = shares.sum(-1, keepdim=True)
    weakened = sampling.penalised(logits, used)
    drawn = None
    if sampling.greedy:
        token = weakened.argmax(-1, keepdim=True)
    elif sampling.plain and weakened is logits:
        assert uniform is not None
        token = _inverted(shares, uniform)
    else:
        assert uniform is not None
        filtered = sampling.filtered(weakened)
        token = _inverted(filtered.exp(), uniform)
        drawn = filtered.gather(-1, token)
    logprob = below.gather(-1, token) - total.log()
    if drawn is None:
        drawn = torch.zeros_like(logprob) if sampling.greedy else logprob
    entropy = total.log() - shares.mul_(below).sum(-1, keepdim=True) / total  # no large numbers that cancel
    return token.flatten(), logprob.flatten(), drawn.flatten(), entropy.expand_as(token).flatten()


def _inverted(
    shares: Float[Tensor, "batch d_vocab"], uniform: Float[Tensor, "batch copies"]
) -> Int[Tensor, "batch copies"]:
    """The tokens at which the cumulative distribution passes these numbers; never one whose share is zero.

    Stretches of the vocabulary are summed, and only the stretch that holds the draw is looked into: one pass over the
    vocabulary, and fp64 where sums are cumulative.
    """
    n_tokens = shares.shape[-1]
    whole = n_tokens // STRETCH
    sums = shares[:, : whole * STRETCH].unflatten(-1, (whole, STRETCH)).sum(-1)
    if whole * STRETCH < n_tokens:
        sums = torch.cat((sums, shares[:, whole * STRETCH :].sum(-1, keepdim=True)), -1)
    stretch, rest = _passed(sums.double(), uniform.double())
    place = stretch[..., None] * STRETCH + torch.arange(STRETCH, device=shares.device)
    inside = shares.gather(-1, place.clamp(max=n_tokens - 1).flatten(1)).view(place.shape)
    token, _ = _passed(inside.double().masked_fill(place >= n_tokens, 0.0), rest[..., None])
    return place.gather(-1, token)[..., 0].clamp(max=n_tokens - 1)  # NaN passes nothing; its log-probability will tell


def _passed(
    weights: Float[Tensor, "*rows n"], uniform: Float[Tensor, "*rows draw"]
) -> tuple[Int[Tensor, "*rows draw"], Float[Tensor, "*rows draw"]]:
    """(where the cumulative weights pass this share of them all, which share of that weight lies before the draw)."""
    cumulative = weights.cumsum(-1)
    total = cumulative[..., -1:].contiguous()
    wanted = uniform * total
    # Rounding may reach the end, where the last weight that is not zero stands in.
    last = torch.searchsorted(cumulative, total).clamp_(max=weights.shape[-1] - 1)
    index = torch.minimum(torch.searchsorted(cumulative, wanted, right=True), last)
    weight = weights.gather(-1, index)
    return index, (wanted - (cumulative.gather(-1, index) - weight)).div_(weight).clamp_(0.0, 1.0)


def _nucleus(logits: Float[Tensor, "batch d_vocab"], p: float) -> Bool[Tensor, "batch d_vocab"]:
    """True for the smallest set of tokens whose probability reaches p."""
    probability, n_tokens = logits.softmax(-1), logits.shape[-1]
    best, order = probability.topk(min(NUCLEUS, n_tokens))
    if n_tokens > NUCLEUS and bool((best.sum(-1) < p).any()):
        best, order = probability.sort(dim=-1, descending=True)
    kept = best.cumsum(-1) - best < p
    return torch.zeros_like(logits, dtype=torch.bool).scatter(-1, order, kept)


def uniforms(seed: int, prompts: Iterable[list[int]], n_samples: int, n_steps: int) -> Float[Tensor, "row step"]:
    """Random numbers for every row and step; the rows are the samples of the first prompt, of the second, and so on."""
    seen: dict[int, int] = {}
    rows = []
    for ids in prompts:
        key = xxhash.xxh64_intdigest(np.asarray(ids, dtype="<i8").tobytes())
        first = seen.get(key, 0)
        seen[key] = first + n_samples
        rows += [np.random.default_rng([seed, key, first + sample]).random(n_steps) for sample in range(n_samples)]
    return torch.from_numpy(np.stack(rows))


def _wide(logits: Tensor) -> Tensor:
    """At least fp32; the same tensor where it is that already."""
    return logits if logits.dtype in (torch.float32, torch.float64) else logits.float()
