"""`run_probe_job`: from a specification to a report, done once and gone on with as often as it is stopped.

1. Read the texts and check them, before anything takes time.
2. Record the activations that are missing; score the texts' log-likelihood.
3. For each place and seed: every kind of probe under the protocol, a file for each (`tasks`).
4. Put the figures together; transfer matrices and the causal check, each a file as well.
5. Write tables, probes, page and report.json.

A step that is done is found again by the hash of what decides it. Nothing that is written holds a clock time, so a job
that was killed and a job that was not give the same bytes.
"""

import contextlib
import dataclasses
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float64

from interp import artifact
from interp.dataset import ContradictoryLabelsWarning, Dataset
from interp.engine import as_engine, fixed_threads
from interp.jobs import Progress, read_task
from interp.model import HookedTransformer
from interp.probe.joining import trained_on
from interp.probe.labelled import Labelled, tied_sentence
from interp.probe.likelihood import text_log_likelihood
from interp.probe.methods import method
from interp.probe.reading import EVERY, read_place
from interp.probe.report import ProbeReport, as_json
from interp.probe.sweep import probe_sweep
from interp.probe_job import analyses
from interp.probe_job.folder import JobFolder
from interp.probe_job.owner import settle_owner
from interp.probe_job.result import ProbeJobReport, load_probe_job_report
from interp.probe_job.spec import ProbeSpec, load_probe_spec
from interp.probe_job.stores import job_store
from interp.probe_job.tasks import open_tasks, run_places
from interp.probe_job.texts import asked_rows, load_texts
from interp.probe_job.verdict import job_verdict
from interp.probe_job.work import Job
from interp.weights.load import load

log = logging.getLogger("interp.probe_job")

LIKELIHOOD = "log_likelihood"


def run_probe_job(
    spec: ProbeSpec | str | Path | Any,
    out: str | Path | None = None,
    model: HookedTransformer | None = None,
    engine: Any = "local",
    resume: bool = True,
    replace: bool = False,
    progress: Progress | None = None,
) -> ProbeJobReport:
    """Record what is missing, fit everything that is asked for, and write the report.

    Args:
        spec: the job, or what `load_probe_spec` reads: the name of a bundled one, or a TOML file.
        out: folder of the job; None for `runs/<name>`. The same call again goes on where it was.
        model: the model, if it is loaded already; None loads the one that the job names.
        engine: where places are fitted: "local", "ray", or a `RayEngine`. With Ray the folder must be readable from every
            machine.
        resume: go on with the same job where it was; False refuses a folder that holds a job.
        replace: of a folder that holds another job, move its report, tables and probes to `earlier/<n>` and take its place;
            False refuses it.
        progress: called with (step, done, in all) between two pieces of work.

    Returns:
        The report; the same that `load_probe_job_report(out)` reads.

    Raises:
        ValueError: a specification, texts, groups, sites or kinds that do not fit; a folder that holds something else or
            another job (the message lists what differs), or in which another process works. What was finished before is kept.
    """
    if not isinstance(spec, ProbeSpec):
        spec = load_probe_spec(spec)
    as_engine(engine)
    tell = progress or (lambda _step, _done, _total: None)
    # Workers of a cluster have a working folder of their own.
    folder = JobFolder((Path("runs") / spec.name if out is None else Path(out)).absolute())
    data = _checked(load_texts(spec), spec)
    with folder.held(resume=resume):
        model = load(spec.model) if model is None else model
        settle_owner(folder, spec, data, model.fingerprint, replace=replace)
        for note in data.card["notes"]:
            log.warning("%s", note)
        with folder.timed("record"), _said_already():
            store = job_store(folder, model, data, spec, engine, lambda done, total: tell("record", done, total))
        threads = int(store.card["run"]["threads"])
        with fixed_threads(threads):  # the number that the store was begun with: it can decide the last bits
            return _run(Job(folder, spec, data, model, store, tell), engine, threads)


@contextlib.contextmanager
def _said_already() -> Iterator[None]:
    """While a recording runs: that texts carry both labels is a note of the job, and is said once."""

    def is_new(line: logging.LogRecord) -> bool:
        return "carry two labels" not in line.getMessage()

    recording = logging.getLogger("interp.recording")
    recording.addFilter(is_new)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ContradictoryLabelsWarning)
            yield
    finally:
        recording.removeFilter(is_new)


def _checked(data: Dataset, spec: ProbeSpec) -> Dataset:
    """Refuse labels, groups and columns that a sweep would refuse, before an hour of recording."""
    labelled = Labelled.of(data.take(asked_rows(data)).to_frame(), n_folds=spec.folds)
    for kind in spec.every_kind:
        labelled.need(kind, method(kind).needs)
    if spec.causal is not None:
        analyses.check_causal(spec, data)
    return data


def _run(job: Job, engine: Any, threads: int) -> ProbeJobReport:
    spec, folder = job.spec, job.folder
    finished = _finished(job)
    if finished is not None:
        return finished
    scores = {}
    if spec.controls.log_likelihood:
        with folder.timed(LIKELIHOOD):
            scores[LIKELIHOOD] = _log_likelihood(job)[_texts_of_rows(job)]
    files = [job.files(seed) for seed in spec.seeds]
    left = open_tasks(files, job.places, spec.kinds)
    with folder.timed(f"fit {len(left)} places"):
        run_places(
            job.store, job.rows, files, left, job.arguments(), engine=engine, workers=threads,
            progress=lambda done, total: job.tell("fit", done, total),
        )  # fmt: skip
    with folder.timed("figures"):
        reports = {}
        for index, each in enumerate(files):
            reports[each.seed] = probe_sweep(
                job.asked, **job.arguments(), seed=each.seed, text_scores=scores, kept=each
            )
            job.tell("figures", index + 1, len(files))
    report = _report(job, reports)
    report.save(folder.path)
    return report


