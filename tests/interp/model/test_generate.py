"""Generation: cached equals recomputed, batches equal single prompts, streams equal results, recordings equal one pass."""

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import random_gpt2, random_llama
from tiny import byte_tokenizer, tiny_model

import interp
from interp.model import HookedTransformer
from interp.model.generation import GenerationStream
from interp.tokens import Tokens

PROMPTS = ["a", "hello there", "four"]
SAMPLED = {"temperature": 1.0, "top_p": 0.98, "seed": 3, "stop_at_eos": False}


def recomputed(model: HookedTransformer, ids: list[int], n: int, **options: Any) -> list[int]:
    """Greedy continuation without a cache."""
    for _ in range(n):
        ids = [*ids, int(model(ids, **options)[0, -1].argmax())]
    return ids[-n:]


def encoded(model: HookedTransformer, text: str) -> list[int]:
    assert model.tokenizer is not None
    return model.tokenizer.encode(text)


# ------------------------------------------------------------------------------------------------- the same as others


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("kv", [4, 2, 1])
def test_cached_greedy_equals_full_recomputation(family: str, kv: int) -> None:
    model = tiny_model(family, n_kv_heads=kv)
    out = model.generate("hello", 12, stop_at_eos=False)
    assert out.tokens == recomputed(model, encoded(model, "hello"), 12)
    assert out.all_tokens == encoded(model, "hello") + out.tokens
    assert isinstance(out.text, str)


