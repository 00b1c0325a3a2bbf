"""Log-likelihood of texts: against one text at a time and the model's own loss, whatever the batches."""

import numpy as np
import pytest
import torch
from tiny import byte_tokenizer, shaken_model, tiny_model

from interp.dataset import load_dataset
from interp.model import HookedTransformer
from interp.probe.likelihood import readings, text_log_likelihood
from interp.tokens import Tokenizer

TEXTS = [
    "The city of Oslo is in Norway.",
    "The city of Oslo is in Chile.",
    "The city of Oslo",
    "ab",
    "The city of Osaka is in Japan, and not in Norway.",
    "ab",
    "Zinc is a metal.",
]


def written_out(model: HookedTransformer, text: str) -> float:
    """Sum of log p of the tokens after the first, from the logits of this text alone."""
    assert model.tokenizer is not None
    ids = model.tokenizer.encode(text)
    logp = model(ids)[0].detach().double().log_softmax(-1)
    return sum(float(logp[place - 1, ids[place]]) for place in range(1, len(ids)))


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "dynamic", "bloom"])
@pytest.mark.parametrize("batch_size", [3, 32])
def test_sums_are_those_of_each_text_alone(family: str, batch_size: int) -> None:
    model = shaken_model(family)
    expected = [written_out(model, text) for text in TEXTS]
    done = []
    found = text_log_likelihood(model, TEXTS, batch_size=batch_size, progress=lambda done_, n: done.append((done_, n)))
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert done[-1] == (len(TEXTS), len(TEXTS))


def test_per_token_takes_the_length_out() -> None:
    model = tiny_model()
    lengths = np.array([len(text) - 1 for text in TEXTS])
    sums = text_log_likelihood(model, TEXTS)
    np.testing.assert_allclose(text_log_likelihood(model, TEXTS, per_token=True), sums / lengths)


def test_a_bos_is_the_first_token() -> None:
    model = tiny_model()
    plain = byte_tokenizer()
    model.tokenizer = Tokenizer(
        plain.backend, bos_id=256, eos_id=256, pad_id=257, special_ids=[256, 257], add_bos=True, name="with BOS"
    )
    assert text_log_likelihood(model, ["a"])[0] == pytest.approx(written_out(model, "a"), abs=1e-4)
    letter = plain.encode("a")[0]
    logp = model([256, letter])[0].detach().double().log_softmax(-1)
    assert text_log_likelihood(model, ["a"])[0] == pytest.approx(float(logp[0, letter]), abs=1e-4)


def test_texts_that_begin_alike_share_their_tokens() -> None:
    model = tiny_model(d_mlp=2048)  # wide, so that a token costs more than its attention
    assert model.tokenizer is not None
    texts = [f"{'the same long beginning of every one of these texts ' * 2}{i:02d}" for i in range(20)]
    sequences = [model.tokenizer.encode(text) for text in texts]
    computed = sum(int(reading.tokens.mask.sum()) for reading in readings(model, sequences, [1] * 20))
    apart = sum(int(reading.tokens.mask.sum()) for reading in readings(model, sequences, [1] * 20, share=False))
    # Fed are the common beginning and one of two digits: the last digit is read and never fed.
    assert computed == len(sequences[0]) - 2 + 2
    assert apart == 2 * (len(sequences[0]) - 1)


def test_an_intervention_counts() -> None:
    model = tiny_model()
    with model.hooks({"resid_post:0": lambda value, ctx: value * 1.5}):
        np.testing.assert_allclose(
            text_log_likelihood(model, TEXTS), [written_out(model, text) for text in TEXTS], atol=1e-4
        )


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([], "at least one"),
        ("a text", "list"),
        (["fine text", "  "], "text 1 is empty"),
        (["fine text", "x"], "single token"),
        (["fine text", "x" * 129], "text 1 has 129 tokens"),
    ],
)
def test_refused(texts: list[str] | str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        text_log_likelihood(tiny_model(), texts)


def test_refused_settings_and_models() -> None:
    with pytest.raises(ValueError, match="batch_size"):
        text_log_likelihood(tiny_model(), TEXTS, batch_size=0)
    with pytest.raises(ValueError, match="encoder"):
        text_log_likelihood(tiny_model("bert"), TEXTS)
    silent = tiny_model()
    silent.tokenizer = None
    with pytest.raises(ValueError, match="no tokenizer"):
        text_log_likelihood(silent, TEXTS)


def test_the_real_model(smollm: HookedTransformer) -> None:
    texts = load_dataset("cities").texts[:16]
    assert smollm.tokenizer is not None
    found = text_log_likelihood(smollm, texts)
    lengths = [len(smollm.tokenizer.encode(text)) - 1 for text in texts[:3]]
    with torch.inference_mode():
        expected = [-float(smollm.loss(text)) * n for text, n in zip(texts, lengths)]
    np.testing.assert_allclose(found[:3], expected, atol=1e-3)
