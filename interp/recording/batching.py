"""Texts into forward passes that spend nothing on padding and, where texts begin alike, nothing twice.

Two layouts, chosen by counting for each shard:

1. *Sorted*: texts of one length run together, padded on the right only where a length has too few texts to fill a pass.
2. *Tree*: texts in lexicographic order share the tokens that they begin with. A row is a forest of such texts; a token
   sees its ancestors alone and stands at its own depth, so its activations are those of its text run alone.

The tree's attention has a dense mask over its row, so long rows repeat less and mask more. Rows of several sizes are
counted, and the cheapest is taken; without a clear gain the texts run sorted.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int

from interp.model.config import ModelConfig
from interp.tokens import Tokens

ROW_SIZES = (128, 256, 512, 1024, 2048, 4096)
"""Nodes of a tree's row that are tried."""
FULL_TOKENS = 1024
"""A pass with so many tokens runs at the machine's full speed: it is cut where the length of the texts changes."""
MASK_PRICE = 3.0
"""How much dearer a score under a dense mask is than one multiply-add of a product with weights."""
TREE_GAIN = 0.9
"""The tree is taken where it costs at most this part of the sorted passes."""


@dataclass(frozen=True)
class Limits:
    """How large a pass may be, and whether texts may share beginnings."""

    texts: int | None
    """Most texts in a pass, None for no limit."""
    tokens: int
    """Most places in a pass, if it has more than one row."""
    share: bool
    """Whether tokens that texts begin with alike may be computed once."""


@dataclass(frozen=True, eq=False)
class Batch:
    """One forward pass."""

    texts: Int[np.ndarray, " text"]
    """The texts in it, counted inside the shard."""
    tokens: Tokens
    """What runs."""
    cells: Int[np.ndarray, " token"]
    """For each token of these texts, one text after the other: its place in the flattened [batch pos]."""

    @property
    def computed(self) -> int:
        """Real tokens that the pass computes."""
        return int(self.tokens.mask.sum())


class Prices:
    """What a token and a score cost in one layer of a model, in multiply-adds."""

    def __init__(self, cfg: ModelConfig) -> None:
        heads = cfg.n_heads * cfg.d_head
        width = cfg.d_mlp
        if cfg.experts is not None:
            width = (cfg.experts.top_k + cfg.experts.n_shared) * cfg.experts.d_expert
        self.token = 4.0 * cfg.d_model * heads + 3.0 * cfg.d_model * max(width, 1)
        self.score = 2.0 * heads

    def sorted(self, batches: Sequence[tuple[int, int]]) -> float:
        """Of padded batches, given as (rows, width)."""
        return sum(rows * width * (self.token + self.score * width / 2) for rows, width in batches)

    def tree(self, rows: Sequence[int]) -> float:
        """Of rows with so many nodes."""
        return sum(n * (self.token + MASK_PRICE * self.score * n) for n in rows)


def make_batches(
    ids: Int[np.ndarray, " token"], offsets: Int[np.ndarray, " boundary"], limits: Limits, prices: Prices, pad_id: int
) -> Iterator[Batch]:
    """The passes of a shard, the same for the same texts and limits.

    Args:
        ids: token ids of all texts, one after the other.
        offsets: text t has ids[offsets[t]:offsets[t + 1]].
    """
    lengths = np.diff(offsets)
    groups = list(_sorted_groups(lengths, limits))
    if limits.share and len(lengths) > 1:
        forest = _Forest(ids, offsets)
        size, price = min(((size, prices.tree(forest.sizes(size))) for size in ROW_SIZES), key=lambda each: each[1])
        if price <= TREE_GAIN * prices.sorted([(len(group), int(lengths[group].max())) for group in groups]):
            yield from forest.batches(size, limits, pad_id)
            return
    for group in groups:
        yield _padded(group, ids, offsets, pad_id)


# -------------------------------------------------------------------------------------------------------------- sorted


def _sorted_groups(lengths: Int[np.ndarray, " text"], limits: Limits) -> Iterator[Int[np.ndarray, " _"]]:
    """Texts of like length, shortest first; ties keep their order."""
    group: list[int] = []
    for text in np.argsort(lengths, kind="stable").tolist():
        length = int(lengths[text])
        full = bool(group) and (
            len(group) == limits.texts
            or (len(group) + 1) * length > limits.tokens
            or (length != lengths[group[-1]] and len(group) * int(lengths[group[-1]]) >= FULL_TOKENS)
        )
        if full:
            yield np.array(group)
            group = []
        group.append(text)
    if group:
        yield np.array(group)


