"""Search in passages: by words (BM25), by meaning (vectors of a sentence encoder), or by both.

1. `BM25Retriever` counts words: Lucene's BM25 (Kamphuis et al. 2020, "Which BM25 do you mean?"),
   sum over the query's words of idf tf / (tf + k1 (1 - b + b length / mean length)), idf = ln(1 + (N - df + .5) / (df + .5)).
2. `DenseRetriever` compares unit vectors of an encoder by their dot product, the cosine.
3. `HybridRetriever` joins both by reciprocal rank fusion (Cormack et al. 2009): sum of 1 / (60 + rank).

All give the same frame, best first; of equal scores the earlier passage stands first. Scores of different retrievers have
nothing to do with one another: a threshold belongs to one retriever over one set of passages.
"""

import functools
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float

from interp import artifact
from interp.meaning.passages import Passage

KIND = "retriever"
FUSION = 60.0
"""The constant of reciprocal rank fusion, as published."""
_MATCH = 1e-3
"""How far the vector of the first passage may be from the saved one: processors round differently, encoders differ more."""

Encoder = Callable[[Any], Any]
"""Texts -> [n, d] unit rows; a `SentenceEncoder` is one."""


@runtime_checkable
class Retriever(Protocol):
    """What finds passages."""

    passages: tuple[Passage, ...]

    def scores(self, query: str) -> Float[np.ndarray, " passage"]:
        """The score of every passage; -inf for one that is not found at all."""
        ...

    def search(self, query: str, k: int | Any = 5) -> pd.DataFrame:
        """The k best passages, fewer where fewer are found."""
        ...

    def describe(self) -> dict[str, Any]:
        """JSON-ready: kind, settings, and a hash of the passages."""
        ...


class _Base:
    """What the retrievers share; each adds `scores` and what it keeps."""

    NAME = ""

    def __init__(self, passages: Sequence[Passage] | Any) -> None:
        self.passages: tuple[Passage, ...] = tuple(passages)
        if not self.passages or not all(isinstance(each, Passage) for each in self.passages):
            raise ValueError("a retriever needs passages: passages_of(texts) makes them")

    def scores(self, query: str) -> Float[np.ndarray, " passage"]:
        """The score of every passage; -inf for one that is not found at all."""
        raise NotImplementedError

    def search(self, query: str, k: int | Any = 5) -> pd.DataFrame:
        """The k best passages, best first; fewer where fewer are found.

        Returns:
            A row per passage: rank (from 1), score, passage (its index), text, source, start, end, group.

        Raises:
            ValueError: an empty query, or a k below 1.
        """
        if not isinstance(k, int) or isinstance(k, bool) or k < 1:
            raise ValueError(f"k must be a whole number from 1, got {k!r}")
        if not isinstance(query, str) or not query.strip():
            raise ValueError("the query is empty: ask for something")
        scores = self.scores(query)
        best = np.argsort(-scores, kind="stable")[:k]
        best = best[np.isfinite(scores[best])]
        rows = [{"score": float(scores[i]), "passage": int(i), **self.passages[i].to_dict()} for i in best]
        columns = ["rank", "score", "passage", "text", "source", "start", "end", "group"]
        return pd.DataFrame([{"rank": place, **row} for place, row in enumerate(rows, start=1)], columns=columns)

    def describe(self) -> dict[str, Any]:
        """JSON-ready: kind, settings, and a hash of the passages."""
        spelled = artifact.hash_json([passage.to_dict() for passage in self.passages])
        return {"retriever": self.NAME, "n_passages": len(self.passages), "passages": spelled, **self._settings()}

    def save(self, path: str | Path) -> Path:
        """One safetensors file with passages, settings and vectors; `load_retriever` reads it."""
        card = {"retriever": self.NAME, "settings": self._settings(), "texts": [p.to_dict() for p in self.passages]}
        return artifact.save_artifact(path, KIND, self._tensors(), card)

    def _settings(self) -> dict[str, Any]:
        return {}

    def _tensors(self) -> dict[str, torch.Tensor]:
        return {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.passages)} passages)"


