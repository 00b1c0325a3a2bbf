"""Knockout sweeps: which token the answer's attention hangs on, and in which layers (Geva et al. 2023, arXiv 2304.14767).

1. Run the prompts once.
2. Cut attention from the queries to one token (or span of tokens) in a window of layers around each layer; the run starts at
   the window's first layer, from the stream of the plain run, and the cuts of one window stand side by side in a batch.
3. The effect is the answer's measure after the cut less the one before: negative where the cut takes the answer away.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from interp import artifact
from interp.bootstrap import mean_interval
from interp.hooks import HookContext
from interp.intervene import HookFunction, Knockout
from interp.intervene.knockout import span_positions
from interp.model import HookedTransformer
from interp.model.vocabulary import token_id, token_labels
from interp.patching.sweep import within
from interp.plot.tracing import trace_grid
from interp.rerun import base_run

MEASURES = ("probability", "log_probability", "logit_diff")


@dataclass(frozen=True, eq=False)
class KnockoutSweep:
    """What each cut did to the answer, prompt by prompt."""

    places: pd.DataFrame
    """A row per cut: layer (the middle of its window), first, last (layers of the window), pos (first key), stop."""
    values: Float[Tensor, "measure place prompt"]
    """Probability, log probability and, with `against`, logit difference after the cut, fp64."""
    plain: Float[Tensor, "measure prompt"]
    """The same without a cut."""
    labels: tuple[str, ...]
    """Name of each cut's keys."""
    card: dict[str, Any]
    """Provenance: queries, window, answers, model."""

    def to_frame(self, measure: str | Any = None) -> pd.DataFrame:
        """A row per cut: the place, token, effect, low, high (95 % over prompts; NaN for one), n.

        Args:
            measure: of `MEASURES`; None for the logit difference where it is known, else the probability.
        """
        known = MEASURES[: len(self.plain)]
        measure = ("logit_diff" if "logit_diff" in known else "probability") if measure is None else measure
        if measure not in known:
            raise ValueError(
                f"measure={measure!r} was not taken; choose from {', '.join(known)} (logit_diff needs against=)"
            )
        which = known.index(measure)
        effects = (self.values[which] - self.plain[which]).numpy()
        frame = self.places.assign(token=list(self.labels), effect=effects.mean(1))
        frame["low"], frame["high"] = mean_interval(effects, self.card["seed"])
        return frame.assign(n=effects.shape[1])

    def plot(self, measure: str | Any = None) -> alt.Chart:
        """Keys down, layers across."""
        return trace_grid(self.to_frame(measure), "change of the answer")

    def save(self, path: str | Path) -> Path:
        """One safetensors file with a card; `load_knockout_sweep` reads it."""
        places = {"columns": list(self.places.columns), "data": self.places.to_numpy(object).tolist()}
        card = self.card | {"places": places, "labels": list(self.labels)}
        return artifact.save_artifact(Path(path), "knockout sweep", {"values": self.values, "plain": self.plain}, card)


def load_knockout_sweep(path: str | Path) -> KnockoutSweep:
    """Read what `KnockoutSweep.save` wrote."""
    tensors, card = artifact.load_artifact(Path(path), "knockout sweep")
    places, labels = pd.DataFrame(**card.pop("places")), tuple(card.pop("labels"))
    return KnockoutSweep(places, labels=labels, card=card, **tensors)


