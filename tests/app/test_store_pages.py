"""Stores and system: what a store holds, what its statistics leave out, and what the server says of itself."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from page_words import words
from streamlit.testing.v1 import AppTest
from tiny import tiny_model

import interp
from interp import artifact
from interp.checks.report import Check, DoctorReport
from interp.model import HookedTransformer
from ui import library
from ui.services import live, recorded, system

Open = Callable[..., AppTest]
HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(1)</script>",
    "\u202eevil",
    "$\\frac{1}{0}$",
    "[x](javascript:alert(1))",
    ":red[boo] :material/home:",
    "=HYPERLINK(1)",
    "👩‍👩‍👧 \u200b مرحبا `**_#",
    "x" * 300,
]
TEXTS = [text * 2 for text in HOSTILE] + [f"number {n} of many" for n in range(30)]


@pytest.fixture(scope="module")
def model() -> HookedTransformer:
    return tiny_model(n_layers=3, n_heads=4, n_ctx=512)


@pytest.fixture(scope="module")
def space(model: HookedTransformer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with a store of hostile texts, and one that is damaged. Read only."""
    folder = tmp_path_factory.mktemp("space")
    texts = [text[:200] for text in TEXTS]
    interp.record(model, texts, sites=["resid_post:*"], tokens="all", path=folder / "texts", progress=False)
    (folder / "bad").mkdir()
    (folder / "bad" / "store.json").write_text('{"kind": "activation store", "format": 2}')
    return folder


def test_an_empty_workspace_says_how_to_record(open_page: Open, tmp_path: Path) -> None:
    page = open_page("stores", workspace=tmp_path)
    assert not page.exception
    assert "No store in the workspace" in words(page)
    assert "interp record" in words(page)


def test_a_store_is_shown_without_a_click(open_page: Open, space: Path, model: HookedTransformer) -> None:
    page = open_page("stores", workspace=space, query={"store": "texts"})
    assert not page.exception
    assert "this should not happen" not in words(page)
    store = interp.open_store(space / "texts")
    listed, sites, texts, tokens, reasons, positions, strongest = [each.value for each in page.dataframe]
    row = listed.set_index("key").loc["texts"]
    assert (row["texts"], row["rows"], row["sites"]) == (store.n_texts, store.n_rows, 3)
    assert row["fingerprint"] == model.fingerprint[:8]
    assert sites["typical_norm"].tolist() == store.to_frame()["typical_norm"].tolist()
    assert len(texts) == recorded.PAGE
    assert tokens["token_id"].tolist() == store.token_ids(0).tolist()
    site = store.sites[1]
    left = store.stats(site).left_out
    assert f"{left:,} of {store.n_rows:,} rows left out" in words(page)
    assert reasons.set_index("reason").loc["kept in the statistics", "rows"] == store.n_rows - left
    assert positions.loc[0, "rows"] == store.n_texts
    assert strongest["norm"].iloc[0] == store.norms(site).max()


def test_a_damaged_store_is_named_and_the_others_stay(open_page: Open, space: Path) -> None:
    page = open_page("stores", workspace=space, query={"store": "bad"})
    assert not page.exception
    assert "bad cannot be read" in words(page)
    listed = page.dataframe[0].value.set_index("key")
    assert listed.loc["bad", "problem"]
    assert not listed.loc["texts", "problem"]


def test_search_takes_words_as_they_are(open_page: Open, space: Path) -> None:
    open_page("stores", workspace=space)
    for search, n in (("number 7 ", 1), ("NUMBER", 30), ("<img", 1), ("(", 5), ("no such text", 0)):
        frame, found = recorded.examples("texts", search, 0)
        expected = [text for text in (each[:200] for each in TEXTS) if search.lower() in text.lower()]
        assert found == len(expected)
        assert frame["text"].tolist() == expected[: recorded.PAGE]
        assert n in (found, 5)
    page = open_page("stores", workspace=space, query={"store": "texts", "stores_search": "no such text"})
    assert not page.exception
    assert "No text holds that" in words(page)
    page = open_page("stores", workspace=space, query={"store": "texts", "stores_page": "99"})
    assert "here is the last one" in words(page)


