"""The page of steering: what it writes is what the library writes."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import torch
from hostile import HOSTILE
from page_words import words
from streamlit.testing.v1 import AppTest
from tiny import tiny_model

import interp
from interp import artifact
from interp.model import HookedTransformer
from ui.services import steering

Open = Callable[..., AppTest]
PART = {"live": "Live", "dose": "Dose and damage", "map": "Layer and strength", "cosines": "Cosines"}
"""Parts of the page as they stand in the URL."""
PROMPT = "abc abd cab"


def charts(page: AppTest) -> int:
    return len(page.get("vega_lite_chart"))


@pytest.fixture(scope="module")
def model() -> HookedTransformer:
    return tiny_model(n_layers=3, n_heads=4, n_ctx=512)


def vector(model: HookedTransformer, seed: int, fingerprint: str) -> interp.SteeringVector:
    direction = torch.nn.functional.normalize(
        torch.randn(model.cfg.d_model, generator=torch.Generator().manual_seed(seed)), dim=0
    )
    return interp.SteeringVector(direction, "blocks.1.hook_resid_post", 8.0, card={"fingerprint": fingerprint})


@pytest.fixture(scope="module")
def space(model: HookedTransformer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("steering")
    for seed in (1, 2):
        vector(model, seed, model.fingerprint).save(folder / f"v{seed}.safetensors")
    vector(model, 3, "0" * 32).save(folder / "other.safetensors")
    rows = [
        {"site": f"resid_post:{layer}", "layer": layer, "strength": s, "effect": s * layer, "low": 0.0, "high": 1.0,
         "wrong_way": 0.1, "n": 8, "loss_rise": s / 4, "kl_mean": s}
        for layer in (0, 1, 2) for s in (0.1, 0.2)
    ]  # fmt: skip
    vectors = interp.SteeringVectors((vector(model, 1, model.fingerprint),))
    interp.StrengthMap(pd.DataFrame(rows), vectors, {"fingerprint": model.fingerprint}).save(folder / "map.json")
    return folder


def test_both_continuations_are_those_of_the_library(open_page: Open, space: Path, model: HookedTransformer) -> None:
    query = {"steering_vector": "v1", "steering_strength": "0.3", "steering_new": "8"}
    page = open_page("steering", workspace=space, model=model, prompt=PROMPT, query=query)
    assert not page.exception
    assert "Default" not in [part.value for part in page.subheader]  # nothing is written before it is asked for
    page.button(key="steering_go").click().run()
    assert not page.exception
    plain = model.generate(PROMPT, 8)
    with model.intervene(interp.Steer(interp.load_steering_vector(space / "v1.safetensors"), 0.3)):
        changed = model.generate(PROMPT, 8)
    found = steering.written(PROMPT, steering.Push("v1.safetensors"), 0.3, n=8)
    assert found.texts == (plain.text, changed.text)
    assert list(found.steered["logprob"]) == pytest.approx(changed.rows[0].logprobs, abs=1e-5)
    first = next((i for i, (a, b) in enumerate(zip(plain.tokens, changed.tokens)) if a != b), None)
    assert found.first == first
    assert first is not None and f"They part at new token {first + 1}" in words(page)  # noqa: PT018
    ids = [*model.tokenize(PROMPT).row(0)]
    with torch.inference_mode():
        before = model(ids)[0, -1].double().log_softmax(-1)
        with model.intervene(interp.Steer(interp.load_steering_vector(space / "v1.safetensors"), 0.3)):
            after = model(ids)[0, -1].double().log_softmax(-1)
    assert found.default["kl"][0] == pytest.approx(float((before.exp() * (before - after)).sum()), abs=1e-4)
    assert found.default["kl"].notna().sum() == first + 1
    page.slider(key="steering_strength").set_value(0.0).run()
    page.button(key="steering_go").click().run()
    assert "Both say the same" in words(page)


@pytest.mark.parametrize("where", ["prompt", "generated"])
def test_places_and_draws_are_the_librarys(open_page: Open, space: Path, model: HookedTransformer, where: str) -> None:
    open_page("steering", workspace=space, model=model, prompt=PROMPT)
    found = steering.written(PROMPT, steering.Push("v2.safetensors"), -0.3, where=where, n=8, temperature=0.7, seed=5)
    with model.intervene(interp.Steer(interp.load_steering_vector(space / "v2.safetensors"), -0.3, where=where)):
        assert found.texts[1] == model.generate(PROMPT, 8, temperature=0.7, seed=5).text
    assert found.note == ""
    with pytest.raises(ValueError, match="no place"):
        steering.written(PROMPT, steering.Push("v2.safetensors"), 0.1, where="<b>")


def test_a_latent_steers_as_its_direction(open_page: Open, tmp_path: Path, model: HookedTransformer) -> None:
    store = interp.record(
        model, [f"{a}{b} cab" for a in "abcdef" for b in "xyz"], sites="resid_post:1", dtype="float32",
        path=tmp_path / "store", progress=False,
    )  # fmt: skip
    config = interp.TopKConfig(k=4, width=32, batch_size=64, epochs=1)
    sae = interp.train_sae(store, config, site="resid_post:1")
    sae.save(tmp_path / "sae.safetensors")
    query = {"sae": "sae.safetensors", "latent": "3", "steering_new": "6", "steering_part": PART["live"]}
    page = open_page("steering", workspace=tmp_path, model=model, prompt=PROMPT, query=query)
    page.button(key="steering_go").click().run()
    assert not page.exception
    with model.intervene(interp.Steer(interp.latent_direction(interp.load_sae(tmp_path / "sae.safetensors"), 3), 0.1)):
        assert model.generate(PROMPT, 6).text in [part.value for part in page.text]


def test_a_vector_of_another_model_is_refused(open_page: Open, space: Path, model: HookedTransformer) -> None:
    page = open_page("steering", workspace=space, model=model, query={"steering_vector": "other (another model)"})
    page.button(key="steering_go").click().run()
    assert "another model" in words(page)


def test_the_map_frames_the_best_cell_within_the_bound(open_page: Open, space: Path, model: HookedTransformer) -> None:
    page = open_page("steering", workspace=space, model=model, query={"steering_part": PART["map"]})
    assert charts(page) == 1
    best = interp.load_strength_map(space / "map.json").best(0.06)
    assert f"best within the bound: layer {best['layer']}, strength {best['strength']:+g}" in words(page)
    page.slider(key="steering_bound").set_value(0.0).run()
    assert "no cell keeps the rise of loss" in words(page).lower()


def test_cosines_are_those_of_the_library_and_others_are_named(
    open_page: Open, space: Path, model: HookedTransformer
) -> None:
    page = open_page("steering", workspace=space, model=model, query={"steering_part": PART["cosines"]})
    wanted = vector(model, 1, "x").cosine(vector(model, 2, "x"))
    assert page.dataframe[-1].value["cosine"][0] == pytest.approx(wanted, abs=1e-6)
    assert "another model: other" in words(page)


def test_with_nothing_there_it_says_what_to_make(open_page: Open, tmp_path: Path, model: HookedTransformer) -> None:
    said = {"live": "Nothing to steer with", "map": "No map yet", "cosines": "Fewer than two vectors"}
    for part, title in said.items():
        page = open_page("steering", run=None, workspace=tmp_path, model=model, query={"steering_part": PART[part]})
        assert not page.exception
        assert title in words(page)


def test_damaged_files_are_said(open_page: Open, tmp_path: Path, space: Path, model: HookedTransformer) -> None:
    held = artifact.read_json(space / "map.json")
    del held["vectors"]
    artifact.write_json(tmp_path / "map.json", held)
    (tmp_path / "report.json").write_text('{"kind": "steering report", "format": 1}')
    for query in ({"steering_part": PART["map"]}, {"steering_part": PART["dose"], "steering_result": tmp_path.name}):
        page = open_page("steering", workspace=tmp_path, model=model, query=query)
        assert not page.exception
        assert "cannot be shown" in words(page)


def test_a_hostile_prompt_stays_text(open_page: Open, space: Path, model: HookedTransformer) -> None:
    page = open_page("steering", workspace=space, model=model, prompt=HOSTILE[0] + "abc", query={"steering_new": "4"})
    page.button(key="steering_go").click().run()
    assert not page.exception
    assert "this should not happen" not in words(page)
