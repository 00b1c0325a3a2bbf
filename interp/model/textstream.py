"""The text of one row while its tokens arrive: whole characters only, and nothing that a stop string may still claim.

Tokens are bytes. A character may need several of them, so bytes wait until it is whole. A stop string may span tokens, so
the end of the text waits while it could be the beginning of one. What has been taken is therefore never taken back.
"""

import codecs
from collections.abc import Sequence


class TextStream:
    """Bytes in, text out.

    Args:
        stops: strings that end the text; the text is cut before the first that is complete.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self.text = ""
        """All whole characters so far; after a stop, the text before it."""
        self.closed = False
        """Nothing more will come."""
        self._stops = tuple(stops)
        self._longest = max(map(len, self._stops), default=0)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._starts: list[int] = []
        self._taken_text, self._taken_tokens = 0, 0

    @property
    def n_tokens(self) -> int:
        """Tokens that hold some of the text."""
        return len(self._starts)

    def push(self, data: bytes) -> str | None:
        """Add one token; the stop string that it completes, if it does."""
        assert not self.closed
        begin = max(0, len(self.text) - self._longest + 1)
        # A token without text goes with the text before it; one inside a character with that character.
        self._starts.append(len(self.text) if data or self._inside else len(self.text) - 1)
        self.text += self._decoder.decode(data)
        hits = [(at, stop) for stop in self._stops if (at := self.text.find(stop, begin)) >= 0]
        if not hits:
            return None
        cut, stop = min(hits)
        self.text, self.closed = self.text[:cut], True
        self._starts = [start for start in self._starts if start < cut]
        return stop

    def close(self) -> None:
        """The text ends here: a character that is not whole becomes U+FFFD, as in `Tokenizer.decode`."""
        if not self.closed:
            self.text += self._decoder.decode(b"", final=True)
            self.closed = True

    def take(self) -> tuple[str, slice]:
        """(new text that is certain, which tokens come with it), each once."""
        waiting = 0 if self.closed else self._waiting()
        certain = len(self.text) - waiting
        begun = sum(start < certain for start in self._starts[self._taken_tokens :])
        tokens = len(self._starts) if self.closed else self._taken_tokens + begun
        piece = self.text[self._taken_text : certain]
        chosen = slice(self._taken_tokens, tokens)
        self._taken_text, self._taken_tokens = certain, tokens
        return piece, chosen

    @property
    def _inside(self) -> bool:
        """The bytes so far end inside a character."""
        return bool(self._decoder.getstate()[0])

    def _waiting(self) -> int:
        """Length of the longest end of the text that begins a stop string."""
        for length in range(min(self._longest - 1, len(self.text)), 0, -1):
            if any(len(stop) > length and self.text.endswith(stop[:length]) for stop in self._stops):
                return length
        return 0
