"""Results of buttons: what took long, by the model's fingerprint and what was asked.

Streamlit's cache computes whatever is not there. Here a page first asks whether a result is there, and a button makes it,
with a progress bar that a cached function could not move.
"""

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

import streamlit as st

MOST = 32


class Shelf:
    """The last results, shared by all sessions."""

    def __init__(self) -> None:
        self._held: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> Any:
        """The result, None where there is none."""
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
            return self._held.get(key)

    def put(self, key: Hashable, value: Any) -> None:
        """Keep a result; the one that was asked for longest ago makes room."""
        with self._lock:
            self._held[key] = value
            while len(self._held) > MOST:
                self._held.popitem(last=False)


@st.cache_resource(show_spinner=False)
def shelf() -> Shelf:
    """The one shelf of the server."""
    return Shelf()
