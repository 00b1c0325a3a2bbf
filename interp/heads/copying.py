"""Does a head, when it looks at a token, make that token more likely? Two measures from the weights alone.

1. *Effect*: take what the head reads at a token, by one of two bases: its row of the embedding, or its mean resid_pre in
   the head's layer over texts. It goes through the norm's own scale, ln1's gain, W_V W_O of the kv group, ln_final's gain
   and W_U: logits of every token, centred over the vocabulary and divided by their standard deviation. The effect is that
   of the token's own logit. Mean and deviation are exact and cost no logits: with z = row A [d_head] and the writing
   factor B, the logits are z B W_U, so their variance is z (B cov(W_U) B^T) z.
2. *Top share*: how many tokens have their own logit among the highest 1 % of a seeded sample of the vocabulary.
3. *Eigenvalue share* (Elhage et al. 2021): the sum of the eigenvalues of W_E OV W_U over the sum of their sizes, from -1
   to 1. That matrix is [d_vocab, d_vocab]; its eigenvalues but for zeros are those of B (W_U W_E) A, [d_head, d_head].
   Centred over the vocabulary too.
4. *Null*: the same sample with tokens and logits permuted against each other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp import artifact
from interp.bootstrap import mean_interval
from interp.heads import folded
from interp.heads.streams import TokenStreams, token_streams
from interp.model import HookedTransformer
from interp.model.factored import FactoredMatrix
from interp.model.vocabulary import token_id
from interp.plot.weights import copying_scatter

BASES = ("embed", "stream")
PERMUTATIONS = 200
KIND = "copying scores"


@dataclass(frozen=True, eq=False)
class CopyingScores:
    """Copying of every head, in one basis or both."""

    effect: dict[str, Float[Tensor, "layer head token"]]
    """Basis -> effect on each token's own logit, in standard deviations over the vocabulary."""
    above: dict[str, Float[Tensor, "layer head token"]]
    """Basis -> share of the sampled vocabulary whose logit is higher than the token's own."""
    null: dict[str, Float[Tensor, "layer head permutation"]]
    """Basis -> mean effect on the logits of permuted tokens, for each permutation."""
    eigen: dict[str, Float[Tensor, "layer head"]]
    """Basis -> eigenvalue share: over the whole vocabulary (embed), or the tokens of the sample (stream)."""
    eigen_null: dict[str, Float[Tensor, "layer head"]]
    """Basis -> eigenvalue share with the tokens permuted, once."""
    ids: Int[Tensor, "token"]
    """The tokens of the sample."""
    card: dict[str, Any]
    """Model, fingerprint, seed, sizes of the samples, `top`, and what the weights leave out."""

    @property
    def bases(self) -> tuple[str, ...]:
        """embed, stream, or both."""
        return tuple(self.effect)

    def to_frame(self) -> pd.DataFrame:
        """A line per head. For each basis, with its name at the end: effect with `_low` and `_high` (95 % over tokens),
        null_high (97.5 % of the permutations), top (share of tokens in the highest share `top`), rank (median share of
        the vocabulary above), eigen and eigen_null; then n, the number of tokens."""
        n_layers, n_heads, n = next(iter(self.effect.values())).shape
        frame = pd.DataFrame(
            {"layer": np.repeat(np.arange(n_layers), n_heads), "head": np.tile(np.arange(n_heads), n_layers)}
        )
        for basis in self.bases:
            values, above = self.effect[basis].flatten(0, 1).double().numpy(), self.above[basis].flatten(0, 1).numpy()
            low, high = mean_interval(values, int(self.card["seed"]))
            columns = {
                "effect": values.mean(1), "null_high": self.null[basis].flatten(0, 1).double().quantile(0.975, -1).numpy(),
                "top": (above < self.card["top"]).mean(1), "rank": np.median(above, 1),
                "eigen": self.eigen[basis].flatten().numpy(), "eigen_null": self.eigen_null[basis].flatten().numpy(),
            }  # fmt: skip
            for name, column in columns.items():
                frame[f"{name}_{basis}"] = column
                if name == "effect":
                    frame[f"effect_{basis}_low"], frame[f"effect_{basis}_high"] = low, high
        return frame.assign(n=n)

    def top(self, n: int = 10, basis: str | None = None) -> pd.DataFrame:
        """The n heads with the largest mean effect; None takes the last basis, which is the streams where there are some."""
        basis = self._basis(basis)
        return self.to_frame().nlargest(n, f"effect_{basis}").reset_index(drop=True)

    def plot(self, basis: str | None = None) -> alt.LayerChart:
        """Effect against eigenvalue share."""
        basis = self._basis(basis)
        return copying_scatter(self.to_frame(), f"effect_{basis}", f"eigen_{basis}")

    def save(self, path: str | Path) -> Path:
        """One safetensors file with a card; `load_copying_scores` reads it."""
        tensors = {f"{name}.{basis}": getattr(self, name)[basis] for name in _FIELDS for basis in self.bases}
        card = self.card | {"bases": list(self.bases)}
        return artifact.save_artifact(path, KIND, tensors | {"ids": self.ids}, card)

    def _basis(self, basis: str | None) -> str:
        if basis is not None and basis not in self.effect:
            raise ValueError(f"basis {basis!r} was not measured; there is {', '.join(self.bases)}")
        return basis or self.bases[-1]


