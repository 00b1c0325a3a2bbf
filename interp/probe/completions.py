"""Pairs of a true and a false completion of one prompt, made from paired statements.

"The city of Oslo is in Norway." and "... is in Chile." become the prompt "The city of Oslo is in" and the completions
" Norway" and " Chile". The cut stands where a word begins, and the space before it goes to the completion, as tokenizers
have it; closing punctuation that both share says nothing about truth and is kept apart.
"""

import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from interp.dataset import Dataset, Example
from interp.tokens import Tokenizer

log = logging.getLogger("interp")


@dataclass(frozen=True)
class CompletionPair:
    """One prompt that a true and a false completion continue."""

    prompt: str
    """What both statements begin with, without the space at its end."""
    true: str
    """Usually begins with a space."""
    false: str
    """The other one."""
    group: str | None = None
    """Pairs of one group share entities: they are drawn together. None: a pair is its own group."""
    topic: str | None = None
    """What the statements are about, if it is known."""
    end: str = ""
    """What closes both statements, for example "."; not scored."""

    def __post_init__(self) -> None:
        if not self.prompt.strip() or not self.true.strip() or not self.false.strip():
            raise ValueError(f"a pair needs a prompt and two completions with text in them, got {self!r}")
        if self.true == self.false:
            raise ValueError(f"the two completions of {self.prompt!r} are the same, {self.true!r}")

    def statement(self, truth: bool) -> str:
        """The whole true or false statement."""
        return self.prompt + (self.true if truth else self.false) + self.end


def completion_pairs(
    examples: Dataset | Iterable[Example] | pd.DataFrame,
    *,
    max_pairs: int | None = None,
    seed: int = 0,
) -> list[CompletionPair]:
    """Pairs from statements of which a true and a false one begin alike; how many rows made pairs is logged.

    Args:
        examples: texts with labels 1 and 0 and groups; a frame has the columns text, label and group. Only affirmative
            rows are taken where a column `polarity` says which they are. A true row goes with the false row of the same
            group (and of the same `entity` and `topic`, where there are such columns) with which it shares the longest
            beginning; no row is used twice.
        max_pairs: at most so many, drawn evenly from the topics.
        seed: of that draw.

    Raises:
        ValueError: no labels or groups, or no two rows that pair.
    """
    frame = _frame(examples)
    if max_pairs is not None and max_pairs < 1:
        raise ValueError(f"max_pairs must be at least 1, got {max_pairs}")
    rows = frame.loc[frame["polarity"] == "affirmative"] if "polarity" in frame else frame
    if not len(rows):
        raise ValueError("no row is affirmative (column polarity): a negated statement has no false completion to set")
    keys = ["group", *(name for name in ("entity", "topic") if name in rows)]
    pairs = [pair for _, part in rows.groupby(keys, sort=False, dropna=False) for pair in _pairs_of(part)]
    if not pairs:
        raise ValueError(
            f"none of the {len(rows)} affirmative rows pair: a true and a false statement of one group must begin with the "
            "same words, as 'The city of Oslo is in Norway.' and '... is in Chile.' do"
        )
    log.info("%d of %d rows make %d completion pairs", 2 * len(pairs), len(frame), len(pairs))
    return pairs if max_pairs is None else _drawn(pairs, max_pairs, seed)


def encoded(tokenizer: Tokenizer, prompt: str, completions: Sequence[str]) -> tuple[list[list[int]], int]:
    """Tokens of prompt and completion together, for each completion, and the place of the first scored token.

    Where the end of the prompt merges with the beginning of a completion, all completions are scored from the last
    token that they share with the prompt, so that they stay comparable.

    Raises:
        ValueError: nothing stands before the first scored token, or a completion adds no token.
    """
    before = tokenizer.encode(prompt, close=False)
    sequences = [tokenizer.encode(prompt + completion, close=False) for completion in completions]
    start = min(common_prefix(before, sequence) for sequence in sequences)
    if start == 0:
        raise ValueError(
            f"the completions of {prompt[-60:]!r} share no token with it, so nothing predicts their first one: begin the prompt "
            "with text, or use a tokenizer with a BOS"
        )
    for completion, sequence in zip(completions, sequences):
        if len(sequence) <= start:
            raise ValueError(f"the completion {completion!r} adds no token to {prompt[-60:]!r}: fill or remove it")
    return sequences, start


