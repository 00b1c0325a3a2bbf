"""One continuation under way: its tokens, its text, and how it ended."""

from collections.abc import Sequence

from interp.model.generate import Piece
from interp.model.textstream import TextStream


class Row:
    """One continuation under way."""

    def __init__(self, prompt_tokens: list[int], stops: Sequence[str]) -> None:
        self.prompt_tokens = prompt_tokens
        self.tokens: list[int] = []
        self.figures: tuple[list[float], list[float], list[float]] = ([], [], [])
        """Log-probabilities, sampling log-probabilities, entropies."""
        self.left_out: list[tuple[int, float, float]] = []
        """Of each token that ended the row and is no part of it: id, log-probability, entropy."""
        self.text = TextStream(stops)
        self.n_chosen = 0
        """Tokens chosen, those included that are left out of the result."""
        self.stop_reason: str | None = None
        self.stop: str | int | None = None

    def add(self, token: int, figures: Sequence[float], data: bytes) -> None:
        """Take a token in."""
        self.tokens.append(token)
        for kept, figure in zip(self.figures, figures, strict=True):
            kept.append(figure)
        stop = self.text.push(data)
        if stop is not None:
            self.end("stop", stop)

    def end(self, reason: str, stop: str | int | None = None) -> None:
        """The row is done; tokens that hold nothing but the stop string go."""
        self.stop_reason, self.stop = reason, stop
        self.text.close()
        n = self.text.n_tokens
        logprobs, _, entropies = self.figures
        self.left_out[:0] = zip(self.tokens[n:], logprobs[n:], entropies[n:], strict=True)
        for kept in (self.tokens, *self.figures):
            del kept[n:]

    def end_with(self, token: int, figures: Sequence[float], reason: str, stop: int | None = None) -> None:
        """The row is done by a token that is no part of it."""
        self.left_out.append((token, figures[0], figures[2]))
        self.end(reason, stop)

    @property
    def n_fed(self) -> int:
        """New tokens of the result that went through the model: all but the last one that was chosen."""
        return min(len(self.tokens), self.n_chosen - 1)

    def piece(self, index: int) -> Piece | None:
        """What has become certain since the last call, None for nothing."""
        text, chosen = self.text.take()
        tokens = self.tokens[chosen]
        if not text and not tokens:
            return None
        return Piece(text, tokens, *(kept[chosen] for kept in self.figures), row=index)
