"""`ProbeJobReport`: what a job found, as tables, sentences, probes, and the files of its folder."""

from pathlib import Path
from typing import Any

import pandas as pd

from interp import artifact
from interp.jobs import file_hash
from interp.probe.fit import Probe, load_probe
from interp.probe_job import page
from interp.probe_job.fields import JobTables
from interp.probe_job.folder import JobFolder
from interp.report import Section, write_report

KIND = "probe job"
FORMAT = 1
TABLES = ("figures", "selected", "baselines", "parts", "predictions", "transfer", "causal")
"""Fields that are tables; the last two may be missing."""


class ProbeJobReport(JobTables):
    """Everything that a job found; see `run_probe_job`. Its tables: `interp.probe_job.fields`."""

    def probe(self, kind: str | None = None) -> Probe:
        """A kept probe; None for the kind that the verdict is about."""
        kind = kind or self.job["kinds"][0]
        if kind not in self.probes:
            raise ValueError(f"this job kept no {kind!r} probe: it kept {', '.join(self.probes) or 'none'}")
        return self.probes[kind]

    def to_frame(self) -> pd.DataFrame:
        """A row for each place, kind and seed; the figures to quote are not its largest ones but `selected`."""
        return self.figures.copy()

    def summary(self) -> str:
        """The question, the verdict, and what stands beside it."""
        lines = [self.job["question"], *self.verdict, *self.notes.get("transfer", ())]
        return "\n".join(lines + [f"Note: {line}" for line in self.notes.get("data", ())])

    def sections(self) -> list[Section]:
        """For `interp.report.write_report`."""
        return page.sections(self)

    def write_html(self, path: str | Path) -> Path:
        """One page that needs no network."""
        return write_report(path, page.title(self), page.sections(self), page.facts(self), summary=page.header(self))

    def save(self, folder: str | Path) -> Path:
        """Write tables, probes, page and, last, report.json; `load_probe_job_report` reads them.

        Each file is replaced whole. Until report.json is, the folder does not count as finished.
        """
        place = JobFolder(Path(folder))
        place.path.mkdir(parents=True, exist_ok=True)
        for kind, probe in self.probes.items():
            probe.save(place.probe(kind))
        for old in sorted(place.probe("").parent.glob("*.safetensors")):
            if old.stem not in self.probes:
                old.unlink()
        hashes = {}
        for name in TABLES:
            frame, file = getattr(self, name), place.table(FILES.get(name, name))
            if frame is None:
                file.unlink(missing_ok=True)
                continue
            artifact.atomic_write(file, frame.to_parquet(index=False))
            hashes[name] = file_hash(file)
        self.write_html(place.page)
        content = {
            "kind": KIND, "format": FORMAT, "job": self.job, "verdict": list(self.verdict), "notes": self.notes,
            "card": self.card, "figures": _records(self.table()), "tables": hashes, "probes": list(self.probes),
        }  # fmt: skip
        artifact.write_json(place.report, content)
        return place.path


FILES: dict[str, str] = {"figures": "probes"}
"""Names of files that are not those of the fields."""


def load_probe_job_report(folder: str | Path) -> ProbeJobReport:
    """Read the folder of a finished job.

    Raises:
        ValueError: no finished job, a newer format, or tables that are not those of its report.json.
    """
    place = JobFolder(Path(folder))
    if (place.path / "tasks").is_dir() and not place.report.is_file():
        raise ValueError(f"the job in {folder} is not finished: run it again, it goes on where it was")
    if not place.report.is_file():
        where = f"{folder} holds no probe job" if place.path.is_dir() else f"there is no folder {folder}"
        raise ValueError(f"{where}: give the folder of a job (interp probe list FOLDER shows those below a folder)")
    content = artifact.read_json(place.report)
    if not isinstance(content, dict) or content.get("kind") != KIND:
        raise ValueError(f"{folder} holds no probe job")
    if content.get("format", FORMAT + 1) > FORMAT:
        raise ValueError(f"{folder} has format {content.get('format')!r}, newer than {FORMAT}: update interp")
    tables: dict[str, pd.DataFrame] = {}
    for name, known in sorted(content["tables"].items()):
        file = place.table(str(FILES.get(name, name)))
        if not file.is_file() or file_hash(file) != known:
            raise ValueError(f"{file} is not the table that report.json tells of: run the job again")
        tables[name] = pd.read_parquet(file)
    return ProbeJobReport(
        job=content["job"],
        verdict=tuple(content["verdict"]),
        probes={kind: load_probe(place.probe(kind)) for kind in content["probes"]},
        card=content["card"],
        notes=content["notes"],
        **tables,
    )


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as JSON values; None where a figure is missing."""
    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return [
        {str(key): getattr(value, "item", lambda value=value: value)() for key, value in row.items()} for row in rows
    ]
