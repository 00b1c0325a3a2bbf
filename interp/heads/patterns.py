"""What an attention pattern says about a head: the scores, and the null of each.

On repeated tokens (queries of the second copy, where nothing else is said):

- *induction*: to the token after the first occurrence, k = q - (N - 1);
- *duplicate token*: to the first occurrence, k = q - N;
- *previous token*: k = q - 1, over all queries but the first;
- *current token*: k = q; *first token*: the text's first one, where heads rest that have nothing to do (the sink);
- *attention entropy* in nats, *entropy share* of the ln(keys) that uniform attention has (near 1 the pattern is diffuse, and
  any score of it is weak evidence), and *mean distance* q - k in tokens.

On natural text the same, over every query but a text's first: *induction* is the attention to all tokens that followed an
earlier occurrence of the query's token, *duplicate token* that to the earlier occurrences; queries without one do not count.
The first token, where heads rest, is never a target of these.

The null of a score is what the head would have with its attention elsewhere: on repeated tokens the largest mean attention to
any other fixed offset, on text the attention that as many of its other keys get; for the first token, entropy and distance,
those of uniform attention over the keys that a query sees.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

METRICS = (
    "induction",
    "previous_token",
    "duplicate_token",
    "current_token",
    "first_token",
    "attention_entropy",
    "entropy_share",
    "mean_distance",
)
OFFSETS = ("induction", "previous_token", "duplicate_token", "current_token")
"""Scores that are attention to one kind of place."""


def pattern_scores(
    pattern: Float[Tensor, "row head query key"], period: int, n_bos: int = 0
) -> tuple[dict[str, Float[Tensor, "head row"]], Float[Tensor, "head"]]:
    """All metrics of one layer's patterns on repeated tokens, and the null of the induction score.

    Args:
        pattern: attention [row head query key]; query and key run over n_bos + 2 * period places.
        period: N, the length of one copy.
        n_bos: places before the first copy, 0 or 1.

    Returns:
        ({metric: [head row]}, null [head]): the largest mean attention to any other offset.
    """
    found, by_offset = repeated_scores(pattern, period, n_bos)
    return found, by_offset.mean(1).amax(1) if by_offset.shape[2] else torch.zeros(pattern.shape[1])


def repeated_scores(
    pattern: Float[Tensor, "row head query key"], period: int, n_bos: int
) -> tuple[dict[str, Float[Tensor, "head row"]], Float[Tensor, "head row offset"]]:
    """The metrics, and the mean attention to every other offset, by head and row."""
    end = n_bos + 2 * period
    if pattern.shape[-1] != end:
        raise ValueError(f"the pattern has {pattern.shape[-1]} keys; {n_bos} + 2 x {period} = {end} were expected")
    second = torch.arange(n_bos + period, end, device=pattern.device)
    inner = torch.arange(n_bos + 1, end, device=pattern.device)
    late = pattern[:, :, second]

    def offset(queries: Tensor, distance: int) -> Float[Tensor, "head row"]:
        # The first token is where heads rest: what goes there says nothing of the offset.
        queries = queries[queries - distance >= 1] if distance else queries
        return pattern[:, :, queries, queries - distance].mean(-1).T

    entropy = torch.special.entr(late).sum(-1)
    keys = torch.arange(end, device=pattern.device)
    found = {
        "induction": offset(second, period - 1),
        "previous_token": offset(inner, 1),
        "duplicate_token": offset(second, period),
        "current_token": offset(second, 0),
        "first_token": late[..., 0].mean(-1).T,
        "attention_entropy": entropy.mean(-1).T,
        "entropy_share": (entropy / (second + 1.0).log()).mean(-1).T,
        "mean_distance": (second - late @ keys.to(late.dtype)).mean(-1).T,
    }
    distances = torch.tensor([d for d in range(2, end) if d not in (period - 1, period)], device=pattern.device)
    places = second[:, None] - distances  # [query offset]
    real = places >= max(n_bos, 1)
    enough = real.sum(0) >= period // 4  # a mean over a few queries says little
    at = late.gather(3, places.clamp(min=0).expand(*late.shape[:2], -1, -1)) * real
    return found, (at.sum(2) / real.sum(0).clamp(min=1))[..., enough].transpose(0, 1)


@dataclass(frozen=True, eq=False)
class TextPlaces:
    """Where the queries of some texts would look if they were for one thing: [text query key] masks."""

    targets: dict[str, Bool[Tensor, "text query key"]]
    """Score -> the keys that count for each query."""
    queries: dict[str, Bool[Tensor, "text query"]]
    """Score -> the queries that count: those with a key that does."""
    seen: Bool[Tensor, "text query key"]
    """The keys that a query of a text sees; no query is a text's first token or a pad."""


