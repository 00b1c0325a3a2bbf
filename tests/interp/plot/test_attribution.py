"""Charts of shares: what is drawn, and what is refused."""

import pandas as pd
import pytest
from tiny import shaken_model

from interp.attribution import WAYS, direct_logit_attribution
from interp.plot.attribution import attribution_bars, attribution_heads, attribution_waterfall


@pytest.mark.parametrize("by", WAYS)
def test_every_way_has_a_chart(by: str) -> None:
    chart = direct_logit_attribution(shaken_model("gpt2"), ["abcd", "efgh"], "a", by=by).plot().to_dict()
    assert chart["layer"]


def test_bars_keep_the_largest_in_their_order() -> None:
    frame = pd.DataFrame({"part": ["a", "b", "c"], "mean": [1.0, 0.1, -2.0]})
    chart = attribution_bars(frame, k=2).to_dict()
    drawn = next(iter(chart["datasets"].values()))
    assert [row["part"] for row in drawn] == ["a", "c"]


def test_a_waterfall_ends_at_the_sum() -> None:
    frame = pd.DataFrame({"part": ["a", "b"], "mean": [1.0, -3.0]})
    drawn = [rows for rows in attribution_waterfall(frame).to_dict()["datasets"].values() if len(rows) == 3]
    assert [(row["start"], row["end"]) for row in drawn[0]] == [(0.0, 1.0), (1.0, -2.0), (0.0, -2.0)]


def test_frames_that_cannot_be_drawn_are_refused() -> None:
    with pytest.raises(ValueError, match="no column"):
        attribution_bars(pd.DataFrame({"part": ["a"]}))
    twice = pd.DataFrame({"layer": [0, 0], "head": [1, 1], "mean": [0.1, 0.2]})
    with pytest.raises(ValueError, match="several rows"):
        attribution_heads(twice)
