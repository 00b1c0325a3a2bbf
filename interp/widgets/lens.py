"""The lens grid: a row for each token, a column for each layer, the lens's best guess in each cell."""

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from interp.tokenview import token_label
from interp.widgets.page import Widget

MAX_CELLS = 40_000
_COLUMNS = ("p_top1", "entropy", "kl", "loss", "p_target", "rank")


@dataclass(frozen=True, eq=False)
class LensView(Widget):
    """A grid; `lens_view` makes it."""

    frame: pd.DataFrame = field(repr=False)
    """The lines that are shown: site, pos, token, top1 and the statistics."""
    column: str
    """Statistic of the colour."""
    note: str
    """What is left out, or empty."""

    asset: ClassVar[str] = "lens"
    pixels: ClassVar[int] = 620

    def data(self) -> dict[str, Any]:
        """Sites, tokens and cells [token site] as JSON values; a missing number is null."""
        sites, places = list(dict.fromkeys(self.frame["site"])), list(dict.fromkeys(self.frame["pos"]))
        shown = [name for name in _COLUMNS if name in self.frame]
        cells: list[list[Any]] = [[None] * len(sites) for _ in places]
        at, row = {site: i for i, site in enumerate(sites)}, {pos: i for i, pos in enumerate(places)}
        labels: list[str] = [""] * len(places)
        for line in self.frame.to_dict("records"):
            i = row[line["pos"]]
            labels[i] = token_label(str(line["token"]), 40)
            top = token_label(str(line["top1"]), 40)
            cells[i][at[line["site"]]] = {"top": top, "values": [_number(line[name]) for name in shown]}
        drawn = self.frame[self.column].to_numpy(float)
        drawn = drawn[np.isfinite(drawn)]
        share = self.column.startswith("p_")
        end = 1.0 if share else _number(drawn.max() if len(drawn) else 1.0) or 1.0
        return {
            "sites": [str(site) for site in sites], "tokens": labels, "pos": [int(pos) for pos in places], "cells": cells,
            "columns": shown, "column": shown.index(self.column), "low": 0.0, "high": end, "note": self.note,
        }  # fmt: skip


def lens_view(result: Any, column: str = "p_top1", *, stride: int = 1, text: int | None = None) -> LensView:
    """The lens as a grid.

    Args:
        result: of `interp.logit_lens`, or the frame that its `to_frame()` gives.
        column: statistic of the colour: p_top1, entropy, kl, loss, p_target (0 to its largest, shares 0 to 1) or rank.
        stride: every how many sites is shown, counted from the last; a note in the view says so.
        text: which text, where there are several; the first by default.

    Raises:
        ValueError: for a missing column, an unknown text, or more than 40,000 cells.
    """
    frame = result if isinstance(result, pd.DataFrame) else result.to_frame()
    if column not in _COLUMNS:
        raise ValueError(f"column must be one of {', '.join(_COLUMNS)}, got {column!r}")
    missing = [name for name in ("site", "pos", "token", "top1", column) if name not in frame]
    if missing or frame.empty:
        raise ValueError(f"the frame has no {f'column {chr(44).join(missing)}' if missing else 'rows'}")
    if stride < 1:
        raise ValueError(f"stride must be at least 1, got {stride}")
    notes = []
    if "text" in frame:
        texts = list(dict.fromkeys(frame["text"]))
        text = texts[0] if text is None else text
        if text not in texts:
            raise ValueError(f"there is no text {text}: there are {', '.join(map(str, texts[:20]))}")
        frame = frame.loc[frame["text"] == text]
        if len(texts) > 1:
            notes.append(f"Text {text}, one of {len(texts)}.")
    sites = list(dict.fromkeys(frame["site"]))
    kept = sites[::-1][::stride]
    if len(kept) < len(sites):
        frame = frame.loc[frame["site"].isin(kept)]
        notes.append(f"{len(kept)} of {len(sites)} layers are shown, one in {stride}, counted from the last.")
    if len(frame) > MAX_CELLS:
        raise ValueError(f"{len(frame):,} cells are more than {MAX_CELLS:,}: raise stride, or cut the text")
    if frame.duplicated(["site", "pos"]).any():
        raise ValueError("the frame has two lines for one site and position")
    return LensView(frame, column, " ".join(notes))


def _number(value: Any) -> float | None:
    return float(f"{value:.4g}") if pd.notna(value) and math.isfinite(value) else None
