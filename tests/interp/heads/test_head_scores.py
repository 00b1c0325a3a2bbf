"""Head scores: hand-made patterns with known answers, and the real model's known heads."""

from pathlib import Path

import pytest
import torch
from tiny import tiny_model

from interp.heads import METRICS, head_scores, load_head_scores, pattern_scores, repeated_tokens
from interp.model import HookedTransformer

N = 8


def shifted(distance: int, n_bos: int) -> torch.Tensor:
    """A pattern [1 1 query key] whose queries attend to `distance` before, and to 0 where there is no such key."""
    end = n_bos + 2 * N
    pattern = torch.zeros(1, 1, end, end)
    for query in range(end):
        pattern[0, 0, query, max(query - distance, 0)] = 1
    return pattern


@pytest.mark.parametrize("n_bos", [0, 1])
@pytest.mark.parametrize(
    ("metric", "distance"), [("induction", N - 1), ("duplicate_token", N), ("previous_token", 1), ("current_token", 0)]
)
def test_a_perfect_head_scores_one_and_nothing_else(metric: str, distance: int, n_bos: int) -> None:
    found, null = pattern_scores(shifted(distance, n_bos), N, n_bos)
    assert found[metric].item() == 1
    for other in {"induction", "duplicate_token", "previous_token", "current_token"} - {metric}:
        assert found[other].item() <= 1 / N
    assert null.item() <= 1 / (N // 4) or metric in ("previous_token", "current_token")


@pytest.mark.parametrize("n_bos", [0, 1])
def test_an_even_head_scores_one_over_the_number_of_keys(n_bos: int) -> None:
    end = n_bos + 2 * N
    pattern = torch.ones(1, 1, end, end).tril()
    pattern = pattern / pattern.sum(-1, keepdim=True)
    found, null = pattern_scores(pattern, N, n_bos)
    expected = torch.tensor([1 / (query + 1) for query in range(n_bos + N, end)])
    for metric in ("induction", "current_token", "first_token"):
        torch.testing.assert_close(found[metric].squeeze(), expected.mean())
    # Without a BOS the first duplicate is the first token, where heads rest: it does not count.
    torch.testing.assert_close(found["duplicate_token"].squeeze(), expected[0 if n_bos else 1 :].mean())
    torch.testing.assert_close(found["attention_entropy"].squeeze(), -expected.log().mean())
    assert found["induction"].item() < null.item() * 1.5


def test_a_sink_is_no_induction() -> None:
    found, _ = pattern_scores(shifted(99, 1), N, 1)
    assert found["induction"].item() == 0
    assert found["first_token"].item() == 1


def test_the_six_heads_of_the_real_model(smollm: HookedTransformer) -> None:
    ids = torch.randint(1000, 40000, (8, 64), generator=torch.Generator().manual_seed(0))
    scores = head_scores(smollm, tokens=ids, bos=1)
    known = {(18, 6): 0.909, (17, 3): 0.794, (17, 4): 0.736, (18, 7): 0.621, (17, 5): 0.580, (23, 2): 0.529}
    top = scores.top("induction", 6)
    assert set(zip(top["layer"], top["head"], strict=True)) == set(known)
    for row in top.itertuples():
        assert row.induction == pytest.approx(known[row.layer, row.head], abs=0.01)
        assert row.induction_low <= row.induction <= row.induction_high
    frame = scores.to_frame().set_index(["layer", "head"])
    assert frame.loc[(16, 0), "previous_token"] > 0.85
    assert frame.loc[(18, 6), "induction"] > 5 * frame.loc[(18, 6), "induction_null"]
    assert scores.losses["first_copy"] == pytest.approx(13.73, abs=0.02)
    assert scores.losses["second_copy"] == pytest.approx(2.67, abs=0.02)
    assert (frame["n"] == 8 * 64).all()


def test_all_ways_to_give_the_tokens_agree() -> None:
    model = tiny_model()
    ids = torch.randint(0, 256, (3, 10), generator=torch.Generator().manual_seed(0))
    whole = torch.cat([torch.full((3, 1), 7), ids, ids], dim=1)
    one = head_scores(model, tokens=ids, bos=7)
    for other in (
        head_scores(model, tokens=whole),
        head_scores(model, tokens=whole, period=10),
        head_scores(model, tokens=whole[:, 1:], bos=7),
        head_scores(model, tokens=ids.tolist(), period=10, bos=7),
    ):
        assert other.to_frame().equals(one.to_frame())
    assert not head_scores(model, tokens=ids).to_frame().equals(one.to_frame())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokens": torch.arange(12)[None], "period": 5}, "neither one copy"),
        ({"tokens": torch.zeros(2, 4)}, "integer ids"),
        ({"tokens": torch.tensor([[1]])}, "at least two"),
        ({"period": 100}, "context"),
        ({"bos": True}, "has no BOS"),
    ],
)
def test_bad_input(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        head_scores(tiny_model(), **options)


def test_file_and_frame(tmp_path: Path) -> None:
    scores = head_scores(tiny_model(), period=12)
    again = load_head_scores(scores.save(tmp_path / "heads.safetensors"))
    assert again.to_frame().equals(scores.to_frame())
    assert set(METRICS) <= set(scores.to_frame().columns)
    with pytest.raises(ValueError, match="induction"):
        scores.top("inductoin")


def test_seeds() -> None:
    model = tiny_model()
    assert torch.equal(repeated_tokens(model, seed=1)[0], repeated_tokens(model, seed=1)[0])
    assert not torch.equal(repeated_tokens(model, seed=1)[0], repeated_tokens(model, seed=2)[0])
