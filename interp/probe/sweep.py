"""`probe_sweep`: probes at every place of a store, with figures that no choice has seen.

The nested protocol (Cawley & Talbot 2010, JMLR 11; grouped):
1. Divide the *groups* into outer folds. A training part and its test part share no entity.
2. Inside each training part, cross-validate again by group: this chooses C, the threshold, and, for the "selected"
   figure, the place.
3. Fit on the whole training part with what was chosen; score the test part once.
4. Pool the test scores of all folds: one AUROC over all rows, with an interval from resampled groups.
5. Beside it, on the same folds: the text alone, the length, given numbers such as its likelihood, the larger class, random
   directions, permuted labels, and a control task.

`protocol="split"` has one training, one selection and one test part instead; the rest is the same.

The selected figure is that of the whole procedure, choice of the place included. The largest AUROC of the table is not:
of thirty places the best one is partly the luckiest.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy.special import expit

from interp import artifact
from interp.probe.controls import TEXT_BASELINES, majority, score_logit, text_logit
from interp.probe.figures import Figure, auroc, most_common
from interp.probe.fit import Probe, fit_labelled
from interp.probe.inputs import MIN_GROUPS, Column, check_activations
from interp.probe.joining import trained_on
from interp.probe.methods import GRID, Choice, method
from interp.probe.place import Kept, PlaceResult, fit_place
from interp.probe.plan import SweepPlan, sweep_plan
from interp.probe.reading import ActivationSource, TokenRows, place_layer, place_name, read_place, site_of, store_facts
from interp.probe.report import ProbeReport, Selected, as_json

log = logging.getLogger("interp.probe")

PARTS = ("polarity", "topic", "language")
"""Columns by whose values the selected figure is told apart, where the data has them."""

Results = dict[str, dict[str, PlaceResult]]
"""place -> kind -> result."""


def probe_sweep(
    store: ActivationSource,
    sites: str | Sequence[str] | None = None,
    kinds: str | Sequence[str] = ("logistic", "mass_mean"),
    tokens: str = "last",
    C: float | Sequence[float] | Any | None = GRID,
    n_folds: int | Any = 5,
    seed: int | Any = 0,
    n_boot: int | Any = 1000,
    progress: Callable[[int, int], Any] | None = None,
    groups: Column | str | None = None,
    n_controls: int = 19,
    protocol: str = "nested",
    text_scores: Mapping[str, Column] | None = None,
    kept: Kept | None = None,
) -> ProbeReport:
    """Fit and judge probes at every place by nested cross-validation over groups.

    Args:
        store: recorded texts with labels.
        sites: names or shorthand of the sites; single heads as `z:5.3`, `z:5.*` or `z:*.*`. None is "resid_post:*", or where
            the store has none of these all of its sites.
        kinds: kinds of probe.
        tokens: which token of each text is read: "last", "first" or "mean", a recorded rule, or "every", where each token
            is a row with the label and the group of its text.
        C: strengths to choose from, for kinds that have one.
        n_folds: outer folds; one fewer inside each training part.
        seed: of folds, bootstrap, random directions, permutations and networks.
        n_boot: bootstrap draws of groups for the intervals.
        progress: called with (done, total) places.
        groups: None for the store's group column; another column's name, one value a text, or "rows" to split by row on
            purpose (with tokens="every" by text: tokens of one text are never divided).
        n_controls: random directions, and permutations of the labels, at each place.
        protocol: "nested"; or "split": choices on one selection part, figures on one test part, from the column `split`
            where the store has one and by chance (60, 20 and 20 % of the groups) otherwise. What is judged was fitted on
            the training and the selection part together, with the strength and threshold that the latter chose.
        text_scores: name -> one number a text, a baseline that needs no probe, such as the log-likelihood of the text. It is
            calibrated on the training parts.
        kept: finished tasks, so that a sweep goes on where it was stopped.

    Raises:
        ValueError: unknown sites or kinds; missing labels or groups; labels other than 0 and 1; too few groups; a kind that
            needs a column which is not there; NaN or constant activations at a place.
    """
    plan = sweep_plan(store, sites, kinds, tokens, C, n_folds, seed, n_boot, groups, n_controls, protocol, text_scores)
    results: Results = {}
    for index, place in enumerate(plan.places):
        results[place] = _finished(store, place, plan, kept)
        if progress is not None:
            progress(index + 1, len(plan.places))
    selected, predictions = _select(results, plan)
    card = _card(store, plan)
    return ProbeReport(
        figures=pd.DataFrame(
            [_table_row(place, kind, results[place][kind], plan) for place in plan.places for kind in plan.kinds]
        ).astype({"layer": "Int64"}),
        selected=selected,
        baselines=_baselines(plan),
        parts=_parts(predictions, plan),
        predictions=predictions,
        probes={kind: _refit(store, kind, selected[kind], plan, card) for kind in plan.kinds},
        card=card,
    )


def _finished(store: ActivationSource, place: str, plan: SweepPlan, kept: Kept | None) -> dict[str, PlaceResult]:
    """The results at a place: those that are kept, and the rest made now."""
    found = {} if kept is None else {kind: kept.get(place, kind) for kind in plan.kinds}
    for kind, result in found.items():
        if result is not None and not result.fits(plan):
            raise ValueError(
                f"the kept result of {kind} at {place_name(place)} is of another sweep: its rows, folds or controls differ; give "
                "an empty kept="
            )
    missing = [kind for kind in plan.kinds if found.get(kind) is None]
    for kind, result in fit_place(store, place, missing, plan).items() if missing else ():
        found[kind] = result
        if kept is not None:
            kept.put(place, kind, result)
    return {kind: result for kind in plan.kinds if (result := found[kind]) is not None}


def _thresholds(choices: Sequence[Choice], plan: SweepPlan) -> Float[np.ndarray, " row"]:
    """For each row the log-odds threshold that its fold's training part chose."""
    return np.array([choice.threshold for choice in choices])[plan.fold_of_row]


