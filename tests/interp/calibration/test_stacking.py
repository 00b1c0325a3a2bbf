"""Stacked signals against scikit-learn and planted signals."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from interp.calibration.stacking import StackedSignals, fit_stack, stack_signals


def planted(n: int = 600, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    """`one` and `two` know different halves of the truth, `copy` is `one`, `noise` knows nothing."""
    rng = np.random.default_rng(seed)
    one, two = rng.normal(size=(2, n))
    wrong = (rng.random(n) < 1 / (1 + np.exp(-1.2 * one - 1.2 * two))).astype(int)
    frame = {"one": one, "two": two, "copy": one + 0.01 * rng.normal(size=n), "noise": rng.normal(size=n)}
    return pd.DataFrame(frame), wrong


def row(report: StackedSignals, a: str, b: str | None = None) -> Any:
    frame = report.frame
    at = (frame["a"] == a) & (frame["b"].isna() if b is None else frame["b"] == b)
    return frame.loc[at].iloc[0]


def test_fit_is_scikit_learns_pipeline() -> None:
    signals, wrong = planted()
    oracle = make_pipeline(StandardScaler(), LogisticRegression(tol=1e-9, max_iter=5000)).fit(signals.to_numpy(), wrong)
    found = fit_stack(signals, wrong)
    np.testing.assert_allclose(found(signals), oracle.predict_proba(signals.to_numpy())[:, 1], atol=1e-6)
    shuffled = signals[["noise", "copy", "two", "one"]].assign(more=1.0)
    np.testing.assert_array_equal(found(shuffled), found(signals))  # by name, not by place


def test_missing_values_are_the_mean_beside_an_indicator() -> None:
    signals, wrong = planted()
    signals.loc[wrong.astype(bool) & (signals.index % 2 == 0), "noise"] = np.nan  # that it is missing says it all
    full = signals.to_numpy()
    filled = SimpleImputer().fit_transform(full)
    known = np.nanstd(full, axis=0)
    X = np.column_stack([(filled - np.nanmean(full, axis=0)) / known, np.isnan(full[:, 3])])
    oracle = LogisticRegression(tol=1e-9, max_iter=5000).fit(X, wrong)
    found = fit_stack(signals, wrong)
    np.testing.assert_allclose(found(signals), oracle.predict_proba(X)[:, 1], atol=1e-6)
    assert found.missing_weight[3] > 2
    report = stack_signals(signals, wrong, groups="rows", n_boot=100)
    assert row(report, "noise")["low"] > 0.6
    assert any("noise was not measured in" in note for note in report.notes)


def test_which_signal_adds_to_which() -> None:
    signals, wrong = planted()
    report = stack_signals(signals, wrong, groups="rows", n_boot=300)
    assert row(report, "one", "two")["adds"] is True
    assert row(report, "two", "copy")["adds"] is True
    for pair in (("one", "copy"), ("one", "noise"), ("copy", "noise")):
        assert row(report, *pair)["adds"] is False, pair
    both = row(report, "one", "two")
    assert both["gain"] == pytest.approx(both["auroc"] - row(report, both["better"])["auroc"])
    assert both["gain_low"] < both["gain"] < both["gain_high"]
    assert both["low_all"] < both["gain_low"]
    assert row(report, "noise")["low"] < 0.5 < row(report, "noise")["high"]
    assert "best single signal is" in report.verdict
    assert "2 of 6 pairs add" in report.verdict
    assert report.weights()["signal"].iloc[0] == "two"


def test_scores_come_from_folds_that_did_not_see_the_group() -> None:
    """Signals name the group and the outcome is the group's: what was memorised is worth nothing on new groups."""
    rng = np.random.default_rng(1)
    groups = np.repeat(np.arange(40), 10)
    wrong = np.repeat(rng.permutation(np.arange(40) % 2), 10)
    marks = pd.DataFrame(np.repeat(rng.normal(size=(40, 30)), 10, axis=0), columns=[f"s{k}" for k in range(30)])
    assert roc_auc_score(wrong, fit_stack(marks, wrong)(marks)) > 0.95
    few = marks.iloc[:, :8]
    honest = stack_signals(few, wrong, groups=groups, n_boot=200)
    leaking = stack_signals(few, wrong, groups="rows", n_boot=200)
    assert row(leaking, "all")["auroc"] > row(honest, "all")["auroc"] + 0.1
    assert row(honest, "all")["low"] < 0.5
    width = honest.frame["high"] - honest.frame["low"]
    assert (width > (leaking.frame["high"] - leaking.frame["low"])).all()  # 40 groups are less than 400 rows


def test_auroc_is_of_pairs_in_one_fold() -> None:
    signals, wrong = planted(200)
    report = stack_signals(signals[["one"]], wrong, groups="rows", n_folds=2, n_boot=100)
    # one monotone model a fold: the order within it is the signal's own
    from interp.dataset import grouped_folds

    parts = grouped_folds(range(200), 2, 0, labels=wrong.tolist())
    pairs = [wrong[part].sum() * (1 - wrong[part]).sum() for part in parts]
    aurocs = [roc_auc_score(wrong[part], signals["one"][part]) for part in parts]
    assert row(report, "one")["auroc"] == pytest.approx(np.average(aurocs, weights=pairs), abs=1e-12)
    assert report.frame.shape[0] == 1


