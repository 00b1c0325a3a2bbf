"""Phi-3 against transformers, and what its configuration may say."""

from pathlib import Path
from typing import Any

import pytest
import torch
from parity import assert_equal, check_parity, edit_config, our_layers, run_reference, shaken
from transformers import Phi3Config, Phi3ForCausalLM

from interp.weights.load import load
from interp.weights.phi3 import configure

SIZES: dict[str, Any] = {
    "vocab_size": 120,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "original_max_position_embeddings": 64,
    "pad_token_id": 0,
    "attn_implementation": "eager",
}
CASES: dict[str, dict[str, Any]] = {
    "multi-head": {},
    "grouped, tied": {"num_key_value_heads": 2, "tie_word_embeddings": True},
    "multi-query, window": {"num_key_value_heads": 1, "sliding_window": 7},
    "a part of the head turns": {"partial_rotary_factor": 0.5, "rms_norm_eps": 1e-2},
}


def longrope(original: int) -> dict[str, Any]:
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0, 1.1, 1.2, 1.5],
        "long_factor": [1.0, 2.0, 3.0, 4.5],
        "original_max_position_embeddings": original,
    }
    return {"rope_parameters": rope, "original_max_position_embeddings": original}


def reference(**changes: Any) -> Phi3ForCausalLM:
    torch.manual_seed(0)
    return shaken(Phi3ForCausalLM(Phi3Config(**{**SIZES, **changes})), matrices=0.15)


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_parity(changes: dict[str, Any], tmp_path: Path) -> None:
    theirs = reference(**changes)
    ours = check_parity(theirs, tmp_path, casts=True)
    assert ours.n_params == sum(weight.numel() for weight in theirs.parameters())


@pytest.mark.parametrize(("original", "decode"), [(16, True), (32, False)], ids=["longer than the training", "shorter"])
def test_longrope(original: int, decode: bool, tmp_path: Path) -> None:
    """A text that grows past the training's context turns by other frequencies from then on: no cache can follow it."""
    ours = check_parity(reference(**longrope(original)), tmp_path, casts=True, decode=decode)
    assert ours.cfg.rope_scaling is not None
    assert ours.cfg.rope_scaling.factor == 64 / original


@pytest.mark.parametrize("kind", ["su", "yarn"])
def test_longrope_under_its_first_names(kind: str, tmp_path: Path) -> None:
    theirs = reference(**longrope(16))
    theirs.save_pretrained(tmp_path)
    rope = {"type": kind, **{key: longrope(16)["rope_parameters"][key] for key in ("short_factor", "long_factor")}}
    edit_config(tmp_path, {"rope_parameters": None, "rope_scaling": rope, "rope_theta": 10000.0})
    ids = torch.arange(30)[None]
    assert_equal(our_layers(load(tmp_path), ids), run_reference(theirs, ids), 1e-5)


def test_fused_weights_are_views_of_the_file(tmp_path: Path) -> None:
    reference(num_key_value_heads=2).save_pretrained(tmp_path)
    state = load(tmp_path).state_dict()
    q, k, v, gate, up = (
        state[f"blocks.1.{name}.weight"] for name in ("attn.q", "attn.k", "attn.v", "mlp.gate", "mlp.up")
    )
    assert k.data_ptr() - q.data_ptr() == 32 * 32 * 4
    assert v.data_ptr() - k.data_ptr() == 16 * 32 * 4
    assert up.data_ptr() - gate.data_ptr() == 48 * 32 * 4


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, "short_factor"),
        ({"attention_bias": True}, "attention_bias=True"),
        ({"num_local_experts": 16}, "num_local_experts=16"),
        ({"hidden_act": "xielu"}, "activation 'xielu'"),
    ],
)
def test_options_that_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        configure({**Phi3Config(**SIZES).to_dict(), **changes}, "tiny")
