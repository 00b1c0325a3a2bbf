"""`probe_transfer`: trained on one set of statements, tested on another, at every place.

A probe that separates true from false statements may read truth, or what goes along with it in its training set: the
wording, the polarity, how likely the text is. On another set these come apart. Trained on affirmative statements alone, a
probe can be wrong on nearly every negated one (Levinstein & Herrmann 2023, arXiv 2307.00175; Marks & Tegmark 2023, arXiv
2310.06824; Bürger et al. 2024, arXiv 2407.12831).

1. Divide the *groups* of all rows into outer folds. Test rows share no entity with training rows, on the diagonal of the
   matrix or off it, also where two sets speak of the same entities.
2. For each train set and fold: C and threshold are chosen by inner grouped folds of the set's own training rows.
3. The probe fitted on these scores the test rows of every test set. Pool over the folds: one figure a cell.
4. The selected figures: the place, too, is chosen on the train set's own folds. No test set has a say.
5. Beside every cell: words trained and tested on the same rows, and the share of the test set's own figure.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy.special import expit

from interp import artifact
from interp.probe.controls import text_logit
from interp.probe.figures import Resamples, most_common
from interp.probe.folds import Fold, held_out
from interp.probe.inputs import Column, check_activations, check_strengths, check_whole
from interp.probe.labelled import Labelled, of_tokens
from interp.probe.methods import GRID, method
from interp.probe.nested import Held, Rows, held_out_logits, place_parts
from interp.probe.reading import EVERY, TokenRows, asked_places, place_layer, place_name, read_place, store_facts
from interp.probe.transfer_report import TransferReport
from interp.probe.transfer_sets import (
    By,
    Sets,
    check_set,
    chosen,
    kinds_left_out,
    nearest,
    same_rows,
    sets_of,
    strata,
    trained_on,
)

WORDS = "bag_of_words"


@dataclass(frozen=True, eq=False)
class _Plan:
    """Everything that is the same at every place."""

    data: Labelled
    train: Sets
    test: Sets
    fold_of_row: np.ndarray
    folds: dict[str, list[Fold]]
    """Train set -> outer folds, whose training parts hold rows of that set alone."""
    resamples: dict[str, Resamples]
    """Test set -> draws of its groups."""
    words: dict[str, np.ndarray]
    """Train set -> held-out log-odds of every row from the text alone."""
    grid: tuple[float, ...]
    kinds: tuple[str, ...]
    left_out: dict[tuple[str, str], str]
    """(kind, train set) -> why the kind cannot learn from it."""
    seed: int

    def kinds_of(self, train: str) -> list[str]:
        """Kinds that can learn from a train set."""
        return [kind for kind in self.kinds if (kind, train) not in self.left_out]


def probe_transfer(
    store: Any,
    by: By | Any = "polarity",
    sites: str | Sequence[str] | None = None,
    kinds: str | Sequence[str] = ("logistic",),
    tokens: str = "last",
    C: float | Sequence[float] | Any | None = GRID,
    n_folds: int | Any = 5,
    seed: int | Any = 0,
    n_boot: int | Any = 1000,
    groups: Column | str | None = None,
    progress: Callable[[int, int], Any] | None = None,
    train_sets: str | Sequence[str] | None = None,
    test_sets: str | Sequence[str] | None = None,
    controls: str | Sequence[str] = (),
) -> TransferReport:
    """Train probes on each set of rows and judge them on each, at every place, without shared groups.

    Args:
        store: recorded texts with labels, as for `probe_sweep`.
        by: what divides the rows: a column ("polarity", "topic", "language" ...); several, for their combinations; or
            name -> one boolean a row, or a condition such as "topic == 'rivers'". Sets may overlap.
        sites: places: names or shorthand of sites and of single heads; None as in `probe_sweep`.
        kinds: kinds of probe.
        tokens: which token of each text is read.
        C: strengths to choose from, for kinds that have one.
        n_folds: outer folds, at least 3; one fewer inside each training part.
        seed: of folds and bootstrap.
        n_boot: bootstrap draws of groups for the intervals.
        groups: None for the store's group column; another column's name, one value a row, or "rows".
        progress: called with (done, total) pairs of place and train set.
        train_sets: sets, sums and differences of sets ("affirmative + negated", "all - rivers"); None is every set and
            "all"; "others" is, for each test set, all but it.
        test_sets: names of sets; None is every set.
        controls: train sets whose label is on purpose not the one asked for, such as how likely a text is.

    Raises:
        ValueError: an unknown column, set, site or kind; a set that is empty, of one label or of fewer than 5 groups;
            two sets of one name; whatever `probe_sweep` refuses.
    """
    check_whole(seed=seed, n_folds=n_folds, n_boot=n_boot)
    places = asked_places(sites, store)
    kinds = (kinds,) if isinstance(kinds, str) else tuple(dict.fromkeys(kinds))
    if not kinds:
        raise ValueError("a transfer matrix needs at least one kind of probe")
    plan = _plan(store, places[0], by, kinds, tokens, C, n_folds, seed, n_boot, groups, train_sets, test_sets)
    named = _controls(controls, plan)
    held: dict[tuple[str, str, str], Held] = {}
    for number, place in enumerate(places):
        rows = {way: _read(store, place, tokens, way, plan) for way in dict.fromkeys(method(k).reads for k in kinds)}
        for index, name in enumerate(plan.train):
            for kind, found in _fit(rows, name, plan).items():
                held[place, kind, name] = found
            if progress is not None:
                progress(number * len(plan.train) + index + 1, len(places) * len(plan.train))
    words = _words(plan)
    selected, predictions = _select(held, places, words, plan)
    return TransferReport(
        cells=_recovered(_cells(held, words, plan), plan),
        selected=_recovered(selected, plan),
        baselines=words,
        predictions=predictions,
        card=_card(store, by, places, tokens, named, n_boot, plan),
    )


def _plan(
    store: Any,
    place: str,
    by: By | Any,
    kinds: tuple[str, ...],
    tokens: str,
    C: float | Sequence[float] | Any | None,
    n_folds: int,
    seed: int,
    n_boot: int,
    groups: Column | str | None,
    train_sets: str | Sequence[str] | None,
    test_sets: str | Sequence[str] | None,
) -> _Plan:
    """Check what is asked for, name the sets, and draw everything that is drawn once."""
    if n_folds < 3:
        raise ValueError(f"the nested protocol needs at least 3 folds, got n_folds={n_folds}")
    grid = check_strengths(C, GRID)
    every = tokens.partition(":")[0] == EVERY
    data = (of_tokens if every else Labelled.of)(read_place(store, place, tokens)[1], groups, n_folds)
    for kind in kinds:
        data.need(kind, method(kind).needs)
    sets = sets_of(by, data)
    tested = list(sets) if test_sets is None else chosen(test_sets, "test_sets")
    for name in tested:
        if name not in sets:
            raise ValueError(f"test_sets: there is no set {name!r}: {nearest(name, sets)}")
    train = trained_on(train_sets, tested, sets)
    for name, rows in train.items():
        check_set(name, rows, data)
    left_out = kinds_left_out(kinds, train, data)
    kept = strata(sets, data.y, data.groups, n_folds)
    parts = held_out(kept, data.groups, n_folds, seed)
    fold_of_row = np.zeros(data.n, dtype=int)
    for index, part in enumerate(parts):
        fold_of_row[part] = index
    folds = {name: _folds_of(name, rows, parts, data, seed) for name, rows in train.items()}
    return _Plan(
        data=data,
        train=train,
        test={name: sets[name] for name in tested},
        fold_of_row=fold_of_row,
        folds=folds,
        resamples={
            name: Resamples.of(np.unique(data.groups[sets[name]], return_inverse=True)[1], n_boot, seed)
            for name in tested
        },
        words={
            name: text_logit(WORDS, data.texts, data.y, [(fold.train, fold.test) for fold in parts])
            for name, parts in folds.items()
        },
        grid=grid,
        kinds=kinds,
        left_out=left_out,
        seed=seed,
    )


def _folds_of(name: str, rows: np.ndarray, parts: list[np.ndarray], data: Labelled, seed: int) -> list[Fold]:
    """The outer folds of a train set: its rows of the other parts to learn from, every row of the part to test."""
    folds = []
    for part in parts:
        train = np.setdiff1d(np.flatnonzero(rows), part)
        try:
            inner = held_out(data.y[train], data.groups[train], len(parts) - 1, seed)
        except ValueError as error:
            raise ValueError(
                f"the set {name!r} is too small to train on: inside one of {len(parts)} outer folds, {error}"
            ) from None
        folds.append(Fold(train, part, inner))
    return folds


def _read(store: Any, place: str, tokens: str, way: str, plan: _Plan) -> Rows:
    """What stands at a place, checked, in the order of the plan's rows."""
    X, frame = read_place(store, place, tokens, way)
    if not plan.data.is_of(frame):
        raise ValueError(
            f"{place_name(place)} has other rows than the first place, or is read as whole texts where tokens={tokens!r} makes "
            "each token a row: ask for such places and kinds one by one"
        )
    checked = check_activations(X.X if isinstance(X, TokenRows) else X, place_name(place))
    return X if isinstance(X, TokenRows) else checked


