"""Scores on text, their nulls and their intervals, against loops over queries and patterns made by hand."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import shaken_model

from interp.heads import METRICS, head_scores, load_head_scores
from interp.heads.patterns import repeated_scores, text_places, text_scores, uniform_nulls

TEXTS = ["the cat and the dog", "aab", "one two, one three"]


def by_loops(pattern: np.ndarray, ids: list[int], window: int) -> dict[str, tuple[float, float, int]]:
    """(sum, sum of the null, queries) of one head on one text [query key]."""
    found = {metric: [0.0, 0.0, 0] for metric in METRICS}
    for q in range(1, len(ids)):
        row = pattern[q, : q + 1]
        targets = {
            "induction": {j + 1 for j in range(q - 1) if ids[j] == ids[q] and j + 1 < q},
            "previous_token": {q - 1} - {0},
            "duplicate_token": {j for j in range(1, q) if ids[j] == ids[q]},
            "current_token": {q},
        }
        seen = set(range(max(0, q + 1 - window), q + 1))
        for metric, keys in targets.items():
            keys &= seen
            if keys:
                others = [k for k in sorted(seen - {0}) if k not in keys]
                found[metric][0] += sum(row[k] for k in keys)
                found[metric][1] += len(keys) * np.mean(row[others]) if others else 0.0
                found[metric][2] += 1
        entropy = -sum(p * math.log(p) for p in row if p > 0)
        plain = {
            "first_token": (row[0], 1 / len(seen) if 0 in seen else 0.0),
            "attention_entropy": (entropy, math.log(len(seen))),
            "entropy_share": (entropy / math.log(len(seen)), 1.0),
            "mean_distance": (sum(p * (q - k) for k, p in enumerate(row)), (len(seen) - 1) / 2),
        }
        for metric, (value, null) in plain.items():
            found[metric][0] += value
            found[metric][1] += null
            found[metric][2] += 1
    return {metric: (float(a), float(b), int(n)) for metric, (a, b, n) in found.items()}


@pytest.mark.parametrize("family", ["llama", "gpt2", "mistral", "gemma2"])
def test_texts_are_scored_as_loops_over_queries_do(family: str) -> None:
    model = shaken_model(family)
    frame = head_scores(model, texts=TEXTS).to_frame().set_index(["layer", "head"])
    assert model.tokenizer is not None
    sums = {metric: np.zeros((2, 4, 3)) for metric in METRICS}
    for text in TEXTS:
        _, cache = model.run_with_cache(text, ["pattern:*"])
        for layer in range(2):
            for head in range(4):
                window = model.cfg.window if model.cfg.has_window(layer) and model.cfg.window else 999
                found = by_loops(cache["pattern", layer][0, head].double().numpy(), cache.tokens.row(0), window)
                for metric, values in found.items():
                    sums[metric][layer, head] += values
    for metric, by_head in sums.items():
        for layer in range(2):
            for head in range(4):
                total, null, n = by_head[layer, head]
                line = frame.loc[(layer, head)]
                assert line[f"natural_{metric}"] == pytest.approx(total / n, abs=1e-5)
                assert line[f"natural_{metric}_null"] == pytest.approx(null / n, abs=1e-5)
                assert line[f"natural_{metric}_n"] == n


def test_a_head_that_does_one_thing_has_a_score_of_1_and_a_null_of_0() -> None:
    ids, mask = torch.tensor([[5, 6, 7, 5, 6, 7, 5]]), torch.ones(1, 7, dtype=torch.bool)
    places = text_places(ids, mask)
    assert places.queries["induction"].sum() == 4
    after = torch.zeros(1, 1, 7, 7)
    after[0, 0, torch.arange(7), torch.tensor([0, 0, 0, 1, 2, 3, 4])] = 1.0
    found, null = text_scores(after, places)
    assert float(found["induction"]) == 4.0
    assert float(null["induction"]) == 0.0
    uniform = torch.tril(torch.ones(7, 7)) / torch.arange(1, 8)[:, None]
    found, null = text_scores(uniform[None, None], places)
    for metric in METRICS:
        alone = 0.5 if metric == "current_token" else 0.0  # the second token has no other key than the first one
        assert float(found[metric]) == pytest.approx(float(null[metric]) + alone, abs=1e-5), metric


def test_the_null_of_repeated_tokens_is_what_uniform_attention_has() -> None:
    n, n_bos = 8, 1
    end = n_bos + 2 * n
    uniform = torch.tril(torch.ones(end, end)) / torch.arange(1, end + 1)[:, None]
    found, by_offset = repeated_scores(uniform[None, None], n, n_bos)
    for metric, value in uniform_nulls(n, n_bos, None).items():
        assert float(found[metric]) == pytest.approx(value, abs=1e-6), metric
    assert float(found["induction"]) == pytest.approx(
        float((1 / torch.arange(n_bos + n + 1, end + 1)).mean()), abs=1e-6
    )
    assert by_offset.amax() <= 1 / (n_bos + n)
    # Windows: each query of the second copy sees 4 keys.
    seen = torch.triu(torch.tril(torch.ones(end, end)), -3)
    found, _ = repeated_scores((seen / seen.sum(-1, keepdim=True))[None, None], n, n_bos)
    for metric, value in uniform_nulls(n, n_bos, 4).items():
        assert float(found[metric]) == pytest.approx(value, abs=1e-6), metric


def test_a_head_that_always_looks_three_back_is_under_its_own_null() -> None:
    n = 8
    pattern = torch.zeros(1, 1, 2 * n, 2 * n)
    pattern[0, 0, torch.arange(2 * n), (torch.arange(2 * n) - 3).clamp(min=0)] = 1.0
    found, by_offset = repeated_scores(pattern, n, 0)
    assert float(by_offset.mean(1).amax()) == 1.0
    assert float(found["mean_distance"]) == pytest.approx(3.0)
    assert float(found["induction"]) == float(found["duplicate_token"]) == 0.0


def test_texts_that_repeat_nothing_have_no_induction_score_and_say_n_0() -> None:
    frame = head_scores(shaken_model("llama"), texts=["abcdef"]).to_frame()
    assert frame["natural_induction"].isna().all()
    assert frame["natural_induction_low"].isna().all()
    assert (frame["natural_induction_n"] == 0).all()
    assert (frame["natural_previous_token_n"] == 4).all()


def test_scores_with_texts_are_saved_and_read_and_long_texts_are_counted(tmp_path: Path) -> None:
    model = shaken_model("llama")
    scores = head_scores(model, texts=[*TEXTS, "x" * 40], max_length=20)
    assert scores.card["n_cut"] == 1
    read = load_head_scores(scores.save(tmp_path / "heads.safetensors"))
    assert read.to_frame().equals(scores.to_frame())
    assert scores.top("natural_previous_token", 2)["natural_previous_token_n"].iloc[0] == 17 + 1 + 16 + 18
    cut = head_scores(model, texts=[*TEXTS, "x" * 20]).to_frame()
    assert cut["natural_induction"].equals(scores.to_frame()["natural_induction"])


def test_encoders_and_texts_that_say_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="tiny-bert"):
        head_scores(shaken_model("bert"))
    model = shaken_model("llama")
    for texts, message in [(["a"], "1 tokens"), ([], "a text or a list"), ([3], "a text or a list")]:
        with pytest.raises(ValueError, match=message):
            head_scores(model, texts=texts)
    with pytest.raises(ValueError, match="max_length"):
        head_scores(model, texts="abc", max_length=1)
    with pytest.raises(ValueError, match="unknown metric"):
        head_scores(model).top("natural_induction")
