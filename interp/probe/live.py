"""Probes that read while the model runs or generates: a score for every token, and a flag where it is over a threshold.

1. `watch_probe` attaches a reader at the place of each probe for the length of a `with` block. It reads what the model goes
   on with there: after every intervention, whichever of the two was attached first.
2. Each pass gives a row for each probe and real token, with its absolute position. So a generation with a KV cache, a pass
   over the whole text and a batch with pads on any side give the same rows.
3. A token is flagged if its probability is over the threshold and it is *ordinary*: neither the first of its text nor
   special. The first token's activation is massive in most models, and what a probe says of it means nothing.
4. In a batch some texts end before others, and the model goes on with them in vain. Tokens from a row's end-of-text on are
   left out; where other stops end rows, `watch.to_frame(generation)` cuts them.

A probe was fitted on some token of each text, mostly the last one. What it says of the others is a reading, not a measured
figure: nothing here tells how well it does there.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp import sites as site_names
from interp.hooks import HookContext, Request, attached
from interp.model import HookedTransformer
from interp.model.generate import Generation
from interp.model.vocabulary import token_labels
from interp.probe.reading import place_name
from interp.probe.value import Probe

COLUMNS = (
    "call", "probe", "row", "position", "token", "token_id", "phase", "score", "probability", "flag", "ordinary",
)  # fmt: skip
"""Of a watch's frame."""


@dataclass(frozen=True)
class Flag:
    """A token that a probe flagged, as it happens."""

    probe: str
    """Name of the probe."""
    row: int
    """Row of the pass: a prompt in the prefill, a continuation after it."""
    position: int
    """Absolute position in the text."""
    token_id: int
    """The token; -1 where the pass started at a later layer and saw no token."""
    phase: str
    """forward, prefill or decode."""
    step: int
    """Generated tokens so far."""
    score: float
    """What `probe.score` gives."""
    probability: float
    """Of the label 1."""
    threshold: float
    """What it is over."""


@dataclass(frozen=True, eq=False)
class _Pass:
    """One pass: what all probes have in common."""

    begun: int
    """Number of the pass, as the model counts."""
    call: int
    phase: str
    step: int
    n_rows: int
    row: Int[np.ndarray, " token"]
    position: Int[np.ndarray, " token"]
    token_id: Int[np.ndarray, " token"]
    ordinary: Bool[np.ndarray, " token"]
    mask: Bool[Tensor, "batch pos"]
    """The tokens that are read."""
    readings: dict[str, tuple[np.ndarray, np.ndarray]]
    """Probe -> (scores, probabilities)."""


