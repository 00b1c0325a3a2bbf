"""Every page without a browser: on a run, on a typed prompt with a live model, with nothing, and under attack."""

import csv
import dataclasses
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from page_words import words
from streamlit.testing.v1 import AppTest
from tiny import tiny_model

import interp
from interp import artifact
from interp.model import HookedTransformer
from interp.widgets.page import source
from ui import services

PAGES = {
    "overview": "Overview",
    "lens": "Logit lens",
    "heads": "Heads",
    "attribution": "Attribution",
    "patching": "Patching",
    "probes": "Probes",
    "saes": "Sparse autoencoders",
    "steering": "Steering",
    "calibration": "Uncertainty",
}
PROMPT_PAGES = {"overview": 3, "lens": 5, "heads": 1, "attribution": 3}
"""Pages on a typed prompt, and the charts that each has at first."""

Open = Callable[..., AppTest]


@pytest.fixture(scope="module")
def model() -> HookedTransformer:
    return tiny_model(n_layers=3, n_heads=4, n_ctx=512)


def charts(page: AppTest) -> int:
    return len(page.get("arrow_vega_lite_chart")) + len(page.get("vega_lite_chart"))


# ------------------------------------------------------------------------------------------------------- on a run


@pytest.mark.parametrize(("name", "title"), PAGES.items())
def test_a_page_shows_the_run_without_a_model(open_page: Open, name: str, title: str) -> None:
    page = open_page(name)
    assert not page.exception
    assert page.title[0].value == title
    assert "cannot be shown" not in words(page) or name == "heads"  # a head's attention needs the model
    assert "cannot be analysed" not in words(page)


def test_overview_shows_findings_and_says_what_it_cannot_do(open_page: Open) -> None:
    page = open_page("overview")
    found = page.table[0].value
    assert list(found["figure"])[1].replace("\\", "") == "L18H6, 0.909 (n = 512)"
    assert "The model cannot be asked" in words(page).replace("\\", "")
    assert "There is no model smollm2-135m here." in words(page)


def test_overview_lists_the_stores(open_page: Open, model: HookedTransformer, run_folder: Path, tmp_path: Path) -> None:
    run = shutil.copytree(run_folder, tmp_path / "run")
    interp.record(model, ["one text", "another"], "resid_post:0-1", path=run / "stores" / "facts", progress=False)
    page = open_page("overview", run=run)
    assert not page.exception
    assert "Stores of the run" in words(page)
    assert list(services.stores().iloc[0])[:5] == ["facts", 2, 15, 2, "bfloat16"]
    next((run / "stores" / "facts").glob("store.json")).write_text("{")
    assert "A store cannot be read" in words(open_page("overview", run=run))


def test_lens_says_where_the_answer_settles(open_page: Open) -> None:
    page = open_page("lens")
    assert [metric.value for metric in page.metric][::2] == ["·Paris", "layer 22 of 29"]
    assert charts(page) == 2
    assert "11 of 11 tokens" in words(page)  # the run scores the answer too; it is no part of the prompt


def test_heads_ranks_the_known_heads(open_page: Open) -> None:
    page = open_page("heads")
    table = page.dataframe[0].value
    assert list(table["head"])[:3] == ["L18H6", "L17H3", "L17H4"]
    assert list(table["rank"])[2] == "3 of 270"
    page.slider(key="top").set_value(3).run()
    assert len(page.dataframe[0].value) == 3


def test_probes_quotes_the_selected_figure_beside_the_wording(open_page: Open) -> None:
    page = open_page("probes")
    assert [metric.value for metric in page.metric] == ["0.938", "0.910", "0.471"]
    assert "n = 1,496 in 748 groups" in words(page)
    page.selectbox(key="dataset").set_value("elements").run()
    assert page.metric[0].value == "0.893"
    assert "n = 1,180" in words(page)


# ------------------------------------------------------------------------------------------------ on a typed prompt


@pytest.mark.parametrize("name", PROMPT_PAGES)
def test_a_typed_prompt_goes_through_the_model(open_page: Open, model: HookedTransformer, name: str) -> None:
    page = open_page(name, model=model, prompt="A <b>new</b> prompt", query={"layer": "1", "head": "2"})
    assert not page.exception
    assert not re.search("cannot be|this should not happen", words(page)), words(page)
    assert charts(page) == PROMPT_PAGES[name]
    assert page.query_params["prompt"] == "A <b>new</b> prompt"


def test_the_form_and_the_examples_set_the_prompt(open_page: Open, model: HookedTransformer) -> None:
    page = open_page("lens", model=model)
    page.text_area(key="prompt").set_value("Two words")
    next(b for b in page.button if b.label == "Analyse").click().run()
    assert "9 of 9 tokens" in words(page)
    page.button(key="example_Induction").click().run()
    assert page.text_area(key="prompt").value.startswith("Mr and Mrs Dursley")
    assert not page.exception


