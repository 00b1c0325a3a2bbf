"""The choice of the next token, against transformers' logits processors and against the distribution it claims to have."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from interp.model.sampling import NUCLEUS, Sampling, choose, uniforms

GENERATOR = torch.Generator().manual_seed(0)
LOGITS = torch.randn(6, 300, generator=GENERATOR) * 3
USED = torch.randint(0, 300, (6, 40), generator=GENERATOR)


def theirs(logits: Tensor, **options: float) -> Tensor:
    """Log-probabilities after transformers' processors, in its order."""
    kinds = {
        "repetition_penalty": RepetitionPenaltyLogitsProcessor,
        "temperature": TemperatureLogitsWarper,
        "top_k": TopKLogitsWarper,
        "top_p": TopPLogitsWarper,
        "min_p": MinPLogitsWarper,
    }
    chain = LogitsProcessorList([kind(options[name]) for name, kind in kinds.items() if name in options])
    return chain(USED, logits).log_softmax(-1)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.7},
        {"temperature": 1.0, "top_k": 1},
        {"temperature": 1.3, "top_k": 17},
        {"temperature": 1.0, "top_p": 0.9},
        {"temperature": 0.6, "top_p": 0.05},
        {"temperature": 1.0, "min_p": 0.1},
        {"temperature": 2.0, "min_p": 0.02, "top_k": 50},
        {"temperature": 1.0, "repetition_penalty": 1.3},
        {"temperature": 1.0, "repetition_penalty": 0.7},
        {"temperature": 0.8, "top_k": 60, "top_p": 0.8, "min_p": 0.05, "repetition_penalty": 1.2},
    ],
)
def test_every_cut_is_transformers(options: dict[str, float]) -> None:
    sampling = Sampling(**options)
    ours = sampling.filtered(sampling.penalised(LOGITS, USED))
    expected = theirs(LOGITS.clone(), **options)
    assert torch.equal(torch.isneginf(ours), torch.isneginf(expected))
    torch.testing.assert_close(ours.exp(), expected.exp(), atol=1e-6, rtol=1e-5)


def test_top_p_keeps_the_token_that_crosses_the_threshold() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.2]]).log()
    for p, kept in ((0.5, 1), (0.51, 2), (0.79, 2), (0.81, 3), (1.0, 3)):
        assert int((Sampling(1.0, top_p=p).filtered(logits) > -torch.inf).sum()) == kept, p


