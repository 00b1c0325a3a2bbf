"""The logit lens: what would be predicted if the model stopped here (nostalgebraist 2020).

1. Run the model once and keep the residual stream at the sites asked for.
2. For each site and token: the final norm *recomputed for that row*, then the unembedding. (Dividing by the final
   layer's scale instead is the well-known mistake; it flattens the early layers.)
3. Reduce each distribution at once to its top tokens, entropy, rank and divergence. Nothing of size
   [site, token, vocabulary] is ever held.

Divergence is KL(final || lens), in nats. The *settle layer* of a token is the first layer from which the top
prediction is the final one at every later layer.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp import artifact, plot
from interp import sites as site_names
from interp.model import HookedTransformer
from interp.model.inputs import refuse_not_finite
from interp.sites import kind_of, layer_of

CHUNK = 256
"""Rows unembedded at a time: 256 x 50k floats are 50 MB."""
STREAM = ("embed", "resid_pre", "resid_mid", "resid_post")


@dataclass(frozen=True, eq=False)
class LensResult:
    """Predictions by site and token. A row is one real token of one text."""

    sites: tuple[str, ...]
    """Full site names, in the order of computation."""
    text: Int[Tensor, "row"]
    """Which text the token belongs to."""
    pos: Int[Tensor, "row"]
    """Its position there."""
    token_ids: Int[Tensor, "row"]
    """The token itself."""
    labels: tuple[str, ...]
    """The token as a person reads it."""
    top_ids: Int[Tensor, "site row k"]
    """Most probable next tokens, best first."""
    top_probs: Float[Tensor, "site row k"]
    """Their probabilities."""
    entropy: Float[Tensor, "site row"]
    """Of the predicted distribution, nats."""
    kl: Float[Tensor, "site row"]
    """KL(final || lens), nats."""
    loss: Float[Tensor, "site row"]
    """-log p of the true next token, nats; NaN at each text's last token."""
    target_ids: Int[Tensor, "row"]
    """The token whose probability is followed: the answer that was named, else the final layer's top prediction."""
    target_probs: Float[Tensor, "site row"]
    """Its probability."""
    target_rank: Int[Tensor, "site row"]
    """Its rank, 0 is the top."""
    vocabulary: dict[int, str]
    """Readable form of every token id that occurs."""
    card: dict[str, Any]
    """Provenance."""

    @property
    def layers(self) -> list[int]:
        """Layer of each site, -1 for the embedding."""
        return [-1 if (layer := layer_of(site)) is None else layer for site in self.sites]

    @property
    def settle_layer(self) -> Int[Tensor, "row"]:
        """First layer from which the top prediction stays the final one; the last layer at the latest."""
        agrees = self.top_ids[:, :, 0] == self.top_ids[-1, :, 0]
        stays = agrees.flip(0).cumprod(0).flip(0).bool()
        return torch.tensor(self.layers)[stays.int().argmax(0)]

    def to_frame(self) -> pd.DataFrame:
        """One line for each site and token: site, layer, text, pos, token, top1, p_top1, entropy, kl, loss, target,
        p_target, rank, settle_layer."""
        n_sites, n_rows = self.entropy.shape
        read = self.vocabulary.__getitem__
        settle = self.settle_layer.numpy()
        columns = {
            "site": np.repeat([site_names.short_name(site) for site in self.sites], n_rows),
            "layer": np.repeat(self.layers, n_rows),
            "text": np.tile(self.text.numpy(), n_sites),
            "pos": np.tile(self.pos.numpy(), n_sites),
            "token": list(self.labels) * n_sites,
            "top1": [read(i) for i in self.top_ids[:, :, 0].flatten().tolist()],
            "p_top1": self.top_probs[:, :, 0].flatten().numpy(),
            "entropy": self.entropy.flatten().numpy(),
            "kl": self.kl.flatten().numpy(),
            "loss": self.loss.flatten().numpy(),
            "target": [read(i) for i in self.target_ids.tolist()] * n_sites,
            "p_target": self.target_probs.flatten().numpy(),
            "rank": self.target_rank.flatten().numpy(),
            "settle_layer": np.tile(settle, n_sites),
        }
        return pd.DataFrame(columns)

    def top(self, site: str, pos: int, text: int = 0) -> pd.DataFrame:
        """The top tokens at one place: token, probability."""
        found = ((self.text == text) & (self.pos == pos)).nonzero()
        if not len(found):
            raise ValueError(f"there is no position {pos} in text {text}; it has positions 0 to {int(self.pos.max())}")
        row = int(found[0, 0])
        index = self.sites.index(site_names.full_name(site))
        ids, probs = self.top_ids[index, row].tolist(), self.top_probs[index, row].tolist()
        return pd.DataFrame({"token": [self.vocabulary[i] for i in ids], "probability": probs})

    def plot(self, statistic: str = "p_top1", text: int = 0) -> alt.LayerChart | alt.Chart:
        """Tokens down, layers across, coloured by the statistic."""
        frame = self.to_frame()
        return plot.lens_grid(frame.loc[frame["text"] == text], statistic)

    def save(self, path: str | Path) -> Path:
        """One safetensors file with a card; `load_lens` reads it."""
        names = (
            "text",
            "pos",
            "token_ids",
            "top_ids",
            "top_probs",
            "entropy",
            "kl",
            "loss",
            "target_ids",
            "target_probs",
            "target_rank",
        )
        tensors = {name: getattr(self, name).contiguous() for name in names}
        # The last token of each text has no next one: written as -1, for a file holds no NaN.
        tensors["loss"] = tensors["loss"].nan_to_num(-1.0)
        vocabulary = {str(key): value for key, value in self.vocabulary.items()}
        card = self.card | {"sites": list(self.sites), "labels": list(self.labels), "vocabulary": vocabulary}
        return artifact.save_artifact(Path(path), "lens", tensors, card)