def test_a_prompt_that_ends_in_a_space_is_warned_about_and_trimmed(open_page: Open, model: HookedTransformer) -> None:
    page = open_page("lens", model=model, prompt="Two ")
    assert "ends in a space" in words(page)
    page.button(key="trim").click().run()
    assert page.text_area(key="prompt").value == "Two"
    assert "ends in a space" not in words(page)


def test_pages_give_what_the_library_gives(open_page: Open, model: HookedTransformer) -> None:
    page = open_page("lens", model=model, prompt="abc")
    frame = interp.logit_lens(model, "abc").to_frame()
    last = frame[(frame["pos"] == 2) & (frame["layer"] == 2)].iloc[0]
    assert page.metric[1].value == f"{last['p_top1']:.3f}"
    settle = last["settle_layer"]
    assert page.metric[2].value == ("the embedding" if settle < 0 else f"layer {settle} of 2")


def test_services_give_what_the_model_gives(open_page: Open, model: HookedTransformer) -> None:
    open_page("overview", model=model)
    found = services.next_tokens("abcd", 2, k=5)
    expected = model("abcd")[0, 2].softmax(-1).topk(5)
    assert found["prob"].to_numpy() == pytest.approx(expected.values.numpy(), abs=1e-6)
    assert list(found["token"]) == [model.tokenizer.views([i])[0].display for i in expected.indices.tolist()]
    assert list(found["rank"]) == [1, 2, 3, 4, 5]
    _, cache = model.run_with_cache("abcd", sites="pattern:1")
    assert services.attention("abcd", 1) == pytest.approx(cache["pattern:1"][0].numpy(), abs=1e-6)


def test_without_the_sink_rows_sum_to_one_again() -> None:
    weights = np.array([[1.0, 0, 0], [1.0, 0, 0], [0.5, 0.1, 0.4]])
    assert services.without_sink(weights) == pytest.approx(np.array([[0.0, 0.0], [0.2, 0.8]]))


def test_an_entropy_that_the_run_lacks_is_computed(
    open_page: Open, model: HookedTransformer, tmp_path: Path, run_folder: Path
) -> None:
    page = open_page("heads", model=model, query={"metric": "Attention entropy"})
    assert not page.exception
    assert "Most focused heads" in words(page)
    assert "computed live" in words(page)
    assert "12 heads" in words(page)


