"""BLOOM against transformers, and what its configuration may say."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from parity import assert_equal, check_parity, our_layers, run_reference, shaken
from torch import Tensor
from transformers import BloomConfig, BloomForCausalLM
from transformers.models.bloom import modeling_bloom

from interp.weights.bloom import configure
from interp.weights.load import load

SIZES: dict[str, Any] = {
    "vocab_size": 120,
    "hidden_size": 32,
    "n_layer": 3,
    "n_head": 4,
    "seq_length": 64,
    "attn_implementation": "eager",
}
CASES: dict[str, dict[str, Any]] = {
    "as released": {},
    "heads beyond a power of two": {"hidden_size": 36, "n_head": 6},
    "slopes that are no powers of two": {"hidden_size": 48, "n_head": 12, "tie_word_embeddings": False},
    "another epsilon": {"layer_norm_epsilon": 1e-2, "slow_but_exact": True},
}


def reference(**changes: Any) -> BloomForCausalLM:
    torch.manual_seed(0)
    return shaken(BloomForCausalLM(BloomConfig(**{**SIZES, **changes})), matrices=0.15)


def gelu(x: Tensor) -> Tensor:
    """transformers' own with sqrt(2 / pi) in full: it writes eight digits, which fp64 would see."""
    return x * 0.5 * (1.0 + torch.tanh(math.sqrt(2 / math.pi) * x * (1 + 0.044715 * x * x)))


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_parity(changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modeling_bloom, "bloom_gelu_forward", gelu)
    theirs = reference(**changes)
    ours = check_parity(theirs, tmp_path, casts=True)
    assert ours.n_params == sum(weight.numel() for weight in theirs.parameters())


def test_parity_with_the_digits_that_transformers_writes(tmp_path: Path) -> None:
    theirs = reference()
    theirs.save_pretrained(tmp_path)
    ids = torch.randint(0, 120, (2, 60), generator=torch.Generator().manual_seed(1))
    assert_equal(our_layers(load(tmp_path), ids), run_reference(theirs, ids), 1e-5)


def test_the_words_of_released_configurations() -> None:
    released = {"vocab_size": 250880, "n_embed": 1024, "n_layer": 24, "num_attention_heads": 16, "seq_length": 2048}
    cfg = configure({**released, "apply_residual_connection_post_layernorm": False, "n_inner": None}, "bloom-560m")
    assert (cfg.n_layers, cfg.d_model, cfg.n_heads, cfg.d_mlp, cfg.n_ctx) == (24, 1024, 16, 4096, 2048)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"apply_residual_connection_post_layernorm": True}, "apply_residual_connection_post_layernorm=True"),
        ({"n_inner": 64}, "n_inner=64"),
        ({"hidden_size": None}, "lacks 'hidden_size'"),
    ],
)
def test_options_that_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        configure({**BloomConfig(**SIZES).to_dict(), **changes}, "tiny")
