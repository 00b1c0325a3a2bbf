"""Falcon's three kinds of block against transformers, and what its configuration may say."""

from pathlib import Path
from typing import Any

import pytest
import torch
from parity import assert_equal, check_parity, edit_config, our_layers, run_reference, shaken
from torch import Tensor
from transformers import FalconConfig, FalconForCausalLM
from transformers.models.falcon import modeling_falcon

from interp.weights.falcon import configure
from interp.weights.load import load

ALIBI = modeling_falcon.build_alibi_tensor
SIZES: dict[str, Any] = {
    "vocab_size": 120,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "attn_implementation": "eager",
}
RW: dict[str, Any] = {"alibi": True, "bias": True, "multi_query": False, "parallel_attn": False}
NEW: dict[str, Any] = {"new_decoder_architecture": True, "num_kv_heads": 2}
CASES: dict[str, tuple[dict[str, Any], int]] = {
    "7B: multi-query": ({}, 1),
    "RW: ALiBi, multi-head, one after the other": (RW, 4),
    "RW with slopes that are no powers of two": ({**RW, "hidden_size": 48, "num_attention_heads": 12}, 12),
    "40B: grouped, two norms": (NEW, 2),
    "11B: grouped, one norm, untied": ({**NEW, "num_ln_in_parallel_attn": 1, "tie_word_embeddings": False}, 2),
    "multi-head, in parallel": ({"multi_query": False, "ffn_hidden_size": 48, "activation": "relu"}, 4),
    "multi-query, one after the other, biases": ({"parallel_attn": False, "bias": True}, 1),
    "another base": ({"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}, 1),
}


def reference(**changes: Any) -> FalconForCausalLM:
    torch.manual_seed(0)
    return shaken(FalconForCausalLM(FalconConfig(**{**SIZES, **changes})), matrices=0.15)


def halved_alibi(*args: Any, **kwargs: Any) -> Tensor:
    """transformers' eager Falcon adds ALiBi twice, with the mask and to the scores; its SDPA path adds it once."""
    return ALIBI(*args, **kwargs) / 2


@pytest.mark.parametrize(("changes", "kv_heads"), CASES.values(), ids=CASES)
def test_parity(changes: dict[str, Any], kv_heads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modeling_falcon, "build_alibi_tensor", halved_alibi)
    theirs = reference(**changes)
    ours = check_parity(theirs, tmp_path, casts=not theirs.config.alibi)
    assert ours.cfg.kv_heads == kv_heads
    assert ours.n_params == sum(weight.numel() for weight in theirs.parameters())


def test_alibi_is_rounded_as_falcon_was_trained(tmp_path: Path) -> None:
    """Beyond 256 even the positions are no bfloat16 numbers. Against transformers as it stands, by its SDPA path."""
    theirs = reference(**RW, max_position_embeddings=600, attn_implementation="sdpa")
    theirs.save_pretrained(tmp_path)
    ids = torch.randint(0, 120, (1, 600), generator=torch.Generator().manual_seed(1))
    assert_equal(our_layers(load(tmp_path), ids), run_reference(theirs, ids), 1e-5)


def test_multi_query_weights_are_views_of_the_file(tmp_path: Path) -> None:
    reference().save_pretrained(tmp_path)
    state = load(tmp_path).state_dict()
    q, k, v = (state[f"blocks.0.attn.{name}.weight"] for name in "qkv")
    assert k.data_ptr() - q.data_ptr() == 32 * 32 * 4
    assert v.data_ptr() - k.data_ptr() == 8 * 32 * 4


@pytest.mark.parametrize("flags", [{"multi_query": False}, NEW])
def test_flags_that_do_not_match_the_weights(flags: dict[str, Any], tmp_path: Path) -> None:
    reference().save_pretrained(tmp_path)
    edit_config(tmp_path, flags)
    words = (
        r"h\.0\.self_attention\.query_key_value\.weight has 48 outputs, where config\.json's 4 query and \d key heads"
    )
    with pytest.raises(ValueError, match=words):
        load(tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"apply_residual_connection_post_layernorm": True}, "apply_residual_connection_post_layernorm=True"),
        ({**NEW, "parallel_attn": False}, "parallel_attn=False"),
        ({**NEW, "num_ln_in_parallel_attn": 3}, "num_ln_in_parallel_attn=3"),
        ({"num_ln_in_parallel_attn": 2}, "num_ln_in_parallel_attn=2"),
        ({**NEW, "num_kv_heads": 3}, "multiple of n_kv_heads"),
        ({"activation": "xielu"}, "activation 'xielu'"),
    ],
)
def test_options_that_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        configure({**FalconConfig(**SIZES).to_dict(), **changes}, "tiny")
