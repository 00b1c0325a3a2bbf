"""Llama and GPT-2 folders against transformers: the same logits, and nothing ignored in silence."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import byte_backend, random_gpt2, random_llama
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from interp.model import HookedTransformer
from interp.weights.llama import llama3_factors
from interp.weights.load import load

IDS = torch.randint(0, 260, (3, 40), generator=torch.Generator().manual_seed(0))


def saved(model: PreTrainedModel, folder: Path) -> Path:
    model.save_pretrained(folder)
    return folder


def edit(folder: Path, **changes: Any) -> Path:
    """Change config.json; None removes a key."""
    config = {**json.loads((folder / "config.json").read_text()), **changes}
    (folder / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    return folder


@torch.no_grad()
def difference(ours: HookedTransformer, theirs: PreTrainedModel) -> float:
    return float((ours(IDS) - theirs(IDS).logits).abs().max())


LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LLAMAS = {
    "multi-head": {"num_key_value_heads": 4},
    "grouped": {"num_key_value_heads": 2},
    "multi-query": {"num_key_value_heads": 1},
    "tied": {"tie_word_embeddings": True},
    "attention biases": {"attention_bias": True},
    "MLP biases": {"mlp_bias": True},
    "wide heads": {"head_dim": 32},
    "another base and epsilon": {
        "rope_parameters": {"rope_theta": 500.0, "rope_type": "default"},
        "rms_norm_eps": 1e-2,
    },
    "linear scaling": {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}},
    "llama3 scaling": {"rope_parameters": LLAMA3},
    "another activation": {"hidden_act": "gelu_pytorch_tanh"},
}
GPT2S = {
    "tied": {},
    "untied": {"tie_word_embeddings": False},
    "narrow MLP": {"n_inner": 48},
    "another activation": {"activation_function": "relu", "layer_norm_epsilon": 1e-2},
}


@pytest.mark.parametrize("changes", LLAMAS.values(), ids=LLAMAS.keys())
def test_llama_logits_are_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    theirs = random_llama(**changes)
    ours = load(saved(theirs, tmp_path))
    assert difference(ours, theirs) < 1e-5
    assert ours.cfg.n_params == sum(weight.numel() for weight in theirs.parameters())
    assert ours.cfg.name == tmp_path.name


@pytest.mark.parametrize("changes", GPT2S.values(), ids=GPT2S.keys())
def test_gpt2_logits_are_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    theirs = random_gpt2(**changes)
    ours = load(saved(theirs, tmp_path))
    assert difference(ours, theirs) < 1e-5
    assert ours.cfg.n_params == sum(weight.numel() for weight in theirs.parameters())


def test_each_option_changes_the_logits() -> None:
    """So that the parity above would see an option that is left out."""
    with torch.no_grad():
        plain = random_llama()(IDS).logits
        for name in ("another base and epsilon", "linear scaling", "llama3 scaling", "another activation"):
            assert float((random_llama(**LLAMAS[name])(IDS).logits - plain).abs().max()) > 1e-2, name


@pytest.mark.parametrize("rope", [{"type": "linear", "factor": 4.0}, {**LLAMA3, "rope_theta": None}])
def test_rotary_options_of_transformers_4(rope: dict[str, Any], tmp_path: Path) -> None:
    rope = {key: value for key, value in rope.items() if value is not None}
    new = {"rope_type": rope.get("type", "llama3"), **rope, "rope_theta": 500.0}
    theirs = random_llama(rope_parameters={key: value for key, value in new.items() if key != "type"})
    edit(saved(theirs, tmp_path), rope_parameters=None, rope_scaling=rope, rope_theta=500.0)
    assert difference(load(tmp_path), theirs) < 1e-5


def test_gpt2_weights_are_views_of_the_file(tmp_path: Path) -> None:
    attn = load(saved(random_gpt2(), tmp_path)).blocks[0].attn
    d_model = 32
    assert attn.q.weight.stride() == attn.v.weight.stride() == (1, 3 * d_model)
    assert attn.v.weight.data_ptr() - attn.q.weight.data_ptr() == 2 * d_model * 4
    assert attn.o.weight.stride() == (1, d_model)


def test_names_without_prefix_and_leftovers_of_old_files(tmp_path: Path) -> None:
    theirs = random_gpt2()
    state = load_file(saved(theirs, tmp_path) / "model.safetensors")
    state = {name.removeprefix("transformer."): weight for name, weight in state.items()}
    state |= {f"h.{layer}.attn.bias": torch.ones(1, 1, 64, 64).tril() for layer in range(2)}
    state |= {f"h.{layer}.attn.masked_bias": torch.tensor(-1e4) for layer in range(2)}
    save_file(state, tmp_path / "model.safetensors")
    assert difference(load(tmp_path), theirs) < 1e-5


def test_a_tied_head_that_is_in_the_file(tmp_path: Path) -> None:
    theirs = random_llama(tie_word_embeddings=True)
    path = saved(theirs, tmp_path) / "model.safetensors"
    state = load_file(path)
    assert "lm_head.weight" not in state
    save_file({**state, "lm_head.weight": state["model.embed_tokens.weight"].clone()}, path)
    assert difference(load(tmp_path), theirs) < 1e-5
    save_file({**state, "lm_head.weight": state["model.embed_tokens.weight"] + 1}, path)
    with pytest.raises(ValueError, match='"tie_word_embeddings": false'):
        load(tmp_path)


# ------------------------------------------------------------------------------------------------------- strictness


def changed_state(folder: Path, change: dict[str, torch.Tensor | None]) -> Path:
    path = folder / "model.safetensors"
    state = {**load_file(path), **change}
    save_file({name: weight for name, weight in state.items() if weight is not None}, path)
    return folder


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"model.layers.1.self_attn.q_norm.weight": torch.ones(16)},
            r"1 unknown tensors: layers\.1\.self_attn\.q_norm",
        ),
        ({"model.norm.weight": None}, r"1 parameters not filled: ln_final\.weight"),
        ({"model.norm.weight": torch.ones(63)}, r"model\.norm\.weight is \[63\], expected \[64\]"),
        ({"model.norm.weight": torch.ones(64, dtype=torch.int8)}, r"holds torch\.int8: quantised"),
        (
            {"model.layers.0.self_attn.q_proj.bias": torch.ones(64)},
            r"unknown tensors: layers\.0\.self_attn\.q_proj\.bias",
        ),
    ],
)
def test_every_tensor_counts(change: dict[str, torch.Tensor | None], words: str, tmp_path: Path) -> None:
    changed_state(saved(random_llama(), tmp_path), change)
    with pytest.raises(ValueError, match=words):
        load(tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "rope scaling 'yarn' is not supported"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "rope scaling 'dynamic'"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, "per kind of layer"),
        ({"sliding_window": 4096}, "sliding_window=4096"),
        ({"layer_types": ["sliding_attention", "full_attention"]}, "sliding_attention"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping=50.0"),
        ({"use_qk_norm": True}, "use_qk_norm=True"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ({"hidden_act": "xielu"}, "activation 'xielu'"),
        ({"hidden_size": None}, "lacks 'hidden_size'"),
        ({"num_key_value_heads": 3}, "must be a multiple of n_kv_heads"),
    ],
)
def test_llama_options_that_are_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=words):
        load(edit(saved(random_llama(), tmp_path), **changes))


@pytest.mark.parametrize("option", ["scale_attn_by_inverse_layer_idx", "add_cross_attention"])
def test_gpt2_options_that_are_refused(option: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"{option}=True"):
        load(edit(saved(random_gpt2(), tmp_path), **{option: True}))


def test_options_that_do_nothing_are_no_reason(tmp_path: Path) -> None:
    theirs = random_llama()
    edit(saved(theirs, tmp_path), sliding_window=None, rope_interleaved=False, use_qk_norm=False, attention_dropout=0.1)
    assert difference(load(tmp_path), theirs) < 1e-5


def test_unknown_architectures_name_the_families(tmp_path: Path) -> None:
    folder = edit(saved(random_llama(), tmp_path), architectures=["MambaForCausalLM"])
    with pytest.raises(
        ValueError, match=r"'MambaForCausalLM'; supported are LlamaForCausalLM, GPT2LMHeadModel.*family\.py"
    ):
        load(folder)
    assert load(edit(folder, architectures=None)).cfg.family == "llama", "model_type says it as well"


def test_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    saved(random_llama(vocab_size=259), tmp_path)
    byte_backend().save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ValueError, match="260 tokens, but the embedding only 259 rows"):
        load(tmp_path)


def test_llama3_factors_are_transformers() -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = LlamaConfig(head_dim=64, rope_parameters={**LLAMA3, "original_max_position_embeddings": 8192})
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, device=torch.device("cpu"))
    plain = 1.0 / 10000.0 ** (torch.arange(0, 64, 2).double() / 64)
    factors = llama3_factors(10000.0, 64, 8.0, low=1.0, high=4.0, original_n_ctx=8192)
    torch.testing.assert_close(torch.from_numpy(factors), plain / scaled.double(), rtol=1e-5, atol=0)
