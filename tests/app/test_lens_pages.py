"""Overview, lens and attribution on prompts of any length: windows, cells, sinks, and what a part writes."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from page_words import fine, words
from streamlit.testing.v1 import AppTest
from tiny import tiny_model

import interp
from interp.attribution.promoted import promoted_tokens
from interp.model import HookedTransformer
from interp.plot.lens_cells import lens_columns
from ui import services, state, text
from ui.services import attribute, lenses, scans, stream

Open = Callable[..., AppTest]
LONG = "abcdefgh" * 25
HOSTILE = (
    "<img src=x onerror=alert(1)></script> :red[boo] $\\frac{1}{0}$ [x](javascript:alert(1)) \u202eevil \u200b👩‍👩‍👧"
)


@pytest.fixture(scope="module")
def model() -> HookedTransformer:
    return tiny_model(n_layers=3, n_heads=4, n_ctx=512)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERP_HOME", str(tmp_path / "home"))


# ------------------------------------------------------------------------------------------------------------- lens


def test_a_long_prompt_is_read_around_the_chosen_token(open_page: Open, model: HookedTransformer) -> None:
    page = fine(open_page("lens", run=None, model=model, prompt=LONG, query={"pos": "100"}))
    shown, _ = services.lens(LONG, at=100)
    positions = sorted(set(shown["pos"]))
    assert len(positions) == state.WINDOW
    assert 100 in positions
    assert "200 tokens are many: this page reads 48 of them" in words(page)
    assert f"positions=range({positions[0]}, {positions[-1] + 1})" in words(page)
    whole = interp.logit_lens(model, LONG).to_frame()
    expected = whole.loc[whole["pos"].isin(positions)].reset_index(drop=True)
    for name in ("p_top1", "entropy", "kl", "loss"):
        assert shown[name].to_numpy() == pytest.approx(expected[name].to_numpy(), abs=1e-4), name


@pytest.mark.parametrize(("n", "at"), [(10, 3), (48, 47), (49, 0), (49, 48), (2048, 1000), (2048, 2047)])
def test_the_window_holds_its_token(n: int, at: int) -> None:
    shown = lenses.places(n, at)
    assert at in shown
    assert len(shown) == min(n, state.WINDOW)
    assert shown.start >= 0
    assert shown.stop <= n


def test_a_cell_and_two_tokens_are_what_the_library_says(open_page: Open, model: HookedTransformer) -> None:
    page = fine(open_page("lens", run=None, model=model, prompt="abcab", query={"pos": "2", "layer": "1"}))
    assert "Layer 1 of 2, after token 2" in words(page)
    table = lenses.cell("abcab", 1, 2, k=4)
    found = interp.logit_lens(model, "abcab", k=4)
    row = found.layers.index(1)
    assert table["prob"].to_numpy() == pytest.approx(found.top_probs[row, 2].numpy(), abs=1e-5)
    difference = lenses.difference("abcab", 5, 9)
    followed = interp.logit_lens(model, "abcab", answer=[5, 9])
    expected = (followed.answer_probs[..., 0].log() - followed.answer_probs[..., 1].log()).flatten()
    assert difference["effect"].to_numpy() == pytest.approx(expected.numpy(), abs=1e-4)


def test_a_click_on_a_cell_chooses_layer_and_token(open_page: Open, model: HookedTransformer) -> None:
    page = open_page("lens", run=None, model=model, prompt="abcab", query={"layer": "0", "pos": "1"})
    assert "Layer 0 of 2, after token 1" in words(fine(page))
    page.toggle(key="sideways").set_value(True).run()
    assert "lens_columns(lens.to_frame()" in words(fine(page))
    assert "Layer 0 of 2, after token 1" in words(page)


def test_the_lens_on_its_side_refuses_what_it_cannot_draw(model: HookedTransformer) -> None:
    frame = interp.logit_lens(model, "abcab").to_frame()
    chart = lens_columns(frame, "entropy").to_dict()
    assert len(chart["layer"]) == 3
    with pytest.raises(ValueError, match="too many side by side"):
        lens_columns(interp.logit_lens(model, LONG[:30]).to_frame())
    with pytest.raises(ValueError, match="statistic must be one of"):
        lens_columns(frame, "colour")
    with pytest.raises(ValueError, match="several rows for one layer"):
        lens_columns(interp.logit_lens(model, ["abc", "abd"]).to_frame())


def test_positions_of_the_lens_are_checked(model: HookedTransformer) -> None:
    with pytest.raises(ValueError, match="no text has a token"):
        interp.logit_lens(model, "abc", positions=[7])
    with pytest.raises(ValueError, match="whole numbers from 0"):
        interp.logit_lens(model, "abc", positions=[-1])


# ------------------------------------------------------------------------------------------------------ attribution


@pytest.mark.parametrize(
    ("component", "layer", "head"), [("attn", 1, -1), ("mlp", 2, -1), ("head", 1, 3), ("embed", -1, -1)]
)
def test_what_a_part_writes_is_its_share_of_every_logit(
    model: HookedTransformer, component: str, layer: int, head: int
) -> None:
    table = promoted_tokens(model, "abcab", component, layer, head, k=model.cfg.d_vocab)
    effect = table.drop_duplicates("token_id").set_index("token_id")["effect"]
    by = "head" if component == "head" else "component"
    shares = interp.direct_logit_attribution(model, "abcab", 5, 9, by=by).to_frame()
    mine = shares.loc[(shares["component"] == component) & (shares["layer"] == layer) & (shares["head"] == head)]
    assert effect[5] - effect[9] == pytest.approx(float(mine["mean"].iloc[0]), abs=1e-5)
    with pytest.raises(ValueError, match="does not exist"):
        promoted_tokens(model, "abcab", "attn", 9)


def test_the_attribution_page_has_the_unexplained_bar_and_a_part(open_page: Open, model: HookedTransformer) -> None:
    page = fine(open_page("attribution", run=None, model=model, prompt="abcab", query={"part": "L1 mlp"}))
    table, facts = services.attribution("abcab", 4, 5, 9, "component")
    assert table["part"].iloc[-1] == "unexplained"
    assert table["mean"].sum() == pytest.approx(facts["logit"], abs=1e-6)
    assert "unexplained" in set(attribute.shown_shares(table, 3)["part"])
    assert "promoted_tokens(model, 'abcab', 'mlp', 1, -1, pos=4)" in words(page)
    page.segmented_control(key="by").set_value("head").run()
    fine(page)
    places = attribute.at_places("abcab", 4, 5, 9)
    last = places.loc[(places["pos"] == 4) & (places["component"] == "attn"), "effect"].to_numpy()
    assert last == pytest.approx(table.loc[table["component"] == "attn", "mean"].to_numpy(), abs=1e-5)


# --------------------------------------------------------------------------------------------------------- overview


def test_the_overview_knows_the_model_without_a_run(open_page: Open, model: HookedTransformer) -> None:
    page = fine(open_page("overview", run=None, model=model, prompt="abcab", query={"pos": "2"}))
    said = words(page)
    assert "After b came **c**" in said
    assert model.fingerprint in said
    assert "No position stands out on this prompt" in said
    assert len(stream.hook_points()[0]) == len(model.sites())
    logp = model("abcab")[0].log_softmax(-1)
    drift = stream.drift("abcab", 2)
    _, cache = model.run_with_cache("abcab", sites="resid_post:*")
    assert drift["norm"].iloc[-1] == pytest.approx(float(cache["resid_post:2"][0, 2].norm()), rel=1e-5)
    assert np.isnan(drift["cosine"].iloc[0])
    assert drift["cosine"].iloc[1:].abs().max() <= 1.0 + 1e-6
    rank = int((logp[1] > logp[1, services.token_ids("abcab")[2]]).sum()) + 1
    assert f", rank {rank:,}" in said


def test_a_massive_position_is_reported(open_page: Open) -> None:
    model = tiny_model(n_layers=3, n_heads=4, n_ctx=512)
    with torch.no_grad():
        model.embed.weight[services_id(model, "z")] *= 1000
    open_page("overview", run=None, model=model, prompt="abzabab")
    table = stream.sinks("abzabab")
    assert table["pos"].tolist() == [2]
    assert table["ratio"].iloc[0] > stream.MASSIVE
    assert table["first"].iloc[0] == -1


def services_id(model: HookedTransformer, token: str) -> int:
    return model.tokenize(token).row(0)[-1]


def test_a_scan_waits_for_its_button(
    open_page: Open, model: HookedTransformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, asked = interp.scan_prompt, []

    def scan(*args: object, **options: object) -> object:
        asked.append(options)
        return real(*args, **options)  # pyright: ignore

    monkeypatch.setattr(interp, "scan_prompt", scan, raising=False)
    page = fine(open_page("overview", run=None, model=model, prompt="abcabc"))
    assert not asked
    page.button(key="run_scan").click().run()
    assert len(asked) == 1
    found = scans.scanned("abcabc", 0)
    assert found is not None
    shown = next(table.value for table in fine(page).table if "finding" in table.value)
    assert shown["finding"].tolist() == [text.plain(str(line)) for line in found[0]["finding"].head(12)]


@pytest.mark.parametrize("name", ["overview", "lens", "attribution"])
def test_hostile_prompts_stay_text(open_page: Open, model: HookedTransformer, name: str) -> None:
    page = open_page(name, run=None, model=model, prompt=HOSTILE)
    assert not page.exception
    assert "this should not happen" not in words(page)
