"""Fused attention against the explicit one, and what the fast paths must not lose."""

import importlib.util

import pytest
import torch
from tiny import shaken_model, tiny_model

from interp.model.kernels import fused_attention, products_of
from interp.model.mask import Places, attention_mask, masked_softmax


def test_fused_attention_is_the_softmax_by_hand() -> None:
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, 4, 6, 8, generator=generator)
    k, v = torch.randn(2, 2, 2, 6, 8, generator=generator)
    positions, real = torch.arange(6).expand(2, 6), torch.ones(2, 6, dtype=torch.bool)
    real[0, :2] = False
    places = Places(positions, real, torch.tensor([[0, 0, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1]]))
    mask = attention_mask(places, places, window=3)
    bias = torch.randn(2, 4, 1, 6, generator=generator)
    plain = {"scale": 0.3, "softcap": None, "window": None, "dropout": 0.0}
    for chosen, causal, added in (
        (mask, False, None),
        (None, True, None),
        (None, False, None),
        (mask, False, bias),
        (None, True, bias),
    ):
        fused = fused_attention(q, k, v, mask=chosen, causal=causal, bias=added, **plain)
        scores = q @ k.repeat_interleave(2, 1).transpose(-1, -2) * 0.3 + (0 if added is None else added)
        allowed = (
            mask if chosen is not None else torch.ones(6, 6, dtype=torch.bool).tril() if causal else torch.tensor(True)
        )
        pattern = masked_softmax(scores.masked_fill(~allowed, -torch.inf))
        assert not torch.isnan(pattern).any()
        torch.testing.assert_close(fused, pattern @ v.repeat_interleave(2, 1))
    assert fused_attention(q, k, v, mask=mask, causal=False, bias=None, **plain | {"softcap": 5.0}) is None


def test_masks_are_joined_by_and() -> None:
    positions, real = torch.arange(5)[None], torch.tensor([[True, True, True, True, False]])
    places = Places(positions, real, torch.tensor([[0, 0, 1, 1, 1]]))
    found = attention_mask(places, places, window=2)[0, 0]
    for query in range(5):
        for key in range(5):
            expected = query < 4 and key < 4 and 0 <= query - key < 2 and (query < 2) == (key < 2)
            assert bool(found[query, key]) == expected
    both_ways = attention_mask(Places(positions, real), Places(positions, real), causal=False)[0, 0]
    assert torch.equal(both_ways, real.T & real)


def test_a_query_that_may_see_nothing_gets_zeros() -> None:
    scores = torch.full((1, 1, 2, 3), -torch.inf)
    scores[0, 0, 1, 0] = 1.0
    assert masked_softmax(scores)[0, 0].tolist() == [[0.0, 0.0, 0.0], [1.0, 0.0, 0.0]]


def test_hooks_of_torch_on_inner_modules_still_fire() -> None:
    model, seen = tiny_model(), []
    inner = [model.blocks[0], model.blocks[0].attn, model.blocks[0].attn.q, model.blocks[0].ln1, model.blocks[1].mlp]
    handles = [part.register_forward_hook(lambda module, args, out: seen.append(module)) for part in inner]
    model("text")
    assert len(seen) == len(inner)
    for handle in handles:
        handle.remove()
    everywhere = torch.nn.modules.module.register_module_forward_hook(lambda module, args, out: seen.append(module))
    model("text")
    everywhere.remove()
    assert any(isinstance(module, type(model.blocks[0].attn.q)) for module in seen[len(inner) :])


def test_the_kernel_for_one_row_changes_no_more_than_rounding_and_is_put_back() -> None:
    before = torch.backends.mkldnn.enabled
    with pytest.raises(KeyError), products_of(1, torch.bfloat16, torch.device("cpu")):  # noqa: PT012
        assert not torch.backends.mkldnn.enabled
        raise KeyError
    assert torch.backends.mkldnn.enabled == before
    with products_of(2, torch.bfloat16, torch.device("cpu")), products_of(1, torch.float32, torch.device("cpu")):
        assert torch.backends.mkldnn.enabled == before
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(1, 1, 512, generator=generator), torch.randn(256, 512, generator=generator)
    exact = torch.nn.functional.linear(x.bfloat16().double(), weight.bfloat16().double())
    with products_of(1, torch.bfloat16, torch.device("cpu")):
        found = torch.nn.functional.linear(x.bfloat16(), weight.bfloat16())
    assert float(((found.double() - exact) / exact.abs().clamp(min=1)).abs().max()) < 2**-8


def test_decoding_in_bfloat16_follows_the_whole_pass() -> None:
    model = shaken_model("llama").bfloat16()
    out = model.generate("some prompt", 12, stop_at_eos=False)
    ids = torch.tensor([out.all_tokens])
    logits = model(ids)[0, len("some prompt") - 1 : -1].float().log_softmax(-1)
    expected = logits.gather(-1, torch.tensor(out.tokens)[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(out.logprobs), expected, atol=0.15, rtol=0.05)


@pytest.mark.skipif(
    not torch.cuda.is_available() or importlib.util.find_spec("flash_attn") is None, reason="needs CUDA and flash-attn"
)
def test_flash_attention_with_a_softcap_and_a_window() -> None:
    model = shaken_model("gemma2").to("cuda", torch.bfloat16)
    ids = torch.randint(0, 256, (1, 40), device="cuda")
    fused = model(ids).float()
    with model.hooks({"attn_scores:*": lambda value, ctx: value + 0.0, "pattern:*": lambda value, ctx: value * 1.0001}):
        explicit = model(ids).float()
    assert float((fused - explicit).abs().max()) < 0.1
