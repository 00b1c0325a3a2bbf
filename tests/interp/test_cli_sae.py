"""`interp sae`: files, figures and tables of each verb, stopped runs, several processes, and refusals."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tiny import tiny_model

import interp
from interp.cli.group import status
from interp.cli.sae_progress import TrainingProgress
from interp.dataset import Example
from interp.sae import evaluate_sae, export_sae, load_sae, split_rows

WORDS = ("river", "stone", "lantern", "cloud", "seven", "green", "Paris", "hollow")
SMALL = ["--width", "64", "--batch-size", "256"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model folder: tiny, random, with bytes for tokens."""
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
    """A file of sixty texts."""
    rng = np.random.default_rng(0)
    file = tmp_path_factory.mktemp("texts") / "texts.txt"
    file.write_text("\n".join(" ".join(rng.choice(WORDS, size=rng.integers(4, 10))) for _ in range(60)))
    return str(file)


@pytest.fixture(scope="module")
def store(model: str, texts: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store of two sites; its label says whether a text has a word."""
    path = tmp_path_factory.mktemp("stores") / "corpus"
    examples = [
        Example(text, label=int("seven" in text), group=f"group {number // 4}")
        for number, text in enumerate(interp.load_corpus(texts).texts)
    ]
    interp.record(interp.load(model), examples, "resid_post:*", path=path, dtype="float32", progress=False)
    return str(path)


@pytest.fixture(scope="module")
def sae(store: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An SAE that the command line trained."""
    out = tmp_path_factory.mktemp("saes") / "sae.safetensors"
    assert (
        status(["sae", "train", "--store", store, "--site", "resid_post:1", "--k", "4", *SMALL, "--out", str(out)]) == 0
    )
    return str(out)


@pytest.fixture(scope="module")
def features(sae: str, store: str, model: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder of its latents."""
    out = tmp_path_factory.mktemp("features") / "latents"
    assert status(["sae", "features", sae, "--store", store, "--model", model, "--out", str(out)]) == 0
    return str(out)


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a verb that must succeed, and give what it printed; with --json as a value."""

    def run(*arguments: str) -> Any:
        code = status(["sae", *arguments])
        said = capsys.readouterr()
        assert code == 0, said.err
        return json.loads(said.out) if "--json" in arguments else said.out

    return run


# ------------------------------------------------------------------------------------------------------------- train


def test_training_measures_on_held_out_documents_and_says_which(store: str, call: Any, tmp_path: Path) -> None:
    out = tmp_path / "runs" / "sae.safetensors"
    (row,) = call("train", store, "--site", "resid_post:1", "--k", "4", *SMALL, "--out", str(out), "--json")
    sae, opened = load_sae(out), interp.open_store(store)
    _, held = split_rows(opened, 0.2, 0)
    assert row["fvu"] == pytest.approx(evaluate_sae(sae, opened, rows=held).fvu)
    assert (row["l0"], row["pca_rank"]) == (4, 4)
    assert 0 < row["pca_fvu"] < 1
    assert sorted(path.name for path in out.parent.iterdir()) == ["sae.metrics.jsonl", "sae.safetensors"]
    lines = [json.loads(line) for line in (out.parent / "sae.metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["step"] == sae.card["n_steps"]
    measured = call("evaluate", str(out), "--store", store, "--json")["rows"]
    assert (measured["of"], measured["fvu"]) == ("held-out rows", pytest.approx(row["fvu"]))
    assert call("evaluate", str(out), "--store", store, "--rows", "all", "--json")["rows"]["n_rows"] > row["n_rows"] * 4
    known = call("info", str(out), "--json")
    assert (known["kind"], known["k"], known["latents"]) == ("topk", 4, 64)
    assert known["held out"]["held_out"] == 0.2
    assert "blocks.1.hook_resid_post" in call("info", str(out))


def test_a_sweep_trains_every_combination_on_the_same_rows(store: str, call: Any, tmp_path: Path) -> None:
    choices = ["--site", "resid_post:1", "--kind", "topk", "--kind", "jumprelu", "--l0", "4", *SMALL]
    choices += ["--set", "aux_alpha=0", "--k", "3", "--k", "5"]
    rows = call("train", store, *choices, "--out", str(tmp_path / "sweep"), "--json")
    assert [row["sae"] for row in rows] == ["topk-k3", "topk-k5", "jumprelu"]
    assert {path.name for path in (tmp_path / "sweep").iterdir()} == {
        "topk-k3.safetensors", "topk-k5.safetensors", "jumprelu.safetensors", "metrics.jsonl",
    }  # fmt: skip
    single = tmp_path / "k5.safetensors"
    call("train", store, *choices[:2], *SMALL, "--set", "aux_alpha=0", "--k", "5", "--out", str(single))
    alone, swept = load_sae(single), load_sae(tmp_path / "sweep" / "topk-k5.safetensors")
    assert all(torch.equal(value, swept.state_dict()[name]) for name, value in alone.state_dict().items())
    shown = call(
        "train", store, *choices[:2], *SMALL, "--seed", "0", "--seed", "1", "--k", "4", "--out", str(tmp_path / "a.b")
    )
    assert "seed1" in shown
    assert (tmp_path / "a-seed1.b").is_file()
    shared = call("compare", str(tmp_path / "a-seed0.b"), str(tmp_path / "a-seed1.b"), "--store", store, "--json")[0]
    assert 0 < shared["mean_matched"] < 1
    assert shared["n_pairs"] <= 64


def test_rows_can_come_from_a_model_that_runs(model: str, texts: str, call: Any, tmp_path: Path) -> None:
    out = tmp_path / "transcoder.safetensors"
    live = ["--model", model, "--texts", texts, "--site", "resid_post:0", "--target", "resid_post:1"]
    (row,) = call(
        "train", *live, "--kind", "batchtopk", "--k", "4", *SMALL, "--epochs", "4", "--out", str(out), "--json"
    )
    assert (row["site"], row["target"]) == ("blocks.0.hook_resid_post", "blocks.1.hook_resid_post")
    assert row["n_units"] == 12
    assert "pca_fvu" not in row
    assert load_sae(out).is_transcoder
    assert call("info", str(out), "--json")["writes"] == ["blocks.1.hook_resid_post"]


def test_a_transcoder_takes_the_other_site_of_a_store(store: str, call: Any, tmp_path: Path) -> None:
    out = str(tmp_path / "skip.safetensors")
    (row,) = call("train", store, "--target", "resid_post:1", "--skip", "--k", "4", *SMALL, "--out", out, "--json")
    assert row["site"] == "blocks.0.hook_resid_post"
    assert load_sae(out).W_skip is not None


def test_nothing_is_overwritten_without_force(sae: str, store: str, call: Any, tmp_path: Path) -> None:
    out = tmp_path / "mine"
    out.write_text("mine")
    words = ["train", store, "--site", "resid_post:1", "--k", "4", *SMALL, "--out", str(out)]
    assert status(["sae", *words]) == 2
    assert out.read_text() == "mine"
    call(*words, "--force")
    assert load_sae(out).k == 4


def test_metrics_go_to_trackers_too(store: str, call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[dict[str, Any]] = []
    seen: list[dict[str, Any]] = []
    wandb = ModuleType("wandb")
    run = SimpleNamespace(log=logged.append, finish=lambda: None)
    vars(wandb)["init"] = lambda **options: (seen.append(options), run)[1]
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    words = ["train", store, "--site", "resid_post:1", "--k", "3", "--k", "4", *SMALL]
    call(*words, "--wandb", "dictionaries", "--out", str(tmp_path / "layer1.safetensors"))
    assert (seen[0]["project"], seen[0]["name"], sorted(seen[0]["config"])) == ("dictionaries", "layer1", ["k3", "k4"])
    lines = (tmp_path / "layer1.metrics.jsonl").read_text().splitlines()
    assert len(logged) == len(lines)
    assert logged[-1]["k4/loss"] == json.loads(lines[-1])["loss"]


def test_a_stopped_run_goes_on_with_the_same_command(
    sae: str, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "sae.safetensors"
    words = ["sae", "train", store, "--site", "resid_post:1", "--k", "4", *SMALL, "--out", str(out)]
    step = TrainingProgress.step

    def stop(self: TrainingProgress, done: int, total: int) -> None:
        step(self, done, total)
        if done == 7:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(TrainingProgress, "step", stop)
        assert status(words) == 130
    checkpoint = tmp_path / "sae.checkpoint.safetensors"
    said = capsys.readouterr().err.splitlines()
    assert re.fullmatch(
        rf"stopped at step 7 of \d+; the checkpoint is {re.escape(str(checkpoint))}; the same command goes on", said[-1]
    )
    assert not any("what was finished" in line for line in said)
    assert checkpoint.is_file()
    assert not out.exists()
    stopped = checkpoint.read_bytes()
    assert status([*words, "--lr", "0.1"]) == 2  # another run does not go on with it
    assert "belongs to another run (lr" in capsys.readouterr().err
    assert status(words) == 0
    assert "going on at step 8" in capsys.readouterr().err
    assert out.read_bytes() == Path(sae).read_bytes()
    assert not checkpoint.exists()
    checkpoint.write_bytes(stopped)  # as if it had been killed behind the save
    assert status([*words, "--restart"]) == 0
    assert "going on" not in capsys.readouterr().err
    assert out.read_bytes() == Path(sae).read_bytes()


@pytest.mark.slow
def test_signal_nine_and_then_the_same_command(store: str, tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def command(out: Path) -> list[str]:
        words = ["train", store, "--site", "resid_post:1", "--k", "4", *SMALL, "--epochs", "10", "--out", str(out)]
        return [sys.executable, "-m", "interp", "sae", *words, "--set", "checkpoint_every=3"]

    whole, out = tmp_path / "whole.safetensors", tmp_path / "sae.safetensors"
    subprocess.run(command(whole), env=environment, check=True, capture_output=True)
    with subprocess.Popen(command(out), env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
        while not (tmp_path / "sae.checkpoint.safetensors").exists():
            assert child.poll() is None
            time.sleep(0.002)
        child.kill()
    assert not out.exists()
    done = subprocess.run(command(out), env=environment, capture_output=True, text=True, check=True)
    assert "going on at step" in done.stderr
    assert out.read_bytes() == whole.read_bytes()


@pytest.mark.slow
def test_two_processes_train_one_dictionary_and_one_of_them_speaks(store: str, sae: str, tmp_path: Path) -> None:
    out = tmp_path / "sae.safetensors"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "interp"]
    words = ["sae", "train", store, "--site", "resid_post:1", "--k", "4", *SMALL, "--out", str(out), "--json"]
    done = subprocess.run(
        [*torchrun, *words],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"},  # says where a process was that aborts
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)
    assert {path.name for path in tmp_path.iterdir()} == {"sae.safetensors", "sae.metrics.jsonl"}
    assert row["fvu"] == pytest.approx(load_sae_figure(sae, store), rel=0.1)


def load_sae_figure(sae: str, store: str) -> float:
    """FVU on the held-out rows of one that a single process trained."""
    opened = interp.open_store(store)
    return evaluate_sae(load_sae(sae), opened, rows=split_rows(opened, 0.2, 0)[1]).fvu


# ----------------------------------------------------------------------------------------------------------- measure


def test_evaluation_puts_the_sae_into_the_model(
    sae: str, store: str, model: str, texts: str, call: Any, tmp_path: Path
) -> None:
    words = ["evaluate", sae, "--store", store, "--model", model, "--texts", texts, "--limit", "6"]
    found = call(*words, "--out", str(tmp_path / "figures.json"), "--json")
    in_model = interp.evaluate_in_model(load_sae(sae), interp.load(model), interp.load_corpus(texts).texts[:6])
    assert found["in_model"]["delta_loss"] == pytest.approx(in_model.delta_loss)
    assert json.loads((tmp_path / "figures.json").read_text())["rows"]["fvu"] == found["rows"]["fvu"]
    shown = call(*words)
    assert "held-out rows" in shown
    assert "delta_loss" in shown


def test_sparse_probing_tells_the_label(sae: str, store: str, call: Any) -> None:
    rows = call("probe", sae, "--store", store, "--k", "2", "--tokens", "mean", "--json")
    assert [row["reads"] for row in rows] == ["latents", "dimensions", "activation"]
    assert "k = 2: latents AUROC" in call("probe", sae, "--store", store, "--k", "2", "--tokens", "mean")


def test_a_dictionary_matches_itself(sae: str, call: Any) -> None:
    (row,) = call("compare", sae, sae, "--json")
    assert row["mean_matched"] == pytest.approx(1)
    assert row["null_matched"] < 0.9


# ----------------------------------------------------------------------------------------------------------- latents


def test_a_page_shows_the_examples_with_the_token_that_fires(features: str, model: str, call: Any) -> None:
    known = interp.load_sae_features(features)
    latent = int(known.latents.sort_values("n_active")["latent"].iloc[-1])
    page = call("show", features, str(latent), "--model", model, "--examples", "3", "--json")
    assert page["density"] == pytest.approx(float(known.latent(latent).row["density"]))
    assert [example["value"] for example in page["examples"]] == known.latent(latent).examples["value"].tolist()[:3]
    shown = call("show", features, str(latent), "--model", model, "--examples", "3")
    assert shown.count(">>") == 3
    assert "raises" in shown
    assert page["examples"][0]["passage"] in shown
    assert ">>[" in call("show", features, str(latent))  # ids, without a model


def test_a_latent_that_never_fires_has_a_page_too(
    sae: str, features: str, store: str, call: Any, tmp_path: Path
) -> None:
    assert status(["sae", "show", features, "64"]) == 2
    silenced = load_sae(sae)
    silenced.b_enc[5] = -1e6
    silenced.save(tmp_path / "sae.safetensors")
    folder = str(tmp_path / "latents")
    assert "64" in call("features", str(tmp_path / "sae.safetensors"), "--store", store, "--out", folder)
    assert "never fires" in call("show", folder, "5")
    assert call("show", folder, "5", "--json")["n_active"] == 0
    assert "[" in call("show", folder, "6")


def test_labels_are_scored_and_shown(features: str, store: str, model: str, call: Any, tmp_path: Path) -> None:
    out = tmp_path / "labels"
    words = ["label", features, "--store", store, "--model", model, "--limit", "3", "--score", "--out", str(out)]
    rows = call(*words, "--json")
    assert len(rows) == 3
    assert {"label", "balanced_accuracy", "auroc"} <= set(rows[0])
    assert [path.name for path in tmp_path.iterdir()] == ["labels"]
    latent = rows[0]["latent"]
    assert f"label: {rows[0]['label']}" in call("show", features, str(latent), "--labels", str(out))
    other = next(i for i in range(64) if i not in {row["latent"] for row in rows})
    assert "was not labelled" in call("show", features, str(other), "--labels", str(out))
    assert status(["sae", *words]) == 2  # the folder is there


def test_latents_are_found_by_token_prompt_and_direction(
    sae: str, features: str, model: str, call: Any, tmp_path: Path
) -> None:
    hits = call("search", features, "--token", "r", "--top", "2", "--json")
    assert {hit["role"] for hit in hits} == {"reads", "raises", "lowers"}
    fired = call("search", sae, "--prompt", "river stone", "--model", model, "--features", features, "--json")
    assert {"latent", "max", "density"} <= set(fired[0])
    assert "rank" in call("search", sae, "--prompt", "river stone", "--model", model, "--per-token", "--json")[0]
    direction = load_sae(sae).W_dec[9].clone()
    vector = interp.SteeringVector(direction / direction.norm(), "blocks.1.hook_resid_post", 1.0, 1.0, 1.0, {})
    vector.save(tmp_path / "vector.safetensors")
    like = call("search", sae, "--like", str(tmp_path / "vector.safetensors"), "--top", "1", "--json")
    assert (like[0]["latent"], like[0]["decoder_cosine"]) == (9, pytest.approx(1, abs=1e-5))


# ------------------------------------------------------------------------------------------------------------- files


def test_files_go_to_saelens_and_come_back(sae: str, features: str, call: Any, tmp_path: Path) -> None:
    folder = tmp_path / "saelens"
    said = call("export", sae, "--to", str(folder), "--features", features, "--context-size", "64", "--json")
    assert said["files"] == ["cfg.json", "sae_weights.safetensors", "sparsity.safetensors"]
    back = tmp_path / "back.safetensors"
    card = call("import", str(folder), "--out", str(back), "--json")
    assert (card["reads"], card["latents"]) == (["blocks.1.hook_resid_post"], 64)
    x = torch.randn(5, 32, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(load_sae(back)(x), load_sae(sae)(x))
    assert status(["sae", "import", str(folder), "--out", str(back)]) == 2
    call("import", str(folder), "--out", str(back), "--force", "--format", "saelens")
    export_sae(load_sae(sae), tmp_path / "again")
    assert call("info", str(tmp_path / "again"), "--json")["imported"]["format"] == "saelens"


def test_latents_go_to_neuronpedia(sae: str, features: str, store: str, model: str, call: Any, tmp_path: Path) -> None:
    words = ["--features", features, "--store", store, "--model", model, "--latent", "3"]
    words += ["--model-id", "tiny", "--source-set", "res-x", "--release", "trial", "--creator", "us"]
    said = call("export", sae, "--to", str(tmp_path), "--format", "neuronpedia", *words, "--json")
    assert "features/batch-0.jsonl.gz" in said["files"]


# ---------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--out", "x"], "give a store, or --model and --texts"),
        (["train", "STORE", "--model", "m", "--texts", "t", "--out", "x"], "one of the two"),
        (["train", "nowhere", "--out", "x"], "nowhere"),
        (["train", "STORE", "--out", "x"], "several sites"),
        (["train", "STORE", "--site", "resid_pre:1", "--out", "x"], "resid_pre"),
        (["train", "STORE", "--l0", "3", "--out", "x"], "it goes with jumprelu"),
        (["train", "STORE", "--kind", "gated", "--k", "3", "--out", "x"], "topk, batchtopk, matryoshka"),
        (["train", "STORE", "--set", "warmupp=1", "--out", "x"], "no such choice"),
        (["train", "STORE", "--set", "k=1", "--out", "x"], "option of its own"),
        (["train", "STORE", "--set", "warmup", "--out", "x"], "NAME=VALUE"),
        (["train", "STORE", "--width", "wide", "--out", "x"], "width"),
        (["train", "STORE", "--site", "resid_post:1", "--skip", "--out", "x"], "target"),
        (["train", "STORE", "--k", "3", "--out", "."], "is a folder"),
        (["train", "STORE", "--k", "3", "--tensorboard", "t", "--out", "x"], "pip install tensorboard"),
        (["evaluate", "SAE"], "give --store"),
        (["evaluate", "SAE", "--store", "STORE", "--model", "m"], "go together"),
        (["evaluate", "nowhere", "--store", "STORE"], "nowhere"),
        (["features", "SAE", "--store", "STORE", "--out", "."], "exists already"),
        (["show", "nowhere", "1"], "nowhere is no folder"),
        (["show", "SAE", "1"], "is no folder: give one that sae_features wrote"),
        (["show", "LATENTS", "1", "--labels", "SAE"], "is no folder: give one that sae labels were saved in"),
        (["search", "SAE", "--token", "x"], "folder of features"),
        (["search", "SAE", "--token", "x", "--like", "y"], "one of the three"),
        (["search", "SAE", "--prompt", "x"], "go together"),
        (["search", "SAE", "--like", "SAE"], "steering vector"),
        (["export", "SAE", "--to", "y", "--creator", "me"], "takes no --creator"),
        (["export", "SAE", "--to", "y", "--format", "neuronpedia", "--creator", "me"], "needs --store"),
        (["label", "LATENTS", "--store", "STORE", "--model", "m", "--endpoint", "--out", "y"], "INTERP_EXPLAINER_URL"),
        (["import", "STORE", "--out", "x"], "no SAE of a known format"),
    ],
)
def test_a_wrong_call_is_one_line_and_status_2(
    arguments: list[str], message: str, store: str, sae: str, features: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    work = tmp_path / "work"
    work.mkdir()
    (work / "own.txt").write_text("mine")
    monkeypatch.chdir(work)
    monkeypatch.delenv("INTERP_EXPLAINER_URL", raising=False)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    names = {"STORE": store, "SAE": sae, "LATENTS": features}
    assert status(["sae", *(names.get(word, word) for word in arguments)]) == 2
    said = capsys.readouterr()
    assert message in " ".join(said.err.split())
    assert "Traceback" not in said.err
    assert said.out == ""
    assert [path.name for path in work.iterdir()] == ["own.txt"]