def _figure(logit: Float[np.ndarray, " row"], threshold: Float[np.ndarray, " row"] | float, plan: SweepPlan) -> Figure:
    """The figure over the rows that are tested."""
    rows = np.flatnonzero(plan.judged)
    guess = (logit > threshold)[rows]
    return plan.resamples.take(rows).figure(logit[rows], plan.data.y[rows], guess)


def _against_permuted(found: float, logit: Float[np.ndarray, "draw row"], plan: SweepPlan) -> dict[str, Any]:
    """Mean and largest AUROC under permuted labels, and the rank of the one found as a p-value."""
    rows = plan.judged
    drawn = np.concatenate([auroc(row[rows], labels[rows]) for row, labels in zip(logit, plan.permuted)])
    p = (1 + (drawn >= found).sum()) / (1 + len(drawn))
    return {"permuted": float(drawn.mean()), "permuted_max": float(drawn.max()), "p_permuted": float(p)}


def _table_row(place: str, kind: str, result: PlaceResult, plan: SweepPlan) -> dict[str, Any]:
    """One row of the report's table."""
    figure = _figure(result.logit, _thresholds(result.choices, plan), plan)
    strengths = [choice.C for choice in result.choices if choice.C is not None]
    control = np.nan if result.control is None else result.control
    return {
        "site": place,
        "layer": place_layer(place),
        "kind": kind,
        **asdict(figure),
        "C": float(np.median(strengths)) if strengths else np.nan,
        **_against_permuted(figure.auroc, result.permuted, plan),
        "random_direction": result.random.mean() if len(result.random) else np.nan,
        "random_direction_max": result.random.max() if len(result.random) else np.nan,
        "control_accuracy": control,
        "selectivity": figure.accuracy - control,
    }


def _select(results: Results, plan: SweepPlan) -> tuple[dict[str, Selected], pd.DataFrame]:
    """For each kind the figure of the procedure that chooses the place inside each training part; its predictions."""
    selected, frames = {}, []
    for kind in plan.kinds:
        logit, permuted = np.full(plan.data.n, np.nan), np.full(plan.permuted.shape, np.nan)
        places, choices, controls = [], [], []
        for index, fold in enumerate(plan.folds):
            place = max(results, key=lambda name: results[name][kind].choices[index].auroc)  # the first of equals
            found = results[place][kind]
            places.append(place)
            choices.append(found.choices[index])
            controls.append(found.control)
            logit[fold.test] = found.logit[fold.test]
            permuted[:, fold.test] = found.permuted[:, fold.test]
        thresholds = _thresholds(choices, plan)
        figure = _figure(logit, thresholds, plan)
        control = None if None in controls else float(np.mean([each for each in controls if each is not None]))
        selected[kind] = Selected(
            **asdict(figure),
            site=most_common(places),
            sites=tuple(places),
            strengths=tuple(choice.C for choice in choices),
            **_against_permuted(figure.auroc, permuted, plan),
            control_accuracy=control,
        )
        frames.append(_predictions(kind, logit, thresholds, places, plan))
    return selected, pd.concat(frames, ignore_index=True)


