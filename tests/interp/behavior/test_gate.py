"""Reports of gates on planted answers: parts apart, what is promised, what is said, and the page."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from interp.behavior.gate import GateReport, gate_report
from interp.calibration.gate import random_parts
from interp.plot import to_svg
from interp.plot.gate import gate_curve


def answers(n_groups: int = 400, size: int = 2, seed: int = 0, base: float = -2.0) -> Any:
    """Two signals that know half of the truth each, the first of them the same within a group."""
    rng = np.random.default_rng(seed)
    groups = np.arange(n_groups).repeat(size)
    one, two = rng.normal(size=n_groups).repeat(size), rng.normal(size=n_groups * size)
    wrong = (rng.random(len(groups)) < 1 / (1 + np.exp(-base - 2 * one - 2 * two))).astype(int)
    return pd.DataFrame({"entropy": one, "doubt": two}), wrong, groups


@pytest.fixture(scope="module")
def report() -> GateReport:
    signals, wrong, groups = answers()
    return gate_report(signals, wrong, risk=0.1, groups=groups, n_boot=200, card={"model": "planted"})


def test_figures_are_of_the_third_part_alone(report: GateReport) -> None:
    signals, wrong, groups = answers()
    third = random_parts(groups, (0.4, 0.3, 0.3), 0)[2]
    answered = report.gate(signals.iloc[third])
    check = report.check
    assert (check.n, check.n_groups) == (240, 120)
    assert check.n_answered == answered.sum() > 40
    assert check.n_wrong_answered == wrong[third][answered].sum()
    other = wrong.copy()
    other[third] = 1 - other[third]
    turned = gate_report(signals, other, risk=0.1, groups=groups, n_boot=200)
    assert turned.gate.to_dict() == report.gate.to_dict()  # what checks has no say in the gate
    assert turned.check.broken
    assert "is broken" in turned.summary()


def test_the_curve_ends_at_all_answers_and_meets_the_gate(report: GateReport) -> None:
    curve = report.tables["curve"]
    assert curve["coverage"].is_monotonic_increasing
    assert curve["coverage"].iloc[-1] == pytest.approx(1)
    assert curve["value"].iloc[-1] == pytest.approx(report.check.error_rate)
    assert (curve["low"] <= curve["value"] + 1e-9).all()
    assert (curve["value"] <= curve["high"] + 1e-9).all()
    near = np.interp(report.check.coverage, curve["coverage"], curve["value"])
    assert near == pytest.approx(report.check.risk, abs=0.02)


def test_more_risk_answers_more(report: GateReport) -> None:
    risks = report.to_frame()
    assert risks["named"].tolist().count(True) == 1
    assert risks["coverage"].is_monotonic_increasing
    assert risks["answers_all"].iloc[-1]
    assert not risks["answers_all"].iloc[0]
    assert np.isnan(risks["found"].iloc[0])
    assert np.isnan(risks["threshold"].iloc[-1])


def test_summary_leads_with_the_finding(report: GateReport) -> None:
    text = report.summary()
    assert text.startswith("Of 240 held-out rows in 120 groups the gate answers")
    assert "With probability 0.9, the error rate of a random row of a new group" in text
    assert "120 groups decide, so no risk under 0.019 can be promised" in text


def test_a_report_of_a_gate_that_answers_nothing(tmp_path: Path) -> None:
    signals, wrong, groups = answers(60, 1, base=1.0)
    found = gate_report(signals, wrong, risk=0.02, groups=groups, n_boot=100)
    assert found.gate.answers_nothing
    assert found.summary().startswith("The gate answers nothing: a risk of 0.02 with confidence 0.9 needs at least 114")
    assert "it can hardly contradict" in found.summary()
    page = found.write_html(tmp_path / "page.html").read_text()
    assert "no point is marked" in page
    hopeless = gate_report(signals, wrong, risk=0.02, risks=(), groups=groups, n_boot=100)
    assert "No gate for any other risk" in hopeless.summary()
    with pytest.raises(ValueError, match="no promises to draw"):
        hopeless.plot("risks")
    hopeless.write_html(tmp_path / "page.html")


def test_file_page_and_charts(report: GateReport, tmp_path: Path) -> None:
    again = GateReport.load(report.save(tmp_path / "gate.json"))
    assert again.to_dict() == report.to_dict()
    assert again.summary() == report.summary()
    signals, _, _ = answers(seed=3)
    np.testing.assert_array_equal(again.gate(signals), report.gate(signals))
    page = again.write_html(tmp_path / "page.html").read_text()
    for words in (
        "Errors and coverage",
        "named risk 0.1",
        "chosen: answers",
        "planted",
        "entropy",
        "gate_report(signals",
    ):
        assert words in page
    assert "named risk" in to_svg(report.plot("risks"))
    with pytest.raises(ValueError, match="there are curve and risks"):
        report.plot("layers")
    with pytest.raises(ValueError, match="no column"):
        gate_curve(pd.DataFrame({"coverage": [0.5]}), risk=0.1)


def test_marginal_and_single_signal(tmp_path: Path) -> None:
    signals, wrong, _ = answers(300, 1)
    found = gate_report(signals[["doubt"]], wrong, risk=0.1, kind="marginal", n_boot=100)
    assert found.card["n_fit"] == 0  # nothing to fit: those rows decide as well
    assert found.card["n_decide"] == 210
    assert "share answered and wrong" in found.summary()
    assert "rows decide, so no risk under 0.00474" in found.summary()
    again = GateReport.load(found.save(tmp_path / "gate.json"))
    assert again.to_dict() == found.to_dict()
    assert "A single signal" in again.write_html(tmp_path / "page.html").read_text()


def test_refusals() -> None:
    signals, wrong, groups = answers(30)
    with pytest.raises(ValueError, match="three shares"):
        gate_report(signals, wrong, fractions=(0.5, 0.5))
    with pytest.raises(ValueError, match="has 59 entries"):
        gate_report(signals, wrong, groups=groups[1:])
    with pytest.raises(ValueError, match="risk must lie"):
        gate_report(signals, wrong, risk=1.5)


def test_labels_notes_and_plain_numbers(tmp_path: Path) -> None:
    signals, wrong, groups = answers(60)
    with pytest.raises(ValueError, match="signals and wrong are labelled differently"):
        gate_report(signals, pd.Series(wrong).sample(frac=1, random_state=0))
    with pytest.raises(ValueError, match="put it into a list"):
        gate_report(signals, wrong, notes="chance")
    found = gate_report(
        signals, wrong, groups=groups, risk=np.float64(0.2), risks=(0.3,), n_boot=100, notes=["Take care."]
    )
    assert found.notes[0] == "Take care."
    page = found.write_html(tmp_path / "gate.html").read_text()
    assert "Take care." in page
    assert "np.float64" not in page
    with pytest.raises(ValueError, match=r"got \[0\.5, 0\.5\]$"):
        gate_report(signals, wrong, fractions=np.array([0.5, 0.5]).tolist())
