"""EigenScore against the formula in numpy, its invariances, and the streams that it is made from."""

import math

import numpy as np
import pytest
import torch
from tiny import tiny_model

from interp.model import HookedTransformer
from interp.uncertainty.sample_spread import answer_eigenscores, eigenscore, sample_embeddings
from interp.uncertainty.samples import AnswerSamples, sample_answers

PROMPTS = ["hello there", "a", "four"]


@pytest.fixture(scope="module")
def model() -> HookedTransformer:
    return tiny_model()


@pytest.fixture(scope="module")
def samples(model: HookedTransformer) -> AnswerSamples:
    return sample_answers(model, PROMPTS, 4, max_new_tokens=3, stop=["e"])


def by_formula(z: np.ndarray, alpha: float) -> float:
    k, d = z.shape
    centre = np.eye(d) - np.ones((d, d)) / d
    sign, logdet = np.linalg.slogdet(z @ centre @ z.T + alpha * np.eye(k))
    assert sign == 1
    return logdet / k


@pytest.mark.parametrize(("k", "d"), [(10, 32), (2, 576), (12, 5)])
@pytest.mark.parametrize("alpha", [1e-3, 0.5])
def test_it_is_the_formula(k: int, d: int, alpha: float) -> None:
    z = np.random.default_rng(0).normal(size=(k, d)) * 3 + 1
    assert eigenscore(z, alpha) == pytest.approx(by_formula(z, alpha), abs=1e-8)
    assert eigenscore(torch.tensor(z), alpha) == eigenscore(z, alpha)


def test_order_and_a_common_shift_of_all_features_change_nothing() -> None:
    generator = np.random.default_rng(1)
    z = generator.normal(size=(10, 64))
    rotation = np.linalg.qr(generator.normal(size=(10, 10)))[0]
    assert eigenscore(generator.permutation(z)) == pytest.approx(eigenscore(z))
    assert eigenscore(z + generator.normal(size=(10, 1))) == pytest.approx(eigenscore(z))
    assert eigenscore(rotation @ z) == pytest.approx(eigenscore(z))


def test_equal_answers_give_the_lowest_value() -> None:
    generator = np.random.default_rng(2)
    one = generator.normal(size=64)
    one -= one.mean()
    equal = eigenscore(np.tile(one, (10, 1)))
    energy = 10 * float(one @ one)
    assert equal == pytest.approx((math.log(energy + 1e-3) + 9 * math.log(1e-3)) / 10)
    scores = []
    for n_kinds in (1, 2, 5, 10):  # of the same length, ever more kinds
        kinds = generator.normal(size=(n_kinds, 64))
        kinds -= kinds.mean(1, keepdims=True)
        kinds *= np.linalg.norm(one) / np.linalg.norm(kinds, axis=1, keepdims=True)
        scores.append(eigenscore(kinds[np.arange(10) % n_kinds]))
    assert scores[0] == pytest.approx(equal)
    assert scores == sorted(scores)
    assert scores[1] > scores[0] + 0.5


def test_embeddings_are_the_stream_at_the_end_of_each_answer(model: HookedTransformer, samples: AnswerSamples) -> None:
    assert model.tokenizer is not None
    for site, full in ((None, "resid_post:1"), ("resid_pre:0", "resid_pre:0"), ("resid_mid:1", "resid_mid:1")):
        found = sample_embeddings(model, samples, site)
        assert [tuple(each.shape) for each in found] == [(4, 32)] * 3
        for index, prompt in enumerate(PROMPTS):
            for number in range(4):
                ids = [*model.tokenizer.encode(prompt), *samples.token_ids(index, number)]
                _, cache = model.run_with_cache(ids, full)
                torch.testing.assert_close(found[index][number], cache[full][0, -1], rtol=1e-4, atol=1e-4)


def test_scores_by_prompt(model: HookedTransformer, samples: AnswerSamples) -> None:
    scores = answer_eigenscores(model, samples)
    expected = [by_formula(z.double().numpy(), 1e-3) for z in sample_embeddings(model, samples)]
    assert scores == pytest.approx(np.array(expected), abs=1e-5)
    silent = sample_answers(model, PROMPTS, 4, max_new_tokens=3, stop=[*range(256)])
    assert (answer_eigenscores(model, silent) < scores).all(), "answers that are all empty are equal"


def test_on_the_real_model(smollm: HookedTransformer) -> None:
    prompts = ["Question: What is the capital of France?\nAnswer:", "Question: What is my brother's name?\nAnswer:"]
    found = sample_answers(smollm, prompts, 4, max_new_tokens=3)
    scores = answer_eigenscores(smollm, found)
    assert np.isfinite(scores).all()
    distinct = [len(set(found.texts(index))) for index in range(2)]
    assert (scores[0] < scores[1]) == (distinct[0] < distinct[1]) or distinct[0] == distinct[1]


def test_what_is_refused(model: HookedTransformer, samples: AnswerSamples) -> None:
    z = np.ones((3, 4))
    for bad, message in (
        (z[:1], "at least two"),
        (z[0], r"must be \[answer, d_model\]"),
        (z[:, :0], r"must be \[answer, d_model\]"),
        (np.where(np.eye(3, 4) > 0, np.nan, z), "NaN or infinity"),
    ):
        with pytest.raises(ValueError, match=message):
            eigenscore(bad)
    for alpha in (0, -1.0, float("nan"), True):
        with pytest.raises(ValueError, match="alpha must be a number above 0"):
            eigenscore(z, alpha)
    with pytest.raises(ValueError, match="another model"):
        sample_embeddings(tiny_model(seed=1), samples)
    for site, message in (
        ("pattern:0", "not one vector a token"),
        ("resid_post:*", "stands for 2 sites"),
        ("rsid", "rsid"),
    ):
        with pytest.raises(ValueError, match=message):
            sample_embeddings(model, samples, site)
    with pytest.raises(ValueError, match="at least two samples"):
        answer_eigenscores(model, sample_answers(model, "a", 1))
