"""Sampling and the generation loop, apart from the model that it drives.

At each step: scale by the temperature, keep the top k, keep the smallest set with probability p (Holtzman et al. 2020,
arXiv 1904.09751), draw. Each row of a batch has random numbers of its own, so a prompt gets the same continuation alone
and in a batch.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen."""

    temperature: float = 0.0
    """0 is greedy."""
    top_k: int | None = None
    """Keep the k most probable tokens."""
    top_p: float | None = None
    """Keep the smallest set of tokens whose probability reaches p."""
    seed: int = 0
    """Of the random numbers."""

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise ValueError(f"temperature must be 0 (greedy) or more, got {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k must be at least 1, got {self.top_k}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must lie in (0, 1], got {self.top_p}")

    def filtered(self, logits: Float[Tensor, "batch d_vocab"]) -> Float[Tensor, "batch d_vocab"]:
        """Log-probabilities of the distribution that is drawn from; -inf for what was cut."""
        logits = logits.float() / (self.temperature or 1.0)
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            least = logits.topk(self.top_k, dim=-1).values[:, -1:]
            logits = logits.masked_fill(logits < least, -torch.inf)
        if self.top_p is not None and self.top_p < 1:
            ordered, order = logits.sort(dim=-1, descending=True)
            probability = ordered.softmax(-1)
            cut = probability.cumsum(-1) - probability >= self.top_p
            logits = logits.masked_fill(torch.zeros_like(cut).scatter(-1, order, cut), -torch.inf)
        return logits.log_softmax(-1)


@dataclass(frozen=True)
class Timing:
    """Wall time of one generation."""

    prefill_s: float
    """Seconds until the first new token's logits."""
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
    """What the loop made of one row."""

    ids: list[int]
    """New tokens, without the end-of-text token."""
    logprobs: list[float]
    """Of each new token under the model itself (temperature 1, nothing cut)."""
    sampling_logprobs: list[float]
    """Of each new token under the distribution that it was drawn from."""
    stopped: bool
    """The model ended its text; otherwise the limit did."""


@dataclass(frozen=True)
class Generation:
    """The result of `model.generate`. For a list of prompts each field is a list with an entry for every prompt."""

    prompt: str | list[str] | None
    """As given; None for token ids."""
    text: str | list[str]
    """The new text alone."""
    tokens: list[int] | list[list[int]]
    """The new token ids."""
    logprobs: list[float] | list[list[float]]
    """Log-probability of each new token under the model, in nats, before temperature and cuts."""
    sampling_logprobs: list[float] | list[list[float]]
    """Log-probability under the distribution that was drawn from."""
    stopped: bool | list[bool]
    """Whether the end-of-text token came before the limit."""
    timing: Timing
    """Prefill and decode, apart."""


def choose(
    logits: Float[Tensor, "batch d_vocab"], sampling: Sampling, uniform: Float[Tensor, "batch"]
) -> tuple[Int[Tensor, "batch"], Float[Tensor, "batch"], Float[Tensor, "batch"]]:
    """(token, its log-probability under the model, under the sampling distribution) for each row.

    Draws by inverting the cumulative distribution at `uniform`.
    """
    plain = logits.float().log_softmax(-1)
    if sampling.temperature == 0:
        token = logits.argmax(-1)
        return token, plain.gather(-1, token[:, None])[:, 0], torch.zeros_like(uniform)
    drawn_from = sampling.filtered(logits)
    cumulative = drawn_from.double().exp().cumsum(-1)
    total = cumulative[:, -1:].contiguous()
    token = torch.searchsorted(cumulative, uniform[:, None].double() * total, right=True)[:, 0]
    token = token.clamp(max=logits.shape[-1] - 1)
    # Rounding may put the draw on a token that was cut, whose share is zero; the most probable one stands in.
    cut = torch.isneginf(drawn_from.gather(-1, token[:, None])[:, 0])
    if cut.any():
        token = torch.where(cut, drawn_from.argmax(-1), token)
    pick = token[:, None]
    return token, plain.gather(-1, pick)[:, 0], drawn_from.gather(-1, pick)[:, 0]


def generate_loop(
    forward: Callable[[Int[Tensor, "batch pos"] | None, int], Float[Tensor, "batch d_vocab"]],
    n_rows: int,
    max_new_tokens: int,
    sampling: Sampling,
    stop_ids: frozenset[int],
) -> tuple[list[Continuation], Timing]:
    """Call `forward(new tokens or None for the prompt, step)` until every row stopped or the limit is reached."""
    uniforms = np.stack([np.random.default_rng([sampling.seed, row]).random(max_new_tokens) for row in range(n_rows)])
    ids: list[list[int]] = [[] for _ in range(n_rows)]
    plain: list[list[float]] = [[] for _ in range(n_rows)]
    drawn: list[list[float]] = [[] for _ in range(n_rows)]
    alive = [True] * n_rows
    start = time.perf_counter()
    logits = forward(None, 0)
    prefill = time.perf_counter() - start
    decoded = 0
    for step in range(max_new_tokens):
        uniform = torch.from_numpy(uniforms[:, step]).float().to(logits.device)
        token, logprob, sampled = choose(logits, sampling, uniform)
        for row in range(n_rows):
            if alive[row] and int(token[row]) in stop_ids:
                alive[row] = False
            if alive[row]:
                ids[row].append(int(token[row]))
                plain[row].append(float(logprob[row]))
                drawn[row].append(float(sampled[row]))
        if step + 1 == max_new_tokens or not any(alive):
            break
        logits = forward(token[:, None], step + 1)
        decoded += sum(alive)
    decode = time.perf_counter() - start - prefill
    rows = [Continuation(*row) for row in zip(ids, plain, drawn, [not going for going in alive], strict=True)]
    return rows, Timing(prefill, decode, decoded)


def result(
    prompt: str | list[str] | None, texts: list[str], rows: list[Continuation], timing: Timing, one: bool
) -> Generation:
    """The loop's rows as a Generation: plain values for one prompt, lists for several."""
    ids, plain = [row.ids for row in rows], [row.logprobs for row in rows]
    drawn, stopped = [row.sampling_logprobs for row in rows], [row.stopped for row in rows]
    if one:
        return Generation(prompt, texts[0], ids[0], plain[0], drawn[0], stopped[0], timing)
    return Generation(prompt, texts, ids, plain, drawn, stopped, timing)
