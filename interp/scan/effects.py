"""Exact effects on one prompt: what the answer's lead loses when a part says what it would say elsewhere.

1. Run random texts of the same length, with the prompt's first token, and keep what each part wrote: attention and MLP of
   each layer, and each head's z.
2. Put the mean over these texts in the place of what a part wrote on the prompt, at every position (mean ablation). The
   run begins at the part's layer (`interp/rerun.py`), and all parts of a layer stand side by side in one batch.
3. The parts that matter most are run again with each random text's own values (resample ablation), which gives an interval
   over draws, and with zeros.
4. A token's effect: the same, with another random token in its place.

Effects are `clean - changed` of the logit difference: positive where the part supports the answer. `specific` says whether
a change meets these two tokens or all alike: the effect over the spread of the changes of two tokens drawn at random,
sqrt(2) times the deviation of all logits' changes. About 1 is what any two tokens do.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from interp.bootstrap import mean_interval
from interp.hooks import HookContext
from interp.scan.fields import each
from interp.scan.question import Question, random_tokens

NAMES = {
    "attn_out": "blocks.{}.hook_attn_out", "mlp_out": "blocks.{}.hook_mlp_out", "z": "blocks.{}.attn.hook_z",
    "resid_pre": "blocks.{}.hook_resid_pre",
}  # fmt: skip
Progress = Callable[[int, int], object]


@dataclass(frozen=True, eq=False)
class Change:
    """What one run puts in the place of a part."""

    site: str
    """attn_out, mlp_out, z or resid_pre."""
    layer: int
    """Where the run begins."""
    head: int
    """Of z; -1 elsewhere."""
    value: Float[Tensor, "pos d"]
    """The new value at every position."""


def run_changes(
    question: Question, changes: Sequence[Change], progress: Progress | None = None
) -> Float[np.ndarray, "change measure"]:
    """Effect, KL(clean || changed) in nats, and `specific`, of each change."""
    found = np.zeros((len(changes), 3))
    size, done = question.base.copies_at_once(), 0
    for layer in sorted({change.layer for change in changes}):
        mine = [i for i, change in enumerate(changes) if change.layer == layer]
        for chunk in (mine[start : start + size] for start in range(0, len(mine), size)):
            some = [changes[i] for i in chunk]
            hooks = {NAMES[site].format(layer): _edit(some, site) for site in dict.fromkeys(c.site for c in some)}
            stream = question.base.stream(layer, hooks, copies=len(chunk))
            logits = question.base.last_logits(stream).as_subclass(Tensor)[:, 0].double().cpu()
            found[chunk] = _measures(question, logits)
            done += len(chunk)
            if progress is not None:
                progress(done, len(changes))
    return found


def _edit(changes: Sequence[Change], site: str) -> Callable[[Tensor, HookContext], Tensor]:
    """Each change in the row of its own copy."""

    def edit(value: Tensor, ctx: HookContext) -> Tensor:
        del ctx
        for row, change in enumerate(changes):
            if change.site == site:
                place = (row, slice(None), change.head) if site == "z" else (row,)
                value[place] = change.value.to(value)
        return value

    return edit


def _measures(question: Question, logits: Float[Tensor, "copies d_vocab"]) -> Float[np.ndarray, "copies measure"]:
    clean = question.logits
    lost = clean - logits
    effect = lost[:, question.answer] - lost[:, question.against]
    spread = 2**0.5 * lost.std(1)
    specific = torch.where(spread > 1e-9, effect.abs() / spread.clamp(min=1e-9), 0.0)
    first, second = clean.log_softmax(-1), logits.log_softmax(-1)
    kl = (first.exp() * (first - second)).nan_to_num(nan=0.0).sum(1).clamp(min=0)
    return torch.stack([effect, kl, specific], 1).numpy()


# ------------------------------------------------------------------------------------------------------------ parts


class Parts:
    """All parts of a model on one prompt, and what they say on random texts."""

    def __init__(self, question: Question, draws: int, seed: int) -> None:
        self.question, self.seed, model = question, seed, question.model
        kinds = [("attn_out", "attn"), ("mlp_out", "mlp"), ("z", "head")]
        has = {
            kind: [NAMES[kind].format(n) in model.site_names for n in range(model.cfg.n_layers)] for kind, _ in kinds
        }
        self.rows = [
            (kind, name, layer, head)
            for layer in range(model.cfg.n_layers)
            for kind, name in kinds
            if has[kind][layer]
            for head in (range(model.cfg.n_heads) if kind == "z" else [-1])
        ]
        names = list(dict.fromkeys(NAMES[kind].format(layer) for kind, _, layer, _ in self.rows))
        with torch.no_grad():
            others = random_tokens(question, draws, seed, keep_first=True)
            self.values = model.run_with_cache(others, names, stop_at_layer=model.cfg.n_layers)[1]
            self.own = model.run_with_cache(question.base.tokens, names, stop_at_layer=model.cfg.n_layers)[1]
        self.draws = draws

    def change(self, row: int, draw: int | None = None, *, zero: bool = False) -> Change:
        """A part without its own value: with the mean of the random texts (None), one text's, or zeros."""
        kind, _, layer, head = self.rows[row]
        values = self.values[NAMES[kind].format(layer)]
        values = values[:, :, head] if kind == "z" else values
        value = values.mean(0) if draw is None else values[draw]
        return Change(kind, layer, head, torch.zeros_like(value) if zero else value)

    def slopes(self) -> dict[tuple[int, int], float]:
        """Estimated mean-ablation effect of each head: (own value - mean) . gradient of the logit difference."""
        question = self.question
        names = [NAMES["z"].format(layer) for layer in sorted({row[2] for row in self.rows if row[0] == "z"})]

        def metric(logits: Tensor) -> Tensor:
            return logits[0, -1, question.answer] - logits[0, -1, question.against]

        _, slope = question.model.grad(metric, question.base.tokens, names)
        found = {}
        for name in names:
            layer = int(name.split(".")[1])
            shift = self.own[name][0].double() - self.values[name].double().mean(0)
            by_head = (shift * slope[name][0].double()).sum((0, 2)).tolist()
            found |= {(layer, head): value for head, value in enumerate(by_head)}
        return found