def _padded(
    group: Int[np.ndarray, " text"],
    ids: Int[np.ndarray, " token"],
    offsets: Int[np.ndarray, " boundary"],
    pad_id: int,
) -> Batch:
    lengths = offsets[group + 1] - offsets[group]
    width = int(lengths.max())
    real = np.arange(width) < lengths[:, None]
    table = np.full((len(group), width), pad_id, dtype=np.int64)
    table[real] = np.concatenate([ids[offsets[text] : offsets[text + 1]] for text in group])
    tokens = Tokens(torch.from_numpy(table), torch.from_numpy(real))
    return Batch(group, tokens, np.flatnonzero(real.ravel()))


# ---------------------------------------------------------------------------------------------------------------- tree


class _Forest:
    """The texts of a shard in lexicographic order, so that the longest common beginning is that with the text before."""

    def __init__(self, ids: Int[np.ndarray, " token"], offsets: Int[np.ndarray, " boundary"]) -> None:
        self._texts = [ids[a:b] for a, b in zip(offsets[:-1].tolist(), offsets[1:].tolist())]
        # Big-endian bytes compare as the numbers do.
        keys = [text.astype(">i4").tobytes() for text in self._texts]
        self.order = sorted(range(len(keys)), key=keys.__getitem__)
        ordered = [self._texts[text] for text in self.order]
        self._common = [0, *(_common(a, b) for a, b in itertools.pairwise(ordered))]

    def _rows(self, size: int) -> Iterator[tuple[int, int, int]]:
        """(first, last, nodes) of each row: places in the order, and its number of nodes."""
        first = nodes = 0
        for place, text in enumerate(self.order):
            length = len(self._texts[text])
            new = length - self._common[place]
            if place > first and nodes + new > size:
                yield first, place, nodes
                first, nodes = place, 0
            nodes += length if place == first else new
        yield first, len(self.order), nodes

    def sizes(self, size: int) -> list[int]:
        """Nodes of each row, if rows have at most `size` of them or one text."""
        return [nodes for _, _, nodes in self._rows(size)]

    def batches(self, size: int, limits: Limits, pad_id: int) -> Iterator[Batch]:
        """Rows of like size together, the smallest first."""
        rows = sorted(self._rows(size), key=lambda row: row[2])
        group: list[tuple[int, int, int]] = []
        n_texts = 0
        for row in rows:
            more = row[1] - row[0]
            over = limits.texts is not None and n_texts + more > limits.texts
            if group and (over or (len(group) + 1) * row[2] > limits.tokens):
                yield self._batch(group, pad_id)
                group, n_texts = [], 0
            group.append(row)
            n_texts += more
        yield self._batch(group, pad_id)

    def _batch(self, rows: Sequence[tuple[int, int, int]], pad_id: int) -> Batch:
        width = rows[-1][2]
        table = np.full((len(rows), width), pad_id, dtype=np.int64)
        parents = np.full((len(rows), width), -1, dtype=np.int64)
        real = np.arange(width) < np.array([nodes for _, _, nodes in rows])[:, None]
        cells = []
        for row, (first, last, _) in enumerate(rows):
            path = np.empty(0, dtype=np.int64)
            free = 0
            for place in range(first, last):
                text = self._texts[self.order[place]]
                common = 0 if place == first else self._common[place]
                new = np.arange(free, free + len(text) - common)
                table[row, new] = text[common:]
                path = np.concatenate([path[:common], new])
                parents[row, new] = path[common - 1 : -1] if common else np.concatenate([[-1], path[:-1]])
                cells.append(path + row * width)
                free += len(new)
        tokens = Tokens(torch.from_numpy(table), torch.from_numpy(real), parents=torch.from_numpy(parents))
        texts = np.array([self.order[place] for first, last, _ in rows for place in range(first, last)])
        return Batch(texts, tokens, np.concatenate(cells))


def _common(a: Int[np.ndarray, " _a"], b: Int[np.ndarray, " _b"]) -> int:
    """How many tokens two texts begin with alike."""
    n = min(len(a), len(b))
    differs = np.flatnonzero(a[:n] != b[:n])
    return int(differs[0]) if len(differs) else n