def test_tokens_get_their_texts_while_the_model_is_in_memory(
    open_page: Open, space: Path, model: HookedTransformer
) -> None:
    open_page("stores", workspace=space, model=model, run=None)
    frame, n = recorded.tokens("texts", 20, "resid_post:0")
    assert "token" not in frame
    live.engine()
    frame, n = recorded.tokens("texts", 20, "resid_post:0")
    store = interp.open_store(space / "texts")
    assert n == len(store.token_ids(20))
    assert frame["token"].tolist() == [view.display for view in model.tokenizer.views(store.token_ids(20).tolist())]
    here = (store.tokens["text"] == 20).to_numpy()
    np.testing.assert_array_equal(frame["norm"], store.norms("resid_post:0")[here])
    for wrong in (-1, store.n_texts):
        with pytest.raises(ValueError, match="the store has texts"):
            recorded.tokens("texts", wrong, "resid_post:0")


def test_outliers_of_a_site_are_those_over_its_threshold(space: Path) -> None:
    store = interp.open_store(space / "texts")
    for site in store.sites:
        (threshold,) = store.stats(site).outlier_norms
        assert threshold is not None
        np.testing.assert_array_equal(store.outliers(site), store.norms(site) > threshold)
        assert len(store.select(texts=[0]).outliers(site)) == store.select(texts=[0]).n_rows


def test_the_system_says_what_it_is(open_page: Open, space: Path, model: HookedTransformer) -> None:
    page = open_page("stores", workspace=space, model=model, query={"stores_show": "System"})
    assert not page.exception
    assert "this should not happen" not in words(page)
    assert page.metric[0].label == "Processors"
    assert "No model is in memory" in words(page)
    found = system.machine()
    own, free, total = found["own"], found["free"], found["total"]
    assert own is not None
    assert free is not None
    assert total is not None
    assert 1e7 < own < total
    assert free < total
    assert interp.__version__ in system.versions()["version"].tolist()


def test_the_model_is_freed(open_page: Open, model: HookedTransformer) -> None:
    open_page("stores", model=model, run=None)
    first = live.engine()
    assert system.models()["fingerprint"].tolist() == [model.fingerprint]
    page = open_page.__call__("stores", model=model, run=None, query={"stores_show": "System"})
    del first
    live.engine()
    page = page.run()
    page.button(key="system_free").click().run()
    assert not page.exception
    assert "No model is in memory" in words(page)
    assert live.engine().fingerprint == model.fingerprint


def test_a_busy_model_is_not_freed(open_page: Open, model: HookedTransformer) -> None:
    import threading

    open_page("stores", model=model, run=None)
    held, done = live.engine(), threading.Event()
    taken = threading.Event()

    def compute() -> None:
        with held.lock:
            taken.set()
            done.wait(10)

    thread = threading.Thread(target=compute)
    thread.start()
    taken.wait(10)
    assert not live.release(wait_s=0.05)
    assert live.in_memory()
    done.set()
    thread.join()
    assert live.release()


def test_the_last_report_of_the_doctor(open_page: Open, tmp_path: Path) -> None:
    check = Check("Hooks [x](javascript:1)", "a with b", "ok", 1e-6, 1e-5, "", 0.5)
    report = DoctorReport((check,), system.pd.DataFrame(columns=["layer"]), {"model": "tiny", "fingerprint": "ab" * 16})
    report.save(tmp_path / "doctor-tiny.json")
    page = open_page("stores", workspace=tmp_path, query={"stores_show": "System"})
    assert not page.exception
    assert "this should not happen" not in words(page)
    shown = next(each.value for each in page.dataframe if "verdict" in each.value)
    assert shown["name"].tolist() == ["Hooks [x](javascript:1)"]
    artifact.write_json(tmp_path / "doctor-tiny.json", {"kind": "doctor report", "checks": []})
    library.forget()
    assert not page.run().exception
