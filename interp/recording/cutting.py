"""What becomes of texts over the limit: an error, a cut, or pieces that are texts of their own."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from interp.recording.inputs import Encoded, Input, Reader, Stretches
from interp.recording.rules import Rows, TokenizedText, rows_of

LONG_RULES = ("error", "chunk", "truncate")
SOME = 5
"""Long texts that a message names, at most."""


@dataclass(frozen=True, eq=False)
class Piece:
    """A text to be recorded: an example, or a piece of a long one."""

    document: int
    """Number of the example."""
    chunk: int
    """Which piece of it."""
    start: int
    """Where the piece begins: tokens of the example before it, without a BOS."""
    text: str
    """The text of the ids; that of a piece is decoded from them."""
    ids: Int[np.ndarray, " pos"]
    """Token ids, int32."""
    prompt_len: int | None
    """Tokens of the prompt, where the text is a prompt and an answer to it."""
    spans: dict[str, Stretches]
    """Name -> ranges of tokens."""
    own_from: int = 0
    """First token that the piece before did not hold."""
    cut: bool = False
    """The ids are not all of the example."""


class Cutter:
    """Cuts texts to a limit.

    Args:
        reader: how examples are read.
        long: "error", "chunk", "truncate", or None to let `labels_seen` decide between the first two.
        stride: tokens from the beginning of one piece to that of the next, None for no overlap.
        max_length: most tokens of a text, with its BOS and new tokens.
        generate: new tokens, None for none.

    Raises:
        ValueError: options that do not fit each other.
    """

    def __init__(
        self, reader: Reader, long: str | None, stride: int | None, max_length: int, generate: int | None
    ) -> None:
        if generate is not None and (long == "chunk" or stride is not None):
            raise ValueError(
                "a prompt cannot be cut into pieces: with generate=, long is 'error' or 'truncate', and there is no stride"
            )
        self._head = int(reader.bos)
        self.limit = max_length - (generate or 0)
        """Most tokens of a text before new ones come."""
        self._size = self.limit - self._head
        if self._size < 1:
            new = f" and generate={generate} leave" if generate else " leaves"
            raise ValueError(f"max_length={max_length}{new} no room for a token besides the BOS")
        if stride is not None and not (long in ("chunk", None) and 1 <= stride <= self._size):
            raise ValueError(
                f"stride={stride} must be 1 to {self._size} (the tokens of a piece without its BOS), with long='chunk'"
            )
        self._stride = self._size if stride is None else stride
        self._reader, self._max_length, self._generate = reader, max_length, generate
        self.long: str | None = "chunk" if stride is not None else long
        """What is done, None while it is not known."""
        if generate is not None and long is None:
            self.long = "error"
        self.n_long = 0
        """Examples over the limit so far."""
        self.some_long: list[int] = []
        """Numbers of the first few of them."""
        self._first_long: str | None = None

    def labels_seen(self) -> None:
        """Some example has a label: if nothing was asked for, a long text is an error, also one that came before."""
        if self.long is None:
            self.long = "error"
            if self._first_long is not None:
                raise ValueError(self._first_long)

    def pieces(self, read: Input, encoded: Encoded, number: int) -> Iterator[Piece]:
        """The text, or what a long one is cut into.

        Raises:
            ValueError: a text over the limit that must not be cut.
        """
        ids = encoded.ids
        whole = len(ids) <= self.limit
        if not whole:
            self.n_long += 1
            if self.n_long <= SOME:
                self.some_long.append(number)
            self._refuse(read, len(ids), number)
        if whole or self.long == "truncate":
            spans, prompt_len = self._reader.ranges(read, encoded, self.limit, number)
            kept = ids[: self.limit]
            yield Piece(
                number, 0, 0, read.text if whole else self._decoded(kept), kept, prompt_len, spans, 0, not whole
            )
            return
        head, content = ids[: self._head], ids[self._head :]
        own_from = 0
        for chunk, start in enumerate(range(0, len(content), self._stride)):
            piece = np.concatenate([head, content[start : start + self._size]])
            yield Piece(number, chunk, start, self._decoded(piece), piece, None, {}, own_from, cut=True)
            if start + self._size >= len(content):
                return
            # Pieces that do not overlap keep their BOS as well.
            own_from = 0 if self._stride == self._size else self._head + self._size - self._stride

    def rows_of(self, piece: Piece) -> Rows:
        """The rows that are kept of a text."""
        return rows_of(
            self._reader.rules,
            TokenizedText(
                ids=piece.ids,
                number=piece.document,
                tokenizer=self._reader.tokenizer,
                text=piece.text,
                prompt_len=piece.prompt_len,
                spans=piece.spans,
                own_from=piece.own_from,
                cut=piece.cut,
            ),
        )

    def _refuse(self, read: Input, n: int, number: int) -> None:
        if self.long == "truncate":
            return
        spans = self._reader.rules.spans
        chunk = "" if spans or self._generate is not None else "long='chunk' (cut into texts of their own) or "
        why = ""
        if spans and self._generate is None:
            why = f"; tokens={self._reader.rules.naming(spans[0])!r} picks from a span, which pieces would cut"
        new = f" (max_length={self._max_length}, {self._generate} of them new)" if self._generate else ""
        message = (
            f"text {number} has {n} tokens, over the limit of {self.limit}{new} ({read.text[:40]!r} ...): shorten it, or "
            f"pass {chunk}long='truncate'{why}"
        )
        if self.long == "error" or spans:
            raise ValueError(message)
        self._first_long = self._first_long or message

    def _decoded(self, ids: Int[np.ndarray, " pos"]) -> str:
        tokenizer = self._reader.tokenizer
        begins = self._head and int(ids[0]) == tokenizer.bos_id
        return tokenizer.decode(ids[int(begins) :].tolist())
