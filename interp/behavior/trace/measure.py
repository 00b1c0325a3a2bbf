"""What is measured of one prompt and its answer, as tables.

Every figure of a token is of the place before it, where the model chose it: its probability, what was expected instead, how
open the choice was, where the heads looked while it was made, and at which layer it was settled. Only a probe reads the token
itself. So nothing is known of the first token but that it is there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd
import torch

from interp.lens import logit_lens
from interp.lens.result import LensResult
from interp.lens.translate import Translator
from interp.model import HookedTransformer
from interp.probe.live import score_tokens
from interp.uncertainty.answers import SIGNALS, AnswerText, answer_signals, answer_text, oriented
from interp.uncertainty.attention import Attention, AttentionReader, Queries
from interp.uncertainty.tokens import token_uncertainty

HIGH = 0.9
"""Quantile among the reference from which a sign of doubt is called high."""
LEAST_REFERENCE = 20
"""Fewest answers of a reference: with less a quantile says little."""


@dataclass(frozen=True, eq=False)
class Measured:
    """Tables of a trace, and how the answer's first token formed."""

    tables: dict[str, pd.DataFrame]
    values: dict[str, Any]


def measure(
    model: HookedTransformer,
    prompt: str,
    answer: str | Sequence[int],
    text: AnswerText,
    *,
    joint: str,
    against: Sequence[str],
    subject: str | None,
    probe: Any,
    lens: Translator | None,
    reference: pd.DataFrame | None,
) -> Measured:
    """Everything about one answer; see `hallucination_trace` for the arguments."""
    ids = torch.tensor([text.ids])
    rivals = {other: _first_token(model, prompt, other, joint, text) for other in against}
    followed = list(dict.fromkeys([text.ids[text.start], *rivals.values()]))
    read = logit_lens(model, ids, answer=followed, k=2, lens=lens)
    within = None if subject is None else _subject_places(model, prompt, subject, text)
    attention = _attention(model, text, within)
    layers = _layers(read, text)
    signals = answer_signals(model, [prompt], [answer], joint=joint, lens=lens)
    tables = {
        "tokens": _tokens(model, ids, text, layers, attention, read, within),
        "layers": layers,
        "rivals": _rivals(read, text, followed, {text.ids[text.start]: "", **{i: o for o, i in rivals.items()}}),
        "signals": _signals(signals, reference),
        "probes": _probes(model, ids, probe, text),
    }
    return Measured(tables, {"runs": _runs(layers, text.start), "n_layers": model.cfg.n_layers})


def _first_token(model: HookedTransformer, prompt: str, other: str, joint: str, text: AnswerText) -> int:
    """The first token of another answer, which must differ from that of the given one."""
    found = answer_text(model, prompt, other, joint)
    if found.start != text.start or len(found.ids) <= found.start:
        raise ValueError(f"against={other!r} does not begin where the answer does: begin it with the same kind of sign")
    if found.ids[found.start] == text.ids[text.start]:
        raise ValueError(
            f"against={other!r} begins with the same token as the answer, so layers cannot tell them apart: give another one"
        )
    return found.ids[found.start]


def _subject_places(model: HookedTransformer, prompt: str, subject: str, text: AnswerText) -> list[int]:
    """Places of the tokens that hold the subject, where it stands last in the prompt."""
    at = prompt.rfind(subject)
    if not subject or at < 0:
        raise ValueError(f"the subject {subject!r} does not stand in the prompt: write it as it stands there")
    tokenizer = model.tokenizer
    assert tokenizer is not None
    views = tokenizer.views(text.ids[: text.start], bos_added=text.ids[0] == tokenizer.bos_id)
    first, last = len(prompt[:at].encode()), len(prompt[: at + len(subject)].encode())
    places = [view.pos for view in views if view.start < last and view.end > first]
    if not places:
        raise ValueError(f"no token of the prompt holds the subject {subject!r}: give a longer one")
    return places


def _attention(model: HookedTransformer, text: AnswerText, subject: list[int] | None) -> Attention:
    n = len(text.ids)
    place = torch.arange(n)
    spans = {"the prompt": (place < text.start).expand(n, n)}
    if subject is not None:
        spans["the subject"] = torch.isin(place, torch.tensor(subject)).expand(n, n)
    zero = torch.zeros_like(place)
    reader = AttentionReader(model)
    with torch.inference_mode(), reader.reading(Queries(zero, place, place, zero, spans)):
        model(torch.tensor([text.ids]), stop_at_layer=model.cfg.n_layers)
    return reader.found()


def _layers(read: LensResult, text: AnswerText) -> pd.DataFrame:
    """A row per token but the first, and layer: what the lens guessed for it."""
    n_sites, n = read.entropy.shape
    token = torch.tensor(text.ids[1:])
    top = read.top_ids[:, : n - 1, 0]
    pos = list(range(1, n))
    frame = {
        "pos": np.tile(pos, n_sites),
        "token": [read.labels[i] for i in pos] * n_sites,
        "part": [_part(i, text) for i in pos] * n_sites,
        "layer": np.repeat(read.layers, n - 1),
        "top1": [read.vocabulary[i] for i in top.flatten().tolist()],
        "p_top1": read.top_probs[:, : n - 1, 0].flatten().double().numpy(),
        "p_token": (-read.loss[:, : n - 1]).exp().flatten().double().numpy(),
        "said": (top == token).flatten().numpy(),
        "entropy": read.entropy[:, : n - 1].flatten().double().numpy(),
        "kl": read.kl[:, : n - 1].flatten().double().numpy(),
    }
    return pd.DataFrame(frame).sort_values(["pos", "layer"], kind="stable").reset_index(drop=True)


