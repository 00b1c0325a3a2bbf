"""`run_steer_job`: from a specification to a report, done once and gone on with as often as it is stopped.

out/
  report.html  report.json   what was found; report.json is written last
  vector.safetensors         the vector, as it was fitted or read
  tasks/                     the vector, and a file for each setting, named by what it is and by a hash of what decides it
  job.json                   whose folder it is: the specification, the contents of its files, and its model
  earlier/<n>/               what other jobs found that this one replaced, where that was asked for
  log.jsonl                  how long things took; no result is in it

1. Read and check all files, before a model is loaded.
2. Fit the vector, or keep the one that was read; from there on it is the file in tasks/ that is measured.
3. Do the settings that are missing: each strength of the vector, of random directions, of the instruction (`tasks`).
4. `steering_experiment` puts their results together.

Nothing that is written holds a clock time, so a job that was killed and a job that was not give the same bytes.
"""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from interp import artifact, jobs
from interp.engine import as_engine
from interp.intervene.steer import WRITES
from interp.jobs import Progress, read_task
from interp.model import HookedTransformer
from interp.steer_job.inputs import Inputs, read_inputs
from interp.steer_job.spec import SteerSpec, load_steer_spec
from interp.steer_job.tasks import SettingFiles, run_settings
from interp.steer_job.vectors import fit_vector, load_vector
from interp.steering.experiment import steering_experiment
from interp.steering.plan import experiment_plan
from interp.steering.report import SteeringReport, load_steering_report
from interp.weights.load import load

OWNER_KIND = "steering job owner"
HASHES = {"inputs": "what stands in its files: vector, pairs, texts or questions", "model": "the model's weights"}
"""What stands outside the specification and decides a figure."""
FORMAT = 1


@dataclass(frozen=True)
class SteerFolder(jobs.JobFolder):
    """The folder of one sweep."""

    @property
    def vector(self) -> Path:
        """The vector that was applied."""
        return self.path / "vector.safetensors"

    def results(self) -> list[Path]:
        """The vector; settings stay where another job takes the folder, for they can be shared."""
        return [self.vector]


def run_steer_job(
    spec: SteerSpec | str | Path | Any,
    out: str | Path | None = None,
    model: HookedTransformer | None = None,
    engine: Any = "local",
    resume: bool = True,
    replace: bool = False,
    progress: Progress | None = None,
) -> SteeringReport:
    """Fit or read the vector, measure every setting, and write the report.

    Args:
        spec: the sweep, or the TOML file that `load_steer_spec` reads.
        out: folder of the job; None for `runs/<name>`. The same call again goes on where it was.
        model: the model, if it is loaded already; None loads the one that the sweep names.
        engine: where settings are measured: "local", "ray", or a `RayEngine`.
        resume: go on with the same job where it was; False refuses a folder that holds a job.
        replace: of a folder that holds another job, move what it found to `earlier/<n>` and take its place; False refuses it.
        progress: called with (step, done, in all) between two pieces of work.

    Returns:
        The report; the same that `load_steer_job_report(out)` reads.

    Raises:
        ValueError: a specification or files that do not fit, a vector of another model; a folder that holds something else
            or another job (the message lists what differs), or in which another process works. What was finished before
            is kept.
    """
    if not isinstance(spec, SteerSpec):
        spec = load_steer_spec(spec)
    as_engine(engine)
    tell = progress or (lambda _step, _done, _total: None)
    folder = SteerFolder((Path("runs") / spec.name if out is None else Path(out)).absolute())
    inputs = read_inputs(spec)
    with folder.held(resume=resume):
        model = load(spec.model) if model is None else model
        _refuse_unfit(inputs, model)
        own = {"kind": OWNER_KIND, "job": spec.to_dict(), "inputs": inputs.hash, "model": model.fingerprint}
        jobs.settle_owner(folder, own, HASHES, replace=replace)
        key = artifact.hash_json([FORMAT, own, artifact.provenance()])
        return _finished(folder, key) or _run(folder, inputs, key, model, engine, tell)


def _refuse_unfit(inputs: Inputs, model: HookedTransformer) -> None:
    """ValueError for what does not fit the model, before the folder becomes this job's and another report is moved aside."""
    if inputs.vector is not None:
        plan = experiment_plan(model, inputs.vector, **inputs.arguments())
        plan.steer(plan.base).placed(model)
    elif inputs.spec.site not in (None, WRITES):
        model.expand_sites(inputs.spec.site)


def _run(
    folder: SteerFolder, inputs: Inputs, key: str, model: HookedTransformer, engine: Any, tell: Progress
) -> SteeringReport:
    with folder.timed("vector"):
        file = _vector_file(folder, inputs, model)
        vector = load_vector(file)
        artifact.atomic_write(folder.vector, file.read_bytes())
        tell("vector", 1, 1)
    arguments = inputs.arguments()
    files = SettingFiles(folder, experiment_plan(model, vector, **arguments))
    with folder.timed("settings"):
        run_settings(
            model, vector, arguments, files, engine=engine, progress=lambda done, total: tell("settings", done, total)
        )
    with folder.timed("report"):
        report = steering_experiment(model, vector, **arguments, kept=files)
        about = {"name": inputs.spec.name, "key": key, "spec": inputs.spec.to_dict(), "notes": inputs.notes}
        return _written(folder, replace(report, card={**report.card, "job": about}))


def _vector_file(folder: SteerFolder, inputs: Inputs, model: HookedTransformer) -> Path:
    """The vector as a file of the folder, fitted or as it was read: each run has the same, whatever becomes of its source."""
    if inputs.source is None:
        spec: Any = {"read": inputs.vector_hash}
    else:
        spec = {**inputs.spec.to_dict()["vector"], "data": inputs.source.hash}
    key = artifact.hash_json([FORMAT, spec, model.fingerprint, artifact.provenance()])
    path = folder.task("vector", key, ".safetensors")
    if read_task(path, load_vector) is None:
        vector = inputs.vector if inputs.source is None else fit_vector(inputs.spec.vector, model, inputs.source)
        vector.save(path)
    return path


def _written(folder: SteerFolder, report: SteeringReport) -> SteeringReport:
    """The report as it reads, after everything was written. The page is made of what the file says, as `show` makes it."""
    draft = folder.task("report", report.card["job"]["key"], ".json")
    found = load_steering_report(report.save(draft))
    found.write_html(folder.page)
    os.replace(draft, folder.report)
    return found


def _finished(folder: SteerFolder, key: str) -> SteeringReport | None:
    """The report that is there, if it is whole and of this very job."""
    if not (folder.report.is_file() and folder.page.is_file() and folder.vector.is_file()):
        return None
    report = load_steering_report(folder.report)
    return report if report.card.get("job", {}).get("key") == key else None


def load_steer_job_report(folder: str | Path) -> SteeringReport:
    """Read the report in the folder of a finished sweep.

    Raises:
        ValueError: no finished sweep.
    """
    place = SteerFolder(Path(folder))
    if place.is_begun and not place.report.is_file():
        raise ValueError(f"the sweep in {folder} is not finished: run it again, it goes on where it was")
    if not place.report.is_file():
        where = f"{folder} holds no sweep" if place.path.is_dir() else f"there is no folder {folder}"
        raise ValueError(f"{where}: give the folder of a sweep (interp steer sweep --out)")
    return load_steering_report(place.report)
