"""Calibration of every class: by hand, against the binary report, and against draws of a calibrated source."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import log_loss

from interp.calibration import calibration_report
from interp.calibration.classwise import CLASS_COLUMNS, ClasswiseCalibration, _Cells, classwise_calibration
from interp.calibration.figures import equal_mass_bins, equal_width_bins

QUICK = {"n_boot": 0, "n_null": 0}


def source(n: int, power: float = 1.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of four classes, and labels drawn from them; with a power they are stated too sharp."""
    rng = np.random.default_rng(seed)
    true = rng.dirichlet([1.5, 1.0, 0.7, 0.4], n)
    labels = (rng.random((n, 1)) >= true.cumsum(1)[:, :-1]).sum(1)
    stated = true**power
    return stated / stated.sum(1, keepdims=True), labels


def test_by_hand() -> None:
    p = [[0.7, 0.2, 0.1], [0.6, 0.3, 0.1], [0.2, 0.2, 0.6], [0.1, 0.8, 0.1]]
    found = classwise_calibration(probabilities=p, labels=[0, 1, 2, 1], n_bins=2, classes=["a", "b", "c"], **QUICK)
    # Equal width: [0, .5), [.5, 1]. Class a: (.2 + .1 - 0) and (.7 + .6 - 1); b: (.2 + .3 + .2 - 1) and (.8 - 1); c alike.
    expected = [(0.3 + 0.3) / 4, (0.3 + 0.2) / 4, (0.3 + 0.4) / 4]
    np.testing.assert_allclose(found.classes["ece"], expected)
    assert found.sce == pytest.approx(np.mean(expected))
    assert found.accuracy == 0.75
    assert found.top.meaning == "p_top"
    assert found.top.mean_p == pytest.approx((0.7 + 0.6 + 0.6 + 0.8) / 4)
    assert found.nll == pytest.approx(-np.mean(np.log([0.7, 0.3, 0.6, 0.8])))
    assert found.classes["class"].tolist() == ["a", "b", "c"]
    assert found.classes["n"].tolist() == [1, 2, 1]


def test_a_class_is_a_binary_report_and_two_classes_are_one() -> None:
    p, labels = source(400)
    found = classwise_calibration(probabilities=p, labels=labels, **QUICK)
    for k in range(4):
        alone = calibration_report(p_true=p[:, k], y=labels == k, **QUICK)
        row = found.classes.iloc[k]
        assert (row["ece"], row["ece_mass"]) == pytest.approx((alone.ece, alone.ece_mass), abs=1e-12)
    assert found.ace == pytest.approx(found.classes["ece_mass"].mean())
    assert found.nll == pytest.approx(log_loss(labels, p), abs=1e-12)
    one = np.round(p[:, 0], 6) * 0.99 + 0.004321  # no bin edge, which a mirror image would put into the other bin
    two = classwise_calibration(probabilities=np.stack([1 - one, one], 1), labels=labels == 0, **QUICK)
    binary = calibration_report(p_true=one, y=labels == 0, **QUICK)
    assert two.sce == pytest.approx(binary.ece, abs=1e-9)
    assert two.brier == pytest.approx(2 * binary.brier, abs=1e-12)


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 2)), min_size=1, max_size=20),
    st.randoms(use_true_random=False),
    st.integers(1, 12),
)
def test_order_and_duplication_change_nothing(rows: list[tuple[int, int, int]], random: Any, n_bins: int) -> None:
    again = rows * 3
    random.shuffle(again)
    reports = []
    for data in (rows, again):
        p = np.array([(a, b, 8 - a - b) for a, b, _ in data]) / 8  # many ties, exact 0 and 1 among them
        reports.append(classwise_calibration(probabilities=p, labels=[c for *_, c in data], n_bins=n_bins, **QUICK))
    first, second = reports
    for name in ("ace", "sce", "brier", "nll", "accuracy"):
        assert getattr(first, name) == pytest.approx(getattr(second, name), abs=1e-9), name
    assert 0 <= first.ace <= 1
    assert 0 <= first.sce <= 1
    assert 0 <= first.brier <= 2
    json.dumps(first.to_dict(), allow_nan=False)


@pytest.mark.parametrize("n", [100, 1000])
def test_a_calibrated_source_lies_in_its_band(n: int) -> None:
    inside = {"ace": 0, "sce": 0}
    designs, runs = 8, 250
    for design in range(designs):
        p, labels = source(n, seed=design)
        rng = np.random.default_rng(n + design)
        bands = classwise_calibration(probabilities=p, labels=labels, n_boot=0, n_null=1000, seed=design).null_bands
        drawn = (rng.random((runs, n, 1)) >= p.cumsum(1)[:, :-1]).sum(2)
        for name, rule in (("ace", equal_mass_bins), ("sce", equal_width_bins)):
            cells = _Cells.of(p, 15, rule)
            values = cells.errors(cells.counts(drawn), n).mean(1)
            inside[name] += int(((bands[name][0] <= values) & (values <= bands[name][1])).sum())
    for name, count in inside.items():
        assert 0.93 <= count / (designs * runs) <= 0.97, (name, count)


