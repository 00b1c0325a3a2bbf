"""Rows of a generation that end before others: they leave the batch, nothing else changes, and their ends have figures."""

from typing import Any

import pytest
import torch
from tiny import tiny_model

from interp.model import HookedTransformer
from interp.tokens import Tokens

PROMPTS = ["a", "hello there", "four"]
SAMPLED = {"temperature": 1.0, "top_p": 0.98, "seed": 3, "stop_at_eos": False}


def sizes_of_passes(model: HookedTransformer, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of every pass from now on."""
    usual, sizes = model._next, []

    def watched(tokens: Tokens, *rest: Any) -> torch.Tensor:
        sizes.append(len(tokens))
        return usual(tokens, *rest)

    monkeypatch.setattr(model, "_next", watched)
    return sizes


@pytest.mark.parametrize("family", ["llama", "gpt2", "mistral", "gemma3", "bloom", "deepseek", "dynamic"])
@pytest.mark.parametrize("samples", [None, 4])
def test_rows_that_ended_leave_and_nothing_else_changes(
    family: str, samples: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model(family)
    options = {**SAMPLED, "stop": [*range(0, 258, 9)], "n_samples": samples, "repetition_penalty": 1.2}
    prompts = PROMPTS if samples else PROMPTS * 4
    sizes = sizes_of_passes(model, monkeypatch)
    with model.hooks({"resid_post:0": lambda value, ctx: None}):
        kept = model.generate(prompts, 14, **options)
    assert set(sizes[1:]) == {12}, "a hook sees every row in every pass"
    sizes.clear()
    left = model.generate(prompts, 14, **options)
    assert sizes[0] == len(prompts)
    assert sizes[1:] == sorted(sizes[1:], reverse=True)
    assert sizes[-1] < 12
    assert left.timing.n_decoded == kept.timing.n_decoded
    for ours, theirs in zip(left.rows, kept.rows, strict=True):
        assert (ours.tokens, ours.text, ours.stop, ours.end_tokens) == (
            theirs.tokens,
            theirs.text,
            theirs.stop,
            theirs.end_tokens,
        )
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)
        assert ours.entropies == pytest.approx(theirs.entropies, abs=1e-4)


def test_recording_keeps_every_row(tiny: HookedTransformer, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = sizes_of_passes(tiny, monkeypatch)
    out = tiny.generate(PROMPTS, 9, n_samples=3, stop=[*range(0, 258, 5)], sites="resid_post:0", **SAMPLED)
    assert set(sizes[1:]) <= {9}
    assert len({len(row.tokens) for row in out.rows}) > 1


def test_the_tokens_that_end_a_row_have_figures_too(tiny: HookedTransformer) -> None:
    out = tiny.generate("hello", 12, n_samples=6, temperature=1.0, stop=[*range(128), "x"], seed=1)
    assert max(len(row.end_tokens) for row in out.rows) == 1
    for row in out.rows:
        ids = [*row.all_tokens, *row.end_tokens]
        logp = tiny(ids)[0].log_softmax(-1)
        places = range(len(row.all_tokens) - 1, len(ids) - 1)
        assert row.end_logprobs == pytest.approx([float(logp[i, ids[i + 1]]) for i in places], abs=1e-4)
        assert row.end_entropies == pytest.approx([float(-(logp[i] * logp[i].exp()).sum()) for i in places], abs=1e-4)


def test_logits_that_are_no_numbers_are_refused(tiny: HookedTransformer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny, "_next", lambda tokens, *rest: torch.full((len(tokens), 258), torch.nan))
    for temperature in (0.0, 1.0, 0.5):
        with pytest.raises(ValueError, match="logits of row 0 are NaN or infinite after 0 new tokens"):
            tiny.generate("hello", 3, temperature=temperature)


@pytest.mark.parametrize("family", ["llama", "gpt2", "neox", "bloom", "deepseek", "olmo2", "gptj"])
def test_prompts_that_begin_alike_run_their_beginning_once(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(family)
    prompts = [f"The same beginning. {end}" for end in ("a", "a longer one", "four", "a")]
    options = {**SAMPLED, "n_samples": 2, "repetition_penalty": 1.1}
    usual, widths = model._next, []

    def watched(tokens: Tokens, *rest: Any) -> torch.Tensor:
        widths.append(tuple(tokens.ids.shape))
        return usual(tokens, *rest)

    monkeypatch.setattr(model, "_next", watched)
    with model.hooks({"resid_post:0": lambda value, ctx: None}):
        whole = model.generate(prompts, 6, **options)
    assert widths[0][0] == 4, "a hook sees whole prompts"
    widths.clear()
    shared = model.generate(prompts, 6, **options)
    (one, beginning), (four, rest) = widths[:2]
    assert (one, four) == (1, 4)
    assert beginning >= 16
    assert beginning + rest == max(len(row.prompt_tokens) for row in shared.rows)
    for ours, theirs in zip(shared.rows, whole.rows, strict=True):
        assert (ours.tokens, ours.prompt_tokens) == (theirs.tokens, theirs.prompt_tokens)
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)


@pytest.mark.parametrize("family", ["mistral", "mixtral", "dynamic"])
def test_a_shared_beginning_is_not_used_where_places_count(family: str) -> None:
    model = tiny_model(family)
    prompts = [f"The same beginning. {end}" for end in ("a", "a longer one")]
    together = model.generate(prompts, 5, **SAMPLED)
    for prompt, tokens in zip(prompts, together.tokens):
        assert model.generate(prompt, 5, **SAMPLED).tokens == tokens
