"""`probe_sweep`: probes at every site of a store, with figures that no choice has seen.

The nested protocol (Cawley & Talbot 2010, JMLR 11; grouped):
1. Divide the *groups* into outer folds. A training part and its test part share no entity.
2. Inside each training part, cross-validate again by group: this chooses C, the threshold, and, for the "selected"
   figure, the site.
3. Fit on the whole training part with what was chosen; score the test part once.
4. Pool the test scores of all folds: one AUROC over all rows, with an interval from resampled groups.
5. Beside it, on the same folds: the text alone, the length, the larger class, random directions, permuted labels.

The selected figure is that of the whole procedure, choice of the site included. The largest AUROC of the table is not:
of thirty sites the best one is partly the luckiest.
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from scipy.special import expit
from torch import Tensor

from interp import artifact
from interp import sites as site_names
from interp.probe.controls import TEXT_BASELINES, majority, permuted_labels, random_directions, text_logit
from interp.probe.figures import Figure, Resamples, auroc, most_common
from interp.probe.fit import Probe, fit_probe
from interp.probe.folds import Fold, nested_folds
from interp.probe.inputs import ROWS, Column, check_activations, check_groups, check_labels, check_strengths
from interp.probe.methods import GRID, Choice, choose, method
from interp.probe.report import ProbeReport, Selected, as_json
from interp.probe.solver import Design

log = logging.getLogger("interp.probe")


@runtime_checkable
class ActivationSource(Protocol):
    """What a sweep reads of a store."""

    card: dict[str, Any]

    @property
    def sites(self) -> list[str]:
        """Full names."""
        ...

    def pooled(self, site: str, tokens: str = "last") -> tuple[Tensor, pd.DataFrame]:
        """X [text d] and the frame of texts."""
        ...


@dataclass(frozen=True, eq=False)
class _Plan:
    """Everything that is the same at every site."""

    texts: list[str]
    y: Int[np.ndarray, " row"]
    groups: Int[np.ndarray, " row"]
    groups_from: str
    folds: list[Fold]
    fold_of_row: Int[np.ndarray, " row"]
    resamples: Resamples
    permuted: Int[np.ndarray, "draw row"]
    grid: tuple[float, ...]
    kinds: tuple[str, ...]
    seed: int

    @property
    def parts(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """(train, test) of each outer fold."""
        return [(fold.train, fold.test) for fold in self.folds]


@dataclass(frozen=True, eq=False)
class _Held:
    """What one kind gave at one site: a choice for each outer fold, and log-odds for rows that it never saw."""

    choices: list[Choice]
    logit: Float[np.ndarray, " row"]
    permuted: Float[np.ndarray, "draw row"]


def probe_sweep(
    store: ActivationSource,
    sites: str | Sequence[str] = "resid_post:*",
    kinds: str | Sequence[str] = ("logistic", "mass_mean"),
    tokens: str = "last",
    C: float | Sequence[float] | None = GRID,
    n_folds: int = 5,
    seed: int = 0,
    n_boot: int = 1000,
    progress: Callable[[int, int], Any] | None = None,
    groups: Column | str | None = None,
    n_controls: int = 19,
) -> ProbeReport:
    """Fit and judge probes at every site by nested cross-validation over groups.

    Args:
        store: recorded texts with labels.
        sites: names or shorthand of the sites.
        kinds: kinds of probe.
        tokens: which token of each text is read: "last", "first" or "mean".
        C: strengths to choose from, for kinds that have one.
        n_folds: outer folds; one fewer inside each training part.
        seed: of folds, bootstrap, random directions and permutations.
        n_boot: bootstrap draws of groups for the intervals.
        progress: called with (done, total) sites.
        groups: None for the store's group column; another column's name, one value a text, or "rows" to split by row on
            purpose.
        n_controls: random directions, and permutations of the labels, at each site.

    Raises:
        ValueError: unknown sites or kinds; missing labels or groups; labels other than 0 and 1; too few groups; NaN or
            constant activations at a site.
    """
    names = site_names.expand(sites, store.sites)
    kinds = (kinds,) if isinstance(kinds, str) else tuple(kinds)
    for kind in kinds:
        method(kind)
    if not kinds or n_controls < 1:
        raise ValueError(f"a sweep needs at least one kind and one control, got kinds={kinds}, n_controls={n_controls}")
    X, frame = store.pooled(names[0], tokens=tokens)
    plan = _plan(frame, groups, kinds, check_strengths(C, GRID), n_folds, seed, n_boot, n_controls)
    held: dict[str, dict[str, _Held]] = {}
    rows = []
    for index, site in enumerate(names):
        if index:
            X, frame = store.pooled(site, tokens=tokens)
            assert list(frame["text"]) == plan.texts, "the store's sites are not aligned"
        held[site], random = _read_site(check_activations(X, site_names.short_name(site)), plan)
        rows += [_table_row(site, kind, held[site][kind], random, plan) for kind in kinds]
        if progress is not None:
            progress(index + 1, len(names))
    selected, predictions = _select(held, plan)
    card = _card(store, names, tokens, plan)
    return ProbeReport(
        figures=pd.DataFrame(rows).astype({"layer": "Int64"}),
        selected=selected,
        baselines=_baselines(plan),
        predictions=predictions,
        probes={kind: _refit(store, kind, selected[kind], plan, card) for kind in kinds},
        card=card,
    )


def _plan(
    frame: pd.DataFrame,
    groups: Column | str | None,
    kinds: tuple[str, ...],
    grid: tuple[float, ...],
    n_folds: int,
    seed: int,
    n_boot: int,
    n_controls: int,
) -> _Plan:
    """Check the texts' labels and groups, and draw everything that is drawn once."""
    values, groups_from = _groups(frame, groups)
    y = check_labels(list(frame["label"]), len(frame))
    codes = check_groups(values, len(frame), n_folds)
    folds = nested_folds(y, codes, n_folds, seed)
    fold_of_row = np.zeros(len(y), dtype=int)
    for index, fold in enumerate(folds):
        fold_of_row[fold.test] = index
    return _Plan(
        texts=list(frame["text"]),
        y=y,
        groups=codes,
        groups_from=groups_from,
        folds=folds,
        fold_of_row=fold_of_row,
        resamples=Resamples.of(codes, n_boot, seed),
        permuted=permuted_labels(y, codes, fold_of_row, n_controls, seed),
        grid=grid,
        kinds=kinds,
        seed=seed,
    )