def test_pooled_scores_would_push_noise_under_one_half() -> None:
    """Over folds together, models of a signal that says nothing rank by their offsets, against the outcome."""
    rng = np.random.default_rng(0)
    own, pooled = [], []
    for seed in range(20):
        wrong = (rng.permutation(33) < 11).astype(int)
        report = stack_signals(
            pd.DataFrame({"noise": rng.normal(size=33)}), wrong, groups="rows", n_boot=100, seed=seed
        )
        own.append(report.frame["auroc"].iloc[0])
        pooled.append(roc_auc_score(wrong, report.p_wrong))
    assert np.mean(np.array(own) - pooled) > 0.01


def test_false_finds_are_rare_over_all_pairs_together() -> None:
    rng = np.random.default_rng(4)
    finds = 0
    for seed in range(8):
        noise = pd.DataFrame(rng.normal(size=(100, 3)), columns=list("abc"))
        wrong = np.arange(100) % 3 == 0
        report = stack_signals(noise, wrong, groups="rows", n_boot=100, seed=seed)
        finds += report.frame.loc[report.frame["kind"] == "pair", "adds"].any()
    assert finds <= 2  # 0.4 are expected; P(more than 2) is under 1 %


def test_a_file_gives_the_same(tmp_path: Path) -> None:
    signals, wrong = planted(200)
    signals.loc[3, "two"] = np.nan
    report = stack_signals(signals, wrong, groups=np.arange(200) // 2, n_boot=100)
    again = StackedSignals.load(report.save(tmp_path / "s.json"))
    assert again.to_dict() == report.to_dict()
    pd.testing.assert_frame_equal(again.to_frame(), report.to_frame())
    assert again.verdict == report.verdict
    np.testing.assert_array_equal(again.stack(signals), report.stack(signals))
    same = stack_signals(signals, wrong, groups=np.arange(200) // 2, n_boot=100)
    assert same.to_dict() == report.to_dict()
    with pytest.raises(ValueError, match="no stacked signals"):
        StackedSignals.from_dict({"frame": []})


def test_constant_and_empty_signals_say_nothing_and_are_named() -> None:
    signals, wrong = planted(200)
    signals = signals[["one"]].assign(flat=3.0, empty=np.nan, yes=signals["two"] > 0)
    report = stack_signals(signals, wrong, groups="rows", n_boot=100)
    assert row(report, "flat")["auroc"] == pytest.approx(0.5)
    assert row(report, "empty")["auroc"] == pytest.approx(0.5)
    assert row(report, "yes")["auroc"] > 0.6
    assert sum("no two different values" in note for note in report.notes) == 2
    assert all(math.isfinite(weight) for weight in report.stack.weight)


def test_a_signal_without_an_error_is_not_perfect_for_sure() -> None:
    wrong = np.arange(40) % 4 == 0
    signals = pd.DataFrame({"perfect": wrong + 0.01 * np.arange(40), "noise": np.random.default_rng(0).random(40)})
    found = row(stack_signals(signals, wrong, groups="rows", n_boot=100), "perfect")
    assert found["auroc"] == found["high"] == 1
    assert found["low"] == pytest.approx(0.7225, abs=1e-4)  # Wilson's, 10 of 10
    alone = np.where(wrong, 0, np.arange(40) + 1)  # one group holds all that is wrong
    with pytest.raises(ValueError, match="make no 5 folds"):
        stack_signals(signals, wrong, groups=alone, n_boot=100)


def test_refusals() -> None:
    signals, wrong = planted(60)
    with pytest.raises(ValueError, match="all 60 answers are right"):
        stack_signals(signals, np.zeros(60), groups="rows")
    with pytest.raises(ValueError, match="all 60 answers are wrong"):
        fit_stack(signals, np.ones(60))
    with pytest.raises(ValueError, match="must be 0 or 1"):
        fit_stack(signals, wrong * 2)
    with pytest.raises(ValueError, match='or "rows"'):
        stack_signals(signals, wrong, groups="entity")
    with pytest.raises(ValueError, match="make no 5 folds"):
        stack_signals(signals, wrong, groups=np.arange(60) // 20)
    with pytest.raises(ValueError, match="infinite in row 7"):
        fit_stack(signals.assign(one=np.where(np.arange(60) == 7, np.inf, 0.0)), wrong)
    with pytest.raises(ValueError, match="no column of numbers"):
        fit_stack(signals.assign(word="x"), wrong)
    with pytest.raises(ValueError, match="59 rows"):
        fit_stack(signals, wrong[1:])
    with pytest.raises(ValueError, match="no column 'copy'"):
        fit_stack(signals, wrong)(signals[["one", "two", "noise"]])
    with pytest.raises(ValueError, match="one name"):
        fit_stack(pd.concat([signals, signals], axis=1), wrong)
    with pytest.raises(ValueError, match="DataFrame"):
        fit_stack(signals.to_numpy(), wrong)


def test_pandas_inputs_with_other_labels_are_refused() -> None:
    signals = pd.DataFrame({"a": np.arange(40.0), "b": np.arange(40.0) % 7})
    wrong = pd.Series(np.arange(40) % 2, index=range(40, 0, -1))
    with pytest.raises(ValueError, match=r"signals and wrong are labelled differently.*\.reset_index\(drop=True\)"):
        stack_signals(signals, wrong, groups="rows")
    with pytest.raises(ValueError, match="signals and wrong are labelled differently"):
        fit_stack(signals, wrong)
    stack = fit_stack(signals.set_axis(wrong.index), wrong)
    assert stack.to_dict() == fit_stack(signals, wrong.tolist()).to_dict()