def _predictions(
    kind: str, logit: np.ndarray, thresholds: np.ndarray, places: Sequence[str], plan: SweepPlan
) -> pd.DataFrame:
    """A row for each tested text: what the selected procedure says of it."""
    rows = np.flatnonzero(plan.judged)
    data = plan.data
    frame = pd.DataFrame(
        {
            "kind": kind,
            "row": rows,
            "text": [data.texts[row] for row in rows],
            "label": data.y[rows],
            "group": [data.group_names[row] for row in rows],
            "fold": plan.fold_of_row[rows],
            "site": [places[index] for index in plan.fold_of_row[rows]],
            "logit": logit[rows],
            "probability": expit(logit[rows]),
            "threshold": expit(thresholds[rows]),
            "says": (logit > thresholds)[rows].astype(int),  # of the log-odds: probabilities near 1 are all the same
        }
    )
    for column in PARTS:
        if column in data.frame and column not in frame:
            frame[column] = data.frame[column].to_numpy()[rows]
    return frame


def _parts(predictions: pd.DataFrame, plan: SweepPlan) -> pd.DataFrame:
    """The selected figure by polarity, topic and language."""
    rows: list[dict[str, Any]] = []
    for kind, frame in predictions.groupby("kind", sort=False):
        for part in PARTS:
            values = frame[part].dropna().unique() if part in frame else []
            for value in values if len(values) > 1 else []:
                chosen = frame.loc[frame[part] == value].to_dict("series")
                numbers = {name: chosen[name].to_numpy() for name in ("row", "logit", "label", "says")}
                draws = plan.resamples.take(numbers["row"])
                figure = draws.figure(numbers["logit"], numbers["label"], numbers["says"] == 1)
                if figure.n_groups < MIN_GROUPS:  # draws of so few hardly differ, and the interval would look sure
                    figure = replace(figure, low=float("nan"), high=float("nan"))
                rows.append({"kind": kind, "part": part, "value": str(value), **asdict(figure)})
    columns = ["kind", "part", "value", *Figure.__dataclass_fields__]
    return pd.DataFrame(rows, columns=columns)


def _baselines(plan: SweepPlan) -> dict[str, Figure]:
    """What the text and the labels alone give, on the same folds."""
    found = {}
    for kind in TEXT_BASELINES:
        found[kind] = _figure(text_logit(kind, plan.data.texts, plan.data.y, plan.parts), 0.0, plan)
    for name, values in plan.text_scores.items():
        found[name] = _figure(score_logit(values, plan.data.y, plan.parts), 0.0, plan)
    return {**found, "majority": majority(plan.data.y, plan.data.groups, plan.parts)}


def _refit(store: ActivationSource, kind: str, selected: Selected, plan: SweepPlan, card: dict[str, Any]) -> Probe:
    """The probe to keep: fitted on all rows at the place that most folds chose. Its card says whose figure it has."""
    X, _ = read_place(store, selected.site, plan.tokens, method(kind).reads)
    rows = X if isinstance(X, TokenRows) else check_activations(X, place_name(selected.site))
    site, head = site_of(selected.site)
    probe = fit_labelled(rows, plan.data, kind, plan.grid, plan.seed, site, max(2, len(plan.folds)), head)
    stats = getattr(store, "stats", None)
    if stats is not None and head is None:
        # Of all typical rows of the store, which the rows that are read here are only a part of.
        probe.card["typical_norm"] = float(stats(site).typical_norm)
    origin = {
        "figure": as_json(selected),
        "protocol": (
            "This probe was fitted on every row. The figure is not its own: it is that of the procedure in which place, C "
            "and threshold were chosen and probes fitted without the groups that they were judged on."
        ),
        "groups_from": card["groups_from"],
        "trained_on": trained_on(plan.data.texts, None if plan.data.by_rows else plan.data.own_names),
        "tokens": card["tokens"],
        "store": card["store"],
        "provenance": card["provenance"],
    }
    return replace(probe, card=probe.card | origin)


def _card(store: ActivationSource, plan: SweepPlan) -> dict[str, Any]:
    """What the sweep was, for the report and for the cards of its probes."""
    data = plan.data
    if data.repeated:
        log.warning("%d texts stand in more than one group: %d groups were tied into %d", data.repeated, *data.tied)
    model = store.card.get("model", {})
    origin = {"model": model["name"], "fingerprint": model["fingerprint"]} if model else {}
    return {
        "sites": plan.places,
        "kinds": list(plan.kinds),
        "tokens": plan.tokens,
        "C": list(plan.grid),
        "protocol": plan.protocol,
        "n_folds": len(plan.folds),
        "n_boot": len(plan.resamples.counts),
        "n_controls": len(plan.permuted),
        "n": data.n,
        "n_judged": int(plan.judged.sum()),
        "positives": int(data.y.sum()),
        "n_groups": data.n_groups,
        "groups_from": data.groups_from,
        "text_scores": list(plan.text_scores),
        "texts_in_several_groups": data.repeated,
        "groups_tied": list(data.tied),
        "texts": artifact.hash_texts(data.texts),
        "store": store_facts(store),
        "provenance": artifact.provenance(seed=plan.seed, **origin),
    }
