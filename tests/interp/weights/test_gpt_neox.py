"""GPT-NeoX against transformers, and what its configuration may say."""

from pathlib import Path
from typing import Any

import pytest
import torch
from parity import check_parity, shaken
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from interp.weights.gpt_neox import configure

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
    "as Pythia": {"num_attention_heads": 2},
    "one after the other": {"use_parallel_residual": False, "rotary_pct": 1.0},
    "no attention biases, tied": {"attention_bias": False, "tie_word_embeddings": True, "rotary_pct": 0.5},
    "as NeoX-20B, another base": {"rotary_emb_base": 500, "hidden_act": "gelu_fast", "layer_norm_eps": 1e-2},
    "linear scaling": {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "partial_rotary_factor": 0.5}},
}


def reference(**changes: Any) -> GPTNeoXForCausalLM:
    torch.manual_seed(0)
    return shaken(GPTNeoXForCausalLM(GPTNeoXConfig(**{**SIZES, **changes})), matrices=0.15)


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_parity(changes: dict[str, Any], tmp_path: Path) -> None:
    theirs = reference(**changes)
    ours = check_parity(theirs, tmp_path, casts=True)
    assert ours.cfg.parallel == theirs.config.use_parallel_residual
    assert not ours.cfg.shared_norm
    assert ours.n_params == sum(weight.numel() for weight in theirs.parameters())


def test_the_words_of_released_configurations(tmp_path: Path) -> None:
    theirs = reference(rotary_pct=0.5, rotary_emb_base=500)
    released = {"rope_parameters": None, "rotary_pct": 0.5, "rotary_emb_base": 500}
    ours = check_parity(theirs, tmp_path, casts=True, config_changes=released)
    assert (ours.cfg.rotary_dim, ours.cfg.rope_theta) == (4, 500.0)


def test_each_option_changes_the_logits() -> None:
    """So that the parity above would see an option that is left out."""
    ids = torch.arange(40)[None]
    with torch.no_grad():
        plain = reference()(ids).logits
        for changes in ({"use_parallel_residual": False}, {"rotary_pct": 0.5}, {"hidden_act": "gelu_new"}):
            assert float((reference(**changes)(ids).logits - plain).abs().max()) > 1e-3, changes


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_act": "xielu"}, "activation 'xielu'"),
        ({"add_cross_attention": True}, "add_cross_attention=True"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ({"rotary_pct": 0.1, "rope_parameters": None}, "even number of dimensions"),
    ],
)
def test_options_that_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        configure({**GPTNeoXConfig(**SIZES).to_dict(), **changes}, "tiny")
