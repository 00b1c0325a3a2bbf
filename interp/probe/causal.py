"""Is what a probe reads also used? Add its direction and see whether the model's own judgement moves.

A probe that reads truth shows that truth can be decoded, not that the model uses it. So:

1. Add the unit direction times a share of the site's typical norm, at every token, and measure in nats how log p(true
   completion | prompt) - log p(false completion | prompt) moves.
2. Do the same with random directions of that norm, orthogonal to it: half isotropic, half with the covariance of typical
   activations, which lie where the model is sensitive. The effect's rank among them is the test.
3. Put the model's own TRUE or FALSE about the statements, after examples, to the same test, but only where that answer
   is better than chance before anything is added: an answer without knowledge can be pushed as well.
4. Report the damage beside it: the rise of the loss on the prompts, or on other texts.

All directions run side by side from the stream kept at the probe's layer (`interp.rerun`), and prompts that begin alike
share their tokens. Addition as a test of use: Marks & Tegmark 2023, arXiv 2310.06824; Li et al. 2023, arXiv 2306.03341.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float64, Int
from torch import Tensor

from interp import artifact
from interp import sites as site_names
from interp.intervene import PLACES
from interp.model import HookedTransformer
from interp.probe.completions import CompletionPair, encoded
from interp.probe.directions import Bundle, Spot, bundle
from interp.probe.effect import ANSWER, COMPLETION, Answers, ProbeEffect, effect_tables, preference_of
from interp.probe.figures import Resamples
from interp.probe.judging import FEW_SHOT, MIN_GROUPS, Judged, Judgement, judged_statements
from interp.probe.likelihood import Reading, readings, tokenizer_of
from interp.probe.value import Probe
from interp.rerun import base_run
from interp.store import Store

MIN_RANDOM = 19
"""With so many random directions the smallest rank p is .05."""
DAMAGE_PROMPTS = 24
"""Prompts whose loss is measured where no texts are given: every token of them is unembedded for every direction."""


def probe_effect(
    model: HookedTransformer,
    probe: Probe,
    pairs: Sequence[CompletionPair],
    *,
    strengths: Sequence[float] = (-0.1, 0.1),
    n_random: int = 20,
    where: str = "all",
    reference: Store | None = None,
    judgement: Judgement | None = FEW_SHOT,
    texts: Sequence[str] = (),
    n_boot: int = 1000,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> ProbeEffect:
    """What adding a probe's direction does to the model's preference for true completions, beside random directions.

    Args:
        model: the one that the probe reads.
        probe: with a direction, at a site inside the blocks; a positive strength adds towards its label 1.
        pairs: of `completion_pairs`, in at least five groups. Statements that the probe was fitted on are allowed: what
            is measured is not the probe's reading.
        strengths: in typical norms of the site. 0 stands in the table too and is exactly 0.
        n_random: random directions, at least 19.
        where: as in `Steer`: all tokens, those of the prompt, or from the last token of the prompt on.
        reference: a store with the site, for the typical norm and the covariance; None takes the tokens of the prompts.
        judgement: how the model is asked for TRUE or FALSE; None leaves that out. Added is at the judged statement
            alone, never at the examples.
        texts: whose rise of loss is the damage, with the direction at every token; none given, up to 24 of the prompts.
        n_boot: draws of the bootstrap over groups.
        seed: of random directions, examples and bootstrap.
        progress: called with (runs done, runs in all).

    Raises:
        ValueError: a probe without direction or site, or of another model; fewer than five groups; fewer than 19 random
            directions; strengths that are not finite or all 0.
    """
    spot, direction = _spot(model, probe)
    grid = _check(pairs, strengths, n_random, where)
    groups = _codes(pairs)
    prompts = list(dict.fromkeys(pair.prompt for pair in pairs))
    directions = bundle(model, spot, direction, prompts, reference, n_random, seed)
    run = _Runs(model, spot, directions, grid, progress)
    shift = _completions(run, pairs, list(texts) or _spread(prompts, seed), where)
    tables = [effect_tables(COMPLETION, shift.change, shift.loss, groups, grid, directions.kinds, n_boot, seed)]
    answers = None
    if judgement is not None:
        judged = judged_statements(model, pairs, groups, judgement, seed)
        answers, change = _answers(run, judged, n_boot, seed)
        if change is not None:
            tables.append(effect_tables(ANSWER, change, None, judged.groups, grid, directions.kinds, n_boot, seed))
    card = {
        "n_pairs": len(pairs),
        "n_groups": int(groups.max()) + 1,
        "pairs": artifact.hash_texts([pair.statement(truth) for pair in pairs for truth in (True, False)]),
        "site": spot.name,
        "head": spot.head,
        "where": where,
        "typical_norm": directions.typical_norm,
        "reference": directions.reference,
        "n_reference_rows": directions.n_rows,
        "n_random": n_random,
        "n_boot": n_boot,
        "damage": f"{len(texts)} given texts" if texts else f"{min(len(prompts), DAMAGE_PROMPTS)} prompts",
        "judgement": None if judgement is None else vars(judgement) | {"answers": list(judgement.answers)},
        "probe": {"kind": probe.kind, "n": probe.card.get("n")},
        "provenance": artifact.provenance(seed=seed, model=model.cfg.name, fingerprint=run.fingerprint),
    }
    effects, slopes = (pd.concat(parts, ignore_index=True) for parts in zip(*tables))
    preference = preference_of(shift.base, groups, n_boot, seed)
    return ProbeEffect(effects, slopes, preference, answers, _figure(probe), card)


# ------------------------------------------------------------------------------------------------------------- checks


def _spot(model: HookedTransformer, probe: Probe) -> tuple[Spot, Float64[Tensor, " d"]]:
    """The probe's site in this model, and its unit direction."""
    if probe.direction is None:
        raise ValueError(
            f"a probe of kind {probe.kind!r} has no direction to add: take a linear one, such as mass_mean"
        )
    if probe.site is None:
        raise ValueError("the probe does not say which site it reads: fit it with site=, or by probe_sweep")
    probe.check_model(model)
    names = model.expand_sites(probe.site)
    layer = site_names.layer_of(names[0]) if len(names) == 1 else None
    if layer is None:
        raise ValueError(
            f"the causal check adds at one site inside the blocks, and {probe.site!r} is none: hook_embed, for example, is "
            "resid_pre:0 where there is no position embedding"
        )
    direction = probe.direction.detach().cpu().double()
    return Spot(names[0], layer, probe.head), direction / direction.norm()


