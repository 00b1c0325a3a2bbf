"""The results of a run, read from its folder. No Streamlit and no model here: files in, frames out.

A run is what `interp demo` writes: `demo.json` with the list of its steps, and a file or two for each. Only the files
named here are read, only from inside the folder; every one may be missing, and then the error says which step makes it.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from interp import artifact

FRAMES: Mapping[str, tuple[str, ...]] = {
    "tokens": ("pos", "token", "entropy"),
    "lens": ("layer", "pos", "token", "top1", "p_top1", "entropy", "kl", "rank", "p_target"),
    "heads": ("layer", "head", "induction", "previous_token", "duplicate_token"),
    "probes": ("dataset", "layer", "kind", "auroc", "low", "high", "n"),
}
"""Parquet files of a run and the columns that the pages need."""
MOST_BYTES = 64 * 2**20
"""Largest file that is read whole into a page."""


@dataclass(frozen=True)
class Run:
    """A run's folder and its `demo.json`."""

    path: Path
    info: Mapping[str, Any]

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def model(self) -> Mapping[str, Any]:
        """Name, note, fingerprint and sizes of the model that the run used."""
        return self.info["model"]

    @property
    def prompt(self) -> str:
        return str(self.info.get("prompt", ""))

    @property
    def stamp(self) -> int:
        """Changes when the run is made again, so that nothing stale is shown."""
        return (self.path / "demo.json").stat().st_mtime_ns

    def file(self, name: str) -> Path:
        """A file of the run.

        Raises:
            ValueError: it is not there, lies outside the folder (a link, or `..`), or is too large for a page.
        """
        path = (self.path / name).resolve()
        if not path.is_relative_to(self.path.resolve()):
            raise ValueError(f"{name} lies outside the run's folder and is not read")
        if not path.is_file():
            raise ValueError(f"the run has no {name}{self._why_missing(name)}")
        if path.stat().st_size > MOST_BYTES:
            raise ValueError(f"{name} has {path.stat().st_size / 2**20:.0f} MB, more than a page reads")
        return path

    def frame(self, name: str) -> pd.DataFrame:
        """One of `FRAMES`, its columns checked."""
        path = self.file(f"{name}.parquet")
        try:
            frame = pd.read_parquet(path)
        except (OSError, ValueError) as error:  # pyarrow's own errors are ValueErrors
            raise ValueError(f"{path.name} cannot be read ({error}): make the run again") from None
        missing = [column for column in FRAMES[name] if column not in frame]
        if missing:
            raise ValueError(f"{path.name} has no column {', '.join(missing)}: make the run again")
        return frame

    def json(self, name: str) -> dict[str, Any]:
        """`sae`, `steering`, `calibration` or `probes`: a JSON object of the run."""
        found = artifact.read_json(self.file(f"{name}.json"))
        if not isinstance(found, dict):
            raise ValueError(f"{name}.json holds no object: make the run again")
        return found

    def has(self, name: str) -> bool:
        """Whether the run has this file."""
        try:
            return bool(self.file(name))
        except ValueError:
            return False

    def of_kind(self, kind: str) -> Iterator[Path]:
        """The JSON files of the run that say they are of this kind, by name. A damaged one is of no kind."""
        for listed in sorted(self.path.glob("*.json")):
            try:
                path = self.file(listed.name)
                held = artifact.read_json(path)
            except ValueError:
                continue
            if isinstance(held, dict) and held.get("kind") == kind:
                yield path

    def _why_missing(self, name: str) -> str:
        for step in self.info.get("steps", []):
            if name in step.get("files", []):
                title, done = step.get("title", step.get("name")), step.get("state", "not done")
                return f", though its step “{title}” is {done}: make the run again"
        return ": that step is not done yet. Start `interp demo` again, it goes on where it was"


def open_run(folder: str | os.PathLike[str]) -> Run:
    """Read a run's `demo.json`.

    Raises:
        ValueError: no such folder, no `demo.json`, or one that is damaged.
    """
    path = Path(folder)
    if not path.is_dir():
        raise ValueError(f"there is no folder {path.name!r}: make the run first")
    info = artifact.read_json(path / "demo.json")
    if not isinstance(info, dict) or not isinstance(info.get("model"), dict):
        raise ValueError("demo.json does not describe a run: make the run again")
    return Run(path, info)