def _groups(frame: pd.DataFrame, groups: Column | str | None) -> tuple[Column | str, str]:
    """The groups, and the words that say where they come from."""
    if groups is None:
        values = list(frame["group"])
        if pd.isna(pd.Series(values, dtype=object)).all():
            raise ValueError(
                "the store's texts have no groups, and rows about the same entity would stand on both sides of a split:"
                " record examples with a group, or give groups= (a column's name, one value a text, or 'rows' to split "
                "by row on purpose)"
            )
        return values, "column 'group'"
    if isinstance(groups, str) and groups != ROWS:
        if groups not in frame:
            raise ValueError(f"the store has no column {groups!r}: it has {', '.join(map(str, frame.columns))}")
        return list(frame[groups]), f"column {groups!r}"
    return groups, "every row its own group" if isinstance(groups, str) else "given by the caller"


def _read_site(X: Tensor, plan: _Plan) -> tuple[dict[str, _Held], Float[np.ndarray, "draw row"]]:
    """Choices and held-out log-odds of every kind at one site, and log-odds along random directions."""
    n, draws = len(plan.y), len(plan.permuted)
    logit = {kind: np.zeros((1 + draws, n)) for kind in plan.kinds}
    choices: dict[str, list[Choice]] = {kind: [] for kind in plan.kinds}
    random = np.zeros((draws, n))
    # The real labels first, then the permuted ones: fitted in one batch with the C that the real ones chose.
    labels = torch.tensor(np.vstack([plan.y[None], plan.permuted]), dtype=torch.float64)
    noise = torch.randn(draws, X.shape[1], dtype=torch.float64, generator=torch.Generator().manual_seed(plan.seed))
    for fold in plan.folds:
        design, test = Design(X[fold.train]), X[fold.test]
        target = labels[:, fold.train]
        for kind in plan.kinds:
            choice = choose(kind, design, plan.y[fold.train], fold.inner, plan.grid)
            C = torch.full((len(target),), 1.0 if choice.C is None else choice.C, dtype=torch.float64)
            reader = method(kind).fit(design, target, torch.ones_like(target), C)
            logit[kind][:, fold.test] = reader.logit(test).numpy()
            choices[kind].append(choice)
        random[:, fold.test] = random_directions(design, target[0], noise).logit(test).numpy()
    return {kind: _Held(choices[kind], logit[kind][0], logit[kind][1:]) for kind in plan.kinds}, random


def _thresholds(choices: Sequence[Choice], plan: _Plan) -> Float[np.ndarray, " row"]:
    """For each row the log-odds threshold that its fold's training part chose."""
    return np.array([choice.threshold for choice in choices])[plan.fold_of_row]


def _against_permuted(found: float, logit: Float[np.ndarray, "draw row"], plan: _Plan) -> dict[str, float]:
    """Mean and largest AUROC under permuted labels, and the rank of the one found as a p-value."""
    drawn = np.concatenate([auroc(row, labels) for row, labels in zip(logit, plan.permuted)])
    p = (1 + (drawn >= found).sum()) / (1 + len(drawn))
    return {"permuted": float(drawn.mean()), "permuted_max": float(drawn.max()), "p_permuted": float(p)}


