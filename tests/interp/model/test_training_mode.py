"""Dropout, initialisation, recomputation in the backward pass, and configurations that cannot be."""

import dataclasses
import inspect
import math
from typing import Any

import numpy as np
import pytest
import torch
from tiny import FAMILIES, shaken_model, tiny_config, tiny_model

from interp.model import Experts, HookedTransformer, Latent, ModelConfig, RopeScaling

TEXT = "a text of some length to attend to"


def test_attention_dropout_acts_in_train_mode_alone_and_keeps_the_mean() -> None:
    plain = tiny_model("llama")
    model = HookedTransformer(tiny_config("llama", attention_dropout=0.3), plain.tokenizer)
    model.load_state_dict(plain.state_dict())
    assert torch.equal(model(TEXT), plain(TEXT))
    model.train()
    torch.manual_seed(0)
    runs = torch.stack([model.run_with_cache(TEXT, "z:0")[1]["z", 0] for _ in range(120)])
    _, cache = plain.run_with_cache(TEXT, "z:0")
    assert not torch.equal(runs[0], runs[1])
    error = (runs.mean(0) - cache["z", 0]).abs()
    spread = runs.std(0) / 120**0.5
    assert float((error > 5 * spread + 1e-5).float().mean()) < 0.001
    with model.hooks({"pattern:0": lambda value, ctx: value * 0 + 0.25}):  # looked at: dropout on the explicit path
        _, hooked = model.run_with_cache(TEXT, "z:0")
    assert not torch.equal(hooked["z", 0], plain.run_with_cache(TEXT, "z:0")[1]["z", 0])
    model.eval()
    assert torch.equal(model(TEXT), plain(TEXT))


@pytest.mark.parametrize("family", FAMILIES)
def test_initialisation(family: str) -> None:
    model = HookedTransformer(tiny_config(family, n_layers=3, d_model=96), seed=0)
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            assert not weight.any()
        elif weight.ndim == 1:
            assert torch.equal(weight, torch.full_like(weight, 0.0 if model.cfg.norm_offset else 1.0)), name
        elif weight.numel() > 2000:
            output = name.endswith((".o.weight", ".down.weight"))
            expected = 0.02 / (2 * 3) ** 0.5 if output and "kv_down" not in name and "q_down" not in name else 0.02
            assert float(weight.std()) == pytest.approx(expected, rel=0.1), name
    same = HookedTransformer(tiny_config(family, n_layers=3, d_model=96), seed=0)
    assert same.fingerprint == model.fingerprint


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "deepseek", "bert"])
def test_recomputed_blocks_give_the_same_gradients(family: str) -> None:
    model = shaken_model(family).requires_grad_(True)
    gradients = []
    for recompute in (False, True):
        model.checkpoint_blocks = recompute
        model.zero_grad()
        model(TEXT).square().mean().backward()
        gradients.append(
            {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}
        )
    assert gradients[0].keys() == gradients[1].keys()
    assert all(torch.equal(gradients[1][name], gradient) for name, gradient in gradients[0].items())