def text_places(ids: Int[Tensor, "text pos"], mask: Bool[Tensor, "text pos"], window: int | None = None) -> TextPlaces:
    """Masks for texts that are padded on the right; `window` is the number of keys that a query sees."""
    n = ids.shape[1]
    place = torch.arange(n, device=ids.device)
    real = mask & (place > 0)
    past = real[:, :, None] & mask[:, None] & (place[:, None] >= place)
    seen = past if window is None else past & (place[:, None] - place < window)
    before = seen & (place[:, None] > place) & (place > 0)
    # An occurrence may lie outside the window, and the token after it inside.
    same = (ids[:, :, None] == ids[:, None]) & past & (place[:, None] > place)
    after = torch.zeros_like(same)
    after[:, :, 1:] = same[:, :, :-1]
    targets = {
        "induction": after & before,
        "previous_token": before & (place[:, None] - 1 == place),
        "duplicate_token": same & before,
        "current_token": seen & (place[:, None] == place),
    }
    return TextPlaces(targets, {name: target.any(-1) for name, target in targets.items()}, seen)


def text_scores(
    pattern: Float[Tensor, "text head query key"], places: TextPlaces
) -> tuple[dict[str, Float[Tensor, "head text"]], dict[str, Float[Tensor, "head text"]]]:
    """(sums of each metric over the queries that count, sums of the nulls) of one layer's patterns on texts."""
    # A query's attention over the first token is the sink's: it stands in no null.
    weights = pattern * places.seen[:, None]
    rest = places.seen.clone()
    rest[..., 0] = False
    found, null = {}, {}
    for name, target in places.targets.items():
        found[name] = torch.einsum("bhqk,bqk->hb", weights, target.to(weights.dtype))
        other = rest & ~target
        at_other = torch.einsum("bhqk,bqk->bhq", weights, other.to(weights.dtype))
        share = target.sum(-1) / other.sum(-1).clamp(min=1)
        null[name] = (at_other * share[:, None]).sum(-1).T
    real = places.seen.any(-1)
    n_keys = places.seen.sum(-1).to(weights.dtype)
    entropy = torch.special.entr(weights).sum(-1)
    place = torch.arange(pattern.shape[-1], device=pattern.device, dtype=weights.dtype)
    uniform = torch.where(real, n_keys.clamp(min=1).log(), 0.0)
    found |= {
        "first_token": weights[..., 0].sum(-1).T,
        "attention_entropy": entropy.sum(-1).T,
        "entropy_share": (entropy / uniform.clamp(min=1e-9)[:, None] * real[:, None]).sum(-1).T,
        "mean_distance": ((place - weights @ place) * real[:, None]).sum(-1).T,
    }
    plain = {
        "first_token": (places.seen[..., 0] / n_keys.clamp(min=1)).sum(-1),
        "attention_entropy": uniform.sum(-1),
        "entropy_share": real.sum(-1).to(weights.dtype),
        "mean_distance": (((n_keys - 1) / 2) * real).sum(-1),
    }
    heads = pattern.shape[1]
    return found, null | {name: value.expand(heads, -1) for name, value in plain.items()}


def uniform_nulls(period: int, n_bos: int, window: int | None) -> dict[str, float]:
    """What uniform attention has on the queries of the second copy."""
    keys = torch.arange(n_bos + period, n_bos + 2 * period).double() + 1
    seen = keys if window is None else keys.clamp(max=window)
    return {
        "first_token": float(((1 / seen) * (keys <= seen)).mean()),
        "attention_entropy": float(seen.log().mean()),
        "entropy_share": float((seen.log() / keys.log()).mean()),
        "mean_distance": float(((seen - 1) / 2).mean()),
    }