def _table_row(site: str, kind: str, held: _Held, random: np.ndarray, plan: _Plan) -> dict[str, Any]:
    """One row of the report's table."""
    figure = plan.resamples.figure(held.logit, plan.y, held.logit > _thresholds(held.choices, plan))
    directions = np.concatenate([auroc(row, plan.y) for row in random])
    strengths = [choice.C for choice in held.choices if choice.C is not None]
    return {
        "site": site,
        "layer": site_names.layer_of(site),
        "kind": kind,
        **asdict(figure),
        "C": float(np.median(strengths)) if strengths else np.nan,
        **_against_permuted(figure.auroc, held.permuted, plan),
        "random_direction": directions.mean(),
        "random_direction_max": directions.max(),
    }


def _select(held: dict[str, dict[str, _Held]], plan: _Plan) -> tuple[dict[str, Selected], pd.DataFrame]:
    """For each kind the figure of the procedure that chooses the site inside each training part; its predictions."""
    selected, frames = {}, []
    for kind in plan.kinds:
        logit = np.zeros(len(plan.y))
        permuted = np.zeros(plan.permuted.shape)
        sites, choices = [], []
        for index, fold in enumerate(plan.folds):
            site = max(held, key=lambda name: held[name][kind].choices[index].auroc)  # the first of equals
            sites.append(site)
            choices.append(held[site][kind].choices[index])
            logit[fold.test] = held[site][kind].logit[fold.test]
            permuted[:, fold.test] = held[site][kind].permuted[:, fold.test]
        thresholds = _thresholds(choices, plan)
        figure = plan.resamples.figure(logit, plan.y, logit > thresholds)
        controls = _against_permuted(figure.auroc, permuted, plan)
        selected[kind] = Selected(
            **asdict(figure),
            site=most_common(sites),
            sites=tuple(sites),
            strengths=tuple(choice.C for choice in choices),
            permuted=controls["permuted"],
            permuted_max=controls["permuted_max"],
            p_permuted=controls["p_permuted"],
        )
        frames.append(
            pd.DataFrame(
                {
                    "kind": kind,
                    "row": np.arange(len(plan.y)),
                    "text": plan.texts,
                    "label": plan.y,
                    "fold": plan.fold_of_row,
                    "site": [sites[index] for index in plan.fold_of_row],
                    "probability": expit(logit),
                    "threshold": expit(thresholds),
                }
            )
        )
    return selected, pd.concat(frames, ignore_index=True)


def _baselines(plan: _Plan) -> dict[str, Figure]:
    """What the text and the labels alone give, on the same folds."""
    found = {}
    for kind in TEXT_BASELINES:
        logit = text_logit(kind, plan.texts, plan.y, plan.parts)
        found[kind] = plan.resamples.figure(logit, plan.y, logit > 0)
    return {**found, "majority": majority(plan.y, plan.groups, plan.parts)}


def _refit(store: ActivationSource, kind: str, selected: Selected, plan: _Plan, card: dict[str, Any]) -> Probe:
    """The probe to keep: fitted on all rows at the site that most folds chose. Its card says whose figure it has."""
    X, _ = store.pooled(selected.site, tokens=card["tokens"])
    C = plan.grid if method(kind).penalised else None
    probe = fit_probe(X, plan.y, kind, plan.groups, C, plan.seed, selected.site, len(plan.folds))
    origin = {
        "figure": as_json(selected),
        "protocol": (
            "This probe was fitted on every row. The figure is not its own: it is that of the nested procedure, in "
            "which site, C and threshold were chosen and probes fitted without the groups that they were judged on."
        ),
        "groups_from": card["groups_from"],
        "tokens": card["tokens"],
        "store": card["store"],
        "provenance": card["provenance"],
    }
    return replace(probe, card=probe.card | origin)


def _card(store: ActivationSource, names: list[str], tokens: str, plan: _Plan) -> dict[str, Any]:
    """What the sweep was, for the report and for the cards of its probes."""
    pairs = set(zip(plan.texts, plan.groups.tolist()))
    repeated = sum(count > 1 for count in Counter(text for text, _ in pairs).values())
    if repeated:
        log.warning("%d texts stand in more than one group: such a text can be on both sides of a split", repeated)
    model = store.card.get("model", {})
    origin = {"model": model["name"], "fingerprint": model["fingerprint"]} if model else {}
    return {
        "sites": names,
        "kinds": list(plan.kinds),
        "tokens": tokens,
        "C": list(plan.grid),
        "n_folds": len(plan.folds),
        "n_boot": len(plan.resamples.counts),
        "n_controls": len(plan.permuted),
        "n": len(plan.y),
        "positives": int(plan.y.sum()),
        "n_groups": int(plan.groups.max()) + 1,
        "groups_from": plan.groups_from,
        "texts_in_several_groups": repeated,
        "texts": artifact.hash_texts(plan.texts),
        "store": {
            key: store.card[key] for key in ("model", "tokenizer", "tokens", "dtype", "texts") if key in store.card
        },
        "provenance": artifact.provenance(seed=plan.seed, **origin),
    }
