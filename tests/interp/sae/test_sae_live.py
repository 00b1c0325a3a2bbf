"""Live rows against those of a store of the same texts; stops at any batch; what does not fit is refused."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny import tiny_model
from torch import Tensor

from interp.model import HookedTransformer
from interp.recording import record
from interp.sae.config import SAEConfig
from interp.sae.live import LiveRows, live_rows
from interp.sae.pool import PoolBatches
from interp.sae.rows import training_rows
from interp.sae.train import train_sae
from interp.store import OUTLIER_FACTOR, Store

SITE, BELOW = "blocks.1.hook_resid_post", "blocks.0.hook_resid_post"
CONFIG = SAEConfig(width=64, batch_size=96, epochs=2, seed=5)


@pytest.fixture(scope="module")
def live(tiny_llama: HookedTransformer, texts: list[str]) -> LiveRows:
    """Several pools an epoch; the sample is all texts, as the store's statistics are."""
    return live_rows(tiny_llama, texts, "resid_post:1", buffer_rows=700)


@pytest.fixture(scope="module")
def joint(tiny_llama: HookedTransformer, texts: list[str]) -> LiveRows:
    return live_rows(tiny_llama, texts, "resid_post:0", target="resid_post:1", buffer_rows=700)


def same_rows(ours: Tensor, theirs: Tensor) -> None:
    """The same rows in whatever order, but for rounding: on random lines their places agree."""
    assert ours.shape == theirs.shape
    lines = torch.randn(ours.shape[1], 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    places = [(rows.double() @ lines).sort(dim=0).values for rows in (ours, theirs)]
    torch.testing.assert_close(*places, rtol=1e-4, atol=1e-3)


def test_an_epoch_is_the_typical_rows_of_a_store(live: LiveRows, store: Store) -> None:
    batches = live.batches(size=96, seed=1)
    found = list(batches)
    assert [len(batch) for batch in found[:-1]] == [96] * (len(found) - 1)
    same_rows(torch.cat(found), store.rows(SITE, store.typical(SITE)))
    tokens = store.tokens
    first, special = tokens["is_first"].to_numpy(), tokens["is_special"].to_numpy()
    assert batches.left_out == {
        "first": first.sum(),
        "special": (special & ~first).sum(),
        "outlier": (~store.typical(SITE) & ~special & ~first).sum(),
    }
    assert all(batches.left_out.values())


def test_the_statistics_of_the_sample_are_those_of_the_store(live: LiveRows, store: Store) -> None:
    ours, theirs = live.stats[SITE], store.stats(SITE)
    assert live.n_sample_rows == store.n_rows
    ordinary = store.norms(SITE)[~(store.tokens["is_special"] | store.tokens["is_first"]).to_numpy()]
    assert live.outlier_norms[SITE] == pytest.approx(OUTLIER_FACTOR * np.median(ordinary), rel=1e-5)
    assert ours.typical_norm == pytest.approx(theirs.typical_norm, rel=1e-5)
    torch.testing.assert_close(ours.typical.mean, theirs.typical.mean, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours.typical.variance, theirs.typical.variance, rtol=1e-4, atol=1e-4)


def test_a_transcoder_gets_both_sites_of_the_same_tokens(joint: LiveRows, store: Store) -> None:
    found = list(joint.batches(size=50))
    both = store.typical(BELOW) & store.typical(SITE)
    ours = torch.cat([torch.cat([batch[BELOW], batch[SITE]], dim=1) for batch in found])
    same_rows(ours, torch.cat([store.rows(BELOW, both), store.rows(SITE, both)], dim=1))
    rows = training_rows(joint, CONFIG)
    assert (rows.sites, rows.targets, rows.is_paired) == ((BELOW,), (SITE,), True)
    x, y = rows.pair(found[0])
    torch.testing.assert_close(x / rows.scale_in.float(), found[0][BELOW])
    torch.testing.assert_close(y / rows.scale_out.float(), found[0][SITE])


def test_the_order_follows_from_seed_and_epoch(live: LiveRows) -> None:
    once = torch.cat(list(live.batches(size=96, seed=1)))
    assert torch.equal(once, torch.cat(list(live.batches(size=96, seed=1))))
    other = torch.cat(list(live.batches(size=96, seed=2)))
    twice = torch.cat(list(live.batches(size=96, seed=1, epochs=2)))
    assert torch.equal(twice[: len(once)], once)
    for unlike in (other, twice[len(once) :]):
        assert not torch.equal(unlike, once)
        same_rows(unlike, once)


def test_a_stopped_run_gets_the_same_bits_from_any_batch_on(live: LiveRows) -> None:
    rows = training_rows(live, CONFIG)
    whole = list(rows.batches)
    assert isinstance(rows.batches, PoolBatches)
    assert len(whole) == rows.n_steps == CONFIG.epochs * live.n_rows // 96
    assert {len(batch) for batch in whole} == {96}
    left_out = rows.batches.left_out
    for stop in (1, 8, rows.n_steps // 2 + 1, rows.n_steps - 1, rows.n_steps):
        started = training_rows(live, CONFIG)
        before = list(itertools.islice(started.batches, stop))
        resumed = training_rows(live, CONFIG)
        resumed.load_state(started.state())
        assert resumed.state() == started.state()
        after = list(resumed.batches)
        assert isinstance(resumed.batches, PoolBatches)
        assert all(map(torch.equal, [*before, *after], whole))
        assert len(before) + len(after) == len(whole)
        assert resumed.batches.left_out == left_out or stop == rows.n_steps


class Stopped(Exception):
    """Stands for a signal in the middle of a run."""


def test_training_stops_and_goes_on_to_the_same_weights(live: LiveRows, tmp_path: Path) -> None:
    config = SAEConfig(k=4, width=64, batch_size=256, lr=3e-3, checkpoint_every=2)
    whole = train_sae(live, config)

    def stop(done: int, total: int) -> None:
        if done == 5 < total:
            raise Stopped

    with pytest.raises(Stopped):
        train_sae(live, config, checkpoint=tmp_path / "run.safetensors", progress=stop)
    resumed = train_sae(live, config, checkpoint=tmp_path / "run.safetensors")
    assert all(map(torch.equal, whole.state_dict().values(), resumed.state_dict().values()))
    assert resumed.site == SITE
    assert resumed.card == whole.card
    left_out = resumed.card["live"].pop("left_out")
    assert resumed.card["live"] == live.card["live"]
    assert left_out["outlier"] > 0


def test_a_model_that_has_changed_is_refused(texts: list[str]) -> None:
    model = tiny_model()
    live = live_rows(model, texts[:3], SITE)
    with model.hooks({SITE: lambda value, _: 2 * value}), pytest.raises(ValueError, match="other hooks are attached"):
        training_rows(live, CONFIG)
    model.embed.weight[0, 0] += 1
    with pytest.raises(ValueError, match="weights have changed"):
        training_rows(live, CONFIG)


def test_every_call_gives_the_same_rows_and_identity(
    live: LiveRows, tiny_llama: HookedTransformer, texts: list[str]
) -> None:
    again = training_rows(live_rows(tiny_llama, texts, SITE, buffer_rows=700), CONFIG)
    first = training_rows(live, CONFIG, site=SITE)
    assert again.identity == first.identity
    again.load_state(first.state())
    other = training_rows(live_rows(tiny_llama, texts[1:], SITE, buffer_rows=700), CONFIG)
    with pytest.raises(ValueError, match="other live rows \\(texts_hash, outlier_norms differ"):
        other.load_state(first.state())
    with pytest.raises(ValueError, match="a state is what state"):
        other.load_state({"epoch": 0})


def test_a_run_of_an_epoch_is_as_long_as_all_ordinary_tokens(live: LiveRows, store: Store) -> None:
    tokens = store.tokens
    ordinary = np.count_nonzero(~(tokens["is_first"] | tokens["is_special"]))
    assert live.n_rows == ordinary
    rows = training_rows(live, SAEConfig(width=64, batch_size=100, epochs=3))
    assert rows.n_steps == 3 * ordinary // 100
    assert rows.n_rows == 100 * rows.n_steps
    card = rows.card
    assert card["left_out"] == store.n_rows - ordinary
    assert (card["model"], card["sites"], card["live"]["tokens"]) == (store.model_fingerprint, [SITE], store.n_rows)
    assert card["typical_norm"] == card["typical_norms"][SITE] == live.stats[SITE].typical_norm
    assert card["live"]["sample"] == {"seed": 0, "tokens": store.n_rows, "typical": store.typical(SITE).sum()}


def test_the_pool_stays_within_its_bytes(tiny_llama: HookedTransformer, texts: list[str]) -> None:
    budget = 32 * 2 * 500
    live = live_rows(tiny_llama, texts, SITE, buffer_bytes=budget, dtype="bfloat16")
    assert sum(rows.nbytes for rows in live.empty_pool().values()) == budget
    assert live.n_sample_rows <= live.buffer_rows == 500
    found = list(live.batches(size=64, seed=3))
    assert all(batch.dtype == torch.float32 for batch in found)
    whole = live_rows(tiny_llama, texts, SITE, dtype="bfloat16")
    assert whole.buffer_rows == whole.n_rows
    assert torch.cat(found).shape[1] == 32


def test_the_pools_of_an_epoch_hold_about_the_same(live: LiveRows, store: Store) -> None:
    tokens = store.tokens
    ordinary = tokens[~(tokens["is_first"] | tokens["is_special"])].groupby("text").size().to_numpy()
    order = np.random.default_rng(0).permutation(live.usable)
    sizes = [int(ordinary[order[first:last]].sum()) for first, last in live.pools(order)]
    assert sum(sizes) == live.n_rows
    assert len(sizes) > 2
    assert max(sizes) <= live.buffer_rows
    assert min(sizes) > 0.7 * max(sizes)


def test_long_texts_are_cut_as_record_does(tiny_llama: HookedTransformer, texts: list[str]) -> None:
    long = " ".join(texts)[:700]
    live = live_rows(tiny_llama, [long], SITE, max_length=100)
    store = record(tiny_llama, [long], sites=SITE, max_length=100, dtype="float32", progress=False)
    assert len(live.texts) == store.n_texts == 7
    same_rows(torch.cat(list(live.batches())), store.rows(SITE, store.typical(SITE)))
    with pytest.raises(ValueError, match="over the limit of 128"):
        live_rows(tiny_llama, [long], SITE, long="error")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target": "resid_post:1"}, "target= one other site"),
        ({"site": "resid_post:9"}, "resid_post:9"),
        ({"buffer_rows": 5}, "a text has \\d+ rows, the pool holds 5"),
        ({"buffer_rows": 700, "buffer_bytes": 1000}, "takes 89600 bytes, over buffer_bytes=1000"),
        ({"buffer_rows": 0}, "buffer_rows must be at least 1"),
        ({"dtype": "int8"}, "dtype='int8' is unknown"),
        ({"data": ["a", "b"]}, "none of the 2 tokens is typical"),
        ({"data": []}, "nothing to record"),
        ({"model": "gpt2"}, "is the name of a model"),
    ],
)
def test_what_does_not_fit_is_refused(
    tiny_llama: HookedTransformer, texts: list[str], change: dict[str, Any], message: str
) -> None:
    given = {"model": tiny_llama, "data": texts, "site": SITE, **change}
    with pytest.raises(ValueError, match=message):
        live_rows(given.pop("model"), given.pop("data"), given.pop("site"), **given)


def test_other_sites_and_several_processes_are_refused(live: LiveRows, joint: LiveRows) -> None:
    with pytest.raises(ValueError, match="not of resid_post:0"):
        training_rows(live, CONFIG, site="resid_post:0")
    with pytest.raises(ValueError, match="say it in live_rows"):
        training_rows(joint, CONFIG, site="resid_post:1")
    with pytest.raises(ValueError, match="2 processes cannot share live rows"):
        training_rows(live, CONFIG, world_size=2)
    with pytest.raises(ValueError, match="rows= chooses rows of a store"):
        training_rows(live, CONFIG, rows=np.arange(3))
    with pytest.raises(TypeError, match="no length"):
        len(live.batches())


def test_a_damaged_model_is_said_with_its_place(tiny_llama: HookedTransformer) -> None:
    def damage(value: Tensor, _: Any) -> Tensor:
        return value.index_fill(1, torch.tensor([3]), float("nan"))

    with (
        tiny_llama.hooks({SITE: damage}),
        pytest.raises(ValueError, match=r"resid_post, text [01], position 3: the acti"),
    ):
        live_rows(tiny_llama, ["river stone", "green cloud"], SITE)
