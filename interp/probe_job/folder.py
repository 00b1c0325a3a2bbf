"""Where a job keeps things, and how a rerun knows what it may use again.

out/
  report.html  report.json   what was found; report.json is written last and holds the hash of every table beside it
  probes.parquet             a row for each place, kind and seed: figures and controls
  selected.parquet           a row for each kind and seed: the figures to quote
  baselines.parquet          what needs no probe: words, length, log-likelihood, the larger class
  parts.parquet              the selected figures by polarity, topic, language
  predictions.parquet        a row for each kind, seed and text: held-out probabilities
  transfer.parquet  causal.parquet
  probes/<kind>.safetensors  the kept probes
  stores/<key>/              recorded activations
  tasks/                     one file for each finished piece of work, named by what it is and by a hash of what decides it
  job.json                   whose folder it is: the specification, its texts and its model
  earlier/<n>/               reports, tables and probes of other jobs that this one replaced, where that was asked for
  log.jsonl                  how long things took; no result is in it

A piece of work is used again if its hash is the same: model, texts, labels, groups, and every setting that can change it.
A changed specification therefore never meets an old result, and what is still valid is not done again.
"""

import contextlib
import json
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from interp import artifact

REPORT, PAGE, LOG, OWNER = "report.json", "report.html", "log.jsonl", "job.json"
DAMAGED = ".damaged"
"""Ending of a task's file that could not be read."""

log = logging.getLogger("interp.probe_job")


@dataclass(frozen=True)
class JobFolder:
    """The folder of one job."""

    path: Path

    @property
    def report(self) -> Path:
        """What is written last."""
        return self.path / REPORT

    @property
    def page(self) -> Path:
        """The report for people."""
        return self.path / PAGE

    def table(self, name: str) -> Path:
        """File of a table."""
        return self.path / f"{name}.parquet"

    def probe(self, kind: str) -> Path:
        """File of a kept probe."""
        return self.path / "probes" / f"{kind}.safetensors"

    def store(self, key: str) -> Path:
        """Folder of the activations."""
        return self.path / "stores" / key[:16]

    def task(self, what: str, key: str, suffix: str) -> Path:
        """File of a finished piece of work: what it is, for people, and the hash of what decides it."""
        name = re.sub(r"[^\w.-]+", "-", what)
        return self.path / "tasks" / f"{name}.{key[:16]}{suffix}"

    @contextlib.contextmanager
    def held(self, *, resume: bool) -> Iterator[None]:
        """Hold the folder alone, and sweep what killed writers left in it.

        Raises:
            ValueError: the path is a file or another kind of folder, a job that may not be gone on with, or another
                process that works there.
        """
        self._check(resume=resume)
        is_new = not self.path.exists()
        self.path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.path / ".lock", timeout=0)
        try:
            lock.acquire()
        except Timeout:
            raise ValueError(f"another process works in {self.path}: wait for it, or choose another folder") from None
        try:
            self._sweep()
            (self.path / "tasks").mkdir(exist_ok=True)
            yield
        finally:
            lock.release()
            if is_new and not self._holds_something():
                shutil.rmtree(self.path)

    @contextlib.contextmanager
    def timed(self, step: str) -> Iterator[None]:
        """Note in the log how long a step took; the reports hold no clock time, so that they are equal byte for byte."""
        began, cpu = time.perf_counter(), time.process_time()
        yield
        seconds, spent = time.perf_counter() - began, time.process_time() - cpu
        line = {"step": step, "seconds": round(seconds, 2), "cpu_seconds": round(spent, 2)}
        with (self.path / LOG).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def move_earlier(self) -> Path:
        """Put report, tables, probes and owner of another job aside; activations and tasks stay, for they can be shared."""
        place = self.path / "earlier"
        taken = [int(old.name) for old in place.glob("*") if old.name.isdigit()]
        aside = place / str(max(taken, default=0) + 1)
        aside.mkdir(parents=True)
        # The report goes first: without it the rest does not count as finished.
        for file in [
            self.report,
            self.page,
            *sorted(self.path.glob("*.parquet")),
            self.path / "probes",
            self.path / OWNER,
        ]:
            if file.exists():
                os.replace(file, aside / file.name)
        return aside

    def _holds_something(self) -> bool:
        files = (file for file in self.path.rglob("*") if file.is_file())
        return any(file.name not in (".lock", LOG, OWNER) for file in files)

    def _check(self, *, resume: bool) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"{self.path} is a file; give a folder for the job")
        begun = (self.path / "tasks").is_dir()
        if begun and not resume:
            raise ValueError(f"{self.path} holds a job already: choose another folder, or go on with it (resume)")
        others = [file.name for file in self.path.iterdir() if file.name != ".lock"] if self.path.is_dir() else []
        if others and not begun and set(others) != {"stores"}:
            raise ValueError(f"{self.path} holds something else ({sorted(others)[0]}): choose another folder")

    def _sweep(self) -> None:
        """Half-written files of killed writers; stores sweep their own."""
        for folder in (self.path, self.path / "tasks", self.path / "probes"):
            for leftover in sorted(folder.glob(".*.part")):
                if leftover.is_dir():
                    shutil.rmtree(leftover)
                else:
                    leftover.unlink()


def read_task(path: Path, read: Callable[[Path], Any]) -> Any:
    """What `read` makes of the file or folder of a finished task; None where there is none, or it is damaged.

    A damaged one is moved aside with a warning, and its work is done again: it holds nothing that cannot be.
    """
    if not path.exists():
        return None
    try:
        return read(path)
    except (ValueError, KeyError, OSError) as error:
        aside = path.with_name(path.name + DAMAGED)
        if aside.is_dir():
            shutil.rmtree(aside)
        os.replace(path, aside)
        log.warning("%s is damaged and is made again; it was moved to %s (%s)", path, aside.name, error)
        return None


def file_hash(path: Path) -> str:
    """What report.json says of a table, so that a half-replaced set of files is found out."""
    return artifact.sha256_file(path)[:32]
