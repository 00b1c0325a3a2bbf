"""Dropout, initialisation, recomputation in the backward pass, and configurations that cannot be."""

import pytest
import torch
from tiny import FAMILIES, shaken_model, tiny_config, tiny_model

from interp.model import Experts, HookedTransformer, Latent, ModelConfig

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
        model.loss(TEXT).backward()
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