@pytest.mark.parametrize("family", FAMILIES)
def test_configurations_survive_json(family: str) -> None:
    import json

    cfg = tiny_config(family)
    assert ModelConfig.from_dict(json.loads(json.dumps(cfg.to_dict()))) == cfg


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"parallel": True, "norm_placement": "sandwich"}, "parallel"),
        ({"shared_norm": True}, "shared_norm"),
        ({"norm": "layer", "norm_offset": True}, "norm_offset"),
        ({"window": 0}, "window must be"),
        ({"window": 4, "window_layers": (2,)}, "window_layers"),
        ({"window": 4, "causal": False}, "window without a causal mask"),
        ({"attention_dropout": 1.0}, "attention_dropout"),
        ({"attn_softcap": 0.0}, "attn_softcap"),
        ({"rotary_dim": 9}, "even number"),
        ({"rotary_dim": 10}, "even number"),
        ({"positional": "xpos"}, "positional='xpos'"),
        ({"latent": Latent(kv_rank=4, d_rope=8, d_v=4), "n_kv_heads": 4}, "latent attention"),
        ({"experts": Experts(4, 2, 8, layers=(5,))}, "experts.layers"),
    ],
)
def test_configurations_that_cannot_be(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny_config("llama", **changes)


def unchecked(kind: type, /, **values: Any) -> Any:
    """A dataclass as users make it: the type checker of the test run would see a wrong type before the class does."""
    made = object.__new__(kind)
    inspect.unwrap(kind.__init__)(made, **values)
    return made


LLAMA = dataclasses.asdict(tiny_config("llama"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_layers": "2"}, r"n_layers must be a whole number \(an int\), got '2'"),
        ({"n_layers": 2.0}, "n_layers must be a whole number"),
        ({"n_layers": True}, "n_layers must be a whole number .*got True"),
        ({"n_layers": None}, "n_layers must be a whole number"),
        ({"n_kv_heads": 1.5}, r"n_kv_heads must be a whole number \(an int\) or None, got 1.5"),
        ({"norm_eps": "x"}, "norm_eps must be a number"),
        ({"rope_theta": True}, "rope_theta must be a number"),
        ({"window": 2.5}, "window must be a whole number"),
        ({"window": 4, "window_layers": 1}, "window_layers must be a tuple of whole numbers or None, got 1"),
        ({"window": 4, "window_layers": "01"}, "window_layers must be a tuple"),
        ({"window": 4, "window_layers": (0, "1")}, r"window_layers\[1\] must be a whole number"),
        ({"experts": "a"}, r"experts must be an Experts\(...\) or None, got 'a'"),
        ({"latent": 3}, r"latent must be a Latent\(...\) or None, got 3"),
        ({"rope_scaling": "linear"}, r"rope_scaling must be a RopeScaling\(...\) or None, got 'linear'"),
        ({"causal": 1}, "causal must be True or False, got 1"),
        ({"tie_embeddings": "yes"}, "tie_embeddings must be True or False"),
        ({"name": 3}, "name must be text"),
        ({"norm": ["rms"]}, "norm must be text"),
    ],
)
def test_a_field_of_another_type_is_refused_by_its_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        unchecked(ModelConfig, **{**LLAMA, **changes})


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (RopeScaling, {"kind": "linear", "factor": "2"}, "RopeScaling.factor must be a number"),
        (RopeScaling, {"kind": "yarn", "factor": 2.0, "truncate": 1}, "RopeScaling.truncate must be True or False"),
        (
            RopeScaling,
            {"kind": "linear", "factor": 2.0, "short_factor": 3.0},
            "RopeScaling.short_factor must be a tuple",
        ),
        (Experts, {"n_experts": 4.0, "top_k": 2, "d_expert": 8}, "Experts.n_experts must be a whole number"),
        (Experts, {"n_experts": 4, "top_k": 2, "d_expert": 8, "bias": 1}, "Experts.bias must be True or False"),
        (Experts, {"n_experts": 4, "top_k": 2, "d_expert": 8, "layers": 1}, "Experts.layers must be a tuple"),
        (Latent, {"kv_rank": "4", "d_rope": 4, "d_v": 4}, "Latent.kv_rank must be a whole number"),
    ],
)
def test_a_parts_field_of_another_type_is_refused_by_its_name(kind: type, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        unchecked(kind, **values)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_theta": 0.0}, "rope_theta must be above 0, got 0.0"),
        ({"rope_theta": -5.0}, "rope_theta must be above 0"),
        ({"rope_theta": math.nan}, "rope_theta must be a finite number, got nan"),
        ({"rope_theta_local": 0.0, "window": 4}, "rope_theta_local must be above 0"),
        ({"norm_eps": -1.0}, "norm_eps must be at least 0"),
        ({"norm_eps": math.nan}, "norm_eps must be a finite number"),
        ({"norm_eps": math.inf}, "norm_eps must be a finite number"),
        ({"attn_softcap": math.inf}, "attn_softcap must be a finite number or None, got inf"),
        ({"final_softcap": math.inf}, "final_softcap must be a finite number"),
        ({"attention_dropout": math.nan}, "attention_dropout must be a finite number"),
        ({"n_token_types": -1}, "n_token_types must be at least 0"),
    ],
)
def test_a_number_out_of_range_is_refused_by_its_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny_config("llama", **changes)


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("llama", {"window_layers": (0,)}, r"window_layers=\(0,\) would do nothing: it needs a window"),
        ("llama", {"window": 4, "window_layers": ()}, "window_layers must be some layers, or None for all"),
        ("llama", {"rope_theta_local": 100.0}, "rope_theta_local=100.0 would do nothing: it needs a window"),
        ("llama", {"alibi_scaled": True}, "alibi_scaled=True would do nothing: it needs positional='alibi'"),
        ("gpt2", {"rope_scaling": RopeScaling("linear", 2.0)}, "rope_scaling=.* needs positional='rope'"),
        ("gpt2", {"rotary_dim": 4}, "rotary_dim=4 would do nothing: it needs positional='rope'"),
        ("gpt2", {"rope_pairing": "adjacent"}, "leave rope_pairing at 'half'"),
        ("gpt2", {"rope_theta": 500.0}, "rope_theta=500.0 would do nothing"),
        ("llama", {"rope_scaling": RopeScaling("ntk", 2.0), "rotary_dim": 2}, "at least 4 rotated dimensions"),
        ("llama", {"rope_scaling": RopeScaling("yarn", 2.0), "rope_theta": 1.0}, "rope_theta above 1"),
        (
            "llama",
            {"rope_scaling": RopeScaling("longrope", 2.0, short_factor=(1.0,) * 4, long_factor=(1.0,) * 3)},
            "3 factors in long_factor for 4 frequencies",
        ),
    ],
)
def test_an_option_that_would_do_nothing_or_cannot_is_refused(
    family: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        tiny_config(family, **changes)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kind": "linear", "factor": math.nan}, "RopeScaling.factor must be a finite number"),
        ({"kind": "linear", "factor": math.inf}, "RopeScaling.factor must be a finite number"),
        ({"kind": "linear", "factor": 0.5}, "RopeScaling.factor must be at least 1"),
        ({"kind": "yarn", "beta_fast": 1.0}, "RopeScaling.beta_fast must be above beta_slow, which is 1.0"),
        ({"kind": "yarn", "beta_slow": 0.0}, "RopeScaling.beta_slow must be above 0"),
        ({"kind": "llama3", "high_freq_factor": 1.0}, "RopeScaling.high_freq_factor must be above low_freq_factor"),
        ({"kind": "llama3", "low_freq_factor": 0.0}, "RopeScaling.low_freq_factor must be above 0"),
        ({"kind": "linear", "beta_fast": 16.0}, "beta_fast=16.0 would do nothing: it needs kind='yarn'"),
        ({"kind": "yarn", "high_freq_factor": 8.0}, "high_freq_factor=8.0 would do nothing: it needs kind='llama3'"),
        ({"kind": "ntk", "attention_factor": 1.2}, "attention_factor=1.2 would do nothing"),
        ({"kind": "longrope", "short_factor": (1.0,), "long_factor": (0.0,)}, "long_factor must be divisors above 0"),
        ({"kind": "longrope"}, "longrope needs short_factor and long_factor"),
    ],
)
def test_scalings_that_cannot_be(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RopeScaling(**{"factor": 2.0, **values})


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf])
def test_experts_have_a_scale_above_0(scale: float) -> None:
    with pytest.raises(ValueError, match=r"Experts\.scale must be"):
        Experts(4, 2, 8, scale=scale)


