"""The pages of SAEs: list, one latent, search. What they say is what the library says."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hostile import HOSTILE
from page_words import fine, words
from streamlit.testing.v1 import AppTest
from tiny import tiny_model

import interp
from interp.model import HookedTransformer
from interp.plot.latents import logit_histogram
from interp.sae.labels.labelling import features_id
from ui import library
from ui.services import saes

Open = Callable[..., AppTest]
TEXT = "abc abd cab"


@pytest.fixture(scope="module")
def model() -> HookedTransformer:
    return tiny_model(n_layers=3, n_heads=4, n_ctx=512)


@pytest.fixture(scope="module")
def space(model: HookedTransformer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with a store, an SAE with features and hostile labels, one of another model, and a bare one."""
    folder = tmp_path_factory.mktemp("saes")
    texts = [f"{a}{b} cab {b}{a} <b>" for a in "abcdef" for b in "xyz"]
    store = interp.record(model, texts, sites="resid_post:1", dtype="float32", path=folder / "store", progress=False)
    config = interp.TopKConfig(k=4, width=48, batch_size=64, epochs=2)
    sae = interp.train_sae(store, config, site="resid_post:1")
    (folder / "own").mkdir()
    sae.save(folder / "own" / "sae.safetensors")
    features = interp.sae_features(sae, store, model=model, path=folder / "features")
    interp.evaluate_sae(sae, store).save(folder / "own" / "report_of.json")
    names = [HOSTILE[i % len(HOSTILE)] for i in range(6)]
    columns = {"latent": range(6), "label": names, "rule": None, "error": None, "n_shown": 1, "shown_texts": [[0]] * 6}
    interp.SAELabels(pd.DataFrame(columns), {"features": features_id(features)}).save(folder / "labels")
    for name, changes in (("other", {"model": "0" * 32}), ("bare", {})):
        twin = interp.load_sae(folder / "own" / "sae.safetensors")
        twin.card.update(changes)
        with torch.no_grad():
            twin.W_dec.mul_(1.5)
        (folder / name).mkdir()
        twin.save(folder / name / "sae.safetensors")
    return folder


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERP_HOME", str(tmp_path / "home"))


OWN = {"sae": "own/sae.safetensors"}


def test_the_list_has_every_sae_with_the_figures_of_its_report(
    open_page: Open, model: HookedTransformer, space: Path
) -> None:
    page = open_page("saes", run=None, model=model, workspace=space, prompt=TEXT)
    fine(page)
    table = page.dataframe[0].value.set_index("sae")
    assert set(table.index) == {"own/sae", "other/sae", "bare/sae"}
    report = interp.load_sae_report(space / "own" / "report_of.json")
    assert table.loc["own/sae", "fvu"] == pytest.approx(report.fvu)
    assert np.isnan(table.loc["bare/sae", "fvu"])
    assert table.loc["other/sae", "model"] == "another model"
    assert table.loc["own/sae", "model"] == "this one"


def test_without_features_the_page_offers_to_collect_them(
    open_page: Open, model: HookedTransformer, space: Path
) -> None:
    page = open_page(
        "saes", run=None, model=model, workspace=space, prompt=TEXT, query={"saes_sae": "bare/sae.safetensors"}
    )
    fine(page)
    assert "No features yet" in words(page)
    assert f"--store {space.resolve() / 'store'}" in words(page)


def test_an_empty_workspace_says_how_an_sae_comes_about(
    open_page: Open, model: HookedTransformer, tmp_path: Path
) -> None:
    for name in ("saes", "feature", "features"):
        assert "There is no SAE" in words(open_page(name, run=None, model=model, workspace=tmp_path, prompt=TEXT))


@pytest.mark.parametrize("latent", range(3))
def test_a_latent_is_shown_with_its_label(open_page: Open, model: HookedTransformer, space: Path, latent: int) -> None:
    page = fine(
        open_page("feature", run=None, model=model, workspace=space, prompt=TEXT, query=OWN | {"latent": str(latent)})
    )
    row = interp.load_sae_features(space / "features").latent(latent).row
    assert f"{row['density']:.3%}" in [metric.value for metric in page.metric]
    assert "Label: " in words(page)


def test_a_latent_without_features_still_works(open_page: Open, model: HookedTransformer, space: Path) -> None:
    query = {"sae": "bare/sae.safetensors", "latent": "3"}
    page = fine(open_page("feature", run=None, model=model, workspace=space, prompt=TEXT, query=query))
    assert "No features yet" in words(page)
    sae = interp.load_sae(space / "bare" / "sae.safetensors")
    assert f"{float(sae.W_dec[3].norm()):.3g}" in [metric.value for metric in page.metric]


