"""Circuits of the workspace, and the ways of patching that need one prompt."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from page_words import fine, words
from streamlit.testing.v1 import AppTest
from tiny import tiny_model

import interp
from interp.model import HookedTransformer
from ui import library
from ui.panels.circuit_start import NAME, circuit_argv
from ui.services import circuits, patches, traces

Open = Callable[..., AppTest]
CLEAN = ["abcab", "bcabc", "cdacd", "dabda", "efgef", "ghigh", "hijhi", "klmkl", "mnomn", "pqrpq"]


@pytest.fixture(scope="module")
def model() -> HookedTransformer:
    return tiny_model(n_layers=3, n_heads=4, n_ctx=512)


@pytest.fixture(scope="module")
def reports(model: HookedTransformer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with a circuit and its report."""
    told = [(text, text[:-1] + "z") for text in CLEAN]
    ends = [[int(model(side)[0, -1].argmax()) for side in pair] for pair in told]
    kept = [i for i, (right, wrong) in enumerate(ends) if right != wrong][:4]  # an untrained model says what it says
    pairs = interp.prompt_pairs(
        model, *[[told[i][side] for i in kept] for side in (0, 1)], *[[ends[i][side] for i in kept] for side in (0, 1)]
    )
    circuit = interp.find_circuit(model, pairs, share=0.3, n_random=2, n_exact=4)
    report = interp.circuit_report(model, pairs, circuit=circuit, n_random=2)
    folder = tmp_path_factory.mktemp("circuits")
    circuit.save(folder / "small.safetensors")
    report.save(folder / "small_report.json")
    return folder


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERP_HOME", str(tmp_path / "home"))


# --------------------------------------------------------------------------------------------------------- circuits


@pytest.mark.parametrize("key", ["small.safetensors", "small_report.json"])
def test_a_circuit_of_the_workspace_is_shown(
    open_page: Open, model: HookedTransformer, reports: Path, key: str
) -> None:
    page = fine(
        open_page("circuits", run=None, model=model, prompt="abc", workspace=reports, query={"circuit_entry": key})
    )
    entry = library.entry(key, *circuits.KINDS)
    found, circuit = circuits.load(entry), interp.load_circuit(reports / "small.safetensors")
    assert found.facts["faithfulness"] == pytest.approx(circuit.faithfulness)
    assert found.edges["score"].to_numpy() == pytest.approx(circuit.to_frame()["score"].to_numpy())
    assert (found.n_layers, found.n_heads) == (3, 4)
    assert entry.model == model.fingerprint
    assert any(metric.value == f"{circuit.faithfulness:.2f}" for metric in page.metric)
    assert found.summary.split(".")[0] in words(page)


def test_without_a_circuit_the_page_says_how_to_find_one(
    open_page: Open, model: HookedTransformer, tmp_path: Path
) -> None:
    page = fine(open_page("circuits", run=None, model=model, prompt="abc", workspace=tmp_path))
    assert "No circuit yet" in words(page)
    assert "interp circuit tiny --task indirect_objects --n 16" in words(page)
    page.text_input(key="circuit_name_indirect_objects").set_value("../evil").run()
    assert "This is no file name" in words(page)
    assert "../evil.json" not in words(page)


def test_a_damaged_circuit_says_so(open_page: Open, model: HookedTransformer, reports: Path, tmp_path: Path) -> None:
    held = json.loads((reports / "small_report.json").read_text())
    del held["circuit"]["faithfulness"]
    (tmp_path / "broken.json").write_text(json.dumps(held))
    page = open_page("circuits", run=None, model=model, prompt="abc", workspace=tmp_path)
    assert not page.exception
    assert "damaged" in words(page)
    assert "make it again" in words(page)


def test_a_circuit_of_another_model_is_marked(open_page: Open, reports: Path) -> None:
    other = tiny_model(n_layers=2, n_heads=4, n_ctx=512)
    page = fine(open_page("circuits", run=None, model=other, prompt="abc", workspace=reports))
    assert "another model than the one in the sidebar" in words(page)


