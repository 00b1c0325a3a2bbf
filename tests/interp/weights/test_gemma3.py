"""Gemma 3 against transformers: two rotations, the norm of queries and keys, and models that also see images."""

from pathlib import Path
from typing import Any

import pytest
import torch
from parity import DECODER, IDS, check_parity, edit_config, shaken
from safetensors.torch import load_file, save_file
from transformers import Gemma3Config, Gemma3ForCausalLM, Gemma3ForConditionalGeneration, Gemma3TextConfig

from interp.weights.gemma3 import configure
from interp.weights.load import load

SIZES = {
    **DECODER,
    "head_dim": 8,
    "sliding_window": 7,
    "query_pre_attn_scalar": 20,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
ROPE = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 700.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 90.0},
}
CASES: dict[str, dict[str, Any]] = {
    "multi-head": {"num_key_value_heads": 4},
    "grouped, two rotations": {"rope_parameters": ROPE},
    "multi-query, biases, capped": {"num_key_value_heads": 1, "attention_bias": True, "final_logit_softcapping": 2.0},
    "no window": {"layer_types": ["full_attention"] * 3, "rope_parameters": ROPE},
    "windows alone, wide heads": {"layer_types": ["sliding_attention"] * 3, "rope_parameters": ROPE, "head_dim": 16},
}


def reference(**changes: Any) -> Gemma3ForCausalLM:
    torch.manual_seed(0)
    return shaken(Gemma3ForCausalLM(Gemma3TextConfig(**{**SIZES, **changes})))


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_parity(changes: dict[str, Any], tmp_path: Path) -> None:
    ours = check_parity(reference(**changes), tmp_path, casts=True)
    assert (ours.cfg.qk_norm, ours.cfg.norm_offset, ours.cfg.family) == ("head", True, "gemma3")
    if "rope_parameters" in changes:
        local = 90.0 if ours.cfg.window is not None else None
        assert (ours.cfg.rope_theta, ours.cfg.rope_theta_local) == (700.0, local)


def test_words_of_transformers_4(tmp_path: Path) -> None:
    """The rotations apart, and the pattern as a period."""
    theirs = reference(rope_parameters=ROPE, layer_types=["sliding_attention", "full_attention", "sliding_attention"])
    old = {
        "rope_parameters": None,
        "layer_types": None,
        "rope_theta": 700.0,
        "rope_local_base_freq": 90.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "sliding_window_pattern": 2,
    }
    check_parity(theirs, tmp_path, casts=True, config_changes=old)


def test_what_a_released_file_leaves_out() -> None:
    cfg = configure({"hidden_size": 640, "intermediate_size": 2048, "num_hidden_layers": 18}, "tiny")
    assert (cfg.n_heads, cfg.kv_heads, cfg.d_head, cfg.d_vocab, cfg.n_ctx) == (8, 4, 256, 262_208, 131_072)
    assert (cfg.rope_theta, cfg.rope_theta_local, cfg.window) == (1e6, 1e4, 4096)
    assert [layer for layer in range(18) if not cfg.has_window(layer)] == [5, 11, 17]


def with_images(folder: Path) -> Gemma3ForConditionalGeneration:
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision |= {"image_size": 28, "patch_size": 14}
    sizes = {key: value for key, value in SIZES.items() if key != "attn_implementation"}
    config = Gemma3Config(
        text_config=Gemma3TextConfig(**sizes), vision_config=vision, mm_tokens_per_image=4, attn_implementation="eager"
    )
    torch.manual_seed(0)
    model = shaken(Gemma3ForConditionalGeneration(config))
    model.save_pretrained(folder)
    return model


def test_models_that_see_images_are_read_as_text_models(tmp_path: Path) -> None:
    theirs = with_images(tmp_path)
    ours = load(tmp_path)
    assert ours.cfg.family == "gemma3"
    with torch.no_grad():
        expected = theirs(IDS).logits
        torch.testing.assert_close(ours(IDS).as_subclass(torch.Tensor), expected, atol=1e-5, rtol=0)
        path = tmp_path / "model.safetensors"
        old = {_old_name(name): weight for name, weight in load_file(path).items()}
        save_file(old, path)
        torch.testing.assert_close(load(tmp_path)(IDS).as_subclass(torch.Tensor), expected, atol=1e-5, rtol=0)


def test_a_rope_scaling_that_was_added_is_for_layers_without_a_window(tmp_path: Path) -> None:
    rotations = {**ROPE, "full_attention": {"rope_type": "default", "rope_theta": 700.0}}
    reference(rope_parameters=rotations).save_pretrained(tmp_path)
    edit_config(tmp_path, {"rope_scaling": {"rope_type": "linear", "factor": 8.0}})
    theirs = Gemma3ForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    with torch.no_grad():
        torch.testing.assert_close(load(tmp_path)(IDS).as_subclass(torch.Tensor), theirs(IDS).logits, atol=1e-5, rtol=0)
    edit_config(tmp_path, {"rope_scaling": {"type": "linear", "factor": 8.0}})
    with pytest.raises(ValueError, match="which names no rope_type"):
        load(tmp_path)


def _old_name(name: str) -> str:
    """Names of the released files, before transformers moved the text model into `model`."""
    return name.replace("model.language_model.", "language_model.model.").replace("model.vision", "vision")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rope_parameters": {**ROPE, "sliding_attention": ROPE["full_attention"]}}, r"with a window \('linear'\)"),
        (
            {"rope_parameters": {"rope_theta": 1.0}},
            r"must name full_attention and sliding_attention, got \['rope_theta'\]",
        ),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping=50.0"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention=True"),
        ({"sliding_window": None}, "no sliding_window says how far it sees"),
    ],
)
def test_options_that_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        configure({**SIZES, **changes}, "tiny")


def test_refused_in_the_text_part_too(tmp_path: Path) -> None:
    reference().save_pretrained(tmp_path)
    text = {**SIZES, "use_bidirectional_attention": True}
    edit_config(tmp_path, {"text_config": text, "architectures": ["Gemma3ForConditionalGeneration"]})
    with pytest.raises(ValueError, match="use_bidirectional_attention=True"):
        load(tmp_path)
