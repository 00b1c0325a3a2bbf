"""What is contrasted: texts of two kinds, and which of their tokens are read.

1. Contrast pairs and labelled texts, in any of their forms, become one `Contrast`: texts, labels, groups, and whether the
   texts come in pairs.
2. Prompt and response are encoded apart, so that their boundary never falls inside a token.
3. `response_mean` reads the response's tokens, `last` the last one, `answer` the token in which the two responses of a pair
   differ: the letter of " (A)" and " (B)" (Rimsky et al. 2024, arXiv 2312.06681).
4. `show_tokens` prints what is read, and a vector's card holds the first text with its marks.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Int
from torch import Tensor

from interp import artifact
from interp.dataset import ContrastPair, Dataset, Example
from interp.model import HookedTransformer
from interp.steering.seen import seen_card, seen_texts_card
from interp.tokens import Tokenizer, Tokens

TOKENS = ("response_mean", "last", "answer")
"""Which tokens of a text make its row."""
MARKS = ("⟦", "⟧")
"""Round the tokens that were read, in text that shows them."""
_SHOWN = 200
"""Characters shown before and after the first mark."""


# ------------------------------------------------------------------------------------------------------------ texts


@dataclass(frozen=True, eq=False)
class Contrast:
    """Texts of two kinds. Of n pairs, text i and text n + i belong together."""

    prompts: list[str]
    """What stands before each response; "" where nothing does."""
    responses: list[str]
    """The part of each text that carries the concept."""
    labels: Int[np.ndarray, " text"]
    """1 or 0 for each text."""
    groups: list[str] | str | None
    """The group of each text; "rows" where each is its own on purpose; None where nobody said."""
    n_pairs: int | None
    """How many pairs; None for labelled texts."""
    seen: dict[str, list[str]] = field(default_factory=dict)
    """Hashes of the pairs and their groups, so that no experiment measures on them."""

    @property
    def facts(self) -> dict[str, Any]:
        """For a card: counts, and a hash of texts and labels."""
        texts = self.prompts + self.responses
        if self.n_pairs is not None:
            return {"n_pairs": self.n_pairs, "data_hash": artifact.hash_texts(texts), **self.seen}
        counts = {"n_positive": int(self.labels.sum()), "n_negative": int((self.labels == 0).sum())}
        groups = self.groups if isinstance(self.groups, list) else None
        seen = seen_texts_card(self.responses, groups)
        return {**counts, "data_hash": artifact.hash_texts([*texts, *map(str, self.labels.tolist())]), **seen}

    @property
    def default_tokens(self) -> str:
        """`response_mean` for pairs with a prompt, else `last`."""
        return "response_mean" if any(self.prompts) else "last"


def read_contrast(data: object, groups: Any = None) -> Contrast:
    """Pairs or labelled texts, in any form that `steering_vector` names, as one value.

    Raises:
        ValueError: neither; fewer than two pairs; labels of one kind only; groups of another number than pairs or texts.
    """
    items: Any = data
    if isinstance(data, pd.DataFrame):
        items = _of_frame(data)
    if isinstance(items, str) or not isinstance(items, Dataset | Sequence):
        raise ValueError(
            f"expected contrast pairs, labelled texts, a store, a probe or a direction, got {type(data).__name__}"
        )
    listed = list(items)
    if listed and all(isinstance(each, Example) for each in listed):
        return _labelled(listed, groups)
    pairs = [_pair(each, index) for index, each in enumerate(listed)]
    if len(pairs) < 2:
        raise ValueError(f"a direction needs at least two pairs, got {len(pairs)}")
    names = given_groups(groups, len(pairs), "pair")
    if names is None:  # a pair without a group shares its words with no other: its two texts are the group
        names = [pair.group or f"pair {index}" for index, pair in enumerate(pairs)]
    return Contrast(
        prompts=[pair.prompt for pair in pairs] * 2,
        responses=[pair.positive for pair in pairs] + [pair.negative for pair in pairs],
        labels=np.repeat([1, 0], len(pairs)),
        groups=[f"pair {i}" for i in range(len(pairs))] * 2 if isinstance(names, str) else names * 2,
        n_pairs=len(pairs),
        seen=seen_card(pairs),
    )


def _of_frame(frame: pd.DataFrame) -> list[Any]:
    columns = set(map(str, frame.columns))
    rows = frame.to_dict("records")
    if {"positive", "negative"} <= columns:
        return rows
    if not {"text", "label"} <= columns:
        raise ValueError(
            f"a table needs the columns text and label, or positive and negative (with prompt, group); it has {sorted(columns)}"
        )
    bad = [index for index, row in enumerate(rows) if row["label"] not in (0, 1) or not isinstance(row["text"], str)]
    if bad:
        raise ValueError(f"row {bad[0]} of the table is {rows[bad[0]]!r}: every row needs a text and a label 0 or 1")
    return [Example(row["text"], int(row["label"]), _group(row.get("group"))) for row in rows]


def _pair(each: Any, index: int) -> ContrastPair:
    if isinstance(each, ContrastPair):
        return each
    if isinstance(each, Mapping) and {"positive", "negative"} <= set(each):
        parts = (each.get("prompt") or "", each["positive"], each["negative"])
        group = _group(each.get("group"))
    elif isinstance(each, Sequence) and not isinstance(each, str) and len(each) in (2, 3):
        parts, group = (tuple(each) if len(each) == 3 else ("", *each)), None
    else:
        raise ValueError(f"pair {index} is {each!r}; expected (positive, negative) or (prompt, positive, negative)")
    if not all(isinstance(part, str) for part in parts):
        raise ValueError(f"pair {index} is {each!r}; its parts must be texts")
    return ContrastPair(*parts, group=group)


def _group(value: Any) -> str | None:
    missing = value is None or (isinstance(value, float) and math.isnan(value)) or value is pd.NA
    return None if missing else str(value)


def _labelled(examples: Sequence[Example], groups: Any) -> Contrast:
    chats = [index for index, each in enumerate(examples) if each.messages is not None]
    if chats:
        raise ValueError(
            f"text {chats[0]} is a chat: record it, interp.record(model, data, sites=..., tokens='last'), and give the store"
        )
    bare = [index for index, each in enumerate(examples) if each.label is None]
    if bare:
        raise ValueError(f"text {bare[0]} has no label: give every text a label 0 or 1, or give contrast pairs")
    labels = np.array([each.label for each in examples], dtype=np.int64)
    if set(labels.tolist()) != {0, 1}:
        raise ValueError(f"a direction needs texts of both labels, 1 and 0; these have {sorted(set(labels.tolist()))}")
    own = [each.group for each in examples if each.group is not None]
    names = given_groups(groups, len(examples), "text")
    if names is None and len(own) == len(examples):
        names = own
    texts = [each.text for each in examples]
    return Contrast([""] * len(texts), texts, labels, names, None)


def given_groups(groups: Any, n: int, what: str) -> list[str] | str | None:
    """Groups as the caller gives them, one text each; "rows" and None as they are. ValueError for another number."""
    if groups is None or (isinstance(groups, str) and groups == "rows"):
        return groups
    if isinstance(groups, str) or not isinstance(groups, Iterable):
        raise ValueError(f"groups must be one value a {what}, or 'rows' for each its own; got {groups!r}")
    listed = [str(each) for each in groups]
    if len(listed) != n:
        raise ValueError(f"groups has {len(listed)} values for {n} {what}s: give one a {what}, in the same order")
    return listed


# ----------------------------------------------------------------------------------------------------------- tokens


@dataclass(frozen=True, eq=False)
class Encoded:
    """Texts as tokens, and the places of those that make the row of each."""

    ids: list[list[int]]
    """Tokens of prompt and response."""
    read: list[list[int]]
    """Places of the tokens whose mean is the text's row."""


