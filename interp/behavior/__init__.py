"""How a model behaves, and whether it knows when it is wrong: reports over everything that the other parts measure.

`report` is what every report shares, `pieces` how long work is kept and gone on with, `loading` reads any of them. The kinds:
`text` (calibration of the next token), `questions` (errors and their signs), `trace` (how one answer formed), `sycophancy`
(the user's opinion), `grounding` (evidence from documents), `gate` (when to withhold an answer). In each, `run` puts the steps in
order and `page` says what was found.
"""

from interp.behavior.gate import GateReport, gate_report
from interp.behavior.grounding import GroundedAnswer, GroundingReport, grounded_answer, grounding_report
from interp.behavior.loading import load_behavior_report
from interp.behavior.questions import QuestionReport, question_report
from interp.behavior.report import BehaviorReport
from interp.behavior.sycophancy import SycophancyReport, sycophancy_report
from interp.behavior.text import TextCalibrationReport, text_calibration
from interp.behavior.trace import TraceReport, hallucination_trace

__all__ = [
    "BehaviorReport",
    "GateReport",
    "GroundedAnswer",
    "GroundingReport",
    "QuestionReport",
    "SycophancyReport",
    "TextCalibrationReport",
    "TraceReport",
    "gate_report",
    "grounded_answer",
    "grounding_report",
    "hallucination_trace",
    "load_behavior_report",
    "question_report",
    "sycophancy_report",
    "text_calibration",
]
