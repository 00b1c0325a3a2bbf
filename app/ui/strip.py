"""The token strip: the prompt as chips, coloured by one number per token; hover for the numbers, click to choose one.

A component of our own, since Streamlit's texts cannot carry hover and click, and HTML made from tokens is never safe. The
script only sets `textContent`; hovering and the choice of the colour stay in the browser, a click goes to Python.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st
from streamlit.components.v2 import component

from interp import plot

_FILES = Path(__file__).parent
_component = component(
    "interp_token_strip",
    html='<div class="strip"></div>',
    css=(_FILES / "strip.css").read_text("utf-8"),
    js=(_FILES / "strip.js").read_text("utf-8"),
)


@dataclass(frozen=True)
class Track:
    """One number per token that can colour the strip."""

    column: str
    """Column of the frame."""
    title: str
    unit: str = ""
    low: float = 0.0
    """No colour at this value ..."""
    high: float = 1.0
    """... full colour at this one. Fixed, so that two prompts can be compared."""


def token_strip(
    frame: pd.DataFrame, tracks: Sequence[Track], *, selected: int, on_pick: Callable[[int], None], key: str
) -> None:
    """Draw the strip.

    Args:
        frame: a row per token: `pos`, `token` and the tracks' columns; NaN is shown as "none".
        tracks: what it can be coloured by; the first one does at the start.
        selected: position of the chosen token.
        on_pick: called with the position that was clicked.
        key: of the component.
    """
    _component(
        key=key,
        data=strip_data(frame, tracks, selected),
        on_pick_change=lambda: _picked(key, len(frame), on_pick),
        height="content",
    )


def strip_data(frame: pd.DataFrame, tracks: Sequence[Track], selected: int) -> dict[str, Any]:
    """What the script gets: labels, numbers and scales as JSON values."""
    columns = [[_number(value) for value in frame[track.column]] for track in tracks]
    chips = [
        {"pos": int(pos), "label": plot.token_label(str(token)), "values": list(values)}
        for pos, token, *values in zip(frame["pos"], frame["token"], *columns, strict=True)
    ]
    for chip in chips:
        chip["breaks"] = "↵" in chip["label"]
    return {"tokens": chips, "tracks": [asdict(track) for track in tracks], "selected": int(selected)}


def _picked(key: str, n_tokens: int, on_pick: Callable[[int], None]) -> None:
    pos = getattr(st.session_state.get(key), "pick", None)
    # It comes from the browser: believe nothing.
    if isinstance(pos, int | float) and math.isfinite(pos) and 0 <= pos < n_tokens:
        on_pick(int(pos))


def _number(value: Any) -> float | None:
    return round(float(value), 4) if pd.notna(value) and math.isfinite(value) else None