class BM25Retriever(_Base):
    """Search by words, without weights and in any language whose words are spelled apart (Han and kana: by character).

    Args:
        passages: what is searched.
        k1: how soon a word that stands often adds nothing more.
        b: how much long passages are held back, 0 to 1.

    Raises:
        ValueError: no passages, none with a word in it, or a setting out of range.
    """

    NAME = "bm25"

    def __init__(self, passages: Sequence[Passage] | Any, *, k1: float | Any = 1.5, b: float | Any = 0.75) -> None:
        super().__init__(passages)
        if not isinstance(k1, int | float) or not k1 >= 0 or not isinstance(b, int | float) or not 0 <= b <= 1:
            raise ValueError(f"k1 must be 0 or more and b lie in [0, 1], got k1={k1!r}, b={b!r}")
        self.k1, self.b = float(k1), float(b)
        tokens = [search_words(passage.text) for passage in self.passages]
        if not any(tokens):
            raise ValueError("no passage holds a word to search for")
        from bm25s import BM25  # not at the top: it compiles, which costs a second

        self._index = BM25(k1=self.k1, b=self.b, method="lucene", dtype="float64")
        self._index.index(tokens, show_progress=False)

    def scores(self, query: str) -> Float[np.ndarray, " passage"]:
        """BM25, always above 0; -inf for a passage without a word of the query."""
        words = [word for word in search_words(query) if word in self._index.vocab_dict]
        if not words:
            return np.full(len(self.passages), -np.inf)
        found = np.asarray(self._index.get_scores(words), dtype=np.float64)
        return np.where(found > 0, found, -np.inf)

    def _settings(self) -> dict[str, Any]:
        return {"k1": self.k1, "b": self.b}


class DenseRetriever(_Base):
    """Search by meaning.

    Args:
        passages: what is searched.
        encoder: texts -> [n, d] unit rows, for example `load_sentence_encoder("minilm")`.
        vectors: of the passages, where they are known.

    Raises:
        ValueError: no passages, or vectors that are not finite unit rows.
    """

    NAME = "dense"

    def __init__(self, passages: Sequence[Passage] | Any, encoder: Encoder, *, vectors: Any = None) -> None:
        super().__init__(passages)
        self.encoder = encoder
        texts = [passage.text for passage in self.passages]
        self.vectors = unit_rows(encoder(texts) if vectors is None else vectors, len(texts))

    def scores(self, query: str) -> Float[np.ndarray, " passage"]:
        """The cosine of each passage with the query."""
        return (self.vectors @ unit_rows(self.encoder([query]), 1)[0]).astype(np.float64)

    def _settings(self) -> dict[str, Any]:
        return {"width": int(self.vectors.shape[1]), "encoder": encoder_name(self.encoder)}

    def _tensors(self) -> dict[str, torch.Tensor]:
        return {"vectors": torch.from_numpy(self.vectors)}


class HybridRetriever(_Base):
    """Reciprocal rank fusion of several retrievers over the same passages: what two of them rank high comes first.

    Args:
        parts: for example a `BM25Retriever` and a `DenseRetriever`.
        constant: added to every rank; the larger, the less the first place counts over the second.

    Raises:
        ValueError: fewer than two parts, parts over different passages, or a constant that is not above 0.
    """

    NAME = "hybrid"

    def __init__(self, parts: Sequence[Any] | Any, *, constant: float | Any = FUSION) -> None:
        self.parts = tuple(parts)
        if len(self.parts) < 2:
            raise ValueError("a hybrid needs two retrievers or more")
        if any(part.passages != self.parts[0].passages for part in self.parts):
            raise ValueError("the retrievers search different passages: make them from one list")
        if not isinstance(constant, int | float) or not constant > 0:
            raise ValueError(f"the constant must be above 0, got {constant!r}")
        super().__init__(self.parts[0].passages)
        self.constant = float(constant)

    def scores(self, query: str) -> Float[np.ndarray, " passage"]:
        """Sum over the parts of 1 / (constant + rank); -inf for what no part finds."""
        total = np.zeros(len(self.passages))
        for part in self.parts:
            scores = part.scores(query)
            order = np.argsort(-scores, kind="stable")
            share = 1 / (self.constant + np.arange(1, len(order) + 1))
            total[order] += np.where(np.isfinite(scores[order]), share, 0.0)
        return np.where(total > 0, total, -np.inf)

    def _settings(self) -> dict[str, Any]:
        return {"constant": self.constant, "parts": [[part.NAME, part._settings()] for part in self.parts]}

    def _tensors(self) -> dict[str, torch.Tensor]:
        return {f"{i}.{name}": t for i, part in enumerate(self.parts) for name, t in part._tensors().items()}


