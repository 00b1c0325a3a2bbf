"""Mixtral against transformers, in both layouts of its experts, and what its configuration may say."""

from pathlib import Path
from typing import Any

import pytest
import torch
from parity import IDS, assert_equal, check_parity, our_layers, run_reference, shaken
from transformers import MixtralConfig, MixtralForCausalLM

from interp.weights.load import load
from interp.weights.mixtral import configure

SIZES: dict[str, Any] = {
    "vocab_size": 120,
    "hidden_size": 32,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_local_experts": 4,
    "max_position_embeddings": 64,
    "attn_implementation": "eager",
    "experts_implementation": "eager",
}
CASES: dict[str, dict[str, Any]] = {
    "grouped": {},
    "multi-head, window": {"num_key_value_heads": 4, "sliding_window": 7},
    "multi-query, tied, one expert": {"num_key_value_heads": 1, "tie_word_embeddings": True, "num_experts_per_tok": 1},
    "wide heads, three of six experts": {"head_dim": 16, "num_local_experts": 6, "num_experts_per_tok": 3},
}


def reference(**changes: Any) -> MixtralForCausalLM:
    torch.manual_seed(0)
    return shaken(MixtralForCausalLM(MixtralConfig(**{**SIZES, **changes})), matrices=0.15)


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_parity(changes: dict[str, Any], tmp_path: Path) -> None:
    theirs = reference(**changes)
    ours = check_parity(theirs, tmp_path, casts=True, experts=True)
    assert ours.n_params == sum(weight.numel() for weight in theirs.parameters())


def test_experts_that_a_file_keeps_as_one_block(tmp_path: Path) -> None:
    theirs = reference()
    theirs.save_pretrained(tmp_path, save_original_format=False)
    ours = load(tmp_path)
    assert_equal(our_layers(ours, IDS), run_reference(theirs, IDS), 1e-5)
    state = ours.state_dict()
    gate, up, after = (state[f"blocks.1.mlp.experts.{name}.weight"] for name in ("1.gate", "1.up", "2.gate"))
    size = 24 * 32 * 4
    assert up.data_ptr() - gate.data_ptr() == after.data_ptr() - up.data_ptr() == size, "views of the file"


def test_router_sites_are_transformers(tmp_path: Path) -> None:
    theirs = reference()
    theirs.save_pretrained(tmp_path)
    _, cache = load(tmp_path).run_with_cache(IDS, ["*.hook_router_logits", "*.hook_expert_indices"])
    with torch.no_grad():
        expected = theirs(IDS, output_router_logits=True).router_logits
    for layer, logits in enumerate(expected):
        found = cache[f"blocks.{layer}.mlp.hook_router_logits"]
        torch.testing.assert_close(found.flatten(0, 1), logits, atol=1e-5, rtol=0)
        chosen = cache[f"blocks.{layer}.mlp.hook_expert_indices"].flatten(0, 1)
        assert torch.equal(chosen.sort(-1).values, logits.topk(2, -1).indices.sort(-1).values)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_experts_per_tok": 5}, r"top_k must lie in 1\.\.4"),
        ({"attention_bias": True}, "attention_bias=True"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config"),
        ({"hidden_size": None}, "lacks 'hidden_size'"),
    ],
)
def test_options_that_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        configure({**MixtralConfig(**SIZES).to_dict(), **changes}, "tiny")
