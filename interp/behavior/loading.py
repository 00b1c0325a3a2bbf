"""Any behaviour report by its file or folder."""

import os
from pathlib import Path
from typing import Any

from interp import artifact
from interp.behavior.gate import GateReport
from interp.behavior.grounding import GroundingReport
from interp.behavior.questions import QuestionReport
from interp.behavior.report import BehaviorReport
from interp.behavior.sycophancy import SycophancyReport
from interp.behavior.text import TextCalibrationReport
from interp.behavior.trace import TraceReport
from interp.jobs import REPORT

KINDS: dict[str, type[BehaviorReport]] = {
    kind.KIND: kind
    for kind in (QuestionReport, TextCalibrationReport, SycophancyReport, GroundingReport, GateReport, TraceReport)
}


def load_behavior_report(path: str | os.PathLike[str] | Any) -> BehaviorReport:
    """Read a behaviour report of any kind.

    Args:
        path: the JSON file that `save` wrote, or the folder of a finished report (`out=`).

    Raises:
        ValueError: nothing there, an unfinished report, or another kind of file.
    """
    place = Path(path)
    if place.is_dir():
        if (place / "tasks").is_dir() and not (place / REPORT).is_file():
            raise ValueError(f"the report in {place} is not finished: run it again, it goes on where it was")
        place = place / REPORT
    found = artifact.read_json(place)
    name = found.get("kind") if isinstance(found, dict) else None
    kind = KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ValueError(f"{place} holds no behaviour report: those are {', '.join(KINDS)}")
    return kind.load(place)
