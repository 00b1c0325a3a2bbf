"""When two short answers are the same, and when an answer is right: rules without a model.

`normalised` takes away what does not change a short answer: case, punctuation, articles, spaces, and other code points for the
same character. It keeps what does: signs, decimal points, percent, currency, `C++` and `C#`. `answers_match` is the grader: it
is a rule, so its labels can be checked by reading them.
"""

import re
import unicodedata
from collections.abc import Sequence
from typing import Any

ARTICLES = frozenset(("a", "an", "the"))
_DOTTED = re.compile(r"\b(?:\w\.){2,}")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_KEPT = re.compile(
    r"(?<!\w)[-\u2212](?=[$\u20ac\u00a3]?\.?\d)"  # a sign, not the hyphen of a word or the dash of a range
    r"|(?<=\d)[.:/](?=\d)|(?<!\w)\.(?=\d)"  # decimals, times, fractions
    r"|(?<=\d)\s?%|(?<=\w)#(?!\w)|&"
)


def normalised(text: str) -> str:
    """A short answer without what does not change it.

    NFKC and case folding; punctuation becomes a space, but apostrophes and the dots of `U.S.A.` go without one; commas
    between thousands go; an article goes where a word follows it (so "A" and "vitamin A" stay). Kept are signs before numbers,
    decimal points, the signs in times and fractions, percent, `&`, and the `#` of `C#`. Symbols that are no punctuation (+, $, =)
    stay. Accents stay: "Bogota" is not "Bogotá", so name both as references where both are right.

    Returns:
        Words with single spaces between them; "" where nothing is left, as for "" and "...".
    """
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    folded = _DOTTED.sub(lambda found: found[0].replace(".", ""), folded)
    folded = _THOUSANDS.sub("", re.sub(r"(?<=\w)['\u2019](?=\w)", "", folded))
    kept = {place for found in _KEPT.finditer(folded) for place in range(found.start(), found.end())}
    characters = [
        ("-" if sign == "\u2212" else sign) if place in kept or not unicodedata.category(sign).startswith("P") else " "
        for place, sign in enumerate(folded)
    ]
    words = re.sub(r"\s+%", "%", "".join(characters)).split()
    return " ".join(word for word, after in zip(words, [*words[1:], None]) if word not in ARTICLES or after is None)


def answers_match(answer: str, references: str | Sequence[str]) -> bool:
    """Whether an answer is right: `normalised`, it equals a reference, or begins with one as whole words.

    So "Paris, the capital of France" is right for "Paris", and "Parisian" and "not Paris" are not. An answer that goes on with
    "or" right after the reference ("Paris or Rome") hedges, and is not right. What the rule cannot see: an answer that takes
    itself back later ("Paris? No, Rome") counts as right, one with words before the reference ("It's Paris") as wrong.
    Give questions a form that is answered by the name alone, and list every spelling that is right.

    Args:
        answer: what the model said; an empty one is wrong.
        references: the right answers, one or several.

    Raises:
        ValueError: no reference, or one of which nothing is left when it is normalised.
    """
    listed = [references] if isinstance(references, str) else list(references)
    if not listed:
        raise ValueError("there is no reference to compare the answer with: give at least one right answer")
    said = normalised(answer).split()
    for reference in listed:
        right = normalised(reference).split()
        if not right:
            raise ValueError(
                f"the reference {reference!r} is empty once punctuation is taken away: no answer can match it"
            )
        if said[: len(right)] == right and said[len(right) : len(right) + 1] != ["or"]:
            return True
    return False


def text_pairs(pairs: Sequence[tuple[str, str]] | Any) -> list[tuple[str, str]]:
    """The pairs as a list. ValueError where one is not two texts."""
    listed = []
    for index, pair in enumerate(pairs):
        if isinstance(pair, str) or len(pair) != 2 or not all(isinstance(text, str) for text in pair):
            raise ValueError(f"pair {index} is not two texts: {pair!r}")
        listed.append((pair[0], pair[1]))
    return listed