def test_names_and_arguments_of_a_search() -> None:
    assert circuit_argv("m", "capitals", 8, "x")[:6] == ["circuit", "m", "--task", "capitals", "--n", "8"]
    assert NAME.fullmatch("a.b-c_1")
    assert not NAME.fullmatch("../a")
    assert not NAME.fullmatch("-a")


# --------------------------------------------------------------------------------------------------------- patching


def test_the_trace_is_the_library_s(open_page: Open, model: HookedTransformer) -> None:
    page = open_page("patching", run=None, model=model, prompt="abcab", query={"way": "Causal trace"})
    assert "What is the prompt about?" in words(fine(page))
    page.text_input(key="trace_subject").set_value("bc").run()
    page.button(key="run_trace").click().run()
    fine(page)
    answer = next(iter(interp.logit_lens(model, "abcab").top_ids[-1, -1].tolist()))
    best = page.selectbox(key="trace_answer").options
    assert best
    asked = traces.Trace("abcab", "bc", answer)
    traces.run_trace(asked, lambda done, whole: None)
    held = traces.found(asked)
    assert held is not None
    expected = interp.causal_trace(model, "abcab", "bc", answer, n_noise=4, sites=["resid_post"]).to_frame()
    assert held[0]["effect"].to_numpy() == pytest.approx(expected["effect"].to_numpy(), abs=1e-6)
    page.text_input(key="trace_subject").set_value("zzz").run()
    page.button(key="run_trace").click().run()
    assert "The prompt cannot be traced" in words(page)


def test_the_knockout_is_the_library_s(open_page: Open, model: HookedTransformer) -> None:
    page = open_page("patching", run=None, model=model, prompt="abcab", query={"way": "Attention knockout"})
    page.button(key="run_cut").click().run()
    fine(page)
    asked = traces.Cuts("abcab", 5, 9, window=2)
    traces.run_cuts(asked, lambda done, whole: None)
    held = traces.found(asked)
    assert held is not None
    expected = interp.knockout_sweep(model, "abcab", 5, 9, window=2).to_frame()
    assert held[0]["effect"].to_numpy() == pytest.approx(expected["effect"].to_numpy(), abs=1e-6)
    with pytest.raises(ValueError, match="a page takes 2 to 64"):
        traces.run_cuts(traces.Cuts("ab" * 50, 5), lambda done, whole: None)


@pytest.mark.parametrize(
    ("site", "by", "mode"), [("resid_pre", "pos", "denoise"), ("z", "head", "noise"), ("v", "head", "denoise")]
)
def test_one_patch_is_that_of_the_sweep(
    open_page: Open, model: HookedTransformer, site: str, by: str, mode: str
) -> None:
    open_page("overview", run=None, model=model, prompt="abc")
    asked = patches.Sweep(patches.OWN, "abcab", "adcab", "c", "d", n=1, site=site, by=by, mode=mode)
    table = patches.one_patch(asked, 1, 1)
    found = interp.patch_sweep(
        model,
        clean="abcab",
        corrupted="adcab",
        answer="c",
        against="d",
        site=site,
        by=by,
        mode=mode,
        metric="log_probability",
    )
    row = [(layer, place) for layer, place in zip(found.places["layer"], found.places[by])].index((1, 1))
    assert table["token"].iloc[0] == "c"
    assert table["p_b"].iloc[0] == pytest.approx(float(found.raw[row].exp().mean()), abs=1e-6)
    base = found.corrupted if mode == "denoise" else found.clean
    assert table["p_a"].iloc[0] == pytest.approx(float(base.exp().mean()), abs=1e-6)
    with pytest.raises(ValueError, match="click a cell"):
        patches.one_patch(asked, 9, 1)


def test_the_sweep_shows_its_strongest_patch_and_the_chosen_one(open_page: Open, model: HookedTransformer) -> None:
    query = {"pair_clean": "abcab", "pair_corrupted": "adcab", "pair_answer": "c", "pair_against": "d"}
    page = open_page("patching", run=None, model=model, prompt="abc", query=query)
    page.button(key="run_sweep").click().run()
    assert "One patch" in words(fine(page))
    page = open_page("patching", run=None, model=model, prompt="abcab", query=query | {"layer": "2", "pos": "1"})
    page.button(key="run_sweep").click().run()
    assert any(metric.value == "layer 2, token 1" for metric in fine(page).metric)
