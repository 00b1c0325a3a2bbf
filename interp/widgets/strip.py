"""The token strip: a text as chips, coloured by one number per token."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import pandas as pd

from interp.tokenview import token_label
from interp.widgets.page import Widget


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
    mid: float | None = None
    """Makes the colours diverge: none here, orange down to `low`, blue up to `high`."""


@dataclass(frozen=True)
class TokenStrip(Widget):
    """A strip; `token_strip` makes it."""

    labels: tuple[tuple[int, str], ...]
    values: tuple[tuple[float | None, ...], ...]
    """[token track]"""
    tracks: tuple[Track, ...]
    selected: int | None

    asset: ClassVar[str] = "strip"
    pixels: ClassVar[int] = 340

    def data(self) -> dict[str, Any]:
        """Labels, numbers and scales as JSON values."""
        chips = [
            {"pos": pos, "label": label, "values": list(values), "breaks": "↵" in label}
            for (pos, label), values in zip(self.labels, self.values, strict=True)
        ]
        return {"tokens": chips, "tracks": [asdict(track) for track in self.tracks], "selected": self.selected}


def token_strip(frame: pd.DataFrame, tracks: Sequence[Track], selected: int | None = None) -> TokenStrip:
    """A strip of chips.

    Args:
        frame: a row per token: `pos`, `token` and the tracks' columns; NaN and infinity are shown as "none".
        tracks: what it can be coloured by; the first one does at the start.
        selected: position of the chosen token.

    Raises:
        ValueError: for a missing column, or a scale that is not low <= mid <= high, low < high.
    """
    missing = [name for name in ("pos", "token", *(track.column for track in tracks)) if name not in frame]
    if missing:
        raise ValueError(f"the frame has no column {', '.join(missing)}; it has {', '.join(map(str, frame))}")
    for track in tracks:
        middle = track.low if track.mid is None else track.mid
        if not track.low <= middle <= track.high or not track.low < track.high:
            raise ValueError(
                f"track {track.title!r} needs low < high with mid between: {track.low}, {track.mid}, {track.high}"
            )
    columns = [[_number(value) for value in frame[track.column]] for track in tracks]
    values = tuple(zip(*columns)) if columns else ((),) * len(frame)
    labels = tuple((int(pos), token_label(str(token))) for pos, token in zip(frame["pos"], frame["token"]))
    return TokenStrip(labels, values, tuple(tracks), None if selected is None else int(selected))


def _number(value: Any) -> float | None:
    return round(float(value), 4) if pd.notna(value) and math.isfinite(value) else None
