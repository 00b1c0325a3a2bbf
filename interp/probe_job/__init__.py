"""Batch jobs of probes: a question as TOML, and everything from recording to report by one command.

`spec` reads the question, `texts` the statements, `stores` finds or records activations, `tasks` fits place by place,
`analyses` asks about transfer and use, `verdict` says the answer and `page` shows it. `run` puts these steps of a `Job`
(`work`) in order, and goes on where it was stopped. `evaluate` reads new data with a kept probe, `compare` sets two jobs
side by side.
"""

from interp.probe_job.compare import JobComparison, compare_probe_jobs
from interp.probe_job.evaluate import ProbeEvaluation, evaluate_probe
from interp.probe_job.result import ProbeJobReport, load_probe_job_report
from interp.probe_job.run import run_probe_job
from interp.probe_job.spec import CausalSpec, ControlSpec, ProbeSpec, TextSpec, TransferSpec, load_probe_spec

__all__ = [
    "CausalSpec",
    "ControlSpec",
    "JobComparison",
    "ProbeEvaluation",
    "ProbeJobReport",
    "ProbeSpec",
    "TextSpec",
    "TransferSpec",
    "compare_probe_jobs",
    "evaluate_probe",
    "load_probe_job_report",
    "load_probe_spec",
    "run_probe_job",
]