def load_retriever(path: str | Path | Any, encoder: Encoder | None = None) -> Any:
    """Read what a retriever's `save` wrote.

    Args:
        path: the file.
        encoder: the one that it was made with, where vectors are compared.

    Raises:
        ValueError: no such file, a damaged one, no encoder where one is needed, or another encoder than that of the file.
    """
    tensors, card = artifact.load_artifact(path, KIND)
    try:
        passages = [Passage(**each) for each in card["texts"]]
        return _made(card["retriever"], card["settings"], passages, tensors, encoder)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} is a damaged retriever ({error}): make it again") from None


def _made(
    name: str, settings: Mapping[str, Any], passages: list[Passage], tensors: Mapping[str, torch.Tensor], encoder: Any
) -> Any:
    if name == BM25Retriever.NAME:
        return BM25Retriever(passages, **settings)
    if name == HybridRetriever.NAME:
        parts = []
        for place, (kind, own) in enumerate(settings["parts"]):
            held = {key.removeprefix(f"{place}."): t for key, t in tensors.items() if key.startswith(f"{place}.")}
            parts.append(_made(kind, own, passages, held, encoder))
        return HybridRetriever(parts, constant=settings["constant"])
    if name != DenseRetriever.NAME:
        raise ValueError(f"the file holds a retriever of the kind {name!r}, which is not known here: update interp")
    if encoder is None:
        raise ValueError("the file holds vectors of an encoder: pass the same one as encoder=")
    found = DenseRetriever(passages, encoder, vectors=tensors["vectors"].numpy())
    again = unit_rows(encoder([passages[0].text]), 1)[0]
    if again.shape != found.vectors[0].shape or float(np.abs(again - found.vectors[0]).max()) > _MATCH:
        made = settings.get("encoder", "another one")
        raise ValueError(
            f"the encoder gives other vectors than those in the file (made with {made}): pass the same one"
        )
    return found


def search_words(text: str) -> list[str]:
    """The words that BM25 counts: letters, digits and their marks, NFKC and case folded; Han and kana one by one."""
    words: list[str] = []
    current = ""
    for character in unicodedata.normalize("NFKC", text).casefold():
        kind = _kind(character)
        if kind == "word":
            current += character
            continue
        if current:
            words.append(current)
            current = ""
        if kind == "alone":
            words.append(character)
    return [*words, current] if current else words


@functools.lru_cache(maxsize=65536)
def _kind(character: str) -> str:
    """`word`, `alone` (a character that is a word) or `between`."""
    if "\u3040" <= character <= "\u30ff" or "\u3400" <= character <= "\u9fff" or "\uf900" <= character <= "\ufaff":
        return "alone" if unicodedata.category(character)[0] == "L" else "between"
    return "word" if unicodedata.category(character)[0] in "LNM" else "between"


def unit_rows(vectors: Any, n: int) -> Float[np.ndarray, "n d"]:
    """The encoder's answer as float32 [n, d], checked.

    Raises:
        ValueError: another shape, NaN, or rows that are not of length 1.
    """
    found = np.asarray(vectors.detach().cpu() if isinstance(vectors, torch.Tensor) else vectors, dtype=np.float32)
    if found.ndim != 2 or len(found) != n:
        raise ValueError(f"the encoder gave an array of shape {found.shape} for {n} texts: [{n}, d] was expected")
    lengths = np.linalg.norm(found, axis=1)
    if not np.isfinite(found).all() or (np.abs(lengths - 1) > 1e-3).any():
        raise ValueError("the encoder gave vectors that are not of length 1: divide each by its norm")
    return found


def encoder_name(encoder: Any) -> str:
    """What the encoder is called, for cards."""
    return str(getattr(encoder, "name", None) or getattr(encoder, "__name__", None) or type(encoder).__name__)
