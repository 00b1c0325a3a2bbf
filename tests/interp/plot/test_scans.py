"""Bars of effects on one prompt."""

import numpy as np
import pandas as pd
import pytest

from interp.plot import to_svg
from interp.plot.scans import lead_bars

FRAME = pd.DataFrame({"part": ["L1H2", "<b>"], "effect": [2.0, -1.0], "low": [1.5, np.nan], "high": [2.5, np.nan]})


def test_a_bar_for_each_part_and_a_line_where_there_is_an_interval() -> None:
    svg = to_svg(lead_bars(FRAME, "fall (logits)"))
    assert svg.count('stroke="currentColor"') == 1
    assert "L1H2" in svg
    assert "fall (logits)" in svg
    assert "<b>" not in svg


def test_frames_without_rows_or_columns_are_refused() -> None:
    with pytest.raises(ValueError, match="no rows"):
        lead_bars(FRAME.head(0), "x")
    with pytest.raises(ValueError, match="no column low"):
        lead_bars(FRAME.drop(columns="low"), "x")
