"""How far a recording is: a bar on a terminal, log lines elsewhere, or the caller's own function."""

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

log = logging.getLogger("interp.recording")

_SECONDS_BETWEEN_LINES = 10.0


@dataclass
class Status:
    """Where a recording stands."""

    done: int
    """Texts that are recorded, in this call or before."""
    total: int
    """Texts in all."""
    tokens: int = 0
    """Tokens computed in this call."""
    bytes: int = 0
    """Activations handed to the disk in this call."""
    began: float = field(default_factory=time.monotonic)
    """When this call began."""
    done_before: int = field(init=False)
    """Texts that were recorded before this call."""

    def __post_init__(self) -> None:
        self.done_before = self.done

    def add(self, texts: int, tokens: int) -> None:
        """Count what a pass has done."""
        self.done += texts
        self.tokens += tokens

    @property
    def seconds(self) -> float:
        """Since this call began."""
        return max(time.monotonic() - self.began, 1e-9)

    @property
    def rate(self) -> float:
        """Tokens computed in a second."""
        return self.tokens / self.seconds

    @property
    def left(self) -> float:
        """Seconds that the rest will take, at the speed so far."""
        new = self.done - self.done_before
        return self.seconds / new * (self.total - self.done) if new else float("inf")


Report = Callable[[Status], Any]
"""Told after each pass how far it is."""


@contextlib.contextmanager
def reporter(progress: Any) -> Iterator[Report]:
    """The function to call after each pass.

    Args:
        progress: None for a bar on a terminal and log lines elsewhere, False for nothing, or
            fn(texts done, texts in all, tokens computed).
    """
    if progress is False:
        yield lambda _: None
    elif callable(progress):
        yield lambda status: progress(status.done, status.total, status.tokens)
    elif progress not in (None, True):
        raise ValueError(f"progress is None, False or a function (done, total, tokens), got {progress!r}")
    elif sys.stderr.isatty():
        with _bar() as bar:
            yield bar
    else:
        yield _Lines()


@contextlib.contextmanager
def _bar() -> Iterator[Report]:
    columns = (
        TextColumn("recording"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("texts, {task.fields[rate]:,.0f} tokens/s, {task.fields[mb]:,.0f} MB,"),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("recording", total=None, rate=0.0, mb=0.0)
        yield lambda status: bar.update(
            task, completed=status.done, total=status.total, rate=status.rate, mb=status.bytes / 1e6
        )


class _Lines:
    """A log line now and then."""

    def __init__(self) -> None:
        self.last = time.monotonic()

    def __call__(self, status: Status) -> None:
        now = time.monotonic()
        if now - self.last >= _SECONDS_BETWEEN_LINES or status.done == status.total:
            self.last = now
            log.info(
                "recorded %d of %d texts, %.0f tokens/s, %.0f MB, %.0f s left",
                status.done,
                status.total,
                status.rate,
                status.bytes / 1e6,
                status.left,
            )
