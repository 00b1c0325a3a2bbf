"""int8 weights: the rounding is what it says, one definition for any number of rows, and the error is measured."""

import logging
from typing import Any

import pytest
import torch
from tiny import tiny_model

from interp.model import HookedTransformer
from interp.model.config import Experts
from interp.model.int8 import Int8Embedding, Int8Linear, quantize_int8
from interp.model.linear import Embedding, Linear

IDS = torch.randint(0, 256, (2, 40), generator=torch.Generator().manual_seed(0))


def linear(d_in: int, d_out: int, bias: bool = True, dtype: torch.dtype = torch.float32) -> Linear:
    made = Linear(d_in, d_out, bias, dtype)
    generator = torch.Generator().manual_seed(d_in)
    for weight in made.parameters():
        weight.copy_(torch.randn(weight.shape, generator=generator))
    return made


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("shape", [(64, 7), (16, 300), (33, 8), (7, 3)])
def test_each_row_is_rounded_to_its_own_steps(shape: tuple[int, int]) -> None:
    exact = linear(*shape)
    exact.weight[0] = 0.0
    exact.weight[1] *= 1000
    packed = Int8Linear(exact)
    step = packed.scale[:, None]
    assert packed.codes.dtype == torch.int8
    assert torch.equal(packed.scale, packed.scale.bfloat16().float()), "bf16 holds the scales exactly"
    assert bool(((packed.weight - exact.weight).abs() <= step / 2 * (1 + 1e-5)).all())
    assert bool((packed.codes.abs().amax(1)[1:] >= 126).all())
    assert not packed.weight[0].any()
    x = torch.randn(5, shape[0], generator=torch.Generator().manual_seed(1))
    expected = x @ packed.weight.T + packed.bias
    torch.testing.assert_close(packed(x), expected, rtol=2e-2, atol=2e-2 * float(step.max()) * 127)
    assert relative(packed(x), expected) < 5e-3


def test_a_row_gets_the_same_value_alone_and_among_others() -> None:
    packed = Int8Linear(linear(96, 50))
    x = torch.randn(3, 17, 96, generator=torch.Generator().manual_seed(2)) * 10
    whole = packed(x)
    assert whole.shape == (3, 17, 50)
    for row in (x[1, 4], x[1, 4][None], x[1:2, 4:5]):
        assert torch.equal(packed(row).flatten(), whole[1, 4])


