"""Any behaviour report is read by its file or folder, and what is none is refused with what to do."""

import json
from pathlib import Path

import pandas as pd
import pytest

from interp import artifact
from interp.behavior.gate import GateReport
from interp.behavior.grounding import GroundingReport
from interp.behavior.loading import KINDS, load_behavior_report
from interp.behavior.questions import QuestionReport
from interp.behavior.report import BehaviorReport
from interp.behavior.sycophancy import SycophancyReport
from interp.behavior.text import TextCalibrationReport
from interp.behavior.trace import TraceReport
from interp.jobs import REPORT

ALL = (QuestionReport, TextCalibrationReport, SycophancyReport, GroundingReport, GateReport, TraceReport)


def made_up(kind: type[BehaviorReport]) -> BehaviorReport:
    """Two rows in every table: words where the kind has words, else a number and a gap."""
    tables = {
        name: pd.DataFrame({column: ["a", "b"] if column in kind.WORDS else [0.5, float("nan")] for column in columns})
        for name, columns in kind.TABLES.items()
    }
    return kind(tables, {"figure": 1.5}, {"model": "made up"}, ("A note.",))


@pytest.mark.parametrize("kind", ALL)
def test_every_kind_is_read_as_itself(kind: type[BehaviorReport], tmp_path: Path) -> None:
    report = made_up(kind)
    report.save(tmp_path / "file.json")
    report.save(tmp_path / "done" / REPORT)
    for place in (tmp_path / "file.json", str(tmp_path / "file.json"), tmp_path / "done"):
        found = load_behavior_report(place)
        assert type(found) is kind
        assert found.to_dict() == report.to_dict()
        for name, table in report.tables.items():
            pd.testing.assert_frame_equal(found.tables[name], table, check_dtype=False)


def test_no_kind_is_forgotten_and_no_two_have_one_name() -> None:
    assert list(KINDS.values()) == list(ALL)
    assert {kind for kind in BehaviorReport.__subclasses__() if kind.__module__.startswith("interp.")} == set(ALL)


def test_an_unfinished_folder_says_how_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "job" / "tasks").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"job is not finished: run it again, it goes on where it was"):
        load_behavior_report(tmp_path / "job")
    made_up(GateReport).save(tmp_path / "job" / REPORT)
    assert isinstance(load_behavior_report(tmp_path / "job"), GateReport)


def test_what_is_no_behaviour_report_is_refused(tmp_path: Path) -> None:
    for place in (tmp_path / "nothing.json", tmp_path / "nowhere" / REPORT, tmp_path):
        with pytest.raises(ValueError, match="there is no file"):
            load_behavior_report(place)
    for found in ({"kind": "calibration report", "format": 1}, {"kind": ["gate report"]}, {}, ["gate report"], None):
        (tmp_path / "other.json").write_text(json.dumps(found))
        with pytest.raises(ValueError, match=r"holds no behaviour report: those are question report, text calibration"):
            load_behavior_report(tmp_path / "other.json")
    (tmp_path / "broken.json").write_text('{"kind": "gate rep')
    with pytest.raises(ValueError, match="is not valid JSON"):
        load_behavior_report(tmp_path / "broken.json")


def test_a_damaged_report_and_a_newer_one_are_refused(tmp_path: Path) -> None:
    path = made_up(GateReport).save(tmp_path / "gate.json")
    card = artifact.read_json(path)
    artifact.write_json(path, card | {"format": 99})
    with pytest.raises(ValueError, match="newer than the 1 read here: update interp"):
        load_behavior_report(path)
    del card["tables"]["curve"]
    artifact.write_json(path, card)
    with pytest.raises(ValueError, match="is a damaged gate report"):
        load_behavior_report(path)
