"""The tables of a scan, which its charts and its page are made from."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd


@dataclass(frozen=True, eq=False)
class ScanTables:
    """What a scan of one prompt found, without the ways to show it.

    Effects are losses of the answer's lead (logit difference), in logits: positive where a part supports the answer.
    Intervals are 95 %, by bootstrap over draws of what a part is replaced by.
    """

    findings: pd.DataFrame
    """What to look at first: rank, importance (share of the lead), kind, place, finding (a sentence), value, low, high, n
    (draws; 0 for one exact run), unit, check (what a second measure gives), look (a Python line to go on with)."""
    warnings: tuple[str, ...]
    """What makes this scan mean less than it seems."""
    notes: tuple[str, ...]
    """What was left out, and why."""
    prediction: pd.DataFrame
    """Top next tokens and the two that are compared: token, id, probability, logit, rank (0 is the top), role."""
    lens: pd.DataFrame
    """Logit lens at the last token: layer (-1 is the embedding), top1, p_top1, entropy, p_answer, rank_answer, p_against,
    rank_against."""
    lens_grid: pd.DataFrame
    """Logit lens at every token: layer, pos, token, top1, p_top1, entropy, kl, rank, settle_layer."""
    direct: pd.DataFrame
    """Direct logit attribution: part, component, layer, head, source, mean (logits of the difference); attention and MLP
    of each layer, and every head. Empty where the logits are no sum over parts."""
    sources: pd.DataFrame
    """The same of heads by the token that they read: layer, head, source, token, mean."""
    parts: pd.DataFrame
    """Exact effects: part, kind, layer, head, estimate, effect, low, high, n, mean_ablated, mean_specific, zero_ablated, kl,
    specific. Where n is 0 the effect is that of mean ablation, else the mean of n resample ablations."""
    heads: pd.DataFrame
    """Heads that were run, with what they are: the columns of `parts`, share, looks_at, look_pos, look_token, look_weight,
    first_weight, scores on repeated random tokens, writes."""
    tokens: pd.DataFrame
    """Tokens: pos, token, effect (with another in its place), low, high, n, kl, specific, logprob, entropy, rank, expected."""
    patching: Mapping[str, pd.DataFrame]
    """With a corrupted prompt: `stream` and `heads` (layer, pos or head, effect, estimate, exact), `agreement`. Else empty."""
    card: dict[str, Any]
    """Prompt, ids, answer, against, model and fingerprint, logit difference, settle layer, settings, seed."""


def each(frame: pd.DataFrame) -> list[Any]:
    """The rows, with a column's value as an attribute."""
    return list(frame.itertuples())
