"""SteeringReport: what a vector did and what it broke, beside random directions and an instruction; and its file."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from interp import artifact
from interp.plot import Chart
from interp.plot.steering import steering_effect
from interp.probe.completions import common_prefix
from interp.report import write_report
from interp.steering import page
from interp.steering.comparing import TOLERANCE, compare_reports
from interp.steering.fields import (
    DAMAGE,
    EFFECTS,
    GENERATIONS,
    INSTRUCTION,
    RANDOM,
    VALUES,
    VECTOR,
    WORDS,
    SteeringTables,
)
from interp.steering.words import summary_text

__all__ = ["DAMAGE", "EFFECTS", "GENERATIONS", "VALUES", "SteeringReport", "load_steering_report"]

KIND = "steering report"
FORMAT = 2
TABLES = {"effects": EFFECTS, "damage": DAMAGE, "values": VALUES, "generations": GENERATIONS}


class SteeringReport(SteeringTables):
    """The effect of a vector on every measure and its damage, at each strength, beside random directions of its norm."""

    def to_frame(self) -> pd.DataFrame:
        """The effects."""
        return self.effects

    def summary(self) -> str:
        """In plain words: the effect at each measure's largest strength, whether it is outside the random band, what it
        cost beside random directions, the instruction's effect, and reasons to be careful."""
        return summary_text(self)

    def __str__(self) -> str:
        return self.summary()

    def plot(self) -> Chart:
        """Effect over strength with the random band; a panel for each measure."""
        return steering_effect(self.effects, dose=page.dose(self))

    def compare(self, other: SteeringTables, tolerance: float = TOLERANCE) -> pd.DataFrame:
        """This report's figures beside another's, and whether each is the `same` (to `tolerance`), `within` the interval or
        has `moved`; see `compare_reports`."""
        return compare_reports(self, other, tolerance)

    def write_html(self, path: str | os.PathLike[str]) -> Path:
        """One page that needs no network."""
        return write_report(path, page.title(self), page.sections(self), page.facts(self), summary=page.header(self))

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; what was not measured is null."""
        tables = {name: artifact.records(getattr(self, name)) for name in TABLES}
        return {**tables, "band": artifact.records(self.band), "card": self.card, "inputs": self.inputs}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "SteeringReport":
        """What `to_dict` gave, of this version or the first.

        Those of the first version have one measure, damage by loss only, and no values of single items; their texts are
        parted where their characters differ.

        Raises:
            ValueError: a table is missing.
        """
        if not {"effects", "generations"} <= set(value):
            raise ValueError(f"a steering report has effects and generations; this has {', '.join(map(str, value))}")
        found = value if "damage" in value else _from_first(value)
        tables = {name: _frame(found[name], columns) for name, columns in TABLES.items()}
        return cls(**tables, card=found.get("card", {}), inputs=found.get("inputs", {}))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """One JSON file; `load_steering_report` reads it."""
        return artifact.write_json(path, {"kind": KIND, "format": FORMAT, **self.to_dict()})


def load_steering_report(path: str | os.PathLike[str]) -> SteeringReport:
    """Read what `SteeringReport.save` wrote, of this version or the first (see `SteeringReport.from_dict`).

    Raises:
        ValueError: no such file, another kind of file, or a newer format.
    """
    found = artifact.read_json(path)
    if not isinstance(found, dict) or found.get("kind") != KIND:
        raise ValueError(f"{path} holds no {KIND}: load it with the function for its kind")
    if found.get("format") not in (1, FORMAT):
        raise ValueError(f"{path} has format {found.get('format')!r}, newer than the {FORMAT} read here: update interp")
    return SteeringReport.from_dict(found)


def _frame(rows: list[dict[str, Any]], columns: tuple[str, ...]) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=pd.Index(columns))
    for column in columns:
        if column not in WORDS:
            frame[column] = pd.to_numeric(frame[column])
    return frame


def _from_first(found: Mapping[str, Any]) -> dict[str, Any]:
    """The tables of a format-1 file under today's names."""
    effects = [
        {**row, "measure": "preference", "unit": "nats", "kind": _kind(row["direction"])} for row in found["effects"]
    ]
    damage = [{name: row.get(name) for name in ("direction", "kind", "strength", "loss_rise")} for row in effects]
    plain = {row["prompt"]: row["text"] for row in found["generations"] if row["strength"] == 0}
    texts = []
    for row in found["generations"]:
        text = row["text"]
        same = text[: common_prefix(text, plain.get(row["prompt"], text))]
        texts.append({**row, "direction": VECTOR, "same": same, "differs": text[len(same) :]})
    return {**found, "effects": effects, "damage": damage, "values": [], "generations": texts, "inputs": {}}


def _kind(direction: str) -> str:
    """The kind that a direction's name ends with: `random 3 (covariance)`."""
    if direction in (VECTOR, INSTRUCTION):
        return direction
    named = re.search(r"\((\w+)\)$", direction)
    return named[1] if named and named[1] in RANDOM else RANDOM[0]
