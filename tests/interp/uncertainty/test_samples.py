"""Sampled answers: the same as prompt by prompt, with the log-probability that a pass over the whole text gives."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tiny import tiny_model

import interp
from interp.model import HookedTransformer
from interp.uncertainty.samples import AnswerSamples, load_answer_samples, sample_answers

PROMPTS = ["hello there", "a", "four", "b", "hello there", "longer than all others"]


ENDS = ["e", "\n", *range(50)]
"""So many of 258 tokens that about half of the answers end before the limit."""


@pytest.fixture(scope="module")
def model() -> HookedTransformer:
    return tiny_model()


@pytest.fixture(scope="module")
def samples(model: HookedTransformer) -> AnswerSamples:
    return sample_answers(model, PROMPTS, 5, max_new_tokens=6, stop=ENDS, seed=3, batch_rows=11)


def scored(model: HookedTransformer, prompt: str, ids: list[int]) -> list[tuple[float, float]]:
    """(log-probability, entropy) of each of these tokens after the prompt, from one pass over the whole text."""
    assert model.tokenizer is not None
    before = model.tokenizer.encode(prompt)
    logp = model([*before, *ids])[0].double().log_softmax(-1)
    places = range(len(before) - 1, len(before) + len(ids) - 1)
    return [(float(logp[i, token]), float(-(logp[i] * logp[i].exp()).sum())) for i, token in zip(places, ids)]


def test_the_same_as_prompt_by_prompt(model: HookedTransformer, samples: AnswerSamples) -> None:
    for index, prompt in enumerate(PROMPTS):
        alone = model.generate(prompt, 6, n_samples=5, temperature=1.0, seed=3, stop=ENDS).rows
        best = model.generate(prompt, 6, stop=ENDS)
        assert [samples.token_ids(index, number) for number in range(5)] == [row.tokens for row in alone]
        assert samples.token_ids(index, -1) == best.tokens
        assert samples.texts(index) == [row.text.strip() for row in alone]
        assert samples.greedy["text"][index] == best.text.strip()
    assert samples.texts(0) == samples.texts(4), "equal prompts get equal answers"
    assert list(samples.prompts) == PROMPTS
    assert samples.rows["sample"].tolist() == [-1, 0, 1, 2, 3, 4] * 6
    assert 0.2 < samples.sampled["ended"].mean() < 0.9, "rows that end early and rows that do not are both there"
    assert "5 sampled answers to each of 6 prompts" in str(samples)


def test_figures_are_those_of_one_pass_with_the_end_counted(model: HookedTransformer, samples: AnswerSamples) -> None:
    for _, row in samples.rows.iterrows():
        prompt, sample = int(row["prompt"]), int(row["sample"])
        ids = samples.token_ids(prompt, sample, end=True)
        figures = scored(model, PROMPTS[prompt], ids)
        assert row["n_tokens"] + row["n_end"] == len(ids)
        assert row["logprob"] == pytest.approx(sum(logprob for logprob, _ in figures), abs=1e-4)
        assert row["logprob_mean"] == pytest.approx(row["logprob"] / len(ids))
        assert row["entropy_mean"] == pytest.approx(np.mean([entropy for _, entropy in figures]), abs=1e-4)
        assert row["first_entropy"] == pytest.approx(figures[0][1], abs=1e-4)
        assert row["ended"] == (len(ids) < 6 or ids[-1] in (256, ord("e"), *range(50)))
    sampled = samples.sampled
    assert (sampled.loc[sampled["n_tokens"] == 0, "logprob"] < 0).all()
    assert not samples.rows.isna().any(axis=None)


def test_log_probabilities_are_the_models_whatever_is_drawn_from(model: HookedTransformer) -> None:
    found = sample_answers(model, ["abc"], 4, temperature=0.5, top_k=20, top_p=0.9, greedy=False, max_new_tokens=4)
    for number, logprob in enumerate(found.logprobs(0)):
        ids = found.token_ids(0, number, end=True)
        assert logprob == pytest.approx(sum(each for each, _ in scored(model, "abc", ids)), abs=1e-4)


def test_batches_and_order_change_nothing(model: HookedTransformer, samples: AnswerSamples) -> None:
    again = sample_answers(model, PROMPTS[::-1], 5, max_new_tokens=6, stop=ENDS, seed=3, batch_rows=1000)
    assert [again.texts(5 - index) for index in range(6)] == [samples.texts(index) for index in range(6)]
    other = sample_answers(model, PROMPTS, 5, max_new_tokens=6, stop=ENDS, seed=4)
    assert other.ids != samples.ids


def test_progress_counts_every_prompt(model: HookedTransformer) -> None:
    seen: list[tuple[int, int]] = []
    options: dict[str, Any] = {"max_new_tokens": 2, "batch_rows": 4, "greedy": False}
    sample_answers(model, PROMPTS, 2, progress=lambda done, of: seen.append((done, of)), **options)
    assert [of for _, of in seen] == [6] * 3
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (6, 6)


def test_prompts_with_empty_answers_alone_are_kept_and_counted(model: HookedTransformer) -> None:
    every = [*range(256)]
    found = sample_answers(model, ["ab", "cd"], 3, stop=every, max_new_tokens=4)
    assert found.all_empty == [0, 1]
    assert found.texts(1) == ["", "", ""]
    assert "2 prompts got empty answers only" in str(found)
    assert (found.logprobs(0) < 0).all()
    assert found.rows["n_end"].tolist() == [1] * 8


def test_saved_and_read(samples: AnswerSamples, tmp_path: Path) -> None:
    path = samples.save(tmp_path / "samples.safetensors")
    again = load_answer_samples(path)
    pd.testing.assert_frame_equal(again.rows, samples.rows)
    assert (again.prompts, again.n, again.ids) == (samples.prompts, samples.n, samples.ids)
    assert again.texts(3) == samples.texts(3)
    assert again.save(tmp_path / "again.safetensors").read_bytes() == path.read_bytes()
    with pytest.raises(ValueError, match="there is no file"):
        load_answer_samples(tmp_path / "none")


@pytest.mark.parametrize(
    ("prompts", "options", "message"),
    [
        ([], {}, "there are no prompts"),
        (["a", ""], {}, "prompt 1: text 0 is empty"),
        (["a", 3], {}, "prompt 1 must be a text, got int"),
        (["a", "x" * 121], {}, "prompt 1 has 121 tokens, which with 8 new ones do not fit the context of 128"),
        (["x" * 200], {}, "prompt 0: .*context holds 128"),
        (["a"], {"n": 0}, "n must be a whole number of at least 1, got 0"),
        (["a"], {"n": 2.5}, "n must be a whole number"),
        (["a"], {"batch_rows": 0}, "batch_rows must be a whole number"),
        (["a"], {"temperature": 0}, "n=10 samples at temperature 0 would all be the same"),
        (["a"], {"temperature": float("nan")}, "temperature must be 0"),
        (["a"], {"max_new_tokens": 0}, "max_new_tokens must be at least 1"),
        (["a"], {"stop": ""}, "stop string must not be empty"),
        (["a"], {"top_p": 2.0}, "top_p"),
    ],
)
def test_what_is_refused(model: HookedTransformer, prompts: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sample_answers(model, prompts, **options)


def test_what_was_not_made_cannot_be_read(model: HookedTransformer) -> None:
    found = sample_answers(model, "one prompt", 2, greedy=False, max_new_tokens=2)
    assert len(found) == 1
    with pytest.raises(ValueError, match="no greedy answers"):
        _ = found.greedy
    with pytest.raises(ValueError, match=r"the samples are 0 to 1$"):
        found.token_ids(0, -1)
    with pytest.raises(ValueError, match="there are 1 prompts"):
        found.texts(1)
    assert sample_answers(model, "one prompt", 1, temperature=0, max_new_tokens=2).n == 1
    encoder = tiny_model("gpt2", causal=False)
    with pytest.raises(ValueError, match="is an encoder"):
        sample_answers(encoder, "a")


def test_on_the_real_model(smollm: HookedTransformer) -> None:
    questions = interp.load_questions("questions")[:3]
    prompts = [question.prompt for question in questions]
    found = sample_answers(smollm, prompts, 3, max_new_tokens=4)
    for index, prompt in enumerate(prompts):
        alone = smollm.generate(prompt, 4, n_samples=3, temperature=1.0, stop="\n")
        assert found.texts(index) == [text.strip() for text in alone.text]
        ids = found.token_ids(index, 0, end=True)
        assert found.logprobs(index)[0] == pytest.approx(sum(each for each, _ in scored(smollm, prompt, ids)), abs=1e-3)


def test_no_gradients_are_left_on(model: HookedTransformer) -> None:
    sample_answers(model, "a", 2, max_new_tokens=2)
    assert torch.is_grad_enabled()