def common_prefix(left: Sequence[Any], right: Sequence[Any]) -> int:
    """How many tokens or characters two sequences begin with alike."""
    return next((i for i, (a, b) in enumerate(zip(left, right)) if a != b), min(len(left), len(right)))


def _frame(examples: Any) -> pd.DataFrame:
    if isinstance(examples, pd.DataFrame):
        frame = examples
    else:
        frame = (examples if isinstance(examples, Dataset) else Dataset("statements", tuple(examples))).to_frame()
    missing = [
        name for name in ("text", "label", "group") if name not in frame or pd.isna(frame[name]).to_numpy().any()
    ]
    if missing:
        raise ValueError(
            f"rows without {' and '.join(missing)}: each needs a text, a label 1 or 0, and a group to pair in"
        )
    if not set(frame["label"]) <= {0, 1}:
        raise ValueError(f"labels must be 1 and 0, got {sorted(map(str, set(frame['label'])))[:5]}")
    return frame


def _pairs_of(rows: pd.DataFrame) -> list[CompletionPair]:
    """Greedy: of all true and false rows the two with the longest common beginning, then of those that are left."""
    first = rows.iloc[0]
    topic = first["topic"] if "topic" in rows and isinstance(first["topic"], str) else None
    true, false = (list(dict.fromkeys(rows.loc[rows["label"] == label, "text"])) for label in (1, 0))
    cuts = {(i, j): _cut(a, b) for i, a in enumerate(true) for j, b in enumerate(false)}
    found, left, right = [], set(range(len(true))), set(range(len(false)))
    for i, j in sorted(cuts, key=lambda pair: (-cuts[pair], pair)):
        cut = cuts[i, j]
        if cut and i in left and j in right:
            left.remove(i)
            right.remove(j)
            end = _shared_end(true[i][cut:], false[j][cut:])
            ends = [text[cut : len(text) - len(end)] for text in (true[i], false[j])]
            found.append(CompletionPair(true[i][:cut], *ends, group=str(first["group"]), topic=topic, end=end))
    return found


def _cut(a: str, b: str) -> int:
    """Length of the common beginning of two texts up to the last beginning of a word; 0 where they share no word."""
    place = common_prefix(a, b)
    if place == min(len(a), len(b)):
        return 0  # one text continues the other: it has no completion of its own
    while place and any(text[place - 1].isalnum() and text[place].isalnum() for text in (a, b)):
        place -= 1
    return len(a[:place].rstrip())


def _shared_end(a: str, b: str) -> str:
    """The punctuation that both texts close with, as long as something stands before it."""
    end = a[len(a) - common_prefix(a[::-1], b[::-1]) :]
    marks = next((i for i, sign in enumerate(reversed(end)) if sign.isalnum() or sign.isspace()), len(end))
    marks = min(marks, len(a.strip()) - 1, len(b.strip()) - 1)
    return a[len(a) - marks :]


def _drawn(pairs: Sequence[CompletionPair], n: int, seed: int) -> list[CompletionPair]:
    """n pairs, one topic after the other in turn, in their old order."""
    seen: dict[str | None, int] = defaultdict(int)
    turns = []
    for index in np.random.default_rng(seed).permutation(len(pairs)).tolist():
        topic = pairs[index].topic
        turns.append((seen[topic], len(turns), index))
        seen[topic] += 1
    return [pairs[index] for index in sorted(index for _, _, index in sorted(turns)[:n])]
