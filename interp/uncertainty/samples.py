"""Several answers to each prompt, drawn from the model: what agreement among answers is measured on.

1. Equal prompts are asked once: an answer follows from the seed, the prompt and its number, so they get equal answers.
2. Prompts of like length are batched. Each is prefilled once, and its samples are decoded together with those of others;
   rows that have ended leave the batch. The result is that of `model.generate(prompt, n_samples=n)` prompt by prompt.
3. The greedy answers come from a second generation: they are what is graded (Farquhar et al. 2024, Nature 630).

The log-probability of an answer is that of its tokens *and of its end*, under the model itself (temperature 1, nothing
cut): without the end, an empty answer would have probability 1, and a short one that of all its continuations.
"""

import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float

from interp import artifact
from interp.model import HookedTransformer
from interp.model.generate import Continuation, Settings
from interp.model.inputs import refuse_encoder
from interp.model.sampling import Sampling

KIND = "answer_samples"
GREEDY = -1
"""Number of the greedy answer among the samples."""
WHOLE = ("prompt", "sample", "n_tokens", "n_end")
FIGURES = ("logprob", "logprob_mean", "entropy_mean", "first_entropy")
COLUMNS = ["prompt", "sample", "text", "n_tokens", "n_end", *FIGURES, "ended"]


@dataclass(frozen=True, eq=False)
class AnswerSamples:
    """Answers to prompts; made by `sample_answers`."""

    rows: pd.DataFrame
    """A row per answer, by prompt and sample.

    - prompt (index), sample (0 to n - 1; -1 is the greedy answer), text (without spaces at either end)
    - n_tokens: of the answer; n_end: tokens that ended it (end-of-text or a stop string) and are no part of it
    - logprob: of the answer and its end, nats, under the model itself; logprob_mean: the same a token
    - entropy_mean, first_entropy: of the model's distribution at these tokens, and at the first, nats
    - ended: it stopped before the limit; where it did not, logprob is that of all answers that begin so
    """
    prompts: tuple[str, ...]
    """As they were asked."""
    n: int
    """Samples of each prompt, the greedy answer not counted."""
    ids: tuple[tuple[int, ...], ...]
    """Token ids of each row, those of its end included."""
    card: dict[str, Any]
    """Settings and provenance."""

    def __len__(self) -> int:
        return len(self.prompts)

    def __str__(self) -> str:
        ended = self.sampled["ended"].mean()
        empty = self.all_empty
        told = f"; {len(empty)} prompts got empty answers only" if empty else ""
        return f"{self.n} sampled answers to each of {len(self)} prompts, {ended:.0%} ended before the limit{told}"

    @property
    def sampled(self) -> pd.DataFrame:
        """The rows without the greedy answers."""
        return self.rows.loc[self.rows["sample"] != GREEDY]

    @property
    def greedy(self) -> pd.DataFrame:
        """The greedy answers, a row per prompt.

        Raises:
            ValueError: they were not made.
        """
        found = self.rows.loc[self.rows["sample"] == GREEDY]
        if not len(found):
            raise ValueError("there are no greedy answers: sample with greedy=True")
        return found.reset_index(drop=True)

    @property
    def all_empty(self) -> list[int]:
        """Prompts whose samples are all empty: their agreement says nothing about knowing."""
        return [prompt for prompt in range(len(self)) if not any(self.texts(prompt))]

    def texts(self, prompt: int) -> list[str]:
        """Of the samples of one prompt."""
        return [str(text) for text in self._of(prompt)["text"]]

    def logprobs(self, prompt: int) -> Float[np.ndarray, " sample"]:
        """Of the samples of one prompt, nats, each with its end."""
        return self._of(prompt)["logprob"].to_numpy(dtype=float)

    def token_ids(self, prompt: int, sample: int, *, end: bool = False) -> list[int]:
        """Of one answer; `end=True` with the tokens that ended it."""
        mine = self.rows["prompt"].to_numpy() == self._checked(prompt)
        places = np.flatnonzero(mine & (self.rows["sample"].to_numpy() == sample))
        if not len(places):
            also = ", and -1" if mine.sum() > self.n else ""
            raise ValueError(f"sample={sample}: the samples are 0 to {self.n - 1}{also}")
        ids = self.ids[places[0]]
        return list(ids if end else ids[: self.rows["n_tokens"].to_numpy()[places[0]]])

    def save(self, path: str | os.PathLike[str]) -> Path:
        """One safetensors file with a card; `load_answer_samples` reads it."""
        tensors = {name: torch.tensor(self.rows[name].to_numpy(dtype=np.int64)) for name in WHOLE}
        tensors |= {name: torch.tensor(self.rows[name].to_numpy(dtype=np.float64)) for name in FIGURES}
        tensors["ended"] = torch.tensor(self.rows["ended"].to_numpy(dtype=bool))
        tensors["ids"] = torch.tensor([each for row in self.ids for each in row], dtype=torch.int64)
        texts = [str(text) for text in self.rows["text"]]
        return artifact.save_artifact(path, KIND, tensors, {**self.card, "prompts": list(self.prompts), "texts": texts})

    def _of(self, prompt: int) -> pd.DataFrame:
        rows = self.sampled
        return rows.loc[rows["prompt"] == self._checked(prompt)]

    def _checked(self, prompt: int) -> int:
        if not 0 <= prompt < len(self):
            raise ValueError(f"prompt={prompt}: there are {len(self)} prompts, 0 to {len(self) - 1}")
        return prompt


