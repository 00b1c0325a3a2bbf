"""Linear probes whose figures cannot fool their user: split by group, choices nested, controls beside every figure.

`inputs` refuses bad data, `solver` fits many logistic regressions at once, `methods` holds the kinds of probe and
chooses by cross-validation, `fit` makes one `Probe`, `folds` and `sweep` are the nested protocol, `controls` what a
probe must beat, `figures` AUROC and intervals, `report` the result.
"""

from interp.probe.controls import text_baseline
from interp.probe.figures import Figure
from interp.probe.fit import Probe, fit_probe, load_probe
from interp.probe.report import ProbeReport, Selected, load_probe_report
from interp.probe.sweep import probe_sweep

__all__ = [
    "Figure",
    "Probe",
    "ProbeReport",
    "Selected",
    "fit_probe",
    "load_probe",
    "load_probe_report",
    "probe_sweep",
    "text_baseline",
]