def _fit(rows: dict[str, Rows], name: str, plan: _Plan) -> dict[str, Held]:
    """Held-out log-odds of every row by probes of one train set at one place, for each kind that can learn from it."""
    folds, parts, found = plan.folds[name], {}, {}
    for kind in plan.kinds_of(name):
        way = method(kind).reads
        if way not in parts:
            parts[way] = place_parts(rows[way], plan.data, folds)
        try:
            found[kind] = held_out_logits(parts[way], plan.data, folds, kind, plan.grid, seed=plan.seed)
        except ValueError as error:
            raise ValueError(f"kind={kind!r} trained on {name!r}: {error}") from None
    return found


def _controls(controls: str | Sequence[str], plan: _Plan) -> list[str]:
    listed = [controls] if isinstance(controls, str) else list(controls)
    for name in listed:
        if name not in plan.train:
            raise ValueError(f"controls: there is no train set {name!r}: {nearest(name, plan.train)}")
    return listed


def _figures(
    logit: Float[np.ndarray, " row"], threshold: Float[np.ndarray, " row"], plan: _Plan
) -> Iterable[tuple[str, dict[str, Any]]]:
    """(test set, its figure) for held-out log-odds of all rows."""
    for name, rows in plan.test.items():
        found = plan.resamples[name].figure(logit[rows], plan.data.y[rows], logit[rows] > threshold[rows])
        yield name, {**asdict(found), "chance": found.low <= 0.5 <= found.high}


