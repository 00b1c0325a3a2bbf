"""Adding sites and texts to a store: the result equals one recording of everything, and what was there is not touched."""

import gc
import logging

import numpy as np
import pytest
import torch
from tiny import tiny_model

from interp import Ablate
from interp.recording import open_store, plan, record
from interp.store import merge_stores

TEXTS = [f"the city of {name} is {'far ' * (i % 4)}away" for i, name in enumerate(["Rome", "Oslo", "Bern", "Lima"] * 8)]


@pytest.fixture(scope="module")
def model():
    return tiny_model()


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    monkeypatch.setattr(plan, "SHARD_ROWS", 100)


def file_bytes(folder):
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in sorted(folder.rglob("*"))
        if p.is_file() and p.name != ".lock"
    }


@pytest.mark.parametrize("tokens", ["all", "last", ["last", "mean"]])
def test_added_sites_are_those_of_the_same_rows(model, tmp_path, tokens):
    options = {"tokens": tokens, "dtype": "float32", "progress": False}
    store = record(model, TEXTS, "resid_post:1", path=tmp_path / "a", **options)
    before = file_bytes(tmp_path / "a")
    more = store.add_sites(model, ["resid_post:0", "z:1"], progress=False)
    assert file_bytes(tmp_path / "a") | before == file_bytes(tmp_path / "a")
    whole = record(model, TEXTS, ["resid_post:*", "z:1"], **options)
    assert set(more.sites) == set(whole.sites)
    assert more.tokens.drop(columns="is_outlier").equals(whole.tokens.drop(columns="is_outlier"))
    for site in whole.sites:
        assert torch.equal(more.rows(site, slice(None)), whole.rows(site, slice(None)))
        assert more.stats(site).all.count == whole.stats(site).all.count
        np.testing.assert_allclose(more.stats(site).typical.mean, whole.stats(site).typical.mean)
    assert more.verify().empty
    again = open_store(tmp_path / "a").add_sites(model, "resid_mid:0", progress=False)
    assert "blocks.0.hook_resid_mid" in again.sites


def test_appended_texts_go_on_where_the_store_ends(model, tmp_path):
    first, second = TEXTS[:20], TEXTS[20:]
    store = record(model, first, path=tmp_path / "a", dtype="float32", progress=False)
    whole = record(model, TEXTS, dtype="float32", progress=False)
    more = store.append(model, second, progress=False)
    assert more.n_texts == len(TEXTS)
    assert more.examples.text.tolist() == TEXTS
    assert more.tokens.text.tolist() == whole.tokens.text.tolist()
    for site in whole.sites:
        worst = (more.rows(site, slice(None)) - whole.rows(site, slice(None))).norm(dim=1)
        assert bool((worst <= 1e-5 * whole.rows(site, slice(None)).norm(dim=1)).all())
    number = len(first) + 3
    _, cache = model.run_with_cache(TEXTS[number])
    torch.testing.assert_close(more.activations(text=number)["blocks.1.hook_resid_post"], cache["resid_post:1"][0])
    all_sites = more.add_sites(model, "resid_mid:1", progress=False)
    expected = record(model, TEXTS, "resid_mid:1", dtype="float32", progress=False)
    got = all_sites.rows("resid_mid:1", slice(None))
    torch.testing.assert_close(got, expected.rows("resid_mid:1", slice(None)), rtol=1e-4, atol=1e-5)
    assert set(all_sites.append(model, ["one more text"], progress=False).sites) == {
        *store.sites,
        "blocks.1.hook_resid_mid",
    }


def test_an_interrupted_addition_goes_on(model, tmp_path):
    class Stop(Exception):
        pass

    def stop(done, total, tokens):
        if done >= 20:
            raise Stop

    for folder in ("whole", "parts"):
        record(model, TEXTS, "resid_post:1", path=tmp_path / folder, progress=False)
    open_store(tmp_path / "whole").add_sites(model, "resid_post:0", progress=False)
    store = open_store(tmp_path / "parts")
    with pytest.raises(Stop):
        store.add_sites(model, "resid_post:0", progress=stop)
    unfinished = open_store(tmp_path / "parts")
    assert unfinished.sites == store.sites
    assert unfinished.add_sites(model, "resid_post:0", progress=False).sites == open_store(tmp_path / "whole").sites
    assert file_bytes(tmp_path / "parts") == file_bytes(tmp_path / "whole")


