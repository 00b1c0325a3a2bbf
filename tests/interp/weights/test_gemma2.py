"""Gemma 2 against transformers: soft-caps, sandwiched norms, windows in every second layer."""

from pathlib import Path
from typing import Any

import pytest
import torch
from parity import DECODER, IDS, check_parity, shaken
from transformers import Gemma2Config, Gemma2ForCausalLM

from interp.weights.gemma2 import configure

SIZES = {**DECODER, "head_dim": 8, "sliding_window": 7, "query_pre_attn_scalar": 20}
CAPS = {"attn_logit_softcapping": 1.5, "final_logit_softcapping": 2.0}
CASES: dict[str, dict[str, Any]] = {
    "multi-head, as published": {"num_key_value_heads": 4},
    "grouped, narrow caps": CAPS,
    "multi-query, no caps": {
        "num_key_value_heads": 1,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "attention_bias": True,
    },
    "no window, wide heads": {**CAPS, "head_dim": 16, "layer_types": ["full_attention"] * 3},
    "another pattern": {"layer_types": ["full_attention", "full_attention", "sliding_attention"], "rms_norm_eps": 1e-2},
}
LAYERS = {"no window, wide heads": None, "another pattern": (2,)}


def reference(**changes: Any) -> Gemma2ForCausalLM:
    torch.manual_seed(0)
    return shaken(Gemma2ForCausalLM(Gemma2Config(**{**SIZES, **changes})))


@pytest.mark.parametrize("case", CASES)
def test_parity(case: str, tmp_path: Path) -> None:
    ours = check_parity(reference(**CASES[case]), tmp_path, casts=True)
    assert ours.cfg.window_layers == LAYERS.get(case, (0, 2))
    assert (ours.cfg.norm_placement, ours.cfg.attn_scale) == ("sandwich", pytest.approx(20**-0.5))
    assert ours.cfg.attn_softcap == CASES[case].get("attn_logit_softcapping", 50.0)
    assert ours.cfg.final_softcap == CASES[case].get("final_logit_softcapping", 30.0)


@pytest.mark.parametrize("cap", CAPS)
def test_each_cap_changes_the_logits(cap: str) -> None:
    """So that the parity above would see one left out."""
    with torch.no_grad():
        capped = reference(**CAPS)(IDS).logits
        assert float((reference(**{**CAPS, cap: None})(IDS).logits - capped).abs().max()) > 1e-2


def test_absent_is_as_published_and_null_is_none() -> None:
    plain = configure(DECODER, "tiny")
    assert (plain.attn_softcap, plain.final_softcap, plain.window, plain.d_head) == (50.0, 30.0, 4096, 256)
    assert configure({**DECODER, "attn_logit_softcapping": None}, "tiny").attn_softcap is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sliding_window": None}, "no sliding_window says how far it sees"),
        ({"layer_types": ["chunked_attention"] * 3}, "chunked_attention"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention=True"),
        ({"hidden_activation": "xielu"}, "activation 'xielu'"),
    ],
)
def test_options_that_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        configure({**SIZES, **changes}, "tiny")
