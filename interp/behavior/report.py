"""What every behaviour report is: named tables, figures beside them, notes, and a card; as frame, JSON, page and chart.

A kind of report adds its tables' columns, what its page says, and its charts.
"""

import os
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd

from interp import artifact
from interp.plot import Chart
from interp.report import Section, write_report


@dataclass(frozen=True, eq=False)
class BehaviorReport:
    """Tables, values and notes about how a model behaves; each kind is a class of its own."""

    tables: dict[str, pd.DataFrame] = field(repr=False)
    """Name -> rows, those of `TABLES`."""
    values: dict[str, Any] = field(repr=False)
    """JSON-ready figures that are no table."""
    card: dict[str, Any] = field(repr=False)
    """What made it: model, fingerprint, seed, data, settings, versions."""
    notes: tuple[str, ...] = ()
    """Reasons to be careful, as sentences."""

    KIND: ClassVar[str] = "behaviour report"
    """What its file says it is."""
    FORMAT: ClassVar[int] = 1
    """Version of the file."""
    TABLES: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Name of each table -> its columns; the first table is the frame."""
    WORDS: ClassVar[frozenset[str]] = frozenset()
    """Columns that hold text, lists or yes and no; all others are numbers, with NaN for what was not measured."""

    def __post_init__(self) -> None:
        if set(self.tables) != set(self.TABLES):
            strange = sorted(set(self.tables) ^ set(self.TABLES))
            raise ValueError(f"a {self.KIND} has the tables {', '.join(self.TABLES)}; missing or unknown: {strange}")
        for name, columns in self.TABLES.items():
            lacking = [column for column in columns if column not in self.tables[name]]
            if lacking:
                raise ValueError(f"the table {name} of a {self.KIND} lacks the column {lacking[0]!r}")

    @abstractmethod
    def summary(self) -> str:
        """What was found, in plain sentences, with n and intervals."""

    @abstractmethod
    def title(self) -> str:
        """Of the page."""

    @abstractmethod
    def sections(self) -> list[Section]:
        """Of the page; the last one says in Python how to make it again."""

    @abstractmethod
    def plot(self, name: str | None = None) -> Chart:
        """A chart by name, None for the main one. ValueError for an unknown name, which lists those there are."""

    def __str__(self) -> str:
        return self.summary()

    def to_frame(self) -> pd.DataFrame:
        """The first table."""
        return self.tables[next(iter(self.TABLES))].copy()

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; what was not measured is null."""
        tables = {name: artifact.records(frame) for name, frame in self.tables.items()}
        return {"tables": tables, "values": self.values, "card": self.card, "notes": list(self.notes)}

    def save(self, path: str | os.PathLike[str]) -> Path:
        """One JSON file, whole or not at all; `load` reads it."""
        return artifact.write_json(path, {"kind": self.KIND, "format": self.FORMAT, **self.to_dict()})

    @classmethod
    def load(cls, path: str | os.PathLike[str] | Any) -> Any:
        """Read what `save` wrote.

        Raises:
            ValueError: no such file, another kind of file, a damaged one, or a newer format.
        """
        found = artifact.read_json(path)
        if not isinstance(found, dict) or found.get("kind") != cls.KIND:
            raise ValueError(f"{path} holds no {cls.KIND}: load it with the function for its kind")
        if not isinstance(found.get("format"), int) or found["format"] > cls.FORMAT:
            raise ValueError(
                f"{path} has format {found.get('format')!r}, newer than the {cls.FORMAT} read here: update interp"
            )
        try:
            tables = {name: cls._frame(found["tables"][name], columns) for name, columns in cls.TABLES.items()}
            return cls(tables, found["values"], found["card"], tuple(found["notes"]))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is a damaged {cls.KIND} ({error}): make it again") from None

    @classmethod
    def _frame(cls, rows: list[dict[str, Any]], columns: tuple[str, ...]) -> pd.DataFrame:
        names = list(dict.fromkeys([*columns, *(key for row in rows for key in row)]))
        frame = pd.DataFrame(rows, columns=pd.Index(names))
        for column in names:
            if column not in cls.WORDS:
                frame[column] = pd.to_numeric(frame[column])
        return frame

    def write_html(self, path: str | os.PathLike[str] | Any) -> Path:
        """One page that needs no network."""
        text = "\n\n".join([self.summary(), *self.notes])
        return write_report(path, self.title(), self.sections(), self.card, summary=text)