def load_lens(path: str | Path) -> LensResult:
    """Read what `LensResult.save` wrote."""
    tensors, card = artifact.load_artifact(Path(path), "lens")
    tensors["loss"] = tensors["loss"].masked_fill(tensors["loss"] < 0, torch.nan)
    vocabulary = {int(key): value for key, value in card.pop("vocabulary").items()}
    sites, labels = tuple(card.pop("sites")), tuple(card.pop("labels"))
    return LensResult(sites=sites, labels=labels, vocabulary=vocabulary, card=card, **tensors)


@torch.inference_mode()
def logit_lens(
    model: HookedTransformer,
    x: Any,
    *,
    sites: Any = None,
    answer: str | int | None = None,
    k: int = 5,
) -> LensResult:
    """Read the residual stream through the final norm and the unembedding.

    Args:
        model: any loaded model.
        x: a text, texts, token ids or Tokens.
        sites: places in the residual stream; None for the embedding and the stream after each block. The last block's end
            is always among them.
        answer: a token (text or id) to follow; None follows the final layer's own top prediction at each token.
        k: how many top tokens to keep.

    Raises:
        ValueError: a site outside the residual stream (its norm is not the stream's), or an answer of several tokens.
    """
    # Where blocks norm the stream itself, it is the normed one that the next block and the unembedding read.
    end = "normalized_resid_post" if model.cfg.norm_placement == "post_ln" else "resid_post"
    stream_kinds = ("embed", "resid_pre", end) if end != "resid_post" else STREAM
    names = model.expand_sites(("embed", f"{end}:*") if sites is None else sites)
    odd = [name for name in names if kind_of(name).kind not in stream_kinds]
    if odd:
        raise ValueError(
            f"{odd[0]} is not the residual stream as the lens reads it, with the final norm; use {', '.join(stream_kinds)}"
        )
    last = site_names.full_name(f"{end}:{model.cfg.n_layers - 1}")
    if last not in names:
        names = [*names, last]
    if not 1 <= k <= model.cfg.d_vocab:
        raise ValueError(f"k must lie in 1..{model.cfg.d_vocab}, got {k}")
    target = _answer_id(model, answer)
    _, cache = model.run_with_cache(x, sites=[*names, "resid_pre:0"], stop_at_layer=model.cfg.n_layers)
    tokens = cache.tokens
    for name in names:
        refuse_not_finite(cache[name], tokens)
    text, column = tokens.mask.nonzero(as_tuple=True)
    ids = tokens.ids[text, column]
    following = torch.full_like(ids, -1)
    if model.cfg.causal:  # an encoder has seen the next token
        following[:-1] = torch.where(text[1:] == text[:-1], ids[1:], -1)
    streams = [_stream(cache, name)[text, column] for name in names]
    parts = [
        _read(model, [stream[i : i + CHUNK] for stream in streams], following[i : i + CHUNK], target, k)
        for i in range(0, len(ids), CHUNK)
    ]
    joined = {
        key: torch.cat([part[key] for part in parts], dim=parts[0][key].ndim - (2 if key.startswith("top") else 1))
        for key in parts[0]
    }
    seen = {int(i) for i in torch.cat([joined["top_ids"].flatten(), joined["target_ids"], ids]).unique()}
    readable = {i: _label(model, i) for i in sorted(seen)}
    labels = tuple(readable[int(i)] for i in ids)
    card = artifact.provenance(model=model.cfg.name, fingerprint=model.fingerprint, analysis="logit lens")
    return LensResult(
        sites=tuple(names),
        text=text.cpu(),
        pos=tokens.positions[text, column].cpu(),
        token_ids=ids.cpu(),
        labels=labels,
        vocabulary=readable,
        card=card,
        **{key: value.cpu() for key, value in joined.items()},
    )


