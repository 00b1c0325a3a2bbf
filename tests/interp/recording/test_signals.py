"""Signals and head statistics against the whole model, one text at a time, in trees and in padded passes."""

import numpy as np
import pytest
import torch
from tiny import shaken_model, tiny_model

from interp.recording import record
from interp.tokens import Tokenizer

SHARED = [f"the city of {name} lies in {place}" for name in ("Rome", "Oslo", "Romeo") for place in ("x", "the y", "zz")]
UNLIKE = ["abc", "defgh", "xyz, and more", "q"]


def alone(model, text, n_layers):
    """logits, and the pattern of each block."""
    logits, cache = model.run_with_cache(text, [f"pattern:{layer}" for layer in range(n_layers)])
    return logits[0], [cache[f"pattern:{layer}"][0] for layer in range(n_layers)]


@pytest.mark.parametrize("texts", [SHARED, UNLIKE], ids=["tree", "sorted"])
@pytest.mark.parametrize("rule", ["all", "last", "first", [-1, 0, 1], "mean"])
def test_signals_equal_the_full_model(texts, rule):
    model = tiny_model()
    texts = [text for text in texts if len(text) > 1]
    store = record(model, texts, sites="resid_post:0", tokens=rule, signals=True, progress=False)
    assert model.run.last_stop == 2
    for number, rows in store.tokens.groupby("text"):
        if rule == "mean":
            assert rows[["logprob", "entropy", "top1", "rank"]].isna().all(axis=None)
            continue
        logits, _ = alone(model, texts[int(str(number))], 2)
        logp = logits.log_softmax(-1)
        ids = torch.tensor(model.tokenizer.encode(texts[int(str(number))]))
        at = torch.tensor(rows.position.tolist())
        own = logp[:-1].gather(1, ids[1:, None])
        before = torch.cat([torch.tensor([torch.nan]), own[:, 0]])
        above = torch.cat([torch.tensor([torch.nan]), (logp[:-1] > own).sum(1)])
        np.testing.assert_allclose(rows.logprob, before[at], atol=1e-4)
        np.testing.assert_allclose(rows["rank"].astype(float), above[at])
        np.testing.assert_allclose(rows.entropy, -(logp.exp() * logp).sum(-1)[at], atol=1e-4)
        assert rows.top1.tolist() == logp.argmax(-1)[at].tolist()


def test_signals_need_a_model_that_predicts():
    with pytest.raises(ValueError, match="encoder"):
        record(tiny_model("bert"), ["ab"], signals=True, progress=False)


@pytest.mark.parametrize("family", ["llama", "gemma2", "bloom"])
@pytest.mark.parametrize("texts", [SHARED, UNLIKE], ids=["tree", "sorted"])
def test_head_statistics_equal_the_patterns(family, texts):
    model = shaken_model(family)
    store = record(model, texts, sites="resid_post:*", head_stats=True, dtype="float32", progress=False)
    plain = record(model, texts, sites="resid_post:*", dtype="float32", progress=False)
    for layer in range(2):
        found = store.head_stats(layer)
        for number, text in enumerate(texts):
            rows = np.flatnonzero(store.tokens.text == number)
            _, patterns = alone(model, text, 2)
            pattern = patterns[layer]
            entropy = torch.special.entr(pattern).sum(-1).T
            np.testing.assert_allclose(found["entropy"][rows], entropy, atol=1e-5)
            np.testing.assert_allclose(found["first"][rows], pattern[:, :, 0].T, atol=1e-5)
    assert torch.equal(store.rows("resid_post:1", slice(None)), plain.rows("resid_post:1", slice(None)))
    with pytest.raises(ValueError, match="head_stats"):
        plain.head_stats(0)


def test_head_statistics_stop_with_the_pass():
    store = record(tiny_model(), UNLIKE, sites="resid_post:0", head_stats=True, progress=False)
    assert store.head_stats(0)["entropy"].shape == (store.n_rows, 4)
    with pytest.raises(ValueError, match="1"):
        store.head_stats(1)


def test_the_rank_of_a_sure_prediction_is_zero(smollm):
    """The real model: ` Paris` is what it expects."""
    text = "The Eiffel Tower is located in the city of Paris"
    tokens = record(smollm, [text], sites="embed", tokens="last", signals=True, progress=False).tokens
    assert tokens["rank"].tolist() == [0]
    assert float(np.exp(tokens.logprob[0])) == pytest.approx(0.7015, abs=2e-3)


def test_a_bos_is_the_first_token():
    model = tiny_model()
    model.tokenizer = Tokenizer(model.tokenizer.backend, bos_id=256, eos_id=256, pad_id=257, add_bos=True, name="bos")
    store = record(model, ["ab", "abc"], sites="resid_post:1", head_stats=True, signals=True, progress=False)
    first = np.array(store.tokens.is_first)
    assert store.tokens.is_bos.to_numpy().tolist() == first.tolist()
    assert torch.allclose(store.head_stats(1)["first"][first], torch.ones(2, 4))
    assert store.tokens.logprob.isna().tolist() == first.tolist()