def _finished(job: Job) -> ProbeJobReport | None:
    """The report that is there, if it is whole and of this very job."""
    if not job.folder.report.is_file():
        return None
    content = artifact.read_json(job.folder.report)
    if not isinstance(content, dict) or content.get("card", {}).get("key") != job.key:
        return None
    try:
        return load_probe_job_report(job.folder.path)
    except ValueError as error:  # a kill between two files: the tasks are there, and the report is made again
        log.info("the report is written again: %s", error)
        return None


def _texts_of_rows(job: Job) -> list[int]:
    """The text of each row that is read: its own, but where every token is a row."""
    if job.spec.tokens.partition(":")[0] != EVERY:
        return job.rows
    return read_place(job.asked, job.places[0], job.spec.tokens)[1]["text_index"].tolist()


def _log_likelihood(job: Job) -> Float64[np.ndarray, " row"]:
    key = artifact.hash_json([1, job.origin["model"], job.origin["texts"], artifact.provenance()])
    path = job.folder.task("log-likelihood", key, ".safetensors")
    kept = read_task(path, lambda file: artifact.load_artifact(file, LIKELIHOOD)[0][LIKELIHOOD].numpy())
    if kept is not None:
        return kept
    found = text_log_likelihood(
        job.model, job.data.texts, progress=lambda done, total: job.tell(LIKELIHOOD, done, total)
    )
    card = {"model": job.origin["model"], "texts": job.origin["texts"], "unit": "nats"}
    artifact.save_artifact(path, LIKELIHOOD, {LIKELIHOOD: torch.from_numpy(found)}, card)
    return found


def _report(job: Job, reports: dict[int, ProbeReport]) -> ProbeJobReport:
    """Everything in one value; probes and verdict are those of the first seed."""
    spec, first = job.spec, reports[job.spec.seeds[0]]
    selected = pd.concat([_selected(seed, each) for seed, each in reports.items()], ignore_index=True)
    baselines = pd.DataFrame(
        [
            {"seed": seed, "name": name, **as_json(figure)}
            for seed, each in reports.items()
            for name, figure in each.baselines.items()
        ]
    )
    with job.folder.timed("transfer"):
        transfer, sentences = analyses.transfer(job) if spec.transfer else (None, [])
    with job.folder.timed("causal"):
        use = analyses.use(job, first.probes) if spec.causal else None
    predictions = _joined(reports, lambda each: each.predictions)
    parts = _joined(reports, lambda each: each.parts)
    card = _card(job, first, predictions)
    figures = _joined(reports, lambda each: each.to_frame())
    tied = tied_sentence(first.card)
    return ProbeJobReport(
        job=spec.to_dict(),
        verdict=job_verdict(spec.to_dict(), selected, baselines, use.sentence if use else None, card, figures, parts),
        figures=figures,
        selected=selected,
        baselines=baselines,
        parts=parts,
        predictions=predictions,
        probes={kind: _with_training(first.probes[kind], job) for kind in spec.kept},
        card=card,
        transfer=transfer,
        causal=use.table if use else None,
        notes={
            "data": [*job.data.card["notes"], *([tied] if tied else [])],
            "transfer": sentences,
            "causal": use.notes if use else [],
        },
    )


def _joined(reports: dict[int, ProbeReport], table: Callable[[ProbeReport], pd.DataFrame]) -> pd.DataFrame:
    return pd.concat([table(each).assign(seed=seed) for seed, each in reports.items()], ignore_index=True)


def _selected(seed: int, report: ProbeReport) -> pd.DataFrame:
    rows = [{"seed": seed, "kind": kind, **as_json(found)} for kind, found in report.selected.items()]
    return pd.DataFrame(rows)


def _with_training(probe: Any, job: Job) -> Any:
    """A probe whose card says what it was fitted on, so that new data that shares texts or groups is refused."""
    data = job.data.take(job.rows)
    known = trained_on(data.texts, None if data.groups is None else list(map(str, data.groups)))
    return dataclasses.replace(probe, card={**probe.card, "job": job.spec.name, "trained_on": known})


def _card(job: Job, first: ProbeReport, predictions: pd.DataFrame) -> dict[str, Any]:
    is_tokens = job.spec.tokens.partition(":")[0] == EVERY
    sets = dict.fromkeys(str(example.meta["topic"]) for example in job.data)
    return {
        "key": job.key, "n": first.card["n"], "n_texts": predictions["text"].nunique() if is_tokens else None,
        "settings": job.spec.settings,
        "positives": first.card["positives"],
        "n_groups": first.card["n_groups"], "groups_from": first.card["groups_from"], "sets": list(sets),
        "model": first.card["store"]["model"], "texts": first.card["texts"], "data": job.data.hash,
        "places": job.places, "threads": int(job.store.card["run"]["threads"]), "provenance": artifact.provenance(),
    }  # fmt: skip