def _stream(cache: Any, name: str) -> Tensor:
    """The stream at a site; the embedding counts with all that is added to it before the first block reads it."""
    return cache["resid_pre", 0] if name == "hook_embed" else cache[name]


def _read(
    model: HookedTransformer, streams: list[Tensor], following: Tensor, target: int | None, k: int
) -> dict[str, Tensor]:
    """All statistics of one chunk of rows; the last stream is the final one."""
    final = model.unembed_logits(streams[-1]).float().log_softmax(-1)
    targets = final.argmax(-1) if target is None else torch.full_like(following, target)
    found: dict[str, list[Tensor]] = {
        key: [] for key in ("top_ids", "top_probs", "entropy", "kl", "loss", "target_probs", "target_rank")
    }
    for stream in streams:
        logp = final if stream is streams[-1] else model.unembed_logits(stream).float().log_softmax(-1)
        top = logp.topk(k, dim=-1)
        follow = logp.gather(-1, targets[:, None])
        next_logp = logp.gather(-1, following.clamp(min=0)[:, None])[:, 0]
        values = {
            "top_ids": top.indices,
            "top_probs": top.values.exp(),
            "entropy": torch.special.entr(logp.exp()).sum(-1),
            "kl": (final.exp() * (final - logp)).sum(-1).clamp(min=0.0),
            "loss": (-next_logp).masked_fill(following < 0, torch.nan),
            "target_probs": follow[:, 0].exp(),
            "target_rank": (logp > follow).sum(-1),
        }
        for key, value in values.items():
            found[key].append(value)
    return {key: torch.stack(value) for key, value in found.items()} | {"target_ids": targets}


def _answer_id(model: HookedTransformer, answer: str | int | None) -> int | None:
    if answer is None or isinstance(answer, int):
        if isinstance(answer, int) and not 0 <= answer < model.cfg.d_vocab:
            raise ValueError(f"answer id {answer} lies outside the vocabulary of {model.cfg.d_vocab}")
        return answer
    if model.tokenizer is None:
        raise ValueError("this model has no tokenizer; give the answer as a token id")
    return model.tokenizer.to_single_token(answer)


def _label(model: HookedTransformer, token: int) -> str:
    return model.tokenizer.views([token])[0].display if model.tokenizer is not None else str(token)
