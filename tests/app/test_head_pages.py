"""One head and the attention of a layer: what the canvas gets is the model's attention, and clicks are not believed blindly."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from page_words import fine, words
from streamlit.testing.v1 import AppTest
from tiny import tiny_model

import interp
from interp.heads.examples import head_examples
from interp.model import HookedTransformer
from ui import services
from ui.attention import checked_pick
from ui.panels import head_attention
from ui.services import head_answers

Open = Callable[..., AppTest]


@pytest.fixture(scope="module")
def model() -> HookedTransformer:
    return tiny_model(n_layers=3, n_heads=4, n_ctx=512)


def test_the_view_holds_the_models_attention(open_page: Open, model: HookedTransformer) -> None:
    page = fine(open_page("attention", run=None, model=model, prompt="abcabd", query={"layer": "1", "head": "2"}))
    assert "Attention of layer 1, head 2" in words(page)
    _, cache = model.run_with_cache("abcabd", sites="pattern:1")
    expected = cache["pattern:1"][0].detach().numpy()
    tokens, _ = services.tokens("abcabd")
    view, sink = head_attention.seen("abcabd", tokens, 1, 2, moved=False)
    assert view.pattern == pytest.approx(expected, abs=1e-6)
    assert sink == pytest.approx(expected[2, 1:, 0].mean(), abs=1e-6)
    edges = view.edges()
    for row in edges.to_dict("records"):
        assert row["weight"] == pytest.approx(expected[2, row["query"], row["key"]], abs=1e-6)
    assert view.to_png().startswith(b"\x89PNG")


def test_without_position_0_the_exports_follow(open_page: Open, model: HookedTransformer) -> None:
    where = {"layer": "1", "head": "2", "no_sink": "true"}
    page = fine(open_page("attention", run=None, model=model, prompt="abcabd", query=where))
    assert page.toggle(key="no_sink").value
    assert "drop_sink=True" in words(page)
    tokens, _ = services.tokens("abcabd")
    view, _ = head_attention.seen("abcabd", tokens, 1, 2, moved=False, drop=True)
    edges = view.edges()
    assert (edges["key"] > 0).all()
    _, cache = model.run_with_cache("abcabd", sites="pattern:1")
    rest = cache["pattern:1"][0, 2].detach().numpy()[:, 1:].astype(float)
    for row in edges.to_dict("records"):
        line = rest[row["query"]]
        assert row["weight"] == pytest.approx(line[row["key"] - 1] / line.sum(), rel=1e-5)


def test_shares_of_what_is_moved_sum_to_one(open_page: Open, model: HookedTransformer) -> None:
    where = {"layer": "1", "head": "2", "attention_weight": "Share of what is moved"}
    fine(open_page("attention", run=None, model=model, prompt="abcabd", query=where))
    tokens, _ = services.tokens("abcabd")
    view, _ = head_attention.seen("abcabd", tokens, 1, 0, moved=True)
    weighted = interp.value_weighted_attention(model, "abcabd", 1)[0].detach().numpy()
    assert view.pattern == pytest.approx(weighted / weighted.sum(-1, keepdims=True), abs=1e-6)
    assert head_attention.shares(np.zeros((1, 2, 2))).sum() == 0


def test_a_long_prompt_keeps_three_digits_and_nobody_can_write(open_page: Open, model: HookedTransformer) -> None:
    longer = tiny_model(n_layers=2, n_heads=4, n_ctx=600)
    prompt = "abcdefgh" * 65
    fine(open_page("attention", run=None, model=longer, prompt=prompt))
    held = services.attention(prompt, 1)
    assert held.dtype == np.float16
    _, cache = longer.run_with_cache(prompt, sites="pattern:1")
    assert held.astype(np.float32) == pytest.approx(cache["pattern:1"][0].detach().numpy(), rel=1e-3, abs=1e-6)
    with pytest.raises(ValueError, match="read-only"):
        held[0, 0, 0] = 1


@pytest.mark.parametrize("query", [{"layer": "99", "head": "99"}, {"layer": "x"}, {}])
def test_a_layer_that_is_not_there_is_brought_into_range(
    open_page: Open, model: HookedTransformer, query: dict[str, str]
) -> None:
    for name in ("attention", "head"):
        fine(open_page(name, run=None, model=model, prompt="abcabd", query=query))


def test_the_layer_is_chosen_by_the_slider(open_page: Open, model: HookedTransformer) -> None:
    page = fine(open_page("attention", run=None, model=model, prompt="abcabd", query={"layer": "1", "head": "2"}))
    page.slider(key="attention_layer").set_value(2).run()
    assert "Attention of layer 2, head 2" in words(fine(page))
    assert page.query_params["layer"] in ("2", ["2"])


def test_neighbours_are_a_button_away_and_all_heads_are_passed(open_page: Open, model: HookedTransformer) -> None:
    page = fine(open_page("head", run=None, model=model, prompt="abc", query={"layer": "1", "head": "3"}))
    assert page.title[0].value == "Layer 1, head 3"
    page.button(key="head_step_1").click().run()
    assert page.title[0].value == "Layer 2, head 0"
    page.button(key="head_step_-1").click().run()
    assert fine(page).title[0].value == "Layer 1, head 3"
    table = page.dataframe[0].value
    scores = interp.head_scores(model, seed=0).to_frame().query("layer == 1 and head == 3").iloc[0]
    shown = table.set_index("score")["value"]
    assert shown["Induction"] == pytest.approx(scores["induction"], abs=1e-6)


def test_text_panel_shows_what_the_library_finds(open_page: Open, model: HookedTransformer) -> None:
    where = {"layer": "1", "head": "2", "panel": "On text"}
    page = fine(open_page("head", run=None, model=model, prompt="abc", query=where))
    texts = interp.load_corpus(head_answers.PASSAGES).texts[: services.NATURAL_TEXTS]
    expected = head_examples(model, 1, 2, texts)
    assert f"n = {len(expected.maxima):,} queries" in words(page)
    found = head_answers.examples(1, 2)
    assert found.passages.equals(expected.passages)
    first = expected.examples(0).iloc[0]
    row = head_answers.example_row(1, 2, int(first["text"]), int(first["query"]))
    assert row["weight"].iloc[int(first["key"])] == pytest.approx(first["largest"], rel=1e-5)


@pytest.mark.parametrize(
    "value",
    [
        None, 3, [], {"head": 4, "query": 0, "key": 0}, {"head": 0, "query": -1, "key": 0}, {"head": True, "query": 0, "key": 0},
        {"head": 0.5, "query": 0, "key": 0}, {"head": float("nan"), "query": 0, "key": 0}, {"head": "0", "query": 0, "key": 0},
        {"head": 0, "query": 0}, {"head": float("inf"), "query": 0, "key": 0},
    ],
)  # fmt: skip
def test_clicks_are_not_believed(value: Any) -> None:
    assert checked_pick(value, (4, 5, 5)) is None


def test_a_good_click_is_taken() -> None:
    assert checked_pick({"head": 3, "query": 4.0, "key": 0}, (4, 5, 5)) == (3, 4, 0)
