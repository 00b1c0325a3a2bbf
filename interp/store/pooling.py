"""One row a text: the last, the first or the mean of its kept tokens, or the row that a token rule made of it.

What was recorded decides what can be read. A store that kept one row a text has that row. One that kept "all" tokens or
a span of them has the three picks. One that kept several rules has each rule that gives one row a text under its own
name, and the picks of the others under "pick:rule". A recorded mean leaves out special and first tokens, since outliers
are known only later; the mean that is taken here leaves out outliers as well.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float32, Int
from torch import Tensor

from interp.store.convert import ROWS_AT_ONCE

if TYPE_CHECKING:
    from interp.store.reader import Store

PICKS = ("last", "first", "mean")
RULE = "rule:"
"""Before the name of a token rule: a column of tokens that says which rows it kept, in stores with several."""


def recorded_rules(card: Mapping[str, Any]) -> list[str]:
    """Names of the token rules that a store was recorded with."""
    tokens = card["tokens"]
    return [tokens] if isinstance(tokens, str) else list(tokens)


def holds_averages_among_tokens(card: Mapping[str, Any]) -> bool:
    """Whether a store has rows that are averages, and rows of single tokens too."""
    return len({_pick_of(rule) == "mean" for rule in recorded_rules(card)}) == 2


def pooled_rows(store: "Store", site: str, tokens: str | Any) -> Float32[Tensor, "text d"]:
    """A row for each text that has rows, in order.

    Args:
        store: the store, or a view of one.
        site: full name.
        tokens: pick, rule or "pick:rule".

    Raises:
        ValueError: tokens that were not recorded; several rows where one is asked for; a text without any, or without
            typical ones for the mean.
    """
    pick, rule = _pick_and_rule(store.card, tokens)
    rules = recorded_rules(store.card)
    rows_frame = store.tokens
    kept = rows_frame[RULE + rule].to_numpy(dtype=bool) if len(rules) > 1 else np.ones(store.n_rows, dtype=bool)
    average = rows_frame["position"].to_numpy() < 0
    kept = kept & (average if _pick_of(rule) == "mean" else ~average)
    numbers, text_of_row = np.unique(rows_frame["text"].to_numpy(), return_inverse=True)
    if pick == "mean":
        return _mean(store, site, kept & store.typical(site), numbers, text_of_row)
    rows = np.flatnonzero(kept)
    counts = np.bincount(text_of_row[rows], minlength=len(numbers))
    if not counts.all():
        raise ValueError(f"text {numbers[np.argmin(counts)]} has no row of tokens={rule!r}: leave it out")
    if pick is None and counts.max() > 1:
        raise ValueError(
            f"tokens={rule!r} kept {counts.max()} tokens of text {numbers[np.argmax(counts)]}, one is needed: say "
            f"{', '.join(repr(f'{name}:{rule}') for name in PICKS)}"
        )
    ends = np.cumsum(counts)
    return store.rows(site, rows[ends - counts if pick == "first" else ends - 1])


def _pick_of(rule: str) -> str | None:
    """The pick that a recorded rule made, None where it kept all tokens of its span."""
    pick = rule.partition(":")[0]
    return pick if pick in PICKS else None


def _pick_and_rule(card: Mapping[str, Any], tokens: str | Any) -> tuple[str | None, str]:
    """The pick that is left to take (None: the rule's own row), and the rule."""
    choices = _choices(recorded_rules(card))
    # The whole text has no name of its own in a rule.
    name = tokens.removesuffix(":text") if isinstance(tokens, str) else None
    if name is None or name not in choices:
        raise ValueError(
            f"tokens={tokens!r} cannot be read from a store that kept tokens={card['tokens']!r}: it has "
            f"{', '.join(map(repr, choices))}; record with tokens='all' for the others"
        )
    return choices[name]


def _choices(rules: list[str]) -> dict[str, tuple[str | None, str]]:
    """Everything that can be asked for: name -> (pick, rule)."""
    choices: dict[str, tuple[str | None, str]] = {rule: (None, rule) for rule in rules if rule != "all"}
    for rule in rules:
        own = _pick_of(rule)
        if own is not None and len(rules) == 1:
            choices[own] = (None, rule)
        for pick in PICKS if own is None else ():
            if len(rules) == 1 or rule == "all":
                choices.setdefault(pick, (pick, rule))
            if rule != "all" or pick in rules:
                choices.setdefault(f"{pick}:{rule}", (pick, rule))
    return choices


def _mean(
    store: "Store",
    site: str,
    chosen: Bool[np.ndarray, " row"],
    numbers: Int[np.ndarray, " text"],
    text_of_row: Int[np.ndarray, " row"],
) -> Float32[Tensor, "text d"]:
    rows = np.flatnonzero(chosen)
    counts = np.bincount(text_of_row[rows], minlength=len(numbers))
    if not counts.all():
        raise ValueError(
            f"text {numbers[np.argmin(counts)]} has no typical token (each is special, its first one or an outlier), so "
            "it has no mean: leave it out, or use tokens='last'"
        )
    sums = torch.zeros(len(numbers), store.width(site), dtype=torch.float64)
    for start in range(0, len(rows), ROWS_AT_ONCE):  # some rows at a time bound the memory
        part = rows[start : start + ROWS_AT_ONCE]
        sums.index_add_(0, torch.from_numpy(text_of_row[part]), store.rows(site, part).double())
    return (sums / torch.from_numpy(counts)[:, None]).float()
