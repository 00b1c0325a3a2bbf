"""Can the stated probabilities be believed? Calibration figures beside their sampling noise, and temperature scaling.

`report` is what a user sees, `figures` the arithmetic behind it, `temperature` the one-number mend.
"""

from interp.bootstrap import wilson_interval
from interp.calibration.figures import Interval
from interp.calibration.report import BrierParts, CalibrationReport, calibration_report
from interp.calibration.temperature import Temperature, fit_temperature, fit_temperature_chunks

__all__ = [
    "BrierParts",
    "CalibrationReport",
    "Interval",
    "Temperature",
    "calibration_report",
    "fit_temperature",
    "fit_temperature_chunks",
    "wilson_interval",
]