def test_another_model_gets_no_answers_of_the_run(
    open_page: Open, model: HookedTransformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = open_page("heads", model=model)
    assert "270 heads" in words(page)
    assert "other weights than the one of the run" in words(page.run())
    monkeypatch.setenv("INTERP_MODEL", "another")
    assert "12 heads" in words(page.run())
    assert "other weights" not in words(page.run())


# ------------------------------------------------------------------------------------------------------------- URL


def test_the_url_restores_position_head_and_settings(open_page: Open, model: HookedTransformer) -> None:
    page = open_page("heads", model=model, query={"pos": "3", "layer": "17", "head": "4", "metric": "Previous token"})
    assert page.session_state["metric"] == "previous_token"
    assert page.query_params["pos"] == "3"
    assert page.query_params["layer"] == "17"
    page = open_page("head", model=model, query={"layer": "17", "head": "4"})
    assert page.title[0].value == "Layer 17, head 4"


@pytest.mark.parametrize("value", ["-1", "9" * 30, "1e3", "٣", "<script>", "", "nan"])
@pytest.mark.parametrize("name", ["lens", "heads"])
def test_nonsense_in_the_url_is_ignored(open_page: Open, name: str, value: str) -> None:
    page = open_page(
        name, query=dict.fromkeys(("pos", "layer", "head", "columns", "top", "seed", "metric", "pins"), value)
    )
    assert not page.exception
    assert "this should not happen" not in words(page)


def test_a_new_prompt_forgets_the_position(open_page: Open, model: HookedTransformer) -> None:
    page = open_page("lens", model=model, query={"pos": "2"})
    assert page.session_state["_pos"] == "2"
    page.text_area(key="prompt").set_value("Another one")
    next(b for b in page.button if b.label == "Analyse").click().run()
    assert page.session_state["_pos"] is None
    assert "pos" not in page.query_params


# -------------------------------------------------------------------------------------------------- limits and errors


@pytest.mark.parametrize("name", PROMPT_PAGES)
def test_a_prompt_that_is_too_long_or_empty_is_refused_with_the_limit(
    open_page: Open, model: HookedTransformer, name: str
) -> None:
    assert "600 tokens, more than the 512" in words(open_page(name, model=model, prompt="x" * 600))
    page = open_page(name, model=model)
    page.text_area(key="prompt").set_value("")
    next(b for b in page.button if b.label == "Analyse").click().run()
    assert "The prompt is empty" in words(page)
    assert not page.exception


@pytest.mark.parametrize("name", PAGES)
def test_without_a_run_each_page_says_how_to_make_one(open_page: Open, model: HookedTransformer, name: str) -> None:
    page = open_page(name, run=None)
    assert not page.exception
    assert "interp demo" in words(page)
    assert "this should not happen" not in words(page)


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("damage", ["missing", "garbage", "empty"])
def test_a_damaged_run_is_named_and_the_page_stands(
    open_page: Open, run_folder: Path, tmp_path: Path, name: str, damage: str
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    for file in run_folder.iterdir():
        if file.name == "demo.json":
            (folder / file.name).write_bytes(file.read_bytes())
        elif damage != "missing":
            (folder / file.name).write_bytes(b"\x00garbage" if damage == "garbage" else b"")
    page = open_page(name, run=folder)
    assert not page.exception
    assert "this should not happen" not in words(page)
    assert page.title[0].value == PAGES[name]


def test_a_run_that_is_no_run_is_named(open_page: Open, tmp_path: Path) -> None:
    (tmp_path / "demo.json").write_text("[]")
    for folder in (tmp_path / "nowhere", tmp_path):
        page = open_page("overview", run=folder)
        assert not page.exception
        assert "make the run" in words(page)


@pytest.mark.parametrize("bad", ["/etc/passwd", "../../x", "a/../b", "http://x/y", "-rf", "a/b/c", ""])
def test_a_run_cannot_name_a_path_as_its_model(
    open_page: Open, run_folder: Path, tmp_path: Path, bad: str, model: HookedTransformer
) -> None:
    info = artifact.read_json(run_folder / "demo.json")
    info["model"]["loads_as"] = info["model"]["name"] = bad
    artifact.write_json(tmp_path / "demo.json", info)
    page = open_page("lens", run=tmp_path, model=model)
    assert "which is no model name" in words(page)
    assert charts(page) == 0


def test_a_run_cannot_read_outside_its_folder(open_page: Open, run_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "demo.json").write_bytes((run_folder / "demo.json").read_bytes())
    (folder / "sae.json").symlink_to(run_folder / "sae.json")
    assert "lies outside the run's folder" in words(open_page("saes", run=folder))


# --------------------------------------------------------------------------------------------------------- steering


def test_steering_of_several_measures_shows_one_at_a_time_and_the_damage(
    open_page: Open, run_folder: Path, tmp_path: Path
) -> None:
    old = artifact.read_json(run_folder / "steering.json")
    effects = [row | {"measure": name, "unit": "nats"} for name in ("preference", "probe") for row in old["effects"]]
    told = {
        "direction": "instruction",
        "prompt": "My week at work has been",
        "strength": 0.0,
        "text": " told to be kind",
    }
    found = old | {
        "effects": effects,
        "damage": [{"direction": "vector", "strength": s, "loss_rise": abs(s)} for s in (-0.1, 0.0, 0.1)],
        "values": [],
        "generations": [*[row | {"direction": "vector"} for row in old["generations"]], told],
    }
    artifact.write_json(tmp_path / "steering.json", found)
    (tmp_path / "demo.json").write_bytes((run_folder / "demo.json").read_bytes())
    page = open_page("steering", run=tmp_path, query={"steering_part": "Dose and damage"})
    assert not page.exception
    assert page.selectbox(key="measure").options == ["preference", "probe"]
    assert charts(page) == 2
    told_page = open_page("steering", run=tmp_path, query={"steering_part": "Side by side"})
    assert "Instructed" in words(told_page)
    assert "told to be kind" in words(told_page)
    assert charts(open_page("steering")) == 1  # a run of before: one measure, and no damage


# ------------------------------------------------------------------------------------------------------------ probe


def save_probe(folder: Path, model: HookedTransformer, fingerprint: str | None = None) -> None:
    site = "blocks.1.hook_resid_post"
    X = torch.randn(20, model.cfg.d_model, generator=torch.Generator().manual_seed(0))
    probe = interp.fit_probe(X, [0, 1] * 10, C=1.0, site=site)
    if fingerprint is not None:
        probe.card["provenance"]["fingerprint"] = fingerprint
    probe.save(folder / "probe.safetensors")


def score(page: AppTest, text: str) -> AppTest:
    page.text_area(key="statements").set_value(text)
    return next(b for b in page.button if b.label == "Score").click().run()


@pytest.fixture
def probe_run(tmp_path: Path, run_folder: Path) -> Path:
    for name in ("demo.json", "probes.json", "probes.parquet", "tokens.parquet", "lens.parquet"):
        (tmp_path / name).write_bytes((run_folder / name).read_bytes())
    return tmp_path


def test_the_saved_probe_scores_statements(open_page: Open, model: HookedTransformer, probe_run: Path) -> None:
    save_probe(probe_run, model)
    page = score(open_page("probes", run=probe_run, workspace=probe_run, model=model), "One is odd.\n\n Two is odd. \n")
    table = page.dataframe[-1].value
    assert list(table["statement"]) == ["One is odd.", "Two is odd."]
    probe = interp.load_probe(probe_run / "probe.safetensors")
    _, cache = model.run_with_cache("Two is odd.", sites=probe.site)
    assert table["probability"][1] == pytest.approx(float(probe(cache[probe.site][0, -1])), abs=1e-6)


def test_the_probe_of_another_model_is_refused(open_page: Open, model: HookedTransformer, probe_run: Path) -> None:
    save_probe(probe_run, model, fingerprint="another")
    assert "fitted on another model" in words(
        score(open_page("probes", run=probe_run, workspace=probe_run, model=model), "One is odd.")
    )


def test_statements_have_limits(open_page: Open, model: HookedTransformer, probe_run: Path) -> None:
    assert (
        "the run has no probe.safetensors"
        in words(score(open_page("probes", run=probe_run, workspace=probe_run, model=model), "x")).lower()
    )
    save_probe(probe_run, model)
    page = open_page("probes", run=probe_run, workspace=probe_run, model=model)
    assert "21 statements are more than the 20" in words(score(page, "x\n" * 21))
    assert "Write one or more" in words(score(page, " \n"))


# ----------------------------------------------------------------------------------------------------------- attack


@pytest.mark.parametrize("name", PAGES)
def test_hostile_runs_stay_text(open_page: Open, hostile_run: Path, name: str) -> None:
    page = open_page(name, run=hostile_run)
    assert not page.exception
    assert "this should not happen" not in words(page)
    for element in page.markdown:
        assert not element.allow_html
    said = "\n".join(str(part.value) for part in [*page.markdown, *page.caption, *page.subheader, *page.title])
    for table in page.table:  # its cells are Markdown too
        said += table.value.to_csv(quoting=csv.QUOTE_NONE, escapechar="~")
    assert not re.search(r"(?<!\\)<(img|script)", said)
    assert not re.search(r"(?<!\\):red\[", said)
    assert not re.search(r"(?<!\\)\[x\]\(javascript", said)
    shown = words(page) + "".join(table.value.to_csv() for table in [*page.dataframe, *page.table])
    shown = shown.replace(page.text_area(key="prompt").value, "")  # what the user typed stays as it is
    assert not set(shown) & set("\u202e\u200b\x00")


def test_hostile_prompts_stay_text(open_page: Open, model: HookedTransformer) -> None:
    for prompt in (
        "</script><img src=x onerror=alert(1)>",
        "$x$ :red[boo] **b**",
        "\u202eabc\u200b",
        "👩‍👩‍👧 مرحبا",
        "a\x00b",
    ):
        for name in PROMPT_PAGES:
            page = open_page(name, model=model, prompt=prompt)
            assert not page.exception
            assert "this should not happen" not in words(page)


def test_nothing_in_the_app_makes_html_from_data() -> None:
    app = Path(__file__).parents[2] / "app"
    for file in app.rglob("*.py"):
        assert not re.search(r"unsafe_allow_html|st\.html|components\.v1|unsafe_allow_javascript", file.read_text()), (
            file
        )
    assert "innerHTML" not in source("strip.js")
    assert "http" not in source("strip.js")


def test_main_is_navigation_only() -> None:
    assert len((Path(__file__).parents[2] / "app" / "main.py").read_text().splitlines()) < 60


def test_only_services_calls_the_library() -> None:
    """Pages draw; what computes stands in one package."""
    app = Path(__file__).parents[2] / "app"
    for file in [*app.glob("views/*.py"), *app.glob("ui/*.py")]:
        outside = re.sub(r'""".*?"""|f?"(?:[^"\\]|\\.)*"', "", file.read_text(), flags=re.DOTALL)
        assert not re.search(r"^\s*import interp|\binterp\.\w+\(", outside, flags=re.MULTILINE), file


def test_frames_of_the_fixture_are_those_that_the_library_makes(model: HookedTransformer, run_folder: Path) -> None:
    """The made-up run has the columns of real results, so that pages tried on it work on a real run."""
    made = {
        "lens": interp.logit_lens(model, "abc").to_frame(),
        "heads": interp.head_scores(model, period=8).to_frame(),
        "tokens": interp.token_uncertainty(model, "abc").to_frame(),
    }
    for name, frame in made.items():
        assert set(pd.read_parquet(run_folder / f"{name}.parquet")) <= set(frame), name
    fields = {field.name for field in dataclasses.fields(interp.SAEReport)}
    assert set(artifact.read_json(run_folder / "sae.json")) - {"pca"} <= fields
