"""Signs of doubt in an answer: everything that one pass over prompt and answer says about it, a row per question.

1. Prompt and answer are tokenised together; the answer's tokens are those after the beginning that both share with the
   prompt alone. An answer may also be given as the token ids that were generated.
2. Prompts that begin alike (the examples of a few-shot prompt) are computed once; others run by length.
3. Of each pass only what is needed stays: the last stream at the places that predict the answer's tokens, the streams of all
   layers at the one that predicts its first token, and numbers from the attention patterns.
4. `SIGNALS` says of each column what it is and which way doubt lies; `oriented` turns all of them so that higher is more
   doubtful, which is how rankings, stacking and gates take them.

Log-probabilities and entropies are those of the model itself at temperature 1, in nats, whatever the answer was drawn from.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Int
from torch import Tensor

from interp.hooks import Request, attached
from interp.lens.translate import Translator
from interp.model import HookedTransformer
from interp.model.inputs import refuse_encoder, refuse_not_finite
from interp.probe.completions import common_prefix
from interp.recording.batching import Batch, Limits, Prices, make_batches
from interp.recording.job import can_share
from interp.uncertainty.attention import AttentionReader, Queries
from interp.uncertainty.forward import logit_chunks
from interp.uncertainty.settling import settling, sites_by_layer
from interp.uncertainty.tokens import _read as read_distributions

log = logging.getLogger("interp")

PASS_TOKENS = 2048
"""Places of one pass with more than one row."""
EMPTY = "empty answer"
"""`reason` of a row without a token to score."""
ALONE = "too few tokens before the answer for its attention to spread"
"""`reason` of a row whose answer follows a single token."""


@dataclass(frozen=True)
class SignalInfo:
    """What a column of `answer_signals` means."""

    sign: int
    """+1: higher is more doubtful; -1: lower is."""
    text: str
    """In words, with the unit."""


SIGNALS: dict[str, SignalInfo] = {
    "nll": SignalInfo(+1, "-log p of the whole answer, nats"),
    "nll_mean": SignalInfo(+1, "-log p per token of the answer, nats"),
    "logprob_first": SignalInfo(-1, "log p of the answer's first token, nats"),
    "logprob_min": SignalInfo(-1, "log p of the answer's least probable token, nats"),
    "entropy_first": SignalInfo(+1, "entropy of the distribution that the first token is drawn from, nats"),
    "entropy_mean": SignalInfo(+1, "entropy of the next token's distribution, mean over the answer's tokens, nats"),
    "entropy_max": SignalInfo(+1, "entropy of the next token's distribution, largest of the answer's tokens, nats"),
    "varentropy_mean": SignalInfo(
        +1, "variance of -log p under the next token's distribution, mean over the tokens, nats²"
    ),
    "margin_mean": SignalInfo(-1, "probability of the top token less that of the second, mean over the tokens"),
    "p_top1_mean": SignalInfo(-1, "probability of the top token, mean over the tokens"),
    "attention_diffusion": SignalInfo(
        +1,
        "normalised entropy of attention without the first token (0 one key, 1 all alike), mean over heads and layers",
    ),
    "attention_diffusion_all": SignalInfo(
        +1, "the same as attention_diffusion with the first token, which takes most of the attention"
    ),
    "attention_sink": SignalInfo(+1, "share of the attention at the text's first token, mean over heads and layers"),
    "settle_depth": SignalInfo(+1, "share of the blocks that ran before the first token's top prediction settled"),
    "lens_entropy": SignalInfo(+1, "entropy of the lens at the first token, mean over the middle layers, nats"),
    "lens_kl": SignalInfo(+1, "KL(final || lens) at the first token, mean over the middle layers, nats"),
    "n_tokens": SignalInfo(+1, "tokens of the answer; a signal that is no better than this one has measured length"),
}
"""Name -> meaning. The signs are what one expects before looking; whether a signal ranks errors is for data to say."""

WHERE = ("prompt", "answer", "merged", "reason")
"""Columns that are no signals."""


def answer_signals(
    model: HookedTransformer,
    prompts: Sequence[str] | Any,
    answers: Sequence[str | Sequence[int]] | Any,
    *,
    joint: str = " ",
    lens: Translator | None = None,
    batch_size: int | Any = 32,
    progress: Callable[[int, int], Any] | None = None,
) -> pd.DataFrame:
    """Score given answers to prompts.

    Args:
        model: a decoder with a tokenizer. Interventions that are active count.
        prompts: texts, each up to where the answer begins.
        answers: one a prompt: a text, or the ids of its tokens as they were generated.
        joint: what is put between a prompt and an answer where neither has a space there, since tokenizers write the space
            with the word; "" for none.
        lens: a trained lens for `settle_depth`, `lens_entropy` and `lens_kl`; None for the logit lens.
        batch_size: texts in a pass; a row of texts that begin alike may hold more.
        progress: called with (answers done, in all).

    Returns:
        A row per prompt, in their order: prompt (its number), answer (as scored), the columns of `SIGNALS`, merged (the
        prompt's end and the answer's beginning are one token, which is then scored as the answer's first), reason (why
        signals of this row are NaN; "" where none is). An answer without a token has NaN in all signals but `n_tokens`.

    The distribution of a token is that at the place before it; attention is that of the same places, mean over them.

    Raises:
        ValueError: other numbers of prompts and answers, none, an empty prompt, ids outside the vocabulary, a text longer than
            the context, NaN in the model, or a model that is no decoder or has no tokenizer.
    """
    texts = _texts(model, prompts, answers, joint)
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise ValueError(f"batch_size must be a whole number from 1 on, got {batch_size!r}")
    scored = [index for index, text in enumerate(texts) if text.start < len(text.ids)]
    found: dict[int, dict[str, float]] = {}
    with torch.inference_mode():
        for batch, chosen in _passes(model, [texts[i] for i in scored], batch_size):
            values = _run(model, batch, [texts[scored[i]] for i in chosen], lens)
            found |= {scored[i]: row for i, row in zip(chosen, values)}
            if progress is not None:
                progress(len(found), len(scored))
    rows = [
        {
            "prompt": index,
            "answer": text.text,
            **found.get(index, dict.fromkeys(SIGNALS, np.nan) | {"n_tokens": 0.0}),
            "merged": text.merged,
            "reason": EMPTY if index not in found else ALONE if np.isnan(found[index]["attention_diffusion"]) else "",
        }
        for index, text in enumerate(texts)
    ]
    frame = pd.DataFrame(rows, columns=pd.Index(["prompt", "answer", *SIGNALS, "merged", "reason"]))
    if len(scored) < len(texts):
        log.warning("%d of %d answers are empty: their signals are NaN", len(texts) - len(scored), len(texts))
    return frame


def oriented(frame: pd.DataFrame) -> pd.DataFrame:
    """The signals of a frame alone, each turned so that higher is more doubtful; NaN stays.

    Raises:
        ValueError: a frame without a column of `SIGNALS`.
    """
    names = [name for name in frame if name in SIGNALS]
    if not names:
        raise ValueError(f"the frame has none of the signals {', '.join(SIGNALS)}: give what answer_signals returns")
    return pd.DataFrame({name: frame[name].astype(float) * SIGNALS[str(name)].sign for name in names})


# -------------------------------------------------------------------------------------------------------------- texts


@dataclass(frozen=True)
class AnswerText:
    """Tokens of a prompt and its answer."""

    ids: list[int]
    start: int
    """Place of the answer's first token, at least 1."""
    text: str
    """The answer as it is scored."""
    merged: bool
    """The answer's first token begins inside the prompt."""


