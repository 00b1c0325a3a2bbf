"""The token strip of `interp.widgets` in a page: hover for the numbers, click to choose a token.

A component of our own, since Streamlit's texts cannot carry hover and click, and HTML made from tokens is never safe. The
script only sets `textContent`; hovering and the choice of the colour stay in the browser, a click goes to Python.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd
import streamlit as st
from streamlit.components.v2 import component

from interp import widgets
from interp.widgets import Track as Track
from interp.widgets.page import source

_component = component(
    "interp_token_strip", html='<div class="strip"></div>', css=source("strip.css"), js=source("strip.js")
)


def token_strip(
    frame: pd.DataFrame,
    tracks: Sequence[Track],
    *,
    selected: int,
    on_pick: Callable[[int], None],
    key: str,
    on_second: Callable[[int], None] | None = None,
) -> None:
    """Draw the strip.

    Args:
        frame: a row per token: `pos`, `token` and the tracks' columns; NaN is shown as "none".
        tracks: what it can be coloured by; the first one does at the start.
        selected: position of the chosen token.
        on_pick: called with the position that was clicked.
        key: of the component.
        on_second: called with the position that was clicked with Shift.
    """
    _component(
        key=key,
        data=strip_data(frame, tracks, selected),
        on_pick_change=lambda: _picked(key, "pick", len(frame), on_pick),
        on_second_change=lambda: _picked(key, "second", len(frame), on_second),
        height="content",
    )


def strip_data(frame: pd.DataFrame, tracks: Sequence[Track], selected: int) -> dict[str, Any]:
    """What the script gets: labels, numbers and scales as JSON values."""
    return widgets.token_strip(frame, tracks, selected).data()


def _picked(key: str, name: str, n_tokens: int, then: Callable[[int], None] | None) -> None:
    pos = getattr(st.session_state.get(key), name, None)
    # It comes from the browser: believe nothing.
    if then is not None and isinstance(pos, int | float) and math.isfinite(pos) and 0 <= pos < n_tokens:
        then(int(pos))
