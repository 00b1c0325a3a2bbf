"""The protocol's other parts: one split, the control task, figures by part, given baselines, finished tasks."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from planted import MemoryStore, frame_of, paired, planted
from sklearn.metrics import roc_auc_score

from interp.probe import load_probe_report, probe_sweep, probe_transfer
from interp.probe.controls import permuted_labels
from interp.probe.folds import one_split
from interp.probe.inputs import check_groups
from interp.probe.labelled import Labelled
from interp.probe.methods import METHODS
from interp.probe.place import PlaceResult, fit_place
from interp.probe.plan import sweep_plan

QUICK: dict[str, Any] = {"kinds": "mass_mean", "n_boot": 100, "n_controls": 3}


class InMemory:
    """Finished tasks as a job keeps them: through arrays and JSON."""

    def __init__(self) -> None:
        self.held: dict[tuple[str, str], tuple[dict[str, np.ndarray], str]] = {}

    def get(self, place: str, kind: str) -> PlaceResult | None:
        if (place, kind) not in self.held:
            return None
        arrays, text = self.held[place, kind]
        return PlaceResult.from_arrays(arrays, json.loads(text))

    def put(self, place: str, kind: str, result: PlaceResult) -> None:
        arrays, values = result.to_arrays()
        assert not any(np.isnan(array).any() for array in arrays.values())
        self.held[place, kind] = arrays, json.dumps(values)


def statements(n: int = 60, d: int = 16, flips: bool = False, seed: int = 0) -> tuple[np.ndarray, pd.DataFrame]:
    """Entities with a true and a false statement, each affirmed and negated; with `flips` the activations know whether the
    words match, not whether the statement is true."""
    rng = np.random.default_rng(seed)
    rows = [
        {"text": f"{entity} {match} {polarity}", "label": int(match == (polarity == "affirmative")), "group": f"e{entity}",
         "polarity": polarity, "pair": f"{entity}-{match}", "topic": f"t{entity % 2}", "match": int(match)}
        for entity in range(n) for match in (True, False) for polarity in ("affirmative", "negated")
    ]  # fmt: skip
    frame = pd.DataFrame(rows).assign(split=None)
    read = frame["match"] if flips else frame["label"]
    direction = rng.normal(size=d) / np.sqrt(d)
    X = rng.normal(size=(len(frame), d)) + 3.0 * np.outer(read - 0.5, direction)
    return X, frame.drop(columns="match")


# --------------------------------------------------------------------------------------------------------- one split


def test_one_split_chooses_on_one_part_and_reports_on_another() -> None:
    _, y, groups = paired(60)
    fold = one_split(y, groups, None, seed=0)
    select = fold.train[fold.inner[0]]
    parts = [np.setdiff1d(fold.train, select), select, fold.test]
    assert sum(len(part) for part in parts) == len(y)
    assert sum(len(set(groups[part])) for part in parts) == 60
    assert [round(len(part) / len(y), 1) for part in parts] == [0.6, 0.2, 0.2]


def test_a_split_of_the_data_is_kept_and_one_that_divides_a_group_refused() -> None:
    X, y, groups = planted(400, 12)
    names = np.array(["train", "select", "test"])[np.arange(100) % 3][groups]
    store = MemoryStore([X], frame_of(y, groups).assign(split=names))
    report = probe_sweep(store, protocol="split", **QUICK)
    tested = report.predictions["row"].to_numpy()
    assert set(names[tested]) == {"test"}
    assert len(tested) == (names == "test").sum()
    found = report.selected["mass_mean"]
    assert found.auroc == pytest.approx(roc_auc_score(y[tested], report.predictions["logit"]))
    assert found.n == len(tested)
    assert report.card["n_judged"] == len(tested)
    assert "selection part" in report.summary()

    store.frame.loc[0, "split"] = "test"
    with pytest.raises(ValueError, match="1 groups stand in two parts"):
        probe_sweep(store, protocol="split", **QUICK)
    store.frame["split"] = "train"
    with pytest.raises(ValueError, match="'select' needs rows of both labels"):
        probe_sweep(store, protocol="split", **QUICK)


def test_the_test_part_of_a_split_changes_no_choice() -> None:
    X, y, groups = planted(400, 12)
    plan = sweep_plan(
        MemoryStore([X], frame_of(y, groups)), protocol="split", kinds="logistic", n_boot=100, n_controls=2
    )
    other = X.copy()
    other[plan.folds[0].test] = 7.0
    (one, two) = (
        fit_place(MemoryStore([rows], frame_of(y, groups)), plan.places[0], ["logistic"], plan)["logistic"]
        for rows in (X, other)
    )
    assert one.choices[0].losses == two.choices[0].losses
    assert one.choices[0].threshold == two.choices[0].threshold


# ----------------------------------------------------------------------------------------------------------- controls


def test_the_control_task_says_how_much_is_remembered() -> None:
    X, y, groups = paired(100, 64)  # each entity's two rows are nearly the same point
    knows = probe_sweep(MemoryStore([X], frame_of(y, groups)), C=1.0, **QUICK | {"kinds": "logistic"})
    noise = np.random.default_rng(1).normal(size=X.shape)
    blank = probe_sweep(MemoryStore([noise], frame_of(y, groups)), C=1.0, **QUICK | {"kinds": "logistic"})
    (remembered,), (none,) = knows.figures["control_accuracy"], blank.figures["control_accuracy"]
    assert remembered > 0.75
    assert 0.35 < none < 0.65
    row = knows.figures.iloc[0]
    assert row["selectivity"] == pytest.approx(row["accuracy"] - remembered)


def test_the_larger_class_is_no_selectivity() -> None:
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(100), 4)
    y = (rng.random(400) < 0.2).astype(int)
    report = probe_sweep(MemoryStore([rng.normal(size=(400, 6))], frame_of(y, groups)), **QUICK)
    row = report.figures.iloc[0]
    assert row["accuracy"] > 0.75  # by saying no
    assert abs(row["selectivity"]) < 0.06


def test_no_control_task_where_every_group_is_one_row() -> None:
    X, y, _ = planted(60, 6)
    report = probe_sweep(MemoryStore([X], frame_of(y, np.arange(60))), **QUICK)
    assert report.selected["mass_mean"].control_accuracy is None
    assert report.figures["selectivity"].isna().all()


def test_a_kind_that_is_given_no_labels_has_no_control_task() -> None:
    X, frame = statements(60, 8)
    one_pair = frame[frame["pair"].str.endswith("True") == (frame["topic"] == "t0")]  # half of it holds no pair
    store = MemoryStore([X[one_pair.index]], one_pair.reset_index(drop=True))
    report = probe_sweep(store, **QUICK | {"kinds": ["ccs", "mass_mean"]})
    assert report.selected["ccs"].control_accuracy is None
    assert report.selected["mass_mean"].control_accuracy is not None


def test_labels_that_were_drawn_with_the_seed_do_not_meet_their_own_draws() -> None:
    groups, straight = np.repeat(np.arange(100), 2), np.tile([0, 1], 100)
    y = straight ^ np.random.default_rng(0).integers(0, 2, 100)[groups]
    drawn = permuted_labels(y, groups, groups % 5, 1, seed=0)[0]
    assert 0.3 < (drawn == straight).mean() < 0.7


def test_a_test_part_of_few_groups_is_refused() -> None:
    y, groups = np.tile([0, 1], 30), np.repeat(np.arange(30), 2)
    names = ["train", "select", "test"]
    with pytest.raises(ValueError, match="'test' has 4 groups"):
        one_split(y, groups, [names[0 if group < 20 else 1 if group < 26 else 2] for group in groups], seed=0)


def test_given_numbers_stand_beside_the_probe_and_their_sign_is_that_of_the_training_part() -> None:
    X, y, groups = planted(400, 12)
    score = np.random.default_rng(0).normal(size=400) - 2.0 * y
    report = probe_sweep(MemoryStore([X], frame_of(y, groups)), text_scores={"log_likelihood": score}, **QUICK)
    assert report.baselines["log_likelihood"].auroc == pytest.approx(roc_auc_score(y, -score), abs=0.01)
    assert (report.to_frame()["log_likelihood"] == report.baselines["log_likelihood"].auroc).all()
    assert "log likelihood 0." in report.summary()
    with pytest.raises(ValueError, match="one finite number for each of the 400 rows"):
        probe_sweep(MemoryStore([X], frame_of(y, groups)), text_scores={"length": [1.0]}, **QUICK)


# ------------------------------------------------------------------------------------------------------ figures by part


def test_a_probe_of_wording_is_shown_to_be_the_wrong_way_round_on_negations(tmp_path: Path) -> None:
    X, frame = statements(flips=True)
    affirmed = frame["polarity"] == "affirmative"
    # Twice as many affirmative entities as negated ones: the probe follows the larger part.
    keep = affirmed | frame["group"].isin([f"e{i}" for i in range(0, 60, 3)])
    report = probe_sweep(MemoryStore([X[keep]], frame[keep].reset_index(drop=True)), **QUICK)
    parts = report.parts.set_index(["part", "value"])["auroc"]
    assert parts["polarity", "affirmative"] > 0.85
    assert parts["polarity", "negated"] < 0.15
    assert "the wrong way round where polarity is negated" in report.summary()
    rows = report.predictions.query("polarity == 'negated'")
    assert parts["polarity", "negated"] == pytest.approx(roc_auc_score(rows["label"], rows["logit"]))
    worst = report.errors()
    assert worst["share"].is_monotonic_decreasing
    assert worst["n"].sum() == keep.sum()
    report.save(tmp_path / "report")
    again = load_probe_report(tmp_path / "report")
    pd.testing.assert_frame_equal(again.parts, report.parts)
    assert again.selected == report.selected


def test_a_part_of_few_groups_has_no_interval() -> None:
    X, frame = statements(30, 8)
    few = frame["group"].isin([f"e{i}" for i in range(4)])
    report = probe_sweep(MemoryStore([X], frame.assign(topic=np.where(few, "few", "many"))), **QUICK)
    part = report.parts.set_index("value")
    assert part.loc["few", "n_groups"] == 4
    assert part.loc["few", ["low", "high"]].isna().all()
    assert np.isfinite(part.loc["few", "auroc"])
    assert part.loc["many", "low"] < part.loc["many", "auroc"]


@pytest.mark.parametrize("kind", ["ttpd", "ccs", "lda", "mass_mean_cov", "inlp"])
def test_every_linear_kind_goes_through_the_protocol(kind: str) -> None:
    X, frame = statements(40, 8)
    report = probe_sweep(MemoryStore([X], frame), kinds=kind, C=[0.01, 1.0], n_folds=3, n_boot=100, n_controls=1)
    assert report.selected[kind].auroc > 0.85
    assert report.probe(kind).direction is not None
    assert report.probe(kind).card["figure"]["n"] == 160


def test_networks_go_through_the_protocol() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(240, 4))
    y = ((X[:, 0] > 0) ^ (X[:, 1] > 0)).astype(int)  # no linear probe can
    store = MemoryStore([X], frame_of(y, np.arange(240) // 2))
    report = probe_sweep(store, kinds=["mlp", "logistic"], C=[0.1, 10.0], n_folds=3, n_boot=100, n_controls=1)
    assert report.selected["mlp"].auroc > 0.85
    assert report.selected["logistic"].auroc < 0.65
    assert report.probe("mlp").direction is None


# ------------------------------------------------------------------------------------------------------ finished tasks


def test_a_sweep_goes_on_from_finished_tasks_and_fits_nothing_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    X, frame = statements(30, 8)
    store, kept = MemoryStore([X, X[::-1].copy()], frame), InMemory()
    options: dict[str, Any] = {"kinds": ["mass_mean", "ttpd"], "n_boot": 100, "n_controls": 2}
    whole = probe_sweep(store, **options)
    plan = sweep_plan(store, **options)
    kept.put(plan.places[1], "ttpd", fit_place(store, plan.places[1], ["ttpd"], plan)["ttpd"])
    resumed = probe_sweep(store, kept=kept, **options)
    pd.testing.assert_frame_equal(resumed.to_frame(), whole.to_frame())
    assert resumed.selected == whole.selected
    assert len(kept.held) == 4
    monkeypatch.setattr("interp.probe.sweep.fit_place", lambda *_: pytest.fail("a finished task was done again"))
    pd.testing.assert_frame_equal(probe_sweep(store, kept=kept, **options).predictions, whole.predictions)


def test_results_of_another_sweep_are_refused() -> None:
    X, frame = statements(20, 4)
    kept = InMemory()
    probe_sweep(MemoryStore([X], frame), kept=kept, **QUICK)
    with pytest.raises(ValueError, match="kept result of mass_mean at resid_post:0 is of another sweep"):
        probe_sweep(MemoryStore([X], frame), kept=kept, **QUICK | {"n_controls": 4})


# -------------------------------------------------------------------------------------------------------- every token


class TokenStore(MemoryStore):
    """A `TokenSource` in memory: texts of two to four tokens after the first, which never is typical."""

    def __init__(self, frame: pd.DataFrame, n_layers: int = 1, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        counts = rng.integers(3, 6, len(frame))
        text = np.repeat(np.arange(len(frame)), counts)
        position = np.concatenate([np.arange(n) for n in counts])
        first = position == 0
        self.tokens = pd.DataFrame({"text": text, "position": position, "is_first": first, "is_special": False})
        own = rng.normal(size=(len(frame), 8))  # all tokens of a text know which text they are of
        self.X = own[text] + 0.1 * rng.normal(size=(len(text), 8))
        super().__init__([self.X] * n_layers, frame)
        self.card = {"tokens": "all"}
        self.examples = frame
        self.outliers: dict[str, int] = {}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return dict.fromkeys(self.sites, (8,))

    def typical(self, site: str) -> np.ndarray:
        return ~self.tokens["is_first"].to_numpy() & (np.arange(len(self.X)) != self.outliers.get(site, -1))

    def rows(self, site: str, index: Any) -> torch.Tensor:
        return torch.tensor(self.X[index], dtype=torch.float32)


def test_tokens_of_one_text_are_never_divided_and_keep_one_permuted_label() -> None:
    _, frame = statements(30)
    store = TokenStore(frame)
    plan = sweep_plan(store, tokens="every", groups="rows", kinds="mass_mean", n_boot=100, n_controls=9)
    text = plan.data.frame["text_index"].to_numpy()
    assert plan.data.n > len(frame)
    assert plan.data.n_groups == len(frame)
    for fold in plan.folds:
        assert not set(text[fold.train]) & set(text[fold.test])
    for labels in plan.permuted:
        assert (pd.Series(labels).groupby(text).nunique() == 1).all()
    # The labels are noise to these rows; one token on the other side of the split would give its text away.
    report = probe_sweep(store, tokens="every", groups="rows", kinds="logistic", C=1.0, n_boot=100, n_controls=3)
    assert report.selected["logistic"].auroc < 0.65
    assert "Texts were split one by one" in report.summary()


def test_tokens_take_what_is_said_of_their_texts() -> None:
    _, frame = statements(10)  # with pairs, which no token has
    store = TokenStore(frame)
    score = np.random.default_rng(0).normal(size=len(frame))
    groups = list(frame["group"])
    given = sweep_plan(store, tokens="every", groups=groups, text_scores={"likelihood": score}, n_boot=100)
    text = given.data.frame["text_index"].to_numpy()
    assert (given.data.groups == sweep_plan(store, tokens="every", n_boot=100).data.groups).all()
    assert given.text_scores["likelihood"].tolist() == score[text].tolist()
    assert given.data.pair is None
    flips = [labels != given.data.y for labels in given.permuted]
    assert all((pd.Series(flip).groupby(given.data.groups).nunique() == 1).all() for flip in flips)  # whole entities


def test_places_with_other_tokens_are_not_compared() -> None:
    _, frame = statements(10)
    store = TokenStore(frame, n_layers=2)
    counts = store.tokens["text"].value_counts()[0]
    store.outliers = {store.sites[0]: 1, store.sites[1]: int(counts) - 1}  # as many tokens of the same text
    with pytest.raises(ValueError, match="resid_post:1 holds other rows than resid_post:0"):
        probe_sweep(store, tokens="every", **QUICK)
    matrix: dict[str, Any] = {"tokens": "every", "kinds": "mass_mean", "n_folds": 3, "n_boot": 100}
    with pytest.raises(ValueError, match="resid_post:1 has other rows than the first place"):
        probe_transfer(store, **matrix)
    store.outliers = {}
    assert probe_transfer(store, **matrix).card["n"] == (~store.tokens["is_first"]).sum()


# ---------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda f: f.assign(label=[1 - f["label"][0], *f["label"][1:]]),
            "two rows of pair '0-True' have the same label",
        ),
        (lambda f: f[(f["label"] == 1) | (f["group"] != "e0")], "1 groups of paired rows have one label only"),
        (lambda f: f.assign(polarity="perhaps"), "'affirmative' or 'negated'"),
        (lambda f: f.assign(pair="one"), "two rows of the same polarity"),
        (lambda f: f.assign(group=f["group"] + f["polarity"]), "pair '0-True' stand in two groups, as do those of 119"),
        (lambda f: f.assign(topic=[None, *f["topic"][1:]]), "1 of 240 rows have no topic"),
    ],
)
def test_pairs_and_columns_keep_what_they_promise(change: Any, words: str) -> None:
    _, frame = statements()
    with pytest.raises(ValueError, match=words):
        Labelled.of(change(frame).reset_index(drop=True))


def test_a_statement_about_two_entities_stands_with_both() -> None:
    names = ["Oslo", "Lima", "Oslo & Lima", "Kyiv", "Rome & Bern", "Bern & Cork", "Paris", "Turin", "Turin", "A&B"]
    codes = check_groups(names, 10, 2)
    same = {frozenset(np.flatnonzero(codes == code).tolist()) for code in codes}
    assert same == {frozenset(rows) for rows in ([0, 1, 2], [3], [4, 5], [6], [7, 8], [9])}
    _, frame = statements(20)
    both = frame[frame["group"].isin([f"e{i}" for i in range(10)])].assign(
        group=lambda f: [f"{name} & e{int(name[1:]) + 10}" for name in f["group"]],
        pair=lambda f: "both " + f["pair"], text=lambda f: "both " + f["text"],
    )  # fmt: skip
    data = Labelled.of(pd.concat([frame, both]))
    assert data.n_groups == 10
    for i in range(10):
        assert len(set(data.groups[data.frame["group"].isin([f"e{i}", f"e{i + 10}", f"e{i} & e{i + 10}"])])) == 1


def test_a_kind_is_refused_where_its_columns_are_missing() -> None:
    X, frame = statements(20, 4)
    store = MemoryStore([X], frame.drop(columns="pair"))
    with pytest.raises(ValueError, match="kind='ccs' needs the column 'pair'"):
        probe_sweep(store, **QUICK | {"kinds": "ccs"})
    store = MemoryStore([X], frame.assign(polarity=["", *frame["polarity"][1:]]))
    with pytest.raises(ValueError, match="1 have no polarity"):
        probe_sweep(store, **QUICK | {"kinds": "ttpd"})
    with pytest.raises(ValueError, match="unknown protocol 'random'"):
        probe_sweep(store, protocol="random", **QUICK)
    assert METHODS["ttpd"].needs == ("polarity",)


def test_partners_are_found_and_survive_a_choice_of_rows() -> None:
    _, frame = statements(5, 4)
    data = Labelled.of(frame)
    assert data.partner.tolist() == [i ^ 1 for i in range(20)]
    assert data.take(np.array([4, 0, 5])).partner.tolist() == [2, -1, 0]


def test_paired_groups_are_flipped_whole_beside_others_that_are_dealt_again() -> None:
    y = np.array([0, 1, 1, 0] * 10 + [0, 1, 1] * 10)
    groups = np.r_[np.arange(10).repeat(4), 10 + np.arange(10).repeat(3)]
    fold = groups % 5
    for labels in permuted_labels(y, groups, fold, 30, seed=0):
        flips = (labels[:40] != y[:40]).reshape(10, 4)
        assert (flips.all(1) | ~flips.any(1)).all()
        assert (np.bincount(fold, weights=labels) == np.bincount(fold, weights=y)).all()
