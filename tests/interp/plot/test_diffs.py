"""Charts of two models side by side: what is drawn, and what is refused."""

import pandas as pd
import pytest

from interp.plot.diffs import head_differences, layer_differences, score_pairs, token_differences
from interp.plot.style import to_svg

LAYERS = pd.DataFrame(
    {"layer": [-1, 0, 1], "a": [0.0, 0.1, 0.2], "a_low": [0.0, 0.05, 0.1], "a_high": [0.0, 0.2, 0.3]}
    | {f"b{end}": [float("nan"), 0.3, 0.1] for end in ("", "_low", "_high")}
)
HEADS = pd.DataFrame({"layer": [0, 0, 1, 1], "head": [0, 1, 0, 1], "own": [0.0, 2e-3, 1e-3, 0.0]})
TOKENS = pd.DataFrame(
    {"text": [0, 0], "pos": [3, 3], "token": ["a", "b"], "context": ["<b>x</b>", "y"], "next": ["c", "d"]}
    | {"kl": [2.0, 1.0], "top_a": ["c", " d"], "p_a": [0.5, 0.2], "top_b": ["e", "f"], "p_b": [0.1, 0.3]}
)


def test_layers_leave_out_what_is_missing_and_draw_bands() -> None:
    chart = layer_differences(LAYERS, {"a": "stream", "b": "one part"})
    svg = to_svg(chart)
    assert "stream" in svg
    assert "one part" in svg
    values = [row for rows in chart.to_dict()["datasets"].values() for row in rows if "line" in row]
    assert sum(row["line"] == "one part" for row in values) == 2
    assert len(chart.to_dict()["layer"]) == 3
    without = LAYERS.assign(a_low=float("nan"))
    assert len(layer_differences(without, {"a": "stream"}).to_dict()["layer"]) == 2


def test_the_scale_of_heads_ends_at_the_largest() -> None:
    chart = head_differences(HEADS, "own").to_dict()
    assert chart["layer"][0]["encoding"]["color"]["scale"]["domain"] == [0.0, 2e-3]
    assert to_svg(head_differences(HEADS.assign(own=0.0), "own"))


def test_tokens_of_one_place_in_text_keep_their_rows_and_markup_stays_text() -> None:
    svg = to_svg(token_differences(TOKENS))
    assert "<b>" not in svg
    assert "c → e" in svg
    assert "·d → f" in svg


def test_scores_stand_against_each_other() -> None:
    frame = HEADS.assign(induction_a=[0.0, 0.1, 0.9, 0.2], induction_b=[0.0, 0.4, 0.8, 0.2])
    assert "induction in a" in to_svg(score_pairs(frame, "induction"))
    with pytest.raises(ValueError, match="no column copying_a"):
        score_pairs(frame, "copying")


def test_an_empty_frame_is_refused() -> None:
    for draw in (token_differences, lambda frame: head_differences(frame, "own")):
        with pytest.raises(ValueError, match="no"):
            draw(pd.DataFrame())
