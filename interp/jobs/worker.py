"""The supervisor of one background job: `python -m interp.jobs.worker FOLDER`.

It waits for its turn, runs the command in a process group of its own, passes on a request to end (an interrupt first, so that
the piece of work under way is finished and kept; a kill after a while), and writes what became of it.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from interp import files
from interp.jobs.background import CANCEL, LOG_FILE, PROGRESS, STATUS, Job, born, job, jobs
from interp.jobs.progress import VARIABLE

TICK_S = 0.2
GRACE_S = 15.0
"""Time between the interrupt and the kill."""
MOST_LOG = 32 * 2**20
"""A log that grows beyond this ends its job: something is wrong."""
TURN = ".turn"


def main(folder: str) -> int:
    """Run the job in this folder; 0 where it was done."""
    path = Path(folder)
    own = job(path.parent, path.name)
    # Only processes that stay idle while they wait: two that spin share two cores badly.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    note = {"pid": os.getpid(), "born": born(os.getpid())}
    with FileLock(path / ".status", timeout=30):
        files.write_json(path / STATUS, {"state": "queued", **note})
    turn = FileLock(path.parent / TURN, timeout=0)
    while not _its_turn(own, turn):
        if (path / CANCEL).exists():
            files.write_json(path / STATUS, {"state": "cancelled", "ended": time.time(), **note})
            return 1
        time.sleep(TICK_S)
    try:
        return _run(own, note)
    finally:
        turn.release()


def _its_turn(own: Job, turn: FileLock) -> bool:
    """Take the turn where no older job waits for it."""
    try:
        turn.acquire()
    except Timeout:
        return False
    older = [each for each in jobs(own.path.parent) if (each.submitted, each.id) < (own.submitted, own.id)]
    if any(not each.status().is_over for each in older):
        turn.release()
        return False
    return True


def _run(own: Job, note: dict[str, Any]) -> int:
    path, started = own.path, time.time()
    files.write_json(path / STATUS, {"state": "running", "started": started, **note})
    environment = os.environ | {VARIABLE: str(path / PROGRESS), "PYTHONUNBUFFERED": "1"}
    with (path / LOG_FILE).open("ab") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "interp", *own.argv],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )
        note |= {"child": child.pid, "child_born": born(child.pid)}
        files.write_json(path / STATUS, {"state": "running", "started": started, **note})
        why = _watch(path, child)
    code = child.returncode
    state = "done" if code == 0 else "cancelled" if why == "cancelled" else "failed"
    lines = [line for line in own.log_tail().splitlines() if line.strip()]
    error = (
        ""
        if state == "done"
        else why
        if why not in ("", "cancelled")
        else (lines[-1] if lines else f"exit status {code}")
    )
    told = {"started": started, "ended": time.time(), "code": code, "error": error[:500]}
    files.write_json(path / STATUS, {"state": state, **told, **note})
    return 0 if state == "done" else 1


def _watch(path: Path, child: "subprocess.Popen[bytes]") -> str:
    """Wait for the end; "" where it came by itself, else why it was brought about."""
    why, asked = "", 0.0
    while child.poll() is None:
        if not why and (path / CANCEL).exists():
            why, asked = "cancelled", time.monotonic()
            _signal(child, signal.SIGINT)
        elif not why and (path / LOG_FILE).stat().st_size > MOST_LOG:
            # At once: what writes so much would fill the disk while it is asked to end.
            why, asked = "it wrote more to its log than any job should", -GRACE_S
        if why and time.monotonic() - asked > GRACE_S:
            _signal(child, signal.SIGKILL)
        time.sleep(TICK_S)
    return why


def _signal(child: "subprocess.Popen[bytes]", number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
