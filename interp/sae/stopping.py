"""Ctrl-C between two steps, never inside one: so a run can save what it has before it stops."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """Whether a signal has asked the run to stop."""

    def __init__(self) -> None:
        self._signal: int | None = None
        self._obeyed = False

    @property
    def asked(self) -> bool:
        """True from the signal on."""
        return self._signal is not None

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if self._signal is not None:  # asked twice: at once, wherever it is
            raise KeyboardInterrupt
        self._signal = number

    def obey(self) -> None:
        """Stop now, as the signal would by itself; also where only another process was asked."""
        self._obeyed = True
        if self._signal == signal.SIGTERM:
            raise SystemExit(128 + signal.SIGTERM)
        raise KeyboardInterrupt


@contextmanager
def stoppable() -> Iterator[Stop]:
    """Hold back ctrl-C and SIGTERM inside the block. Only the main thread receives signals; elsewhere nothing changes."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, stop._note) for number in _SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if stop.asked and not stop._obeyed:
        stop.obey()