def test_what_does_not_fit_is_refused(model, tmp_path):
    store = record(model, TEXTS[:8], "resid_post:1", path=tmp_path / "a", progress=False)
    before = file_bytes(tmp_path / "a")
    for call, message in (
        (lambda: store.add_sites(model, "resid_post:1"), "already"),
        (lambda: store.add_sites(tiny_model(seed=1), "resid_post:0"), "another model"),
        (lambda: store.add_sites(model, "pattern:0"), "no row for each token"),
        (lambda: store.append(tiny_model(seed=1), ["a"]), "another model"),
        (lambda: store.append(model, ["a"], tokens="last"), "keeps tokens='all'"),
        (lambda: store.append(model, [""]), "empty"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
        assert file_bytes(tmp_path / "a") == before


def test_a_rule_that_is_a_function_is_given_again(model, tmp_path):
    def vowel(token):
        return token.text in "aeiou"

    store = record(model, TEXTS[:8], tokens=vowel, path=tmp_path / "a", progress=False)
    with pytest.raises(ValueError, match="vowel"):
        store.append(model, TEXTS[8:12], progress=False)
    more = store.append(model, TEXTS[8:12], tokens=vowel, progress=False)
    assert {model.tokenizer.decode([token]) for token in more.tokens.token_id} <= set("aeiou")


def test_going_on_with_another_function_of_the_same_name_is_refused(model, tmp_path):
    """The rows of two functions would stand in one store."""

    class Stop(Exception):
        pass

    def stop(done, total, tokens):
        if done >= 28:
            raise Stop

    def keeping(*positions):
        return lambda token: token.pos in positions

    def call(rule, progress=False):
        return record(model, TEXTS, "resid_post:1", tokens=rule, path=tmp_path / "a", progress=progress)

    with pytest.raises(Stop):
        call(keeping(*range(12)), stop)
    before = file_bytes(tmp_path / "a")
    assert 0 < open_store(tmp_path / "a").n_texts < len(TEXTS)
    with pytest.raises(ValueError, match="which of the tokens are kept"):
        call(keeping(*range(12, 24)))
    assert file_bytes(tmp_path / "a") == before
    assert set(call(keeping(*range(12))).tokens.position) == set(range(12))
    with pytest.raises(ValueError, match="which of the tokens are kept"):
        call(keeping(*range(12, 24)))


def test_other_hooks_at_the_same_place_are_not_gone_on_with(model, tmp_path):
    def call(head):
        with model.intervene(Ablate(heads=[(0, head)], kind="zero")):
            return record(model, TEXTS[:4], "resid_post:1", path=tmp_path / "a", progress=False)

    rows = call(1).rows("resid_post:1", slice(None))
    for head in (1, 2):
        with pytest.raises(ValueError, match=r"blocks\.0\.attn\.hook_z\), and whether the same functions"):
            call(head)
    assert torch.equal(open_store(tmp_path / "a").rows("resid_post:1", slice(None)), rows)


def test_a_store_in_memory_lasts_as_long_as_what_was_made_of_it(model):
    """`append` and `add_sites` give another object; the one before goes away at once."""
    store = record(model, TEXTS[:4], "resid_post:1", progress=False)
    home = store.path.parent
    store = store.append(model, TEXTS[4:6], progress=False)
    gc.collect()
    store = store.add_sites(model, "resid_post:0", progress=False)
    gc.collect()
    rows = store.rows("resid_post:0", slice(None))
    again, view = open_store(store.path), store.select(texts=[5])
    batches = view.batches("resid_post:0", size=3, typical=False)
    del store
    gc.collect()
    assert torch.equal(again.rows("resid_post:0", slice(None)), rows)
    del again, view
    gc.collect()
    assert sum(len(batch) for batch in batches) == len(TEXTS[5])
    del batches
    gc.collect()
    assert not home.exists()


def test_appended_documents_have_their_own_numbers(model, tmp_path):
    long = "a text of two pieces, " * 9
    store = record(model, [long, "short"], "resid_post:1", path=tmp_path / "a", long="chunk", progress=False)
    store = store.append(model, [long, "brief"], progress=False)
    assert store.examples.document.tolist() == [0, 0, 1, 2, 2, 3]


def test_texts_that_are_appended_twice(model, tmp_path, caplog):
    store = record(model, TEXTS[:4], "resid_post:1", path=tmp_path / "a", progress=False)
    for texts in (["A"], ["B"]):
        store = store.append(model, texts, progress=False)
    assert caplog.text == ""
    with caplog.at_level(logging.WARNING):
        assert store.append(model, ["A"], progress=False).n_texts == 6
    assert "appended before, as parts/0001, so nothing is appended" in caplog.text


def test_stores_merge(model, tmp_path):
    a = record(model, TEXTS[:10], path=tmp_path / "a", progress=False)
    b = record(model, TEXTS[10:16], path=tmp_path / "b", progress=False)
    merged = merge_stores([a, b], tmp_path / "c")
    assert merged.examples.text.tolist() == TEXTS[:16]
    both = torch.cat([a.rows("resid_post:1", slice(None)), b.rows("resid_post:1", slice(None))])
    assert torch.equal(merged.rows("resid_post:1", slice(None)), both)


def test_recording_to_an_object_store_gives_the_same_store(model, tmp_path):
    url = f"memory://{tmp_path.name}/a"
    local = record(model, TEXTS, path=tmp_path / "a", progress=False)
    store = record(model, TEXTS, path=url, progress=False)
    assert store.verify().empty
    assert record(model, TEXTS, path=url, progress=False).complete
    for site in local.sites:
        assert torch.equal(store.rows(site, [5, 3, 70]), local.rows(site, [5, 3, 70]))
    assert open_store(url).add_sites(model, "resid_mid:0", progress=False).verify().empty
    # Remote rows are read in longer runs, so the order is another one; the rows of an epoch are the same.
    epochs = [torch.cat(list(each.batches("resid_post:0", size=64))) for each in (store, local)]
    remote, near = (rows[np.lexsort(rows.T.numpy())] for rows in epochs)
    assert torch.equal(remote, near)


def test_a_column_of_another_type_is_not_appended(model, tmp_path):
    store = record(model, [{"text": "a", "k": 1, "empty": None}], "resid_post:1", path=tmp_path / "a", progress=False)
    with pytest.raises(ValueError, match=r"column 'k' holds int64 in .* but string in the new texts"):
        store.append(model, [{"text": "b", "k": "x"}], progress=False)
    assert not (tmp_path / "a" / "parts").exists()
    more = store.append(model, [{"text": "b", "k": 2.5, "empty": "c"}], progress=False)
    assert more.examples["k"].tolist() == [1.0, 2.5]
    assert more.examples["empty"].tolist()[1] == "c"
