"""What a generation is asked for, and what it hands back; the loop itself stands in `generation.py`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from interp.model.activations import ActivationCache
from interp.model.sampling import Sampling


@dataclass(frozen=True)
class Settings:
    """Everything about a generation but the model and the prompt."""

    sampling: Sampling
    """How tokens are chosen."""
    max_new_tokens: Any
    """The limit for every row."""
    stop: Any = None
    """Stop strings and stop token ids."""
    stop_at_eos: bool = True
    """The end-of-text token ends a row."""
    n_samples: Any = None
    """Continuations of each prompt."""
    sites: Any = None
    """What to record."""

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "n_samples"):
            value = getattr(self, name)
            if not (isinstance(value, int) and not isinstance(value, bool)) and not (
                name == "n_samples" and value is None
            ):
                raise ValueError(f"{name} must be a whole number, got {value!r}")
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be at least 1, got {self.max_new_tokens}")
        if self.n_samples is not None and self.n_samples < 1:
            raise ValueError(f"n_samples must be at least 1, got {self.n_samples}")
        if self.n_samples is not None and self.n_samples > 1 and self.sampling.greedy:
            raise ValueError(
                f"n_samples={self.n_samples} greedy continuations would all be the same; pass temperature= above 0"
            )
        for stop in self.stops:
            if not isinstance(stop, (str, int)) or isinstance(stop, bool):
                raise ValueError(f"stop must hold strings or token ids, got {stop!r}")
            if stop == "":
                raise ValueError("a stop string must not be empty: every text holds the empty string")

    @property
    def stops(self) -> tuple[Any, ...]:
        """Stop strings and stop token ids, as a tuple."""
        if self.stop is None:
            return ()
        return tuple(self.stop) if isinstance(self.stop, Sequence) and not isinstance(self.stop, str) else (self.stop,)


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
    end_tokens: list[int] = field(default_factory=list)
    """The tokens that ended the row and are left out of `tokens`: end-of-text, or nothing but a stop string."""
    end_logprobs: list[float] = field(default_factory=list)
    """Of each of them under the model itself, in nats: with `logprobs`, the probability of the text and of its end."""
    end_entropies: list[float] = field(default_factory=list)
    """Of the model's own distribution at each of them, in nats."""

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
