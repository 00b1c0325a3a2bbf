"""OPT against transformers, and what its configuration may say."""

from pathlib import Path
from typing import Any

import pytest
import torch
from parity import check_parity, shaken
from safetensors.torch import load_file, save_file
from transformers import OPTConfig, OPTForCausalLM

from interp.weights.load import load
from interp.weights.opt import configure

SIZES: dict[str, Any] = {
    "vocab_size": 120,
    "hidden_size": 32,
    "ffn_dim": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "attn_implementation": "eager",
}
CASES: dict[str, dict[str, Any]] = {
    "as released": {},
    "no biases, untied": {"enable_bias": False, "tie_word_embeddings": False},
    "no last norm, another activation": {"_remove_final_layer_norm": True, "activation_function": "gelu"},
}


def reference(**changes: Any) -> OPTForCausalLM:
    torch.manual_seed(0)
    return shaken(OPTForCausalLM(OPTConfig(**{**SIZES, **changes})), matrices=0.15)


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_parity(changes: dict[str, Any], tmp_path: Path) -> None:
    theirs = reference(**changes)
    ours = check_parity(theirs, tmp_path, casts=True)
    unused = 2 * 32  # the two rows in front of the position table
    assert ours.n_params == sum(weight.numel() for weight in theirs.parameters()) - unused


def test_the_position_table_is_a_view_behind_its_first_two_rows(tmp_path: Path) -> None:
    theirs = reference()
    theirs.save_pretrained(tmp_path)
    table = load(tmp_path).state_dict()["pos_embed.weight"]
    assert table.shape == (64, 32)
    assert table.storage_offset() == 2 * 32
    assert torch.equal(table, theirs.model.decoder.embed_positions.weight[2:])


def test_names_of_the_bare_decoder(tmp_path: Path) -> None:
    theirs = reference()
    theirs.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    save_file({name.removeprefix("model."): weight for name, weight in load_file(path).items()}, path)
    ids = torch.arange(30)[None]
    with torch.no_grad():
        torch.testing.assert_close(load(tmp_path)(ids).as_subclass(torch.Tensor), theirs(ids).logits, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"do_layer_norm_before": False}, "do_layer_norm_before=False"),
        ({"word_embed_proj_dim": 16}, "word_embed_proj_dim=16"),
        ({"layer_norm_elementwise_affine": False}, "layer_norm_elementwise_affine=False"),
        ({"activation_function": "xielu"}, "activation 'xielu'"),
        ({"ffn_dim": None}, "lacks 'ffn_dim'"),
    ],
)
def test_options_that_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        configure({**OPTConfig(**SIZES).to_dict(), **changes}, "tiny")
