"""GPT-2 against transformers; its weights are views of the file."""

from pathlib import Path
from typing import Any

import pytest
import torch
from parity import IDS, assert_equal, check_parity, edit_config, our_layers, run_reference, shaken
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel

from interp.weights.load import load

SIZES: dict[str, Any] = {
    "vocab_size": 120,
    "n_embd": 32,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 64,
    "bos_token_id": None,
    "eos_token_id": None,
    "attn_implementation": "eager",
}
CASES: dict[str, dict[str, Any]] = {
    "tied": {},
    "untied": {"tie_word_embeddings": False},
    "narrow MLP": {"n_inner": 48},
    "another activation": {"activation_function": "relu", "layer_norm_epsilon": 1e-2},
    "exact GELU, wide MLP": {"activation_function": "gelu", "n_inner": 80},
}


def reference(**changes: Any) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    return shaken(GPT2LMHeadModel(GPT2Config(**{**SIZES, **changes})))


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_parity(changes: dict[str, Any], tmp_path: Path) -> None:
    theirs = reference(**changes)
    ours = check_parity(theirs, tmp_path, casts=False)
    assert ours.n_params == sum(weight.numel() for weight in theirs.parameters())
    assert ours.cfg.family == "gpt2"


def test_weights_are_views_of_the_file(tmp_path: Path) -> None:
    reference().save_pretrained(tmp_path)
    attn, d_model = load(tmp_path).blocks[0].attn, 32
    assert attn.q.weight.stride() == attn.v.weight.stride() == (1, 3 * d_model)
    assert attn.v.weight.data_ptr() - attn.q.weight.data_ptr() == 2 * d_model * 4
    assert attn.o.weight.stride() == (1, d_model)


def test_names_without_prefix_and_leftovers_of_old_files(tmp_path: Path) -> None:
    theirs = reference()
    theirs.save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    state = {name.removeprefix("transformer."): weight for name, weight in state.items()}
    state |= {f"h.{layer}.attn.bias": torch.ones(1, 1, 64, 64).tril() for layer in range(3)}
    state |= {f"h.{layer}.attn.masked_bias": torch.tensor(-1e4) for layer in range(3)}
    save_file(state, tmp_path / "model.safetensors")
    assert_equal(our_layers(load(tmp_path), IDS), run_reference(theirs, IDS), 1e-5)


@pytest.mark.parametrize("option", ["scale_attn_by_inverse_layer_idx", "add_cross_attention"])
def test_options_that_are_refused(option: str, tmp_path: Path) -> None:
    reference().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=f"{option}=True"):
        load(edit_config(tmp_path, {option: True}))
