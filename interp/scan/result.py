"""ScanReport: the tables of a scan, its file, and its page."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from interp import artifact
from interp.plot import Chart
from interp.report import Section, write_report
from interp.scan import figures, page
from interp.scan.fields import ScanTables, each

KIND = "scan"
TABLES = ("findings", "prediction", "lens", "lens_grid", "direct", "sources", "parts", "heads", "tokens")


class ScanReport(ScanTables):
    """What a scan of one prompt found: the tables of `ScanTables`, its charts, its file and its page."""

    def summary(self) -> str:
        """The prediction, what to beware of, and the first findings, in plain text."""
        first = self.findings.head(5)
        lines = [page.opening(self), *[f"Beware: {warning}" for warning in self.warnings]]
        lines += [f"{row.rank}. {row.finding} [{page.interval(row)}]" for row in each(first)]
        return "\n".join([*lines, page.LIMITS])

    def to_frame(self, kind: str = "findings") -> pd.DataFrame:
        """One of the tables, by the name of its field, or of `patching`.

        Raises:
            ValueError: another name, or a table that this scan does not have.
        """
        known = [*TABLES, *self.patching]
        if kind not in known:
            raise ValueError(f"kind must be one of {', '.join(known)}, got {kind!r}")
        frame: pd.DataFrame = self.patching[kind] if kind in self.patching else getattr(self, kind)
        return frame.copy()

    def plot(self, kind: str = "parts") -> Chart:
        """A chart: "parts" (exact effects), "heads" (direct shares by layer and head), "tokens", "lens", "lens_grid",
        "prediction", "direct", "sources", or with a corrupted prompt "stream" and "patched_heads".

        Raises:
            ValueError: another name, or a table that this scan does not have.
        """
        return figures.draw(self, kind)

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values; None where a figure is missing."""
        tables = {name: _columns(getattr(self, name)) for name in TABLES}
        patching = {name: _columns(frame) for name, frame in self.patching.items()}
        return {
            "kind": KIND, "tables": tables, "patching": patching, "warnings": list(self.warnings),
            "notes": list(self.notes), "card": self.card,
        }  # fmt: skip

    def save(self, path: str | os.PathLike[str]) -> Path:
        """A JSON file; `load_scan_report` reads it."""
        return artifact.write_json(path, self.to_dict())

    def sections(self) -> list[Section]:
        """For `interp.report.write_report`."""
        return page.sections(self)

    def write_html(self, path: str | os.PathLike[str]) -> Path:
        """One page that needs no network."""
        title = f"Scan of {self.card['model']}"
        return write_report(path, title, self.sections(), page.facts(self), summary=page.header(self))


def load_scan_report(path: str | os.PathLike[str]) -> ScanReport:
    """Read what `ScanReport.save` wrote."""
    found = artifact.read_json(path)
    if not isinstance(found, dict) or found.get("kind") != KIND:
        raise ValueError(f"{path} is not a {KIND}: load it with the function for its kind")
    return ScanReport(
        **{name: _frame(found["tables"][name]) for name in TABLES},
        patching={name: _frame(columns) for name, columns in found["patching"].items()},
        warnings=tuple(found["warnings"]),
        notes=tuple(found["notes"]),
        card=found["card"],
    )


def _columns(frame: pd.DataFrame) -> list[list[Any]]:
    """[name, values] of each column, in order, with None for NaN, which JSON does not have."""
    return [
        [str(name), [None if isinstance(v, float) and np.isnan(v) else v for v in frame[name].tolist()]]
        for name in frame
    ]


def _frame(columns: list[list[Any]]) -> pd.DataFrame:
    """The frame again: where a value is None the column holds numbers, for texts are never None."""
    return pd.DataFrame({name: np.array(v, dtype=float) if None in v else v for name, v in columns})
