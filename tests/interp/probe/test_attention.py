"""Attention pooling: the token that tells the label is found, at any position, in texts of any length."""

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch.nn.functional import softplus

from interp.probe.fit import fit_probe
from interp.probe.kinds.attention import Poolers, fit_attention
from interp.probe.reading import TokenRows
from interp.probe.solver import Design


def texts_with_one_telling_token(
    n: int = 300, d: int = 24, seed: int = 0
) -> tuple[list[torch.Tensor], np.ndarray, np.ndarray]:
    """Texts of 4 to 20 tokens; one token at a random position is marked and leans to the label's side, while all the others
    lean to either side by chance: their mean drowns it."""
    rng = np.random.default_rng(seed)
    marker, side = np.linalg.qr(rng.normal(size=(d, 2)))[0].T
    y, texts, places = rng.integers(0, 2, n), [], []
    for label in y:
        length = rng.integers(4, 21)
        rows = rng.normal(size=(length, d)) + np.outer(rng.choice([-3.0, 3.0], length), side)
        place = rng.integers(length)
        rows[place] = rng.normal(size=d) + 5 * marker + 3 * (2 * label - 1) * side
        texts.append(torch.tensor(rows).float())
        places.append(place)
    return texts, y, np.array(places)


def test_it_finds_the_token_that_tells_the_label() -> None:
    texts, y, places = texts_with_one_telling_token()
    probe = fit_probe(texts[:200], y[:200], "attention", np.arange(200) // 2)
    found = roc_auc_score(y[200:], probe(texts[200:]))
    means = torch.stack([text.mean(0) for text in texts])
    pooled = fit_probe(means[:200], y[:200], "logistic", np.arange(200) // 2)
    assert found > 0.95
    assert found > roc_auc_score(y[200:], pooled(means[200:])) + 0.15
    weights = probe.attention(texts[200:])
    assert [len(weight) for weight in weights] == [len(text) for text in texts[200:]]
    torch.testing.assert_close(torch.stack([weight.sum() for weight in weights]), torch.ones(100))
    hits = np.mean([int(weight.argmax()) == place for weight, place in zip(weights, places[200:])])
    assert hits > 0.9
    assert probe.card["n_tokens"] == sum(map(len, texts[:200]))


def test_every_form_of_whole_texts_is_read_alike() -> None:
    texts, y, _ = texts_with_one_telling_token(60, 8)
    starts = torch.tensor([0, *map(len, texts)]).cumsum(0)
    tokens = TokenRows(torch.cat(texts), starts)
    probe = fit_probe(texts, y, "attention", C=0.1)
    for other in (
        fit_probe(tokens, y, "attention", C=0.1),
        fit_probe(torch.cat(texts), y, "attention", C=0.1, starts=starts),
        fit_probe(torch.cat(texts).numpy(), y, "attention", C=0.1, starts=starts.tolist()),
    ):
        assert torch.equal(other(tokens), probe(texts))
    one_by_one = torch.cat([probe([text]) for text in texts])
    torch.testing.assert_close(one_by_one, probe(texts), atol=1e-5, rtol=1e-4)


def test_the_log_odds_are_a_softmax_over_each_text() -> None:
    texts, _, _ = texts_with_one_telling_token(20, 8)
    generator = torch.Generator().manual_seed(0)
    query, value = torch.randn(2, 3, 8, generator=generator)
    # Scores far beyond what exp holds: the largest of each text is taken out first.
    poolers = Poolers(40 * query, value, torch.tensor([0.0, 1.0, -1.0]), torch.zeros(8), torch.full((8,), 2.0))
    tokens = TokenRows(torch.cat(texts), torch.tensor([0, *map(len, texts)]).cumsum(0))
    found = poolers.logit(tokens)
    for k in range(3):
        for i, text in enumerate(texts):
            z = text / 2
            weights = (z @ (40 * query[k])).softmax(0)
            expected = float(weights @ (z @ value[k]) + poolers.bias[k])
            assert found[k, i].item() == pytest.approx(expected, abs=1e-4)


def test_problems_trained_together_equal_problems_trained_alone() -> None:
    texts, y, _ = texts_with_one_telling_token(80, 8)
    design = Design(TokenRows(torch.cat(texts), torch.tensor([0, *map(len, texts)]).cumsum(0)))
    rng = np.random.default_rng(0)
    labels = torch.tensor(np.stack([y, rng.permutation(y), 1 - y])).double()
    mask = torch.tensor(rng.integers(0, 2, (3, 80))).double()
    C = torch.tensor([0.1, 1.0, 0.01]).double()
    together = fit_attention(design, labels, mask, C)
    for k in range(3):
        alone = fit_attention(design, labels[k : k + 1], mask[k : k + 1], C[k : k + 1])
        torch.testing.assert_close(together.logit(design.X)[k], alone.logit(design.X)[0], atol=2e-3, rtol=2e-3)
    unseen = fit_attention(design, torch.where(mask == 1, labels, 1 - labels), mask, C)
    assert torch.equal(unseen.query, together.query)


def test_with_one_token_a_text_it_is_a_logistic_regression() -> None:
    """There is nothing to look for, and the same objective falls to within 1 % of its minimum."""
    texts, y, _ = texts_with_one_telling_token(200, 6)
    rows = torch.stack([text[0] for text in texts])
    single = fit_probe(list(rows[:, None]), y, "attention", C=0.1)
    flat = fit_probe(rows, y, "logistic", C=0.1)
    assert flat.direction is not None
    z, exact, labels = single.score(list(rows[:, None])), flat.score(rows), torch.tensor(y)
    size = float(single.tensors["value"].square().sum()), float((flat.direction * flat.scale).square().sum())
    objective = [float((softplus(f) - labels * f).sum() + s / 0.2) for f, s in zip((z, exact), size)]
    assert objective[1] <= objective[0] < 1.01 * objective[1]


def test_bad_texts_are_refused_with_the_mend() -> None:
    texts, y, _ = texts_with_one_telling_token(40, 6)
    probe = fit_probe(texts, y, "attention", C=0.1)
    holed = [texts[0] * torch.nan, *texts[1:]]
    cases = [
        (lambda: probe(torch.cat(texts)), "whole texts"),
        (lambda: probe("a text"), "got str"),
        (lambda: probe([]), "whole texts"),
        (lambda: probe([text[:, :5] for text in texts]), "width 6"),
        (lambda: probe([texts[0], texts[1][:, :5]]), "same d"),
        (lambda: probe([texts[0][0]]), "must be"),
        (lambda: probe([texts[0], texts[0][:0]]), "has no token"),
        (lambda: probe(holed), "NaN or infinity"),
        (lambda: fit_probe(holed, y, "attention", C=0.1), "NaN or infinity"),
        (lambda: fit_probe(texts, y[:-1], "attention", C=0.1), "39 labels for 40 rows"),
        (lambda: fit_probe(torch.cat(texts), y, "attention", C=0.1, starts=[0, 3]), "number of tokens"),
        (lambda: fit_probe(texts, y, "attention"), "groups='rows'"),
    ]
    for call, words in cases:
        with pytest.raises(ValueError, match=words):
            call()
    flat = fit_probe(torch.cat(texts), np.arange(sum(map(len, texts))) % 2, C=0.1)
    with pytest.raises(ValueError, match="one row a text"):
        flat(TokenRows(torch.cat(texts), torch.tensor([0, *map(len, texts)]).cumsum(0)))
