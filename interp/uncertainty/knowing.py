"""P(IK), "I know": does the prompt's last token tell, before anything is written, whether the answer will be right?

1. `prompt_streams` takes the residual stream at the last token of each prompt (Kadavath et al. 2022).
2. `p_ik` fits probes in nested folds by group: inside each training part inner folds choose the strength and then the site,
   and the figure is of rows that neither the fit nor any choice saw.
3. What the probe must beat stands beside it: a classifier of the question's words in the same folds, for a topic can be hard
   by itself, and the same procedure with permuted labels.
4. A last probe, fitted to all rows at the site that all rows choose, is for new prompts. The figure is the procedure's, not
   this probe's own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from scipy.special import expit
from torch import Tensor

from interp import artifact
from interp.lens.places import end_kind
from interp.model import HookedTransformer
from interp.probe.controls import permuted_labels, text_logit
from interp.probe.figures import Figure, Resamples, auroc
from interp.probe.fit import fit_probe
from interp.probe.folds import Fold, held_out, nested_folds
from interp.probe.inputs import check_activations, check_groups, check_labels, check_whole, tie_texts
from interp.probe.labelled import Labelled
from interp.probe.methods import GRID, choose
from interp.probe.nested import Held, held_out_logits
from interp.probe.solver import Design
from interp.probe.value import Probe
from interp.sites import full_name, layer_of
from interp.uncertainty.forward import last_streams

PLACES = 6
"""Streams that are tried where no sites are named."""
PERMUTED = 20
"""Draws of labels without meaning."""


def knowing_sites(model: HookedTransformer) -> list[str]:
    """Six ends of blocks from a third of the model's depth on, evenly spaced: where answers form."""
    last = model.cfg.n_layers - 1
    layers = np.unique(np.linspace(last // 3, last, min(PLACES, last + 1)).round().astype(int))
    return [full_name(f"{end_kind(model.cfg)}:{layer}") for layer in layers]


def prompt_streams(
    model: HookedTransformer, prompts: Sequence[str] | Any, sites: Any = None
) -> dict[str, Float[Tensor, "prompt d"]]:
    """What stands at the last token of each prompt.

    Args:
        model: any decoder.
        prompts: texts, or rows of token ids.
        sites: places with one vector a token (a stream, an output of a part); None for `knowing_sites`.

    Returns:
        Full site name -> [prompt d], float32 on the CPU, in the order of the prompts.

    Raises:
        ValueError: no prompts, an empty one, one longer than the context, an unknown site, or one with an axis of heads.
    """
    names = model.expand_sites(knowing_sites(model) if sites is None else sites)
    rows = _rows(model, prompts)
    return last_streams(model, rows, names)


def _rows(model: HookedTransformer, prompts: Any) -> list[list[int]]:
    """The token ids of each prompt, whole: its end is what is read, so nothing may be cut."""
    given = [prompts] if isinstance(prompts, str) else list(prompts)
    if not given:
        raise ValueError("there are no prompts")
    if model.tokenizer is None and any(isinstance(prompt, str) for prompt in given):
        raise ValueError("this model has no tokenizer: give token ids, or load it with one")
    encode: Any = None if model.tokenizer is None else model.tokenizer.encode
    rows = [encode(each, close=False) if isinstance(each, str) else [int(i) for i in each] for each in given]
    for index, row in enumerate(rows):
        if not row or len(row) > model.cfg.n_ctx:
            raise ValueError(
                f"prompt {index} has {len(row)} tokens; it needs at least one, and the context holds {model.cfg.n_ctx}"
            )
    return rows


@dataclass(frozen=True, eq=False)
class PIKReport:
    """What the prompt tells of the answer's being right; made by `p_ik`."""

    p: Float[np.ndarray, " prompt"]
    """P(right) of each prompt, by a probe that knew nothing of its group."""
    right: Int[np.ndarray, " prompt"]
    """1 where the answer was right."""
    figure: Figure
    """AUROC with interval, Brier score and calibration error of `p`."""
    permuted: float
    """Mean AUROC of the same procedure with permuted labels."""
    p_permuted: float
    """Share of permuted labels that reach the AUROC, with 1 added above and below: what chance gives."""
    wording: Figure | None
    """The same figure for a classifier of the prompts' words; None where there are no texts."""
    sites: pd.DataFrame
    """A row per site: site, layer, auroc (held-out, at this site alone), chosen (outer folds that chose it). The best of them
    is not the figure, for it would be chosen on the rows that it is measured on."""
    probe: Probe
    """For new prompts: fitted to all rows at the site that all rows choose."""
    card: dict[str, Any]
    """n, folds, seed, model."""

    @property
    def auroc(self) -> float:
        """Of the held-out P(right)."""
        return self.figure.auroc

    @property
    def interval(self) -> tuple[float, float]:
        """Its 95 % interval, groups resampled."""
        return self.figure.low, self.figure.high

    @property
    def informative(self) -> bool:
        """The interval lies above 1/2, and permuted labels seldom reach the figure."""
        return self.figure.low > 0.5 and self.p_permuted <= 0.05

    @property
    def verdict(self) -> str:
        """What was found, in plain sentences."""
        f = self.figure
        said = (
            f"Before the first word of the answer a probe tells right from wrong with AUROC {f.auroc:.3f} "
            f"({f.low:.3f}-{f.high:.3f}; n = {f.n} in {f.n_groups} groups, {self.right.mean():.0%} right); permuted labels give "
            f"{self.permuted:.3f}."
        )
        if not self.informative:
            said += " That cannot be told from chance: draw no conclusion from it."
        if self.wording is not None:
            w = self.wording
            said += f" The words of the question alone give {w.auroc:.3f} ({w.low:.3f}-{w.high:.3f})."
            if self.informative and w.high >= f.auroc:
                said += " So what it reads may be how hard questions of this kind are, not what the model knows."
        return said

    def __str__(self) -> str:
        return self.verdict

    def to_frame(self) -> pd.DataFrame:
        """A row per prompt: prompt, p, right."""
        return pd.DataFrame({"prompt": np.arange(len(self.p)), "p": self.p, "right": self.right})

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; the probe is saved by `report.probe.save`."""
        return {
            "figure": asdict(self.figure),
            "permuted": self.permuted,
            "p_permuted": self.p_permuted,
            "wording": None if self.wording is None else asdict(self.wording),
            "sites": artifact.records(self.sites),
            "prompts": artifact.records(self.to_frame()),
            "informative": self.informative,
            "verdict": self.verdict,
            "card": self.card,
        }


def p_ik(
    model: HookedTransformer | None,
    prompts: Sequence[str] | Any,
    right: Sequence[Any] | Any,
    groups: Sequence[Any] | str | Any,
    *,
    sites: Any = None,
    streams: Mapping[str, Any] | None = None,
    n_folds: int | Any = 5,
    n_permuted: int | Any = PERMUTED,
    n_boot: int | Any = 1000,
    seed: int | Any = 0,
) -> PIKReport:
    """Whether the model's own answer will be right, read at the prompt's last token.

    Args:
        model: whose prompts they are; None with `streams`.
        prompts: texts up to where the answer begins; None with `streams` where there are no texts.
        right: 1 where the model's answer to the prompt was right, else 0.
        groups: what each question is about; no group stands on both sides of a split. "rows" splits by row on purpose. Equal
            prompts are always one group.
        sites: places to choose from; None for `knowing_sites`.
        streams: name of the place -> [prompt d], instead of a run of the model.
        n_folds: outer folds, at least 3; inner ones are one fewer.
        n_permuted: draws of permuted labels, at least 19 for a p-value of 0.05.
        n_boot: draws of the intervals.
        seed: of the folds and of all draws.

    Raises:
        ValueError: answers that are all right or all wrong, too few groups, numbers that differ, NaN, constant streams.
    """
    check_whole(3, n_folds=n_folds)
    check_whole(1, n_permuted=n_permuted)
    check_whole(seed=seed)
    if streams is None and model is None:
        raise ValueError("give a model that runs the prompts, or streams= with what stands at their last tokens")
    texts = None if prompts is None else [str(prompt) for prompt in prompts]
    places = _places(model, prompts, sites, streams)
    n = len(next(iter(places.values())))
    if texts is not None and len(texts) != n:
        raise ValueError(f"{len(texts)} prompts for {n} rows of streams: give one a row, in the same order")
    y = check_labels(right, n)
    codes = check_groups(groups, n, n_folds)
    if texts is not None:
        codes = check_groups(list(tie_texts(codes, texts)[0]), n, n_folds)
    data = _labelled(texts, y, codes)
    folds = nested_folds(y, codes, n_folds, seed)
    of_fold = np.empty(n, dtype=int)
    for index, fold in enumerate(folds):
        of_fold[fold.test] = index
    shuffled = permuted_labels(y, codes, of_fold, n_permuted, seed)
    held = {
        name: held_out_logits(X, data, folds, "logistic", GRID, permuted=shuffled, seed=seed)
        for name, X in places.items()
    }
    return _report(model, places, held, data, folds, shuffled, texts, n_boot, seed)


def _places(
    model: HookedTransformer | None, prompts: Any, sites: Any, streams: Mapping[str, Any] | None
) -> dict[str, Tensor]:
    if streams is None:
        assert model is not None
        streams = prompt_streams(model, prompts, sites)
    elif sites is not None:
        raise ValueError("streams= names its own places: leave sites out")
    if not streams:
        raise ValueError("streams is empty: give at least one place")
    found = {str(name): check_activations(torch.as_tensor(X), str(name)) for name, X in streams.items()}
    counts = {name: len(X) for name, X in found.items()}
    if len(set(counts.values())) != 1:
        raise ValueError(f"the places have different numbers of rows, {counts}: give the same prompts at each")
    return found


def _labelled(texts: list[str] | None, y: Int[np.ndarray, " row"], codes: Int[np.ndarray, " row"]) -> Labelled:
    texts = [""] * len(y) if texts is None else texts
    return Labelled(texts, y, codes, "given by the caller", pd.DataFrame({"text": texts, "label": y}))


def _report(
    model: HookedTransformer | None,
    places: Mapping[str, Tensor],
    held: Mapping[str, Held],
    data: Labelled,
    folds: Sequence[Fold],
    shuffled: Int[np.ndarray, "draw row"],
    texts: list[str] | None,
    n_boot: int,
    seed: int,
) -> PIKReport:
    y, n = data.y, len(data.y)
    logit, permuted, guess = np.empty(n), np.empty(shuffled.shape), np.zeros(n, dtype=bool)
    chosen = []
    for index, fold in enumerate(folds):
        place = max(held, key=lambda name: held[name].choices[index].auroc)
        logit[fold.test], permuted[:, fold.test] = held[place].logit[fold.test], held[place].permuted[:, fold.test]
        guess[fold.test] = logit[fold.test] > held[place].choices[index].threshold
        chosen.append(place)
    resamples = Resamples.of(data.groups, n_boot, seed)
    figure = resamples.figure(logit, y, guess)
    drawn = np.concatenate([auroc(row, labels) for row, labels in zip(permuted, shuffled)])
    table = pd.DataFrame(
        {
            "site": list(held),
            "layer": [_layer(name) for name in held],
            "auroc": [float(auroc(each.logit, y)[0]) for each in held.values()],
            "chosen": [chosen.count(name) for name in held],
        }
    )
    own = {} if model is None else {"model": model.cfg.name, "fingerprint": model.fingerprint}
    facts = {"n": n, "n_groups": figure.n_groups, "folds": len(folds), "permuted": len(shuffled)}
    provenance = artifact.provenance(seed=seed, **own)
    probe = _final_probe(places, data, len(folds), seed)
    return PIKReport(
        p=expit(logit),
        right=y,
        figure=figure,
        permuted=float(drawn.mean()),
        p_permuted=float((1 + (drawn >= figure.auroc).sum()) / (1 + len(drawn))),
        wording=None if texts is None else _wording(texts, y, folds, resamples),
        sites=table,
        probe=replace(probe, card={**probe.card, "provenance": provenance, "reads": "the prompt's last token"}),
        card={**facts, "chosen": chosen, "provenance": provenance},
    )


def _final_probe(places: Mapping[str, Tensor], data: Labelled, n_folds: int, seed: int) -> Probe:
    """At the place whose held-out rows rank best over all rows."""
    parts = held_out(data.y, data.groups, n_folds, seed)
    ranks = {name: choose("logistic", Design(X, data), data.y, parts, GRID, seed).auroc for name, X in places.items()}
    best = max(ranks, key=lambda name: ranks[name])
    return fit_probe(places[best], data.y, groups=data.groups, seed=seed, site=best, n_folds=n_folds)


def _wording(texts: list[str], y: Int[np.ndarray, " row"], folds: Sequence[Fold], resamples: Resamples) -> Figure:
    logit = text_logit("bag_of_words", texts, y, [(fold.train, fold.test) for fold in folds])
    guess: Bool[np.ndarray, " row"] = logit > 0
    return resamples.figure(logit, y, guess)


def _layer(name: str) -> float:
    """Layer of a place, -1 for the embedding; NaN for a name of the caller's own."""
    try:
        layer = layer_of(full_name(name))
    except ValueError:
        return float("nan")
    return -1.0 if layer is None else float(layer)