def answer_text(model: HookedTransformer, prompt: str, answer: str | Sequence[int], joint: str = " ") -> AnswerText:
    """Tokens of one prompt and answer together, and where the answer begins.

    Raises:
        ValueError: an empty prompt, or an answer whose first token swallows the whole prompt.
    """
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise ValueError("this model has no tokenizer, and answers are texts: load it with one")
    if not isinstance(prompt, str) or not prompt:
        raise ValueError(f"a prompt is a text that is not empty, got {prompt!r}")
    before = tokenizer.encode(prompt, close=False)
    if not isinstance(answer, str):
        ids = [int(i) for i in answer]
        return AnswerText([*before, *ids], len(before), tokenizer.decode(ids) if ids else "", merged=False)
    if answer and joint and not prompt[-1].isspace() and not answer[0].isspace():
        answer = joint + answer
    whole = tokenizer.encode(prompt + answer, close=False) if answer else list(before)
    start = common_prefix(before, whole)
    if start == 0:
        raise ValueError(
            f"the first token of {prompt + answer!r} holds the whole prompt, so nothing predicts it: begin the prompt with more "
            "text, or use a tokenizer with a BOS"
        )
    return AnswerText(whole, start, answer, merged=start < len(before))


def _texts(model: HookedTransformer, prompts: Any, answers: Any, joint: str) -> list[AnswerText]:
    refuse_encoder(model.cfg, "the doubt in an answer")
    if isinstance(prompts, str) or isinstance(answers, str):
        raise ValueError("prompts and answers are lists of texts of the same length: put a single one in a list")
    asked, given = list(prompts), list(answers)
    if not asked or len(asked) != len(given):
        raise ValueError(f"{len(asked)} prompts and {len(given)} answers: give one answer a prompt, and at least one")
    found = []
    for index, (prompt, answer) in enumerate(zip(asked, given)):
        try:
            found.append(answer_text(model, prompt, answer, joint))
        except ValueError as error:
            raise ValueError(f"row {index}: {error}") from None
    return found


# ------------------------------------------------------------------------------------------------------------- passes


