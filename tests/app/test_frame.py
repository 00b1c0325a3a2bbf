"""What stands around every page: the library, the prompt and its views, forks, pins, the choice of run and model; Compare."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from page_words import words
from streamlit.testing.v1 import AppTest
from tiny import tiny_model

import interp
from interp import artifact
from interp.diff import prompt_diff
from interp.model import HookedTransformer
from ui import library, state
from ui.services import forks

Open = Callable[..., AppTest]
FINGERPRINT = "0123456789abcdef0123456789abcdef"


@pytest.fixture(scope="module")
def model() -> HookedTransformer:
    return tiny_model(n_layers=3, n_heads=4, n_ctx=512)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder of the test's own."""
    monkeypatch.setenv("INTERP_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def press(page: AppTest, label: str) -> AppTest:
    return next(button for button in page.button if button.label == label).click().run()


# ---------------------------------------------------------------------------------------------------------- library


@pytest.fixture
def space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace with one thing of several kinds."""
    root = tmp_path / "space"
    artifact.save_artifact(
        root / "a" / "probe.safetensors", "probe", {"w": torch.ones(2)}, {"provenance": {"fingerprint": FINGERPRINT}}
    )
    artifact.write_json(root / "a" / "scan.json", {"kind": "scan", "card": {"model": {"fingerprint": FINGERPRINT}}})
    artifact.write_json(root / "job" / "report.json", {"kind": "question report"})
    artifact.write_json(root / "job" / "job.json", {"kind": "behaviour report owner"})
    artifact.write_json(root / "job" / "tasks" / "one.json", {"kind": "behaviour piece"})
    artifact.write_json(root / "plain.json", {"no": "kind"})
    (root / "broken.safetensors").write_bytes(b"nonsense")
    (root / "broken.json").write_text("{")
    monkeypatch.setenv("INTERP_WORKSPACE", str(root))
    monkeypatch.delenv("INTERP_STORES", raising=False)
    monkeypatch.delenv("INTERP_RUN", raising=False)
    library.forget()
    return root


def test_the_library_finds_what_files_say_they_are(space: Path) -> None:
    found = {each.key: (each.kind, each.model) for each in library.entries()}
    assert found == {
        "a/probe.safetensors": ("probe", FINGERPRINT),
        "a/scan.json": ("scan", FINGERPRINT),
        "job": ("question report", None),
    }
    assert library.entry("job", "question report").path == space / "job"
    assert [each.title for each in library.entries("probe")] == ["a/probe"]
    assert library.entries("sae") == ()


def test_something_new_is_found_and_something_gone_is_not(space: Path) -> None:
    assert library.entries("scan")
    artifact.write_json(space / "later.json", {"kind": "scan"})
    (space / "a" / "scan.json").unlink()
    library.forget()
    assert [each.key for each in library.entries("scan")] == ["later.json"]
    with pytest.raises(ValueError, match=r"no scan 'a/scan.json' in the workspace \(any more\)"):
        library.entry("a/scan.json", "scan")


@pytest.mark.parametrize("key", ["../outside.json", "/etc/passwd", "a/../a/scan.json", "", "a\x00", "A/SCAN.JSON"])
def test_a_key_is_never_a_path(space: Path, key: str) -> None:
    artifact.write_json(space.parent / "outside.json", {"kind": "scan"})
    with pytest.raises(ValueError, match="in the workspace"):
        library.entry(key)


def test_links_out_of_the_workspace_are_not_followed(space: Path) -> None:
    artifact.write_json(space.parent / "elsewhere" / "x.json", {"kind": "scan"})
    (space / "link").symlink_to(space.parent / "elsewhere")
    (space / "link.json").symlink_to(space.parent / "elsewhere" / "x.json")
    (space / "loop").symlink_to(space)
    library.forget()
    assert [each.key for each in library.entries("scan")] == ["a/scan.json"]


def test_stores_named_at_the_start_are_found_and_their_inner_files_are_not(
    space: Path, model: HookedTransformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = space.parent / "far" / "facts"
    interp.record(model, ["one text"], "resid_post:0", path=far, progress=False)
    interp.record(model, ["one text"], "resid_post:0", path=space / "near", progress=False)
    monkeypatch.setenv("INTERP_STORES", os.pathsep.join([str(far), str(space / "nowhere")]))
    library.forget()
    found = {each.key: each.path for each in library.entries("store")}
    assert found == {"near": space / "near", "@1-facts": far}
    assert all(each.model == model.fingerprint for each in library.entries("store"))


# ------------------------------------------------------------------------------------------------------------- prompt


def test_a_short_prompt_stands_in_the_url_and_a_long_one_as_a_view(
    open_page: Open, model: HookedTransformer, home: Path
) -> None:
    page = open_page("overview", model=model, prompt="short")
    assert page.query_params["prompt"] == ["short"] or page.query_params["prompt"] == "short"
    long = "word " * 320 + "end"
    page.text_area(key="prompt").set_value(long)
    press(page, "Analyse")
    assert "prompt" not in page.query_params
    (name,) = page.query_params["view"] if isinstance(page.query_params["view"], list) else [page.query_params["view"]]
    assert json.loads((home / "views" / f"{name}.json").read_text())["prompt"] == long
    again = open_page("overview", model=model, query={"view": name})
    assert again.text_area(key="prompt").value == long


@pytest.mark.parametrize("name", ["0" * 12, "../../x", "zzzz", ""])
def test_a_view_that_is_not_there_is_said(open_page: Open, name: str) -> None:
    page = open_page("overview", query={"view": name})
    assert not page.exception
    assert "names a saved prompt that is not on this machine" in words(page)
    assert page.text_area(key="prompt").value == "The Eiffel Tower is located in the city of"


@pytest.mark.parametrize(
    "query", [{"pos": "x"}, {"pos": "-1"}, {"layer": "9999999999"}, {"a": "../x"}, {"pos": "٣"}, {"head": "1e3"}]
)
def test_nonsense_in_the_url_is_ignored(open_page: Open, model: HookedTransformer, query: dict[str, str]) -> None:
    page = open_page("lens", model=model, prompt="abc", query=query)
    assert not page.exception
    assert "this should not happen" not in words(page)


# ------------------------------------------------------------------------------------------------------ forks and pins


def test_a_fork_cuts_the_prompt_at_a_token_and_offers_what_comes_next(
    open_page: Open, model: HookedTransformer
) -> None:
    open_page("overview", model=model, prompt="abcdef")
    found = forks.fork("abcdef", 2)
    assert found.before == "abc"
    top = model("abc")[0, -1].softmax(-1).max()
    assert found.following[0][1] == pytest.approx(float(top), rel=1e-5)
    ends = [forks.fork("aé👩b", pos).before for pos in range(4)]
    assert all(end is None or "aé👩b".startswith(end) for end in ends)


def test_pins_stand_in_the_url_and_are_compared(open_page: Open, model: HookedTransformer) -> None:
    page = open_page("compare", model=model, prompt="abcab")
    press(page, "Pin A")
    page.text_area(key="prompt").set_value("abdab")
    press(page, "Analyse")
    press(page, "Pin B")
    assert (page.text_area(key="compare_a").value, page.text_area(key="compare_b").value) == ("abcab", "abdab")
    expected = prompt_diff(model, "abcab", "abdab").card
    assert [metric.value for metric in page.metric] == [f"{expected[n]:.3f}" for n in ("js", "tv", "kl_ab", "kl_ba")]
    query = {name: (v[0] if isinstance(v := page.query_params[name], list) else v) for name in ("a", "b")}
    again = open_page("compare", model=model, query=query)
    assert [metric.value for metric in again.metric] == [metric.value for metric in page.metric]
    page.text_area(key="compare_b").set_value("abcab")
    press(page, "Compare")
    assert page.metric[0].value == "0.000"


def test_compare_says_what_is_missing(open_page: Open, model: HookedTransformer) -> None:
    page = open_page("compare", model=model, prompt="abc", query={"compare_way": "Two models"})
    assert "interp diff MODEL_A MODEL_B" in words(page)
    page = open_page("compare")
    assert "These cannot be compared" in words(page)
    assert not page.exception


def test_compare_shows_two_models(open_page: Open, model: HookedTransformer, tmp_path: Path) -> None:
    other = tiny_model(n_layers=3, n_heads=4, n_ctx=512, seed=1)
    interp.model_diff(model, other, ["one text", "another text"]).save(tmp_path / "space" / "pair.json")
    page = open_page("compare", model=model, workspace=tmp_path / "space", query={"compare_way": "Two models"})
    assert not page.exception
    assert "By layer" in words(page)
    assert len(page.get("arrow_vega_lite_chart")) + len(page.get("vega_lite_chart")) >= 2


# ------------------------------------------------------------------------------------------------------ run and model


def test_another_run_of_the_workspace_can_be_chosen(open_page: Open, run_folder: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        folder = tmp_path / "space" / name
        folder.mkdir(parents=True)
        info = artifact.read_json(run_folder / "demo.json")
        info["findings"] = [{"what": f"found by {name}", "figure": "1", "where": "x"}]
        artifact.write_json(folder / "demo.json", info)
    page = open_page("overview", run=tmp_path / "space" / "one", workspace=tmp_path / "space")
    assert page.table[0].value["what"].tolist() == ["found by one"]
    page.selectbox(key="run").set_value("two").run()
    assert page.table[0].value["what"].tolist() == ["found by two"]


def test_the_model_is_one_of_those_on_this_machine(open_page: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    page = open_page("overview", query={"model": "/etc/passwd"})
    assert not page.exception
    assert "there is no model smollm2-135m here" in words(page).lower()


def test_a_prompt_of_ten_thousand_characters_is_held(open_page: Open, model: HookedTransformer) -> None:
    page = open_page("overview", model=model, prompt="x" * 12_000)
    assert len(page.text_area(key="prompt").value) == state.MAX_CHARS
    assert "10000 tokens, more than the 512" in words(page)
