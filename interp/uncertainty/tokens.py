"""Uncertainty at every token of a text.

At each position the model gives a distribution p over the next token. From it, in nats: entropy H = -sum p log p;
varentropy = sum p (log p + H)², how unequal the surprises are; margin, the lead of the first token over the second. And
from the text itself: the log-probability of this token given those before it, and the rank of the token that follows.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp import artifact
from interp.model import HookedTransformer
from interp.uncertainty.forward import final_stream, logit_chunks

KIND = "token_uncertainty"
NUMBERS = ("logprob", "entropy", "varentropy", "margin", "p_top1")
PLACES = ("text", "pos", "token_ids", "top_ids", "rank")


@dataclass(frozen=True, eq=False)
class TokenUncertainty:
    """A row for each real token of each text; made by `token_uncertainty`."""

    text: Int[Tensor, " row"]
    """Which text the token belongs to."""
    pos: Int[Tensor, " row"]
    """Its position there, from 0; pads have no row."""
    token_ids: Int[Tensor, " row"]
    logprob: Float[Tensor, " row"]
    """log p(this token | those before it), nats; NaN at the first token of a text, which nothing predicts."""
    entropy: Float[Tensor, " row"]
    """Of the next token's distribution at this position, nats, 0 to log d_vocab."""
    varentropy: Float[Tensor, " row"]
    """Variance of -log p under the same distribution, nats²."""
    margin: Float[Tensor, " row"]
    """Probability of its first token less that of its second."""
    top_ids: Int[Tensor, " row"]
    """Its most probable token."""
    p_top1: Float[Tensor, " row"]
    rank: Int[Tensor, " row"]
    """How many tokens are more probable than the one that does follow; -1 at the last token of a text."""
    vocabulary: dict[int, str]
    """Readable form of every id that occurs."""
    card: dict[str, Any]
    """Provenance."""

    def to_frame(self) -> pd.DataFrame:
        """text, pos, token, token_id, logprob, entropy, varentropy, margin, top1, p_top1, rank; NA where undefined."""
        columns = {
            "text": self.text.numpy(),
            "pos": self.pos.numpy(),
            "token": [self.vocabulary[i] for i in self.token_ids.tolist()],
            "token_id": self.token_ids.numpy(),
            "logprob": pd.array([None if x != x else x for x in self.logprob.tolist()], dtype="Float64"),
            "entropy": self.entropy.numpy(),
            "varentropy": self.varentropy.numpy(),
            "margin": self.margin.numpy(),
            "top1": [self.vocabulary[i] for i in self.top_ids.tolist()],
            "p_top1": self.p_top1.numpy(),
            "rank": pd.array([None if x < 0 else x for x in self.rank.tolist()], dtype="Int64"),
        }
        return pd.DataFrame(columns)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """One safetensors file with a card; `load_token_uncertainty` reads it."""
        tensors = {name: getattr(self, name) for name in (*PLACES, *NUMBERS)}
        # A saved value holds no NaN; which tokens are first is known from their positions.
        tensors["logprob"] = self.logprob.nan_to_num(nan=0.0)
        card = {**self.card, "vocabulary": {str(i): piece for i, piece in self.vocabulary.items()}}
        return artifact.save_artifact(path, KIND, tensors, card)


def load_token_uncertainty(path: str | os.PathLike[str]) -> TokenUncertainty:
    """Read what `TokenUncertainty.save` wrote. ValueError for a damaged file or another kind."""
    tensors, card = artifact.load_artifact(path, KIND)
    vocabulary = {int(i): piece for i, piece in card.pop("vocabulary").items()}
    tensors["logprob"] = tensors["logprob"].masked_fill(tensors["pos"] == 0, torch.nan)
    return TokenUncertainty(**tensors, vocabulary=vocabulary, card=card)


def token_uncertainty(model: HookedTransformer, x: Any) -> TokenUncertainty:
    """Entropy, log-probability, margin and rank at every token.

    Args:
        x: text, texts, token ids or `Tokens`. All of it is one batch.

    Logits are made for a few rows at a time, so memory does not grow with positions times vocabulary. Interventions
    that are active count, as in every pass; one on the final norm is an error, since the norm is computed row by row.

    Raises:
        ValueError: an empty text, ids outside the vocabulary, or a text longer than the context.
    """
    tokens = model.tokenize(x)
    stream = final_stream(model, tokens)[tokens.mask]
    mask = tokens.mask.cpu()
    ids, pos = tokens.ids.cpu()[mask], tokens.positions.cpu()[mask]
    text = torch.arange(len(mask)).repeat_interleave(mask.sum(1))
    following = torch.where(pos.roll(-1) == 0, -1, ids.roll(-1))
    found = [_read(logits, following[rows]) for rows, logits in logit_chunks(model, stream)]
    values = {name: torch.cat([part[name] for part in found]) for name in found[0]}
    next_logprob = values.pop("next_logprob")
    logprob = next_logprob.roll(1).masked_fill(pos == 0, torch.nan)
    occurring = sorted({*ids.tolist(), *values["top_ids"].tolist()})
    return TokenUncertainty(
        text=text,
        pos=pos,
        token_ids=ids,
        logprob=logprob,
        **values,
        vocabulary={i: _label(model, i) for i in occurring},
        card={"provenance": artifact.provenance(model=model.cfg.name, fingerprint=model.fingerprint)},
    )


def _read(logits: Float[Tensor, "row d_vocab"], following: Int[Tensor, " row"]) -> dict[str, Tensor]:
    """What one chunk of distributions says, on the CPU; `following` is -1 where no token follows."""
    logp = logits.log_softmax(-1)
    p = logp.exp()
    entropy = torch.special.entr(p).sum(-1)
    surprise = logp.masked_fill(p == 0, 0.0) + entropy[:, None]
    top = p.topk(2, dim=-1)
    follow = logp.gather(-1, following.clamp(min=0)[:, None].to(logits.device))
    rank = (logp > follow).sum(-1).cpu()
    values = {
        "next_logprob": follow[:, 0],
        "entropy": entropy,
        "varentropy": (p * surprise**2).sum(-1),
        "margin": top.values[:, 0] - top.values[:, 1],
        "top_ids": top.indices[:, 0],
        "p_top1": top.values[:, 0],
        "rank": torch.where(following < 0, -1, rank),
    }
    return {name: value.cpu().clone() for name, value in values.items()}


def _label(model: HookedTransformer, token: int) -> str:
    return model.tokenizer.views([token])[0].display if model.tokenizer is not None else str(token)
