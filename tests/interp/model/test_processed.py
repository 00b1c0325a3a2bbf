"""Processed weights against TransformerLens' own, and what they must not change, in every arrangement of blocks."""

import logging

import pytest
import torch
from torch import Tensor

from interp.model import HookedTransformer
from interp.model.processed import processed
from tests.support.lens_twin import pair
from tests.support.tiny import FAMILIES, shaken_model

close = torch.testing.assert_close
IDS = torch.randint(0, 256, (2, 11), generator=torch.Generator().manual_seed(0))
NAMES = ["W_E", "W_U", "b_U", "W_Q", "W_O", "b_Q", "b_O", "W_in", "W_out", "b_in", "b_out"]


def log_probs(model: HookedTransformer) -> Tensor:
    return model(IDS).as_subclass(Tensor).double().log_softmax(-1)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_weights_equal_transformer_lens(family: str) -> None:
    ours, lens = pair(family)
    ours = processed(ours)
    lens.process_weights_()
    for name in NAMES:
        close(
            getattr(ours, name),
            getattr(lens, name),
            rtol=1e-5,
            atol=1e-5,
            msg=lambda text, name=name: f"{name}: {text}",
        )
    groups = ours.cfg.n_heads // ours.cfg.kv_heads
    for name in ("W_K", "W_V", "b_K", "b_V"):
        close(getattr(ours, name).repeat_interleave(groups, 1), getattr(lens, name), rtol=1e-5, atol=1e-5)
    if family == "gpt2":
        close(ours.W_pos, lens.W_pos, rtol=1e-5, atol=1e-5)
    else:
        close(ours.W_gate, lens.W_gate, rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        close(ours(IDS).as_subclass(Tensor), lens(IDS), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_log_probabilities_stay(family: str) -> None:
    model = shaken_model(family).double()
    before, weights = log_probs(model), {name: tensor.clone() for name, tensor in model.state_dict().items()}
    new = processed(model)
    # The table of sinusoids is made in fp32 in the one and in fp64 in the other.
    atol = 1e-6 if family == "sinusoidal" else 1e-10
    close(log_probs(new), before, rtol=0, atol=atol)
    for name, tensor in model.state_dict().items():  # the given model is as it was, and shares no memory
        assert torch.equal(tensor, weights[name])
    theirs = {tensor.data_ptr() for tensor in model.state_dict().values()}
    assert not theirs & {tensor.data_ptr() for tensor in new.state_dict().values()}
    assert "processed" in repr(new)
    assert "processed" not in repr(model)
    close(log_probs(processed(new)), before, rtol=0, atol=atol)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_in_single_precision(family: str) -> None:
    model = shaken_model(family)
    close(log_probs(processed(model)), log_probs(model), rtol=0, atol=1e-4)


def test_what_the_steps_promise() -> None:
    model = processed(shaken_model("gpt2"))
    _, cache = model.run_with_cache(IDS)
    for layer in range(2):
        for site in ("resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out"):
            assert cache[site, layer].mean(-1).abs().max() < 1e-5
        for norm in (model.blocks[layer].ln1, model.blocks[layer].ln2):
            assert bool((norm.weight == 1).all())
            assert not norm.bias.any()
    assert model.W_U.mean(-1).abs().max() < 1e-6
    assert model.W_Q.mean(2).abs().max() < 1e-6
    assert not model.b_V.any()
    assert not processed(shaken_model("gpt2"), fold_ln=False).cfg.tie_embeddings
    gemma = processed(shaken_model("gemma2"))
    assert not gemma.blocks[0].ln1.weight.any()  # its gain is 1 + weight
    assert gemma.blocks[0].ln1_post.weight.any()


def test_each_step_alone_and_none() -> None:
    model = shaken_model("gpt2").double()
    before = log_probs(model)
    nothing = dict.fromkeys(("fold_ln", "center_writing", "center_unembed", "fold_value_biases"), False)
    for step in nothing:
        new = processed(model, **{**nothing, step: True})
        close(log_probs(new), before, rtol=0, atol=1e-10)
        assert new.note == f"processed: {step}"
        assert new.fingerprint != model.fingerprint
    plain = processed(model, **nothing)
    assert plain.note == "processed: nothing"
    assert plain.fingerprint == model.fingerprint


@pytest.mark.parametrize(
    ("family", "step", "message"),
    [
        ("llama", "center_writing", "norms of this model are 'rms'"),
        ("gemma2", "center_unembed", "soft-cap"),
        ("bloom", "center_writing", "norm of its embedding"),
        ("sinusoidal", "center_writing", "sinusoidal"),
        ("bert", "fold_ln", "write to the stream"),
        ("bert", "center_writing", "post_ln"),
        ("bare", "fold_ln", "no norms"),
    ],
)
def test_a_step_that_would_change_the_model_is_refused(family: str, step: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"{step}=True is impossible: .*{message}"):
        processed(shaken_model(family), **{step: True})


def test_a_layer_norm_before_a_router_cannot_be_folded() -> None:
    model = shaken_model("mixtral", norm="layer")
    with pytest.raises(ValueError, match="router has no bias"):
        processed(model, fold_ln=True)
    close(log_probs(processed(model.double())), log_probs(model.double()), rtol=0, atol=1e-10)


def test_sixteen_bits_are_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="interp"):
        new = processed(shaken_model("gpt2").to(torch.bfloat16))
    assert "rounded to torch.bfloat16" in caplog.text
    assert new.dtype == torch.bfloat16
