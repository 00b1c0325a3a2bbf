"""Transfer matrices: planted directions that turn with polarity, truths that are none, choices that see no test set."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from planted import SITE, MemoryStore

from interp.dataset import Dataset, Example
from interp.model import HookedTransformer
from interp.probe.labelled import Labelled
from interp.probe.transfer import probe_transfer
from interp.probe.transfer_report import TransferReport, load_transfer_report
from interp.probe.transfer_sets import sets_of, strata, trained_on
from interp.recording import record


def statements(n: int = 60, seed: int = 0) -> pd.DataFrame:
    """n entities, each true and false, affirmed and denied: four rows a group, the label turns with the polarity."""
    rng = np.random.default_rng(seed)
    lines = []
    for entity in range(n):
        topic = ("rivers", "towns")[entity % 2]
        for fits, place in zip((1, 0), rng.integers(0, 30, 2)):
            for polarity, word in ((1, "lies"), (-1, "does not lie")):
                label = fits if polarity > 0 else 1 - fits
                lines.append((f"Name{entity} {word} in Land{place}.", label, f"entity {entity}", topic, polarity))
    frame = pd.DataFrame(lines, columns=["text", "label", "group", "topic", "sign"])
    frame["polarity"] = np.where(frame["sign"] > 0, "affirmative", "negated")
    return frame.assign(split=None)


def activations(frame: pd.DataFrame, general: float, turning: float, seed: int = 1, d: int = 12) -> np.ndarray:
    """Noise, and a truth direction, and one along which truth turns with the polarity; entities are known, too."""
    rng = np.random.default_rng(seed)
    truth, sign = 2 * frame["label"].to_numpy() - 1, frame["sign"].to_numpy()
    entity = rng.normal(size=(frame["group"].nunique(), d))[pd.factorize(frame["group"])[0]]
    X = 0.3 * entity + 0.5 * rng.normal(size=(len(frame), d))
    X[:, 0] += general * truth
    X[:, 1] += turning * truth * sign
    X[:, 2] += sign
    return X


def transfer(layers: list[np.ndarray], frame: pd.DataFrame, **more: Any) -> TransferReport:
    settings = {"by": "polarity", "n_boot": 100, "C": 0.1, "n_folds": 3, "kinds": "mass_mean"}
    return probe_transfer(MemoryStore(layers, frame), **(settings | more))


@pytest.fixture(scope="module")
def turning() -> TransferReport:
    """Two layers, the first of noise; at the second truth is there, and beside it something stronger that turns."""
    frame = statements()
    layers = [activations(frame, 0, 0), activations(frame, 0.6, 1.5)]
    return transfer(layers, frame, kinds=("logistic", "mass_mean"))


# ------------------------------------------------------------------------------------------------ planted truths


def test_a_probe_of_affirmative_statements_alone_inverts_and_one_of_both_works(turning: TransferReport) -> None:
    for kind in ("logistic", "mass_mean"):
        matrix = turning.matrix(kind)
        assert matrix.loc["affirmative", "affirmative"] > 0.95
        assert matrix.loc["affirmative", "negated"] < 0.2
        assert matrix.loc["negated", "affirmative"] < 0.2
        assert matrix.loc["all"].min() > 0.75
        recovered = turning.matrix(kind, "recovered")
        assert recovered.loc["affirmative", "affirmative"] == pytest.approx(1)
        assert recovered.loc["affirmative", "negated"] < -0.5
    said = turning.explain()
    assert sum("inverted" in line for line in said) == 4
    assert all("Trained on all it is" in line for line in said)
    words = turning.baselines.set_index(["train", "test"])
    for line in said:  # the words are named where they are told from 1/2
        train, test = line.partition("trained on ")[2].partition(": ")[0].split(", tested on ")
        assert ("the words alone" in line) == (not words.loc[(train, test), "chance"])
    assert "inverted" in turning.summary()
    assert set(turning.selected["place"]) == {SITE.format(1)}
    assert turning.selected["chance"].sum() == 0
    noise = turning.to_frame().query("layer == 0 and train == 'all'")
    assert noise["chance"].any()


def test_every_cell_has_its_figures(turning: TransferReport) -> None:
    frame = turning.to_frame()
    assert len(frame) == 2 * 2 * 3 * 2  # places, kinds, train sets, test sets
    assert not frame.duplicated(["place", "kind", "train", "test"]).any()
    assert (frame["low"] <= frame["auroc"]).all()
    assert (frame["auroc"] <= frame["high"]).all()
    assert frame["smooth_ece"].between(0, 1).all()
    assert set(frame["n"]) == {120}
    assert set(frame["n_groups"]) == {60}
    assert frame.set_index("train")["n_train"].to_dict() == {"affirmative": 120, "negated": 120, "all": 240}
    one = frame[(frame["train"] == "affirmative") & (frame["test"] == "negated") & (frame["layer"] == 1)]
    assert (one["accuracy"] < 0.3).all()
    # What the words alone give stands in the same cell, and does not hang on place or kind.
    words = turning.baselines.set_index(["train", "test"])["auroc"]
    assert (frame["bag_of_words"] == [words[pair] for pair in zip(frame["train"], frame["test"])]).all()


def test_truth_without_meaning_covers_one_half_in_every_cell() -> None:
    frame = statements(80)
    # Entities are known, and each group holds as many true rows as false ones: a split by row would leak.
    report = transfer([activations(frame, 0, 0, d=30)], frame, by=["topic", "polarity"], n_boot=200)
    assert list(report.card["test_order"]) == [
        "rivers affirmative", "rivers negated", "towns affirmative", "towns negated",
    ]  # fmt: skip
    cells = report.selected.query("train != 'all'")
    assert cells["chance"].mean() > 0.8
    assert cells["auroc"].between(0.35, 0.65).all()
    assert any("nothing to transfer" in line for line in report.explain())
    assert report.matrix(value="recovered").isna().to_numpy().mean() > 0.5


def test_no_training_row_shares_a_group_with_a_test_row(monkeypatch: pytest.MonkeyPatch) -> None:
    from interp.probe import transfer as module

    seen = []

    def spy(X: Any, data: Labelled, folds: list, kind: str, grid: Any, **more: Any) -> Any:
        seen.extend((data, fold) for fold in folds)
        return held_out_logits(X, data, folds, kind, grid, **more)

    held_out_logits = module.held_out_logits
    monkeypatch.setattr(module, "held_out_logits", spy)
    frame = statements(40)
    transfer([activations(frame, 1, 0)], frame)
    assert len(seen) == 3 * 3
    sizes = set()
    for data, fold in seen:
        assert not set(data.groups[fold.train]) & set(data.groups[fold.test])
        sizes.add((len(set(data.frame["polarity"].iloc[fold.train])), len(set(data.frame["polarity"].iloc[fold.test]))))
        for part in fold.inner:
            rest = np.setdiff1d(np.arange(len(fold.train)), part)
            assert not set(data.groups[fold.train][part]) & set(data.groups[fold.train][rest])
    assert sizes == {(1, 2), (2, 2)}  # a train set is alone in training, and every set is tested


def test_the_place_is_chosen_on_the_train_set_alone() -> None:
    """Two places: at the first a direction that holds on both sets, at the second a stronger one that turns."""
    frame = statements()
    layers = [activations(frame, 0.5, 0), activations(frame, 0, 2)]
    report = transfer(layers, frame)
    chosen = report.selected.set_index(["train", "test"])
    assert set(chosen.loc["affirmative", "place"]) == {
        SITE.format(1)
    }  # the stronger one, and the worse on the other set
    assert set(chosen.loc["all", "place"]) == {SITE.format(0)}
    assert chosen.loc[("affirmative", "negated"), "auroc"] < 0.2
    assert chosen.loc[("affirmative", "negated"), "places"].count("resid_post:1") == 3
    # Labels of the other set have no say in what is chosen. (Turned round, they divide into the same folds.)
    negated = (frame["polarity"] == "negated").to_numpy()
    other = frame.assign(label=np.where(negated, 1 - frame["label"], frame["label"]))
    again = transfer(layers, other, train_sets="affirmative")
    turned = again.selected.set_index("test").loc["negated", "auroc"]
    assert turned == pytest.approx(1 - chosen.loc[("affirmative", "negated"), "auroc"])
    before, after = (r.predictions.query("train == 'affirmative'").reset_index(drop=True) for r in (report, again))
    pd.testing.assert_frame_equal(before.drop(columns="label"), after.drop(columns="label"))


def test_a_control_is_told_apart_from_the_sets_that_are_judged() -> None:
    """A set whose label is likelihood, and truth that goes along with it or not."""
    frame = statements(60)
    likely = (frame["topic"] == "rivers").to_numpy()
    rng = np.random.default_rng(0)
    X = rng.normal(size=(len(frame), 6))
    X[:, 0] += 2 * (2 * frame["label"].to_numpy() - 1)
    by = {"likely": likely, "true": ~likely}
    carried = transfer([X], frame, by=by, controls="likely")
    assert any("a control" in line and "what separates likely, without" in line for line in carried.explain())
    X[~likely, 0] = rng.normal(size=(~likely).sum())
    X[~likely, 1] += 2 * (2 * frame["label"].to_numpy()[~likely] - 1)
    apart = transfer([X], frame, by=by, controls=["likely"])
    assert any("says nothing about true" in line for line in apart.explain())


def test_a_kind_that_needs_both_polarities_is_trained_where_they_are() -> None:
    frame = statements()
    report = transfer([activations(frame, 0.6, 1.5)], frame, kinds=("mass_mean", "ttpd"))
    assert report.matrix("ttpd").index.tolist() == ["all"]
    assert report.matrix("ttpd").to_numpy().min() > 0.75
    assert len(report.matrix("mass_mean")) == 3
    assert "ttpd was not trained on affirmative: it has no negated row." in report.summary()
    with pytest.raises(ValueError, match="can be trained on none of the sets 'affirmative', 'negated'"):
        transfer([activations(frame, 1, 0)], frame, kinds="ttpd", train_sets=["affirmative", "negated"])
    # ccs needs a statement and its negation in one set, not both polarities alone.
    pairs = frame.assign(pair=[f"{group} {row % 4 // 2}" for row, group in enumerate(frame["group"])])
    apart = (frame["sign"] > 0).to_numpy() == (np.arange(len(frame)) % 8 < 4)
    with pytest.raises(ValueError, match="no pair of a statement and its negation"):
        transfer([activations(frame, 1, 0)], pairs, kinds="ccs", by={"apart": apart})


def test_words_that_do_as_well_are_said() -> None:
    frame = statements(40)
    frame["text"] = [f"{text} {'indeed' if label else 'hardly'}" for text, label in zip(frame["text"], frame["label"])]
    report = transfer([activations(frame, 0.2, 0)], frame)
    assert report.baselines["auroc"].min() > 0.99
    assert any("the words alone have 1.000: this shows nothing" in line for line in report.explain())


# ------------------------------------------------------------------------------------------------ the sets


def labelled(frame: pd.DataFrame) -> Labelled:
    return Labelled.of(frame)


def test_sets_by_columns_conditions_and_booleans() -> None:
    frame = statements(20)
    data = labelled(frame)
    assert {name: int(rows.sum()) for name, rows in sets_of("topic", data).items()} == {"rivers": 40, "towns": 40}
    both = sets_of(["topic", "polarity"], data)
    assert list(both) == ["rivers affirmative", "rivers negated", "towns affirmative", "towns negated"]
    given = sets_of({"short": "string.str.contains('Name1')", "all": np.ones(80, dtype=bool)}, data)
    assert given["short"].sum() == frame["text"].str.contains("Name1").sum()
    assert given["all"].all()
    # Rows without a value are in no set.
    frame["topic"] = frame["topic"].where(frame.index >= 8)
    data = Labelled.of(frame.rename(columns={"topic": "subject"}))
    assert sum(int(rows.sum()) for rows in sets_of("subject", data).values()) == 72


def test_sums_and_differences_of_sets() -> None:
    sets = {
        "a": np.array([1, 1, 0, 0, 0], bool),
        "b": np.array([0, 1, 1, 0, 0], bool),
        "c": np.array([0, 0, 0, 1, 0], bool),
    }
    assert list(trained_on(None, sets, sets)) == ["a", "b", "c", "all"]
    assert list(trained_on(None, ["a"], {"a": sets["a"]})) == ["a"]
    found = trained_on(["a + b", "all - a", "all", "a - b + c"], sets, sets)
    assert {name: np.flatnonzero(rows).tolist() for name, rows in found.items()} == {
        "a + b": [0, 1, 2], "all - a": [2, 3], "all": [0, 1, 2, 3], "a - b + c": [0, 3],
    }  # fmt: skip
    for others in ("others", ["others"]):
        assert list(trained_on(others, ["a", "c"], sets)) == ["all - a", "all - c"]


def test_folds_keep_every_set_in_proportion_where_they_can() -> None:
    frame = statements(40)
    data = labelled(frame)
    sets = sets_of(["topic", "polarity"], data)
    assert len(np.unique(strata(sets, data.y, data.groups, 4))) == 8
    assert len(np.unique(strata(sets, data.y, data.groups, 20))) == 2


def test_leave_one_out() -> None:
    frame = statements(40)
    report = transfer([activations(frame, 1, 0)], frame, by="topic", train_sets="others")
    assert report.matrix().index.tolist() == ["all - rivers", "all - towns"]
    assert report.matrix().to_numpy().min() > 0.9
    assert report.matrix(value="recovered").isna().to_numpy().sum() < 4  # with two sets, one's others are the other


BAD = [
    ({"by": "polarty"}, "no column 'polarty': did you mean 'polarity'"),
    ({"by": {"x": "label == 1"}}, "all .* rows of the set 'x' have the label 1"),
    ({"by": {"x": np.zeros(160, dtype=bool)}}, "the set 'x' is empty"),
    ({"by": {"x": [0, 1, 2]}}, "one True or False for each of 160 rows"),
    ({"by": {"few": "group in ['entity 1', 'entity 2']"}}, "8 rows in 2 groups"),
    ({"by": {1: "label >= 0", "1": "label >= 0"}}, "same name"),
    ({"by": []}, "gives no set"),
    ({"train_sets": "affirmativ"}, "no set 'affirmativ': did you mean 'affirmative'"),
    ({"train_sets": ["negated", "negated"]}, "'negated' twice"),
    ({"train_sets": "all - affirmative - negated"}, "is empty"),
    ({"test_sets": ["negate"]}, "test_sets: there is no set 'negate': did you mean 'negated'"),
    ({"test_sets": []}, "names no set"),
    ({"controls": "likely"}, "controls: there is no train set 'likely'"),
    ({"kinds": "logistics"}, "did you mean 'logistic'"),
    ({"kinds": ()}, "at least one kind"),
    ({"n_folds": 2}, "at least 3 folds"),
    ({"n_boot": 10}, "n_boot=10"),
    ({"kinds": "ccs"}, "needs the column 'pair'"),
    ({"groups": "entity"}, "no column 'entity'"),
]


@pytest.mark.parametrize(("settings", "message"), BAD)
def test_what_makes_no_figure_is_refused(settings: dict[str, Any], message: str) -> None:
    frame = statements(40)
    with pytest.raises(ValueError, match=message):
        transfer([activations(frame, 1, 0)], frame, **settings)


def test_names_of_columns_that_meet_are_refused() -> None:
    frame = statements(40)
    half = np.arange(len(frame)) % 8 < 4
    frame["one"], frame["two"] = np.where(half, "a b", "a"), np.where(half, "c", "b c")
    with pytest.raises(ValueError, match="both make the name 'a b c'"):
        transfer([activations(frame, 1, 0)], frame, by=["one", "two"])


def test_a_set_too_small_for_inner_folds_is_named() -> None:
    frame = statements(40)
    small = frame["group"].isin([f"entity {i}" for i in range(5)]).to_numpy()
    # Of five groups one holds all that is true.
    frame.loc[small, "label"] = (frame.loc[small, "group"] == "entity 0").astype(int)
    with pytest.raises(ValueError, match="the set 'small' is too small to train on"):
        transfer([activations(frame, 1, 0)], frame, by={"small": small, "rest": ~small}, n_folds=5)


def test_places_without_meaning_are_refused() -> None:
    frame = statements(40)
    spoilt = activations(frame, 1, 0)
    spoilt[3, 0] = np.nan
    with pytest.raises(ValueError, match=r"resid_post:0.*NaN"):
        transfer([spoilt], frame)
    with pytest.raises(ValueError, match="no groups"):
        transfer([spoilt], frame.drop(columns="group"))


# ------------------------------------------------------------------------------------------------ report


def test_progress_counts_places_and_train_sets() -> None:
    frame = statements(40)
    seen: list[tuple[int, int]] = []
    settings: dict[str, Any] = {"train_sets": ["all", "negated"], "progress": lambda *counts: seen.append(counts)}
    transfer([activations(frame, 1, 0)] * 2, frame, **settings)
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_the_same_seed_gives_the_same_report(turning: TransferReport) -> None:
    frame = statements()
    layers = [activations(frame, 0, 0), activations(frame, 0.6, 1.5)]
    again = transfer(layers, frame, kinds="mass_mean")
    for name in ("cells", "predictions"):
        before = getattr(turning, name).query("kind == 'mass_mean'").reset_index(drop=True)
        pd.testing.assert_frame_equal(before, getattr(again, name))


def test_save_and_load(turning: TransferReport, tmp_path: Path) -> None:
    folder = turning.save(tmp_path / "t")
    back = load_transfer_report(folder)
    for name in ("cells", "selected", "baselines", "predictions"):
        pd.testing.assert_frame_equal(getattr(back, name), getattr(turning, name))
    assert back.card == turning.card
    assert back.summary() == turning.summary()
    with pytest.raises(ValueError, match="exists already"):
        turning.save(folder)
    (folder / "cells.parquet").write_bytes(b"half")
    with pytest.raises(ValueError, match="not a whole transfer report"):
        load_transfer_report(folder)
    (folder / "transfer.json").write_text('{"kind": "transfer report", "format": 99}')
    with pytest.raises(ValueError, match="newer"):
        load_transfer_report(folder)
    with pytest.raises(ValueError, match="there is no file"):
        load_transfer_report(tmp_path)


def test_charts_hold_what_the_report_holds(turning: TransferReport) -> None:
    cells = [row for rows in turning.plot("mass_mean").to_dict()["datasets"].values() for row in rows if "said" in row]
    assert {(row["train"], row["test"]) for row in cells} == set(
        zip(turning.selected["train"], turning.selected["test"])
    )
    assert len(turning.plot_layers().to_dict()["vconcat"][0]["hconcat"]) == 2
    with pytest.raises(ValueError, match="no 'lda' probes"):
        turning.plot("lda")
    with pytest.raises(ValueError, match="no figure 'f1'"):
        turning.matrix(value="f1")


# ------------------------------------------------------------------------------------------------ the real model


@pytest.mark.slow
def test_a_probe_of_affirmed_cities_turns_on_denied_ones(smollm: HookedTransformer, shared_data: Path) -> None:
    examples = []
    for name, polarity in (("cities", "affirmative"), ("neg_cities", "negated")):
        rows = pd.read_csv(shared_data / "truth" / f"{name}.csv").head(400)  # 200 cities, each true and false
        examples += [
            Example(row.statement, int(row.label), row.city, meta={"polarity": polarity}) for row in rows.itertuples()
        ]
    store = record(smollm, Dataset("cities", tuple(examples)), sites=["resid_post:5", "resid_post:11", "resid_post:17"])
    report = probe_transfer(store, by="polarity", n_boot=300)
    matrix = report.matrix()
    assert matrix.loc["affirmative", "affirmative"] > 0.8
    assert matrix.loc["affirmative", "negated"] < 0.3
    assert matrix.loc["all"].min() > 0.75
    turned = [line for line in report.explain() if "tested on negated" in line and "inverted" in line]
    assert len(turned) == 1
    assert "Trained on all" in turned[0]