class Watch:
    """What probes say of the tokens that pass; made by `watch_probe`, filled while its block runs, readable afterwards.

    Attributes:
        probes: name -> probe.
        thresholds: name -> probability above which an ordinary token is flagged.
    """

    def __init__(
        self,
        model: HookedTransformer,
        probes: Mapping[str, Probe],
        thresholds: Mapping[str, float],
        on_flag: Callable[[Flag], Any] | None,
        stop_at_eos: bool,
    ) -> None:
        """As `watch_probe` makes it."""
        self.probes, self.thresholds = dict(probes), dict(thresholds)
        self._model, self._on_flag = model, on_flag
        tokenizer = model.tokenizer
        self._special = sorted(tokenizer.special_ids) if tokenizer is not None else []
        self._eos = tokenizer.eos_id if tokenizer is not None and stop_at_eos else None
        self._passes: list[_Pass] = []
        self._ids: tuple[int, Tensor] | None = None
        self._ends: dict[int, int] = {}
        self._told: dict[tuple[str, int], int] = {}

    def __repr__(self) -> str:
        seen = {(each.call, row, pos) for each in self._passes for row, pos in zip(each.row, each.position)}
        return f"Watch({', '.join(self.probes)}: {len(seen)} tokens)"

    @property
    def flags(self) -> pd.DataFrame:
        """The rows of `to_frame` that are flagged."""
        frame = self.to_frame()
        return frame.loc[frame["flag"].to_numpy()].reset_index(drop=True)

    def to_frame(self, generation: Generation | None = None) -> pd.DataFrame:
        """A row for each call, probe and token.

        call (passes over texts and generations of the block, counted from 0), probe, row, position, token (as a person
        reads it), token_id, phase, score, probability, flag, ordinary. With `n_samples` a row is a continuation, as in
        `Generation.rows`.

        Args:
            generation: the one that ran inside the block: its rows, and of each the tokens of the result alone.

        Raises:
            ValueError: no pass has run, or not exactly one generation of so many rows.
        """
        if not self._passes:
            raise ValueError("no pass has run inside the block of this watch: call the model, or generate, in it")
        rows = {call: max(each.n_rows for each in passes) for call, passes in self._calls().items()}
        frame = pd.concat([part for each in self._passes for part in self._rows(each, rows[each.call])])
        # Where a longer text turns all rotations anew, its tokens pass once more: the last reading is of the whole text.
        frame = frame.drop_duplicates(["call", "probe", "row", "position"], keep="last")
        if generation is not None:
            frame = self._of_generation(frame, generation)
        order = {name: number for number, name in enumerate(self.probes)}
        frame = frame.sort_values(
            ["call", "row", "position", "probe"],
            key=lambda column: column.map(order) if column.name == "probe" else column,
        ).reset_index(drop=True)
        return frame.assign(token=self._labels(frame)).loc[:, list(COLUMNS)]

    def _calls(self) -> dict[int, list[_Pass]]:
        return {call: list(passes) for call, passes in groupby(self._passes, key=lambda each: each.call)}

    def _rows(self, each: _Pass, n_rows: int) -> Iterator[pd.DataFrame]:
        """A frame for each probe; a prompt that was continued several times stands there for each continuation."""
        copies = n_rows // each.n_rows
        for name, (score, probability) in each.readings.items():
            frame = pd.DataFrame(
                {
                    "call": each.call, "probe": name, "row": each.row, "position": each.position, "token_id": each.token_id,
                    "phase": each.phase, "score": score, "probability": probability,
                    "flag": each.ordinary & (probability > self.thresholds[name]), "ordinary": each.ordinary,
                }
            )  # fmt: skip
            for copy in range(copies):
                yield frame.assign(row=each.row * copies + copy)

    def _of_generation(self, frame: pd.DataFrame, generation: Generation) -> pd.DataFrame:
        calls = [call for call, passes in self._calls().items() if passes[0].phase == "prefill"]
        n_rows = len(generation.rows)
        if len(calls) != 1 or frame.loc[frame["call"] == calls[0], "row"].nunique() != n_rows:
            raise ValueError(
                f"{len(calls)} generations ran in the block of this watch, and this one has {n_rows} rows: give the one that "
                "ran there, and let one run in a block"
            )
        lengths = np.array([len(row.all_tokens) for row in generation.rows])
        frame = frame.loc[(frame["call"] == calls[0]).to_numpy()]
        return frame.loc[frame["position"].to_numpy() < lengths[frame["row"].to_numpy()]]

    def _labels(self, frame: pd.DataFrame) -> pd.Series:
        found = pd.Series("", index=frame.index, dtype=object)
        for _, text in frame.groupby(["call", "row", "probe"], sort=False):
            known = text[text["token_id"] >= 0]
            found[known.index] = token_labels(self._model, known["token_id"].tolist())
        return found

    # During a pass ------------------------------------------------------------------------------------------------

    def saw_ids(self, _module: Any, args: tuple[Any, ...]) -> None:
        """Note the token ids that enter the embedding: hooks are not told them."""
        self._ids = self._model.run.begun, args[0].detach()

    def reader(self, name: str) -> Callable[[Tensor, HookContext], None]:
        """The function that reads for one probe."""
        probe = self.probes[name]

        def read(value: Tensor, ctx: HookContext) -> None:
            now = self._current(ctx)
            rows = _rows_of(value.detach(), probe)[now.mask]
            score, probability = (found.detach().double().cpu().numpy() for found in (probe.score(rows), probe(rows)))
            now.readings[name] = score, probability
            if self._on_flag is not None:
                self._tell(name, now, score, probability)

        return read

    def _current(self, ctx: HookContext) -> _Pass:
        """The pass that is under way; made when the first probe reads in it."""
        begun = self._model.run.begun
        if self._passes and self._passes[-1].begun == begun:
            return self._passes[-1]
        call = self._passes[-1].call if self._passes else -1
        if ctx.phase != "decode" or not self._passes:
            call += 1
            self._ends, self._told = {}, {}
        ids = self._ids[1] if self._ids is not None and self._ids[0] == begun else torch.full_like(ctx.positions, -1)
        if ctx.phase == "decode" and self._eos is not None:
            for row in (ids[:, -1] == self._eos).nonzero()[:, 0].tolist():
                self._ends.setdefault(row, int(ctx.positions[row, -1]))
        mask = ctx.mask
        if self._ends:
            ends = torch.full((len(mask),), torch.iinfo(torch.int64).max, device=mask.device)
            ends[list(self._ends)] = torch.tensor(list(self._ends.values()), device=mask.device)
            mask = mask & (ctx.positions < ends[:, None])
        row = mask.nonzero()[:, 0].cpu().numpy()
        position, token_id = (each[mask].cpu().numpy() for each in (ctx.positions, ids))
        ordinary = (position > 0) & ~np.isin(token_id, self._special)
        self._passes.append(
            _Pass(begun, call, ctx.phase, ctx.step, len(mask), row, position, token_id, ordinary, mask, {})
        )
        return self._passes[-1]

    def _tell(
        self, name: str, now: _Pass, score: Float[np.ndarray, " token"], probability: Float[np.ndarray, " token"]
    ) -> None:
        """Call the user's function for each flagged token that was not told of before."""
        assert self._on_flag is not None
        threshold = self.thresholds[name]
        for i in np.flatnonzero(now.ordinary & (probability > threshold)).tolist():
            row, position = int(now.row[i]), int(now.position[i])
            if position <= self._told.get((name, row), -1):
                continue
            self._told[name, row] = position
            about = now.phase, now.step, float(score[i]), float(probability[i]), threshold
            self._on_flag(Flag(name, row, position, int(now.token_id[i]), *about))


