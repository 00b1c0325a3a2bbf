"""Batches that are a function of their number, so that a run can go on, and go back, without a state of the data.

- `repeated_sequences`: random tokens that repeat, for the study of induction; fresh ones for each seed.
- `pack_documents`: texts of unequal length side by side in rows of one length, each a document of its own.
- `ShuffledBatches`: rows in a new random order each epoch.

Anything that gives batch 0, 1, 2 ... by number will do for `train_model`: a function, a list, or these.
"""

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from interp.tokens import Tokens

Batch = Tokens | Tensor
Data = Callable[[int], Batch] | Sequence[Batch]


def repeated_sequences(
    n: int, length: int, d_vocab: int, seed: int, *, periods: int | tuple[int, int] | None = None
) -> Int[Tensor, "n length"]:
    """Rows of random tokens that repeat from the second copy on; the first copy cannot be predicted.

    Args:
        n: rows.
        length: tokens of a row; the last copy is cut off where it does not fit.
        d_vocab: tokens are drawn from 0..d_vocab - 1, all equally often.
        seed: equal seeds give equal rows.
        periods: length of one copy, or the smallest and the largest, from which each row draws its own. None: a quarter
            to half of `length`. With one period for all rows a model needs no induction: a head that always looks
            the same distance back solves them.

    Raises:
        ValueError: no rows, a vocabulary of one token, or a period that does not fit twice into `length`.
    """
    low, high = (max(1, length // 4), length // 2) if periods is None else _range(periods)
    if n < 1 or d_vocab < 2:
        raise ValueError(f"n must be at least 1 and d_vocab at least 2, got {n} and {d_vocab}")
    if not 1 <= low <= high <= length // 2:
        raise ValueError(
            f"periods {low} to {high} must lie in 1..{length // 2}, so that {length} tokens hold two copies"
        )
    generator = torch.Generator().manual_seed(seed)
    period = torch.randint(low, high + 1, (n, 1), generator=generator)
    copy = torch.randint(0, d_vocab, (n, high), generator=generator)
    return copy.gather(1, torch.arange(length) % period)


@dataclass(frozen=True)
class RepeatedBatches:
    """Fresh rows of `repeated_sequences` for each batch, without end."""

    batch_size: int
    """Rows of a batch."""
    length: int
    """Tokens of a row."""
    d_vocab: int
    """Tokens to draw from."""
    seed: int = 0
    """Of all rows; a batch's own seed follows from it and the batch's number."""
    periods: int | tuple[int, int] | None = None
    """As in `repeated_sequences`."""

    def __call__(self, index: int) -> Int[Tensor, "batch pos"]:
        seed = batch_seed(self.seed, index)
        return repeated_sequences(self.batch_size, self.length, self.d_vocab, seed, periods=self.periods)


def pack_documents(
    documents: Sequence[Sequence[int] | Int[Tensor, " _"]], n_ctx: int, *, end: int | None = None, pad: int = 0
) -> Tokens:
    """Texts side by side in rows of at most n_ctx tokens. Attention and positions begin anew in each document.

    Best-fit decreasing (Ding et al., arXiv 2404.10830): the longest document first, each into the fullest row that still
    has room. A document is cut only where it is longer than a row, and then into rows' lengths, each piece a document.
    No token is lost or repeated.

    Args:
        documents: token ids of each text.
        n_ctx: length of a row; the batch is as wide as its fullest row.
        end: an id to put after each text, usually the tokenizer's eos_id.
        pad: id of the pads on the right.

    Returns:
        Tokens whose `documents` number the documents of each row from 0; pads have -1.

    Raises:
        ValueError: no documents, an empty one, or n_ctx below 1.
    """
    if n_ctx < 1:
        raise ValueError(f"n_ctx must be at least 1, got {n_ctx}")
    texts = [[int(i) for i in text] + ([] if end is None else [end]) for text in documents]
    empty = next((index for index, text in enumerate(documents) if len(text) == 0), None)
    if empty is not None or not texts:
        raise ValueError("there are no documents to pack" if empty is None else f"document {empty} is empty: drop it")
    pieces = [text[start : start + n_ctx] for text in texts for start in range(0, len(text), n_ctx)]
    rows = _best_fit([len(piece) for piece in pieces], n_ctx)
    width = max(sum(len(pieces[i]) for i in row) for row in rows)
    ids = torch.full((len(rows), width), pad)
    mask = torch.zeros((len(rows), width), dtype=torch.bool)
    numbers = torch.full((len(rows), width), -1)
    for r, row in enumerate(rows):
        place = 0
        for number, piece in enumerate(row):
            span = slice(place, place + len(pieces[piece]))
            ids[r, span], mask[r, span], numbers[r, span] = torch.tensor(pieces[piece]), True, number
            place = span.stop
    return Tokens(ids, mask, documents=numbers)


@dataclass(frozen=True, eq=False)
class ShuffledBatches:
    """Rows in batches, in another order each epoch. The last batch of an epoch may be smaller."""

    rows: Tokens
    """For example what `pack_documents` gives."""
    batch_size: int
    """Rows of a batch."""
    seed: int = 0
    """Of the orders."""
    _order: dict[int, np.ndarray] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.batch_size}")

    @property
    def per_epoch(self) -> int:
        """Batches of one epoch."""
        return -(-len(self.rows) // self.batch_size)

    def __call__(self, index: int) -> Tokens:
        epoch, place = divmod(index, self.per_epoch)
        if epoch not in self._order:
            self._order.clear()
            self._order[epoch] = np.random.default_rng([self.seed, epoch]).permutation(len(self.rows))
        chosen = torch.from_numpy(self._order[epoch][place * self.batch_size : (place + 1) * self.batch_size])
        rows = self.rows
        documents, parents = (None if each is None else each[chosen] for each in (rows.documents, rows.parents))
        return Tokens(rows.ids[chosen], rows.mask[chosen], rows.bos_added, documents=documents, parents=parents)


def batch_of(data: Data, index: int) -> Batch:
    """Batch number `index`: a function is called, a sequence begins anew at its end."""
    if callable(data):
        return data(index)
    if not len(data):
        raise ValueError("there are no batches to train on: the sequence is empty")
    return data[index % len(data)]


def batch_seed(seed: int, index: int) -> int:
    """A seed for one batch; neighbouring seeds and batches share nothing."""
    return int(np.random.SeedSequence([seed, index]).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _range(periods: int | tuple[int, int]) -> tuple[int, int]:
    return (periods, periods) if isinstance(periods, int) else periods


def _best_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Rows of numbers of items, each row's lengths summing to at most `capacity`."""
    rows: list[list[int]] = []
    by_room: dict[int, list[int]] = {}  # free places -> rows that have as many
    rooms: list[int] = []  # the keys of by_room, sorted
    for item in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        place = bisect.bisect_left(rooms, lengths[item])
        if place == len(rooms):
            row, room = len(rows), capacity
            rows.append([])
        else:
            room = rooms[place]
            row = by_room[room].pop()
            if not by_room[room]:
                del by_room[room], rooms[place]
        rows[row].append(item)
        left = room - lengths[item]
        if left not in by_room:
            by_room[left] = []
            bisect.insort(rooms, left)
        by_room[left].append(row)
    return rows
