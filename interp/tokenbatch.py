"""A batch of token ids with its mask: positions, lengths and the last real token follow from these alone.

So single, left-padded and right-padded batches mean the same. A row is one text, several documents one after the other, or
a tree of texts whose common beginnings stand there once.
"""

import functools
import itertools
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Tokens:
    """A batch of token ids and which of them are real.

    Raises:
        ValueError: ids and mask of different shapes, a row with no real token, pads between real tokens, documents that
            are not runs of tokens, or parents that do not stand before their tokens.
    """

    ids: Int[Tensor, "batch pos"]
    """Token ids; pads hold the tokenizer's pad id, which nothing reads."""
    mask: Bool[Tensor, "batch pos"]
    """True for a real token, False for a pad."""
    bos_added: bool = False
    """A beginning-of-text token was put before at least one text (not one that the text itself held)."""
    texts: list[str] | None = None
    """The texts, where the batch was made from texts."""
    documents: Int[Tensor, "batch pos"] | None = None
    """Number of the document that each token belongs to, where rows hold several: they do not see each other, and
    positions begin anew in each. None for one text a row."""
    parents: Tensor | None = None
    """[batch pos], texts that begin alike as a tree: the place in its row of the token before each token, -1 where a text
    begins. A token sees its ancestors alone, and its position is their number. None where the token before is the place
    before."""

    def __post_init__(self) -> None:
        if self.ids.numel() == 0:
            raise ValueError("the batch is empty: there is no token")
        if self.ids.shape != self.mask.shape:
            raise ValueError(f"ids {tuple(self.ids.shape)} and mask {tuple(self.mask.shape)} must have one shape")
        if not bool(self.mask.any(dim=1).all()):
            raise ValueError("every row needs at least one real token: drop empty texts, or add a BOS")
        if bool((self.last - self.first + 1 != self.lengths).any()):
            raise ValueError("the real tokens of a row must be contiguous: pads stand before or after them")
        if self.documents is not None:
            self._check_documents(self.documents)
        if self.parents is not None:
            self._check_parents(self.parents)

    def _check_documents(self, documents: Tensor) -> None:
        if documents.shape != self.ids.shape or documents.is_floating_point():
            raise ValueError(
                f"documents must be integers of shape {tuple(self.ids.shape)}, got {tuple(documents.shape)}"
            )
        runs = [len(set(row)) == 1 + sum(a != b for a, b in itertools.pairwise(row)) for row in documents.tolist()]
        if not all(runs):
            raise ValueError(
                f"row {runs.index(False)}: a document must be one run of tokens, not come back after another"
            )

    def _check_parents(self, parents: Tensor) -> None:
        if self.documents is not None:
            raise ValueError("a row is a tree of texts or a run of documents: give parents or documents")
        if parents.shape != self.ids.shape or parents.is_floating_point():
            raise ValueError(f"parents must be integers of shape {tuple(self.ids.shape)}, got {tuple(parents.shape)}")
        if bool((parents >= torch.arange(parents.shape[1], device=parents.device)).any()) or int(parents.min()) < -1:
            raise ValueError("a parent must stand before its token in the row, or be -1 where a text begins")

    def __len__(self) -> int:
        return self.ids.shape[0]

    @property
    def lengths(self) -> Int[Tensor, " batch"]:
        """Number of real tokens in each row."""
        return self.mask.sum(dim=1)

    @property
    def first(self) -> Int[Tensor, " batch"]:
        """Index of the first real token in each row (not 0 under left padding)."""
        return self.mask.int().argmax(dim=1)

    @property
    def last(self) -> Int[Tensor, " batch"]:
        """Index of the last real token in each row."""
        return self.mask.shape[1] - 1 - self.mask.flip(1).int().argmax(dim=1)

    @property
    def positions(self) -> Int[Tensor, "batch pos"]:
        """Position of each token in its own text or document, from 0; pads hold 0 before a text, its last one after it."""
        if self.parents is not None:
            return self.ancestors.sum(dim=2) - 1
        places = (self.mask.cumsum(dim=1) - 1).clamp(min=0)
        if self.documents is None:
            return places
        begins = torch.ones_like(self.mask)
        begins[:, 1:] = self.documents[:, 1:] != self.documents[:, :-1]
        return places - (places * begins).cummax(dim=1).values

    @functools.cached_property
    def ancestors(self) -> Bool[Tensor, "batch pos pos"]:
        """In a tree: True where the second place is the first one itself or stands on the way from its root to it."""
        assert self.parents is not None
        (batch, n), parents = self.parents.shape, self.parents.cpu()  # many small steps, which a GPU is slow at
        found = torch.eye(n, dtype=torch.bool).repeat(batch, 1, 1)
        rows = torch.arange(batch)
        for place in range(1, n):  # a parent stands before its child, so its own row is complete
            parent = parents[:, place]
            found[:, place] |= found[rows, parent.clamp(min=0)] & (parent >= 0)[:, None]
        return found.to(self.parents.device)

    def row(self, index: int) -> list[int]:
        """The real token ids of one row."""
        return self.ids[index][self.mask[index]].tolist()

    def to(self, device: str | torch.device) -> "Tokens":
        """The same batch on another device."""
        documents = None if self.documents is None else self.documents.to(device)
        parents = None if self.parents is None else self.parents.to(device)
        return Tokens(self.ids.to(device), self.mask.to(device), self.bos_added, self.texts, documents, parents)
