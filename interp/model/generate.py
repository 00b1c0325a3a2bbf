"""How the next token is chosen, and what a generation hands back; the loop itself stands in `generation.py`.

At each step: weaken tokens that were used already (Keskar et al. 2019, arXiv 1909.05858), divide by the temperature, keep
the top k, keep the smallest set with probability p (Holtzman et al. 2020, arXiv 1904.09751), keep what is at least min_p
times as probable as the best (Nguyen et al. 2024, arXiv 2407.01082), draw. The order is that of transformers.

A row's random numbers follow from the seed, its own token ids, and how many equal prompts stand before it. So a prompt
gets the same continuation alone and in any batch, and equal prompts get different ones.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xxhash
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.model.activations import ActivationCache

NUCLEUS = 512
"""Tokens among which a nucleus is looked for before the whole vocabulary is sorted: ten times slower, seldom needed."""


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
    uniform: Float[Tensor, " batch"] | None = None,
    used: Int[Tensor, "batch n_used"] | None = None,
) -> Choice:
    """The next token of each row.

    Args:
        logits: of the model.
        sampling: how to choose.
        uniform: a random number in [0, 1) for each row, at which the cumulative distribution is inverted. Not needed if
            greedy.
        used: token ids that the repetition penalty weakens.
    """
    plain = _wide(logits).log_softmax(-1)
    entropy = -(plain.exp() * plain.clamp(min=-1e4)).sum(-1)  # what is impossible, at -inf, adds nothing
    weakened = sampling.penalised(logits, used)
    if sampling.greedy:
        token = weakened.argmax(-1)
        drawn = torch.zeros_like(entropy)
    else:
        assert uniform is not None
        token, drawn = _draw(sampling.filtered(weakened), uniform)
    return Choice(token, plain.gather(-1, token[:, None])[:, 0], drawn, entropy)


def _nucleus(logits: Float[Tensor, "batch d_vocab"], p: float) -> Bool[Tensor, "batch d_vocab"]:
    """True for the smallest set of tokens whose probability reaches p."""
    probability, n_tokens = logits.softmax(-1), logits.shape[-1]
    best, order = probability.topk(min(NUCLEUS, n_tokens))
    if n_tokens > NUCLEUS and bool((best.sum(-1) < p).any()):
        best, order = probability.sort(dim=-1, descending=True)
    kept = best.cumsum(-1) - best < p
    return torch.zeros_like(logits, dtype=torch.bool).scatter(-1, order, kept)


def _draw(
    logprobs: Float[Tensor, "batch d_vocab"], uniform: Float[Tensor, " batch"]
) -> tuple[Int[Tensor, " batch"], Float[Tensor, " batch"]]:
    """(token, its log-probability) by inverting the cumulative distribution."""
    cumulative = logprobs.double().exp().cumsum(-1)
    total = cumulative[:, -1:].contiguous()
    token = torch.searchsorted(cumulative, uniform[:, None].double() * total, right=True)[:, 0]
    token = token.clamp(max=logprobs.shape[-1] - 1)
    # Rounding may put the draw on a token that was cut, whose share is zero; the most probable one stands in.
    cut = torch.isneginf(logprobs.gather(-1, token[:, None])[:, 0])
    token = torch.where(cut, logprobs.argmax(-1), token)
    return token, logprobs.gather(-1, token[:, None])[:, 0]


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


# ------------------------------------------------------------------------------------------------------------ results


@dataclass(frozen=True)
class Timing:
    """Wall time of one generation, in its two parts."""

    prefill_s: float
    """Seconds from the prompt's token ids to the first new token."""
    decode_s: float
    """Seconds for the rest."""
    n_decoded: int
    """Tokens made in `decode_s`, all rows together."""

    @property
    def tokens_per_s(self) -> float | None:
        """New tokens a second after the first, None if there was only one step."""
        return self.n_decoded / self.decode_s if self.n_decoded else None


