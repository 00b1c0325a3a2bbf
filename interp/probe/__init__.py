"""Probes whose figures cannot fool their user: split by group, choices nested, controls beside every figure.

1. Rows: `inputs` and `labelled` refuse bad data, `reading` and `joining` take rows from a store, `linting` says what a data
   set would do to a probe.
2. Kinds: `solver` fits many logistic regressions at once, `kinds/` holds one file a kind, `methods` their names and the
   choice of a strength, `value` the `Probe`, `fit` makes one, `erase` takes a concept out.
3. Protocol: `folds` and `plan` divide the groups, `nested` and `place` fit one place, `sweep` all of them, `transfer` from one
   set of rows to another. `controls` is what a probe must beat, `figures` AUROC and intervals, `report` the result.
4. Use: `causal` asks whether the model uses what a probe reads, `live` reads while the model runs.
"""

from interp.probe.causal import probe_effect
from interp.probe.choice import ChoiceFigure, choice_baseline
from interp.probe.completions import CompletionPair, completion_pairs
from interp.probe.controls import text_baseline
from interp.probe.effect import ProbeEffect, load_probe_effect
from interp.probe.erase import Eraser, fit_eraser, load_eraser
from interp.probe.figures import Figure
from interp.probe.fit import fit_probe
from interp.probe.joining import check_texts, join_labels
from interp.probe.likelihood import text_log_likelihood
from interp.probe.linting import LintReport, lint_dataset, load_lint_report
from interp.probe.live import Flag, Watch, score_tokens, watch_probe
from interp.probe.reading import TokenRows, expand_places, read_place
from interp.probe.report import ProbeReport, Selected, load_probe_report
from interp.probe.sweep import probe_sweep
from interp.probe.transfer import probe_transfer
from interp.probe.transfer_report import TransferReport, load_transfer_report
from interp.probe.value import Probe, load_probe

__all__ = [
    "ChoiceFigure",
    "CompletionPair",
    "Eraser",
    "Figure",
    "Flag",
    "LintReport",
    "Probe",
    "ProbeEffect",
    "ProbeReport",
    "Selected",
    "TokenRows",
    "TransferReport",
    "Watch",
    "check_texts",
    "choice_baseline",
    "completion_pairs",
    "expand_places",
    "fit_eraser",
    "fit_probe",
    "join_labels",
    "lint_dataset",
    "load_eraser",
    "load_lint_report",
    "load_probe",
    "load_probe_effect",
    "load_probe_report",
    "load_transfer_report",
    "probe_effect",
    "probe_sweep",
    "probe_transfer",
    "read_place",
    "score_tokens",
    "text_baseline",
    "text_log_likelihood",
    "watch_probe",
]
