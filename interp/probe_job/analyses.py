"""What a job asks beyond the sweep: does a probe hold on other texts, and does the model use what it reads?

Each answer is a file of its own, found again by the hash of what decides it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import pandas as pd

from interp import artifact
from interp.dataset import Dataset
from interp.jobs import read_task
from interp.probe.causal import FEW_SHOT, MIN_GROUPS, probe_effect
from interp.probe.completions import completion_pairs
from interp.probe.effect import ProbeEffect, load_probe_effect
from interp.probe.transfer import probe_transfer
from interp.probe.transfer_report import TransferReport, load_transfer_report
from interp.probe.value import Probe
from interp.probe_job.spec import ProbeSpec, TransferSpec
from interp.probe_job.texts import asked_rows, control_topics
from interp.probe_job.work import Job


def transfer(job: Job) -> tuple[pd.DataFrame, list[str]]:
    """The matrices of every column, as one table, and the sentences about them."""
    tables, sentences = [], []
    for asked in job.spec.transfer:
        for by in asked.by:
            report = _matrix(job, asked, by)
            tables.append(report.selected.assign(by=by))
            sentences += [f"By {by}, {line}" for line in report.explain()]
    return pd.concat(tables, ignore_index=True), sentences


def _matrix(job: Job, asked: TransferSpec, by: str) -> TransferReport:
    spec = job.spec
    # A control has no place where polarity or language divide the rows: its label is not theirs.
    controls = control_topics(job.data) if by == "topic" else []
    settings = {
        "by": by, "sites": list(asked.sites or job.places), "kinds": list(asked.kinds or spec.kinds), "tokens": spec.tokens,
        "C": list(spec.C), "n_folds": max(3, spec.folds), "seed": spec.seeds[0], "n_boot": spec.n_boot,
        "train_sets": list(asked.train) or None, "test_sets": list(asked.test) or None, "controls": controls,
    }  # fmt: skip
    key = artifact.hash_json([1, job.origin, settings, artifact.provenance()])
    folder = job.folder.task(f"transfer by {by}", key, "")
    found = read_task(folder, load_transfer_report)
    if found is not None:
        return found
    store, step = job.store if controls else job.asked, f"transfer by {by}"
    probe_transfer(store, **settings, progress=lambda done, total: job.tell(step, done, total)).save(folder)
    return load_transfer_report(folder)


@dataclass(frozen=True, eq=False)
class Use:
    """What the causal check found."""

    table: pd.DataFrame
    """The probe's direction beside random ones, a row for each measure and strength."""
    sentence: str
    """For the verdict."""
    notes: list[str] = field(default_factory=list)
    """For its section."""


def use(job: Job, probes: Mapping[str, Probe]) -> Use:
    """Whether adding the direction of the first kind that has one moves the model's own judgement."""
    probe = next((probes[kind] for kind in job.spec.kinds if probes[kind].direction is not None), None)
    if probe is None:
        said = f"Whether it is used cannot be asked: no kind with a direction was fitted ({', '.join(job.spec.kinds)})."
        return Use(pd.DataFrame(), said, [said])
    found = _effect(job, probe)
    # Not every effect is a use: the verdict says which.
    notes = found.summary().split("\n")
    # Whether it is decodable the job says by its own criterion.
    said = re.sub("^decodable(, | and |; )", "", found.verdict)
    return Use(found.band, f"{said[0].upper()}{said[1:]} ({probe.kind}).", notes)


def check_causal(spec: ProbeSpec, data: Dataset) -> None:
    """Refuse texts that the causal check cannot use, before an hour of recording.

    Raises:
        ValueError: too few pairs of a true and a false statement that begin alike.
    """
    assert spec.causal is not None
    try:
        pairs = completion_pairs(data.take(asked_rows(data)), max_pairs=spec.causal.max_pairs)
    except ValueError as error:
        raise ValueError(f"the causal check: {error}. Without such pairs, set causal = false") from None
    n_groups = len({pair.group for pair in pairs})
    least = MIN_GROUPS + (FEW_SHOT.n_shots if spec.causal.ask else 0)
    if n_groups < least:
        raise ValueError(
            f"the causal check has {n_groups} groups of pairs, and needs {least}: give more texts, "
            f"{'set causal.ask = false, ' if spec.causal.ask else ''}or causal = false"
        )


def _effect(job: Job, probe: Probe) -> ProbeEffect:
    asked = job.spec.causal
    assert asked is not None
    settings = {"strengths": list(asked.strengths), "n_random": asked.n_random, "n_boot": job.spec.n_boot}
    assert probe.direction is not None
    identity = [probe.site, probe.head, probe.direction.tolist(), probe.card.get("figure")]
    key = artifact.hash_json(
        [1, job.origin, settings, asked.max_pairs, asked.ask, job.spec.seeds[0], identity, artifact.provenance()]
    )
    path = job.folder.task("causal", key, ".json")
    found = read_task(path, load_probe_effect)
    if found is None:
        seed = job.spec.seeds[0]
        found = probe_effect(
            job.model,
            probe,
            completion_pairs(job.data.take(job.rows), max_pairs=asked.max_pairs, seed=seed),
            **settings,
            reference=job.store if probe.site in job.store.sites else None,
            judgement=FEW_SHOT if asked.ask else None,
            seed=seed,
            progress=lambda done, total: job.tell("causal", done, total),
        )
        found.save(path)
    return load_probe_effect(path)