def load_answer_samples(path: str | os.PathLike[str]) -> AnswerSamples:
    """Read what `AnswerSamples.save` wrote. ValueError for a damaged file or another kind."""
    tensors, card = artifact.load_artifact(path, KIND)
    prompts, texts, flat = card.pop("prompts"), card.pop("texts"), tensors.pop("ids").tolist()
    lengths = (tensors["n_tokens"] + tensors["n_end"]).tolist()
    if len(texts) != len(lengths) or sum(lengths) != len(flat):
        raise ValueError(f"{path} does not agree with itself ({len(texts)} answers, {len(flat)} tokens): make it again")
    ends = np.cumsum(lengths).tolist()
    ids = tuple(tuple(flat[end - length : end]) for length, end in zip(lengths, ends, strict=True))
    frame = pd.DataFrame({name: value.numpy() for name, value in tensors.items()} | {"text": texts})
    return AnswerSamples(frame.reindex(columns=COLUMNS), tuple(prompts), card["n"], ids, card)


def sample_answers(
    model: HookedTransformer,
    prompts: Sequence[str] | str | Any,
    n: int | Any = 10,
    *,
    max_new_tokens: int | Any = 8,
    temperature: float | Any = 1.0,
    top_k: int | Any = None,
    top_p: float | Any = None,
    stop: Any = "\n",
    seed: int | Any = 0,
    greedy: bool = True,
    batch_rows: int | Any = 320,
    progress: Callable[[int, int], None] | None = None,
) -> AnswerSamples:
    """Draw `n` answers to each prompt, and the greedy answer.

    Interventions that are active count. One that chooses rows does not go with this: prompts are dealt out to batches by
    length, so row 0 of a batch is no prompt in particular.

    Args:
        model: a language model with a tokenizer.
        prompts: texts that end where an answer begins, such as "Question: ...?\\nAnswer:". A single text is one prompt.
        n: answers to each.
        max_new_tokens: the limit of an answer.
        temperature: of the draws. Log-probabilities and entropies are those of the model itself all the same.
        top_k: draw from the k most probable tokens.
        top_p: draw from the smallest set with this probability.
        stop: strings or token ids that end an answer; end-of-text does in any case. None for no other end.
        seed: of the draws. An answer follows from it, from its prompt and its number, not from the other prompts.
        greedy: make the greedy answers too, numbered -1.
        batch_rows: answers that are decoded together. Memory grows with it, and the result does not depend on it but for
            rounding.
        progress: called with (prompts done, prompts in all).

    Raises:
        ValueError: no prompts, an empty one or one that does not fit the context with its answer, several samples at
            temperature 0, an option out of its range, no tokenizer, or a model that is no decoder.
    """
    refuse_encoder(model.cfg, "sampling answers")
    sampling = Sampling(temperature, top_k, top_p, seed)
    for name, value in (("n", n), ("batch_rows", batch_rows)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
    if n > 1 and sampling.greedy:
        raise ValueError(f"n={n} samples at temperature 0 would all be the same: pass a temperature above 0, or n=1")
    settings = Settings(sampling, max_new_tokens, stop)  # checks the rest
    texts = _checked_prompts(prompts)
    lengths = _lengths(model, texts, settings)
    draws = {"max_new_tokens": max_new_tokens, "stop": stop}
    done, times = 0, Counter(texts)
    found: dict[str, list[tuple[int, Continuation]]] = {text: [] for text in lengths}
    for batch in _batches(lengths, max(1, batch_rows // n)):
        options = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed, "n_samples": n}
        drawn = model.generate(batch, **draws, **options).rows
        best = model.generate(batch, **draws).rows if greedy else ()
        for place, text in enumerate(batch):
            found[text] += [(GREEDY, row) for row in best[place : place + 1]]
            found[text] += list(enumerate(drawn[place * n : (place + 1) * n]))
        done += sum(times[text] for text in batch)
        if progress is not None:
            progress(done, len(texts))
    answers = [(prompt, number, row) for prompt, text in enumerate(texts) for number, row in found[text]]
    card = {
        "n": n, "greedy": greedy, "max_new_tokens": max_new_tokens, "stop": list(settings.stops), "temperature": temperature,
        "top_k": top_k, "top_p": top_p, "seed": seed,
        "provenance": artifact.provenance(model=model.cfg.name, fingerprint=model.fingerprint),
    }  # fmt: skip
    frame = pd.DataFrame([_figures(*answer) for answer in answers], columns=COLUMNS)
    ids = tuple((*row.tokens, *row.end_tokens) for _, _, row in answers)
    return AnswerSamples(frame, tuple(texts), n, ids, card)


def _checked_prompts(prompts: Any) -> list[str]:
    texts = [prompts] if isinstance(prompts, str) else list(prompts)
    if not texts:
        raise ValueError("there are no prompts: give at least one")
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"prompt {index} must be a text, got {type(text).__name__}")
    return texts


def _lengths(model: HookedTransformer, texts: Sequence[str], settings: Settings) -> dict[str, int]:
    """Tokens of each distinct prompt."""
    found: dict[str, int] = {}
    for index, text in enumerate(texts):
        if text in found:
            continue
        try:
            found[text] = int(model.tokenize(text, close=False).lengths[0])
        except ValueError as error:
            raise ValueError(f"prompt {index}: {error}") from None
        if found[text] + settings.max_new_tokens > model.cfg.n_ctx:
            raise ValueError(
                f"prompt {index} has {found[text]} tokens, which with {settings.max_new_tokens} new ones do not fit the "
                f"context of {model.cfg.n_ctx}: shorten it, or lower max_new_tokens"
            )
    return found


def _batches(lengths: dict[str, int], size: int) -> Iterator[list[str]]:
    """Prompts of like length, the shortest first."""
    ordered = sorted(lengths, key=lengths.__getitem__)
    for start in range(0, len(ordered), size):
        yield ordered[start : start + size]


def _figures(prompt: int, sample: int, row: Continuation) -> dict[str, Any]:
    logprobs, entropies = [*row.logprobs, *row.end_logprobs], [*row.entropies, *row.end_entropies]
    logprob = math.fsum(logprobs)
    return {
        "prompt": prompt,
        "sample": sample,
        "text": row.text.strip(),
        "n_tokens": len(row.tokens),
        "n_end": len(row.end_tokens),
        "logprob": logprob,
        "logprob_mean": logprob / len(logprobs),
        "entropy_mean": math.fsum(entropies) / len(entropies),
        "first_entropy": entropies[0],
        "ended": row.stop_reason != "length",
    }
