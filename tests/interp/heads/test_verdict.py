"""Verdicts on tables whose answer is known, and the edges of their three rules."""

import numpy as np
import pandas as pd
import pytest

from interp.heads.verdict import effect_band, head_verdicts


def table(**changes: dict[int, float]) -> pd.DataFrame:
    """Eight quiet heads of one layer, changed at some places."""
    quiet = {
        "layer": 3, "induction": 0.02, "induction_low": 0.01, "induction_null": 0.05, "previous_token": 0.05,
        "duplicate_token": 0.03, "current_token": 0.04, "effect": 0.0, "effect_low": -0.05, "in_set": np.nan,
        "in_set_low": np.nan,
    }  # fmt: skip
    frame = pd.DataFrame([{**quiet, "head": head, "effect": 0.01 * (head - 4)} for head in range(8)])
    for column, values in changes.items():
        for head, value in values.items():
            frame.loc[head, column] = value
    return frame


def words(frame: pd.DataFrame, gain: float = 10.0) -> list[str]:
    return head_verdicts(frame, gain)["verdict"].tolist()


def test_the_four_words() -> None:
    frame = table(
        induction={0: 0.9, 1: 0.7, 3: 0.8},
        induction_low={0: 0.85, 1: 0.6, 3: 0.75},
        effect={0: 2.4, 1: 0.1, 2: 6.6, 3: 0.05},
        effect_low={0: 2.0, 1: 0.02, 2: 5.0},
        in_set={0: 3.0, 1: 0.6},
        in_set_low={0: 2.5, 1: 0.3},
        previous_token={2: 0.89},
    )
    found = head_verdicts(frame, 10.0)
    assert found["verdict"].tolist() == ["induction", "redundant", "upstream", "none", "none", "none", "none", "none"]
    assert found["role"].tolist()[:3] == ["induction", "induction", "previous_token"]


def test_a_score_whose_interval_reaches_the_null_is_none() -> None:
    strong = {"effect": {0: 2.0}, "effect_low": {0: 1.0}, "induction": {0: 0.9}}
    assert words(table(**strong, induction_low={0: 0.06}))[0] == "induction"
    assert words(table(**strong, induction_low={0: 0.04}))[0] == "upstream"


def test_two_strong_heads_of_a_layer_do_not_hide_each_other() -> None:
    both = {"effect": {0: 2.4, 1: 1.5}, "effect_low": {0: 2.0, 1: 1.2}}
    assert words(table(**both))[:2] == ["upstream", "upstream"]


def test_an_effect_within_the_band_or_of_uncertain_sign_is_none() -> None:
    assert words(table(effect={0: 0.09}, effect_low={0: 0.05}))[0] == "none"  # below a hundredth of the gain
    assert words(table(effect={0: 2.0}, effect_low={0: -0.1}))[0] == "none"
    wide = table(effect={head: 0.5 * head for head in range(8)}, effect_low=dict.fromkeys(range(8), 0.01))
    assert words(wide)[7] == "none"


def test_a_head_that_was_not_tried_in_the_set_is_not_called_redundant() -> None:
    assert words(table(induction_low={0: 0.8}))[0] == "none"
    assert words(table(induction_low={0: 0.8}, in_set={0: 0.5}, in_set_low={0: -0.1}))[0] == "none"
    assert words(table(induction_low={0: 0.8}, in_set={0: 0.05}, in_set_low={0: 0.01}))[0] == "none"


def test_a_role_needs_a_score_that_stands_out() -> None:
    strong = {"effect": {0: 2.0}, "effect_low": {0: 1.0}}
    assert head_verdicts(table(**strong), 10.0)["role"][0] == ""
    assert head_verdicts(table(**strong, duplicate_token={0: 0.6}), 10.0)["role"][0] == "duplicate_token"
    nulls = table(**strong, duplicate_token={0: 0.6}).assign(duplicate_token_null=0.7)
    assert head_verdicts(nulls, 10.0)["role"][0] == ""


def test_the_band_is_that_of_the_other_heads_of_the_layer() -> None:
    layers = np.array([0.0, 0.0, 0.0, 0.0, 1.0])
    effects = np.array([9.0, 0.1, 0.2, 0.3, 5.0])
    band = effect_band(layers, effects, 0.01)
    assert band[0] == pytest.approx(0.2 + 3 * 1.4826 * 0.1)
    assert band[1] == pytest.approx(0.3 + 3 * 1.4826 * 0.1)
    assert band[4] == 0.01  # it has no other heads
