"""GPT-J against transformers, and what its configuration may say."""

from pathlib import Path
from typing import Any

import pytest
import torch
from parity import check_parity, shaken
from transformers import GPTJConfig, GPTJForCausalLM

from interp.weights.gptj import configure

SIZES: dict[str, Any] = {
    "vocab_size": 120,
    "n_embd": 32,
    "n_layer": 3,
    "n_head": 2,
    "n_positions": 64,
    "rotary_dim": 4,
    "attn_implementation": "eager",
}
CASES: dict[str, dict[str, Any]] = {
    "a part of the head turns": {},
    "all of the head turns": {"rotary_dim": 16, "n_inner": 48},
    "tied, another activation": {"tie_word_embeddings": True, "activation_function": "relu"},
}


def reference(**changes: Any) -> GPTJForCausalLM:
    """transformers keeps a table of sines in fp32; here it is one in fp64 of the same fp32 frequencies, as ours is."""
    torch.manual_seed(0)
    model = shaken(GPTJForCausalLM(GPTJConfig(**{**SIZES, **changes})), matrices=0.15)
    width = model.config.rotary_dim
    frequencies = 1.0 / (10000 ** (torch.arange(0, width, 2, dtype=torch.int64) / width))
    angles = torch.arange(model.config.n_positions).double()[:, None] * frequencies
    table = torch.cat((angles.sin(), angles.cos()), 1)
    rotary = model.transformer.rotary_emb
    torch.testing.assert_close(rotary.embed_positions.double(), table, atol=1e-5, rtol=0)
    rotary.embed_positions = table
    return model


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_parity(changes: dict[str, Any], tmp_path: Path) -> None:
    theirs = reference(**changes)
    ours = check_parity(theirs, tmp_path, casts=True)
    assert ours.cfg.parallel
    assert ours.cfg.shared_norm
    assert ours.cfg.rope_pairing == "adjacent"
    assert ours.n_params == sum(weight.numel() for weight in theirs.parameters())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"scale_attn_weights": False}, "scale_attn_weights=False"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rope_scaling"),
        ({"rotary_dim": 5}, "even number of dimensions"),
        ({"n_embd": None}, "lacks 'n_embd'"),
    ],
)
def test_options_that_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        configure({**GPTJConfig(**SIZES).to_dict(), **changes}, "tiny")