@contextmanager
def watch_probe(
    model: HookedTransformer,
    probes: Probe | Sequence[Probe] | Mapping[str, Probe] | Any,
    *,
    threshold: float | Mapping[str, float] | Any = None,
    on_flag: Callable[[Flag], Any] | None = None,
    stop_at_eos: bool = True,
) -> Iterator[Watch]:
    """Read every token that passes through the model inside the block.

        with watch_probe(model, probe) as watch:
            out = model.generate("The city of Paris is in", max_new_tokens=40)
        watch.to_frame(out)

    Args:
        model: the one that the probes were fitted on. Probes of an SAE's latents are read inside `model.splice(sae)`.
        probes: a probe, several, or name -> probe. Each reads its own site, and its head if it has one.
        threshold: probability above which a token is flagged, one for all or name -> threshold; None for each probe's own.
        on_flag: called with a `Flag` as soon as an ordinary token is flagged. An exception of it ends the pass, and with it a
            generation, and comes out of the block; the model is as before, and the watch keeps what it has read.
        stop_at_eos: leave out what passes in a row after its end-of-text token; False where `generate` runs with False.

    Raises:
        ValueError: no probe, one without a site, one of another model, kind or place, two of one name, a threshold outside
            0 to 1; a probe whose place no pass came to (on the way out); activations of another width, or NaN.
    """
    named = _named(probes)
    sites = _sites(model, named)
    watch = Watch(model, named, _thresholds(named, threshold), on_flag, stop_at_eos)
    # "source": called after every function that edits, also those that are attached later.
    entries: list[tuple[str, Any, str]] = [(site, watch.reader(name), "source") for name, site in sites.items()]
    handle = model.embed.register_forward_pre_hook(watch.saw_ids)
    try:
        with attached(model.hook_dict, Request(entries), model.run):
            yield watch
    finally:
        handle.remove()


