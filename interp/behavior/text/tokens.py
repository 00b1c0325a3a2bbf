"""What kind of token a vocabulary entry is, and how common it is in a corpus: classes that a calibration is split by.

1. The class is read from the token's own bytes, so it is the same wherever the token stands. Scripts that write no spaces
   between words have continuations only.
2. How common a token is, is counted on the documents that fit the temperature, never on those that are reported.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from interp.model import HookedTransformer
from interp.tokens import Tokenizer

CLASSES = ("word start", "continuation", "number", "punctuation", "newline", "other")
"""Letters after a space; letters without one; digits; signs; white space with a line break; all else (spaces, special
tokens, parts of a character, letters with digits)."""
FREQUENCIES = ("frequent", "middle", "rare")
"""Types that make half of the fitting documents' tokens; those between; the rarest types, which make a tenth, and all that
never come there."""
FREQUENT_SHARE, RARE_SHARE = 0.5, 0.1
ALL_CLASSES = (*CLASSES, *FREQUENCIES)


@dataclass(frozen=True, eq=False)
class TokenClasses:
    """The class and the frequency of every token id."""

    kind: Int[np.ndarray, " id"]
    """Index into `CLASSES`."""
    frequency: Int[np.ndarray, " id"]
    """Index into `FREQUENCIES`."""
    frequent_from: int
    """A frequent token comes at least so often in the fitting documents."""
    rare_to: int
    """A rare one at most so often."""
    counted: int
    """Tokens that were counted."""

    def members(self, name: str) -> np.ndarray:
        """[id] bool: whether a token is of the class of this name."""
        if name in CLASSES:
            return self.kind == CLASSES.index(name)
        return self.frequency == FREQUENCIES.index(name)


def token_classes(model: HookedTransformer, counted: Int[np.ndarray, " token"]) -> TokenClasses:
    """Classes of the model's vocabulary; `counted` are the scored tokens of the fitting documents."""
    assert model.tokenizer is not None
    size = model.cfg.d_vocab
    kind = np.array([CLASSES.index(_class_of(model.tokenizer, token)) for token in range(size)])
    counts = np.bincount(counted, minlength=size)
    frequent_from, rare_to = _thresholds(counts)
    frequency = np.where(counts >= frequent_from, 0, np.where(counts <= rare_to, 2, 1))
    return TokenClasses(kind, frequency, frequent_from, rare_to, len(counted))


def _thresholds(counts: Int[np.ndarray, " id"]) -> tuple[int, int]:
    """Counts from which a type is frequent and up to which it is rare; types of one count stay together."""
    values, types = np.unique(counts[counts > 0], return_counts=True)
    mass = values * types
    down = np.cumsum(mass[::-1])[::-1]  # tokens of types at least so common
    frequent = int(values[np.flatnonzero(down >= FREQUENT_SHARE * mass.sum())[-1]])
    rare = int(values[np.flatnonzero(np.cumsum(mass) >= RARE_SHARE * mass.sum())[0]])
    return frequent, min(rare, frequent - 1)


def _class_of(tokenizer: Tokenizer, token: int) -> str:
    if token in tokenizer.special_ids:
        return "other"
    try:
        text = tokenizer.token_bytes(token).decode()
    except UnicodeDecodeError:
        return "other"
    return class_of_text(text)


def class_of_text(text: str) -> str:
    """The class of a token with this text, one of `CLASSES`."""
    bare = text.strip()
    if not bare:
        return "newline" if "\n" in text or "\r" in text else "other"
    letters, digits = any(c.isalpha() for c in bare), any(c.isnumeric() for c in bare)
    if letters and digits:
        return "other"
    if letters:
        return "word start" if text[0].isspace() else "continuation"
    if digits:
        return "number"
    return "punctuation" if all(c.isprintable() and not c.isspace() for c in bare) else "other"


def band_of(before: Int[np.ndarray, " row"], edges: Sequence[int]) -> Int[np.ndarray, " row"]:
    """The position band of tokens with so many tokens before them: band b ends before edges[b]."""
    return np.searchsorted(np.asarray(edges), before, side="right")


def band_names(edges: Sequence[int]) -> list[tuple[str, int, int | None]]:
    """(name, first, last) of each band, the last one open."""
    firsts = [1, *edges]
    lasts: list[int | None] = [edge - 1 for edge in edges]
    return [
        (f"{first}+" if last is None else f"{first}-{last}", first, last) for first, last in zip(firsts, [*lasts, None])
    ]