def _part(place: int, text: AnswerText) -> str:
    return "answer" if place >= text.start else "prompt"


def _tokens(
    model: HookedTransformer,
    ids: torch.Tensor,
    text: AnswerText,
    layers: pd.DataFrame,
    attention: Attention,
    read: LensResult,
    subject: list[int] | None,
) -> pd.DataFrame:
    """A row per token: what was known at the place before it."""
    found = token_uncertainty(model, ids).to_frame()
    n = len(found)

    def before(values: Any) -> np.ndarray:
        column = np.asarray(values, dtype=float)
        return np.concatenate([[np.nan], column[:-1]])

    logprob = found["logprob"].to_numpy(dtype=float, na_value=np.nan)
    frame = pd.DataFrame(
        {
            "pos": np.arange(n),
            "token": found["token"],
            "part": [_part(i, text) for i in range(n)],
            "p": np.exp(logprob),
            "logprob": logprob,
            "rank": before(found["rank"].to_numpy(dtype=float, na_value=np.nan)),
            "expected": ["", *found["top1"][:-1]],
            "p_expected": before(found["p_top1"]),
            "entropy": before(found["entropy"]),
            "margin": before(found["margin"]),
            "attention_diffusion": before(attention.diffusion),
            "attention_sink": before(attention.sink),
            "attention_prompt": before(attention.spans["the prompt"]),
            "attention_subject": before(_seen(attention, subject)),
            "settle_layer": before(read.settle_layer.numpy()),
        }
    )
    formed = {pos: _formed(part) for pos, part in layers.groupby("pos")}
    for index, name in enumerate(("first_layer", "formed_layer", "lost_layer")):
        frame[name] = [formed[pos][index] if pos in formed else np.nan for pos in range(n)]
    return frame


def _seen(attention: Attention, subject: list[int] | None) -> np.ndarray:
    """Share of attention to the subject, from its last token on; before it there is nothing to see."""
    share = np.full(len(attention.sink), np.nan)
    if subject is not None:
        share[max(subject) :] = attention.spans["the subject"][max(subject) :]
    return share


def _formed(part: pd.DataFrame) -> tuple[float, float, float]:
    """First layer with this token on top; first from which it stays so; last at which it was before it was lost."""
    said, layer = part["said"].to_numpy(dtype=bool), part["layer"].to_numpy(dtype=float)
    if not said.any():
        return np.nan, np.nan, np.nan
    first = float(layer[said.argmax()])
    if not said[-1]:
        return first, np.nan, float(layer[said][-1])
    stays = np.flatnonzero(~said)
    return first, float(layer[stays[-1] + 1] if len(stays) else layer[0]), np.nan


def _runs(layers: pd.DataFrame, start: int) -> list[dict[str, Any]]:
    """Top guesses for the answer's first token in the order of layers, equal neighbours joined."""
    own = layers.loc[layers["pos"] == start].sort_values("layer").to_dict("records")
    found = []
    for token, rows in groupby(own, key=lambda row: row["top1"]):
        run = list(rows)
        highest = float(max(row["p_top1"] for row in run))
        ends = {"from": int(run[0]["layer"]), "to": int(run[-1]["layer"])}
        found.append({"token": token, **ends, "p": highest, "said": bool(run[0]["said"])})
    return found


def _rivals(read: LensResult, text: AnswerText, followed: list[int], names: dict[int, str]) -> pd.DataFrame:
    """The answer's first token and those of the other answers, by layer, at the place that chooses."""
    at = text.start - 1
    rows = [
        {
            "layer": layer,
            "answer": names[token] or text.text.strip(),
            "token": read.vocabulary[token],
            "given": not names[token],
            "probability": float(read.answer_probs[site, at, index]),
            "rank": int(read.answer_rank[site, at, index]),
        }
        for index, token in enumerate(followed)
        for site, layer in enumerate(read.layers)
    ]
    return pd.DataFrame(rows)


def _signals(signals: pd.DataFrame, reference: pd.DataFrame | None) -> pd.DataFrame:
    """A row per signal: value, and where it lies among the reference, turned towards doubt."""
    own, turned = signals.iloc[0], oriented(signals).iloc[0]
    others = None if reference is None else oriented(reference)
    rows = []
    for name, info in SIGNALS.items():
        quantile, n = np.nan, 0
        if others is not None and name in others:
            known = others[name].dropna().to_numpy()
            n = len(known)
            if n < LEAST_REFERENCE:
                raise ValueError(f"the reference has {n} values of {name}: at least {LEAST_REFERENCE} are needed")
            if not np.isnan(turned[name]):  # what this answer lacks is not low
                quantile = float((known < turned[name]).mean() + (known == turned[name]).mean() / 2)
        high = bool(quantile >= HIGH)
        rows.append([name, float(own[name]), info.sign, quantile, n, high, info.text])
    columns = ["signal", "value", "doubt", "quantile", "n_reference", "high", "meaning"]
    return pd.DataFrame(rows, columns=pd.Index(columns))


def _probes(model: HookedTransformer, ids: torch.Tensor, probe: Any, text: AnswerText) -> pd.DataFrame:
    """A row per token and probe; none without a probe."""
    columns = ["pos", "token", "part", "probe", "score", "probability", "flag"]
    if probe is None:
        return pd.DataFrame(columns=pd.Index(columns))
    found = score_tokens(model, probe, ids).rename(columns={"position": "pos"})
    found["part"] = [_part(int(pos), text) for pos in found["pos"]]
    return found.loc[:, columns]