def _figure(probe: Probe) -> dict[str, float] | None:
    """The held-out AUROC and its interval that the probe's card quotes."""
    figure = probe.card.get("figure")
    return None if not figure else {key: float(figure[key]) for key in ("auroc", "low", "high")}


def _check(pairs: Sequence[CompletionPair], strengths: Sequence[float], n_random: int, where: str) -> list[float]:
    """The grid of strengths without 0, ascending."""
    wrong = [strength for strength in strengths if not math.isfinite(strength)]
    grid = sorted({float(strength) for strength in strengths if strength})
    if wrong or not grid:
        raise ValueError(f"strengths must be finite, and at least one other than 0, got {list(strengths)}")
    if n_random < MIN_RANDOM:
        raise ValueError(f"n_random={n_random}: with fewer than {MIN_RANDOM} random directions no rank reaches p = .05")
    if where not in PLACES:
        raise ValueError(f"where={where!r} is unknown; choose from {', '.join(PLACES)}")
    n_groups = len({pair.group if pair.group is not None else id(pair) for pair in pairs})
    if n_groups < MIN_GROUPS:
        raise ValueError(
            f"{len(pairs)} pairs in {n_groups} groups: an interval over groups needs at least {MIN_GROUPS}"
        )
    return grid


def _codes(pairs: Sequence[CompletionPair]) -> Int[np.ndarray, " pair"]:
    """Numbers of the pairs' groups."""
    names = [f"group {p.group}" if p.group is not None else f"pair {i}" for i, p in enumerate(pairs)]
    return np.unique(names, return_inverse=True)[1]


def _spread(prompts: list[str], seed: int) -> list[str]:
    """A few of the prompts."""
    chosen = np.random.default_rng(seed).permutation(len(prompts))[:DAMAGE_PROMPTS].tolist()
    return [prompts[index] for index in sorted(chosen)]


# --------------------------------------------------------------------------------------------------------------- runs


