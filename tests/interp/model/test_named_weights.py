"""Weights by name against TransformerLens' own, and what a model without them says."""

import pytest
import torch

from interp.model.int8 import quantize_int8
from tests.support.lens_twin import pair
from tests.support.tiny import shaken_model, tiny_model

close = torch.testing.assert_close
NAMES = ["W_E", "W_U", "b_U", "W_Q", "W_O", "b_Q", "b_O", "W_in", "W_out", "b_in", "b_out"]
GROUPED = ["W_K", "W_V", "b_K", "b_V"]


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_weights_and_circuits_equal_transformer_lens(family: str) -> None:
    ours, lens = pair(family)
    for name in NAMES:
        close(getattr(ours, name), getattr(lens, name), rtol=0, atol=0)
    groups = ours.cfg.n_heads // ours.cfg.kv_heads
    for name in GROUPED:  # ours keep the kv_head axis
        close(getattr(ours, name).repeat_interleave(groups, 1), getattr(lens, name), rtol=0, atol=0)
    if family == "gpt2":
        assert ours.W_gate is None
        close(ours.W_pos, lens.W_pos)
        close(ours.W_E_pos, lens.W_E_pos)
        close(ours.accumulated_bias(2), lens.accumulated_bias(2))
        close(ours.accumulated_bias(1, mlp_input=True), lens.accumulated_bias(1, mlp_input=True))
        close(ours.accumulated_bias(2, include_mlp_biases=False), lens.accumulated_bias(2, include_mlp_biases=False))
    else:
        close(ours.W_gate, lens.W_gate, rtol=0, atol=0)
        assert not ours.b_O.any()
    for layer, head in ((0, 1), (1, 3), (-1, -1)):
        close(ours.OV(layer, head).AB, lens.OV[layer, head].AB)
        close(ours.QK(layer, head).AB, lens.QK[layer, head].AB)
    close(ours.OV().AB, lens.OV.AB)
    close(ours.QK(1).AB, lens.QK[1].AB)
    close(ours.OV(0, 2).S, lens.OV[0, 2].S)
    close(ours.OV(0, 2).eigenvalues.abs().sort().values, lens.OV[0, 2].eigenvalues.abs().sort().values)
    for mode in "QKV":
        close(ours.all_composition_scores(mode), lens.all_composition_scores(mode))
    assert ours.all_head_labels() == lens.all_head_labels()


def test_circuits_reproduce_the_pass() -> None:
    model = tiny_model("llama", positional="none")
    _, cache = model.run_with_cache("hello there")
    x = cache["ln1.normalized", 1][0] * model.blocks[1].ln1.weight
    for head in range(4):
        scores = ((x @ model.QK(1, head)) @ x.T).AB * model.cfg.scaling
        causal = torch.ones_like(scores, dtype=torch.bool).tril()
        close(scores[causal], cache["attn_scores", 1][0, head][causal], rtol=1e-4, atol=1e-4)
        written = cache["pattern", 1][0, head] @ (x @ model.OV(1, head)).AB
        close(written, cache["z", 1][0, :, head] @ model.W_O[1, head], rtol=1e-4, atol=1e-4)


def test_one_head_is_a_view_that_writes_through() -> None:
    model = tiny_model("gpt2")
    with torch.no_grad():
        model.blocks[1].attn.W_O[2] *= 0
    assert not model.OV(1, 2).AB.any()
    assert model.OV(1, 1).AB.any()


def test_a_weight_that_does_not_exist_says_why() -> None:
    llama, deepseek, mixtral, bare = (tiny_model(name) for name in ("llama", "deepseek", "mixtral", "bare"))
    with pytest.raises(ValueError, match="positions of this model are rope"):
        _ = llama.W_pos
    for name in ("W_Q", "W_V", "b_K"):
        with pytest.raises(ValueError, match=f"no {name}: latent attention"):
            getattr(deepseek, name)
    with pytest.raises(ValueError, match="no OV: latent"):
        deepseek.OV(0, 0)
    assert deepseek.W_O.shape == (2, 4, 10, 32)
    with pytest.raises(ValueError, match="layer 1 has 8 experts"):
        _ = deepseek.W_out
    with pytest.raises(ValueError, match="layer 0 has 4 experts"):
        _ = mixtral.b_in
    with pytest.raises(ValueError, match="attention alone"):
        _ = bare.W_in
    with pytest.raises(ValueError, match="layers 0 to 1"):
        llama.OV(2, 0)
    with pytest.raises(ValueError, match="heads 0 to 3"):
        llama.QK(0, -5)
    with pytest.raises(ValueError, match="needs a layer"):
        llama.OV(head=1)
    with pytest.raises(ValueError, match="'Q', 'K' or 'V'"):
        llama.all_composition_scores("O")
    with pytest.raises(ValueError, match="get_full_resid_decomposition"):
        shaken_model("gemma2").accumulated_bias(1)
    with pytest.raises(ValueError, match="2 layers"):
        llama.accumulated_bias(2, mlp_input=True)


def test_int8_weights_have_names_too() -> None:
    model = shaken_model("gpt2")
    small = quantize_int8(model).model
    for name in ("W_E", "W_Q", "W_O", "W_in", "W_out"):
        step = getattr(model, name).abs().max() / 127
        close(getattr(small, name), getattr(model, name), rtol=0, atol=float(step))
    close(small.b_O, model.b_O)
    assert small.OV(1, 2).shape == (32, 32)