def test_gradients_reach_the_activations_and_leave_the_value_alone() -> None:
    packed = Int8Linear(linear(32, 20))
    x = torch.randn(4, 32, generator=torch.Generator().manual_seed(3), requires_grad=True)
    out = packed(x)
    torch.testing.assert_close(out, packed(x.detach()), rtol=1e-2, atol=1e-3)
    (gradient,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(gradient, packed.weight.sum(0).expand(4, -1))


def test_double_precision_multiplies_the_dequantised_weights() -> None:
    packed = Int8Linear(linear(32, 20, dtype=torch.float64))
    x = torch.randn(4, 32, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    torch.testing.assert_close(packed(x), x @ packed.weight.T + packed.bias, rtol=1e-13, atol=1e-13)


def test_embedding_rows_and_their_products() -> None:
    table = Embedding(60, 32, torch.float32)
    table.weight.copy_(torch.randn(60, 32, generator=torch.Generator().manual_seed(5)))
    packed = Int8Embedding(table)
    ids = torch.tensor([[3, 59], [0, 3]])
    assert torch.equal(packed(ids), packed.weight[ids])
    x, bias = torch.randn(2, 3, 32), torch.randn(60)
    assert relative(packed.project(x, bias), x @ table.weight.T + bias) < 0.02


# ------------------------------------------------------------------------------------------------------ whole models

KINDS: list[dict[str, Any]] = [
    {"family": "llama"},
    {"family": "gpt2"},
    {"family": "llama", "tie_embeddings": False},
]


@pytest.mark.parametrize("kind", KINDS)
def test_the_report_is_the_difference_of_the_two_models(kind: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    model = tiny_model(**kind, scale=2.0)
    fingerprint = model.fingerprint
    with caplog.at_level(logging.INFO, "interp"):
        report = quantize_int8(model, check=IDS)
    assert model.fingerprint == fingerprint, "the original stays as it is"
    before, after = (each(IDS).double().log_softmax(-1) for each in (model, report.model))
    assert report.max_error == pytest.approx(float((model(IDS) - report.model(IDS)).abs().max()), rel=1e-4)
    assert report.mean_kl == pytest.approx(float((before.exp() * (before - after)).sum(-1).mean()), rel=1e-2)
    assert report.top1_agreement == pytest.approx(float((before.argmax(-1) == after.argmax(-1)).float().mean()))
    assert report.n_tokens == 80
    assert 0 < report.mean_kl < 0.01
    assert report.top1_agreement > 0.8
    assert report.bytes_after < 0.45 * report.bytes_before
    assert f"mean KL {report.mean_kl:.3g} nats" in caplog.text
    assert "int8 weights" in report.model.note
    assert "int8 weights" in repr(report.model)
    assert report.model.fingerprint != fingerprint


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_shared_and_every_site_and_name_is_there(kind: dict[str, Any]) -> None:
    model = tiny_model(**kind)
    copy = quantize_int8(model).model
    own = {weight.untyped_storage().data_ptr() for weight in (*copy.parameters(), *copy.buffers())}
    assert not own & {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    assert copy.n_params == pytest.approx(model.n_params, rel=0.01)
    assert (copy.dtype, copy.device, copy.site_names) == (model.dtype, model.device, model.site_names)
    for name in ("W_E", "W_U", "W_Q", "W_K", "W_V", "W_O", "W_in", "W_out"):
        assert relative(getattr(copy, name), getattr(model, name)) < 0.02, name
    _, cache = copy.run_with_cache(IDS)
    _, expected = model.run_with_cache(IDS)
    assert list(cache) == list(expected)
    assert relative(cache["resid_post:0"], expected["resid_post:0"]) < 0.05
    with copy.hooks({"resid_post:0": lambda value, ctx: value * 0}):
        assert not torch.equal(copy(IDS), model(IDS))


@pytest.mark.parametrize("kind", KINDS)
def test_cached_decoding_is_the_full_pass(kind: dict[str, Any]) -> None:
    copy = quantize_int8(tiny_model(**kind)).model
    out = copy.generate("hello", 10, stop_at_eos=False, sites="resid_post:1")
    _, cache = copy.run_with_cache(out.cache.tokens, "resid_post:1")
    assert relative(out.cache["resid_post:1"], cache["resid_post:1"][0]) < 5e-3
    logits = copy(out.all_tokens)[0, 4:-1]
    chosen = logits.gather(-1, torch.tensor(out.tokens)[:, None])[:, 0]
    assert bool((chosen >= logits.amax(-1) - 0.02 * logits.abs().amax(-1)).all())


def test_routers_keep_their_precision() -> None:
    model = tiny_model("llama", experts=Experts(n_experts=4, top_k=2, d_expert=32))
    copy = quantize_int8(model).model
    kinds = {name: type(module).__name__ for name, module in copy.named_modules()}
    assert kinds["blocks.0.mlp.router"] == "Router"
    assert kinds["blocks.0.mlp.experts.3.down"] == "Int8Linear"
    assert torch.equal(
        copy.get_parameter("blocks.0.mlp.router.weight"), model.get_parameter("blocks.0.mlp.router.weight")
    )
    assert relative(copy(IDS), model(IDS)) < 0.5


def test_what_cannot_be_quantised() -> None:
    model = tiny_model()
    with pytest.raises(ValueError, match="has int8 weights already"):
        quantize_int8(quantize_int8(model).model)
    with pytest.raises(ValueError, match="this one is float16"):
        quantize_int8(HookedTransformer(model.cfg, seed=0, dtype=torch.float16))
    model.get_parameter("blocks.1.mlp.up.weight")[3, 4] = float("nan")
    with pytest.raises(ValueError, match="NaN or infinite; int8 cannot hold them"):
        quantize_int8(model)


def test_bfloat16_models_and_models_without_a_tokenizer() -> None:
    cfg = tiny_model().cfg
    copy = quantize_int8(HookedTransformer(cfg, seed=0, dtype=torch.bfloat16)).model
    assert copy(IDS).dtype == torch.bfloat16
    assert copy.dtype == torch.bfloat16


def test_the_real_model_keeps_its_predictions(smollm: HookedTransformer) -> None:
    report = quantize_int8(smollm)
    assert report.mean_kl < 0.02
    assert report.top1_agreement > 0.8
    assert report.bytes_after < 0.26 * report.bytes_before
    assert report.n_tokens == 64
    assert report.model.generate("The capital of France is", 2).text == " Paris."


def test_loaded_weights_bring_their_scales() -> None:
    first, second = (quantize_int8(tiny_model(seed=seed)).model for seed in (0, 1))
    first.load_state_dict(second.state_dict())
    assert torch.equal(first(IDS), second(IDS))