def test_verdicts_and_intervals() -> None:
    p, labels = source(600)
    calibrated = classwise_calibration(probabilities=p, labels=labels, n_boot=200, n_null=300)
    assert not calibrated.says_miscalibrated
    assert "no sign of miscalibration" in calibrated.verdict
    assert calibrated.intervals["ace"][0] == 0.0
    assert calibrated.intervals["nll"][0] < calibrated.nll < calibrated.intervals["nll"][1]
    q, labels = source(600, power=2.5)
    boastful = classwise_calibration(probabilities=q, labels=labels, n_boot=200, n_null=300)
    assert boastful.says_miscalibrated
    assert 0 < boastful.intervals["ace"][0] < boastful.ace
    frame = boastful.to_frame().set_index("figure")
    assert (frame.loc["ace", "null_low"], frame.loc["ace", "null_high"]) == boastful.null_bands["ace"]
    doubled: dict[str, Any] = {"probabilities": np.repeat(q, 4, 0), "labels": np.repeat(labels, 4), "n_null": 0}
    grouped = classwise_calibration(**doubled, groups=np.repeat(np.arange(600), 4), n_boot=200)
    assert grouped.intervals["nll"] == pytest.approx(boastful.intervals["nll"], abs=1e-9)
    with pytest.raises(ValueError, match="n_null"):
        _ = grouped.says_miscalibrated
    assert "cannot be told" in grouped.verdict


def test_what_is_missing_is_said_and_saved(tmp_path: Path) -> None:
    p = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])
    found = classwise_calibration(probabilities=p, labels=torch.tensor([1, 0, 2]), groups=["g"] * 3, n_null=50)
    assert found.nll == math.inf
    assert found.intervals == {}
    said = " ".join(found.notes)
    for part in ("one group only", "exactly 0", "in 1 of 3 rows two classes"):
        assert part in said
    again = ClasswiseCalibration.load(found.save(tmp_path / "c.json"))
    assert again == found
    assert again.classes.equals(found.classes)
    assert tuple(found.classes.columns) == CLASS_COLUMNS
    bare = classwise_calibration(probabilities=p, labels=[1, 0, 2], **QUICK)
    again = ClasswiseCalibration.from_dict(json.loads(json.dumps(bare.to_dict(), allow_nan=False)))
    assert again == bare
    assert again.classes.equals(bare.classes)
    (tmp_path / "c.json").write_text("{}")
    with pytest.raises(ValueError, match="no classwise calibration"):
        ClasswiseCalibration.load(tmp_path / "c.json")
    with pytest.raises(ValueError, match="missing or unknown keys"):
        ClasswiseCalibration.from_dict({"n": 1})


def test_half_precision_sums_are_accepted() -> None:
    p, labels = source(300)
    half = torch.tensor(p).half()
    assert classwise_calibration(probabilities=half, labels=labels, n_boot=0, n_null=20).n == 300


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"probabilities": [0.1, 0.9], "labels": [0, 1]}, r"shape \[n, class\]"),
        ({"probabilities": [[0.1], [0.9]], "labels": [0, 0]}, "two classes"),
        ({"probabilities": [[0.3, 0.3]], "labels": [0]}, "sums to 0.6"),
        ({"probabilities": [[2.0, -1.0]], "labels": [0]}, r"\[0, 1\]"),
        ({"probabilities": [[math.nan, 0.5]], "labels": [0]}, "NaN"),
        ({"probabilities": [["a", "b"]], "labels": [0]}, "numbers"),
        ({"probabilities": [[0.5, 0.5]], "labels": [2]}, r"0\.\.1"),
        ({"probabilities": [[0.5, 0.5]], "labels": [0.5]}, r"0\.\.1"),
        ({"probabilities": [[0.5, 0.5]], "labels": [0, 1]}, "1 rows of probabilities and 2 labels"),
        ({"probabilities": [[0.5, 0.5]], "labels": [0], "classes": ["a"]}, "2 different names"),
        ({"probabilities": [[0.5, 0.5]], "labels": [0], "groups": [1, 2]}, "2 entries for 1 rows"),
        ({"probabilities": [[0.5, 0.5]], "labels": [0], "n_bins": 0}, "n_bins"),
    ],
)
def test_bad_input_is_refused_with_the_mend(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        classwise_calibration(**arguments)