def encode_contrast(model: HookedTransformer, contrast: Contrast, tokens: str) -> Encoded:
    """Encode the texts and choose the tokens that are read.

    Raises:
        ValueError: unknown tokens; for "answer" texts without pairs, or a pair that differs in more than one token; for
            "response_mean" a text with nothing but first and special tokens.
    """
    if tokens not in TOKENS:
        raise ValueError(f"tokens={tokens!r} is unknown; choose from {', '.join(TOKENS)}")
    tokenizer = tokenizer_of(model)
    ids, starts = _encode(tokenizer, contrast.prompts, contrast.responses)
    if tokens == "answer":
        return Encoded(ids, _answers(contrast, ids, tokenizer))
    if tokens == "last":
        return Encoded(ids, [[len(row) - 1] for row in ids])
    special, read = set(tokenizer.special_ids), []
    for index, (row, start) in enumerate(zip(ids, starts, strict=True)):
        # The first token of a text is a sink in most models; its size would drown the rest.
        places = [place for place in range(max(start, 1), len(row)) if row[place] not in special]
        if not places:
            raise ValueError(
                f"text {index} ({contrast.responses[index]!r}) has no token besides its first and special ones: use tokens='last'"
            )
        read.append(places)
    return Encoded(ids, read)


def _answers(contrast: Contrast, ids: list[list[int]], tokenizer: Tokenizer) -> list[list[int]]:
    """Where the two responses of each pair differ, which must be in one token."""
    n = contrast.n_pairs
    if n is None:
        raise ValueError("tokens='answer' reads the letter in which two responses differ: it needs pairs; use 'last'")
    read = []
    for index, (one, other) in enumerate(zip(ids[:n], ids[n:], strict=True)):
        places = [place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b]
        if len(one) != len(other) or len(places) != 1:
            shown = [tokenizer.to_str_tokens(row[-8:]) for row in (one, other)]
            raise ValueError(
                f"tokens='answer' needs responses that differ in one token, such as ' (A)' and ' (B)'; pair {index} ends "
                f"{shown[0]} and {shown[1]}: use tokens='response_mean' or 'last'"
            )
        read.append(places)
    return read * 2