def test_numbers_of_numpy_and_lists_become_pythons_own() -> None:
    made = unchecked(
        ModelConfig,
        **{**LLAMA, "n_layers": np.int64(2), "norm_eps": np.float32(0.5), "window": 4, "window_layers": [1]},
    )
    assert (made.n_layers, made.norm_eps, made.window_layers) == (2, 0.5, (1,))
    assert (type(made.n_layers), type(made.norm_eps)) == (int, float)


def test_a_dictionary_with_a_key_too_many_or_too_few_is_refused() -> None:
    values = tiny_config("mixtral").to_dict()
    with pytest.raises(ValueError, match=r"unknown keys \['d_modle'\] in the model configuration"):
        ModelConfig.from_dict({**values, "d_modle": 3})
    with pytest.raises(ValueError, match="the model configuration lacks d_model"):
        ModelConfig.from_dict({key: value for key, value in values.items() if key != "d_model"})
    with pytest.raises(ValueError, match=r"unknown keys \['k'\] in experts"):
        ModelConfig.from_dict({**values, "experts": {**values["experts"], "k": 3}})


@pytest.mark.parametrize(
    "changes", [{"top_k": 5}, {"n_groups": 3}, {"score": "tanh"}, {"n_groups": 4, "top_groups": 1, "top_k": 2}]
)
def test_experts_that_cannot_be(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"top_k|groups|score"):
        Experts(**{"n_experts": 4, "top_k": 2, "d_expert": 8, **changes})


def test_bytes_of_the_cache_without_a_model() -> None:
    llama = tiny_config("llama")
    assert llama.kv_cache_bytes(100, 3, torch.bfloat16) == 2 * 2 * 2 * 8 * 100 * 3 * 2
    assert tiny_config("mistral").kv_cache_bytes(100) == 2 * 2 * 2 * 8 * (5 + 16) * 4
    assert tiny_config("deepseek").kv_cache_bytes(100, 1, "float64") == 2 * (16 + 4) * 100 * 8
    with pytest.raises(ValueError, match="dtype"):
        llama.kv_cache_bytes(10, 1, "int3")
    with pytest.raises(ValueError, match="at least 1"):
        llama.kv_cache_bytes(0)
    with pytest.raises(ValueError, match="n_tokens must be a whole number"):
        llama.kv_cache_bytes(4.5)
    with pytest.raises(ValueError, match="batch must be a whole number"):
        llama.kv_cache_bytes(4, True)
