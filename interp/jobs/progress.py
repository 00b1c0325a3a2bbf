"""How a command tells the process that watches it how far it is: a small file, named by $INTERP_PROGRESS.

Without that variable nothing is written. A report of progress is never a reason to fail.
"""

import contextlib
import json
import os
import threading
import time
from pathlib import Path

VARIABLE = "INTERP_PROGRESS"
SECONDS_BETWEEN = 0.5
"""Reports that come sooner than this after the last one are left out, but for the end of a step."""

_lock = threading.Lock()
_last: dict[str, float] = {}


def note_progress(step: str, done: int, total: int, message: str = "") -> None:
    """So much of a step is done.

    Args:
        step: in words.
        done: parts that are done.
        total: parts in all; 0 where that is not known.
        message: anything else worth a line.
    """
    named = os.environ.get(VARIABLE)
    if not named:
        return
    now = time.monotonic()
    with _lock:
        if done < total and now - _last.get(step, -SECONDS_BETWEEN) < SECONDS_BETWEEN:
            return
        _last[step] = now
    path = Path(named)
    said = {"step": step, "done": int(done), "total": int(total), "message": message}
    with contextlib.suppress(OSError):
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        part.write_text(json.dumps(said), encoding="utf-8")
        os.replace(part, path)
