"""Shuffled batches: read ahead by a thread, shared by ranks, of several sites, and mixed as a permutation of all rows."""

import gc
import itertools
import json
import threading
import traceback
import weakref

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plain_store import HEADS, SITE, all_rows, plain_store

from interp.store import Batches, batches

WIDTH = 3


def numbered(n, *, read=None, row_bytes=4 * WIDTH, **options):
    """Batches of n rows, row i being (i, i, i)."""
    rows = torch.arange(n, dtype=torch.float32)[:, None].expand(n, WIDTH).contiguous()
    options = {"size": 7, "seed": 0, "epochs": 1, "drop_last": False, "block": 4, "prefetch": True} | options
    return Batches(
        read or (lambda index: rows[torch.from_numpy(index)]),
        np.arange(n),
        site="s",
        d=WIDTH,
        row_bytes=row_bytes,
        **options,
    )


def numbers(found):
    """Numbers of the rows, batch after batch."""
    return [batch[:, 0].long().tolist() for batch in found]


class Clock:
    """A clock for `interp.store.batches` that goes on by 1 whenever it is looked at, and as the consumer likes."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 1
        return self.now

    def at_work(self, found):
        """The batches, with a consumer that takes ten times as long for them as they took to make."""
        for batch in found:
            yield batch
            self.now += 10


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(batches, "perf_counter", clock)
    return clock


def noting_threads(threads):
    """A reader for `numbered` that notes the names of the threads that it runs in."""

    def read(index):
        threads.append(threading.current_thread().name)
        return torch.from_numpy(index).float()[:, None].expand(-1, WIDTH).contiguous()

    return read


def readers():
    return [thread for thread in threading.enumerate() if thread.name == "interp-batches"]


@pytest.fixture
def small_windows(monkeypatch):
    """Windows of 5 blocks of 4 rows."""
    monkeypatch.setattr(batches, "WINDOW_BYTES", 5 * 4 * 4 * WIDTH)


# Reading ahead ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize("block", [1, 4])
def test_reading_ahead_changes_nothing(block, clock):
    threads = []
    options = {"epochs": 3, "block": block, "read": noting_threads(threads)}
    ahead, plain = (list(clock.at_work(numbered(203, **options, prefetch=prefetch))) for prefetch in (True, False))
    assert threads == ["MainThread", *["interp-batches"] * 32, *["MainThread"] * 33]
    assert numbers(ahead) == numbers(plain)
    assert [len(batch) for batch in ahead] == ([7] * 29) * 3
    assert sorted(itertools.chain(*numbers(ahead)[:29])) == list(range(203))


@pytest.mark.usefixtures("small_windows")
def test_only_a_consumer_at_work_is_read_ahead_for(clock):
    threads = []
    found = list(numbered(203, read=noting_threads(threads)))
    assert sorted(itertools.chain(*numbers(found))) == list(range(203))
    assert threads == ["MainThread"] * 11
    threads.clear()
    late = iter(numbered(203, read=noting_threads(threads)))
    for number, _batch in enumerate(late):
        clock.now += 100 * (number == 10)
    assert threads == ["MainThread"] * 4 + ["interp-batches"] * 7


@pytest.mark.usefixtures("small_windows")
def test_no_thread_is_left(clock):
    for shuffled in (numbered(203), numbered(203, epochs=None)):
        for _, _batch in zip(range(5), clock.at_work(shuffled)):
            pass
        gc.collect()
        assert readers() == []
    list(clock.at_work(numbered(203)))
    assert readers() == []

    def fail():
        for number, _ in enumerate(clock.at_work(numbered(203))):
            if number == 1:
                raise RuntimeError("the consumer stops")

    with pytest.raises(RuntimeError, match="the consumer"):
        fail()
    gc.collect()
    assert readers() == []


@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize("prefetch", [True, False])
def test_an_error_of_the_reader_comes_where_its_window_is_due(prefetch, clock):
    calls = itertools.count()

    def read_badly(index):
        if next(calls) == 2:
            assert threading.current_thread().name == ("interp-batches" if prefetch else "MainThread")
            raise ValueError("the third window is damaged")
        return torch.from_numpy(index).float()[:, None].expand(-1, WIDTH).contiguous()

    shuffled, found = numbered(203, read=read_badly, prefetch=prefetch), []
    with pytest.raises(ValueError, match="the third window") as error:
        found.extend(batch for batch in clock.at_work(shuffled))
    assert len(found) == 2 * 20 // 7
    assert "read_badly" in "".join(traceback.format_tb(error.value.__traceback__))
    assert shuffled.state()["rows"] == len(found) * 7
    assert readers() == []


@pytest.mark.usefixtures("small_windows")
def test_two_windows_are_in_memory_and_no_more(clock):
    alive, most = weakref.WeakSet(), []

    def read(index):
        rows = torch.from_numpy(index).float()[:, None].expand(-1, WIDTH).contiguous()
        alive.add(rows)
        most.append(len(alive))
        return rows

    for _batch in clock.at_work(numbered(403, read=read)):
        pass
    assert max(most) == 2
    assert len(most) == 21


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("width", [3, 700, 40_000])
def test_rows_are_converted_in_pieces(dtype, width):
    acts = torch.randn(130, width, generator=torch.Generator().manual_seed(0)).to(dtype)
    place = np.random.default_rng(0).integers(0, 130, 101)
    found = batches._take(acts, place)
    torch.testing.assert_close(found, acts[torch.from_numpy(place)].float(), rtol=0, atol=0)


# State --------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_windows")
@given(
    size=st.integers(1, 90),
    stops=st.lists(st.integers(0, 40), max_size=3),
    world_size=st.integers(1, 3),
    block=st.sampled_from([1, 4, 9]),
    drop_last=st.booleans(),
    prefetch=st.booleans(),
)
@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_going_on_is_exact_whatever_was_read_ahead(clock, size, stops, world_size, block, drop_last, prefetch):
    def fresh():
        options = {"world_size": world_size, "rank": world_size - 1, "block": block, "prefetch": prefetch}
        return numbered(203, size=size, epochs=2, drop_last=drop_last, **options)

    expected, found, state = numbers(fresh()), [], fresh().state()
    for stop in [*stops, None]:
        part = fresh()
        part.load_state(json.loads(json.dumps(state)))
        for number, batch in enumerate(clock.at_work(part), start=1):
            found += numbers([batch])
            if number == stop:
                break
        state = part.state()
    assert found == expected
    assert len(fresh()) == len(expected)


def test_a_state_of_another_rank_is_refused():
    state = numbered(203, rank=0, world_size=2).state()
    with pytest.raises(ValueError, match=r"\(rank differ\)"):
        numbered(203, rank=1, world_size=2).load_state(state)
    with pytest.raises(ValueError, match=r"\(world_size differ\)"):
        numbered(203, rank=0, world_size=3).load_state(state)
    with pytest.raises(ValueError, match="block"):
        numbered(203, block=1).load_state(numbered(203).state())


@pytest.mark.parametrize("state", [None, 3, "epoch", {}, {"epoch": 0}])
def test_what_is_no_state_is_refused(state):
    with pytest.raises(ValueError, match=r"a state is what state\(\) of batches returned, got"):
        numbered(203).load_state(state)


@pytest.mark.parametrize("change", [{"rows": 1.5}, {"rows": -1}, {"epoch": "0"}])
def test_a_state_that_was_changed_is_refused(change):
    with pytest.raises(ValueError, match="must be"):
        numbered(203).load_state(numbered(203).state() | change)


# Ranks --------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_windows")
@given(
    n=st.integers(1, 300),
    world_size=st.integers(1, 5),
    block=st.integers(1, 9),
    size=st.integers(1, 40),
    drop_last=st.booleans(),
)
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_ranks_share_the_rows(n, world_size, block, size, drop_last):
    options = {"world_size": world_size, "block": block, "size": size, "drop_last": drop_last, "prefetch": False}
    if n < world_size * block and world_size > 1:
        with pytest.raises(ValueError, match="too few for world_size"):
            numbered(n, rank=0, **options)
        return
    ranks = [numbers(numbered(n, rank=rank, epochs=2, **options)) for rank in range(world_size)]
    sizes = [[len(batch) for batch in found] for found in ranks]
    assert all(entry == sizes[0] for entry in sizes)
    for epoch in range(2):
        half = len(ranks[0]) // 2
        seen = list(itertools.chain(*(batch for found in ranks for batch in found[epoch * half : (epoch + 1) * half])))
        assert len(set(seen)) == len(seen)
        if not drop_last:
            assert n - len(seen) <= (world_size * block if world_size > 1 else 0)


def test_ranks_leave_other_rows_out_in_each_epoch():
    found = [numbers(numbered(11, rank=rank, world_size=3, block=1, epochs=8, size=3)) for rank in range(3)]
    seen = {row for rank in found for batch in rank for row in batch}
    assert seen == set(range(11))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 2, "world_size": 2}, "rank must be 0 to world_size - 1, got rank=2"),
        ({"rank": -1}, "got rank=-1"),
        ({"world_size": 0}, "world_size must be at least 1"),
        ({"block": 0}, "block must be at least 1"),
        ({"world_size": 9, "block": 4}, r"24 rows are 6 whole blocks of 4, too few for world_size=9"),
        ({"site": []}, "no site was asked for"),
        ({"size": 2.5}, r"size must be a whole number, got 2\.5"),
        ({"size": "a"}, "size must be a whole number, got 'a'"),
        ({"size": None}, "size must be a whole number, got None"),
        ({"size": True}, "size must be a whole number, got True"),
        ({"seed": 1.5}, r"seed must be a whole number, got 1\.5"),
        ({"epochs": 1.5}, r"epochs must be a whole number, got 1\.5"),
        ({"rank": 1.0, "world_size": 2}, r"rank must be a whole number, got 1\.0"),
        ({"world_size": 2.0}, "world_size must be a whole number"),
        ({"block": 8.0}, "block must be a whole number"),
    ],
)
def test_bad_requests_are_refused(tmp_path, options, message):
    store = plain_store(tmp_path / "a")
    with pytest.raises(ValueError, match=message):
        store.batches(**{"site": SITE, "typical": False} | options)


# Stores -------------------------------------------------------------------------------------------------------------


def test_several_sites_give_the_same_rows(tmp_path):
    store = plain_store(tmp_path / "a")
    joint = store.batches([SITE, "z:0"], size=5, seed=3, typical=False)
    found = list(joint)
    assert [list(batch) for batch in found] == [[SITE, HEADS]] * 5
    expected = {site: all_rows(site, (0, 0), (1, 0)) for site in (SITE, HEADS)}
    place = {tuple(row): number for number, row in enumerate(expected[SITE].tolist())}
    order = [place[tuple(row)] for batch in found for row in batch[SITE].tolist()]
    assert sorted(order) == list(range(24))
    torch.testing.assert_close(torch.cat([b[HEADS] for b in found]), expected[HEADS][order], rtol=0, atol=0)
    assert (joint.sites, joint.widths) == ([SITE, HEADS], {SITE: 6, HEADS: 8})
    with pytest.raises(ValueError, match="several sites"):
        _ = joint.site
    assert repr(joint) == f"Batches(['{SITE}', '{HEADS}'], n_rows=24, size=5, epochs=1, seed=3)"


def test_rows_typical_at_every_site_are_chosen(tmp_path):
    store = plain_store(tmp_path / "a")
    typical = store.typical(SITE) & store.typical(HEADS)
    assert store.batches([SITE, HEADS]).n_rows == typical.sum() == 18


def test_a_remote_store_is_read_in_blocks(tmp_path):
    assert plain_store(tmp_path / "a").batches(SITE).state()["block"] == 1
    remote = plain_store("memory://batches/a")
    shuffled = remote.batches(SITE, size=5, typical=False)
    assert shuffled.state()["block"] == batches.BLOCK_ROWS
    found = sorted(map(tuple, torch.cat(list(shuffled)).tolist()))
    assert found == sorted(map(tuple, all_rows(SITE, (0, 0), (1, 0)).tolist()))


# Mixing -------------------------------------------------------------------------------------------------------------

N_TEXTS, LENGTH = 400, 20


def same_text_share(block, n_windows, epochs=3):
    """Share of pairs of rows in a batch that are of one text, beside that under a permutation of all rows."""
    n = N_TEXTS * LENGTH
    shuffled = numbered(n, size=500, block=block, row_bytes=batches.WINDOW_BYTES * n_windows // n, epochs=epochs)
    assert n // (shuffled._blocks_in_window * block) == n_windows
    shares = []
    for rows in numbers(shuffled):
        counts = np.bincount(np.array(rows) // LENGTH)
        shares.append((counts * (counts - 1)).sum() / (len(rows) * (len(rows) - 1)))
    return np.mean(shares) / ((LENGTH - 1) / (n - 1))


@pytest.mark.parametrize(("block", "n_windows"), [(1, 1), (20, 1), (1, 8)])
def test_mixing_is_that_of_a_full_permutation(block, n_windows):
    assert same_text_share(block, n_windows) == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize(("block", "n_windows"), [(4, 8), (10, 4), (20, 8)])
def test_larger_blocks_mix_less_by_the_stated_amount(block, n_windows):
    expected = 1 + (n_windows - 1) * (block - 1) / (LENGTH - 1)
    assert same_text_share(block, n_windows) == pytest.approx(expected, rel=0.06)
