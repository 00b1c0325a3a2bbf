"""Llama against transformers: kinds of attention, options, and every way to stretch its positions."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from parity import DECODER, IDS, assert_equal, check_parity, edit_config, our_layers, run_reference, shaken
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from interp.weights.llama import configure, llama3_factors
from interp.weights.load import load


def reference(**changes: Any) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return shaken(LlamaForCausalLM(LlamaConfig(**{**DECODER, **changes})))


LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 16}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "short_factor": [1.0, 1.1, 1.2, 1.5],
    "long_factor": [1.0, 2.0, 3.0, 4.5],
    "original_max_position_embeddings": 16,
}
CASES: dict[str, dict[str, Any]] = {
    "multi-head": {"num_key_value_heads": 4},
    "grouped, tied": {"num_key_value_heads": 2, "tie_word_embeddings": True},
    "multi-query, biases": {"num_key_value_heads": 1, "attention_bias": True, "mlp_bias": True, "rms_norm_eps": 1e-2},
    "wide heads, another activation": {"head_dim": 16, "hidden_act": "gelu_pytorch_tanh"},
    "one layer, another base": {
        "num_hidden_layers": 1,
        "rope_parameters": {"rope_theta": 500.0, "rope_type": "default"},
    },
}
SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0},
    "llama3": LLAMA3,
    "yarn": YARN,
    "yarn, all numbers": {**YARN, "attention_factor": 1.3, "beta_fast": 8.0, "beta_slow": 0.5, "truncate": False},
    "yarn, two strengths": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.2},
    "longrope": LONGROPE,
}
# A dynamic context begins at max_position_embeddings: between the two texts' lengths, so that one is stretched.
CONTEXT = {"dynamic": 21}


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_parity(changes: dict[str, Any], tmp_path: Path) -> None:
    theirs = reference(**changes)
    ours = check_parity(theirs, tmp_path, casts=True)
    assert ours.n_params == sum(weight.numel() for weight in theirs.parameters())
    assert (ours.cfg.name, ours.cfg.family) == (tmp_path.name, "llama")


@pytest.mark.parametrize("kind", SCALINGS)
def test_stretched_positions(kind: str, tmp_path: Path) -> None:
    n_ctx = CONTEXT.get(kind, 64)
    theirs = reference(rope_parameters=SCALINGS[kind], max_position_embeddings=n_ctx)
    with torch.no_grad():
        plain = reference(max_position_embeddings=n_ctx)(IDS).logits
        assert float((theirs(IDS).logits - plain).abs().max()) > 1e-2, "the parity would see it left out"
    ours = check_parity(theirs, tmp_path, casts=True, decode=kind != "dynamic")
    assert ours.cfg.n_ctx == (84 if kind == "dynamic" else 64)


@pytest.mark.parametrize("kind", SCALINGS)
def test_rotary_words_of_transformers_4(kind: str, tmp_path: Path) -> None:
    n_ctx = CONTEXT.get(kind, 64)
    theirs = reference(rope_parameters={**SCALINGS[kind], "rope_theta": 500.0}, max_position_embeddings=n_ctx)
    theirs.save_pretrained(tmp_path)
    old = {key: value for key, value in SCALINGS[kind].items() if key not in ("rope_type", "rope_theta")}
    changes = {"rope_parameters": None, "rope_scaling": {**old, "type": kind.split(",")[0]}, "rope_theta": 500.0}
    edit_config(tmp_path, changes)
    assert_equal(our_layers(load(tmp_path), IDS), run_reference(theirs, IDS), 1e-5)


ADDED = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
"""A `rope_scaling` as model cards say to add it."""


@pytest.mark.parametrize(
    ("before", "changes"),
    [
        ({"rope_type": "default", "rope_theta": 10000.0}, {"rope_scaling": ADDED}),
        ({"rope_type": "default", "rope_theta": 500.0}, {"rope_scaling": {**ADDED, "rope_theta": 500.0}}),
        ({"rope_type": "default", "rope_theta": 500.0}, {"rope_scaling": {**ADDED, "rope_theta": 900.0}}),
        ({"rope_type": "default", "rope_theta": 500.0}, {"rope_scaling": ADDED, "rope_theta": 500.0}),
        (YARN, {"rope_scaling": {"type": "linear", "factor": 2.0, "rope_theta": 500.0}}),
        (YARN, {"rope_scaling": {}}),
    ],
)
def test_a_rope_scaling_that_was_added_counts(before: dict[str, Any], changes: dict[str, Any], tmp_path: Path) -> None:
    reference(rope_parameters=before).save_pretrained(tmp_path)
    edit_config(tmp_path, changes)
    theirs = LlamaForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    assert_equal(our_layers(load(tmp_path), IDS), run_reference(theirs, IDS), 1e-5)


def test_a_rope_scaling_that_would_lose_the_base_is_refused(tmp_path: Path) -> None:
    reference(rope_parameters={"rope_type": "default", "rope_theta": 500.0}).save_pretrained(tmp_path)
    edit_config(tmp_path, {"rope_scaling": ADDED})
    with pytest.raises(
        ValueError, match=r'rope_theta=500.0 in rope_parameters.*write "rope_theta": 500.0 into rope_sc'
    ):
        load(tmp_path)


def test_a_dynamic_text_means_the_same_alone_and_beside_a_longer_one(tmp_path: Path) -> None:
    reference(rope_parameters=SCALINGS["dynamic"], max_position_embeddings=21).save_pretrained(tmp_path)
    ours = load(tmp_path)
    tokens = ours.tokenize(IDS[:1, :20])
    both = type(tokens)(IDS, torch.arange(24) < torch.tensor([[20], [24]]))
    with torch.no_grad():
        torch.testing.assert_close(ours(both)[0, :20], ours(tokens)[0], atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"rope_parameters": {"rope_type": "proportional", "factor": 2.0}},
            "rope scaling 'proportional' is not supported",
        ),
        ({"rope_parameters": {"rope_type": "ntk", "factor": 2.0}}, "'ntk', which transformers does not know"),
        ({"rope_parameters": {"rope_type": "linear"}}, "lacks 'factor'"),
        ({"rope_parameters": {"rope_type": "longrope", "factor": 2.0}}, "longrope needs short_factor and long_factor"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, r"per kind of layer \(full_attention\)"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0, "mrope_section": [1]}}, "mrope_section"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5; the Llama family turns whole heads"),
        ({"rope_parameters": {"partial_rotary_factor": 0.25}}, "partial_rotary_factor=0.25"),
        ({"sliding_window": 4096}, "sliding_window=4096"),
        ({"layer_types": ["sliding_attention", "full_attention"]}, "sliding_attention"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping=50.0"),
        ({"use_qk_norm": True}, "use_qk_norm=True"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention=True"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ({"hidden_act": "xielu"}, "activation 'xielu'"),
        ({"hidden_size": None}, "lacks 'hidden_size'"),
        ({"rms_norm_eps": None}, "rms_norm_eps=null, which is no value: leave the key out for 1e-06"),
        ({"rope_parameters": "x"}, "rope_parameters='x': it must be an object"),
        ({"rope_scaling": [1]}, r"rope_scaling=\[1\]: it must be an object"),
        ({"rope_parameters": {"rope_theta": "x"}}, "rope_parameters in config.json sets rope_theta='x'"),
        ({"num_key_value_heads": 3}, "must be a multiple of n_kv_heads"),
    ],
)
def test_options_that_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        configure({**DECODER, **changes}, "tiny")


def test_options_that_do_nothing_are_no_reason(tmp_path: Path) -> None:
    theirs = reference()
    theirs.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    harmless = {"sliding_window": None, "rope_interleaved": False, "use_qk_norm": False, "attention_dropout": 0.1}
    (tmp_path / "config.json").write_text(json.dumps({**config, **harmless}))
    ours = load(tmp_path)
    assert ours.cfg.attention_dropout == 0.1
    assert_equal(our_layers(ours, IDS), run_reference(theirs, IDS), 1e-5)


def test_the_bare_decoder(tmp_path: Path) -> None:
    theirs = reference(tie_word_embeddings=True)
    theirs.model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["LlamaModel"]
    assert_equal(our_layers(load(tmp_path), IDS), run_reference(theirs, IDS), 1e-5)


def test_llama3_factors_are_transformers() -> None:
    config = LlamaConfig(head_dim=64, rope_parameters={**LLAMA3, "original_max_position_embeddings": 8192})
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, device=torch.device("cpu"))
    plain = 1.0 / 10000.0 ** (torch.arange(0, 64, 2).double() / 64)
    factors = llama3_factors(10000.0, 64, 8.0, low=1.0, high=4.0, original_n_ctx=8192)
    torch.testing.assert_close(torch.from_numpy(factors), plain / scaled.double(), rtol=1e-5, atol=0)