_FIELDS = ("effect", "above", "null", "eigen", "eigen_null")


def load_copying_scores(path: str | Path) -> CopyingScores:
    """Read what `CopyingScores.save` wrote."""
    tensors, card = artifact.load_artifact(path, KIND)
    bases = card.pop("bases")
    fields = {name: {basis: tensors[f"{name}.{basis}"] for basis in bases} for name in _FIELDS}
    return CopyingScores(ids=tensors["ids"], card=card, **fields)


@torch.no_grad()
def copying_scores(
    model: HookedTransformer,
    *,
    tokens: Sequence[int] | None = None,
    n: int = 500,
    basis: str | None = None,
    texts: Any = None,
    n_vocab: int = 4000,
    top: float = 0.01,
    seed: int = 0,
) -> CopyingScores:
    """How much every head copies what it looks at.

    Args:
        model: any decoder with plain attention (grouped or not).
        tokens: ids to measure on; with texts, they must occur there. None draws n of those that occur in the texts at
            least twice, or of the vocabulary from 1000 to 40000 (as far as it goes), which leaves out special tokens,
            single bytes and the rarest words.
        n: tokens to draw.
        basis: "embed", "stream" (needs texts), or None: embed, and stream where there are texts. Layer 0 reads the
            embedding; for later layers the streams are nearer to what heads see.
        texts: what `model.tokenize` takes, for the mean streams.
        n_vocab: logits that a token's own is ranked among, drawn from the vocabulary.
        top: the share of these that counts as the top.
        seed: of tokens, vocabulary, permutations and bootstrap.

    Raises:
        ValueError: an unknown basis, "stream" without texts, fewer than two tokens, and models whose heads are no such
            product (latent attention, encoders, post-LN).
    """
    folded.refuse_circuits(model, "OV circuit")
    if basis is not None and basis not in BASES:
        raise ValueError(f"basis must be 'embed', 'stream' or None, got {basis!r}")
    if basis == "stream" and texts is None:
        raise ValueError("basis='stream' needs texts=, in which the tokens occur")
    if n_vocab < 1 or not 0 < top < 1:
        raise ValueError(f"n_vocab={n_vocab} must be at least 1, and top={top} a share between 0 and 1")
    streams, generator = None, torch.Generator().manual_seed(seed)
    if texts is None:
        ids = _drawn(model, tokens, n, generator)
    else:
        streams = token_streams(model, texts, tokens=tokens, n=n, min_count=1 if tokens is not None else 2, seed=seed)
        ids = streams.ids
    if len(ids) < 2:
        raise ValueError(f"copying is measured over at least two tokens, got {len(ids)}: the null permutes them")
    bases = BASES if streams is not None and basis is None else (basis or "embed",)
    pool = torch.randperm(model.cfg.d_vocab, generator=generator)[:n_vocab].to(model.device)
    measure = _Measure(model, ids, pool, generator)
    found: dict[str, list[dict[str, Tensor]]] = {name: [] for name in bases}
    for layer in range(model.cfg.n_layers):
        circuits = folded.ov_circuits(model, layer)
        for name in bases:
            found[name].append(measure.layer(circuits, None if name == "embed" else _streams_of(model, streams, layer)))
    fields = {
        field: {name: torch.stack([part[field] for part in found[name]]).float().cpu() for name in bases}
        for field in _FIELDS
    }
    card = artifact.provenance(
        analysis=KIND, model=model.cfg.name, fingerprint=model.fingerprint, seed=seed, n=len(ids), n_vocab=len(pool),
        top=top, places=int(streams.counts.sum()) if streams is not None else None,
        left_out=folded.left_out(model, "OV"),
    )  # fmt: skip
    return CopyingScores(ids=ids.cpu(), card=card, **fields)


