"""Generation: cached equals recomputed, batches equal single prompts, sampling equals its definition."""

import pytest
import torch
from tiny import tiny_model

from interp.model import HookedTransformer
from interp.model.generate import Sampling, choose


def recomputed(model: HookedTransformer, ids: list[int], n: int) -> list[int]:
    """Greedy continuation without a cache."""
    for _ in range(n):
        ids = [*ids, int(model(ids)[0, -1].argmax())]
    return ids[-n:]


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("kv", [4, 2, 1])
def test_cached_greedy_equals_full_recomputation(family: str, kv: int) -> None:
    model = tiny_model(family, n_kv_heads=kv)
    out = model.generate("hello", 12, stop_at_eos=False)
    assert out.tokens == recomputed(model, model.tokenizer.encode("hello"), 12)
    assert isinstance(out.text, str)


def test_a_batch_continues_each_prompt_as_alone(tiny: HookedTransformer) -> None:
    prompts = ["a", "hello there", "four"]
    for options in ({}, {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "seed": 3}):
        together = tiny.generate(prompts, 8, stop_at_eos=False, **options)
        assert together.tokens[0] == tiny.generate("a", 8, stop_at_eos=False, **options).tokens
        if not options:
            assert together.tokens == [tiny.generate(prompt, 8, stop_at_eos=False).tokens for prompt in prompts]
        assert together.prompt == prompts


def test_cached_equals_recomputed_while_hooked(tiny: HookedTransformer) -> None:
    push = torch.randn(32, generator=torch.Generator().manual_seed(0))
    with tiny.hooks({"resid_post:0": lambda value, ctx: value + push, "v:1": lambda value, ctx: value * 0.5}):
        cached = tiny.generate("hello", 8, stop_at_eos=False)
        assert cached.tokens == recomputed(tiny, tiny.tokenizer.encode("hello"), 8)
    assert cached.tokens != tiny.generate("hello", 8, stop_at_eos=False).tokens


def test_seeds(tiny: HookedTransformer) -> None:
    once = tiny.generate("hello", 10, temperature=1.0, seed=1)
    assert once.tokens == tiny.generate("hello", 10, temperature=1.0, seed=1).tokens
    assert once.tokens != tiny.generate("hello", 10, temperature=1.0, seed=2).tokens


def test_logprobs_are_the_models_own(tiny: HookedTransformer) -> None:
    out = tiny.generate("hello", 5, temperature=0.5, top_k=3, stop_at_eos=False)
    ids = tiny.tokenizer.encode("hello") + out.tokens
    logp = tiny(ids)[0].log_softmax(-1)
    expected = [float(logp[4 + i, token]) for i, token in enumerate(out.tokens)]
    assert out.logprobs == pytest.approx(expected, abs=1e-4)
    assert all(value <= 0 for value in out.sampling_logprobs)


def test_sampled_shares_match_the_distribution() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0, -5.0]])
    n = 20000
    uniform = torch.rand(n, generator=torch.Generator().manual_seed(0))
    for sampling, kept in (
        (Sampling(1.0), 5),
        (Sampling(0.5), 5),
        (Sampling(1.0, top_k=2), 2),
        (Sampling(1.0, top_p=0.7), 2),
    ):
        token, _, drawn = choose(logits.expand(n, -1), sampling, uniform)
        share = torch.bincount(token, minlength=5) / n
        expected = (logits[0] / sampling.temperature)[:kept].softmax(-1)
        torch.testing.assert_close(share[:kept], expected, atol=0.015, rtol=0)
        assert not share[kept:].any()
        torch.testing.assert_close(drawn.exp(), expected[token], atol=1e-5, rtol=1e-4)


def test_top_p_keeps_the_token_that_crosses_the_threshold() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.2]]).log()
    assert int((Sampling(1.0, top_p=0.5).filtered(logits) > -torch.inf).sum()) == 1
    assert int((Sampling(1.0, top_p=0.51).filtered(logits) > -torch.inf).sum()) == 2


def test_end_of_text_stops_a_row(tiny: HookedTransformer) -> None:
    free = tiny.generate("hello", 6, stop_at_eos=False)
    tiny.tokenizer.eos_id = free.tokens[2]
    out = tiny.generate(["hello", "hello"], 6)
    cut = free.tokens.index(free.tokens[2])
    assert out.tokens == [free.tokens[:cut]] * 2
    assert out.stopped == [True, True]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1}, "temperature"),
        ({"top_k": 0}, "top_k"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"max_new_tokens": 500}, "context of 128"),
    ],
)
def test_bad_options(tiny: HookedTransformer, options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny.generate("hello", **options)


def test_generation_runs_without_gradients_and_restores_the_mode(tiny: HookedTransformer) -> None:
    tiny.generate("hello", 2)
    assert torch.is_grad_enabled()
