"""Generation with a KV cache: one prefill of the prompt, then one pass for each new token, hooked like any other pass.

`GenerationStream` is the loop, one step at a time; `generate` runs it to its end. Rows are padded on the left, so that
every row's next token is the last place. Rows that have ended leave the batch, unless a hook looks on: what it is given
keeps its rows. How a token is chosen stands in `sampling.py`, the options and the result in `generate.py`, text and stop
strings in `textstream.py`, recording in `recorder.py`.
"""

import math
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from interp.hooks import HookPoint
from interp.model.activations import ActivationCache
from interp.model.cache import KVCache
from interp.model.continuing import Row
from interp.model.generate import Continuation, Generation, Piece, Settings, Timing
from interp.model.inputs import left_padded, refuse_encoder
from interp.model.lens_style import LensStyle
from interp.model.passes import ForwardPass
from interp.model.recorder import Recorder
from interp.model.sampling import Choice, Sampling, choose, uniforms
from interp.tokens import Tokenizer, Tokens

WORTH = 8
"""A batch shrinks once this part of it has ended: copying the cache costs a tenth of a pass."""
SHARED = 16
"""Prompts that begin with at least so many tokens alike (the examples of a few-shot prompt) run those once."""


class Generating(LensStyle, ForwardPass):
    """The part of HookedTransformer that continues texts."""

    tokenizer: Tokenizer | None
    hook_dict: dict[str, HookPoint]

    @abstractmethod
    def tokenize(self, x: Any, **options: Any) -> Tokens:
        """Text, texts, ids or Tokens -> checked Tokens."""

    @abstractmethod
    def expand_sites(self, wanted: Any) -> list[str]:
        """Shorthand, patterns and names -> full names."""

    def generate(
        self,
        prompt: Any,
        max_new_tokens: int | Any = 20,
        *,
        temperature: float | Any = 0.0,
        top_k: int | Any = None,
        top_p: float | Any = None,
        min_p: float | Any = None,
        repetition_penalty: float | Any = 1.0,
        seed: int | Any = 0,
        stop: str | int | Sequence[Any] | Any = None,
        stop_at_eos: bool = True,
        n_samples: int | Any = None,
        sites: Any = None,
    ) -> Generation:
        """Continue a prompt, or each of a list of prompts, with a KV cache.

        Hooks and interventions see every pass: `ctx.phase` is `prefill` or `decode`, `ctx.positions` are absolute.

        Args:
            prompt: text, texts, ids or Tokens, padded on any side. Rows do not see each other.
            max_new_tokens: the limit for every row.
            temperature: logits are divided by it; 0 is greedy.
            top_k: draw from the k most probable tokens.
            top_p: draw from the smallest set with this probability.
            min_p: draw from tokens at least this many times as probable as the most probable one.
            repetition_penalty: weaken (above 1) or strengthen tokens that the prompt or the new text holds.
            seed: of the draws. They depend on it and on the row's own prompt, not on the other rows.
            stop: strings or token ids that end a row. The text is cut before the stop string, also where it begins
                inside a token, and tokens that hold nothing but the stop string are left out of the result.
            stop_at_eos: end a row at the tokenizer's end-of-text token, which is left out of the result.
            n_samples: so many continuations of each prompt from one prefill, each with random numbers of its own. The
                result's values are then lists by prompt.
            sites: record these sites (names, shorthand or patterns) into `out.cache`: for each row an ActivationCache
                without a batch axis, [token ...], of prompt and new tokens, the same as one pass over the text gives.
                `out.cache.tokens` are the tokens that have values: those of `out.all_tokens` that were fed. The last
                new token is chosen and not fed, so it has none, but where the row ended by the token after it.

        Raises:
            ValueError: an option out of its range, an empty prompt or stop string, prompt and new tokens that do not fit
                the context, a stop string without a tokenizer, a site that cannot be recorded, or a model that is no
                decoder.
        """
        sampling = Sampling(temperature, top_k, top_p, seed, min_p, repetition_penalty)
        settings = Settings(sampling, max_new_tokens, stop, stop_at_eos, n_samples, sites)
        return GenerationStream(self, prompt, settings).finish()

    def generate_stream(
        self,
        prompt: Any,
        max_new_tokens: int | Any = 20,
        *,
        stop: str | int | Sequence[Any] | Any = None,
        stop_at_eos: bool = True,
        n_samples: int | Any = None,
        sites: Any = None,
        **sampling: Any,
    ) -> "GenerationStream":
        """`generate`, piece by piece: iterate over the result for `Piece`s, then ask it for `.result`.

        The pieces of a row join to its text exactly. A piece holds whole characters only, and never text that a stop
        string may still cut off. With several rows, `piece.row` says whose it is.

        Args:
            prompt: as in `generate`, like the other named options.
            max_new_tokens: the limit for every row.
            stop: strings or token ids that end a row.
            stop_at_eos: end a row at the end-of-text token.
            n_samples: continuations of each prompt.
            sites: what to record; `.result.cache` has it.
            sampling: temperature, top_k, top_p, min_p, repetition_penalty, seed.

        Raises:
            ValueError: at once, as in `generate`; while iterating, if hooks were attached or removed since the stream was
                made: iterate inside the `with` block.
        """
        settings = Settings(Sampling(**sampling), max_new_tokens, stop, stop_at_eos, n_samples, sites)
        return GenerationStream(self, prompt, settings)


