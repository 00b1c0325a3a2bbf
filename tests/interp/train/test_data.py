"""Batches by number: repetition, packing, and orders that depend on nothing but the seed."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from interp.model import HookedTransformer
from interp.train import RepeatedBatches, ShuffledBatches, pack_documents, repeated_sequences


def test_rows_repeat_with_their_own_period() -> None:
    ids = repeated_sequences(200, 40, 500, seed=3)
    periods = []
    for row in ids:
        periods.append(next(p for p in range(1, 40) if torch.equal(row[p:], row[:-p])))
    assert (min(periods), max(periods)) == (10, 20)
    assert len(set(periods)) == 11
    assert torch.equal(ids, repeated_sequences(200, 40, 500, seed=3))
    assert not torch.equal(ids, repeated_sequences(200, 40, 500, seed=4))


def test_the_first_copy_has_every_token_equally_often() -> None:
    counts = torch.bincount(repeated_sequences(4000, 32, 16, seed=0, periods=16)[:, :16].flatten(), minlength=16)
    expected = 4000.0
    assert float(((counts - expected) ** 2 / expected).sum()) < 37.7  # chi-square, 15 degrees of freedom, p = 0.001


@pytest.mark.parametrize(
    ("change", "message"),
    [({"n": 0}, "n must be"), ({"d_vocab": 1}, "d_vocab"), ({"periods": 21}, "1..20"), ({"periods": (9, 8)}, "9 to 8")],
)
def test_sequences_that_cannot_repeat_are_refused(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        repeated_sequences(**{"n": 2, "length": 40, "d_vocab": 10, "seed": 0} | change)


def test_batches_follow_from_their_number() -> None:
    data = RepeatedBatches(3, 16, 50, seed=1)
    later, first = data(7), data(0)
    assert torch.equal(later, RepeatedBatches(3, 16, 50, seed=1)(7))
    assert not torch.equal(first, later)
    assert not torch.equal(first, RepeatedBatches(3, 16, 50, seed=2)(0))


def test_shuffled_batches_hold_every_row_once_an_epoch() -> None:
    rows = pack_documents([[i, i, i] for i in range(10)], 3)
    data = ShuffledBatches(rows, 4, seed=5)
    epochs = [[int(i) for b in range(3) for i in data(3 * e + b).ids[:, 0]] for e in range(3)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert [len(data(b)) for b in range(3)] == [4, 4, 2]
    again = ShuffledBatches(rows, 4, seed=5)
    assert torch.equal(again(8).ids, data(8).ids)
    assert torch.equal(data(1).ids, again(1).ids)
    assert data(0).documents is not None


@settings(max_examples=60, deadline=None)
@given(lengths=st.lists(st.integers(1, 20), min_size=1, max_size=30), n_ctx=st.integers(1, 12))
def test_packing_loses_and_repeats_nothing(lengths: list[int], n_ctx: int) -> None:
    documents, start = [], 0
    for length in lengths:
        documents.append(list(range(start, start + length)))
        start += length
    packed = pack_documents(documents, n_ctx)
    assert sorted(packed.ids[packed.mask].tolist()) == list(range(start))
    assert packed.ids.shape[1] <= n_ctx
    assert packed.documents is not None
    pieces = set()
    for ids, mask, numbers in zip(packed.ids, packed.mask, packed.documents, strict=True):
        for number in numbers[mask].unique():
            pieces.add(tuple(ids[mask & (numbers == number)].tolist()))
    assert pieces == {tuple(d[i : i + n_ctx]) for d in documents for i in range(0, len(d), n_ctx)}
    # Never two rows that would fit into one.
    used = sorted(packed.mask.sum(1).tolist())
    assert len(used) < 2 or used[0] + used[1] > n_ctx


def test_packing_fills_rows_where_it_can_and_marks_the_ends() -> None:
    packed = pack_documents([[1] * 5, [2] * 3, [3] * 2, [4] * 6], 8)
    assert packed.mask.all()
    assert sorted(map(tuple, packed.ids.tolist())) == [(1, 1, 1, 1, 1, 2, 2, 2), (4, 4, 4, 4, 4, 4, 3, 3)]
    ended = pack_documents([[1], [2, 2]], 8, end=9, pad=7)
    assert ended.ids.tolist() == [[2, 2, 9, 1, 9]]
    assert ended.documents is not None
    assert ended.documents.tolist() == [[0, 0, 0, 1, 1]]


@pytest.mark.parametrize(("documents", "message"), [([], "no documents"), ([[1], []], "document 1 is empty")])
def test_nothing_to_pack_is_refused(documents: list, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pack_documents(documents, 8)


def test_packed_documents_have_the_losses_and_gradients_of_separate_ones(tiny: HookedTransformer) -> None:
    generator = torch.Generator().manual_seed(0)
    documents = [torch.randint(0, 258, (n,), generator=generator) for n in (9, 4, 12, 1, 6, 7)]
    tiny = tiny.double()
    packed = pack_documents(documents, 16)
    with torch.no_grad():
        losses = tiny.loss(packed, per_token=True)
        apart = [float(tiny.loss(d[None], per_token=True).sum()) for d in documents]
    assert float(losses.sum()) == pytest.approx(sum(apart), rel=1e-10)
    assert packed.documents is not None
    for row, (ids, numbers) in enumerate(zip(packed.ids, packed.documents, strict=True)):
        for number in numbers[packed.mask[row]].unique():
            places = (packed.mask[row] & (numbers == number)).nonzero()[:, 0]
            which = next(i for i, d in enumerate(documents) if torch.equal(d, ids[places]))
            assert float(losses[row, places[:-1]].sum()) == pytest.approx(apart[which], rel=1e-10, abs=1e-10)

    weight = tiny.embed.weight.requires_grad_(True)
    n_targets = sum(len(d) - 1 for d in documents)
    (together,) = torch.autograd.grad(tiny.loss(packed), weight)
    separate = sum(
        torch.autograd.grad(tiny.loss(d[None], per_token=True).sum(), weight)[0] for d in documents if len(d) > 1
    )
    torch.testing.assert_close(together, separate / n_targets, rtol=1e-9, atol=1e-12)
