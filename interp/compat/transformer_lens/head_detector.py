"""`detect_head`: how much of each head's attention lies where a named kind of head would look.

The kinds, as masks over (query, key): previous token (key = query - 1), duplicate token (an earlier place of the same
token), induction (the place after an earlier one of the same token). The scores divide by every query's attention, also of
those that have no place to look at, so they are low on ordinary text; `interp.head_scores` measures on repeated random
tokens, over the queries that count.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

HEAD_NAMES = ("previous_token_head", "duplicate_token_head", "induction_head")


@torch.no_grad()
def detect_head(
    model: Any,
    seq: str | list[str],
    detection_pattern: Tensor | str,
    heads: Sequence[tuple[int, int]] | Mapping[int, Sequence[int]] | None = None,
    cache: Any = None,
    *,
    exclude_bos: bool = False,
    exclude_current_token: bool = False,
    error_measure: str = "mul",
) -> Float[Tensor, "layer head"]:
    """Score of every head, -1 for those that were not asked for.

    Args:
        model: of this module.
        seq: a text, or several, whose scores are averaged.
        detection_pattern: one of HEAD_NAMES, or a lower triangular matrix [query key] for one text.
        heads: (layer, head) pairs, or layer -> heads; None for all.
        cache: of this text, without a batch axis; None runs the model.
        exclude_bos: leave the first key out.
        exclude_current_token: leave the diagonal out.
        error_measure: "mul" is the share of the attention that lies on the pattern; "abs" is 1 - the mean over queries of
            |attention - pattern|, summed over keys.
    """
    if error_measure not in ("mul", "abs"):
        raise ValueError(f"error_measure must be 'mul' or 'abs', got {error_measure!r}")
    if isinstance(seq, list):
        if cache is not None or not isinstance(detection_pattern, str):
            raise ValueError("several texts take neither a cache nor a matrix, which are those of one text")
        options: dict[str, Any] = {"exclude_bos": exclude_bos, "exclude_current_token": exclude_current_token}
        options["error_measure"] = error_measure
        return torch.stack([detect_head(model, text, detection_pattern, heads, **options) for text in seq]).mean(0)
    tokens = model.to_tokens(seq)
    wanted = _mask(tokens[0], detection_pattern)
    if cache is None:
        names = lambda name: name.endswith("hook_pattern")  # noqa: E731
        _, cache = model.run_with_cache(tokens, names_filter=names, remove_batch_dim=True, return_type=None)
    patterns = torch.stack([cache["pattern", layer] for layer in range(model.cfg.n_layers)])
    kept = torch.ones_like(wanted)
    if exclude_bos:
        kept[:, 0] = 0.0
    if exclude_current_token:
        kept.fill_diagonal_(0.0)
    if error_measure == "mul":
        seen = patterns * kept
        scores = (seen * wanted).sum((-1, -2)) / seen.sum((-1, -2))
    else:
        scores = 1 - ((patterns - wanted).abs() * kept).sum(-1).mean(-1)
    return torch.where(_asked(heads, scores), scores, -1.0)


def _asked(heads: Any, scores: Tensor) -> Tensor:
    if heads is None:
        return torch.ones_like(scores, dtype=torch.bool)
    if isinstance(heads, Mapping):
        heads = [(layer, head) for layer, chosen in heads.items() for head in chosen]
    asked = torch.zeros_like(scores, dtype=torch.bool)
    for layer, head in heads:
        asked[layer, head] = True
    return asked


def _mask(tokens: Int[Tensor, " pos"], pattern: Tensor | str) -> Float[Tensor, "query key"]:
    """Where a head should look, ones and zeros."""
    n = len(tokens)
    if n < 2:
        raise ValueError("the text needs at least two tokens, the BOS counted")
    if isinstance(pattern, Tensor):
        if pattern.shape != (n, n) or bool((pattern != pattern.tril()).any()):
            raise ValueError(f"the pattern must be lower triangular [{n} {n}], got {tuple(pattern.shape)}")
        return pattern.float().to(tokens.device)
    if pattern not in HEAD_NAMES:
        raise ValueError(f"detection_pattern must be a matrix or one of {', '.join(HEAD_NAMES)}, got {pattern!r}")
    if pattern == "previous_token_head":
        return torch.eye(n, device=tokens.device).roll(-1, dims=1).tril()
    same = (tokens[:, None] == tokens[None, :]).float().tril(-1)
    if pattern == "duplicate_token_head":
        return same
    shifted = same.roll(1, dims=1)
    shifted[:, 0] = 0.0
    return shifted.tril()
