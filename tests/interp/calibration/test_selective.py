"""Risk and coverage against brute force over all orders, closed forms and simulation."""

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

from interp.calibration.ordering import CURVE, Sample
from interp.calibration.selective import SelectiveReport, selective_report

QUICK = {"n_boot": 100}


def brute_aurc(confidence: list[float], right: list[int]) -> float:
    """Mean of the AURC over every order that confidence allows."""
    n, found = len(right), []
    for order in itertools.permutations(range(n)):
        if all(confidence[i] >= confidence[j] for i, j in itertools.pairwise(order)):
            wrong = np.cumsum([1 - right[i] for i in order])
            found.append(float((wrong / np.arange(1, n + 1)).mean()))
    return float(np.mean(found))


def answers(n: int, strength: float, rate: float = 0.3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Confidence and right: two normal distributions `strength` apart."""
    rng = np.random.default_rng(seed)
    right = (rng.random(n) >= rate).astype(int)
    right[:2] = [0, 1]
    return rng.normal(size=n) + strength * right, right


# ---------------------------------------------------------------------------------------------------------- oracles


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1)), min_size=2, max_size=6))
def test_aurc_is_the_mean_over_all_orders_that_confidence_allows(rows: list[tuple[int, int]]) -> None:
    confidence, right = [float(c) for c, _ in rows], [r for _, r in rows]
    blocks = Sample.of(np.array(confidence), np.array(right, float), np.arange(len(rows))).all_rows()
    assert blocks.aurc()[0] == pytest.approx(brute_aurc(confidence, right), abs=1e-12)
    best = min(
        float((np.cumsum(1 - np.array(order)) / np.arange(1, len(rows) + 1)).mean())
        for order in set(itertools.permutations(right))
    )
    assert blocks.aurc_optimal()[0] == pytest.approx(best, abs=1e-12)
    assert best - 1e-12 <= blocks.aurc()[0] <= 1 + 1e-12


def test_the_best_order_has_no_excess_and_a_constant_confidence_is_a_random_order() -> None:
    right = np.array([1] * 70 + [0] * 30)
    best = selective_report(confidence=np.arange(100.0)[::-1], y=right, **QUICK)
    assert best.excess_aurc == pytest.approx(0.0, abs=1e-12)
    assert best.auroc == 1.0
    assert best.intervals["auroc"][0] < 0.95  # thirty wrong answers are not proof of a perfect order
    same = selective_report(confidence=np.full(100, 0.8), y=right, **QUICK)
    assert same.aurc == pytest.approx(0.3, abs=1e-12)
    assert same.auroc == 0.5
    assert len(same.curve) == 1
    assert "cannot be told from chance" in same.verdict
    assert same.aurac == pytest.approx(0.7)


@pytest.mark.parametrize("rate", [0.05, 0.3, 0.9])
def test_the_best_aurc_falls_to_the_formula_that_papers_write(rate: float) -> None:
    limit = rate + (1 - rate) * math.log(1 - rate)
    gaps = []
    for n in (200, 20_000):
        right = np.ones(n)
        right[: round(rate * n)] = 0
        blocks = Sample.of(right, right, np.arange(n)).all_rows()
        gaps.append(float(blocks.aurc_optimal()[0]) - limit)
    assert 0 < gaps[1] < 1e-4 < gaps[0] * 1.0001
    assert gaps[0] == pytest.approx(rate / 2 / 200, rel=0.05)


def test_auroc_is_scikit_learns_and_order_does_not_matter() -> None:
    confidence, right = answers(300, 1.0)
    confidence = np.round(confidence, 1)
    report = selective_report(confidence=confidence, y=right, **QUICK)
    assert report.auroc == pytest.approx(roc_auc_score(right, confidence), abs=1e-12)
    order = np.random.default_rng(1).permutation(300)
    again = selective_report(confidence=confidence[order], y=right[order], **QUICK)
    for name in ("aurc", "excess_aurc", "auroc"):
        assert getattr(again, name) == pytest.approx(getattr(report, name), abs=1e-12)
    pd.testing.assert_frame_equal(again.curve.drop(columns=["low", "high"]), report.curve.drop(columns=["low", "high"]))


def test_a_curve_by_hand() -> None:
    report = selective_report(confidence=[0.9, 0.9, 0.5, 0.1], y=[1, 0, 1, 0], **QUICK)
    assert report.curve["coverage"].tolist() == [0.5, 0.75, 1.0]
    np.testing.assert_allclose(report.curve["risk"], [1 / 2, 1 / 3, 1 / 2])
    assert report.curve["threshold"].tolist() == [0.9, 0.5, 0.1]
    assert report.aurc == pytest.approx((1 / 2 + 1 / 2 + 1 / 3 + 1 / 2) / 4)
    assert report.risk_at(0.25).value == pytest.approx(0.5)  # one of two equally sure answers
    assert report.risk_at(0.75)[::3] == pytest.approx((1 / 3, 0.5))
    assert report.coverage_at(0.4)[::3] == pytest.approx((0.75, 0.5))
    assert report.coverage_at(0.5)[::3] == pytest.approx((1.0, 0.1))
    nothing = report.coverage_at(0.1)
    assert (nothing.value, nothing.threshold) == (0.0, None)
    assert report.error_rate == 0.5


def test_long_curves_are_thinned_and_end_with_all_answered() -> None:
    report = selective_report(confidence=np.arange(3000.0), y=np.arange(3000) % 3 > 0, **QUICK)
    assert len(report.curve) == CURVE
    assert report.curve["coverage"].iloc[-1] == 1.0
    assert report.curve["coverage"].is_monotonic_increasing
    assert np.diff(report.curve["coverage"]).max() < 2 / CURVE


# --------------------------------------------------------------------------------------------------------- sampling


def test_intervals_cover_the_truth() -> None:
    """Two normals: AUROC is known in closed form, risk at a coverage from a large sample."""
    big, right = answers(400_000, 1.0, seed=9)
    top = np.argsort(-big)[: len(big) // 2]
    truth = {"auroc": norm.cdf(1 / math.sqrt(2)), "risk": 1 - right[top].mean()}
    truth["aurc"] = float(Sample.of(big, right.astype(float), np.arange(len(big))).all_rows().aurc()[0])
    covered = dict.fromkeys(truth, 0)
    runs = 80
    for seed in range(runs):
        report = selective_report(confidence=(a := answers(120, 1.0, seed=seed))[0], y=a[1], n_boot=200, seed=seed)
        for name, ends in {"risk": report.risk_at(0.5)[1:3], **report.intervals}.items():
            covered[name] = covered.get(name, 0) + int(ends[0] <= truth.get(name, 2) <= ends[1])
    for name in truth:
        assert covered[name] / runs >= 0.89, (name, covered[name] / runs)


def test_groups_make_doubled_rows_count_once() -> None:
    confidence, right = answers(80, 1.0)
    alone = selective_report(confidence=confidence, y=right, n_boot=400)
    doubled: dict[str, Any] = {"confidence": np.repeat(confidence, 5), "y": np.repeat(right, 5), "n_boot": 400}
    grouped = selective_report(**doubled, groups=np.repeat(np.arange(80), 5))
    assert grouped.n_groups == 80
    assert grouped.intervals["auroc"] == pytest.approx(alone.intervals["auroc"], abs=1e-9)
    naive = selective_report(**doubled)
    assert np.diff(naive.intervals["auroc"]) < 0.6 * np.diff(grouped.intervals["auroc"])
    assert np.diff(naive.risk_at(0.5)[1:3]) < 0.7 * np.diff(grouped.risk_at(0.5)[1:3])
    # None wrong among fifty rows of ten groups is what ten trials can show.
    best = grouped.curve.loc[grouped.curve["risk"] == 0].iloc[-1]
    assert best["high"] > 1.9 / (best["n_answered"] / 5 + 4)


def test_one_wrong_answer_says_nothing_of_its_sampling() -> None:
    report = selective_report(confidence=np.arange(30.0), y=[0] + [1] * 29, **QUICK)
    assert report.auroc == 1.0
    assert report.intervals["auroc"] == (0.0, 1.0)
    assert "cannot be told" in report.verdict


def test_verdicts() -> None:
    good, right = answers(300, 1.5)
    assert "more confidence than wrong ones" in selective_report(confidence=good, y=right, **QUICK).verdict
    assert "right way up" in selective_report(confidence=-good, y=right, **QUICK).verdict


# ----------------------------------------------------------------------------------------------------------- values


def test_save_and_load(tmp_path: Path) -> None:
    confidence, right = answers(60, 1.0)
    report = selective_report(confidence=torch.tensor(confidence), y=right.astype(bool), **QUICK)
    again = SelectiveReport.load(report.save(tmp_path / "a" / "report.json"))
    assert again == report
    assert again.curve.equals(report.curve)
    assert again.risk_at(0.5) == report.risk_at(0.5)
    assert again.coverage_at(0.2) == report.coverage_at(0.2)
    frame = report.to_frame().set_index("figure")
    assert (frame.loc["aurc", "low"], frame.loc["aurc", "high"]) == report.intervals["aurc"]
    path = tmp_path / "a" / "report.json"
    card = json.loads(path.read_text())
    for change, message in (
        ({"kind": "probe"}, "no selective report"),
        ({"format": 9}, "update interp"),
        ({"report": {}}, "missing or unknown keys"),
    ):
        path.write_text(json.dumps(card | change))
        with pytest.raises(ValueError, match=message):
            SelectiveReport.load(path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"confidence": [0.1, 0.2], "y": [1, 1]}, "all 2 answers are right: there is nothing to rank"),
        ({"confidence": [0.1, 0.2], "y": [0, 0]}, "all 2 answers are wrong"),
        ({"confidence": [0.1, math.nan], "y": [0, 1]}, "NaN in 1 of 2 rows"),
        ({"confidence": [0.1, math.inf], "y": [0, 1]}, "infinite in row 1"),
        ({"confidence": [], "y": []}, "at least one row"),
        ({"confidence": [0.1, 0.2, 0.3], "y": [0, 1]}, "2 rows and there are 3"),
        ({"confidence": [0.1, 0.2], "y": [0, 2]}, "where the answer was right"),
        ({"confidence": [0.1, 0.2], "y": [0, 1], "groups": ["a"]}, "1 entries for 2 rows"),
        ({"confidence": [0.1, 0.2], "y": [0, 1], "groups": ["a", "a"]}, "one group"),
        ({"confidence": [0.1, 0.2], "y": [0, 1], "n_boot": 3}, "n_boot=3 is too few"),
        ({"confidence": ["a", "b"], "y": [0, 1]}, "numbers"),
    ],
)
def test_bad_input_is_refused_with_the_mend(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        selective_report(**arguments)


def test_coverage_and_risk_outside_their_range_are_refused() -> None:
    report = selective_report(confidence=[0.1, 0.2, 0.3], y=[0, 1, 1], **QUICK)
    for coverage in (0.0, 1.1, math.nan):
        with pytest.raises(ValueError, match="coverage is the share"):
            report.risk_at(coverage)
    for risk in (-0.1, 1.0):
        with pytest.raises(ValueError, match="accepted share"):
            report.coverage_at(risk)


def test_pandas_inputs_with_other_labels_and_numpy_numbers() -> None:
    confidence, y = pd.Series([0.9, 0.8, 0.3, 0.2], index=[3, 4, 5, 6]), pd.Series([1, 1, 0, 1])
    with pytest.raises(
        ValueError, match="confidence and y are labelled differently: row 0 is 3 in confidence and 0 in y"
    ):
        selective_report(confidence=confidence, y=y)
    found = selective_report(confidence=confidence, y=y.set_axis(confidence.index), n_boot=100)
    assert found.to_dict() == selective_report(confidence=confidence.tolist(), y=y, n_boot=100).to_dict()
    with pytest.raises(ValueError, match=r"got 1\.5$"):
        found.risk_at(np.float64(1.5))
    with pytest.raises(ValueError, match="row 1 is 2:"):
        selective_report(confidence=[0.1, 0.2], y=[1, 2])
