"""Is the model right as often as it says it is, token by token, on running text?

1. Each document is read once; kept are the last stream at every scored position and the token that follows.
2. Scored are tokens that are not special and have at least one token before them that is not special either.
3. The documents are halved, never the tokens: one half fits the temperature, the other is reported before and after.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp import artifact
from interp.calibration import CalibrationReport, Temperature, calibration_report, fit_temperature_chunks
from interp.dataset import Dataset, grouped_split
from interp.model import HookedTransformer
from interp.uncertainty.forward import final_stream, logit_chunks, right_padded


@dataclass(frozen=True)
class NextTokenCalibration:
    """Calibration of the most probable next token on documents that the temperature never saw."""

    before: CalibrationReport
    """p_top at T = 1 against whether that token came."""
    after: CalibrationReport
    """The same at the fitted temperature."""
    temperature: Temperature
    """Fitted on the other half of the documents."""
    nll_before: float
    """-log p of the true tokens on the reported half at T = 1, nats a token."""
    nll_after: float
    """The same at the fitted temperature."""
    card: dict[str, Any]
    """Provenance, how many texts and tokens, and how many tokens `max_tokens` left out."""

    def to_frame(self) -> pd.DataFrame:
        """The figures of both reports with a column `state` (before, after)."""
        return pd.concat(
            [self.before.to_frame().assign(state="before"), self.after.to_frame().assign(state="after")],
            ignore_index=True,
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: before and after (reports), temperature, temperature_fit, nll_before, nll_after, card."""
        return {
            "before": self.before.to_dict(),
            "after": self.after.to_dict(),
            "temperature": self.temperature.temperature,
            "temperature_fit": self.temperature.card,
            "nll_before": self.nll_before,
            "nll_after": self.nll_after,
            "card": self.card,
        }

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write `to_dict` as JSON, atomically."""
        return artifact.write_json(path, self.to_dict())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "NextTokenCalibration":
        """Read what `save` wrote. ValueError for another kind of file."""
        found = artifact.read_json(path)
        if not isinstance(found, dict) or not {"before", "after", "temperature", "temperature_fit"} <= set(found):
            raise ValueError(f"{path} holds no next-token calibration")
        temperature = Temperature.from_card(found["temperature"], found["temperature_fit"])
        before, after = (CalibrationReport.from_dict(found[key]) for key in ("before", "after"))
        return cls(before, after, temperature, found["nll_before"], found["nll_after"], found["card"])


def next_token_calibration(
    model: HookedTransformer,
    texts: Dataset | Sequence[str],
    *,
    groups: Sequence[Any] | None = None,
    max_tokens: int | None = None,
    batch_size: int = 8,
    n_bins: int = 15,
    n_boot: int = 1000,
    n_null: int = 1000,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> NextTokenCalibration:
    """Calibration of the next token on text, before and after a temperature from other documents.

    Args:
        texts: a `Dataset`, or texts. Every scored token is a row; the bootstrap draws groups.
        groups: the document of each text; by default the data set's groups, else every text is its own.
        max_tokens: score only the first so many tokens of each text; None scores all, and a text that is longer than
            the context is an error.
        batch_size: texts in a forward pass.
        n_bins, n_boot, n_null: as in `calibration_report`.
        seed: of the halving and the draws.
        progress: called with (texts done, texts in all).

    Raises:
        ValueError: fewer than two groups, no token to score in one half, or a text longer than the context.
    """
    plain, documents = text_documents(texts, groups)
    rows, left_out = encoded_texts(model, plain, max_tokens)
    stream, targets, text = _scored(model, rows, batch_size, progress)
    halves = grouped_split(documents, fractions=(0.5, 0.5), seed=seed)
    fit_half, report_half = (torch.from_numpy(np.isin(text.numpy(), half)) for half in halves)
    for name, half in (("fitting", fit_half), ("reported", report_half)):
        if not bool(half.any()):
            raise ValueError(f"the {name} half of the documents holds no token to score: give more or longer texts")
    fit_stream, fit_targets = stream[fit_half], targets[fit_half]

    def chunks() -> Iterator[tuple[Tensor, Tensor]]:
        for part, logits in logit_chunks(model, fit_stream):
            yield logits, fit_targets[part]

    temperature = fit_temperature_chunks(chunks, tolerance=1e-5)
    said = _top(model, stream[report_half], targets[report_half], temperature.temperature)
    clusters = [documents[i] for i in text[report_half].tolist()]
    options = {"y": said.right.numpy(), "n_bins": n_bins, "groups": clusters, "n_boot": n_boot, "n_null": n_null}
    data = {"texts": len(rows), "tokens": len(targets), "tokens_left_out": left_out}
    data |= {"texts_hash": artifact.hash_texts(plain)}
    made = artifact.provenance(model=model.cfg.name, fingerprint=model.fingerprint, seed=seed)
    return NextTokenCalibration(
        before=calibration_report(p_top=said.before, seed=seed, **options),
        after=calibration_report(p_top=said.after, seed=seed, **options),
        temperature=temperature,
        nll_before=said.nll_before,
        nll_after=said.nll_after,
        card={**data, "provenance": made},
    )


def text_documents(texts: Dataset | Sequence[str], groups: Sequence[Any] | None) -> tuple[list[str], list[str]]:
    """Texts, and the document of each."""
    if isinstance(texts, Dataset):
        groups = texts.groups if groups is None else groups
        texts = texts.texts
    documents = [str(i) for i in range(len(texts))] if groups is None else [str(group) for group in groups]
    if len(documents) != len(texts):
        raise ValueError(f"{len(texts)} texts and {len(documents)} groups: give one group for each text")
    if len(set(documents)) < 2:
        raise ValueError(f"at least two documents are needed, one to fit and one to report, got {len(set(documents))}")
    return list(texts), documents


def encoded_texts(model: HookedTransformer, texts: list[str], max_tokens: int | None) -> tuple[list[list[int]], int]:
    """Token ids of each text, and how many tokens `max_tokens` cut off."""
    if model.tokenizer is None:
        raise ValueError("this model has no tokenizer; load it with one")
    if max_tokens is not None and not 2 <= max_tokens <= model.cfg.n_ctx:
        raise ValueError(f"max_tokens must lie in 2..{model.cfg.n_ctx}, the context, got {max_tokens}")
    limit = model.cfg.n_ctx if max_tokens is None else max_tokens
    rows, left_out = [], 0
    for index, text in enumerate(texts):
        ids = model.tokenizer.encode(text)
        if max_tokens is None and len(ids) > limit:
            raise ValueError(
                f"text {index} has {len(ids)} tokens, the context holds {limit}: split it, or pass max_tokens={limit} "
                "to score only its beginning"
            )
        left_out += max(0, len(ids) - limit)
        rows.append(ids[:limit])
    return rows, left_out


def _scored(
    model: HookedTransformer, rows: list[list[int]], batch_size: int, progress: Callable[[int, int], None] | None
) -> tuple[Float[Tensor, "row d_model"], Int[Tensor, " row"], Int[Tensor, " row"]]:
    """Last stream, next token and text index at every scored position."""
    assert model.tokenizer is not None
    special = torch.tensor(sorted(model.tokenizer.special_ids), dtype=torch.int64)
    streams, targets, texts = [], [], []
    for start in range(0, len(rows), batch_size):
        part = [(start + i, row) for i, row in enumerate(rows[start : start + batch_size]) if len(row) > 1]
        if part:
            tokens = right_padded(model, [row for _, row in part])
            keep = predictable(tokens.ids, tokens.mask, special.to(model.device))
            streams.append(final_stream(model, tokens)[:, :-1][keep])
            targets.append(tokens.ids[:, 1:][keep].cpu())
            texts.append(torch.tensor([i for i, _ in part]).repeat_interleave(keep.sum(1).cpu()))
        if progress is not None:
            progress(min(start + batch_size, len(rows)), len(rows))
    if not sum(map(len, targets)):
        raise ValueError("no text holds a token to score: each needs at least two tokens that are not special")
    return torch.cat(streams), torch.cat(targets), torch.cat(texts)


def predictable(
    ids: Int[Tensor, "batch pos"], mask: Bool[Tensor, "batch pos"], special: Int[Tensor, " id"]
) -> Bool[Tensor, "batch query"]:
    """Whether the token after each position is scored."""
    plain = mask & ~torch.isin(ids, special)
    seen = plain.cumsum(1) > 0
    return seen[:, :-1] & plain[:, 1:]


@dataclass(frozen=True, eq=False)
class _Top:
    """The most probable token at each row, before and after scaling."""

    before: Float[Tensor, " row"]
    after: Float[Tensor, " row"]
    right: Bool[Tensor, " row"]
    nll_before: float
    nll_after: float


def _top(
    model: HookedTransformer, stream: Float[Tensor, "row d_model"], targets: Int[Tensor, " row"], temperature: float
) -> _Top:
    n = len(targets)
    p = torch.empty(2, n, dtype=torch.float64)
    logprob = torch.empty(2, n, dtype=torch.float64)
    right = torch.empty(n, dtype=torch.bool)
    for rows, logits in logit_chunks(model, stream):
        target = targets[rows, None].to(logits.device)
        top = logits.argmax(-1, keepdim=True)
        right[rows] = (top == target)[:, 0].cpu()
        for state, scaled in enumerate((logits, logits / temperature)):
            logp = scaled.log_softmax(-1)
            p[state, rows] = logp.gather(-1, top)[:, 0].to("cpu", torch.float64).exp().clamp(max=1.0)
            logprob[state, rows] = logp.gather(-1, target)[:, 0].to("cpu", torch.float64)
    nll = -logprob.mean(1)
    return _Top(p[0], p[1], right, float(nll[0]), float(nll[1]))