def _passes(
    model: HookedTransformer, texts: Sequence[AnswerText], batch_size: int
) -> Iterator[tuple[Batch, list[int]]]:
    """Forward passes, and which texts are in each."""
    if not texts:
        return
    end = _end(model)
    fed = [text.ids[:end] for text in texts]
    limits = Limits(batch_size, PASS_TOKENS, share=can_share(model))
    offsets = np.cumsum([0, *map(len, fed)])
    tokenizer = model.tokenizer
    assert tokenizer is not None
    ids = np.concatenate([np.asarray(each, dtype=np.int64) for each in fed])
    if int(ids.min()) < 0 or int(ids.max()) >= model.cfg.d_vocab:
        raise ValueError(f"an answer holds a token id outside 0 to {model.cfg.d_vocab - 1}, the model's vocabulary")
    for batch in make_batches(ids, offsets, limits, Prices(model.cfg), tokenizer.pad_id):
        yield batch, batch.texts.tolist()


def _end(model: HookedTransformer) -> int | None:
    """Where a text ends that is run: an answer's last token is read and not fed, but where rotations depend on the length of a
    text it must be there too."""
    return None if model.rope is not None and model.rope.by_length else -1


def _run(
    model: HookedTransformer, batch: Batch, texts: Sequence[AnswerText], lens: Translator | None
) -> list[dict[str, float]]:
    """The signals of the texts of one pass."""
    tokens = model.tokenize(batch.tokens)
    width = tokens.ids.shape[1]
    end = _end(model)
    cells = np.split(batch.cells, np.cumsum([len(text.ids[:end]) for text in texts])[:-1])
    places = [
        own[text.start - 1 : len(text.ids) - 1] for own, text in zip(cells, texts)
    ]  # that predict each token of the answer
    sizes = [len(own) for own in places]
    flat = torch.from_numpy(np.concatenate(places))
    queries = Queries(
        row=flat // width,
        place=flat % width,
        position=torch.cat([torch.arange(text.start - 1, len(text.ids) - 1) for text in texts]),
        sink=torch.from_numpy(np.repeat([own[0] % width for own in cells], sizes)),
    )
    first = torch.from_numpy(np.array([own[0] for own in places]))
    sites = sites_by_layer(model, lens)
    streams, final, attention = _streams(model, tokens, sites, first, flat, queries)
    targets = torch.tensor([i for text in texts for i in text.ids[text.start :]])
    parts = [read_distributions(logits, targets[rows]) for rows, logits in logit_chunks(model, final)]
    values = {name: torch.cat([part[name] for part in parts]).double().numpy() for name in parts[0]}
    values["logprob"] = values.pop("next_logprob")
    values |= {
        "attention_diffusion": attention.diffusion,
        "attention_diffusion_all": attention.diffusion_all,
        "attention_sink": attention.sink,
    }
    settled = settling(model, streams, lens)
    ends = np.cumsum(sizes)[:-1]
    split = {name: np.split(column, ends) for name, column in values.items()}
    rows = [_row({name: column[i] for name, column in split.items()}) for i in range(len(texts))]
    for i, row in enumerate(rows):
        row |= {"settle_depth": settled.depth[i], "lens_entropy": settled.entropy[i], "lens_kl": settled.kl[i]}
    return [{name: float(row[name]) for name in SIGNALS} for row in rows]


def _streams(
    model: HookedTransformer,
    tokens: Any,
    sites: Mapping[str, str],
    first: Int[Tensor, " text"],
    flat: Int[Tensor, " query"],
    queries: Queries,
) -> tuple[dict[str, Tensor], Tensor, Any]:
    """One pass: streams of all layers where the first tokens are predicted, the last one at all queries, attention."""
    streams: dict[str, Tensor] = {}
    names = {site: name for name, site in sites.items()}

    def keep(value: Tensor, ctx: Any) -> None:
        streams[names[ctx.name]] = value.detach().flatten(0, 1)[first.to(value.device)].clone()

    reader = AttentionReader(model)
    entries = [(site, keep, "read") for site in names]
    with reader.reading(queries), attached(model.hook_dict, Request(entries), model.run):
        stream = model(tokens, stop_at_layer=model.cfg.n_layers)
    refuse_not_finite(stream, tokens)
    return {name: streams[name] for name in sites}, stream.flatten(0, 1)[flat.to(stream.device)], reader.found()


def _row(values: Mapping[str, np.ndarray]) -> dict[str, float]:
    """What the tokens of one answer say together."""
    logprob, entropy = values["logprob"], values["entropy"]
    row = {
        "nll": -logprob.sum(),
        "nll_mean": -logprob.mean(),
        "logprob_first": logprob[0],
        "logprob_min": logprob.min(),
        "entropy_first": entropy[0],
        "entropy_mean": entropy.mean(),
        "entropy_max": entropy.max(),
        "varentropy_mean": values["varentropy"].mean(),
        "margin_mean": values["margin"].mean(),
        "p_top1_mean": values["p_top1"].mean(),
        "n_tokens": len(logprob),
    }
    for name in ("attention_diffusion", "attention_diffusion_all", "attention_sink"):
        known = values[name][~np.isnan(values[name])]  # the first token of a text sees itself alone
        row[name] = known.mean() if len(known) else np.nan
    return row