def _streams_of(model: HookedTransformer, streams: TokenStreams | None, layer: int) -> Float[Tensor, "token d_model"]:
    assert streams is not None
    return folded.normed_rows(model, streams.means[layer])


def _drawn(
    model: HookedTransformer, tokens: Sequence[int] | None, n: int, generator: torch.Generator
) -> Int[Tensor, "token"]:
    """The tokens asked for, or a sample of the vocabulary."""
    if tokens is not None:
        given = sorted({token_id(model, token) for token in tokens})
        return torch.tensor(given, dtype=torch.long, device=model.device)
    low, high = min(1000, model.cfg.d_vocab // 4), min(40000, model.cfg.d_vocab)
    return (low + torch.randperm(high - low, generator=generator)[:n]).sort().values.to(model.device)


class _Measure:
    """What all layers share: the vocabulary's moments, the sampled logits' rows, the permutations."""

    def __init__(self, model: HookedTransformer, ids: Tensor, pool: Tensor, generator: torch.Generator) -> None:
        n, d_vocab = len(ids), model.cfg.d_vocab
        total = sum(folded.unembedding_rows(model, part).double().sum(0) for part in folded.vocabulary_chunks(model))
        own = folded.unembedding_rows(model, ids)
        dtype, mean = own.dtype, torch.as_tensor(total / d_vocab).to(own.dtype)
        self.own = own - mean
        self.pool = folded.unembedding_rows(model, pool) - mean
        self.rows = folded.normed_rows(model, folded.embedding_rows(model, ids))
        self.is_own = pool[None] == ids[:, None]
        self.permuted = torch.stack([torch.randperm(n, generator=generator) for _ in range(PERMUTATIONS)]).to(
            ids.device
        )
        order = torch.randperm(d_vocab, generator=generator).to(ids.device)
        width = model.cfg.d_model
        covariance, cross, crossed = (
            torch.zeros(width, width, dtype=torch.float64, device=ids.device) for _ in range(3)
        )
        for part in folded.vocabulary_chunks(model):
            out = folded.unembedding_rows(model, part) - mean
            covariance += out.T @ out / d_vocab
            cross += out.T @ folded.normed_rows(model, folded.embedding_rows(model, part))
            crossed += out.T @ folded.normed_rows(model, folded.embedding_rows(model, order[part]))
        self.covariance, self.cross, self.crossed = covariance.to(dtype), cross.to(dtype), crossed.to(dtype)

    def layer(self, circuits: FactoredMatrix, streams: Float[Tensor, "token d_model"] | None) -> dict[str, Tensor]:
        """All figures of one layer's heads, by the names of `CopyingScores`' fields; `streams` None reads embeddings."""
        rows, cross, crossed = self.rows, self.cross, self.crossed
        if streams is not None:
            rows = streams
            cross, crossed = self.own.T @ rows, self.own.T @ rows[self.permuted[0]]
        found = []
        for left, right in zip(circuits.A, circuits.B, strict=True):
            z = rows @ left
            deviation = torch.einsum("te,ef,tf->t", z, right @ self.covariance @ right.T, z).clamp(min=0).sqrt()
            # A head that writes nothing has no effect, and no deviation to divide by.
            scale = torch.where(deviation > 0, 1 / deviation, 0.0)[:, None]
            mutual = (z @ (right @ self.own.T)) * scale
            logits = (z @ (right @ self.pool.T)) * scale
            effect = mutual.diagonal()
            higher = (logits > effect[:, None]) & ~self.is_own
            tokens = torch.arange(len(rows), device=rows.device)
            found.append(
                {
                    "effect": effect,
                    "above": higher.sum(1) / (~self.is_own).sum(1).clamp(min=1),
                    "null": mutual[tokens, self.permuted].mean(1),
                    "eigen": _share(right @ cross @ left),
                    "eigen_null": _share(right @ crossed @ left),
                }
            )
        return {name: torch.stack([head[name] for head in found]) for name in found[0]}


def _share(matrix: Float[Tensor, "d_head d_head"]) -> Float[Tensor, ""]:
    """Sum of the eigenvalues over the sum of their sizes; 0 where all are 0."""
    values = torch.linalg.eigvals(matrix)
    size = values.abs().sum()
    return torch.where(size > 0, values.real.sum() / size, 0.0)
