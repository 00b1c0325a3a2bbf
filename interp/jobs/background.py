"""Background jobs: a command of this package in a process of its own, which outlives the page or shell that started it.

1. `submit` writes a folder with `spec.json` (the command as a list of words, never a shell line) and starts a detached
   supervisor (`interp.jobs.worker`) for it.
2. The supervisor takes its turn (one job of a workspace runs at a time, first come first served), runs the command, and keeps
   `status.json` and `log.txt` up to date.
3. Whoever asks reads the folder. A job whose supervisor is gone without having said the end is *lost*: process id and start
   time are compared, so that another process with the same number is not taken for it.
4. Commands of this package go on where they were, so a job that was cancelled, failed or got lost is simply started `again`.
"""

import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from filelock import FileLock

from interp import files

FORMAT = 1
SPEC, STATUS, LOG_FILE, CANCEL, PROGRESS = "spec.json", "status.json", "log.txt", "cancel", "progress.json"
MOST_WAITING = 8
"""Jobs that may wait or run in one workspace."""
LEAST_FREE = 2 * 2**30
"""Bytes that the disk must have free for a new job."""
TAIL = 8 * 2**10
"""Bytes of the log that are shown."""
SECRET = ("INTERP_APP_PASSWORD", "INTERP_APP_LOGIN")
"""Variables that no job gets."""
TERMINAL = ("done", "failed", "cancelled", "lost")
_supervisors: list["subprocess.Popen[bytes]"] = []
"""Those that this process started: they are waited for when the next one is, so that none stays as a zombie."""
_ID = r"[0-9]{8}-[0-9]{6}-[0-9a-f]{6}"


@dataclass(frozen=True)
class JobState:
    """How far a job is."""

    state: str
    """queued, running, done, failed, cancelled or lost."""
    step: str = ""
    """What is being done, in words."""
    done: int = 0
    total: int = 0
    message: str = ""
    started: float | None = None
    """When the command began, seconds since 1970."""
    ended: float | None = None
    error: str = ""
    """Last line that a failed command wrote."""
    code: int | None = None
    """Exit status of the command."""

    @property
    def is_over(self) -> bool:
        """Whether nothing more will happen."""
        return self.state in TERMINAL

    @property
    def seconds(self) -> float | None:
        """How long it has run, or ran; None before it begins."""
        if self.started is None:
            return None
        return (self.ended if self.ended is not None else time.time()) - self.started


@dataclass(frozen=True)
class Job:
    """A job's folder and what it was asked to do."""

    path: Path
    kind: str
    """What it makes, such as "sae"."""
    title: str
    argv: tuple[str, ...]
    """Words of the command, after `interp`."""
    submitted: float

    @property
    def id(self) -> str:
        """Name of its folder."""
        return self.path.name

    def status(self) -> JobState:
        """How far it is."""
        held = _read(self.path / STATUS)
        state = _state_of(held)
        if state is None:
            return JobState("lost", error="its status cannot be read")
        if state.is_over:
            return state
        if not is_alive(held.get("pid"), held.get("born")):
            if is_alive(held.get("child"), held.get("child_born")):
                # The supervisor was killed and its command was not: until that ends, nothing else may write there.
                return replace(state, state="running", message="its supervisor is gone; the command still works")
            return replace(state, state="lost", error="its process ended without a word", ended=_last_write(self.path))
        told = _read(self.path / PROGRESS) if state.state == "running" else {}
        shown = {name: told[name] for name in ("step", "done", "total", "message") if name in told}
        return _state_of({**held, **shown}) or state

    def log_tail(self, size: int = TAIL) -> str:
        """The end of what the command wrote."""
        path = self.path / LOG_FILE
        if not path.is_file():
            return ""
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - size))
            return file.read().decode("utf-8", "replace").replace("\r", "\n")


def submit(root: str | os.PathLike[str], argv: Sequence[str], *, title: str, kind: str) -> Job:
    """Start a command in the background.

    Args:
        root: folder of the workspace's jobs; made where it is missing.
        argv: words of the command after `interp`, such as ["record", "smollm2-135m", "capitals", "--out", "runs/a"].
        title: for people.
        kind: what it makes, in a word.

    Returns:
        The job; ask its `status()`.

    Raises:
        ValueError: a word that is no text, too many jobs that wait, or too little room on the disk.
    """
    words = list(argv)
    if not words or not all(isinstance(word, str) and "\x00" not in word for word in words):
        raise ValueError(f"argv must be a list of texts without NUL, got {words!r}")
    place = Path(root)
    place.mkdir(parents=True, exist_ok=True)
    with FileLock(place / ".submit", timeout=30):  # two who ask at once would both find room
        return _submit(place, words, title, kind)