@dataclass(frozen=True)
class Continuation:
    """What was made of one row."""

    prompt_tokens: list[int]
    """Token ids of the prompt."""
    tokens: list[int]
    """New token ids, without the end-of-text token and without tokens that hold nothing but a stop string."""
    text: str
    """The new text, cut before the stop string."""
    logprobs: list[float]
    """Of each new token under the model itself, in nats: temperature 1, no penalty, nothing cut."""
    sampling_logprobs: list[float]
    """Of each new token under the distribution that it was drawn from."""
    entropies: list[float]
    """Of the model's own distribution at each new token, in nats."""
    stop_reason: str
    """`eos` (the end-of-text token), `stop` (one of the caller's stops) or `length` (the limit)."""
    stop: str | int | None
    """The stop string or token id that ended the row."""
    cache: ActivationCache | None = None
    """Recorded values without a batch axis, [token ...], for the tokens in `cache.tokens`."""

    @property
    def all_tokens(self) -> list[int]:
        """Token ids of prompt and new text."""
        return self.prompt_tokens + self.tokens


@dataclass(frozen=True)
class Generation:
    """The result of `model.generate`.

    The properties hold one value for one prompt, a list with an entry for each of several prompts, and one level of
    lists more (the samples of a prompt) where `n_samples` was given. `rows` is always flat.
    """

    prompt: str | list[str] | None
    """As given; None for token ids."""
    rows: tuple[Continuation, ...]
    """Every continuation: the samples of the first prompt, then of the second, and so on."""
    timing: Timing
    """Prefill and decode, apart."""
    one: bool = True
    """The prompt was one, not a list."""
    n_samples: int | None = None
    """Continuations of each prompt, None where the caller did not ask for several."""

    def _shaped(self, value: Callable[[Continuation], Any]) -> Any:
        flat = [value(row) for row in self.rows]
        if self.n_samples is not None:
            n = self.n_samples
            flat = [flat[start : start + n] for start in range(0, len(flat), n)]
        return flat[0] if self.one else flat

    @property
    def text(self) -> Any:
        """The new text alone, str."""
        return self._shaped(lambda row: row.text)

    @property
    def tokens(self) -> Any:
        """The new token ids, list[int]."""
        return self._shaped(lambda row: row.tokens)

    @property
    def all_tokens(self) -> Any:
        """Token ids of prompt and new text, list[int]."""
        return self._shaped(lambda row: row.all_tokens)

    @property
    def logprobs(self) -> Any:
        """Log-probability of each new token under the model, list[float], in nats, before temperature and cuts."""
        return self._shaped(lambda row: row.logprobs)

    @property
    def sampling_logprobs(self) -> Any:
        """Log-probability of each new token under the distribution that was drawn from, list[float]."""
        return self._shaped(lambda row: row.sampling_logprobs)

    @property
    def entropies(self) -> Any:
        """Entropy of the model's own distribution at each new token, list[float], in nats."""
        return self._shaped(lambda row: row.entropies)

    @property
    def stopped(self) -> Any:
        """Whether the text ended before the limit, bool."""
        return self._shaped(lambda row: row.stop_reason != "length")

    @property
    def stop_reason(self) -> Any:
        """`eos`, `stop` or `length`."""
        return self._shaped(lambda row: row.stop_reason)

    @property
    def stop(self) -> Any:
        """The stop string or token id that ended the text, None for another end."""
        return self._shaped(lambda row: row.stop)

    @property
    def cache(self) -> Any:
        """What `sites=` recorded, an ActivationCache without a batch axis; see `generate`."""
        return self._shaped(lambda row: row.cache)


@dataclass(frozen=True)
class Piece:
    """A piece of text of `model.generate_stream`, with the tokens that end in it. Prints as its text."""

    text: str
    """Whole characters; the pieces of a row join to its text. May be empty for tokens that stand for no text."""
    tokens: list[int]
    """New token ids; the pieces of a row join to its tokens."""
    logprobs: list[float]
    """Of each token under the model itself, in nats."""
    sampling_logprobs: list[float]
    """Of each token under the distribution that it was drawn from."""
    entropies: list[float]
    """Of the model's own distribution at each token, in nats."""
    row: int
    """Index in `Generation.rows`."""

    def __str__(self) -> str:
        return self.text
