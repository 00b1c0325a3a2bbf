"""The statistics of a steering experiment, on plain arrays.

1. The *effect* is the mean over items (pairs, prompts) of the value with the vector minus the value without. Its interval
   draws items again, or whole groups of them where items of a group share words.
2. A *wrong-way* item moves against the vector. Means hide them: a vector can help on average and harm every third prompt
   (Tan et al. 2024, arXiv 2407.12404), so each item also gets its own slope of value over strength. What is taken out at a
   positive strength should move values the other way, and what pushes every token on along the way that it already goes has
   none: see `way_of`.
3. The *random band* is what directions of the same norm do that mean nothing. p counts how many of them reach the vector's
   effect; z is how far the near end of its interval lies from their mean, in their standard deviations.
4. *Degeneration* of text is counted, not judged: distinct n-grams (Li et al. 2016, arXiv 1510.03055), and the share of
   n-grams that repeat an earlier one.
5. The *largest strength* under a bound is searched outward from 0, and the first failure ends the search. Damage need not
   rise steadily: a model that was pushed into one fixed phrase can look fluent again.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from interp.bootstrap import grouped_interval, grouped_share
from interp.intervene.draws import rank_among

SIDES = (None, -1, 1)


@dataclass(frozen=True)
class Change:
    """What one setting changed."""

    effect: float
    """Mean over items of value minus value at strength 0."""
    low: float
    """Lower end of its 95 % bootstrap interval over items or groups; NaN for one of them."""
    high: float
    """Upper end."""
    wrong_way: float
    """Share of items that move against the vector: change x strength x way below 0. NaN at strength 0 and for a kind of
    intervention without a way."""
    wrong_low: float
    """Lower end of its 95 % interval over groups."""
    wrong_high: float
    """Upper end."""
    n: int
    """Items."""
    n_groups: int
    """Groups, which is what the intervals count."""


def way_of(kind: str) -> float:
    """Which way a positive strength of a kind of intervention should move values, as far as the direction means them.

    Returns:
        1.0 for what adds the direction, -1.0 for `ablate`, which takes it out, NaN for `piecewise`, which pushes each token
        along the side that it is on.
    """
    return {"ablate": -1.0, "piecewise": math.nan}.get(kind, 1.0)


def mean_change(
    values: Float[np.ndarray, "item"] | Any,
    base: Float[np.ndarray, "item"] | Any,
    strength: float,
    *,
    way: float = 1.0,
    groups: Sequence[Hashable] | None = None,
    seed: int = 0,
) -> Change:
    """The change from `base` (strength 0) to `values`, item by item.

    Args:
        values: of each item with the vector at `strength`.
        base: of the same items without it.
        strength: only its sign counts: with `way` it says which way is wrong.
        way: of the kind of intervention, see `way_of`. The effect itself is a plain difference and keeps its sign.
        groups: of each item; items without one (None) stand for themselves.
        seed: of the bootstrap.

    Raises:
        ValueError: no items, arrays of different lengths, or NaN.
    """
    values, base = _column(values, "values"), _column(base, "base")
    if len(values) != len(base):
        raise ValueError(f"values and base must be of the same items; got {len(values)} and {len(base)}")
    changes = values - base
    effect, low, high, n_groups = group_mean(changes, groups, seed)
    toward = strength * way
    share, least, most = (math.nan,) * 3
    if toward and not math.isnan(toward):
        share, least, most = wrong_share(changes * toward < 0, groups, seed)
    return Change(effect, low, high, share, least, most, len(changes), n_groups)


def group_mean(
    values: Float[np.ndarray, "item"] | Any, groups: Sequence[Hashable] | None = None, seed: int = 0
) -> tuple[float, float, float, int]:
    """Mean over items, the ends of its 95 % bootstrap interval over groups, and the number of groups."""
    values = _column(values, "values")
    member = _members(groups, len(values))
    low, high = grouped_interval(values, member, seed)
    return float(values.mean()), float(low), float(high), len(np.unique(member))


def wrong_share(
    wrong: Bool[np.ndarray, "item"] | Any, groups: Sequence[Hashable] | None = None, seed: int = 0
) -> tuple[float, float, float]:
    """Share of items that move the wrong way, and its 95 % interval over groups, which stays open where none of them does."""
    moved = np.asarray(wrong, bool).astype(float)
    low, high = grouped_share(moved, _members(groups, len(moved)), seed)
    return float(moved.mean()), float(low), float(high)


def item_slopes(
    values: Float[np.ndarray, "item strength"] | Any, strengths: Float[np.ndarray, "strength"] | Any
) -> Float[np.ndarray, "item"]:
    """Least-squares slope of value on strength of each item: its steerability (Tan et al. 2024).

    With one strength beside 0 it is the change over the strength: an item goes the wrong way where slope x `way_of(kind)` is
    below 0, as in `Change.wrong_way`.

    Raises:
        ValueError: fewer than two different strengths, another number of columns, or NaN.
    """
    grid, table = _column(strengths, "strengths"), np.asarray(values, float)
    if table.ndim != 2 or table.shape[1] != len(grid):
        raise ValueError(f"values must be [item, strength] with {len(grid)} strengths, got shape {table.shape}")
    if not np.isfinite(table).all():
        raise ValueError("a value is not a finite number: an item needs one at every strength")
    if len(set(grid.tolist())) < 2:
        raise ValueError(f"a slope needs two different strengths, got {grid.tolist()}")
    centred = grid - grid.mean()
    return (table - table.mean(1, keepdims=True)) @ centred / (centred @ centred)


def random_band(
    effect: float, low: float, high: float, randoms: Float[np.ndarray, "direction"] | Any
) -> dict[str, Any]:
    """Where an effect with its interval lies among those of random directions.

    Returns:
        n, mean, std (n - 1), low and high (the extremes) of the random effects; p = (1 + as large) / (n + 1), where size
        counts and sign does not; z, the distance from their mean to the near end of the interval in their std, with the
        effect's sign, 0 where the interval holds the mean, NaN where there is no interval or no spread.
    """
    randoms = _column(randoms, "randoms")
    mean, n = float(randoms.mean()), len(randoms)
    std = float(randoms.std(ddof=1)) if n > 1 else math.nan
    near = low if effect > mean else high
    z = (near - mean) / std if std > 0 else math.nan
    if (near - mean) * (effect - mean) < 0:
        z = 0.0 if std > 0 else math.nan
    return {
        "n": n,
        "mean": mean,
        "std": std,
        "low": float(randoms.min()),
        "high": float(randoms.max()),
        "p": rank_among(effect, randoms),
        "z": z,
    }


def distinct_n(texts: Sequence[Sequence[Hashable]], n: int) -> float:
    """Distinct n-grams over all n-grams of the texts together; NaN where no text is long enough.

    Args:
        texts: token lists (ids or words), for example all continuations at one strength.
        n: tokens in a gram.
    """
    grams = [gram for text in texts for gram in _grams(text, n)]
    return len(set(grams)) / len(grams) if grams else math.nan


def repetition(texts: Sequence[Sequence[Hashable]], n: int = 4) -> float:
    """Share of n-grams that the same text has shown before; NaN where no text is long enough."""
    total = again = 0
    for text in texts:
        grams = _grams(text, n)
        total, again = total + len(grams), again + len(grams) - len(set(grams))
    return again / total if total else math.nan


def largest_within(
    strengths: Sequence[float] | Any, damage: Sequence[float] | Any, bound: float, side: int | None = None
) -> float:
    """The strength farthest from 0 that the search reaches, where every strength on the way keeps damage <= bound.

    Args:
        strengths: of the grid, in any order.
        damage: at each.
        bound: 0 or more.
        side: +1 or -1 searches one side only; None both, and the farther end counts (of equal ones the positive).

    Returns:
        The strength; 0.0 where already the smallest one is over the bound.

    Raises:
        ValueError: a bound or side that is none, damage that was not measured, or no strength on that side.
    """
    grid, harm = _column(strengths, "strengths"), np.asarray(damage, float)
    if not bound >= 0 or math.isinf(bound):
        raise ValueError(f"the bound must be a number of 0 or more, got {bound}")
    if side not in SIDES:
        raise ValueError(f"side must be 1, -1 or None, got {side!r}")
    if harm.shape != grid.shape or np.isnan(harm).any():
        raise ValueError("the damage was not measured at every strength: there is nothing to hold against the bound")
    sides = (1, -1) if side is None else (side,)
    if not any((grid * way > 0).any() for way in sides):
        raise ValueError(f"there is no strength on that side of 0 to search: {grid.tolist()}")
    reached = [_walk(grid * way, harm, bound) * way for way in sides]
    return max(reached, key=lambda strength: (abs(strength), strength))


def _walk(grid: Float[np.ndarray, "strength"], harm: Float[np.ndarray, "strength"], bound: float) -> float:
    reached = 0.0
    for at in np.argsort(grid):
        if grid[at] > 0:
            if harm[at] > bound:
                break
            reached = float(grid[at])
    return reached


def _grams(text: Sequence[Hashable], n: int) -> list[tuple[Hashable, ...]]:
    if n < 1:
        raise ValueError(f"an n-gram has at least one token, got n = {n}")
    return [tuple(text[i : i + n]) for i in range(len(text) - n + 1)]


def _members(groups: Sequence[Hashable] | None, n: int) -> np.ndarray:
    """Number of each item's group."""
    if groups is None:
        return np.arange(n)
    if len(groups) != n:
        raise ValueError(f"groups must name one for each of the {n} items, got {len(groups)}")
    names = [(index,) if group is None or group != group else group for index, group in enumerate(groups)]
    order = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return np.array([order[name] for name in names])


def _column(values: Any, name: str) -> Float[np.ndarray, "item"]:
    column = np.asarray(values, float)
    if column.ndim != 1 or not len(column) or not np.isfinite(column).all():
        raise ValueError(f"{name} must be finite numbers, at least one, in a row; got shape {column.shape}")
    return column
