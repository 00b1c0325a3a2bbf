"""How far a recording is: a bar on a terminal, log lines elsewhere, or the caller's own function."""

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

log = logging.getLogger("interp.recording")

Report = Callable[[int, int, int], Any]
"""fn(texts done, texts in all, tokens computed in this call)."""
_SECONDS_BETWEEN_LINES = 10.0


@contextlib.contextmanager
def reporter(progress: Any) -> Iterator[Report]:
    """The function to call after each batch.

    Args:
        progress: None for a bar on a terminal and log lines elsewhere, False for nothing, or a `Report`.
    """
    if progress is False:
        yield lambda *_: None
    elif callable(progress):
        yield progress
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
        TextColumn("texts, {task.fields[rate]:,.0f} tokens/s,"),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("recording", total=None, rate=0.0)
        began = time.monotonic()

        def show(done: int, total: int, tokens: int) -> None:
            rate = tokens / max(time.monotonic() - began, 1e-9)
            bar.update(task, completed=done, total=total, rate=rate)

        yield show


class _Lines:
    """A log line now and then."""

    def __init__(self) -> None:
        self.began = self.last = time.monotonic()

    def __call__(self, done: int, total: int, tokens: int) -> None:
        now = time.monotonic()
        if now - self.last >= _SECONDS_BETWEEN_LINES or done == total:
            self.last = now
            rate = tokens / max(now - self.began, 1e-9)
            log.info("recorded %d of %d texts, %.0f tokens/s", done, total, rate)
