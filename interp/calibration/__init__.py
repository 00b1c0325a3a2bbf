"""Can the stated probabilities be believed, and do signs of doubt tell wrong answers from right ones?

1. `report` is what a user sees of a set of probabilities, `figures` the arithmetic behind it; `classwise` takes all classes.
2. `temperature` mends logits by one number, `recalibration` probabilities by a map; `recalibrated` judges maps on other rows.
3. `ranking` and `selective` hold signals of doubt against errors, `stacking` says which adds to which, and `gate` is a rule
   that withholds answers and keeps a risk that is named. `ordering` and `checked` are what these share.
"""

from interp.bootstrap import wilson_interval
from interp.calibration.classwise import ClasswiseCalibration, classwise_calibration
from interp.calibration.figures import Interval
from interp.calibration.gate import AbstentionGate, fit_gate, load_gate
from interp.calibration.gate_check import GateCheck
from interp.calibration.ranking import SignalComparison, compare_signals, rank_signals
from interp.calibration.recalibrated import RecalibrationReport, recalibrate
from interp.calibration.recalibration import Recalibration, fit_recalibration, load_recalibration
from interp.calibration.report import BrierParts, CalibrationReport, calibration_report
from interp.calibration.selective import SelectiveReport, selective_report
from interp.calibration.stacking import SignalStack, StackedSignals, fit_stack, stack_signals
from interp.calibration.temperature import Temperature, fit_temperature, fit_temperature_chunks

__all__ = [
    "AbstentionGate",
    "BrierParts",
    "CalibrationReport",
    "ClasswiseCalibration",
    "GateCheck",
    "Interval",
    "Recalibration",
    "RecalibrationReport",
    "SelectiveReport",
    "SignalComparison",
    "SignalStack",
    "StackedSignals",
    "Temperature",
    "calibration_report",
    "classwise_calibration",
    "compare_signals",
    "fit_gate",
    "fit_recalibration",
    "fit_stack",
    "fit_temperature",
    "fit_temperature_chunks",
    "load_gate",
    "load_recalibration",
    "rank_signals",
    "recalibrate",
    "selective_report",
    "stack_signals",
    "wilson_interval",
]
