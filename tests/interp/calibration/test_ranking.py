"""Signals of doubt: planted strengths come in order, gaps are counted, differences are told from noise."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

from interp.calibration.ranking import COLUMNS, SignalComparison, compare_signals, rank_signals

N = 300
STRENGTHS = {"none": 0.0, "weak": 0.6, "strong": 1.5, "middle": 1.0, "reversed": -1.0}


def planted(n: int = N, seed: int = 0) -> tuple[dict[str, np.ndarray], np.ndarray]:
    rng = np.random.default_rng(seed)
    wrong = (rng.random(n) < 0.3).astype(int)
    return {name: rng.normal(size=n) + d * wrong for name, d in STRENGTHS.items()}, wrong


def test_planted_signals_come_in_order() -> None:
    signals, wrong = planted()
    table = rank_signals(signals, wrong, n_boot=200)
    assert tuple(table.columns) == COLUMNS
    assert table["signal"].tolist() == ["strong", "middle", "weak", "none", "reversed"]
    assert table["reliable"].tolist() == [True, True, True, False, False]
    for row in table.to_dict("records"):
        assert row["auroc"] == pytest.approx(roc_auc_score(wrong, signals[row["signal"]]), abs=1e-12)
        assert row["low"] < row["auroc"] < row["high"]
        assert 0 <= row["excess_aurc"] < row["aurc"]
        assert (row["n"], row["n_missing"]) == (N, 0)
    assert "turn its sign" in table.set_index("signal").loc["reversed", "note"]
    assert table["aurc"].is_monotonic_increasing


def test_only_the_order_of_values_counts_and_ties_are_one_half() -> None:
    signals, wrong = planted()
    first = rank_signals({"x": np.round(signals["middle"])}, wrong, n_boot=100)
    second = rank_signals(pd.DataFrame({"x": np.exp(np.round(signals["middle"]))}), wrong.astype(bool), n_boot=100)
    pd.testing.assert_frame_equal(first, second)
    constant = rank_signals({"x": np.ones(N)}, wrong, n_boot=100)
    assert constant.loc[0, "auroc"] == 0.5
    assert constant.loc[0, "aurc"] == pytest.approx(wrong.mean())
    assert not constant.loc[0, "reliable"]


def test_missing_values_are_left_out_and_counted() -> None:
    signals, wrong = planted()
    gaps = np.random.default_rng(1).random(N) < 0.4
    signals["gaps"] = np.where(gaps, np.nan, signals["strong"])
    signals["absent"] = np.full(N, np.nan)
    signals["right only"] = np.where(wrong == 1, np.nan, signals["strong"])
    table = rank_signals(signals, wrong, n_boot=100).set_index("signal")
    assert table.loc["gaps", "n_missing"] == gaps.sum()
    assert table.loc["gaps", "auroc"] == pytest.approx(roc_auc_score(wrong[~gaps], signals["strong"][~gaps]))
    for name, note in (
        ("absent", "no row has a value"),
        ("right only", f"all {(wrong == 0).sum()} rows that have a value"),
    ):
        assert math.isnan(table.loc[name, "auroc"])
        assert note in table.loc[name, "note"]
        assert not table.loc[name, "reliable"]
    assert table.index[-2:].tolist() == ["absent", "right only"]


def test_noise_is_seldom_called_reliable() -> None:
    rng = np.random.default_rng(3)
    wrong = np.arange(60) % 6 == 0  # ten wrong answers
    table = rank_signals({f"s{i}": rng.normal(size=60) for i in range(200)}, wrong, n_boot=200)
    assert table["reliable"].mean() <= 0.05  # one-sided 2.5 % of 200, and its sampling


def test_signals_share_the_draws_of_groups() -> None:
    signals, wrong = planted(100)
    table = rank_signals(
        {"a": signals["weak"], "b": 3 * signals["weak"]}, wrong, groups=np.arange(100) // 2, n_boot=200
    )
    assert table.loc[0, ["low", "high"]].tolist() == table.loc[1, ["low", "high"]].tolist()
    repeated = {"a": np.repeat(signals["weak"], 4)}
    rows = [
        rank_signals({"a": signals["weak"]}, wrong, n_boot=200),
        rank_signals(repeated, np.repeat(wrong, 4), groups=np.repeat(np.arange(100), 4), n_boot=200),
    ]
    np.testing.assert_allclose(rows[0][["auroc", "low", "high"]], rows[1][["auroc", "low", "high"]], atol=1e-12)


def test_a_difference_is_told_where_single_intervals_overlap() -> None:
    rng = np.random.default_rng(0)
    wrong = (rng.random(N) < 0.3).astype(int)
    shared = rng.normal(size=N) + wrong
    signals = {"a": shared, "b": shared + 0.7 * rng.normal(size=N)}
    table = rank_signals(signals, wrong).set_index("signal")
    assert table.loc["b", "high"] > table.loc["a", "low"]
    found = compare_signals(signals, wrong, "a", "b")
    assert found.differs
    assert found.difference == pytest.approx(table.loc["a", "auroc"] - table.loc["b", "auroc"])
    assert "a ranks better than b" in found.verdict
    turned = compare_signals(signals, wrong, "b", "a")
    assert (turned.low, turned.high) == pytest.approx((-found.high, -found.low))
    assert "a ranks better than b" in turned.verdict


def test_equal_signals_do_not_differ_and_common_rows_count() -> None:
    signals, wrong = planted()
    signals["gaps"] = np.where(np.arange(N) % 3 == 0, np.nan, signals["weak"])
    found = compare_signals(signals, wrong, "weak", "gaps", n_boot=200)
    assert (found.n, found.n_missing, found.difference) == (200, 100, 0.0)
    assert not found.differs
    assert "cannot be told" in found.verdict
    assert found.n_groups == 200


def test_intervals_of_differences_cover() -> None:
    differs = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        wrong = (rng.random(100) < 0.3).astype(int)
        signals = {name: rng.normal(size=100) + wrong for name in "ab"}
        differs += compare_signals(signals, wrong, "a", "b", n_boot=200, seed=seed).differs
    assert differs <= 8


def test_a_comparison_is_saved(tmp_path: Path) -> None:
    signals, wrong = planted(60)
    found = compare_signals(signals, wrong, "weak", "strong", n_boot=100)
    path = found.save(tmp_path / "c.json")
    assert SignalComparison.load(path) == found
    assert found.to_frame().loc[0, "difference"] == found.difference
    path.write_text("{}")
    with pytest.raises(ValueError, match="no comparison"):
        SignalComparison.load(path)


@pytest.mark.parametrize(
    ("signals", "wrong", "more", "message"),
    [
        ({"a": np.arange(40.0)}, np.zeros(40), {}, "all 40 answers are right"),
        ({"a": np.arange(40.0)}, np.ones(40), {}, "all 40 answers are wrong"),
        ({"a": [1.0, 2.0]}, [0, 1, 1], {}, "3 rows and there are 2"),
        ({"a": [1.0, math.inf]}, [0, 1], {}, "infinite in row 1"),
        ({"a": ["x", "y"]}, [0, 1], {}, "no column of numbers"),
        ({}, [0, 1], {}, "at least one row and one column"),
        ([1.0, 2.0], [0, 1], {}, "DataFrame"),
        ({"a": [1.0, 2.0]}, [0, 3], {}, "wrong is 1 where"),
        ({"a": [1.0, 2.0]}, [0, 1], {"n_boot": 10}, "too few"),
        ({"a": [1.0, 2.0]}, [0, 1], {"groups": ["g", "g"]}, "one group"),
    ],
)
def test_bad_input_is_refused_with_the_mend(signals: Any, wrong: Any, more: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rank_signals(signals, wrong, **more)


def test_a_comparison_without_common_ground_is_refused() -> None:
    half = np.where(np.arange(10) < 5, 1.0, np.nan)
    signals = {"a": half, "b": np.where(np.arange(10) < 5, np.nan, 1.0), "c": np.arange(10.0)}
    wrong = np.arange(10) % 2
    with pytest.raises(ValueError, match="no row has both"):
        compare_signals(signals, wrong, "a", "b")
    with pytest.raises(ValueError, match="no column 'd'"):
        compare_signals(signals, wrong, "a", "d")
    with pytest.raises(ValueError, match="cannot be compared"):
        compare_signals(signals, np.arange(10) < 5, "a", "c")


def test_pandas_inputs_with_other_labels_are_not_paired_by_position() -> None:
    values, outcomes = planted(60)
    signals = pd.DataFrame(values)
    shuffled = pd.Series(outcomes).sample(frac=1, random_state=0)
    said = "Rows are paired by position.*reset_index"
    with pytest.raises(ValueError, match=f"signals and wrong are labelled differently: row 0 is 0 in signals.*{said}"):
        rank_signals(signals, shuffled, n_boot=100)
    with pytest.raises(ValueError, match=said):
        compare_signals(signals, outcomes, "weak", "strong", groups=pd.Series(range(60), index=range(1, 61)))
    with pytest.raises(
        ValueError, match="weak and strong are labelled differently"
    ):  # pandas alone would align, or fill with NaN
        rank_signals({"weak": signals["weak"], "strong": signals["strong"].iloc[::-1]}, outcomes, n_boot=100)
    with pytest.raises(ValueError, match="59 to 60 rows"):
        rank_signals({"weak": signals["weak"], "strong": signals["strong"].iloc[1:]}, outcomes, n_boot=100)
    expected = rank_signals(values, outcomes, n_boot=100)
    labelled = signals.set_axis([f"q{i}" for i in range(60)])
    for wrong in (pd.Series(outcomes, index=labelled.index), outcomes, outcomes.tolist()):
        pd.testing.assert_frame_equal(rank_signals(labelled, wrong, n_boot=100), expected)
    pd.testing.assert_frame_equal(
        rank_signals(signals.iloc[shuffled.index], shuffled, n_boot=100)
        .sort_values("signal")[["signal", "auroc"]]
        .reset_index(drop=True),
        expected.sort_values("signal")[["signal", "auroc"]].reset_index(drop=True),
    )
