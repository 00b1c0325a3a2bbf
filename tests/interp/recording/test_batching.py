"""Texts laid out in forward passes: every token has a place, and shared beginnings change no activation."""

import csv

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import FAMILIES, shaken_model, tiny_config, tiny_model

from interp.recording import record
from interp.recording.batching import Batch, Limits, Prices, make_batches
from interp.recording.job import can_share
from interp.tokens import Tokens

PRICES = Prices(tiny_config())
DECODERS = [name for name, fields in FAMILIES.items() if fields.get("causal", True)]


def flat(texts):
    ids = np.concatenate([np.asarray(text, dtype=np.int32) for text in texts])
    return ids, np.cumsum([0] + [len(text) for text in texts])


def passes(texts, limits, prices=PRICES) -> list[Batch]:
    return list(make_batches(*flat(texts), limits, prices, pad_id=0))


TEXT = st.lists(st.integers(1, 3), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(st.lists(TEXT, min_size=1, max_size=30), st.sampled_from([None, 1, 3]), st.integers(1, 40), st.booleans())
def test_every_token_has_a_place_that_holds_its_own_history(texts, most, tokens, share):
    seen = []
    for batch in passes(texts, Limits(most, tokens, share)):
        n_rows, width = batch.tokens.ids.shape
        assert n_rows == 1 or n_rows * width <= tokens
        assert most is None or len(batch.texts) <= most or n_rows == 1
        start = 0
        for text in batch.texts.tolist():
            cells = batch.cells[start : start + len(texts[text])]
            start += len(cells)
            seen.append(text)
            ids = batch.tokens.ids.flatten()[cells].tolist()
            assert ids == texts[text]
            assert batch.tokens.positions.flatten()[cells].tolist() == list(range(len(ids)))
            if batch.tokens.parents is not None:
                row = int(cells[0]) // width
                parents = batch.tokens.parents[row][torch.from_numpy(cells % width)].tolist()
                assert parents == [-1, *(cells[:-1] % width).tolist()]
        assert start == len(batch.cells)
    assert sorted(seen) == list(range(len(texts)))


def test_texts_that_begin_alike_are_computed_once():
    head = list(range(1, 101))
    texts = [[*head, 200 + i, 201] for i in range(60)]
    batches = passes(texts, Limits(None, 4096, share=True))
    assert sum(batch.computed for batch in batches) < 1.1 * (100 + 2 * 60)
    assert sum(batch.computed for batch in passes(texts, Limits(None, 4096, share=False))) == 102 * 60


def test_without_a_gain_the_texts_run_sorted_and_nothing_is_padded():
    rng = np.random.default_rng(0)
    texts = [rng.integers(1, 1000, size=n) for n in [128] * 20 + [64] * 20 + [7] * 400]
    for batch in passes(texts, Limits(None, 4096, share=True)):
        assert batch.tokens.parents is None
        assert bool(batch.tokens.mask.all())


def test_duplicates_take_no_place_of_their_own():
    batches = passes([[1, 2, 3]] * 50 + [[1, 2]] * 50, Limits(None, 4096, share=True))
    assert [batch.computed for batch in batches] == [3]


@pytest.mark.parametrize("family", DECODERS)
def test_shared_beginnings_change_no_activation(family):
    model = shaken_model(family)
    texts = [
        list(f"{start} {end}".encode())
        for start in ("the city of Rome", "the river")
        for end in ("x", "and so on", "and so off", "and")
    ]
    if not can_share(model):
        assert family == "dynamic"
        with pytest.raises(ValueError, match="joined texts do not have"):
            model(
                Tokens(
                    torch.ones(1, 2, dtype=torch.long),
                    torch.ones(1, 2, dtype=torch.bool),
                    parents=torch.tensor([[-1, 0]]),
                )
            )
        return
    batches = passes(texts, Limits(None, 4096, share=True))
    assert any(batch.tokens.parents is not None for batch in batches)
    sites = [
        name for name in model.site_names if model.sites().set_index("site")["shape"][name].startswith("batch pos")
    ]
    for batch in batches:
        _, cache = model.run_with_cache(batch.tokens, sites)
        start = 0
        for text in batch.texts.tolist():
            cells = torch.from_numpy(batch.cells[start : start + len(texts[text])])
            start += len(cells)
            _, alone = model.run_with_cache([texts[text]], sites)
            for site in sites:
                got, expected = cache[site].flatten(0, 1)[cells].flatten(1).float(), alone[site][0].flatten(1).float()
                error = (got - expected).norm(dim=1)
                assert bool((error <= 1e-5 * expected.norm(dim=1) + 1e-6).all()), site


def test_texts_are_not_shared_where_a_token_sees_later_ones_or_hooks_are_at_work():
    assert not can_share(tiny_model("bert"))
    model = tiny_model()
    assert can_share(model)
    with model.hooks({"resid_post:0": lambda value, ctx: None}):
        assert not can_share(model)
        model("ab")
    with pytest.raises(ValueError, match="from both sides"):
        tiny_model("bert")(
            Tokens(torch.ones(1, 1, dtype=torch.long), torch.ones(1, 1, dtype=torch.bool), parents=torch.tensor([[-1]]))
        )


@pytest.mark.parametrize(
    ("parents", "message"),
    [([[0, 0]], "before its token"), ([[-2, 0]], "before its token"), ([[-1]], "shape"), ([[-1.0, 0.0]], "integers")],
)
def test_trees_that_are_none_are_refused(parents, message):
    with pytest.raises(ValueError, match=message):
        Tokens(torch.ones(1, 2, dtype=torch.long), torch.ones(1, 2, dtype=torch.bool), parents=torch.tensor(parents))


def test_a_tree_has_no_next_token_and_cannot_be_continued():
    tree = Tokens(torch.tensor([[1, 2, 3]]), torch.ones(1, 3, dtype=torch.bool), parents=torch.tensor([[-1, 0, 0]]))
    assert tree.positions.tolist() == [[0, 1, 1]]
    for call in (tiny_model().loss, tiny_model().generate):
        with pytest.raises(ValueError, match=r"texts one by one|joined texts"):
            call(tree)


def test_a_tree_may_hold_more_tokens_than_the_context():
    model = tiny_model(n_ctx=16)
    texts = [f"abcdefgh{end}" for end in ("ijklmn", "opqrst", "uvwxyz", "012345")]
    store = record(model, texts, "resid_post:1", dtype="float32", progress=False)
    assert store.card["run"]["share"]
    for number, text in enumerate(texts):
        expected = model.run_with_cache(text, "resid_post:1")[1]["resid_post:1"][0]
        torch.testing.assert_close(
            store.activations(number)["blocks.1.hook_resid_post"], expected, rtol=1e-4, atol=1e-5
        )
    with pytest.raises(ValueError, match="17 tokens"):
        model("a" * 17)


def test_real_statements_are_computed_less_than_half(smollm, shared_data):
    with (shared_data / "truth/cities.csv").open() as file:
        texts = [smollm.tokenizer.encode(row["statement"]) for row in csv.DictReader(file)]
    limits, prices = Limits(None, 4096, share=True), Prices(smollm.cfg)
    assert sum(batch.computed for batch in passes(texts, limits, prices)) < 0.47 * sum(map(len, texts))
    texts = texts[:30]
    (batch,), start = passes(texts, limits, prices), 0
    with torch.inference_mode():
        _, cache = smollm.run_with_cache(batch.tokens, "resid_post:0-15", stop_at_layer=16)
        for text in batch.texts.tolist():
            cells = torch.from_numpy(batch.cells[start : start + len(texts[text])])
            start += len(cells)
            _, alone = smollm.run_with_cache([texts[text]], "resid_post:0-15", stop_at_layer=16)
            for site in cache:
                error = (cache[site].flatten(0, 1)[cells] - alone[site][0]).norm(dim=1)
                assert bool((error <= 1e-5 * alone[site][0].norm(dim=1)).all()), site
