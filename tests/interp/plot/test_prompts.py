"""Charts of two prompts: every token and distance is drawn, and nothing is read as markup."""

import pandas as pd
import pytest

from interp.plot import to_svg
from interp.plot.prompts import next_token_pairs, prompt_distances


def test_next_token_pairs_have_a_row_for_each_token_and_both_probabilities() -> None:
    frame = pd.DataFrame({"token": ["<b>x</b>", " y", " y"], "p_a": [0.9, 0.05, 0.0], "p_b": [0.1, 0.6, 0.01]})
    spec = next_token_pairs(frame).to_dict()
    dots = list(spec["datasets"].values())
    assert sorted(len(rows) for rows in dots) == [3, 6]
    svg = to_svg(next_token_pairs(frame))
    assert "<b>" not in svg
    assert "1: &lt;b>x" in svg or "1: &lt;b&gt;x" in svg


def test_prompt_distances_draw_both_lines() -> None:
    frame = pd.DataFrame({"layer": [-1, 0, 1], "js": [0.0, 0.1, 0.6], "tv": [0.0, 0.2, 0.9]})
    rows = next(iter(prompt_distances(frame).to_dict()["datasets"].values()))
    assert {row["line"] for row in rows} == {"Jensen-Shannon (nats)", "total variation"}
    with pytest.raises(ValueError, match="tv"):
        prompt_distances(frame.drop(columns="tv"))
