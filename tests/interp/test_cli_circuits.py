"""Lenses, heads, patching, circuits and comparisons on the command line: values, files, tables, and refusals."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from tiny import tiny_model

import interp
from interp.cli.group import status

PAIR = ["--clean", "ab ac", "--corrupted", "db ac", "--answer", "a", "--against", "d"]
TASK = ["--task", "repeats", "--n", "6"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model folder: tiny, random, with weights large enough that prompts differ in their predictions."""
    transformers = pytest.importorskip("transformers")
    tiny = tiny_model("llama")
    cfg = tiny.cfg
    config = transformers.LlamaConfig(
        vocab_size=cfg.d_vocab, hidden_size=cfg.d_model, intermediate_size=cfg.d_mlp, num_hidden_layers=cfg.n_layers,
        num_attention_heads=cfg.n_heads, num_key_value_heads=cfg.kv_heads, max_position_embeddings=cfg.n_ctx,
        tie_word_embeddings=True, initializer_range=0.3,
    )  # fmt: skip
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("models") / "tiny"
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    assert tiny.tokenizer is not None
    tiny.tokenizer.save(folder)
    return str(folder)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file of ten texts."""
    file = tmp_path_factory.mktemp("texts") / "texts.txt"
    file.write_text("\n".join(f"some words, number {i}, and others {i * i}" for i in range(10)))
    return str(file)


@pytest.fixture(scope="module")
def store(model: str, texts: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store from which a lens can be trained."""
    path = tmp_path_factory.mktemp("stores") / "corpus"
    rows = interp.load_corpus(texts).texts
    interp.record(interp.load(model), rows, ["embed", "resid_post:*"], path=path, dtype="float32", progress=False)
    return str(path)


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a verb that must succeed, and give what it printed; with --json as a value."""

    def run(*arguments: str) -> Any:
        code = status(list(arguments))
        said = capsys.readouterr()
        assert code == 0, said.err
        return json.loads(said.out) if "--json" in arguments else said.out

    return run


# ------------------------------------------------------------------------------------------------------------- lenses


def test_lens_follows_several_answers_and_draws_them(model: str, call: Any, tmp_path: Path) -> None:
    files = ["--out", str(tmp_path / "lens.safetensors"), "--plot", str(tmp_path / "lens.svg")]
    rows = call("lens", model, "ab ac", "--answer", "a", "--answer", "d", "--sites", "all", *files, "--json")
    found = interp.load_lens(tmp_path / "lens.safetensors").followed()
    last = found.loc[found["pos"] == 4]
    assert [row["p a"] for row in rows] == pytest.approx(last.loc[last["answer"] == "a", "probability"].tolist())
    assert [row["site"] for row in rows][:2] == ["embed", "resid_mid:0"]
    assert (tmp_path / "lens.svg").read_text().startswith("<svg")
    assert call("lens", model, "ab ac", "--pos", "1", "--json") == call("lens", model, "ab ac", "--pos", "-4", "--json")
    assert "position 4" in call("lens", model, "ab ac", "--plot", str(tmp_path / "grid.html"))


def test_lenses_are_made_compared_and_read_through(
    model: str, store: str, texts: str, call: Any, tmp_path: Path
) -> None:
    tuned, fitted = str(tmp_path / "tuned.safetensors"), str(tmp_path / "jacobian.safetensors")
    options = ["--epochs", "2", "--batch-size", "32", "--held-out", "0.3"]
    table = call("tune-lens", model, store, "--out", tuned, *options, "--json")
    assert {"site", "kl", "logit_lens_kl", "gain_low", "n"} <= set(table[0])
    assert call("tune-lens", model, store, "--out", tuned, *options, "--json") == table
    assert "held-out texts" in call("tune-lens", model, store, "--out", tuned, *options, "--fresh")
    call("jacobian-lens", model, texts, "--out", fitted, "--limit", "3", "--max-length", "24")

    others = tmp_path / "others.txt"
    others.write_text("words that no lens has seen before\nand as many again, for an interval")
    rows = call("compare-lenses", model, str(others), "--lens", tuned, "--lens", fitted, "--json")
    assert {row["lens"] for row in rows} == {"logit", "tuned", "jacobian"}
    for file, name in ((tuned, "tuned"), (fitted, "jacobian")):
        assert f"{name} lens" in call("lens", model, "ab ac", "--lens", file)
    recorded = call("lens", model, "--store", store, "--lens", tuned, "--json")
    assert {row["n_texts"] for row in recorded} == {10}
    assert recorded[-1]["kl"] == pytest.approx(0, abs=1e-6)


# -------------------------------------------------------------------------------------------------------------- heads


def test_heads_print_score_effect_and_verdict(model: str, texts: str, call: Any, tmp_path: Path) -> None:
    out, chart = tmp_path / "heads.json", tmp_path / "heads.svg"
    options = ["--rows", "2", "--random", "2"]
    found = call("heads", model, *options, "--out", str(out), "--plot", str(chart), "--json")
    cfg = interp.load(model).cfg
    assert len(found["heads"]) == cfg.n_layers * cfg.n_heads
    assert {"induction", "induction_null", "effect", "effect_low", "band", "verdict", "role"} <= set(found["heads"][0])
    assert json.loads(out.read_text())["losses"] == found["losses"]
    assert chart.is_file()
    said = call("heads", model, *options, "--texts", texts, "--limit", "2", "--top", "3")
    assert "verdict" in said
    assert "n = 2 sequences" in said
    assert "The second copy of repeated tokens costs" in said


def test_scores_alone_are_those_of_the_library(model: str, call: Any) -> None:
    rows = call("heads", model, "--scores-only", "--by", "previous_token", "--seed", "3", "--json")
    expected = interp.head_scores(interp.load(model), seed=3).to_frame()
    assert [row["previous_token"] for row in rows] == pytest.approx(expected["previous_token"].tolist())
    assert "not ablated" in call("heads", model, "--scores-only")


def test_heads_show_natural_text_diffuseness_and_weights(model: str, texts: str, call: Any) -> None:
    options = ["--texts", texts, "--limit", "3"]
    loaded = interp.load(model)
    rows = pd.DataFrame(call("heads", model, "--scores-only", *options, "--weights", "--json"))
    expected = interp.head_scores(loaded, texts=interp.load_corpus(texts).texts[:3]).to_frame()
    assert rows["natural_induction"].tolist() == pytest.approx(expected["natural_induction"].tolist(), nan_ok=True)
    copying = interp.copying_scores(loaded, basis="embed").to_frame()
    assert rows["copying"].tolist() == pytest.approx(copying["effect_embed"].tolist())
    assert rows["eigenvalue_share"].tolist() == pytest.approx(copying["eigen_embed"].tolist())
    assert rows.loc[rows["layer"] == 0, "reads_head"].isna().all()
    pairs = interp.head_composition(loaded, "K").to_frame()
    for row in rows.loc[rows["layer"] > 0].itertuples():
        best = pairs.loc[(pairs["later_layer"] == row.layer) & (pairs["later_head"] == row.head)].nlargest(1, "excess")
        assert row.reads_head == f"L{best['earlier_layer'].iloc[0]}H{best['earlier_head'].iloc[0]}"
    head = pd.DataFrame(call("heads", model, *options, "--rows", "2", "--random", "2", "--weights", "--json")["heads"])
    assert {"natural_induction", "copying", "reads_head", "reads_excess", "entropy_share"} <= set(head)
    said = call("heads", model, *options, "--scores-only", "--top", "2")
    assert "entropy" in said
    assert "natural" in said


# ------------------------------------------------------------------------------------------- attribution and patching


@pytest.mark.parametrize("by", ["component", "layer", "head", "neuron", "source"])
def test_attributed_parts_sum_to_the_logit(model: str, by: str, call: Any, tmp_path: Path) -> None:
    asked = ["attribute", model, "ab ac", "--answer", "a", "--against", "d", "--by", by]
    found = call(*asked, "--plot", str(tmp_path / "parts.svg"), "--out", str(tmp_path / "parts.safetensors"), "--json")
    assert sum(part["value"] for part in found["parts"]) == pytest.approx(found["logit"], abs=1e-4)
    logits = interp.load(model)("ab ac")[0, -1]
    ids = [interp.load(model).tokenizer.to_single_token(token) for token in "ad"]  # pyright: ignore[reportOptionalMemberAccess]
    assert found["logit"] == pytest.approx(float(logits[ids[0]] - logits[ids[1]]), abs=1e-4)
    assert "parts add" in call(*asked, "--top", "2")


def test_a_sweep_is_that_of_the_library(model: str, call: Any, tmp_path: Path) -> None:
    out, chart = tmp_path / "sweep.safetensors", tmp_path / "sweep.svg"
    found = call("patch", model, *PAIR, "--out", str(out), "--plot", str(chart), "--json")
    expected = interp.patch_sweep(
        interp.load(model), clean="ab ac", corrupted="db ac", answer="a", against="d"
    ).to_frame()
    (sweep,) = found["sweeps"]
    assert [place["effect"] for place in sweep["places"]] == pytest.approx(expected["effect"].tolist())
    assert [row["differs"] for row in found["alignment"]] == [True, False, False, False, False]
    assert interp.load_patch_result(out).card["site"] == "resid_pre"
    assert chart.is_file()
    said = call("patch", model, *PAIR, "--top", "2")
    assert said.index("differs") < said.index("effect")
    assert "the prompts of a pair differ in 1 token" in said
    assert "n = 1 pair" in said


def test_estimates_paths_and_several_sites(model: str, call: Any) -> None:
    found = call("patch", model, *TASK, "--site", "z", "--site", "attn_out", "--estimate", "--json")
    assert [sweep["card"]["site"] for sweep in found["sweeps"]] == ["z", "attn_out"]
    assert found["sweeps"][0]["checked"]
    assert "rank agreement with exact patches" in call("patch", model, *TASK, "--estimate")
    paths = call("patch", model, *TASK, "--to", "k:1.0", "--to", "logits", "--from", "all", "--json")["sweeps"][0]
    assert {place["part"] for place in paths["places"]} == {"head", "mlp"}
    assert paths["card"]["mode"] == "noise"
    assert "95 % over pairs" in call("patch", model, *TASK, "--to", "logits")


def test_own_pairs_come_one_by_one_or_from_a_file(model: str, call: Any, tmp_path: Path) -> None:
    file = tmp_path / "pairs.csv"
    columns = {
        "clean": ["ab ac", "bb ac"],
        "corrupted": ["db ac", "ab ac"],
        "answer": ["a", "b"],
        "against": ["d", "a"],
    }
    pd.DataFrame(columns).to_csv(file, index=False)
    typed = [word for name, values in columns.items() for value in values for word in (f"--{name}", value)]
    from_file, from_line = (call("patch", model, *given, "--json") for given in (["--pairs", str(file)], typed))
    assert from_file["n"] == 2
    assert from_file["sweeps"][0]["places"] == from_line["sweeps"][0]["places"]


def test_traces_and_knockouts(model: str, call: Any, tmp_path: Path) -> None:
    files = ["--out", str(tmp_path / "trace.safetensors"), "--plot", str(tmp_path / "trace.svg")]
    asked = ["trace", model, "ab ac", "--subject", "b", "--draws", "2", "--site", "resid_post"]
    found = call(*asked, "--answer", "a", *files, "--json")
    assert len(found["places"]) == 5 * interp.load(model).cfg.n_layers
    assert "n = 2 draws" in call(*asked)
    cut = ["knockout", model, "ab ac", "--answer", "a"]
    assert len(call(*cut, "--json")["places"]) == 4 * interp.load(model).cfg.n_layers
    assert "logit difference" in call(*cut, "--against", "d", "--plot", str(tmp_path / "cut.html"))
    spans = call(*cut, "--queries", "3:5", "--keys", "0", "--keys", "1:3", "--json")
    expected = interp.knockout_sweep(interp.load(model), "ab ac", "a", queries=[(3, 5)], keys=[0, (1, 3)]).to_frame()
    assert [place["effect"] for place in spans["places"]] == pytest.approx(expected["effect"].tolist())
    assert [(place["pos"], place["stop"]) for place in spans["places"]][:2] == [(0, 1), (1, 3)]
    assert "when every token cannot see" in call(*cut, "--queries", "all", "--keys", "1:3")


def test_a_circuit_has_a_report_as_text_json_and_page(model: str, call: Any, tmp_path: Path) -> None:
    files = ["--out", str(tmp_path / "circuit.json"), "--html", str(tmp_path / "circuit.html")]
    asked = ["circuit", model, *TASK, "--share", "0.5", "--random", "2"]
    found = call(*asked, *files, "--json")
    assert found["kind"] == "circuit report"
    assert json.loads((tmp_path / "circuit.json").read_text())["summary"] == found["summary"]
    assert "Circuit of repeats" in (tmp_path / "circuit.html").read_text()
    said = call(*asked, "--plot", str(tmp_path / "circuit.svg"))
    assert "n = 3 held-out pairs" in said
    assert found["summary"] in " ".join(said.split())


# -------------------------------------------------------------------------------------------------------- in one call


def test_a_model_beside_itself_and_its_int8_form(model: str, texts: str, call: Any, tmp_path: Path) -> None:
    same = call("diff", model, model, "--texts", texts, "--limit", "3", "--json")
    assert {row["metric"]: row["value"] for row in same["summary"]}["kl_ab"] == pytest.approx(0, abs=1e-9)
    files = [
        "--out",
        str(tmp_path / "diff.json"),
        "--html",
        str(tmp_path / "d.html"),
        "--plot",
        str(tmp_path / "d.svg"),
    ]
    said = call("diff", model, "--int8", "--texts", texts, "--limit", "3", "--no-scores", *files)
    assert "its int8 form" in said
    assert "own_output" in said
    assert interp.load_model_diff(tmp_path / "diff.json").summary["n_texts"].tolist()[0] == 3


def test_a_scan_writes_its_page(model: str, call: Any, tmp_path: Path) -> None:
    page, save = tmp_path / "scan.html", tmp_path / "scan.json"
    asked = ["scan", model, "--prompt", "ab ac", "--answer", "a", "--against", "d", "--effort", "quick"]
    said = call(*asked, "--corrupted", "db ac", "--out", str(page), "--save", str(save))
    assert f"written: {page}" in said
    assert page.read_text().startswith("<!doctype html>")
    assert isinstance(json.loads(save.read_text()), dict)
    assert isinstance(call(*asked, "--json"), dict)


# ----------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["patch", "m", "--task", "capital"], "'capital' is not one of 'indirect_objects'"),
        (["patch", "m"], "one of the three"),
        (["patch", "m", *TASK, *PAIR], "one of the three"),
        (["patch", "m", *PAIR[:4]], "--answer is missing"),
        (["patch", "m", *PAIR[:6]], "--against is missing"),
        (["patch", "m", *PAIR, "--n", "3"], "--n is the number"),
        (["patch", "m", "--pairs", "nowhere.csv"], "nowhere.csv"),
        (["patch", "m", *TASK, "--site", "resid"], "'resid' is not one of"),
        (["patch", "m", *TASK, "--site", "z", "--site", "q", "--out", "x"], "one --site"),
        (["patch", "m", *TASK, "--site", "z", "--by", "head_pos", "--plot", "x.svg"], "head_pos"),
        (["patch", "m", *TASK, "--to", "logits", "--estimate"], "--to is exact"),
        (["patch", "m", *TASK, "--plot", "x.jpg"], ".svg"),
        (["attribute", "m", "text"], "--answer"),
        (["knockout", "m", "text"], "--answer"),
        (["knockout", "m", "text", "--answer", "a", "--keys", "x"], "'x' is no position"),
        (["knockout", "m", "text", "--answer", "a", "--queries", "4:4"], "'4:4' holds no position"),
        (["trace", "m", "text"], "--subject"),
        (["circuit", "m", *TASK, "--share", "2"], "--share"),
        (["lens", "m"], "TEXT"),
        (["lens", "m", "text", "--store", "runs"], "not both"),
        (["lens", "m", "text", "--lens", "nowhere"], "nowhere"),
        (["heads", "m", "--by", "inductive"], "inductive"),
        (["heads", "m", "--scores-only", "--reference", "x"], "--scores-only"),
        (["heads", "m", "--rows", "1"], "--rows"),
        (["heads", "m", "--texts", "citees"], "cities"),
        (["diff", "m", "--texts", "cities"], "one of the two"),
        (["diff", "m", "m", "--int8", "--texts", "cities"], "one of the two"),
        (["scan", "m", "--prompt", "text"], "--out"),
        (["tune-lens", "m", "runs"], "--out"),
        (["tune-lens", "m", "runs", "--out", "."], "is a folder"),
        (["jacobian-lens", "m", "cities", "--out", "taken/lens"], "is a file"),
        (["circuit", "m", *TASK, "--html", "taken/page.html"], "--html"),
    ],
)
def test_a_wrong_call_is_refused_in_one_line_before_any_work(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").write_text("")
    monkeypatch.setattr(interp, "load", lambda _: pytest.fail("the model was loaded"))
    assert status(arguments) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""


def test_prompts_that_do_not_align_are_refused_with_a_table(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert status(["patch", model, "--clean", "ab", "--corrupted", "abc", "--answer", "a", "--against", "b"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert "2 tokens and the corrupted one 3" in lines[0]
    assert lines[1].split() == ["pos", "clean", "corrupted", "differs"]
    assert lines[4].split() == ["2", "c", "*"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["lens", "ab", "--pos", "9"], "positions 0 to 1"),
        (["lens", "ab", "--answer", "abc"], "abc"),
        (["attribute", "ab", "--answer", "abc"], "abc"),
        (["trace", "ab", "--subject", "x"], "'x'"),
        (["patch", "--clean", "ab", "--corrupted", "ab", "--answer", "a", "--against", "d"], "gap under 0.05"),
        (["circuit", "--task", "repeats", "--n", "2"], "4"),
    ],
)
def test_what_only_the_model_can_refuse_is_one_line_too(
    model: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status([arguments[0], model, *arguments[1:]]) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert said.err.count("\n") == 1