def knockout_sweep(
    model: HookedTransformer,
    x: Any,
    answer: Any,
    against: Any = None,
    *,
    queries: Any = "last",
    keys: Sequence[Any] | None = None,
    window: int | Any = 1,
    layers: Iterable[int] | None = None,
    batch_size: int | Any = None,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> KnockoutSweep:
    """Cut attention to each token, layer by layer, and see what the answer loses.

    Args:
        model: any loaded model that predicts the next token.
        x: prompts, as `model.tokenize` takes them.
        answer: a token (text or id) for all prompts, or a list with one for each.
        against: the token that the logit difference is measured against, in the same form.
        queries: who no longer sees, as `Knockout` takes it.
        keys: positions, or spans (start, stop), each cut by itself. None: every position up to the queries; with "last",
            all but the last token itself.
        window: layers cut at once around each.
        layers: middles of the windows; negatives count from the end, None for all.
        batch_size: cuts run at once; None for what suits a CPU.
        seed: of the bootstrap over prompts.
        progress: fn(cuts done, in all).

    Raises:
        ValueError: an encoder; prompts of unequal length without `keys`, whose positions are not the same places; a layer that
            does not exist; a cut that leaves a query without any key.
    """
    if not model.cfg.causal:
        raise ValueError(f"{model.cfg.name} does not predict the next token, so there is no answer to follow")
    for name, given in (("window", window), ("batch_size", 1 if batch_size is None else batch_size)):
        if isinstance(given, bool) or not isinstance(given, int) or given < 1:
            raise ValueError(f"{name} must be an integer from 1 up, got {given!r}")
    centres = within(layers, model.cfg.n_layers, "layer")
    base = base_run(model, x)
    n, lengths = len(base.tokens), base.tokens.lengths
    spans = _spans(keys, queries, lengths.tolist())
    right = _answers(model, answer, n, "answer")
    wrong = None if against is None else _answers(model, against, n, "against")
    rows = base.copies_at_once(batch_size)
    places, values = [], []
    for layer in centres:
        first = max(0, layer - window // 2)
        last = min(model.cfg.n_layers, layer - window // 2 + window) - 1
        for chunk in (spans[at : at + rows] for at in range(0, len(spans), rows)):
            cuts = [Knockout(queries, [span], layers=range(first, last + 1)) for span in chunk]
            logits = base.last_logits(base.stream(first, _side_by_side(cuts, model), copies=len(chunk)))
            values += [_measures(one, right, wrong) for one in logits]
            places += [(layer, first, last, *span) for span in chunk]
            if progress is not None:
                progress(len(places), len(centres) * len(spans))
    frame = pd.DataFrame(places, columns=["layer", "first", "last", "pos", "stop"])
    card = artifact.provenance(
        analysis="attention knockout", model=model.cfg.name, fingerprint=model.fingerprint, n_prompts=n,
        queries=span_positions(queries, "queries"), window=window, answer=right.tolist(),
        against=None if wrong is None else wrong.tolist(), seed=seed,
    )  # fmt: skip
    names = {span: _name(model, base.tokens, span) for span in spans}
    labels = tuple(names[start, stop] for start, stop in zip(frame["pos"], frame["stop"]))
    plain = _measures(base.last_logits(base.final[None])[0], right, wrong)
    return KnockoutSweep(frame, torch.stack(values, 1), plain, labels, card)


def _side_by_side(cuts: Sequence[Knockout], model: HookedTransformer) -> dict[str, HookFunction]:
    """The functions of cuts in the same layers, each in the rows of its own copy.

    A cut may cut nothing: behind a sliding window a key is unseen as it is, and the effect is 0. So none has a handle.
    """
    by_name: dict[str, list[HookFunction]] = {}
    for cut in cuts:
        for name, fn in cut.hook_functions(model):
            by_name.setdefault(name, []).append(fn)

    def of_copies(fns: list[HookFunction]) -> HookFunction:
        def edit(scores: Tensor, ctx: HookContext) -> Tensor:
            copies, n = scores.unflatten(0, (len(fns), -1)), len(scores) // len(fns)
            for at, (copy, fn) in enumerate(zip(copies, fns, strict=True)):
                own = slice(at * n, (at + 1) * n)
                prompt_len = None if ctx.prompt_len is None else ctx.prompt_len[own]
                context = replace(
                    ctx, positions=ctx.positions[own], mask=ctx.mask[own], prompt_len=prompt_len, handle=None
                )
                edited = fn(copy, context)
                if edited is not None:
                    copy[:] = edited
            return scores

        return edit

    return {name: of_copies(fns) for name, fns in by_name.items()}


def _spans(keys: Sequence[Any] | None, queries: Any, lengths: list[int]) -> list[tuple[int, int]]:
    """The spans that are cut, one by one."""
    if keys is not None:
        spans = [(k, k + 1) if isinstance(k, int) else tuple(k) for k in keys]
        for span in spans:
            if max(span) > min(lengths):
                raise ValueError(f"keys {span} lie beyond the shortest prompt, which has {min(lengths)} tokens")
        return spans
    if len(set(lengths)) > 1:
        raise ValueError(
            f"the prompts have {sorted(set(lengths))} tokens, so their positions are not the same places: give keys= (spans "
            "that mean the same in each), or prompts of one length"
        )
    asked: Any = span_positions(queries, "queries")
    stop = lengths[0] - 1 if asked == "last" else lengths[0] if asked == "all" else min(max(asked), lengths[0])
    first = 1 if asked == "all" or (asked != "last" and 0 in asked) else 0  # the first token sees itself alone
    if stop <= first:
        raise ValueError(f"the queries {queries!r} see no token but themselves: there is nothing to cut")
    return [(pos, pos + 1) for pos in range(first, stop)]


def _answers(model: HookedTransformer, given: Any, n: int, what: str) -> Tensor:
    rows = list(given) if isinstance(given, list | tuple) else [given] * n
    if len(rows) != n:
        raise ValueError(f"{what}= has {len(rows)} tokens for {n} prompts")
    return torch.tensor([token_id(model, each, what) for each in rows])


def _measures(
    logits: Float[Tensor, "prompt d_vocab"], right: Tensor, wrong: Tensor | None
) -> Float[Tensor, "measure prompt"]:
    wide = logits.as_subclass(Tensor).double().cpu()
    rows = torch.arange(len(wide))
    logp = wide.log_softmax(-1)[rows, right]
    found = [logp.exp(), logp]
    return torch.stack(found if wrong is None else [*found, wide[rows, right] - wide[rows, wrong]])


def _name(model: HookedTransformer, tokens: Any, span: tuple[int, int]) -> str:
    """The tokens of a span, `…` where prompts differ."""
    rows = [token_labels(model, tokens.row(i))[span[0] : span[1]] for i in range(len(tokens))]
    return "".join(next(iter(set(at))) if len(set(at)) == 1 else "…" for at in zip(*rows))