def score_tokens(
    model: HookedTransformer, probe: Probe | Sequence[Probe] | Mapping[str, Probe] | Any, x: Any, **options: Any
) -> pd.DataFrame:
    """What probes say of each token of a text, or of several, in one pass that stops where nothing more is read.

    Args:
        model: the one that the probes were fitted on.
        probe: as in `watch_probe`.
        x: text, texts, token ids or Tokens.
        options: threshold and on_flag, as in `watch_probe`.

    Returns:
        A row per token and probe: see `Watch.to_frame`.

    Raises:
        ValueError: as `watch_probe` and `model.tokenize` do.
    """
    with watch_probe(model, probe, **options) as watch, torch.no_grad():
        layers = [site_names.layer_of(model.expand_sites([each.site])[0]) for each in watch.probes.values()]
        known = [layer for layer in layers if layer is not None]
        model(x, stop_at_layer=max(known) + 1 if len(known) == len(layers) else None)
    return watch.to_frame()


def _named(probes: Any) -> dict[str, Probe]:
    """Probes by name: their own, or kind and place."""
    if isinstance(probes, Mapping):
        named = {str(name): probe for name, probe in probes.items()}
    else:
        several = list(probes) if isinstance(probes, Sequence) else [probes]
        odd = [each for each in several if not isinstance(each, Probe)]
        if odd:
            raise ValueError(f"a watch takes probes, got {type(odd[0]).__name__}: see fit_probe and load_probe")
        names = [f"{probe.kind} {place_name(probe.place or '')}".rstrip() for probe in several]
        named = dict(zip(names, several, strict=True))
        if len(named) < len(several):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"two probes are {twice}: give them names, {{'first': probe, 'second': probe}}")
    if not named:
        raise ValueError("there is no probe to watch: give one, a list, or {name: probe}")
    odd = [name for name, probe in named.items() if not isinstance(probe, Probe)]
    if odd:
        raise ValueError(f"{odd[0]!r} is a {type(named[odd[0]]).__name__}, no probe: see fit_probe and load_probe")
    return named


def _sites(model: HookedTransformer, probes: Mapping[str, Probe]) -> dict[str, str]:
    """Name -> full name of the site that the probe reads in this model; ValueError for a probe that cannot read here."""
    for name, probe in probes.items():
        if probe.site is None:
            raise ValueError(f"probe {name!r} does not say its site: fit it with fit_probe(..., site=...)")
        if probe.reads == "tokens":
            raise ValueError(
                f"probe {name!r} ({probe.kind}) reads all tokens of a text together, not one at a time: score whole texts with "
                "it, or watch a probe of a kind that reads rows, such as logistic"
            )
        if ".hook_sae_" in probe.site and probe.site not in model.site_names:
            raise ValueError(
                f"probe {name!r} reads {probe.site}, which is a place of an SAE: watch it inside `with model.splice(sae)`"
            )
    # A model's fingerprint takes a look at every weight: once for all probes of one model.
    for probe in {str(probe.card.get("provenance")): probe for probe in probes.values()}.values():
        probe.check_model(model)
    return {name: model.expand_sites([probe.site])[0] for name, probe in probes.items()}


def _thresholds(probes: Mapping[str, Probe], given: Any) -> dict[str, float]:
    if isinstance(given, Mapping):
        unknown = [name for name in given if name not in probes]
        if unknown:
            raise ValueError(f"threshold= names {unknown[0]!r}, the probes are {', '.join(map(repr, probes))}")
    chosen = {
        name: given.get(name, probe.threshold)
        if isinstance(given, Mapping)
        else probe.threshold
        if given is None
        else given
        for name, probe in probes.items()
    }
    for name, value in chosen.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1 or math.isnan(value):
            raise ValueError(f"the threshold of probe {name!r} is a probability, between 0 and 1; got {value!r}")
    return {name: float(value) for name, value in chosen.items()}


def _rows_of(value: Tensor, probe: Probe) -> Float[Tensor, "batch pos d"]:
    """What a probe reads of a site's value [batch pos d] or [batch pos head d]: one head, or all of them joined."""
    if probe.head is None:
        return value.flatten(2)
    if value.ndim != 4 or not 0 <= probe.head < value.shape[2]:
        has = f"{value.shape[2]} heads" if value.ndim == 4 else "no heads"
        raise ValueError(f"the probe reads head {probe.head} of {probe.site}, which has {has} in this model")
    return value[:, :, probe.head]