def tokenizer_of(model: HookedTransformer) -> Tokenizer:
    """The model's tokenizer. ValueError where it has none."""
    if model.tokenizer is None:
        raise ValueError("contrast pairs are texts; load the model with a tokenizer")
    return model.tokenizer


def encode_responses(
    model: HookedTransformer, prompts: Sequence[str], responses: Sequence[str]
) -> tuple[Tokens, Int[Tensor, "text"]]:
    """Prompt + response as one right-padded batch, and the number of tokens that belong to each prompt.

    The prompt is encoded alone and the response without a BOS, so the boundary never falls inside a token.
    """
    tokenizer = tokenizer_of(model)
    ids, lengths = _encode(tokenizer, prompts, responses)
    return padded(ids, tokenizer.pad_id), torch.tensor(lengths)


def _encode(
    tokenizer: Tokenizer, prompts: Sequence[str], responses: Sequence[str]
) -> tuple[list[list[int]], list[int]]:
    rows, lengths = [], []
    for index, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        before = tokenizer.encode(prompt, close=False) if prompt else []
        after = tokenizer.encode(response, bos=None if not prompt else False)
        if not after:
            raise ValueError(f"response {index} is empty")
        rows.append(before + after)
        lengths.append(len(before))
    return rows, lengths


def padded(rows: Sequence[list[int]], pad_id: int) -> Tokens:
    """Rows of token ids as one right-padded batch."""
    width = max(map(len, rows))
    ids = torch.tensor([row + [pad_id] * (width - len(row)) for row in rows])
    mask = torch.tensor([[True] * len(row) + [False] * (width - len(row)) for row in rows])
    return Tokens(ids, mask, False, None)


def show_tokens(model: HookedTransformer, data: object, tokens: str | None = None) -> pd.DataFrame:
    """Which tokens of each text make its row, to read before a vector is fitted.

    Args:
        model: its tokenizer cuts the texts.
        data: as for `steering_vector`: pairs or labelled texts.
        tokens: as there.

    Returns:
        A row for each text: label, shown (the text, ⟦ ⟧ round what is read), n_read (tokens), n_tokens. Of n pairs, rows
        i and n + i belong together.
    """
    contrast = read_contrast(data)
    encoded = encode_contrast(model, contrast, tokens or contrast.default_tokens)
    tokenizer = tokenizer_of(model)
    shown = [marked(tokenizer, ids, read) for ids, read in zip(encoded.ids, encoded.read, strict=True)]
    counts = {"n_read": [len(read) for read in encoded.read], "n_tokens": [len(ids) for ids in encoded.ids]}
    return pd.DataFrame({"label": contrast.labels, "shown": shown, **counts})


def marked(tokenizer: Tokenizer, ids: Sequence[int], read: Sequence[int]) -> str:
    """The text of the tokens, with marks round each run of those that are read."""
    chosen = set(read)
    pieces = []
    for place, piece in enumerate(tokenizer.to_str_tokens(list(ids))):
        before = MARKS[0] if place in chosen and place - 1 not in chosen else ""
        after = MARKS[1] if place in chosen and place + 1 not in chosen else ""
        pieces.append(before + piece + after)
    return "".join(pieces)


def example_of(tokenizer: Tokenizer, encoded: Encoded) -> str:
    """The first text with its marks, cut around the first mark where it is long."""
    shown = marked(tokenizer, encoded.ids[0], encoded.read[0])
    at = shown.index(MARKS[0])
    start, stop = max(0, at - _SHOWN), at + _SHOWN
    return ("..." if start else "") + shown[start:stop] + ("..." if stop < len(shown) else "")