def test_an_sae_of_another_model_is_refused(open_page: Open, model: HookedTransformer, space: Path) -> None:
    for name in ("feature", "features"):
        query = {"sae": "other/sae.safetensors", "latent": "1"}
        page = open_page(name, run=None, model=model, workspace=space, prompt=TEXT, query=query)
        assert not page.exception
        assert "belongs to another model" in words(page)


def test_the_search_by_prompt_is_the_librarys(open_page: Open, model: HookedTransformer, space: Path) -> None:
    query = OWN | {"features_hide": "false"}
    page = fine(open_page("features", run=None, model=model, workspace=space, prompt=TEXT, query=query))
    sae = interp.load_sae(space / "own" / "sae.safetensors")
    right = interp.search_by_prompt(sae, model, TEXT, n=50)
    assert page.dataframe[0].value["latent"].tolist() == right["latent"].tolist()


def test_the_search_by_token_hides_nearly_dead_ones_and_counts_them(
    open_page: Open, model: HookedTransformer, space: Path
) -> None:
    query = OWN | {"features_by": "Token", "features_token": "a", "features_least": "0.02"}
    page = fine(open_page("features", run=None, model=model, workspace=space, prompt=TEXT, query=query))
    features = interp.load_sae_features(space / "features")
    right = interp.search_by_token(features, "a", n=len(features.latents))
    kept = right["density"] >= 0.02
    assert f"{(~kept).sum():,} hits hidden" in words(page)
    assert (page.dataframe[0].value["density"] >= 0.02).all()


def test_the_search_by_label_takes_text_as_text(open_page: Open, model: HookedTransformer, space: Path) -> None:
    query = OWN | {"features_by": "Label", "features_words": "<IMG"}
    page = fine(open_page("features", run=None, model=model, workspace=space, prompt=TEXT, query=query))
    assert page.dataframe[0].value["latent"].tolist() == [0]


def test_a_damaged_sae_is_a_message(open_page: Open, model: HookedTransformer, space: Path, tmp_path: Path) -> None:
    data = (space / "own" / "sae.safetensors").read_bytes()
    (tmp_path / "sae.safetensors").write_bytes(data[:-1000])
    page = open_page("feature", run=None, model=model, workspace=tmp_path, prompt=TEXT)
    assert not page.exception
    assert "There is no SAE" in words(page) or "damaged" in words(page)


def test_the_values_of_a_text_and_the_logits_are_the_librarys(
    open_page: Open, model: HookedTransformer, space: Path
) -> None:
    open_page("feature", run=None, model=model, workspace=space, prompt=TEXT, query=OWN)
    sae = interp.load_sae(space / "own" / "sae.safetensors")
    hits = interp.search_by_prompt(sae, model, TEXT, n=48, per_token=True)
    assert len(library.entries("sae")) == 3
    latent = int(hits["latent"].iloc[0])
    table = saes.on_text(OWN["sae"], latent, TEXT).set_index("pos")["value"]
    own = hits.loc[hits["latent"] == latent].set_index("position")["value"]
    assert table[own.index].tolist() == pytest.approx(own.tolist(), rel=1e-5)
    assert np.isnan(table[0])
    frame, edges, counts = saes.logits(OWN["sae"], latent)
    assert sum(counts) == model.cfg.d_vocab
    logit_histogram(edges, counts)
    row = interp.load_sae_features(space / "features").latent(latent).row
    assert frame["value"].iloc[0] == pytest.approx(row["up_values"][0], rel=1e-4)
    plain, changed = saes.steered(OWN["sae"], latent, TEXT, 50.0, 5)
    assert plain == model.generate(TEXT, 5).text
    with model.intervene(interp.SteerLatent(sae, latent, "add", 50.0)):
        assert changed == model.generate(TEXT, 5).text


def test_figures_of_a_report_beside_two_saes_belong_to_neither(
    open_page: Open, model: HookedTransformer, space: Path, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.safetensors").write_bytes((space / "own" / "sae.safetensors").read_bytes())
    (tmp_path / "report_of.json").write_bytes((space / "own" / "report_of.json").read_bytes())
    page = fine(open_page("saes", run=None, model=model, workspace=tmp_path, prompt=TEXT))
    assert page.dataframe[0].value["fvu"].isna().all()


def test_a_dead_latent_can_still_be_asked_about_a_text(open_page: Open, model: HookedTransformer, space: Path) -> None:
    latents = interp.load_sae_features(space / "features").latents
    dead = int(latents.loc[latents["n_active"] == 0, "latent"].iloc[0])
    page = open_page("feature", run=None, model=model, workspace=space, prompt=TEXT, query=OWN | {"latent": str(dead)})
    assert "dead: it fires on none" in words(fine(page))
    page.button(key="feature_steer").click().run()
    assert "Steered, greedy, 30 tokens" in words(fine(page))