def _submit(place: Path, words: list[str], title: str, kind: str) -> Job:
    waiting = [each for each in jobs(place) if not each.status().is_over]
    if (out := _output(words)) is not None and any(_output(each.argv) == out for each in waiting):
        raise ValueError(
            f"a job that is not over writes to {Path(out).name} already: choose another name, or wait for it"
        )
    if len(waiting) >= MOST_WAITING:
        raise ValueError(f"{len(waiting)} jobs wait or run already, the most at a time: wait for one, or cancel one")
    if (free := shutil.disk_usage(place).free) < LEAST_FREE:
        raise ValueError(
            f"the disk has {free / 2**30:.1f} GB left, less than the {LEAST_FREE / 2**30:.0f} that a job needs"
        )
    name = time.strftime("%Y%m%d-%H%M%S", time.gmtime()) + "-" + secrets.token_hex(3)
    folder = place / name
    folder.mkdir(mode=0o700)
    spec = {"format": FORMAT, "kind": kind, "title": title, "argv": words, "submitted": time.time()}
    files.write_json(folder / SPEC, spec)
    files.write_json(folder / STATUS, {"state": "queued", "pid": os.getpid(), "born": born(os.getpid())})
    environment = {key: value for key, value in os.environ.items() if key not in SECRET}
    _supervisors[:] = [each for each in _supervisors if each.poll() is None]
    supervisor = subprocess.Popen(
        [sys.executable, "-m", "interp.jobs.worker", str(folder.resolve())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
    )
    _supervisors.append(supervisor)
    with FileLock(folder / ".status", timeout=30):
        if _read(folder / STATUS).get("pid") == os.getpid():  # what the supervisor wrote itself stays
            files.write_json(folder / STATUS, {"state": "queued", "pid": supervisor.pid, "born": born(supervisor.pid)})
    return job(place, name)


def jobs(root: str | os.PathLike[str]) -> list[Job]:
    """Every job of a workspace, newest first. A damaged folder is left out."""
    place = Path(root)
    if not place.is_dir():
        return []
    names = sorted((path.name for path in place.iterdir() if re.fullmatch(_ID, path.name)), reverse=True)
    found = []
    for name in names:
        try:
            found.append(job(place, name))
        except ValueError:
            continue
    return found


def job(root: str | os.PathLike[str], name: str) -> Job:
    """One job.

    Raises:
        ValueError: a name that is none, no such job, or a damaged one.
    """
    if not re.fullmatch(_ID, name):
        raise ValueError(f"{name[:60]!r} is no job: `interp jobs list` shows those that there are")
    folder = Path(root) / name
    if not folder.is_dir():
        raise ValueError(f"there is no job {name} in {root}")
    spec = files.read_json(folder / SPEC)
    words = spec.get("argv") if isinstance(spec, dict) else None
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words) or spec.get("format") != FORMAT:
        raise ValueError(f"{folder / SPEC} describes no job of this version: it is damaged, or of a newer one")
    try:
        return Job(folder, str(spec["kind"]), str(spec["title"]), tuple(words), float(spec["submitted"]))
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"{folder / SPEC} describes no job: it is damaged") from None


def cancel(root: str | os.PathLike[str], name: str) -> None:
    """Ask a job to end; what it has finished is kept. A job that is over stays as it is.

    Raises:
        ValueError: no such job.
    """
    found = job(root, name)
    if not found.status().is_over:
        (found.path / CANCEL).touch()


def again(root: str | os.PathLike[str], name: str) -> Job:
    """Start a job's command once more, as a new job; it goes on where it was.

    Raises:
        ValueError: no such job, one that still runs, or what `submit` refuses.
    """
    found = job(root, name)
    if not found.status().is_over:
        raise ValueError(f"job {name} is not over yet: cancel it first")
    return submit(root, found.argv, title=found.title, kind=found.kind)


def is_alive(pid: Any, since: Any) -> bool:
    """Whether a process with this number runs that began at that time."""
    return isinstance(pid, int) and since is not None and born(pid) == since


def born(pid: int) -> str | None:
    """When a process began, in the system's own units; None where there is none (or it is a zombie)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return None if sys.platform == "linux" else _born_by_ps(pid)
    return None if fields[0] == "Z" else fields[19]


def _born_by_ps(pid: int) -> str | None:
    found = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return found.stdout.strip() or None


def _output(words: Sequence[str]) -> str | None:
    """Where a command writes, which two jobs must not share."""
    return next((words[i + 1] for i, word in enumerate(words[:-1]) if word in ("--out", "--run")), None)


def _state_of(held: dict[str, Any]) -> JobState | None:
    """A state of what was read, None where that is none."""
    if held.get("state") not in (*TERMINAL, "queued", "running"):
        return None
    kinds: dict[str, Any] = {"step": str, "message": str, "error": str, "done": int, "total": int}
    kinds |= dict.fromkeys(("started", "ended", "code"), int | float | None)
    if any(name in held and not isinstance(held[name], kind) for name, kind in kinds.items()):
        return None
    return JobState(**{name: held[name] for name in JobState.__dataclass_fields__ if name in held})


def _last_write(folder: Path) -> float:
    """When anything was last written for a job, seconds since 1970."""
    return max((path.stat().st_mtime for path in folder.iterdir()), default=0.0)


def _read(path: Path) -> dict[str, Any]:
    try:
        held = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return held if isinstance(held, dict) else {}
