"""How far a training run is: a live table on a terminal, a plain line now and then elsewhere."""

import sys
import time
from collections.abc import Sequence
from typing import Any

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table

from interp.jobs import note_progress

_COLUMNS = ("loss", "L0", "dead", "lr")
_LINES = 10
"""Plain lines in a run, about."""


class TrainingProgress:
    """Give its `step` as progress= and its `metrics` as on_metrics=; all is written to the error stream.

    Args:
        names: of the dictionaries that train together.
        batch_size: rows in a step.
        quiet: show nothing.
    """

    def __init__(self, names: Sequence[str], batch_size: int, *, quiet: bool) -> None:
        self._names, self._batch_size, self._quiet = names, batch_size, quiet
        self._lines: dict[int, dict[str, Any]] = {}
        self._began: tuple[float, int] | None = None
        self._done = self._total = self._said = 0
        self._fresh = False
        live = sys.stderr.isatty() and not quiet
        self._live = Live(console=Console(stderr=True), get_renderable=self.table) if live else None

    def __enter__(self) -> "TrainingProgress":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_error: object) -> None:
        if self._live is not None:
            self._live.stop()

    @property
    def place(self) -> str:
        """How far the run is."""
        return f"step {self._done:,} of {self._total:,}"

    def step(self, done: int, total: int) -> None:
        """So many steps are done."""
        note_progress(
            "Training",
            done,
            total,
            "; ".join(
                self._sentence(n, name) for n, name in enumerate(self._names) if n in self._lines and self._began
            ),
        )
        if self._began is None:  # the first step has the set-up in it, and a run may go on in the middle
            self._began = time.monotonic(), done
            if done > 1 and not self._quiet:
                click.echo(f"going on at step {done:,} of {total:,}", err=True)
        self._done, self._total = done, total
        due = _LINES * done // total
        if self._live is None and not self._quiet and due > self._said and self._fresh:
            self._said, self._fresh = due, False
            for number, name in enumerate(self._names):
                click.echo(self._sentence(number, name), err=True)

    def metrics(self, line: dict[str, Any]) -> None:
        """A line of metrics, of one of the dictionaries."""
        self._lines[line.get("sae", 0)], self._fresh = line, True

    def table(self) -> Table:
        """What a terminal shows."""
        title = f"{self.place}; {self._pace()}" if self._total else "starting"
        table = Table(title=title, title_justify="left")
        table.add_column("")
        for column in _COLUMNS:
            table.add_column(column, justify="right")
        for number, name in enumerate(self._names):
            line = self._lines.get(number)
            table.add_row(name, *(_cells(line) if line else [""] * len(_COLUMNS)))
        return table

    def _sentence(self, number: int, name: str) -> str:
        figures = zip(_COLUMNS, _cells(self._lines[number]), strict=True)
        said = ", ".join(f"{column} {value}" for column, value in figures)
        return f"{self.place}, {name}: {said}; {self._pace()}"

    def _pace(self) -> str:
        assert self._began is not None
        seconds, steps = time.monotonic() - self._began[0], self._done - self._began[1]
        if steps == 0 or seconds == 0:
            return "pace not known yet"
        left = (self._total - self._done) * seconds / steps
        return f"{steps * self._batch_size / seconds:,.0f} rows/s, {_duration(left)} left"


def _cells(line: dict[str, Any]) -> list[str]:
    return [f"{line['loss']:.4f}", f"{line['active']:.1f}", f"{line['dead_share']:.1%}", f"{line['lr']:.2e}"]


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes / 60:.1f} h"
