"""The gate's guarantees by simulation with known error rates, its bounds against scipy, and what it says when it cannot."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binom, binomtest

from interp.calibration.gate import AbstentionGate, fit_gate, load_gate, random_parts
from interp.calibration.gate_check import GateCheck, exact_interval

Truth = Callable[[Any], Any]


def steep(doubt: Any) -> Any:
    """P(wrong) of a row with this doubt in [0, 1]; 0.38 on average, and 0.1 among the 24 % with the least doubt."""
    return np.clip(0.02 + 0.66 * doubt + 0.1 * doubt**2, 0, 1)


def source(n: int, seed: int, truth: Truth = steep) -> tuple[pd.DataFrame, np.ndarray]:
    rng = np.random.default_rng(seed)
    doubt = rng.random(n)
    return pd.DataFrame({"doubt": doubt}), (rng.random(n) < truth(doubt)).astype(int)


def true_risk(threshold: float, truth: Truth = steep) -> tuple[float, float]:
    """Coverage and error rate among answered of the threshold, by integration."""
    grid = (np.arange(20_000) + 0.5) / 20_000
    answered = grid <= threshold
    return float(answered.mean()), float(truth(grid[answered]).mean()) if answered.any() else 0.0


# -------------------------------------------------------------------------------------------------------- guarantees


@pytest.mark.parametrize(("risk", "confidence", "truth"), [(0.2, 0.9, steep), (0.3, 0.8, lambda d: 0 * d + 0.32)])
def test_the_error_rate_is_kept_as_often_as_was_promised(risk: float, confidence: float, truth: Truth) -> None:
    """The second case is the hardest: every threshold is a little too risky, and all of them are tested."""
    runs, broken, coverage = 200, 0, []
    for seed in range(runs):
        gate = fit_gate(*source(400, seed, truth), risk=risk, confidence=confidence, seed=seed)
        found, error = true_risk(gate.threshold, truth)
        broken += error > risk
        coverage.append(found)
    assert broken <= binom.ppf(0.999, runs, 1 - confidence)
    if truth is steep:  # 52 % could be answered at this risk; a gate that answers nothing keeps every promise
        assert true_risk(0.518)[1] == pytest.approx(risk, abs=0.001)
        assert np.mean(coverage) > 0.25
        assert broken > 0


def test_the_naive_threshold_breaks_what_the_gate_keeps() -> None:
    """The largest threshold whose error rate in the rows is at most the risk is over it in about half of the runs."""
    over = 0
    for seed in range(100):
        signals, wrong = source(400, seed)
        order = np.argsort(signals["doubt"].to_numpy())
        error = np.cumsum(wrong[order]) / np.arange(1, 401)
        naive = signals["doubt"].to_numpy()[order][np.flatnonzero(error <= 0.2)[-1]]
        over += true_risk(naive)[1] > 0.2
    assert over > 35


def grouped_source(n_groups: int, size: int, seed: int) -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    """Rows of a group share doubt and outcome: n_groups independent draws, each repeated."""
    signals, wrong = source(n_groups, seed)
    return (
        signals.loc[signals.index.repeat(size)].reset_index(drop=True),
        wrong.repeat(size),
        np.arange(n_groups).repeat(size),
    )


def test_rows_of_a_group_are_not_counted_as_independent() -> None:
    kept = naive = 0
    for seed in range(50):
        signals, wrong, groups = grouped_source(150, 6, seed)
        gate = fit_gate(signals, wrong, risk=0.2, groups=groups, seed=seed)
        kept += true_risk(gate.threshold)[1] <= 0.2
        naive += true_risk(fit_gate(signals, wrong, risk=0.2, seed=seed).threshold)[1] <= 0.2
        assert gate.card["n_units"] == 90
    assert kept >= binom.ppf(0.001, 50, 0.9)
    assert naive < binom.ppf(0.001, 50, 0.9)


@pytest.mark.parametrize("size", [1, 5])
def test_the_marginal_kind_keeps_its_expectation(size: int) -> None:
    answered_and_wrong, coverage = [], []
    for seed in range(150):
        signals, wrong, groups = grouped_source(60, size, seed)
        gate = fit_gate(signals, wrong, risk=0.1, kind="marginal", groups=groups)
        found, error = true_risk(gate.threshold)
        answered_and_wrong.append(found * error)
        coverage.append(found)
    mean, noise = np.mean(answered_and_wrong), np.std(answered_and_wrong) / math.sqrt(150)
    assert mean <= 0.1 + 3 * noise
    assert mean > 0.075  # it is not bought by answering nothing: the bound is tight to 1 / (n + 1)
    assert np.mean(coverage) > 0.3


def test_the_marginal_threshold_is_the_largest_that_the_rule_allows() -> None:
    signals, wrong = source(200, 3)
    gate = fit_gate(signals, wrong, risk=0.1, kind="marginal")
    doubt = signals["doubt"].to_numpy()
    fits = [t for t in doubt if ((wrong * (doubt <= t)).sum() + 1) / 201 <= 0.1]
    assert gate.threshold == max(fits)
    assert gate.confidence is None
    assert gate(signals).sum() == len(fits)
    assert "on average" in gate.guarantee
    everything = fit_gate(signals, np.zeros(200), risk=0.1, kind="marginal")
    assert everything.threshold == math.inf


def test_several_signals_are_weighed_and_the_promise_holds() -> None:
    broken, gain = 0, []
    for seed in range(25):
        rng = np.random.default_rng(seed)
        one, two = rng.normal(size=(2, 500))

        def p_wrong(one: Any, two: Any) -> Any:
            return 1 / (1 + np.exp(1 - 1.5 * one - 1.5 * two))

        wrong = (rng.random(500) < p_wrong(one, two)).astype(int)
        gate = fit_gate(pd.DataFrame({"one": one, "two": two}), wrong, risk=0.1, seed=seed)
        alone = fit_gate(pd.DataFrame({"one": one}), wrong, risk=0.1, seed=seed)
        new = pd.DataFrame(np.random.default_rng(999).normal(size=(5000, 2)), columns=["one", "two"])
        answered = gate(new)
        assert gate.doubt_name == "P(wrong)"
        broken += answered.any() and p_wrong(new["one"], new["two"])[answered].mean() > 0.1
        gain.append(answered.mean() - alone(new).mean())
    assert broken <= binom.ppf(0.999, 25, 0.1)
    assert np.mean(gain) > 0.15


# ------------------------------------------------------------------------------------------------------------- details


def test_the_path_is_a_sequence_of_exact_tests() -> None:
    signals, wrong = source(500, 1)
    gate = fit_gate(signals, wrong, risk=0.2, confidence=0.9)
    path = gate.path
    assert path["threshold"].is_monotonic_increasing
    assert path["passed"].tolist() == [True] * (len(path) - 1) + [False]
    assert gate.threshold == path["threshold"].iloc[-2]
    for row in path.itertuples():
        test = binomtest(int(row.wrong), int(row.n), 0.2, alternative="less")
        assert row.p_value == pytest.approx(test.pvalue, rel=1e-9)
        assert row.upper == pytest.approx(test.proportion_ci(0.9, "exact").high, rel=1e-6)
        assert row.passed == (row.upper <= 0.2)
    # the rows that decide are those of the second part, and the thresholds are values of the first
    first, second = random_parts(np.arange(500), (0.4, 0.6), 0)
    doubt = signals["doubt"].to_numpy()
    at = path.iloc[-2]
    assert at["n"] == (doubt[second] <= at["threshold"]).sum()
    assert at["wrong"] == wrong[second][doubt[second] <= at["threshold"]].sum()
    assert at["threshold"] in doubt[first]


def test_a_gate_that_can_answer_nothing_says_so(tmp_path: Path) -> None:
    few = fit_gate(*source(30, 0), risk=0.05)
    assert few.answers_nothing
    assert "answers nothing: a risk of 0.05 with confidence 0.9 needs at least 45 independent" in few.verdict
    bad = fit_gate(*source(600, 0, lambda d: 0 * d + 0.5), risk=0.1)
    assert bad.answers_nothing
    assert "are wrong, so their error rate may be" in bad.verdict
    marginal = fit_gate(*source(8, 0), risk=0.1, kind="marginal")
    assert "needs at least 9 independent rows" in marginal.verdict
    signals, wrong = source(50, 1)
    assert not bad(signals).any()
    check = bad.check(signals, wrong)
    assert (check.coverage, check.risk, check.kept, check.broken) == (0.0, None, None, False)
    assert "answers none" in check.verdict
    assert load_gate(bad.save(tmp_path / "gate.json")).verdict == bad.verdict


def test_a_gate_may_answer_everything() -> None:
    signals, wrong = source(400, 0, lambda d: 0 * d + 0.01)
    gate = fit_gate(signals, wrong, risk=0.1)
    assert gate.threshold == math.inf
    assert gate(pd.DataFrame({"doubt": [0.0, 99.0, np.nan]})).tolist() == [True, True, False]
    assert "every row" in gate.verdict


def test_rows_without_a_signal_are_never_answered() -> None:
    signals, wrong = source(400, 0)
    signals.loc[::7, "doubt"] = np.nan
    gate = fit_gate(signals, wrong, risk=0.3)
    assert gate(signals).sum() > 100
    assert not gate(signals)[::7].any()
    assert "58 of 400 rows have no measured signal" in gate.notes[0]
    assert gate.card["coverage"] < true_risk(gate.threshold)[0]
    both = fit_gate(signals.assign(second=np.where(np.arange(400) % 14 == 0, np.nan, 1.0)), wrong, risk=0.3)
    assert both(signals.assign(second=np.nan)).any()
    assert not both(signals.assign(second=np.nan))[::7].any()


def test_a_signal_that_points_the_wrong_way_is_named() -> None:
    signals, wrong = source(400, 0)
    gate = fit_gate(-signals, wrong, risk=0.2)
    assert "must be negated" in gate.notes[0]
    assert gate.answers_nothing
    assert fit_gate(signals, wrong, risk=0.2).notes == ()


def test_check_has_exact_intervals_and_sees_a_broken_promise() -> None:
    gate = fit_gate(*source(2000, 0), risk=0.2)
    signals, wrong = source(1000, 7)
    check = gate.check(signals, wrong)
    answered = gate(signals)
    k, n = int(wrong[answered].sum()), int(answered.sum())
    assert (check.n, check.n_answered, check.n_wrong_answered, check.n_groups) == (1000, n, k, 1000)
    assert check.risk == check.risk_rows == pytest.approx(k / n)
    assert check.marginal == pytest.approx(k / 1000)
    interval = binomtest(k, n).proportion_ci(0.95, "exact")
    assert check.risk_interval == pytest.approx((interval.low, interval.high))
    assert check.kept
    assert "was kept" in check.verdict
    shifted = gate.check(*source(1000, 8, lambda d: steep(d) + 0.2))
    assert shifted.broken
    assert not shifted.kept
    assert "is broken" in shifted.verdict
    assert GateCheck.from_dict(check.to_dict()) == check
    assert check.to_frame().set_index("figure").loc["risk", "value"] == check.risk


def test_check_weighs_groups_alike() -> None:
    gate = fit_gate(*source(2000, 0), risk=0.2)
    # one large group that is all wrong, nine of one row that are right
    signals, groups = pd.DataFrame({"doubt": np.zeros(100)}), np.array([0] * 91 + list(range(1, 10)))
    check = gate.check(signals, (groups == 0).astype(int), groups=groups)
    assert check.risk == pytest.approx(0.1)
    assert check.risk_rows == pytest.approx(0.91)
    assert check.n_groups == 10
    assert check.risk_interval is not None
    assert check.risk_interval[0] == 0
    right = gate.check(signals, np.zeros(100), groups=groups)
    assert right.risk_interval == pytest.approx(exact_interval(0, 10))  # none of ten groups, not none of 100 rows


def test_a_file_gives_the_same_gate(tmp_path: Path) -> None:
    signals, wrong = source(400, 2)
    signals["second"] = np.random.default_rng(0).normal(size=400)
    for kind in ("selective", "marginal"):
        for frame in (signals, signals[["doubt"]]):
            gate = fit_gate(frame, wrong, risk=0.2, kind=kind, groups=np.arange(400) // 2)
            again = load_gate(gate.save(tmp_path / "gate.json"))
            np.testing.assert_array_equal(again(signals), gate(signals))
            assert again.to_dict() == gate.to_dict()
            pd.testing.assert_frame_equal(again.path, gate.path)
            assert (again.verdict, again.threshold) == (gate.verdict, gate.threshold)
            assert fit_gate(frame, wrong, risk=0.2, kind=kind, groups=np.arange(400) // 2).to_dict() == gate.to_dict()
    with pytest.raises(ValueError, match="no gate"):
        AbstentionGate.from_dict({"kind": "selective"})


def test_parts_are_groups_and_random() -> None:
    codes = np.repeat(np.arange(50), 3)
    parts = random_parts(codes, (0.4, 0.3, 0.3), 0)
    assert [len(part) for part in parts] == [60, 45, 45]
    assert len({code for part in parts for code in set(codes[part])}) == 50
    assert sorted(np.concatenate(parts)) == list(range(150))
    assert not np.array_equal(parts[0], random_parts(codes, (0.4, 0.3, 0.3), 1)[0])


def test_refusals() -> None:
    signals, wrong = source(100, 0)
    with pytest.raises(ValueError, match="risk must lie between"):
        fit_gate(signals, wrong, risk=0)
    with pytest.raises(ValueError, match="confidence must lie"):
        fit_gate(signals, wrong, confidence=90)
    with pytest.raises(ValueError, match="kind must be one of"):
        fit_gate(signals, wrong, kind="split")
    with pytest.raises(ValueError, match="sum to 1"):
        fit_gate(signals, wrong, fractions=(0.4, 0.4))
    with pytest.raises(ValueError, match="1 groups make no 2 parts"):
        fit_gate(signals, wrong, groups=np.zeros(100))
    with pytest.raises(ValueError, match="give a single one"):
        fit_gate(signals.assign(second=1.0), np.zeros(100))
    with pytest.raises(ValueError, match="99 rows"):
        fit_gate(signals, wrong[1:])
    with pytest.raises(ValueError, match="no column 'doubt'"):
        fit_gate(signals, wrong, risk=0.3)(pd.DataFrame({"other": [1.0]}))


def test_pandas_inputs_with_other_labels_are_refused() -> None:
    signals, wrong = source(200, 0)
    turned = pd.Series(wrong, index=range(200, 0, -1))
    with pytest.raises(ValueError, match="signals and wrong are labelled differently"):
        fit_gate(signals, turned)
    gate = fit_gate(signals.set_axis(turned.index), turned, risk=0.3)
    assert gate.to_dict() == fit_gate(signals, wrong, risk=0.3).to_dict()
    with pytest.raises(ValueError, match="signals and groups are labelled differently"):
        gate.check(signals, wrong, groups=turned)


def test_no_rows_get_no_answers() -> None:
    signals, wrong = source(400, 0)
    for frame in (signals, signals.assign(other=wrong + signals["doubt"])):
        found = fit_gate(frame, wrong, risk=0.4)({name: [] for name in frame})
        assert (found.shape, found.dtype) == ((0,), np.dtype(bool))
    with pytest.raises(ValueError, match="at least one row"):
        fit_gate({"doubt": []}, [])


@pytest.mark.parametrize(("right", "said"), [(True, "are right.*harder"), (False, "are wrong.*easier")])
def test_too_few_wrong_answers_for_several_signals_name_the_part(right: bool, said: str) -> None:
    signals = pd.DataFrame({"a": np.arange(20.0), "b": np.arange(20.0) % 3})
    wrong = np.full(20, 0 if right else 1)
    part = r"of the part that the rule is fitted on \(8 of 20 answers\)"
    with pytest.raises(ValueError, match=f"all 8 answers {part} {said}") as error:
        fit_gate(signals, wrong)
    assert "`fractions`" in str(error.value)
    wrong[random_parts(np.arange(20), (0.4, 0.6), 0)[0][0]] = 1 - wrong[0]
    with pytest.raises(
        ValueError, match=f"{part}: 8 answers in 8 groups.*give a single one, or this part a larger share"
    ):
        fit_gate(signals, wrong)
