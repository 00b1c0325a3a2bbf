"""Next-token calibration: texts sampled from the model itself, so that the truth is known."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny import tiny_model

from interp.dataset import Dataset, Example
from interp.model import HookedTransformer
from interp.uncertainty import NextTokenCalibration, next_token_calibration
from interp.uncertainty.corpus import _scored


@pytest.fixture(scope="module")
def writer() -> HookedTransformer:
    """Its 94 tokens are the printable ASCII characters, so that sampled ids survive decoding and encoding."""
    return tiny_model(d_vocab=94, scale=16.0)


def sampled(model: HookedTransformer, temperature: float, n: int, length: int = 60) -> list[str]:
    """Texts drawn from the model at a temperature."""
    assert model.tokenizer is not None
    prompts = [model.tokenizer.decode([i % 94]) for i in range(n)]
    out = model.generate(prompts, max_new_tokens=length, temperature=temperature, seed=1)
    texts = [prompt + text.removeprefix(prompt) for prompt, text in zip(prompts, out.text)]
    assert all(len(model.tokenizer.encode(text)) >= length for text in texts)
    return texts


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_the_sampling_temperature_is_found_on_other_documents(writer: HookedTransformer, temperature: float) -> None:
    result = next_token_calibration(writer, sampled(writer, temperature, 120), n_boot=200, n_null=500)
    assert result.temperature.temperature == pytest.approx(temperature, rel=0.1)
    low, high = result.temperature.interval
    assert low < temperature < high
    assert result.before.says_miscalibrated == (temperature == 2.0)
    assert not result.after.says_miscalibrated
    if temperature == 2.0:
        assert result.after.ece < result.before.ece
        assert result.nll_after < result.nll_before
    assert result.before.n == result.after.n
    assert result.before.n_groups == 60
    assert result.before.n + result.temperature.n == result.card["tokens"]
    assert result.before.mean_y == result.after.mean_y  # scaling changes no answer


def test_the_figures_equal_a_plain_loop(writer: HookedTransformer) -> None:
    texts = sampled(writer, 1.5, 12, length=20)
    result = next_token_calibration(writer, texts, n_boot=0, n_null=0, batch_size=5)
    assert writer.tokenizer is not None
    p, right, nll = [], [], []
    for text in texts:
        ids = torch.tensor(writer.tokenizer.encode(text))
        logp = writer(text)[0, :-1].detach().double().log_softmax(-1)
        p.append(logp.max(-1).values.exp())
        right.append(logp.argmax(-1) == ids[1:])
        nll.append(-logp.gather(-1, ids[1:, None])[:, 0])
    # Halves are by document; every document lies in just one, so a subset of documents must reproduce the means.
    means = np.array([[float(x.double().mean()) for x in each] for each in zip(p, right, nll)])
    lengths = np.array([len(x) for x in p])
    found = np.array([result.before.mean_p, result.before.mean_y, result.nll_before])
    matches = [
        subset
        for subset in range(1, 2**12)
        if sum(lengths[i] for i in range(12) if subset >> i & 1) == result.before.n
        and np.allclose(
            np.average(means, axis=0, weights=[lengths[i] * (subset >> i & 1) for i in range(12)]), found, atol=1e-5
        )
    ]
    assert len(matches) == 1


def test_special_tokens_and_first_tokens_are_not_scored() -> None:
    model = tiny_model()
    assert model.tokenizer is not None
    texts = ["<|end|>abc", "ab<|end|>cd", "abcd", "a", "<|end|>a"]
    _, targets, text = _scored(model, [model.tokenizer.encode(each) for each in texts], 2, None)
    # Of <|end|>abc: b and c, for nothing but a special token stands before a. The special itself is read, not scored.
    assert [model.tokenizer.decode(targets[text == i]) for i in range(5)] == ["bc", "bcd", "bcd", "", ""]


def test_max_tokens_is_counted_and_never_silent(writer: HookedTransformer) -> None:
    texts = sampled(writer, 1.0, 6, length=30)
    result = next_token_calibration(writer, texts, max_tokens=11, n_boot=0, n_null=0)
    assert result.card["tokens"] == 6 * 10
    assert result.card["tokens_left_out"] == sum(len(text) - 11 for text in texts)
    with pytest.raises(ValueError, match=r"text 1 has 200 tokens.*max_tokens=128"):
        next_token_calibration(writer, [texts[0], "x" * 200])


def test_a_data_set_brings_its_documents_and_progress_is_told(writer: HookedTransformer) -> None:
    texts = sampled(writer, 1.0, 8, length=20)
    data = Dataset("texts", tuple(Example(text, group=f"doc{i // 2}") for i, text in enumerate(texts)))
    told: list[tuple[int, int]] = []
    result = next_token_calibration(
        writer, data, n_boot=50, n_null=50, batch_size=3, progress=lambda done, total: told.append((done, total))
    )
    assert result.before.n_groups == 2
    assert told == [(3, 8), (6, 8), (8, 8)]


def test_save_load_and_what_the_dashboard_reads(writer: HookedTransformer, tmp_path: Path) -> None:
    result = next_token_calibration(writer, sampled(writer, 1.0, 8, length=20), n_boot=50, n_null=50)
    path = result.save(tmp_path / "calibration.json")
    assert NextTokenCalibration.load(path) == result
    found = json.loads(path.read_text())
    assert found["before"]["null_bands"]["ece"] == list(result.before.null_band or ())
    assert found["temperature"] == result.temperature.temperature
    assert set(result.to_frame()["state"]) == {"before", "after"}
    path.write_text("{}")
    with pytest.raises(ValueError, match="no next-token calibration"):
        NextTokenCalibration.load(path)


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        (["abc"], {}, "two documents"),
        ([], {}, "two documents"),
        (["abc", "def"], {"groups": ["a", "a"]}, "two documents"),
        (["abc", "def"], {"groups": ["a"]}, "2 texts and 1 groups"),
        (["a", "b"], {}, "no text holds a token to score"),
        (["abc", "b"], {}, "holds no token to score"),
        (["abc", "def"], {"max_tokens": 1}, "max_tokens"),
    ],
)
def test_bad_input_is_refused(
    writer: HookedTransformer, texts: list[str], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        next_token_calibration(writer, texts, **options)
