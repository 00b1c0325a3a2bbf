"""Steering sweeps as jobs: a vector, what it is measured on and a grid of strengths, by one command that can be stopped.

`spec` says what is asked, from a TOML file or from options; `vectors` makes or reads the vector, `inputs` reads what is
measured and leaves out what the vector was fitted on. `tasks` keeps a file for each setting, a strength of the vector, of a
random direction or an instruction; `run` puts these steps in order and goes on where it was stopped. `rerun` measures a
finished report once more and says what stayed the same.
"""

from interp.steer_job.rerun import RerunReport, rerun_steering
from interp.steer_job.run import load_steer_job_report, run_steer_job
from interp.steer_job.spec import MeasureSpec, SteerSpec, VectorSpec, load_steer_spec
from interp.steer_job.vectors import fit_vector, load_vector

__all__ = [
    "MeasureSpec",
    "RerunReport",
    "SteerSpec",
    "VectorSpec",
    "fit_vector",
    "load_steer_job_report",
    "load_steer_spec",
    "load_vector",
    "rerun_steering",
    "run_steer_job",
]
