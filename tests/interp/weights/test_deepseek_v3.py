"""DeepSeek-V3 against transformers, in both layouts of its experts, and what its configuration may say."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from parity import IDS, assert_equal, check_parity, our_layers, run_reference, shaken
from safetensors.torch import load_file, save_file
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

from interp.weights.deepseek_v3 import configure
from interp.weights.load import load

SIZES: dict[str, Any] = {
    "vocab_size": 120,
    "hidden_size": 32,
    "intermediate_size": 48,
    "moe_intermediate_size": 12,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "first_k_dense_replace": 1,
    "n_routed_experts": 8,
    "n_group": 4,
    "topk_group": 2,
    "num_experts_per_tok": 3,
    "kv_lora_rank": 12,
    "q_lora_rank": 20,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 6,
    "v_head_dim": 8,
    "max_position_embeddings": 64,
    "attn_implementation": "eager",
    "experts_implementation": "eager",
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "mscale": 1.0,
    "mscale_all_dim": 0.7,
    "beta_fast": 32,
    "beta_slow": 1,
    "original_max_position_embeddings": 16,
}
CASES: dict[str, dict[str, Any]] = {
    "as released": {},
    "queries from the stream, as Moonlight": {
        "q_lora_rank": None,
        "n_group": 1,
        "topk_group": 1,
        "n_shared_experts": 2,
    },
    "yarn": {"rope_parameters": YARN},
    "yarn without a strength of its own": {
        "rope_parameters": {key: value for key, value in YARN.items() if not key.startswith("mscale")}
    },
    "half pairs, weights not normalised": {"rope_interleave": False, "norm_topk_prob": False},
    "experts in all layers": {"first_k_dense_replace": 0, "routed_scaling_factor": 1.0, "tie_word_embeddings": True},
    "no experts at all, another epsilon": {"first_k_dense_replace": 3, "rms_norm_eps": 1e-2},
    "attention biases": {"attention_bias": True},
    "attention biases, queries from the stream": {"attention_bias": True, "q_lora_rank": None},
}


def reference(**changes: Any) -> DeepseekV3ForCausalLM:
    """A random model; the bias of the choice, a buffer that starts as zeros, is moved too."""
    torch.manual_seed(0)
    model = shaken(DeepseekV3ForCausalLM(DeepseekV3Config(**{**SIZES, **changes})), matrices=0.15)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer += 0.2 * torch.randn(buffer.shape)
    return model


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_parity(changes: dict[str, Any], tmp_path: Path) -> None:
    theirs = reference(**changes)
    ours = check_parity(theirs, tmp_path, casts=True, experts=True)
    biases = sum(buffer.numel() for name, buffer in theirs.named_buffers() if name.endswith("e_score_correction_bias"))
    assert ours.n_params == sum(weight.numel() for weight in theirs.parameters()) + biases


def test_the_bias_changes_the_choice_and_groups_limit_it(tmp_path: Path) -> None:
    theirs = reference()
    theirs.save_pretrained(tmp_path)
    ours = load(tmp_path)
    _, cache = ours.run_with_cache(IDS, ["*.hook_expert_weights", "*.hook_expert_indices"])
    scores, chosen = (cache[f"blocks.1.mlp.hook_expert_{name}"] for name in ("weights", "indices"))
    assert not torch.equal(chosen.sort(-1).values, scores.topk(3, -1).indices.sort(-1).values)
    assert all(len({int(expert) // 2 for expert in row}) <= 2 for row in chosen.flatten(0, 1))


def test_yarn_multiplies_scores_by_the_square_of_its_rule() -> None:
    plain = configure(DeepseekV3Config(**SIZES).to_dict(), "tiny")
    stretched = configure({**DeepseekV3Config(**SIZES).to_dict(), "rope_parameters": YARN}, "tiny")
    rule = 0.1 * 0.7 * math.log(4.0) + 1.0
    assert stretched.scaling == pytest.approx(plain.scaling * rule**2)


def test_the_words_of_released_configurations(tmp_path: Path) -> None:
    theirs = reference(rope_parameters=YARN)
    scaling = {"type" if key == "rope_type" else key: value for key, value in YARN.items() if key != "rope_theta"}
    released = {"rope_parameters": None, "rope_scaling": scaling, "rope_theta": 10000, "scoring_func": "sigmoid"}
    more = {"topk_method": "noaux_tc", "moe_layer_freq": 1, "ep_size": 1, "rope_interleave": None}
    check_parity(theirs, tmp_path, casts=True, experts=True, config_changes={**released, **more})


def test_experts_that_a_file_keeps_as_one_block_and_layers_behind_the_last(tmp_path: Path) -> None:
    theirs = reference()
    theirs.save_pretrained(tmp_path, save_original_format=False)
    path = tmp_path / "model.safetensors"
    state = load_file(path)
    assert "model.layers.1.mlp.experts.gate_up_proj" in state
    extra = {
        "enorm.weight": torch.ones(32),
        "eh_proj.weight": torch.ones(32, 64),
        "mlp.experts.0.up_proj.weight": torch.ones(1),
    }
    save_file({**state, **{f"model.layers.3.{name}": weight for name, weight in extra.items()}}, path)
    assert_equal(our_layers(load(tmp_path), IDS), run_reference(theirs, IDS), 1e-5)
    save_file({**state, "model.layers.4.enorm.weight": torch.ones(32)}, path)
    with pytest.raises(ValueError, match=r"unknown tensors: layers\.4\.enorm\.weight"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"scoring_func": "softmax"}, "scoring_func='softmax'"),
        ({"moe_layer_freq": 2}, "moe_layer_freq=2"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
        ({"topk_group": 1}, "top_k=3 experts do not fit into 1 groups"),
        ({"moe_intermediate_size": None}, "lacks 'moe_intermediate_size'"),
    ],
)
def test_options_that_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        configure({**DeepseekV3Config(**SIZES).to_dict(), **changes}, "tiny")
