"""OLMo-2 against transformers, and what its configuration may say."""

from pathlib import Path
from typing import Any

import pytest
import torch
from parity import check_parity, shaken
from transformers import Olmo2Config, Olmo2ForCausalLM

from interp.weights.load import load
from interp.weights.olmo2 import configure

SIZES: dict[str, Any] = {
    "vocab_size": 120,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "attn_implementation": "eager",
}
CASES: dict[str, dict[str, Any]] = {
    "multi-head": {},
    "grouped, biases": {"num_key_value_heads": 2, "attention_bias": True},
    "multi-query, tied": {"num_key_value_heads": 1, "tie_word_embeddings": True, "rms_norm_eps": 1e-2},
    "another base": {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
}


def reference(**changes: Any) -> Olmo2ForCausalLM:
    torch.manual_seed(0)
    return shaken(Olmo2ForCausalLM(Olmo2Config(**{**SIZES, **changes})), matrices=0.15)


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_parity(changes: dict[str, Any], tmp_path: Path) -> None:
    theirs = reference(**changes)
    ours = check_parity(theirs, tmp_path, casts=True)
    assert ours.n_params == sum(weight.numel() for weight in theirs.parameters())
    norm = ours.state_dict()["blocks.0.attn.k_norm.weight"]
    assert norm.shape == (ours.cfg.kv_heads * ours.cfg.d_head,)


def test_what_a_block_adds_is_normed(tmp_path: Path) -> None:
    reference().save_pretrained(tmp_path)
    ours = load(tmp_path)
    _, cache = ours.run_with_cache(torch.arange(20)[None])
    for part, norm in (("attn_out", "ln1_post"), ("mlp_out", "ln2_post")):
        added = cache[part, 1] / ours.state_dict()[f"blocks.1.{norm}.weight"]
        torch.testing.assert_close(added.pow(2).mean(-1), torch.ones(1, 20), atol=1e-3, rtol=0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"clip_qkv": 8.0}, "clip_qkv=8.0"),
        ({"sliding_window": 4096}, "sliding_window=4096"),
        ({"mlp_bias": True}, "mlp_bias=True"),
        ({"num_key_value_heads": 3}, "multiple of n_kv_heads"),
    ],
)
def test_options_that_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        configure({**Olmo2Config(**SIZES).to_dict(), **changes}, "tiny")
