"""Mistral against transformers, with a window and without."""

from pathlib import Path
from typing import Any

import pytest
import torch
from parity import DECODER, check_parity, shaken
from transformers import MistralConfig, MistralForCausalLM

from interp.weights.mistral import configure

CASES: dict[str, dict[str, Any]] = {
    "multi-head, window": {"num_key_value_heads": 4, "sliding_window": 7},
    "grouped, no window": {"sliding_window": None, "tie_word_embeddings": True},
    "multi-query, window of one": {"num_key_value_heads": 1, "sliding_window": 1},
    "window as wide as the text, wide heads": {"sliding_window": 24, "head_dim": 16},
}


def reference(**changes: Any) -> MistralForCausalLM:
    torch.manual_seed(0)
    return shaken(MistralForCausalLM(MistralConfig(**{**DECODER, **changes})))


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_parity(changes: dict[str, Any], tmp_path: Path) -> None:
    ours = check_parity(reference(**changes), tmp_path, casts=True)
    assert (ours.cfg.window, ours.cfg.window_layers) == (changes["sliding_window"], None)
    assert ours.cfg.family == "mistral"


def test_an_absent_window_is_the_published_one_and_null_is_none() -> None:
    assert configure(DECODER, "tiny").window == 4096
    assert configure({**DECODER, "sliding_window": None}, "tiny").window is None
    without = {key: value for key, value in DECODER.items() if key != "num_key_value_heads"}
    assert configure({**without, "num_attention_heads": 16, "hidden_size": 64}, "tiny").kv_heads == 8


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"layer_types": ["full_attention"] * 3}, r"\['full_attention'\] with sliding_window=4096"),
        ({"layer_types": ["sliding_attention"] * 2}, "2 entries for 3 layers"),
        ({"attention_bias": True}, "attention_bias=True, which the Mistral family"),
        ({"num_local_experts": 8}, "num_local_experts=8"),
    ],
)
def test_options_that_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        configure({**DECODER, **changes}, "tiny")
