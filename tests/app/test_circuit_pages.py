"""Lenses, heads, attribution and patching on the pages: what they show is what the library gives, and nothing else is read."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from page_words import fine, words
from streamlit.testing.v1 import AppTest
from tiny import tiny_model

import interp
from interp import artifact
from interp.heads.report import HeadReport
from interp.model import HookedTransformer
from ui import controls, services
from ui.services import kept

Open = Callable[..., AppTest]
ABC = {"prompt": "abcab"}


@pytest.fixture(scope="module")
def model() -> HookedTransformer:
    return tiny_model(n_layers=3, n_heads=4, n_ctx=512)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder of the test's own."""
    monkeypatch.setenv("INTERP_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def tuned(model: HookedTransformer) -> interp.TunedLens:
    """Translators that change nothing."""
    sites = ("hook_embed", "blocks.0.hook_resid_post", "blocks.1.hook_resid_post")
    d, card = model.cfg.d_model, {"lens": "tuned", "n_layers": 3, "end_kind": "resid_post"}
    made = artifact.provenance(model=model.cfg.name, fingerprint=model.fingerprint)
    return interp.TunedLens(sites, torch.zeros(3, d, d), torch.zeros(3, d), pd.DataFrame(), card | {"provenance": made})


# ------------------------------------------------------------------------------------------------------------- lens


def test_the_lens_page_follows_tokens_and_reads_middles(open_page: Open, model: HookedTransformer) -> None:
    page = fine(open_page("lens", run=None, model=model, prompt="abcab", query={"place": "After each attention"}))
    frame, source = services.lens("abcab", middles=True)
    assert source == "live"
    assert set(frame["site"]) == {f"blocks.{i}.hook_resid_mid" for i in range(3)} or set(frame["layer"]) == {0, 1, 2}
    answers = tuple(services.candidates("abcab", 4, 2).values())
    followed = services.followed("abcab", answers)
    expected = interp.logit_lens(model, "abcab", answer=list(answers)).followed()
    assert followed["probability"].to_numpy() == pytest.approx(expected["probability"].to_numpy(), abs=1e-6)
    page.multiselect(key="answers_4").set_value([]).run()
    assert "No token is chosen" in words(page)


def test_cross_entropy_is_offered_where_the_next_token_is_known(open_page: Open, model: HookedTransformer) -> None:
    page = fine(open_page("lens", run=None, model=model, prompt="abcab", query={"statistic": "Cross-entropy"}))
    assert page.session_state["statistic"] == "loss"
    page = open_page("lens", run=None, model=model, prompt="abcab", query={"follow": "Cross-entropy"})
    assert "is not known: choose an earlier one" in words(page)  # after the last token
    fine(open_page("lens", run=None, model=model, prompt="abcab", query={"follow": "Cross-entropy", "pos": "1"}))


def test_lenses_are_offered_from_the_home_folder_and_from_nowhere_else(
    open_page: Open, model: HookedTransformer, home: Path, tmp_path: Path
) -> None:
    outside = tuned(model).save(tmp_path / "outside.safetensors")
    (home / "lenses").mkdir(parents=True)
    tuned(model).save(home / "lenses" / "mine.safetensors")
    (home / "lenses" / "link.safetensors").symlink_to(outside)
    (home / "lenses" / "broken.safetensors").write_bytes(b"garbage")
    artifact.save_artifact(home / "lenses" / "probe.safetensors", "probe", {"w": torch.zeros(2)}, {})
    page = fine(open_page("lens", run=None, model=model, prompt="abcab"))
    assert services.lens_files() == {"logit": "Logit lens", "home:mine.safetensors": "mine (tuned, home)"}
    page.selectbox(key="lens_file").set_value("home:mine.safetensors").run()
    fine(page)
    assert "interp.load_tuned_lens(interp.artifact.home() / 'lenses' / 'mine.safetensors')" in words(page)
    plain, _ = services.lens("abcab")
    own, _ = services.lens("abcab", file="home:mine.safetensors")
    assert own["kl"].to_numpy() == pytest.approx(plain["kl"].to_numpy(), abs=1e-5)
    for name in ("home:../outside.safetensors", f"home:{outside}", "home:link.safetensors"):
        with pytest.raises(ValueError, match="there is no lens"):
            services.lens("abcab", file=name)


def test_the_comparison_of_lenses_lies_in_the_run(
    open_page: Open, model: HookedTransformer, run_folder: Path, tmp_path: Path
) -> None:
    for file in run_folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    texts = ["one text of some length, to be read by lenses", "another text of about that length, and then more"]
    interp.compare_lenses(model, texts, skip=4).save(tmp_path / "lenses.json")
    page = open_page("lens", run=tmp_path, model=model)
    assert "Lenses on held-out text" in words(page)
    assert "of 2 texts, from the run" in words(page)


# ------------------------------------------------------------------------------------------------------------ heads


def report_of(model: HookedTransformer) -> HeadReport:
    """A report in the shape of a real one: layer 1, head 2 is an induction head."""
    frame = interp.head_scores(model, period=8).to_frame().loc[:, ["layer", "head", "induction", "induction_null"]]
    found = (frame["layer"] == 1) & (frame["head"] == 2)
    frame = frame.assign(
        effect=np.where(found, 2.5, 0.0), effect_low=0.0, effect_high=3.0, role="", verdict=np.where(found, "induction", "none")
    )  # fmt: skip
    card = {"ablation": "mean", "n_sequences_alone": 4}
    return HeadReport(frame, None, {"first_copy": 9.0, "second_copy": 1.0}, card)


def test_verdicts_of_the_run_stand_in_the_table(
    open_page: Open, model: HookedTransformer, run_folder: Path, tmp_path: Path
) -> None:
    for name in ("demo.json", "tokens.parquet", "lens.parquet"):
        (tmp_path / name).write_bytes((run_folder / name).read_bytes())
    interp.head_scores(model, period=8).to_frame().to_parquet(tmp_path / "heads.parquet")
    report_of(model).save(tmp_path / "head_report.json")
    page = fine(open_page("heads", run=tmp_path, model=model, query={"top": "12"}))
    table = page.dataframe[0].value.set_index("head")
    assert table.loc["L1H2", "verdict"] == "induction"
    assert table.loc["L1H2", "effect"] == 2.5
    assert "null" in table
    assert "mean-ablation, n = 4 sequences, from the run" in words(page).replace("\\", "")


def test_the_causal_check_runs_in_the_background_and_is_found_again(
    open_page: Open, model: HookedTransformer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[tuple[str, list[str]]] = []
    monkeypatch.setattr("ui.services.jobs.start", lambda kind, argv, title: started.append((kind, argv)) or "x")
    where = {"seed": "5"}
    page = fine(open_page("heads", run=None, model=model, prompt="abcab", query=where, workspace=tmp_path))
    assert "in the background" in words(page)
    page.button(key="run_causal").click().run()
    assert started == [("head report", ["heads", "tiny", "--seed", "5", "--out", "head-report.json"])]
    made = report_of(model)
    made.card["fingerprint"] = model.fingerprint
    made.save(tmp_path / "head-report.json")
    page = fine(open_page("heads", run=None, model=model, prompt="abcab", query=where, workspace=tmp_path))
    assert "verdict" in page.dataframe[0].value
    made.card["fingerprint"] = "0" * 32
    made.save(tmp_path / "head-report.json")
    page = fine(open_page("heads", run=None, model=model, prompt="abcab", query=where, workspace=tmp_path))
    assert "verdict" not in page.dataframe[0].value


@pytest.mark.parametrize("panel", ["Circuits", "Partners"])
def test_the_head_has_panels(open_page: Open, model: HookedTransformer, panel: str) -> None:
    where = {"panel": panel, "layer": "1", "head": "2", "circuit_token": "a"}
    page = fine(open_page("head", run=None, model=model, prompt="abcab", query=where))
    shown = page.dataframe[-1].value
    if panel == "Circuits":
        assert len(shown) >= 10
    else:
        assert set(shown["does"]) == {"reads it", "writes for it"}
        assert set(shown["mode"]) == {"Q", "K", "V"}
        assert set(shown.loc[shown["does"] == "reads it", "partner"].str[:2]) == {"L2"}


def test_heads_are_scored_on_natural_text_beside(open_page: Open, model: HookedTransformer) -> None:
    page = fine(open_page("heads", run=None, model=model, prompt="abcab", query={"score_on": "Natural text"}))
    assert {"natural_induction", "repeated"} <= set(page.dataframe[0].value)
    assert f"{services.NATURAL_TEXTS} texts" in words(page)


# ------------------------------------------------------------------------------------------------------ attribution


@pytest.mark.parametrize("by", ["Component", "Layer", "Head", "Source token", "Neuron"])
def test_attribution_divides_the_logit(open_page: Open, model: HookedTransformer, by: str) -> None:
    page = fine(open_page("attribution", run=None, model=model, prompt="abcab", query={"by": by, "pos": "3"}))
    best = list(services.candidates("abcab", 3).values())
    logits = model("abca")[0, -1]
    assert model.tokenizer is not None
    two = [model.tokenizer.to_single_token(one) if isinstance(one, str) else one for one in best[:2]]
    assert page.metric[0].value == f"{float(logits[two[0]] - logits[two[1]]):+.2f}"


def test_attribution_against_nothing_is_the_logit_itself(open_page: Open, model: HookedTransformer) -> None:
    page = fine(open_page("attribution", run=None, model=model, prompt="abcab"))
    page.selectbox(key="against_4").set_value("nothing").run()
    assert fine(page).metric[0].value == f"{float(model('abcab')[0, -1].max()):+.2f}"
    with pytest.raises(ValueError, match="not one"):  # a typed token
        services.attribution("abcab", 4, "two words", None, "component")
    with pytest.raises(ValueError, match="at most 96 tokens"):
        services.attribution("a" * 120, 110, "a", None, "source")


def test_typed_tokens() -> None:
    assert controls.typed("·Paris") == " Paris"
    assert controls.typed("↵") == "\n"


# --------------------------------------------------------------------------------------------------------- patching


OWN = {"pair_clean": "abcab", "pair_corrupted": "abdab", "pair_answer": "c", "pair_against": "d"}


def test_own_prompts_are_aligned_and_swept_on_a_button(open_page: Open, model: HookedTransformer) -> None:
    page = fine(open_page("patching", run=None, model=model, query={**OWN, "measured_by": "kl"}))
    table = page.dataframe[0].value
    assert list(table["differs"]) == ["", "", "≠", "", ""]
    assert len(page.get("arrow_vega_lite_chart")) == 0
    page.button(key="run_sweep").click().run()
    fine(page)
    assert "run_sweep" not in [button.key for button in page.button]
    asked = services.Sweep("own", "abcab", "abdab", "c", "d", n=1, metric="kl")
    found = services.swept(asked)
    assert found is not None
    frame, facts = found
    expected = interp.patch_sweep(model, interp.prompt_pairs(model, "abcab", "abdab", "c", "d"), metric="kl")
    assert frame["effect"].to_numpy() == pytest.approx(expected.to_frame()["effect"].to_numpy(), abs=1e-6)
    assert facts["n"] == 1
    assert services.swept(replace(asked, mode="noise")) is None


def test_a_task_is_built(open_page: Open, model: HookedTransformer) -> None:
    page = fine(open_page("patching", run=None, model=model, query={"task": "Repeated tokens", "pairs": "3"}))
    assert "Pair 1 of 3" in words(page)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"pair_corrupted": "abdabx"}, "5 tokens and the corrupted one 6"),
        ({"pair_answer": "two words"}, "not one"),
        ({"pair_clean": "x" * 80, "pair_corrupted": "y" * 80}, "80 tokens, more than the 64"),
        ({"pair_answer": "d"}, "is an answer and what it is measured against"),
    ],
)
def test_prompts_that_do_not_fit_are_refused(
    open_page: Open, model: HookedTransformer, changed: dict[str, str], said: str
) -> None:
    page = open_page("patching", run=None, model=model, query=OWN | changed)
    assert not page.exception
    assert "do not align" in words(page)
    assert said in words(page)
    assert "this should not happen" not in words(page)


def test_a_gap_that_says_nothing_is_refused(open_page: Open, model: HookedTransformer) -> None:
    page = open_page("patching", run=None, model=model, query=OWN | {"pair_corrupted": "abcab", "measured_by": "kl"})
    page.button(key="run_sweep").click().run()
    assert "The sweep cannot be run" in words(page)
    assert "says nothing" in words(page)


def test_a_shelf_keeps_the_last_results() -> None:
    held = kept.Shelf()
    for number in range(kept.MOST + 1):
        held.get(0)
        held.put(number, number)
    assert held.get(0) == 0
    assert held.get(1) is None