def _words(plan: _Plan) -> pd.DataFrame:
    """What the wording alone gives in each cell."""
    lines = [
        {"kind": WORDS, "train": train, "test": test, **figure, "n_train": int(plan.train[train].sum())}
        for train, logit in plan.words.items()
        for test, figure in _figures(logit, np.zeros_like(logit), plan)
    ]
    return pd.DataFrame(lines)


def _cells(held: dict[tuple[str, str, str], Held], words: pd.DataFrame, plan: _Plan) -> pd.DataFrame:
    """A line for each place, kind, train set and test set."""
    lines = []
    for (place, kind, train), found in held.items():
        threshold = np.array([choice.threshold for choice in found.choices])[plan.fold_of_row]
        where = {"place": place, "layer": place_layer(place), "kind": kind, "train": train}
        lines += [{**where, "test": test, **figure} for test, figure in _figures(found.logit, threshold, plan)]
    frame = _beside(pd.DataFrame(lines).astype({"layer": "Int64"}), words, plan)
    order = {kind: number for number, kind in enumerate(plan.kinds)}
    return frame.sort_values("kind", key=lambda column: column.map(order), kind="stable", ignore_index=True)


def _select(
    held: dict[tuple[str, str, str], Held], places: list[str], words: pd.DataFrame, plan: _Plan
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The figures of the procedure that chooses the place on the train set's folds, and its predictions."""
    lines, predictions = [], []
    for kind in plan.kinds:
        for train in (name for name in plan.train if kind in plan.kinds_of(name)):
            logit, threshold = np.zeros(plan.data.n), np.zeros(plan.data.n)
            picked = []
            for index, fold in enumerate(plan.folds[train]):
                found = {place: held[place, kind, train].choices[index] for place in places}
                best = max(places, key=lambda place: found[place].auroc)  # the first of equals
                picked.append(best)
                logit[fold.test] = held[best, kind, train].logit[fold.test]
                threshold[fold.test] = found[best].threshold
            place = most_common(picked)
            where = {"kind": kind, "train": train, "place": place, "layer": place_layer(place)}
            where["places"] = ", ".join(map(place_name, picked))
            lines += [{**where, "test": test, **figure} for test, figure in _figures(logit, threshold, plan)]
            predictions.append(
                pd.DataFrame(
                    {
                        "kind": kind,
                        "train": train,
                        "row": np.arange(plan.data.n),
                        "text": plan.data.texts,
                        "label": plan.data.y,
                        "fold": plan.fold_of_row,
                        "place": [picked[fold] for fold in plan.fold_of_row],
                        "probability": expit(logit),
                        "threshold": expit(threshold),
                    }
                )
            )
    frame = pd.DataFrame(lines).astype({"layer": "Int64"})
    return _beside(frame, words, plan), pd.concat(predictions, ignore_index=True)


def _beside(frame: pd.DataFrame, words: pd.DataFrame, plan: _Plan) -> pd.DataFrame:
    """Add the size of the train set, and the AUROC of the words alone in the same cell."""
    alone = {(train, test): value for train, test, value in words[["train", "test", "auroc"]].itertuples(index=False)}
    return frame.assign(
        n_train=[int(plan.train[train].sum()) for train in frame["train"]],
        **{WORDS: [alone[pair] for pair in zip(frame["train"], frame["test"])]},
    )


def _recovered(frame: pd.DataFrame, plan: _Plan) -> pd.DataFrame:
    """Add `recovered`: (AUROC - 1/2) of the cell over that of the test set's own probe.

    1 is all of it, 0 none, below 0 inverted. NaN where the test set has no probe of its own, or one that the interval
    does not tell from chance.
    """
    own_name = {
        test: next((train for train, other in plan.train.items() if same_rows(other, rows)), None)
        for test, rows in plan.test.items()
    }
    keys = [column for column in ("place", "kind") if column in frame] if "places" not in frame else ["kind"]
    own = {}
    for line in frame.to_dict("records"):
        if line["train"] == own_name[line["test"]] and not line["chance"]:
            own[(*(line[key] for key in keys), line["test"])] = line["auroc"] - 0.5
    at = zip(*(frame[key] for key in [*keys, "test"]))
    share = [(auroc - 0.5) / own.get(key, np.nan) for auroc, key in zip(frame["auroc"], at)]
    return frame.assign(recovered=share)


def _card(
    store: Any, by: By | Any, places: list[str], tokens: str, controls: list[str], n_boot: int, plan: _Plan
) -> dict[str, Any]:
    """What was asked, for the report."""
    model = store.card.get("model", {})
    origin = {"model": model["name"], "fingerprint": model["fingerprint"]} if model else {}
    data = plan.data

    def size(rows: np.ndarray) -> dict[str, int]:
        groups = len(np.unique(data.groups[rows]))
        return {"n": int(rows.sum()), "positives": int(data.y[rows].sum()), "n_groups": groups}

    return {
        "by": [by] if isinstance(by, str) else list(by),
        "train": {name: size(rows) for name, rows in plan.train.items()},
        "test": {name: size(rows) for name, rows in plan.test.items()},
        "holds": {
            name: [other for other, part in {**plan.test, **plan.train}.items() if not (part & ~rows).any()]
            for name, rows in plan.train.items()
        },
        "train_order": list(plan.train),
        "test_order": list(plan.test),
        "controls": controls,
        "left_out": [{"kind": kind, "train": train, "why": why} for (kind, train), why in plan.left_out.items()],
        "places": places,
        "kinds": list(plan.kinds),
        "tokens": tokens,
        "C": list(plan.grid),
        "n_folds": int(plan.fold_of_row.max()) + 1,
        "n_boot": n_boot,
        "groups_from": data.groups_from,
        "n": data.n,
        "n_groups": data.n_groups,
        "texts_in_several_groups": data.repeated,
        "groups_tied": list(data.tied),
        "texts": artifact.hash_texts(data.texts),
        "store": store_facts(store),
        "provenance": artifact.provenance(seed=plan.seed, **origin),
    }
