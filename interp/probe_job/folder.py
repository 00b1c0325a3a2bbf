"""Where a probe job keeps things; what every job's folder has stands in `interp.jobs`.

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
"""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from interp import jobs


@dataclass(frozen=True)
class JobFolder(jobs.JobFolder):
    """The folder of one probe job."""

    SHARED: ClassVar[frozenset[str]] = frozenset({"stores"})

    def results(self) -> list[Path]:
        """Tables and probes; activations stay where another job takes the folder, for they can be shared."""
        return [*sorted(self.path.glob("*.parquet")), self.path / "probes"]

    def table(self, name: str) -> Path:
        """File of a table."""
        return self.path / f"{name}.parquet"

    def probe(self, kind: str) -> Path:
        """File of a kept probe."""
        return self.path / "probes" / f"{kind}.safetensors"

    def store(self, key: str) -> Path:
        """Folder of the activations."""
        return self.path / "stores" / key[:16]
