"""How far a job is: a bar on a terminal, a plain line now and then elsewhere; and how Ctrl-C ends it.

The first Ctrl-C lets the piece of work that is under way be finished and kept. The second one does not wait.
"""

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType, TracebackType

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from interp.jobs import note_progress

_UNITS = {
    "record": "texts", "log_likelihood": "texts", "fit": "places", "figures": "seeds", "vector": "vectors",
    "settings": "settings", "calibration": "parts", "questions": "parts",
}  # fmt: skip
_TITLES = {
    "record": "Recording activations",
    "log_likelihood": "Log-likelihood of the texts",
    "fit": "Fitting probes",
    "figures": "Figures and intervals",
    "vector": "Vector",
    "settings": "Steering",
    "calibration": "Reading documents",
    "questions": "Asking questions",
}
_SECONDS_BETWEEN_LINES = 10.0


class JobProgress:
    """Give it as progress=; all is written to the error stream.

    Args:
        quiet: show nothing.
    """

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._step: str | None = None
        self._began = self._said = 0.0
        self._first = 0
        self._stopping = False
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        if sys.stderr.isatty() and not quiet:
            columns = (
                TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
                TextColumn("{task.fields[pace]}", markup=False),
            )  # fmt: skip
            self._bar = Progress(*columns, console=Console(stderr=True))

    def __enter__(self) -> "JobProgress":
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, step: str, done: int, total: int) -> None:
        """So much of a step is done. KeyboardInterrupt where a first Ctrl-C asked for the end."""
        note_progress(title(step), done, total)
        now = time.monotonic()
        if step != self._step:
            self._begin(step, done, total, now)
        pace = self._pace(step, done, total, now)
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, total=total, pace=pace)
        elif not self._quiet and (done == total or now - self._said > _SECONDS_BETWEEN_LINES):
            self._said = now
            click.echo(f"{title(step)}: {done:,} of {total:,} {unit(step)}{pace and '; ' + pace}", err=True)
        if self._stopping:
            raise KeyboardInterrupt

    def stop(self) -> None:
        """End the job before the next piece of work."""
        self._stopping = True

    @property
    def stopping(self) -> bool:
        """Whether it was asked to end."""
        return self._stopping

    def _begin(self, step: str, done: int, total: int, now: float) -> None:
        # What was there already says nothing about the pace; the first report comes with a piece of work done.
        self._step, self._began, self._said, self._first = step, now, now, done
        if self._bar is not None:
            self._task = self._bar.add_task(title(step), total=total, completed=done, pace="")

    def _pace(self, step: str, done: int, total: int, now: float) -> str:
        new, seconds = done - self._first, now - self._began
        if new <= 0 or seconds <= 0:
            return ""
        left = duration((total - done) * seconds / new)
        return f"{new / seconds:,.1f} {unit(step)}/s" + (f", about {left} left" if done < total else "")


def title(step: str) -> str:
    """A step in words."""
    return _TITLES.get(step, step[:1].upper() + step[1:].replace("_", " "))


def unit(step: str) -> str:
    """What a step counts."""
    return _UNITS.get(step, "parts")


def duration(seconds: float) -> str:
    """`45 s`, `3 min`, `2.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"


@contextlib.contextmanager
def ends_between_tasks(progress: JobProgress) -> Iterator[None]:
    """Ctrl-C once: the piece of work under way is finished and kept. Twice: stop now."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)

    def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 (the signature of a handler)
        if progress.stopping:
            raise KeyboardInterrupt
        progress.stop()
        click.echo("stopping after what is under way; Ctrl-C again stops at once", err=True)

    signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