class GenerationStream(Iterator[Piece]):
    """A generation under way. Iterating gives `Piece`s; `.result` is there when it is done."""

    def __init__(self, model: Generating, prompt: Any, settings: Settings) -> None:
        refuse_encoder(model.cfg, "generation")
        tokens = left_padded(model.tokenize(prompt, close=False))  # a prompt goes on
        self._model, self._settings, self._prompt = model, settings, tokens
        self._lengths = tokens.lengths
        longest = int(self._lengths.max())
        if longest + settings.max_new_tokens > model.cfg.n_ctx:
            raise ValueError(
                f"{longest} prompt tokens and {settings.max_new_tokens} new ones do not fit the context of "
                f"{model.cfg.n_ctx}; shorten the prompt or lower max_new_tokens"
            )
        self._one = isinstance(prompt, str) or (
            not isinstance(prompt, Tokens) and tokens.texts is None and len(tokens) == 1
        )
        self._given = prompt if isinstance(prompt, str) else tokens.texts
        stops = [stop for stop in settings.stops if isinstance(stop, str)]
        if stops and model.tokenizer is None:
            raise ValueError(f"stop={stops[0]!r} needs a tokenizer; this model has none: stop at token ids instead")
        self._stop_ids = {stop for stop in settings.stops if isinstance(stop, int)}
        outside = [stop for stop in self._stop_ids if not 0 <= stop < model.cfg.d_vocab]
        if outside:
            raise ValueError(f"stop={outside[0]} is no token of this model: ids lie in 0..{model.cfg.d_vocab - 1}")
        self._eos = model.tokenizer.eos_id if model.tokenizer is not None and settings.stop_at_eos else None
        prompts, copies = [tokens.row(index) for index in range(len(tokens))], settings.n_samples or 1
        self._rows = [Row(ids, stops) for ids in prompts for _ in range(copies)]
        self._batch = list(range(len(self._rows)))
        """Indices of the rows that the next pass reads."""
        self._recorder = None
        if settings.sites is not None:
            self._refuse_restarts(longest)
            self._recorder = Recorder(model.hook_dict, model.run, model.expand_sites(settings.sites))
        self._uniforms = None
        if not settings.sampling.greedy:
            drawn = uniforms(settings.sampling.seed, prompts, copies, settings.max_new_tokens)
            self._uniforms = drawn.to(model.device)
        self._ready: deque[Piece] = deque()
        self._step = self._n_decoded = 0
        self._prefill_s = self._decode_s = 0.0
        self._result: Generation | None = None
        self._handles = self._attached()

    def _refuse_restarts(self, longest: int) -> None:
        rope = self._model.rope
        if rope is not None and rope.moves(self._lengths, self._lengths + self._settings.max_new_tokens):
            raise ValueError(
                f"{self._model.cfg.name} turns all tokens anew when a text of {longest} tokens grows beyond its original "
                "context, so values recorded before do not hold: generate first, then record the whole text"
            )

    # Reading ------------------------------------------------------------------------------------------------------

    def __next__(self) -> Piece:
        while not self._ready:
            if self._result is not None:
                raise StopIteration
            self._advance()
        return self._ready.popleft()

    @property
    def result(self) -> Generation:
        """The whole generation.

        Raises:
            ValueError: the stream has not been read to its end; `finish()` does it.
        """
        if self._result is None:
            raise ValueError("the generation is not done: read the stream to its end, or call finish()")
        return self._result

    def finish(self) -> Generation:
        """Generate what is left, and the result."""
        while self._result is None:
            self._advance()
        return self._result

    def _attached(self) -> list[int]:
        points = self._model.hook_dict.values()
        return [id(handle) for point in points if point.handles for handle in point.handles]

    # One step -----------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """One pass and one token for every row that goes on."""
        if self._attached() != self._handles:
            raise ValueError(
                "hooks of the model were attached or removed while its stream was being read, so one text would be half "
                "with them and half without: make the stream and read it inside the same with block"
            )
        began = time.perf_counter()
        with torch.inference_mode():
            with nullcontext() if self._recorder is None else self._recorder.reading():
                logits = self._prefill() if self._step == 0 else self._decode()
            choice = self._choose(logits)
            self._feed = choice.token
            # One transfer for all rows and figures: every one is a wait on an accelerator.
            figures = (choice.token, choice.logprob, choice.sampling_logprob, choice.entropy)
            found = torch.stack([figure.double() for figure in figures], 1).tolist()
        going = [place for place, index in enumerate(self._batch) if self._rows[index].stop_reason is None]
        for place in going:
            self._take(self._batch[place], int(found[place][0]), found[place][1:])
        self._step += 1
        took = time.perf_counter() - began
        if self._step == 1:
            self._prefill_s = took
        else:
            self._decode_s += took
            self._n_decoded += len(going)
        if all(row.stop_reason is not None for row in self._rows):
            self._result = self._assembled()

    def _prefill(self) -> Tensor:
        model, prompt, copies = self._model, self._prompt, self._settings.n_samples or 1
        n_rows, width = prompt.ids.shape
        places, shared = width + self._settings.max_new_tokens, self._shared()
        if shared:
            logits = self._prefill_shared(shared, places)
        else:
            self._kv = KVCache(model.cfg, n_rows, places, model.dtype, model.device)
            logits = model._next(prompt, self._kv, "prefill", 0, self._lengths, None)
        self._row_lengths = self._lengths.repeat_interleave(copies)
        self._used = None
        if self._settings.sampling.repetition_penalty != 1:
            first = prompt.ids.gather(1, prompt.first[:, None])
            self._used = torch.where(prompt.mask, prompt.ids, first)  # a pad is no token of the text
        return logits

    def _shared(self) -> int:
        """Tokens that all prompts begin with, if running them once is worth it and nothing could tell the difference."""
        model, prompt = self._model, self._prompt
        watched = bool(self._handles) or self._recorder is not None
        by_length = model.rope is not None and model.rope.by_length
        if len(prompt.ids) < 2 or watched or by_length or model.cfg.window is not None:
            return 0
        rows = [ids[mask] for ids, mask in zip(prompt.ids, prompt.mask)]
        n = int(self._lengths.min()) - 1  # each row keeps a token whose logits are read
        alike = torch.stack([row[:n] for row in rows])
        same = int((alike == alike[:1]).all(0).cumprod(0).sum())
        return same if same >= SHARED else 0

    def _prefill_shared(self, shared: int, places: int) -> Tensor:
        """The tokens that all prompts begin with once, then the rest of each behind them."""
        model, prompt = self._model, self._prompt
        n_rows, width = prompt.ids.shape
        first = prompt.ids[0][prompt.mask[0]][None, :shared]
        head = Tokens(first, torch.ones_like(first, dtype=torch.bool))
        kv = KVCache(model.cfg, 1, places, model.dtype, model.device)
        model._next(head, kv, "prefill", 0, self._lengths[:1], None)
        self._kv = kv.taken(torch.zeros(n_rows, dtype=torch.long, device=model.device))
        left = self._lengths - shared
        longest = int(left.max())
        own = torch.arange(longest, device=model.device) >= (longest - left)[:, None]
        rest = Tokens(prompt.ids[:, width - longest :], own)
        return model._next(rest, self._kv, "prefill", 0, self._lengths, torch.full_like(self._lengths, shared))

    def _decode(self) -> Tensor:
        self._arrange()
        new = self._feed[:, None]
        if self._used is not None:
            self._used = torch.cat([self._used, new], 1)
        tokens = Tokens(new, torch.ones_like(new, dtype=torch.bool))
        start = self._row_lengths + (self._step - 1)
        return self._model._next(tokens, self._kv, "decode", self._step, self._row_lengths, start)

    def _arrange(self) -> None:
        """The rows of the next pass: the samples of each prompt after the prefill, without rows that ended if those are
        many and nothing looks on."""
        places, copies = range(len(self._batch)), self._settings.n_samples or 1 if self._step == 1 else 1
        going = [place for place in places if self._rows[self._batch[place]].stop_reason is None]
        watched = bool(self._handles) or self._recorder is not None
        if watched or (len(places) - len(going)) * WORTH < len(places):
            if copies == 1:
                return
            going = list(places)
        rows = torch.tensor(going, device=self._model.device)
        of_prompt = rows.div(copies, rounding_mode="floor")
        self._kv = self._kv.taken(of_prompt)
        self._kv.copies *= copies
        self._used = None if self._used is None else self._used[of_prompt]
        self._batch = [self._batch[place] for place in going]
        self._feed, self._row_lengths = self._feed[rows], self._row_lengths[rows]
        self._uniforms = None if self._uniforms is None else self._uniforms[rows]

    def _choose(self, logits: Tensor) -> Choice:
        uniform = None if self._uniforms is None else self._uniforms[:, self._step]
        return choose(logits, self._settings.sampling, uniform, self._used)

    def _take(self, index: int, token: int, figures: Sequence[float]) -> None:
        row = self._rows[index]
        row.n_chosen += 1
        if math.isnan(figures[0]):
            raise ValueError(
                f"the logits of row {index} are NaN or infinite after {row.n_chosen - 1} new tokens: the unembedding is "
                f"damaged, or {str(self._model.dtype).removeprefix('torch.')} is too narrow"
            )
        if token in self._stop_ids:
            row.end_with(token, figures, "stop", token)
        elif token == self._eos:
            row.end_with(token, figures, "eos")
        else:
            row.add(token, figures, b"" if self._model.tokenizer is None else self._model.tokenizer.token_bytes(token))
        if row.stop_reason is None and self._step + 1 == self._settings.max_new_tokens:
            row.end("length")
        piece = row.piece(index)
        if piece is not None:
            self._ready.append(piece)

    # The result ---------------------------------------------------------------------------------------------------

    def _assembled(self) -> Generation:
        rows = []
        for index, row in enumerate(self._rows):
            assert row.stop_reason is not None
            cache = None if self._recorder is None else self._cache(self._recorder, index, row)
            made = (row.tokens, row.text.text, *row.figures, row.stop_reason, row.stop)
            left_out, logprobs, entropies = ([end[part] for end in row.left_out] for part in range(3))
            rows.append(Continuation(row.prompt_tokens, *made, cache, [int(i) for i in left_out], logprobs, entropies))
        timing = Timing(self._prefill_s, self._decode_s, self._n_decoded)
        del self._kv
        return Generation(self._given, tuple(rows), timing, self._one, self._settings.n_samples)

    def _cache(self, recorder: Recorder, index: int, row: Row) -> ActivationCache:
        prompt, n_prompt = index // (self._settings.n_samples or 1), len(row.prompt_tokens)
        values = recorder.values(prompt, n_prompt, index, row.n_fed)
        ids = torch.tensor([row.prompt_tokens + row.tokens[: row.n_fed]], device=self._model.device)
        tokens = Tokens(ids, torch.ones_like(ids, dtype=torch.bool), self._prompt.bos_added)
        batched = {name: value[None] for name, value in values.items()}
        cache = ActivationCache(batched, tokens, list(self._model.hook_dict), self._model)
        return cache.remove_batch_dim()
