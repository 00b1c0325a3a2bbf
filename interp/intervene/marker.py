"""Where a marker ends in each text, such as the words that begin an assistant's answer.

1. The bytes of a text's tokens are joined and searched, so it makes no difference how the marker and what stands around it
   were cut into tokens. The token that holds the marker's last byte ends it.
2. With a KV cache the prompt is searched once. Rows that may still come to the marker are searched further with each new
   token, behind a tail one byte shorter than the marker.
3. Packed documents and the texts of a tree are searched one by one.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from jaxtyping import Int
from torch import Tensor

from interp.hooks import HookContext, Texts

NEVER = torch.iinfo(torch.long).max
"""The position from which on a text without the marker is touched."""


@dataclass(eq=False)
class _Row:
    """What is known of one text."""

    start: int = NEVER
    """Position of the token that ends the marker."""
    tail: bytes = b""
    """The last bytes read, too few to hold the marker."""
    n_tokens: int = 0
    """Tokens read."""
    done: bool = False
    """Nothing more is looked for."""


class MarkerSearch:
    """The search for one marker in the texts of one call.

    Args:
        marker: the text that is looked for.
        last: take the last occurrence, of the prompt where the call has one; else the first of the text.
        needed: a text without the marker is an error (a prompt, where the call has one).
        rows: the prompts that are searched, None for all.
    """

    def __init__(self, marker: str, *, last: bool, needed: bool, rows: Sequence[int] | None = None) -> None:
        self.marker, self.last, self.needed, self.rows = marker, last, needed, rows
        self._data = marker.encode()
        self._found: list[_Row] = []
        self._n_read = 0
        self._starts: Tensor | None = None

    def starts(self, ctx: HookContext) -> Int[Tensor, "batch #pos"]:
        """Position from which on each text is touched, `NEVER` without the marker; for each token where texts are joined.

        Raises:
            ValueError: no token ids or no tokenizer, a text without the marker, or the last occurrence in a tree of texts.
        """
        if self._starts is not None and self._settled(len(ctx.mask)):
            return self._starts
        texts = self._searchable(ctx)
        # Prompts are read in the first pass; to ask for their lengths again would be a wait on an accelerator.
        prompt_len = None if ctx.prompt_len is None or self._n_read else ctx.prompt_len.tolist()
        if texts.documents is not None or texts.parents is not None:
            starts = self._in_joined(texts, prompt_len)
        else:
            self._read(texts, prompt_len)
            starts = torch.tensor([[row.start] for row in self._found])
        self._starts = starts.to(ctx.mask.device)
        return self._starts

    @property
    def found(self) -> bool:
        """Whether any text has come to the marker."""
        return self._starts is not None and bool((self._starts != NEVER).any())

    def _settled(self, n_rows: int) -> bool:
        return len(self._found) == n_rows and all(row.done for row in self._found)

    def _searchable(self, ctx: HookContext) -> Texts:
        if ctx.texts is None or ctx.texts.ids is None:
            raise ValueError(
                f"the marker {self.marker!r} is looked for in the text, and this pass began from a stream: say which tokens it "
                "belongs to, model(stream, start_at_layer=..., tokens=...)"
            )
        if ctx.texts.token_bytes is None:
            raise ValueError(f"after={self.marker!r} needs a tokenizer, and this model has none: give positions=")
        return ctx.texts

    def _searches(self, prompt: int) -> bool:
        return self.rows is None or prompt in self.rows

    # One text a row -----------------------------------------------------------------------------------------------

    def _read(self, texts: Texts, prompt_len: Sequence[int] | None) -> None:
        """Take in what is new since the last pass."""
        n_rows = len(texts.real)
        if not self._found:
            self._found = [_Row(done=not self._searches(row // texts.copies)) for row in range(n_rows)]
        copies = n_rows // len(self._found)
        if copies > 1:  # so many continuations of what was one row in the prefill
            self._found = [_Row(**vars(row)) for row in self._found for _ in range(copies)]
        assert texts.ids is not None
        ids, real = (each[:, self._n_read :].tolist() for each in (texts.ids, texts.real))
        self._n_read = texts.real.shape[1]
        for index, row in enumerate(self._found):
            if not row.done:
                new = _pieces(texts, [i for i, is_real in zip(ids[index], real[index], strict=True) if is_real])
                limit = None if prompt_len is None else prompt_len[index]
                self._search_row(row, new, f"text {index // texts.copies}", limit)

    def _search_row(self, row: _Row, new: list[bytes], name: str, prompt_len: int | None) -> None:
        if row.n_tokens:
            end = self._end([row.tail, *new])
            row.start = NEVER if end is None else row.n_tokens + end - 1
        else:
            row.start = self._first_search(new, name, prompt_len)
        row.done = row.start != NEVER or self.needed or self.last
        row.n_tokens += len(new)
        data = row.tail + b"".join(new)
        row.tail = data[max(len(data) - len(self._data) + 1, 0) :]

    def _first_search(self, pieces: list[bytes], name: str, prompt_len: int | None) -> int:
        """Where the marker ends in a text, or in its prompt where only that counts."""
        if prompt_len is not None and (self.needed or self.last):
            name, pieces = f"the prompt of {name}", pieces[:prompt_len]
        end = self._end(pieces)
        if end is None and self.needed:
            text = b"".join(pieces).decode("utf-8", "replace")
            raise ValueError(
                f"{name} does not hold the marker {self.marker!r}, it ends {text[-60:]!r}: mend the marker, or pass "
                "missing='skip' to leave such texts alone (and to wait for a marker that the model writes)"
            )
        return NEVER if end is None else end

    def _end(self, pieces: list[bytes]) -> int | None:
        """The piece that holds the marker's last byte."""
        data = b"".join(pieces)
        hit = data.rfind(self._data) if self.last else data.find(self._data)
        if hit < 0:
            return None
        return bisect_right(list(accumulate(map(len, pieces))), hit + len(self._data) - 1)

    # Several texts a row ------------------------------------------------------------------------------------------

    def _in_joined(self, texts: Texts, prompt_len: Sequence[int] | None) -> Int[Tensor, "batch pos"]:
        """A position for each token: that of its document, or of a text of the tree that it belongs to."""
        if texts.parents is not None and self.last and prompt_len is None:
            raise ValueError(
                f"the last {self.marker!r} is another one in each text of a tree: give the texts one by one, or prompt_len="
            )
        assert texts.ids is not None
        ids, starts = texts.ids.tolist(), torch.full(texts.real.shape, NEVER)
        for row, places in _paths(texts):
            if self._searches(row):
                pieces = _pieces(texts, [ids[row][place] for place in places])
                # Texts that share a token share all before it, and so the first marker that ends there or earlier.
                limit = None if prompt_len is None else prompt_len[row]
                found = self._first_search(pieces, f"a text of row {row}", limit)
                starts[row, places] = starts[row, places].clamp(max=found)
        return starts


def _pieces(texts: Texts, ids: Sequence[int]) -> list[bytes]:
    assert texts.token_bytes is not None
    return [texts.token_bytes(i) for i in ids]


def _paths(texts: Texts) -> list[tuple[int, list[int]]]:
    """(row, the places of one text in it) for every document or every text of a tree."""
    found: list[tuple[int, list[int]]] = []
    for row, real in enumerate(texts.real.tolist()):
        places = [place for place, is_real in enumerate(real) if is_real]
        if texts.documents is not None:
            own = texts.documents[row].tolist()
            found += [
                (row, [p for p in places if own[p] == number]) for number in dict.fromkeys(own[p] for p in places)
            ]
            continue
        assert texts.parents is not None
        parents = texts.parents[row].tolist()
        inner = {parents[place] for place in places}
        for leaf in (place for place in places if place not in inner):
            path = [leaf]
            while parents[path[-1]] >= 0:
                path.append(parents[path[-1]])
            found.append((row, path[::-1]))
    return found