def part_effects(
    question: Question,
    direct: pd.DataFrame | None,
    *,
    heads: int,
    drawn: int,
    draws: int,
    seed: int,
    progress: Progress,
) -> pd.DataFrame:
    """A row for each attention, MLP, and head that was run.

    Args:
        question: prompt and tokens.
        direct: head shares (`layer`, `head`, `mean`), to choose heads by; None where there are none.
        heads: heads that are run, those of the largest share or of the largest estimate by the gradient.
        drawn: parts of each kind that are run with all draws.
        draws: random texts.
        seed: of the texts and of the bootstrap.
        progress: called with runs done and in all.

    Returns:
        part, kind (attn, mlp, head), layer, head, estimate (of heads, by the gradient), effect, low, high (95 % over
        draws), n (draws; 0: mean ablation alone), mean_ablated, mean_specific, zero_ablated, kl, specific. Effect, kl and
        specific are means over the draws where n > 0, else those of the mean ablation.
    """
    parts = Parts(question, draws, seed)
    slopes = parts.slopes()
    shares = {} if direct is None else {(h.layer, h.head): h.mean for h in each(direct) if h.head >= 0}
    strongest = _strongest(slopes, heads) | _strongest(shares, heads)
    rows = [i for i, (kind, _, layer, head) in enumerate(parts.rows) if kind != "z" or (layer, head) in strongest]
    once = run_changes(question, [parts.change(row) for row in rows], progress)
    names = [parts.rows[row] for row in rows]
    table = pd.DataFrame(
        {
            "part": [f"L{layer}H{head}" if name == "head" else f"L{layer} {_WORDS[name]}" for _, name, layer, head in names],
            "kind": [name for _, name, _, _ in names],
            "layer": [layer for _, _, layer, _ in names],
            "head": [head for _, _, _, head in names],
            "estimate": [slopes.get((layer, head), np.nan) for _, _, layer, head in names],
            "effect": once[:, 0], "low": np.nan, "high": np.nan, "n": 0, "mean_ablated": once[:, 0],
            "mean_specific": once[:, 2], "zero_ablated": np.nan, "kl": once[:, 1], "specific": once[:, 2],
        }
    )  # fmt: skip
    size = table["effect"].abs() * table["specific"].clip(upper=2)  # general ones are of less interest
    order = size.groupby(table["kind"]).rank(ascending=False, method="first")
    again = np.flatnonzero(order.to_numpy() <= drawn).tolist()
    changes = [parts.change(rows[i], draw) for i in again for draw in range(draws)]
    changes += [parts.change(rows[i], zero=True) for i in again]
    found = run_changes(question, changes, progress)
    effects = found[: len(again) * draws].reshape(len(again), draws, 3)
    low, high = mean_interval(effects[:, :, 0], seed)
    columns = {"effect": effects[:, :, 0].mean(1), "low": low, "high": high, "n": draws}
    columns |= {"kl": effects[:, :, 1].mean(1), "specific": effects[:, :, 2].mean(1)}
    for name, values in (columns | {"zero_ablated": found[len(again) * draws :, 0]}).items():
        table.loc[again, name] = values
    return table


_WORDS = {"attn": "attention", "mlp": "MLP"}


def _strongest(values: dict[tuple[int, int], float], n: int) -> set[tuple[int, int]]:
    return set(sorted(values, key=lambda key: -abs(values[key]))[:n])


def token_effects(question: Question, *, tokens: int, draws: int, seed: int, progress: Progress) -> pd.DataFrame:
    """What another random token in the place of each costs: pos, token, effect, low, high, n, kl, specific.

    Args:
        question: prompt and tokens.
        tokens: how many are run, those of the largest estimate by the gradient.
        draws: random tokens for each.
        seed: of the tokens and of the bootstrap.
        progress: called with runs done and in all.
    """
    name, model = NAMES["resid_pre"].format(0), question.model
    own = question.base.streams[0][0]
    with torch.no_grad():
        others = random_tokens(question, draws, seed, keep_first=False)
        drawn = model.run_with_cache(others, [name], stop_at_layer=1)[1][name]
    if len(own) > tokens:

        def metric(logits: Tensor) -> Tensor:
            return logits[0, -1, question.answer] - logits[0, -1, question.against]

        slope = model.grad(metric, question.base.tokens, [name])[1][name][0]
        size = ((own - drawn.mean(0)).double() * slope.double()).sum(-1).abs()
        chosen = sorted(size.topk(tokens).indices.tolist())
    else:
        chosen = list(range(len(own)))
    changes = []
    for pos in chosen:
        for draw in range(draws):
            value = own.clone()
            value[pos] = drawn[draw, pos]
            changes.append(Change("resid_pre", 0, -1, value))
    found = run_changes(question, changes, progress).reshape(len(chosen), draws, 3)
    low, high = mean_interval(found[:, :, 0], seed)
    columns: dict[str, Any] = {"pos": chosen, "token": [question.labels[pos] for pos in chosen]}
    columns |= {"effect": found[:, :, 0].mean(1), "low": low, "high": high, "n": draws}
    return pd.DataFrame(columns | {"kl": found[:, :, 1].mean(1), "specific": found[:, :, 2].mean(1)})