def test_a_nucleus_is_the_same_among_the_best_and_in_the_whole_vocabulary() -> None:
    sharp, flat = torch.randn(1, 3000, generator=GENERATOR) * 4, torch.randn(1, 3000, generator=GENERATOR) * 0.1
    for logits in (sharp, flat, torch.cat([sharp, flat])):
        kept = ~torch.isneginf(Sampling(1.0, top_p=0.9).filtered(logits))
        assert torch.equal(kept, ~torch.isneginf(TopPLogitsWarper(0.9)(torch.zeros(1, 0), logits)))
    assert int(kept[0].sum()) < NUCLEUS < int(kept[1].sum())


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        (Sampling(1.0), 5),
        (Sampling(0.5), 5),
        (Sampling(1.0, top_k=2), 2),
        (Sampling(1.0, top_p=0.7), 2),
        (Sampling(1.0, min_p=0.3), 2),
        (Sampling(2.0, top_k=3, min_p=0.2), 3),
    ],
)
def test_drawn_shares_match_the_distribution(sampling: Sampling, kept: int) -> None:
    logits, n = torch.tensor([[2.0, 1.0, 0.0, -1.0, -4.0]]), 20000
    uniform = torch.rand(n, generator=torch.Generator().manual_seed(1))
    choice = choose(logits.expand(n, -1), sampling, uniform)
    count = torch.bincount(choice.token, minlength=5).numpy()
    share = (logits[0] / sampling.temperature)[:kept].softmax(-1)
    assert not count[kept:].any()
    assert stats.chisquare(count[:kept], share.double().numpy() * n / share.double().sum().item()).pvalue > 0.001
    torch.testing.assert_close(choice.sampling_logprob.exp(), share[choice.token], atol=1e-5, rtol=1e-4)
    plain = logits[0].log_softmax(-1)
    torch.testing.assert_close(choice.logprob, plain[choice.token], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(choice.entropy, (-plain * plain.exp()).sum().expand(n), atol=1e-5, rtol=1e-5)


def test_the_edges_of_the_unit_interval_draw_a_token_that_was_not_cut() -> None:
    logits = torch.tensor([[-torch.inf, 1.0, 3.0, -torch.inf]]).expand(3, -1)
    uniform = torch.tensor([0.0, 0.5, 1 - 2**-24])
    assert choose(logits, Sampling(1.0), uniform).token.tolist() == [1, 2, 2]
    cut = torch.tensor([[5.0, 0.0, 4.0, 1.0]]).expand(3, -1)
    assert set(choose(cut, Sampling(1.0, top_k=2), uniform).token.tolist()) <= {0, 2}


@pytest.mark.parametrize("sampling", [Sampling(1.0), Sampling(1.4), Sampling(1.0, top_k=30, repetition_penalty=1.3)])
@pytest.mark.parametrize("n_tokens", [5, 256, 700])
def test_draws_invert_the_cumulative_distribution(sampling: Sampling, n_tokens: int) -> None:
    """Also over several stretches and pieces of work, the last of which are not whole, and with tokens that are cut."""
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(9, n_tokens, generator=generator) * 3
    logits[:, ::3] = -torch.inf
    uniform = torch.rand(9 * 4, generator=generator, dtype=torch.float64)
    used = torch.tensor([[1, 2]] * 9)
    choice = choose(logits, sampling, uniform, used)
    p = sampling.filtered(sampling.penalised(logits, used)).double().exp().numpy()
    cumulative = p.cumsum(1) / p.sum(1, keepdims=True)
    expected = [int(np.searchsorted(cumulative[i // 4], u, side="right")) for i, u in enumerate(uniform.tolist())]
    assert choice.token.tolist() == expected
    rows = logits.repeat_interleave(4, 0)
    apart = choose(rows, sampling, uniform, used.repeat_interleave(4, 0))
    for field in ("token", "logprob", "sampling_logprob", "entropy"):
        assert torch.equal(getattr(choice, field), getattr(apart, field)), field


def test_work_in_pieces_is_the_work_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    uniform = torch.rand(6, generator=torch.Generator().manual_seed(3))
    for sampling in (Sampling(), Sampling(1.0), Sampling(0.7, top_p=0.8, repetition_penalty=1.2)):
        whole = choose(LOGITS, sampling, uniform, USED)
        monkeypatch.setattr("interp.model.sampling.CHUNK_LOGITS", 2 * LOGITS.shape[1])
        pieces = choose(LOGITS, sampling, uniform, USED)
        monkeypatch.undo()
        assert torch.equal(whole.token, pieces.token)
        torch.testing.assert_close(whole.entropy, pieces.entropy)
        torch.testing.assert_close(whole.sampling_logprob, pieces.sampling_logprob)


def test_entropy_of_a_distribution_that_is_nearly_certain() -> None:
    logits = torch.full((1, 50000), -20.0)
    logits[0, 7] = 30.0
    wide = logits.double().log_softmax(-1)
    expected = float(-(wide * wide.exp()).sum())
    assert choose(logits + 1000, Sampling()).entropy.item() == pytest.approx(expected, rel=1e-3)


def test_greedy_is_the_best_token_whatever_the_cuts() -> None:
    choice = choose(LOGITS, Sampling(0.0, top_k=5, top_p=0.1, min_p=0.5))
    assert torch.equal(choice.token, LOGITS.argmax(-1))
    assert not choice.sampling_logprob.any()
    strong = Sampling(0.0, repetition_penalty=100.0)
    best = LOGITS.argmax(-1)
    again = choose(LOGITS, strong, used=best[:, None])
    assert torch.equal(again.token, LOGITS.scatter(-1, best[:, None], -torch.inf).argmax(-1))
    torch.testing.assert_close(again.logprob, LOGITS.log_softmax(-1).gather(-1, again.token[:, None])[:, 0])


def test_entropy_where_a_token_is_impossible() -> None:
    logits = torch.tensor([[0.0, 0.0, -torch.inf]])
    assert choose(logits, Sampling()).entropy.item() == pytest.approx(math.log(2))


def test_half_precision_is_widened() -> None:
    choice = choose(LOGITS.bfloat16(), Sampling())
    assert choice.logprob.dtype == torch.float32
    assert choose(LOGITS.double(), Sampling()).logprob.dtype == torch.float64


def test_random_numbers_follow_the_prompt_not_its_place() -> None:
    a, b = [1, 2, 3], [4, 5]
    alone = uniforms(7, [a], 1, 9)
    assert torch.equal(uniforms(7, [b, a], 1, 9)[1:], alone)
    assert torch.equal(uniforms(7, [a, b, a], 1, 9)[[0, 2]], uniforms(7, [a], 2, 9))
    assert torch.equal(uniforms(7, [a], 1, 5), alone[:, :5])
    rows = uniforms(7, [a, a, b, [1, 2]], 2, 9)
    assert len({tuple(row) for row in rows.tolist()}) == 8
    assert not torch.equal(uniforms(8, [a], 1, 9), alone)
    assert stats.kstest(uniforms(0, [[n] for n in range(2000)], 1, 1).numpy()[:, 0], "uniform").pvalue > 0.001


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temperature": -0.1}, "temperature must be 0"),
        ({"temperature": np.nan}, "temperature must be 0"),
        ({"temperature": np.inf}, "temperature must be 0"),
        ({"top_k": 0}, "top_k must be at least 1, got 0"),
        ({"top_p": 0.0}, r"top_p must lie in \(0, 1\], got 0.0"),
        ({"top_p": 1.01}, "got 1.01"),
        ({"min_p": -0.1}, r"min_p must lie in \[0, 1\]"),
        ({"min_p": 1.1}, "min_p must lie"),
        ({"min_p": np.nan}, "min_p must lie"),
        ({"repetition_penalty": 0.0}, "repetition_penalty must be greater than 0, got 0.0"),
        ({"repetition_penalty": np.inf}, "repetition_penalty"),
        ({"seed": -1}, "seed must be 0 or more, got -1"),
    ],
)
def test_values_out_of_range(options: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Sampling(**options)  # pyright: ignore[reportArgumentType]
