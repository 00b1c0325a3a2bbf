"""Contrast pairs: one prompt, two continuations that differ in a concept. The group is a family of words.

No word that carries the concept and no prompt stands in two families, so a split by group tests on words and prompts
that were never seen.
"""

from typing import Any

from .facts import table

Row = dict[str, Any]

_FRAMES = (
    " {a} and {b}.",
    " simply {b}, and everyone there found it {a}.",
    " so {a} that I told my friends how {b} it had been.",
    " {b} from start to finish, and {a} at the end.",
)


def sentiment() -> list[Row]:
    """Two praising and two damning words a family, in four frames after the family's own two prompts."""
    prompts, families = [row["prompt"] for row in table("sentiment_prompts")], table("sentiment_words")
    assert len(prompts) == 2 * len(families), "two prompts for each family"
    rows = []
    for number, words in enumerate(families):
        for turn, frame in enumerate(_FRAMES):
            sides = {
                side: frame.format(a=words[f"{side}_a"], b=words[f"{side}_b"]) for side in ("positive", "negative")
            }
            prompt = prompts[number + turn % 2 * len(families)]
            rows.append({"prompt": prompt, **sides, "group": f"{words['positive_a']} | {words['negative_a']}"})
    return rows


def formality() -> list[Row]:
    """Positive is formal, negative is informal; three pairs a family, each with its own prompt."""
    return [
        {
            "prompt": row["prompt"],
            "positive": f" {row['positive']}",
            "negative": f" {row['negative']}",
            "group": row["group"],
        }
        for row in table("formality")
    ]
