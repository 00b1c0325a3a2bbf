"""Qwen3 against transformers: the norm of queries and keys, over MHA, GQA and MQA."""

from pathlib import Path
from typing import Any

import pytest
import torch
from parity import DECODER, check_parity, shaken
from transformers import Qwen3Config, Qwen3ForCausalLM

from interp.weights.qwen3 import configure

CASES: dict[str, dict[str, Any]] = {
    "multi-head, tied": {"num_key_value_heads": 4, "tie_word_embeddings": True, "head_dim": 8},
    "grouped, wide heads": {"head_dim": 16},
    "multi-query, biases": {"num_key_value_heads": 1, "head_dim": 8, "attention_bias": True, "rms_norm_eps": 1e-2},
    "window": {"head_dim": 8, "use_sliding_window": True, "sliding_window": 7, "max_window_layers": 2},
}


def reference(**changes: Any) -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    return shaken(Qwen3ForCausalLM(Qwen3Config(**{**DECODER, **changes})))


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_parity(changes: dict[str, Any], tmp_path: Path) -> None:
    ours = check_parity(reference(**changes), tmp_path, casts=True)
    assert (ours.cfg.qk_norm, ours.cfg.family) == ("head", "qwen3")
    assert ours.state_dict()["blocks.0.attn.q_norm.weight"].shape == (changes.get("head_dim"),)


def test_the_published_width_of_a_head() -> None:
    assert configure(DECODER, "tiny").d_head == 128


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"use_qk_norm": False}, "use_qk_norm=False"),
        ({"num_experts": 128}, "num_experts=128"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping=30.0"),
    ],
)
def test_options_that_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        configure({**DECODER, **changes}, "tiny")