@pytest.mark.parametrize("make", [random_llama, random_gpt2])
def test_greedy_is_transformers_greedy(make: Any, tmp_path: Path) -> None:
    theirs = make()
    theirs.save_pretrained(tmp_path)
    ours = interp.load(str(tmp_path))
    ids = torch.randint(3, 260, (2, 9), generator=torch.Generator().manual_seed(1))
    options = {"max_new_tokens": 14, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    for penalty in (1.0, 1.4, 0.8):
        expected = theirs.generate(
            ids, attention_mask=torch.ones_like(ids), repetition_penalty=penalty, output_logits=True,
            return_dict_in_generate=True, **options,
        )  # fmt: skip
        found = ours.generate(ids, 14, repetition_penalty=penalty)
        assert found.tokens == expected.sequences[:, 9:].tolist()
        logp = torch.stack(expected.logits, 1).log_softmax(-1)
        entropy = -(logp * logp.exp()).sum(-1)
        chosen = logp.gather(-1, expected.sequences[:, 9:, None])[..., 0]
        torch.testing.assert_close(torch.tensor(found.logprobs), chosen, atol=1e-4, rtol=0)
        torch.testing.assert_close(torch.tensor(found.entropies), entropy, atol=1e-4, rtol=0)
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    expected = theirs.generate(ids, attention_mask=mask, **options)[:, 9:].tolist()
    assert ours.generate(Tokens(ids, mask.bool()), 14).tokens == expected


def test_padding_on_either_side_changes_nothing(tiny: HookedTransformer) -> None:
    assert tiny.tokenizer is not None
    for options in ({"stop_at_eos": False}, {"repetition_penalty": 1.5, **SAMPLED}):
        left = tiny.generate(tiny.tokenizer.tokenize(PROMPTS, pad="left"), 8, **options)
        right = tiny.generate(tiny.tokenizer.tokenize(PROMPTS, pad="right"), 8, **options)
        assert left.tokens == right.tokens == [tiny.generate(prompt, 8, **options).tokens for prompt in PROMPTS]


def test_a_batch_continues_each_prompt_as_alone(tiny: HookedTransformer) -> None:
    for options in ({"stop_at_eos": False}, {"temperature": 0.8, "top_k": 20, "min_p": 0.01, "stop_at_eos": False}):
        together = tiny.generate(PROMPTS, 8, **options)
        assert together.tokens == [tiny.generate(prompt, 8, **options).tokens for prompt in PROMPTS]
        assert together.prompt == PROMPTS
        other = tiny.generate(PROMPTS[::-1], 8, **options)
        assert other.tokens == together.tokens[::-1]


def test_cached_equals_recomputed_while_hooked(tiny: HookedTransformer) -> None:
    push = torch.randn(32, generator=torch.Generator().manual_seed(0))
    with tiny.hooks({"resid_post:0": lambda value, ctx: value + push, "v:1": lambda value, ctx: value * 0.5}):
        cached = tiny.generate("hello", 8, stop_at_eos=False)
        assert cached.tokens == recomputed(tiny, encoded(tiny, "hello"), 8)
    assert cached.tokens != tiny.generate("hello", 8, stop_at_eos=False).tokens


def test_hooks_know_phase_step_and_absolute_positions(tiny: HookedTransformer) -> None:
    seen = []

    def look(value: torch.Tensor, ctx: Any) -> None:
        seen.append(
            (ctx.phase, ctx.step, [row[real].tolist() for row, real in zip(ctx.positions, ctx.mask, strict=True)])
        )
        assert ctx.prompt_len.tolist() == [2, 4]
        assert value.shape[:2] == ctx.positions.shape

    with tiny.hooks({"resid_post:0": look}):
        tiny.generate(["ab", "abcd"], 3, stop_at_eos=False)
    assert seen == [
        ("prefill", 0, [[0, 1], [0, 1, 2, 3]]),
        ("decode", 1, [[2], [4]]),
        ("decode", 2, [[3], [5]]),
    ]


def test_seeds(tiny: HookedTransformer) -> None:
    once = tiny.generate("hello", 10, temperature=1.0, seed=1)
    assert once.tokens == tiny.generate("hello", 10, temperature=1.0, seed=1).tokens
    assert once.tokens != tiny.generate("hello", 10, temperature=1.0, seed=2).tokens


def test_logprobs_are_the_models_own(tiny: HookedTransformer) -> None:
    out = tiny.generate("hello", 5, temperature=0.5, top_k=3, repetition_penalty=1.1, stop_at_eos=False)
    logp = tiny(out.all_tokens)[0].log_softmax(-1)
    expected = [float(logp[4 + i, token]) for i, token in enumerate(out.tokens)]
    assert out.logprobs == pytest.approx(expected, abs=1e-4)
    entropies = [float(-(row * row.exp()).sum()) for row in logp[4:-1]]
    assert out.entropies == pytest.approx(entropies, abs=1e-4)
    assert all(-10 < value <= 0 for value in out.sampling_logprobs)
    assert out.sampling_logprobs != out.logprobs


# ------------------------------------------------------------------------------------------------------ several samples


def test_samples_share_one_prefill_and_are_those_of_repeated_prompts(tiny: HookedTransformer) -> None:
    passes = []
    with tiny.hooks({"resid_post:0": lambda value, ctx: passes.append((ctx.phase, value.shape[:2]))}):
        out = tiny.generate(["ab", "abcd"], 6, n_samples=3, **SAMPLED)
    assert passes == [("prefill", (2, 4)), *[("decode", (6, 1))] * 5]
    repeated = tiny.generate(["ab"] * 3 + ["abcd"] * 3, 6, **SAMPLED)
    assert out.tokens == [repeated.tokens[:3], repeated.tokens[3:]]
    assert out.text == [repeated.text[:3], repeated.text[3:]]
    assert len(out.rows) == 6
    assert len({tuple(row.tokens) for row in out.rows}) > 2
    one = tiny.generate("abcd", 6, n_samples=3, **SAMPLED)
    assert one.tokens == out.tokens[1]
    assert tiny.generate("abcd", 6, n_samples=1, **SAMPLED).tokens == out.tokens[1][:1]


# ----------------------------------------------------------------------------------------------------------- ends


def test_end_of_text_stops_a_row(tiny: HookedTransformer) -> None:
    assert tiny.tokenizer is not None
    free = tiny.generate("hello", 6, stop_at_eos=False)
    assert (free.stopped, free.stop_reason, free.stop) == (False, "length", None)
    tiny.tokenizer.eos_id = free.tokens[2]
    out = tiny.generate(["hello", "hello"], 6)
    cut = free.tokens.index(free.tokens[2])
    assert out.tokens == [free.tokens[:cut]] * 2
    assert out.stopped == [True, True]
    assert out.stop_reason == ["eos", "eos"]
    by_id = tiny.generate("hello", 6, stop=free.tokens[2], stop_at_eos=False)
    assert (by_id.tokens, by_id.stop_reason, by_id.stop) == (free.tokens[:cut], "stop", free.tokens[2])


def told(model: HookedTransformer, text: str) -> HookedTransformer:
    """The model made to say this text, and then to end it, after any prompt."""
    ids = encoded(model, text)
    logits = torch.full((len(ids) + 1, model.cfg.d_vocab), -30.0)
    logits[torch.arange(len(ids)), torch.tensor(ids)] = 30.0
    logits[-1, model.tokenizer.eos_id] = 30.0  # type: ignore[union-attr]
    usual = model._next

    def scripted(tokens: Tokens, kv: Any, phase: str, step: int, prompt_len: Any, start: Any) -> torch.Tensor:
        usual(tokens, kv, phase, step, prompt_len, start)
        return logits[min(step, len(ids))].expand(len(tokens), -1)

    model._next = scripted  # type: ignore[method-assign]
    return model


@pytest.mark.parametrize(
    ("stop", "text", "found"),
    [
        ("END", "one ✓ two EN three ", "END"),
        (["three", "two"], "one ✓ ", "two"),
        (["✓"], "one ", "✓"),
        ("one", "", "one"),
        (["never", "E END"], "one ✓ two EN three END four", None),
        ("four", "one ✓ two EN three END ", "four"),
    ],
)
def test_stop_strings_span_tokens(stop: Any, text: str, found: str | None) -> None:
    model = told(tiny_model(), "one ✓ two EN three END four")
    out = model.generate(["a", "bcd"], 60, stop=stop)
    assert out.text == [text] * 2
    assert out.stop == [found] * 2
    assert out.stop_reason == ["stop" if found else "eos"] * 2
    assert out.tokens[0] == encoded(model, text)
    left_out = encoded(model, found or "") if text else []
    for row in out.rows:
        assert row.end_tokens[: len(left_out)] == left_out if found else row.end_tokens == [256]
        assert len(row.end_tokens) == len(row.end_logprobs) == len(row.end_entropies) > 0
    assert len(out.logprobs[0]) == len(out.entropies[0]) == len(out.sampling_logprobs[0]) == len(out.tokens[0])
    stream = model.generate_stream("a", 60, stop=stop)
    pieces = list(stream)
    assert "".join(map(str, pieces)) == stream.result.text == text
    assert [token for piece in pieces for token in piece.tokens] == stream.result.tokens
    assert not any("\ufffd" in piece.text for piece in pieces)


def test_the_limit_may_cut_a_character() -> None:
    model = told(tiny_model(), "ab✓")
    stream = model.generate_stream("x", 4)
    assert [(piece.text, len(piece.tokens)) for piece in stream] == [("a", 1), ("b", 1), ("\ufffd", 2)]
    assert stream.result.text == "ab\ufffd"
    assert stream.result.stop_reason == "length"


# --------------------------------------------------------------------------------------------------------- streaming


@pytest.mark.parametrize("options", [{}, SAMPLED, {**SAMPLED, "n_samples": 2}])
def test_a_stream_is_the_generation_in_pieces(tiny: HookedTransformer, options: dict[str, Any]) -> None:
    expected = tiny.generate(PROMPTS, 12, **options)
    stream = tiny.generate_stream(PROMPTS, 12, **options)
    with pytest.raises(ValueError, match="not done"):
        _ = stream.result
    pieces = list(stream)
    assert stream.result.rows == expected.rows
    assert stream.result.text == expected.text
    for index, row in enumerate(expected.rows):
        own = [piece for piece in pieces if piece.row == index]
        assert "".join(piece.text for piece in own) == row.text
        for field in ("tokens", "logprobs", "sampling_logprobs", "entropies"):
            assert [value for piece in own for value in getattr(piece, field)] == getattr(row, field)
        assert tiny.tokenizer is not None
        assert row.text == tiny.tokenizer.decode(row.tokens)


def test_a_stream_arrives_while_it_is_made(tiny: HookedTransformer) -> None:
    before = tiny.run.forwards
    stream = tiny.generate_stream([[1, 2, 3]], 50, stop_at_eos=False, temperature=1.0)
    assert tiny.run.forwards == before
    next(stream)
    assert tiny.run.forwards - before < 10
    assert tiny("something else").shape[1] == 14, "other passes do not disturb it"
    assert torch.is_grad_enabled()
    assert stream.finish().tokens == tiny.generate([1, 2, 3], 50, stop_at_eos=False, temperature=1.0).tokens


def test_a_stream_does_not_outlive_its_hooks(tiny: HookedTransformer) -> None:
    with tiny.hooks({"resid_post:0": lambda value, ctx: value * 2}):
        stream = tiny.generate_stream([1, 2, 3], 9, stop_at_eos=False)
    for read in (next, GenerationStream.finish):
        with pytest.raises(ValueError, match="attached or removed while its stream was being read"):
            read(stream)
    with tiny.hooks({"resid_post:0": lambda value, ctx: value * 2}):
        steered = [token for piece in tiny.generate_stream([1, 2, 3], 9, stop_at_eos=False) for token in piece.tokens]
        assert steered == tiny.generate([1, 2, 3], 9, stop_at_eos=False).tokens


def test_without_a_tokenizer_there_are_tokens_and_no_text() -> None:
    model = HookedTransformer(tiny_model().cfg, seed=0)
    stream = model.generate_stream([[1, 2, 3], [4, 5, 6]], 4)
    pieces = list(stream)
    assert [(piece.row, len(piece.tokens), piece.text) for piece in pieces] == [(0, 1, ""), (1, 1, "")] * 4
    assert stream.result.text == ["", ""]
    with pytest.raises(ValueError, match="stop='x' needs a tokenizer"):
        model.generate([1, 2], stop="x")
    assert model.generate([1, 2], 6, stop=pieces[2].tokens[0]).stop_reason in ("stop", "length")


# --------------------------------------------------------------------------------------------------------- recording

SITES = ["embed", "resid_post:*", "z:1", "ln_final.scale", "post:0", "v:*"]


def assert_equals_one_pass(model: HookedTransformer, row: Any) -> None:
    """The row's recording against one teacher-forced pass over the tokens that it says it covers."""
    ids = row.cache.tokens.ids[0].tolist()
    assert row.all_tokens[: len(ids)] == ids
    _, whole = model.run_with_cache(ids, SITES, prompt_len=len(row.prompt_tokens))
    assert list(row.cache) == list(whole)
    for name in whole:
        expected = whole[name][0]
        assert row.cache[name].shape == expected.shape
        error = (row.cache[name] - expected).flatten(1).norm(dim=1) / expected.flatten(1).norm(dim=1)
        assert float(error.max()) < 1e-5, name


@pytest.mark.parametrize("options", [{}, SAMPLED, {**SAMPLED, "n_samples": 2}])
def test_recording_equals_one_pass(tiny: HookedTransformer, options: dict[str, Any]) -> None:
    out = tiny.generate(PROMPTS, 7, sites=SITES, **options)
    for row in out.rows:
        assert_equals_one_pass(tiny, row)
        assert len(row.cache.tokens.ids[0]) == len(row.all_tokens) - (row.stop_reason == "length")
    assert out.rows[0].tokens == tiny.generate(PROMPTS, 7, **options).rows[0].tokens, "recording changes nothing"
    first = out.rows[0].cache
    assert first["resid_post", 1].shape == (len(first.tokens.ids[0]), 32)
    assert torch.equal(first["z:1.2"], first["z:1"][:, 2])
    assert not first["resid_post:1"].is_inference(), "it may be trained on"


def test_recording_sees_what_interventions_left(tiny: HookedTransformer) -> None:
    push = torch.randn(32, generator=torch.Generator().manual_seed(0))
    steer = {
        "resid_post:0": lambda value, ctx: value + push * (ctx.positions >= ctx.prompt_len[:, None] - 1)[..., None]
    }
    with tiny.hooks(steer):
        out = tiny.generate(PROMPTS, 7, sites=SITES, stop_at_eos=False)
        for row in out.rows:
            assert_equals_one_pass(tiny, row)


def test_rows_are_recorded_up_to_their_end(tiny: HookedTransformer) -> None:
    model = told(tiny, "one two END three")
    free = model.generate(["ab", "abcd"], 30, sites="resid_post:1")
    assert free.stop_reason == ["eos", "eos"]
    assert [len(cache.tokens.ids[0]) for cache in free.cache] == [len(ids) for ids in free.all_tokens]
    cut = model.generate("abcd", 30, stop="END", sites="resid_post:1")
    assert cut.cache.tokens.ids[0].tolist() == cut.all_tokens, "the tokens of the stop string are gone"
    exact = model.generate("abcd", 30, stop="D", sites="resid_post:1")
    assert exact.cache.tokens.ids[0].tolist() == exact.all_tokens
    limited = model.generate("abcd", 3, sites="resid_post:1")
    assert limited.cache.tokens.ids[0].tolist() == limited.all_tokens[:-1], "the last token was never fed"


def test_what_cannot_be_recorded(tiny: HookedTransformer) -> None:
    for site in ("pattern:0", "attn_scores:1"):
        with pytest.raises(ValueError, match="its width grows with every token"):
            tiny.generate("hello", 3, sites=site)
    with pytest.raises(ValueError, match="resid_pots"):
        tiny.generate("hello", 3, sites="resid_pots:0")
    assert tiny.generate("hello", 3).cache is None


# ------------------------------------------------------------------------------------------------ time, mode, mistakes


def test_prefill_and_decode_are_timed_apart(tiny: HookedTransformer) -> None:
    def slow(value: torch.Tensor, ctx: Any) -> None:
        time.sleep(0.05 if ctx.phase == "prefill" else 0.01)

    began, slept = time.perf_counter(), 0.0
    with tiny.hooks({"resid_post:0": slow}):
        stream = tiny.generate_stream(["ab", "cd"], 5, stop_at_eos=False)
        for _ in stream:
            pause = time.perf_counter()
            time.sleep(0.02)
            slept += time.perf_counter() - pause
    took, timing = time.perf_counter() - began, stream.result.timing
    assert timing.prefill_s >= 0.05
    assert timing.decode_s >= 0.04
    assert timing.prefill_s + timing.decode_s <= took - slept, "the reader's time is not the model's"
    assert timing.n_decoded == 8
    assert timing.tokens_per_s == pytest.approx(8 / timing.decode_s)
    assert tiny.generate("a", 1).timing.tokens_per_s is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1}, "temperature"),
        ({"top_k": 0}, "top_k"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"min_p": 2.0}, "min_p"),
        ({"repetition_penalty": -1.0}, "repetition_penalty"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"max_new_tokens": 500}, "5 prompt tokens and 500 new ones do not fit the context of 128"),
        ({"n_samples": 0}, "n_samples must be at least 1"),
        ({"n_samples": 2}, "greedy continuations would all be the same; pass temperature="),
        ({"stop": ""}, "stop string must not be empty"),
        ({"stop": ["a", ""]}, "stop string must not be empty"),
        ({"stop": [None]}, "strings or token ids, got None"),
    ],
)
def test_bad_options(tiny: HookedTransformer, options: dict[str, Any], message: str) -> None:
    for call in (tiny.generate, tiny.generate_stream):
        with pytest.raises(ValueError, match=message):
            call("hello", **options)


