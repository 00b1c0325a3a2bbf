"""The two circuits of a head as factored matrices (Elhage et al. 2021, A Mathematical Framework for Transformer Circuits).

*OV* says what a head writes for what it reads, *QK* which keys a query looks for. Both are [d_model, d_model] of rank
d_head and are kept as their factors, with the gains of the norms around the head folded in (`interp/heads/folded.py`).

1. The singular vectors of a circuit are directions; what they mean is read off the tokens nearest to them: those whose
   embedding has the largest product with what is read, and whose logit rises most by what is written. The sign of a
   singular vector is arbitrary, but that of the pair is not: the tokens of `+` on one side go with those of `+` on the
   other, and `-` with `-`.
2. For one token, the circuit gives what the head writes when it looks at it, or whom it looks for from it.

Vocabulary by vocabulary the circuit is a table of billions of numbers, which is never made: a few rows at a time are.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd
import torch
from jaxtyping import Complex, Float
from torch import Tensor

from interp import artifact
from interp.heads import folded
from interp.heads.streams import TokenStreams
from interp.model import HookedTransformer
from interp.model.factored import FactoredMatrix
from interp.model.vocabulary import token_id
from interp.plot.weights import singular_values

SIDES = {"OV": ("reads", "writes"), "QK": ("query", "key")}
"""Left and right side of each circuit."""
KIND = "head circuit"
COLUMNS = ["component", "singular_value", "side", "sign", "rank", "id", "token", "score"]


@dataclass(frozen=True, eq=False)
class HeadCircuit:
    """One circuit of one head."""

    which: str
    """OV or QK."""
    layer: int
    """The layer."""
    head: int
    """The query head; its keys and values are those of its kv group."""
    matrix: FactoredMatrix
    """[d_model d_model]: OV takes what is read (left) to what is written (right), QK is the score of what a query reads
    (left) with what a key reads (right)."""
    table: pd.DataFrame
    """A line for each token that a singular vector stands for: component, singular_value, side, sign, rank, id, token,
    score (the product with the vector)."""
    card: dict[str, Any]
    """Model, fingerprint, offset, and `left_out`: what depends on the text and is not in the matrix."""

    def svd(
        self, k: int | Any = None
    ) -> tuple[Float[Tensor, "d_model k"], Float[Tensor, "k"], Float[Tensor, "d_model k"]]:
        """The k largest components (U, S, V), vectors as columns; None gives all d_head.

        Raises:
            ValueError: k that is no number from 1 to d_head.
        """
        u, s, v = self.matrix.svd()
        if k is not None and not (isinstance(k, int) and 1 <= k <= len(s)):
            raise ValueError(f"k={k!r}: the circuit has 1 to {len(s)} components")
        return u[:, :k], s[:k], v[:, :k]

    @property
    def eigenvalues(self) -> Complex[Tensor, "d_head"]:
        """All eigenvalues that are not 0. Of an OV circuit, those with a positive real part keep what they read."""
        return self.matrix.eigenvalues

    def top_tokens(
        self,
        model: HookedTransformer,
        token: int | str,
        n: int = 10,
        *,
        as_key: bool = False,
        streams: TokenStreams | None = None,
    ) -> pd.DataFrame:
        """What the head writes when it looks at a token (OV), or the keys that a token looks for (QK).

        Args:
            model: the model that the circuit is of.
            token: an id, or the text of one token.
            n: tokens to show; the token itself is the last line where it is not among them.
            as_key: in a QK circuit, the queries that look for the token instead.
            streams: mean streams by token. The token is then read as it is in this layer, and in a QK circuit so are the
                others, which are those of the streams. None reads rows of the embedding.

        Returns:
            rank (0 is the largest), id, token, score, z: the score over the mean of all candidates, in their standard
            deviations.

        Raises:
            ValueError: another model, an unknown token, or as_key of an OV circuit.
        """
        self._check_model(model)
        if as_key and self.which == "OV":
            raise ValueError("as_key=True asks a QK circuit for its queries; this is the OV circuit")
        own = token_id(model, token)
        with torch.no_grad():
            row = self._read(model, own, streams)
            vector = row @ (self.matrix.T if as_key else self.matrix)
            assert isinstance(vector, Tensor)
            candidates = torch.arange(model.cfg.d_vocab)
            if self.which == "OV":
                scores = folded.logit_products(model, vector[None])[0]
            elif streams is None:
                scores = folded.embedding_products(model, vector[None])[0]
            else:
                scores, candidates = folded.normed_rows(model, streams.means[self.layer]) @ vector, streams.ids
        return _ranked(model, scores.cpu(), candidates.cpu(), own, n)

    def to_frame(self) -> pd.DataFrame:
        """The table of singular vectors."""
        return self.table

    def plot(self) -> alt.LayerChart:
        """Singular values, each named by the first tokens of both its sides."""
        values = self.matrix.S.cpu().numpy()
        return singular_values(self.table, total=float((values**2).sum()))

    def save(self, path: str | Path) -> Path:
        """One safetensors file with a card; `load_head_circuit` reads it."""
        card = self.card | {"circuit": self.which, "layer": self.layer, "head": self.head}
        tensors = {"left": self.matrix.A, "right": self.matrix.B}
        return artifact.save_artifact(path, KIND, tensors, card | {"table": self.table.to_dict("records")})

    def _read(self, model: HookedTransformer, token: int, streams: TokenStreams | None) -> Float[Tensor, "d_model"]:
        if streams is None:
            rows = folded.embedding_rows(model, torch.tensor([token]))
        else:
            rows = streams.row(self.layer, token)[None]
        return folded.normed_rows(model, rows)[0]

    def _check_model(self, model: HookedTransformer) -> None:
        if model.fingerprint != self.card["fingerprint"]:
            raise ValueError(f"the circuit is of {self.card['model']}, and {model.cfg.name} has other weights")


@torch.no_grad()
def head_circuit(
    model: HookedTransformer,
    layer: int,
    head: int,
    which: str = "OV",
    *,
    offset: int = 0,
    n_components: int = 8,
    n_tokens: int = 8,
) -> HeadCircuit:
    """One circuit of a head, with the tokens that its singular vectors stand for.

    Args:
        model: any decoder with plain attention (grouped or not).
        layer: the layer; negative counts from the end.
        head: the query head; negative counts from the end.
        which: "OV" or "QK".
        offset: how far before the query the key stands: turns the factors of a QK circuit with rotary positions.
        n_components: singular vectors in the table, at most d_head.
        n_tokens: tokens for each side and sign.

    Raises:
        ValueError: a head that is not there, a negative offset or one beyond the context, an offset of an OV circuit or
            without rotary positions, and models whose heads are no such product (latent attention, encoders, post-LN).
    """
    if which not in SIDES:
        raise ValueError(f"which must be 'OV' or 'QK', got {which!r}")
    folded.refuse_circuits(model, f"{which} circuit")
    cfg = model.cfg
    for name, number, size in (("layer", layer, cfg.n_layers), ("head", head, cfg.n_heads)):
        if not -size <= number < size:
            raise ValueError(f"{name}={number}: there are {name}s 0 to {size - 1}")
    if offset and (which == "OV" or cfg.positional != "rope"):
        raise ValueError(
            f"offset={offset} turns queries and keys by rotary positions, which this circuit does not have"
        )
    if not 0 <= offset < cfg.n_ctx:
        raise ValueError(f"offset={offset}: a query sees keys 0 to {cfg.n_ctx - 1} places before it")
    if n_components < 1 or n_tokens < 1:
        raise ValueError(f"n_components={n_components} and n_tokens={n_tokens} must be at least 1")
    layer, head = layer % cfg.n_layers, head % cfg.n_heads
    all_heads = folded.ov_circuits(model, layer) if which == "OV" else folded.qk_circuits(model, layer, offset)
    matrix = FactoredMatrix(all_heads.A[head].contiguous(), all_heads.B[head].contiguous())
    card = artifact.provenance(
        analysis=KIND, model=cfg.name, fingerprint=model.fingerprint, offset=offset,
        left_out=folded.left_out(model, which, offset),
    )  # fmt: skip
    return HeadCircuit(which, layer, head, matrix, _vector_table(model, which, matrix, n_components, n_tokens), card)


def load_head_circuit(path: str | Path) -> HeadCircuit:
    """Read what `HeadCircuit.save` wrote."""
    tensors, card = artifact.load_artifact(path, KIND)
    table = pd.DataFrame(card.pop("table"), columns=COLUMNS)
    which, layer, head = card.pop("circuit"), card.pop("layer"), card.pop("head")
    return HeadCircuit(which, layer, head, FactoredMatrix(tensors["left"], tensors["right"]), table, card)


def _vector_table(
    model: HookedTransformer, which: str, matrix: FactoredMatrix, n_components: int, n_tokens: int
) -> pd.DataFrame:
    """The tokens of the first singular vectors: side by side, both signs."""
    u, s, v = matrix.svd()
    found = []
    for side, vectors in zip(SIDES[which], (u, v), strict=True):
        rows = vectors[:, :n_components].T
        products = folded.logit_products if side == "writes" else folded.embedding_products
        scores = products(model, rows)
        for sign, name in ((1.0, "+"), (-1.0, "-")):
            top = (sign * scores).topk(min(n_tokens, scores.shape[1]))
            for component, (ids, values) in enumerate(zip(top.indices.tolist(), (sign * top.values).tolist())):
                texts = folded.token_texts(model, ids)
                found += [
                    (component, float(s[component]), side, name, rank, *cells)
                    for rank, cells in enumerate(zip(ids, texts, values))
                ]
    frame = pd.DataFrame(found, columns=COLUMNS)
    return frame.sort_values(["component", "sign", "side", "rank"], kind="stable").reset_index(drop=True)


def _ranked(model: HookedTransformer, scores: Tensor, ids: Tensor, own: int, n: int) -> pd.DataFrame:
    """The first n candidates, and the token itself."""
    if n < 1:
        raise ValueError(f"n={n} must be at least 1")
    order = scores.argsort(descending=True, stable=True)
    place = (ids[order] == own).nonzero()[0, 0]
    shown = torch.arange(min(n, len(order)))
    shown = shown if place < n else torch.cat([shown, place[None]])
    chosen = order[shown]
    wide = scores.double()
    z = (wide - wide.mean()) / wide.std().clamp(min=torch.finfo(torch.float64).tiny)
    found = ids[chosen].tolist()
    return pd.DataFrame(
        {
            "rank": shown.tolist(), "id": found, "token": folded.token_texts(model, found),
            "score": scores[chosen].tolist(), "z": z[chosen].tolist(),
        }
    )  # fmt: skip
