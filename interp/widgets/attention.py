"""The attention canvas: heads of a layer, the matrix of one, and the text with lines, one choice for all three."""

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from PIL import Image

from interp.tokenview import token_label
from interp.widgets.page import Widget, script_json

MAX_TOKENS = 2048
PAGE_BYTES = 6_000_000
"""A saved page holds as many heads as fit; the others show their thumbnail, and the page says so."""
_HUES = (
    (31, 122, 200),
    (200, 110, 0),
    (0, 140, 100),
    (170, 80, 145),
    (205, 85, 0),
    (60, 150, 210),
    (120, 100, 210),
    (150, 130, 0),
)
_THUMB = 48


@dataclass(frozen=True, eq=False)
class AttentionView(Widget):
    """Attention of one layer; `attention_view` makes it and checks it."""

    pattern: np.ndarray = field(repr=False)
    """[head query key], share of attention, or another weight in 0 .. `end`."""
    tokens: tuple[str, ...]
    layer: int | None
    head: int
    drop_sink: bool
    scale: str
    top_k: int
    threshold: float
    end: float
    """Value of full colour."""

    asset: ClassVar[str] = "attention"
    pixels: ClassVar[int] = 860

    def data(self) -> dict[str, Any]:
        """Thumbnails of all heads and the chosen head in full, as JSON values. The message stays under 8 MB."""
        return self._frame() | {"heads": {str(self.head): self._head(self.head)}}

    def page_data(self) -> dict[str, Any]:
        """As `data`, with every head that fits in `PAGE_BYTES`, the chosen one first."""
        heads, size = {str(self.head): self._head(self.head)}, 0
        for head in range(len(self.pattern)):
            if head != self.head:
                found = self._head(head)
                size += len(script_json(found))
                if size > PAGE_BYTES:
                    break
                heads[str(head)] = found
        return self._frame() | {"heads": heads, "page": True}

    def edges(self) -> pd.DataFrame:
        """The strongest keys of each query of the open head: query, query_token, key, key_token, weight."""
        matrix = self._shown()
        query, key, value = strongest(matrix, self.top_k, self.threshold)
        labels = [token_label(token, 40) for token in self.tokens]
        return pd.DataFrame(
            {
                "query": query,
                "query_token": [labels[q] for q in query],
                "key": key,
                "key_token": [labels[k] for k in key],
                "weight": value,
            }
        )

    def to_png(self) -> bytes:
        """The matrix of the open head, on white; small ones with several pixels to a cell."""
        share = np.clip(self._shown() / self.end, 0, 1)[..., None]
        hue = np.array(_HUES[self.head % len(_HUES)])
        image = Image.fromarray(np.rint(255 + share * (hue - 255)).astype(np.uint8))
        size = max(1, 512 // len(self.tokens))
        image = image.resize((image.width * size, image.height * size), Image.Resampling.NEAREST)
        buffer = io.BytesIO()
        image.save(buffer, "PNG")
        return buffer.getvalue()

    def _shown(self) -> np.ndarray:
        full = self.pattern[self.head]
        return without_first(full) if self.drop_sink else full

    def _frame(self) -> dict[str, Any]:
        return {
            "tokens": [token_label(token, 40) for token in self.tokens],
            "layer": self.layer, "head": self.head, "n_heads": len(self.pattern), "drop": self.drop_sink,
            "log": self.scale == "log", "threshold": self.threshold, "top_k": self.top_k, "end": self.end,
            "causal": not any(np.triu(each, 1).any() for each in self.pattern),
            "hues": [list(_HUES[head % len(_HUES)]) for head in range(len(self.pattern))],
            "thumbs": [png(pooled(each, _THUMB), head, self.end) for head, each in enumerate(self.pattern)],
        }  # fmt: skip

    def _head(self, head: int) -> dict[str, Any]:
        full = self.pattern[head]
        return {"full": self._matrix(full, head), "dropped": self._matrix(without_first(full), head)}

    def _matrix(self, matrix: np.ndarray, head: int) -> dict[str, Any]:
        query, key, value = strongest(matrix, self.top_k, self.threshold)
        rest = matrix[:, 1:]
        return {
            "png": png(matrix, head, self.end),
            "q": query.tolist(), "k": key.tolist(), "v": [float(f"{v:.4g}") for v in value],
            "row_max": _rounded(rest.max(1)) if rest.size else [None] * len(matrix),
            "col_max": [None, *_rounded(rest.max(0))],
        }  # fmt: skip


def attention_view(
    pattern: Any,
    tokens: Sequence[str],
    *,
    layer: int | None = None,
    head: int = 0,
    drop_sink: bool = False,
    scale: str = "linear",
    top_k: int = 8,
    threshold: float = 0.005,
    end: float = 1.0,
) -> AttentionView:
    """Attention of one layer as thumbnails, matrix and text with lines.

    Args:
        pattern: [head query key], an array or a tensor; at most 2,048 tokens.
        tokens: text of each token.
        layer: named in the title.
        head: the head that is open at the start.
        drop_sink: start without position 0, the rows renormalised to sum to 1.
        scale: "linear" or "log" opacity.
        top_k: values sent for each query, for hovering and lines.
        threshold: smaller values are not sent; hovering says "below" it.
        end: value of full colour; 1 for shares.

    Raises:
        ValueError: for a wrong shape, NaN, values outside 0 .. `end`, too many tokens, an unknown scale or head.
    """
    array = np.asarray(pattern.detach().cpu().float() if hasattr(pattern, "detach") else pattern, dtype=np.float32)
    if array.ndim != 3 or not len(array) or array.shape[1:] != (len(tokens), len(tokens)) or not len(tokens):
        raise ValueError(f"pattern must be [head query key] for {len(tokens)} tokens, got {list(array.shape)}")
    if len(tokens) > MAX_TOKENS:
        raise ValueError(f"{len(tokens):,} tokens are more than {MAX_TOKENS:,}: cut a window from pattern and tokens")
    if not math.isfinite(end) or end <= 0:
        raise ValueError(f"end must be above 0, got {end}")
    if not np.isfinite(array).all() or array.min() < 0 or array.max() > end * 1.001:
        raise ValueError(
            f"pattern must lie in 0 .. {end:g} without NaN: a weighting needs end=, signed values cannot be shown"
        )
    if not 0 <= head < len(array):
        raise ValueError(f"head must be 0 .. {len(array) - 1}, got {head}")
    if scale not in ("linear", "log"):
        raise ValueError(f"scale must be 'linear' or 'log', got {scale!r}")
    if top_k < 1 or top_k > 32 or not 0 < threshold < end:
        raise ValueError(f"top_k must be 1 .. 32 and threshold above 0 and below end, got {top_k} and {threshold}")
    return AttentionView(array, tuple(tokens), layer, head, drop_sink, scale, top_k, threshold, end)


def without_first(matrix: np.ndarray) -> np.ndarray:
    """[query key] without key 0, each row renormalised to sum to 1; a row with nothing else stays 0."""
    rest = matrix.astype(np.float64)
    rest[:, 0] = 0
    total = rest.sum(1, keepdims=True)
    return np.divide(rest, total, out=np.zeros_like(rest), where=total > 0)


def strongest(matrix: np.ndarray, top_k: int, threshold: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Query, key and value of the `top_k` largest of each row that reach `threshold`, the largest first."""
    k = min(top_k, matrix.shape[1])
    keys = np.argpartition(-matrix, k - 1, axis=1)[:, :k]
    values = np.take_along_axis(matrix, keys, 1)
    order = np.argsort(-values, axis=1, kind="stable")
    keys, values = np.take_along_axis(keys, order, 1), np.take_along_axis(values, order, 1)
    query, at = np.nonzero(values >= threshold)
    return query, keys[query, at], values[query, at]


def pooled(matrix: np.ndarray, side: int) -> np.ndarray:
    """The matrix shrunk to at most `side` rows and columns by the maximum, so that a thin line stays visible."""
    n = len(matrix)
    if n <= side:
        return matrix
    edges = np.arange(side) * n // side
    return np.maximum.reduceat(np.maximum.reduceat(matrix, edges, axis=0), edges, axis=1)


def png(matrix: np.ndarray, head: int, end: float) -> str:
    """Base64 of a palette PNG: index round(255 value / end), the head's hue, the index as opacity."""
    image = Image.fromarray(np.rint(np.clip(matrix / end, 0, 1) * 255).astype(np.uint8)).convert("L")
    image.putpalette(list(_HUES[head % len(_HUES)]) * 256)
    buffer = io.BytesIO()
    image.save(buffer, "PNG", transparency=bytes(range(256)), compress_level=4)
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def _rounded(values: np.ndarray) -> list[float]:
    return [float(f"{v:.4g}") for v in values]
