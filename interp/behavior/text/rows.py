"""Which tokens of which documents are read for a text calibration: halves, samples and pieces, all known before any pass.

1. Scored is every token that is not special and has one before it that is not special either.
2. Documents, never tokens, are halved: one half fits temperatures, the other is reported.
3. The next-token part reads every scored token of the reported half and a sample of the fitting half. The layer part reads
   the same number of places of each text, drawn by a seed: it unembeds each of them once for every layer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int

from interp.behavior.pieces import Piece, divided
from interp.dataset import Dataset, grouped_split
from interp.model import HookedTransformer
from interp.uncertainty.corpus import encoded_texts, predictable, text_documents

STREAM_BYTES = 2 << 30
"""Most memory for streams that are kept between the two steps."""
TEXTS = 8
"""Texts of a piece, which is one forward pass."""


@dataclass(frozen=True, eq=False)
class TextRows:
    """All scored tokens, in the order of texts and positions, and what each is for."""

    ids: list[list[int]]
    """Token ids of each text, as the model reads them."""
    plain: list[str]
    """The texts."""
    left_out: int
    """Tokens that `max_tokens` cut off."""
    document: list[str]
    """The document of each text."""
    text: Int[np.ndarray, " row"]
    """Index of the text."""
    before: Int[np.ndarray, " row"]
    """How many tokens stand before the scored one; the prediction is read at place `before` - 1."""
    target: Int[np.ndarray, " row"]
    """The scored token."""
    fits: Bool[np.ndarray, " row"]
    """The document is of the half that fits."""
    whole: Bool[np.ndarray, " row"]
    """Read for the next-token part."""
    layered: Bool[np.ndarray, " row"]
    """Read at every layer."""

    @property
    def group(self) -> Int[np.ndarray, " row"]:
        """The document of each row, as a number."""
        codes = {name: code for code, name in enumerate(dict.fromkeys(self.document))}
        return np.array([codes[name] for name in self.document])[self.text]

    def pieces(self) -> list[Piece]:
        """What is read of each text, so many texts to a piece."""
        items: list[dict[str, Any]] = [{"ids": ids, "whole": [], "layers": []} for ids in self.ids]
        for key, chosen in (("whole", self.whole), ("layers", self.layered)):
            for text, before in zip(self.text[chosen].tolist(), self.before[chosen].tolist()):
                items[text][key].append(before - 1)
        return divided("texts from", [item for item in items if item["whole"] or item["layers"]], TEXTS)


def text_rows(
    model: HookedTransformer,
    texts: Dataset | Sequence[str],
    groups: Sequence[Any] | None,
    *,
    max_tokens: int | None,
    fit_rows: int,
    layer_positions: int,
    n_sites: int,
    seed: int,
) -> TextRows:
    """Divide and draw. `layer_positions` of 0 reads no layer.

    Raises:
        ValueError: as `next_token_calibration`; and where the streams to keep would take more than 2 GB.
    """
    plain, documents = text_documents(texts, groups)
    ids, left_out = encoded_texts(model, plain, max_tokens)
    assert model.tokenizer is not None
    special = torch.tensor(sorted(model.tokenizer.special_ids), dtype=torch.int64)
    places = [_scored(row, special) for row in ids]
    text = np.repeat(np.arange(len(ids)), [len(found) for found in places])
    if not len(text):
        raise ValueError("no text holds a token to score: each needs at least two tokens that are not special")
    before = np.concatenate(places)
    target = np.array([ids[i][b] for i, b in zip(text.tolist(), before.tolist())])
    fitting = np.isin(np.arange(len(ids)), grouped_split(documents, fractions=(0.5, 0.5), seed=seed)[0])
    fits = fitting[text]
    for name, half in (("fitting", fits), ("reported", ~fits)):
        if not half.any():
            raise ValueError(f"the {name} half of the documents holds no token to score: give more or longer texts")
    rng, layer_rng = np.random.default_rng(seed).spawn(2)
    whole = ~fits
    candidates = np.flatnonzero(fits)
    whole[rng.permutation(candidates)[:fit_rows]] = True
    layered = np.zeros(len(text), dtype=bool)
    for start, count in zip(np.cumsum([0, *map(len, places)]), map(len, places)):
        layered[start + layer_rng.permutation(count)[:layer_positions]] = True
    _refuse_large(model, int(whole.sum()), int(layered.sum()) * n_sites)
    return TextRows(ids, plain, left_out, documents, text, before, target, fits, whole, layered)


def _scored(ids: list[int], special: torch.Tensor) -> Int[np.ndarray, " place"]:
    """Places of the scored tokens of a text."""
    row = torch.tensor([ids], dtype=torch.int64)
    if row.numel() < 2:
        return np.empty(0, dtype=np.int64)
    return predictable(row, torch.ones_like(row, dtype=torch.bool), special)[0].nonzero()[:, 0].numpy() + 1


def _refuse_large(model: HookedTransformer, whole: int, layered: int) -> None:
    size = 4 * model.cfg.d_model
    if (whole + layered) * size > STREAM_BYTES:
        raise ValueError(
            f"the streams to keep would take {(whole + layered) * size / 2**30:.1f} GB ({whole:,} tokens, and {layered:,} "
            "rows of layers), over 2 GB: give fewer texts, lower max_tokens or layer_positions, or name fewer layers"
        )
