"""DoctorReport: every check with what it compared, its figure, its bound and its verdict."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from interp import artifact

VERDICTS = ("ok", "FAILED", "skipped", "info")
MASSIVE = ("site", "layer", "text", "pos", "token", "norm", "typical_norm", "ratio", "dimensions", "share")
KIND = "doctor report"


@dataclass(frozen=True)
class Check:
    """One line of the report."""

    name: str
    """What was checked."""
    compared: str
    """What was held against what."""
    verdict: str
    """`ok`, `FAILED`, `skipped` (the note says why) or `info` (a figure that cannot be wrong)."""
    figure: float | None = None
    """The largest deviation, or the count, that was found; None where there is no number."""
    bound: float | None = None
    """What the figure must not exceed."""
    note: str = ""
    """Where it was found, what it means, or why the check was skipped."""
    seconds: float = 0.0
    """Wall time of the check."""

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise ValueError(f"verdict={self.verdict!r} is unknown; known are {', '.join(VERDICTS)}")
        if self.verdict == "skipped" and not self.note:
            raise ValueError(f"{self.name}: a skipped check must say why")

    def __str__(self) -> str:
        figure = "" if self.figure is None else _number(self.figure)
        figure += "" if self.bound is None else f" (at most {_number(self.bound)})"
        head = f"{self.verdict:8} {self.name:28} {figure:32} {self.seconds:5.1f} s"
        return "\n".join([head, *(f"{'':9}{line}" for line in (self.compared, self.note) if line)])


@dataclass(frozen=True, eq=False)
class DoctorReport:
    """What `interp.doctor` found. `str(report)` is for people, `to_frame` for a notebook, `save` for later."""

    checks: tuple[Check, ...]
    """In the order in which they ran."""
    massive: pd.DataFrame
    """Massive activations: a row for each layer and token whose norm is over ten times the layer's typical norm."""
    card: dict[str, Any] = field(default_factory=dict)
    """Model, fingerprint, dtype, versions."""

    @property
    def ok(self) -> bool:
        """No check failed."""
        return not self.failed

    @property
    def failed(self) -> tuple[Check, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if check.verdict == "FAILED")

    @property
    def seconds(self) -> float:
        """Wall time of all checks together."""
        return sum(check.seconds for check in self.checks)

    def __getitem__(self, name: str) -> Check:
        """One check by its name."""
        for check in self.checks:
            if check.name == name:
                return check
        raise ValueError(f"there is no check {name!r}; there are {', '.join(check.name for check in self.checks)}")

    def to_frame(self) -> pd.DataFrame:
        """A row for each check: name, compared, verdict, figure, bound, note, seconds."""
        columns = pd.Index(["name", "compared", "verdict", "figure", "bound", "note", "seconds"])
        frame = pd.DataFrame([asdict(check) for check in self.checks], columns=columns)
        return frame.astype({"figure": float, "bound": float})

    @property
    def summary(self) -> str:
        """One line: how many checks ended how, which failed, and the time."""
        counts = [(verdict, sum(check.verdict == verdict for check in self.checks)) for verdict in VERDICTS]
        line = ", ".join(f"{n} {verdict}" for verdict, n in counts if n) + f" in {self.seconds:.1f} s"
        return line if self.ok else f"{line}; failed: {', '.join(check.name for check in self.failed)}"

    def __str__(self) -> str:
        return "\n".join([f"doctor: {self.card.get('model', 'model')}", *map(str, self.checks), self.summary])

    def __repr__(self) -> str:
        return f"DoctorReport({self.card.get('model')!r}, {len(self.checks)} checks, {len(self.failed)} failed)"

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; a figure that is no number is null."""
        rows = [{key: _plain(value) for key, value in asdict(check).items()} for check in self.checks]
        return {
            "ok": self.ok,
            "seconds": round(self.seconds, 3),
            "checks": rows,
            "massive": self.massive.to_dict("records"),
            "card": self.card,
        }

    def save(self, path: str | Path) -> Path:
        """One JSON file; `load_doctor_report` reads it."""
        return artifact.write_json(Path(path), {"kind": KIND, "format": artifact.FORMAT, **self.to_dict()})


def load_doctor_report(path: str | Path) -> DoctorReport:
    """Read what `DoctorReport.save` wrote."""
    found = artifact.read_json(Path(path))
    if not isinstance(found, Mapping) or found.get("kind") != KIND:
        raise ValueError(f"{path} holds no doctor report")
    massive = pd.DataFrame(found["massive"], columns=pd.Index(MASSIVE))
    return DoctorReport(tuple(Check(**row) for row in found["checks"]), massive, found["card"])


def _number(value: float) -> str:
    if math.isfinite(value) and value == int(value):
        return str(int(value))
    return f"{value:.2e}" if not 1e-3 <= abs(value) < 1e5 else f"{value:.4g}"


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