def test_bad_prompts(tiny: HookedTransformer) -> None:
    for prompt in ("", [], ["a", ""]):
        with pytest.raises(ValueError, match="empty"):
            tiny.generate(prompt)
    with pytest.raises(ValueError, match="context holds 128"):
        tiny.generate("x" * 200)
    encoder = tiny_model("gpt2", causal=False)
    with pytest.raises(ValueError, match=r"is an encoder.*generation means nothing"):
        encoder.generate("a")


def test_generation_runs_without_gradients_and_restores_the_mode(tiny: HookedTransformer) -> None:
    modes = []
    with tiny.hooks({"resid_post:0": lambda value, ctx: modes.append(torch.is_inference_mode_enabled())}):
        tiny.generate("hello", 2, stop_at_eos=False)
        next(tiny.generate_stream([1], 2, stop_at_eos=False))
    assert all(modes)
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()


def test_an_error_in_a_hook_leaves_the_model_as_it_was(tiny: HookedTransformer) -> None:
    def fail(value: torch.Tensor, ctx: Any) -> None:
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"), tiny.hooks({"resid_post:1": fail}):
        tiny.generate("hello", 4, sites="resid_post:*")
    assert not any(point.handles for point in tiny.hook_dict.values())
    assert isinstance(tiny.generate_stream("hello", 4), GenerationStream)


def test_the_text_of_the_new_tokens_is_their_decoding(tiny: HookedTransformer) -> None:
    out = tiny.generate("hello", 40, **SAMPLED)
    assert out.text == byte_tokenizer().decode(out.tokens)


def test_values_are_not_recorded_where_the_context_turns_them_anew() -> None:
    model = tiny_model("dynamic")
    model.generate("a prompt", 8, stop_at_eos=False)
    with pytest.raises(ValueError, match="turns all tokens anew"):
        model.generate("a prompt", 8, stop_at_eos=False, sites="resid_post:0")
    assert model.generate("abc", 2, stop_at_eos=False, sites="resid_post:0").cache is not None


@pytest.mark.parametrize(
    "options",
    [
        {"max_new_tokens": 2.5},
        {"top_k": 2.5},
        {"temperature": "a"},
        {"seed": "a"},
        {"stop": 3.5},
        {"stop": 999},
        {"n_samples": "2"},
    ],
)
def test_options_of_the_wrong_type_name_themselves(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        tiny_model().generate("text", **options)