@dataclass(eq=False)
class _Runs:
    """Steered runs of one set of sequences after the other, at every strength and direction."""

    model: HookedTransformer
    spot: Spot
    directions: Bundle
    grid: list[float]
    progress: Callable[[int, int], None] | None

    def __post_init__(self) -> None:
        self.fingerprint = self.model.fingerprint
        units = torch.tensor(self.grid, dtype=torch.float64) * self.directions.typical_norm
        self.added = (units[:, None, None] * self.directions.unit).flatten(0, 1).float()
        """[(strength direction) d]."""

    def sums(
        self, sequences: Sequence[Sequence[int]], starts: Sequence[int], where: str = "all", first: int = 0
    ) -> tuple[Float64[np.ndarray, " sequence"], Float64[np.ndarray, "strength direction sequence"]]:
        """Summed log-probabilities of each sequence from its start on: without a direction, and with each.

        Args:
            where: which tokens of a sequence are added to.
            first: the first position that is added to.
        """
        n, settings = len(sequences), len(self.added)
        plain, steered = np.zeros(n), np.zeros((settings, n))
        parts = list(readings(self.model, sequences, starts, share=where == "all"))
        for index, reading in enumerate(parts):
            base = base_run(self.model, reading.tokens, [self.spot.layer])
            plain += reading.sums(self.model, base.final[None], n)[0]
            step, acted = base.copies_at_once(), _acted(reading, where, first)
            for begin in range(0, settings, step):
                added = self.added[begin : begin + step]
                hooks = {self.spot.name: self.spot.adding(added, acted)}
                stream = base.stream(self.spot.layer, hooks, len(added))
                steered[begin : begin + step] += reading.sums(self.model, stream, n)
                if self.progress is not None:
                    self.progress(index * settings + begin + len(added), len(parts) * settings)
        return plain, steered.reshape(len(self.grid), -1, n)

    def plain(self, sequences: Sequence[Sequence[int]], starts: Sequence[int]) -> Float64[np.ndarray, " sequence"]:
        """The same sums without a direction."""
        found = np.zeros(len(sequences))
        for reading in readings(self.model, sequences, starts):
            with torch.inference_mode():
                stream = self.model(reading.tokens, stop_at_layer=self.model.cfg.n_layers)
            found += reading.sums(self.model, stream[None], len(sequences))[0]
        return found


def _acted(reading: Reading, where: str, first: int) -> Bool[Tensor, "batch pos"]:
    """The tokens that a direction is added to."""
    chosen = reading.tokens.mask & (reading.tokens.positions >= first)
    if where == "all":
        return chosen
    assert reading.starts is not None
    start = torch.from_numpy(reading.starts).to(chosen.device)[:, None]
    places = reading.tokens.positions
    return chosen & (places < start if where == "prompt" else places >= start - 1)


# ----------------------------------------------------------------------------------------------------------- measures


@dataclass(frozen=True, eq=False)
class _Shift:
    """What directions change about the completions."""

    base: Float64[np.ndarray, " pair"]
    """Log-odds of the true completion without a direction, nats."""
    change: Float64[np.ndarray, "strength direction pair"]
    """What a direction adds to them."""
    loss: Float64[np.ndarray, "strength direction"]
    """Rise of the texts' loss, nats a token."""


def _completions(run: _Runs, pairs: Sequence[CompletionPair], texts: Sequence[str], where: str) -> _Shift:
    """Log-odds of the true completion, and the loss of the texts."""
    tokenizer = tokenizer_of(run.model)
    both = [encoded(tokenizer, pair.prompt, (pair.true, pair.false)) for pair in pairs]
    sequences = [sequences[side] for side in (0, 1) for sequences, _ in both]
    starts = [start for _ in (0, 1) for _, start in both]
    others = [ids for ids in (tokenizer.encode(text, close=False) for text in texts) if len(ids) > 1]
    if not others:
        raise ValueError("no text has a second token, so there is no loss to see damage in: give texts=")
    n, beginnings = len(pairs), [1] * len(others)
    if where == "all":  # in one go, for the prompts are computed anyway
        found = run.sums([*sequences, *others], [*starts, *beginnings])
        told, read = [sums[..., : 2 * n] for sums in found], [sums[..., 2 * n :] for sums in found]
    else:
        told, read = run.sums(sequences, starts, where), run.sums(others, beginnings)
    odds = [sums[..., :n] - sums[..., n:] for sums in told]
    loss = [-sums.sum(-1) / sum(len(ids) - 1 for ids in others) for sums in read]
    return _Shift(odds[0], odds[1] - odds[0], loss[1] - loss[0])


def _answers(
    run: _Runs, judged: Judged, n_boot: int, seed: int
) -> tuple[Answers, Float64[np.ndarray, "strength direction statement"] | None]:
    """How well the model answers unsteered, and, where it does, how its answer moves."""
    n = len(judged.y)
    sums = run.plain(judged.sequences, judged.starts)
    odds = sums[:n] - sums[n:]
    found = Resamples.of(judged.groups, n_boot, seed).figure(odds, judged.y, odds > 0)
    share = float((odds > 0).mean())
    answers = Answers(found.auroc, found.low, found.high, found.accuracy, share, found.n, found.n_groups)
    if not answers.informative:
        return answers, None
    plain, steered = run.sums(judged.sequences, judged.starts, first=judged.first)
    moved = steered[..., :n] - steered[..., n:] - (plain[:n] - plain[n:])
    return answers, moved
