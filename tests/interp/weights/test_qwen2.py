"""Qwen2 against transformers: biases, and windows in the upper layers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from parity import DECODER, check_parity, shaken
from transformers import Qwen2Config, Qwen2ForCausalLM

from interp.weights.qwen2 import configure

WINDOW = {"use_sliding_window": True, "sliding_window": 7}
YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 16}
CASES: dict[str, dict[str, Any]] = {
    "multi-head, tied": {"num_key_value_heads": 4, "tie_word_embeddings": True},
    "grouped, upper layers have a window": {**WINDOW, "max_window_layers": 1},
    "multi-query, all layers have one": {"num_key_value_heads": 1, **WINDOW, "max_window_layers": 0},
    "a pattern of layers": {**WINDOW, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    "a window that is switched off": {"use_sliding_window": False, "sliding_window": 7, "max_window_layers": 0},
    "YaRN": {"rope_parameters": YARN},
}
LAYERS = {
    "grouped, upper layers have a window": (1, 2),
    "multi-query, all layers have one": None,
    "a pattern of layers": (0, 2),
}


def reference(**changes: Any) -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    return shaken(Qwen2ForCausalLM(Qwen2Config(**{**DECODER, **changes})))


@pytest.mark.parametrize("case", CASES)
def test_parity(case: str, tmp_path: Path) -> None:
    ours = check_parity(reference(**CASES[case]), tmp_path, casts=True)
    assert ours.cfg.window == (7 if case in LAYERS else None)
    assert ours.cfg.window_layers == LAYERS.get(case)
    assert (ours.cfg.qkv_bias, ours.cfg.out_bias, ours.cfg.family) == (True, False, "qwen2")


def test_released_files_say_nothing_of_layer_types() -> None:
    """Qwen2.5's config.json: a window of the whole context, switched off, from a layer that does not exist."""
    released = {"use_sliding_window": False, "sliding_window": 32768, "max_window_layers": 21, "rope_theta": 1e6}
    assert configure({**DECODER, **released}, "tiny").window is None
    on = configure({**DECODER, **released, "use_sliding_window": True, "max_window_layers": 2}, "tiny")
    assert (on.window, on.window_layers) == (32768, (2,))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"layer_types": ["sliding_attention"] * 3}, "no sliding_window says how far it sees"),
        ({"layer_types": ["linear_attention"] * 3}, r"kind \['linear_attention'\]; the Qwen2 family"),
        ({"attention_bias": False}, "attention_bias=False"),
        ({"rope_scaling": {"type": "default", "mrope_section": [1, 1, 2]}}, "mrope_section"),
    ],
)
def test_options_that_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        configure({**DECODER, **changes}, "tiny")
