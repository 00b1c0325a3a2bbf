"""The command line: what works, and that a wrong call is one line and status 2."""

import json
from pathlib import Path

import pandas as pd
import pytest
from model_folder import write_model_folder

import interp
from interp.cli.group import commands, status


def verbs(group: object, prefix: str = "") -> list[str]:
    """Every command below a group."""
    found = []
    for name, command in group.commands.items():
        found += verbs(command, f"{prefix}{name} ") if hasattr(command, "commands") else [f"{prefix}{name}"]
    return found


@pytest.fixture
def tiny_folder(tmp_path: Path) -> Path:
    """A model folder that `interp.load` reads: tiny, random, with a tokenizer."""
    return write_model_folder(tmp_path / "tiny")


@pytest.mark.parametrize("verb", verbs(commands))
def test_every_verb_has_help_with_an_example(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert status([*verb.split(), "--help"]) == 0
    assert "Example: interp " + verb in " ".join(capsys.readouterr().out.split())


def test_the_examples_parse() -> None:
    for verb in verbs(commands):
        command = commands
        for word in verb.split():
            command = command.commands[word]
        example = command.epilog.removeprefix("Example: interp ")
        words = [word.strip("'") for word in __import__("shlex").split(example)][len(verb.split()) :]
        command.make_context(verb, words, resilient_parsing=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["lense"], "No such command"),
        (["lens", "smollm2-135n", "text"], "smollm2-135m"),
        (["lens"], "Missing argument"),
        (["record", "smollm2-135m", "citees", "--out", "x"], "cities"),
        (["store", "info", "nowhere"], "nowhere"),
        (["demo", "--spec", "nowhere.toml"], "nowhere.toml"),
        (["app", "--host", "0.0.0.0"], "127.0.0.1"),
        (["app", "--run", "nowhere"], "nowhere is no run"),
        (["calibrate", "nowhere.csv", "--p", "p", "--y", "y", "--meaning", "p_top"], "nowhere.csv"),
        (["steer", "make", "smollm2-135m", "sentimant", "--site", "resid_post:1", "--out", "v"], "sentiment"),
        (["steer", "apply", "smollm2-135m", "nowhere.safetensors", "text"], "nowhere.safetensors"),
    ],
)
def test_a_wrong_call_is_one_line_and_status_2(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert status(arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert "Traceback" not in captured.err
    assert list(tmp_path.iterdir()) == []


def test_work_on_a_folder_model(tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, out = str(tiny_folder), tmp_path / "store"
    file = tmp_path / "facts.csv"
    pd.DataFrame({"claim": ["a is a", "a is b", "b is b", "b is a"], "truth": [1, 0, 1, 0], "of": list("aabb")}).to_csv(
        file
    )
    options = ["--text", "claim", "--label", "truth", "--group", "of"]
    assert status(["record", model, str(file), "--out", str(out), *options, "--json"]) == 0
    table = json.loads(capsys.readouterr().out)
    assert [row["rows"] for row in table] == [24, 24]
    assert status(["store", "verify", str(out)]) == 0
    assert "whole" in capsys.readouterr().out
    assert status(["store", "ls", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["texts"] == 4
    assert list(interp.open_store(out).examples["group"]) == list("aabb")

    shard = next((out / "shards").glob("*/blocks.0.*"))
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    assert status(["store", "verify", str(out), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)[0]["file"] == shard.name

    for verb, rows in (("lens", 3), ("uncertainty", 4)):
        assert status([verb, model, "a is", "--json"]) == 0
        assert len(json.loads(capsys.readouterr().out)) in (rows, 4)
    assert status(["sites", model, "--json"]) == 0
    assert "resid_post:1" in {row["shorthand"] for row in json.loads(capsys.readouterr().out)}
    assert status(["record", model, str(file), "--out", str(out), "--text", "claims"]) == 2
    assert "claim" in capsys.readouterr().err


def test_a_store_that_cannot_be_read_does_not_hide_the_others(
    tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = interp.load(str(tiny_folder))
    for name in ("a", "b"):
        interp.record(model, ["one", "two"], "resid_post:0", path=tmp_path / "runs" / name, progress=False)
    (tmp_path / "runs" / "a" / "store.json").write_text("{")
    assert status(["store", "ls", str(tmp_path / "runs"), "--json"]) == 0
    broken, whole = json.loads(capsys.readouterr().out)
    assert "cannot be read" in broken["dtype"]
    assert whole["texts"] == 2


def test_no_arguments_print_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert status([]) == 2
    assert "Commands:" in capsys.readouterr().err


def test_calibrate_and_listings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "answers.csv"
    pd.DataFrame({"confidence": [0.9, 0.6, 0.8, 0.7] * 5, "right": [1, 0, 1, 1] * 5}).to_csv(file)
    assert status(["calibrate", str(file), "--p", "confidence", "--y", "right", "--meaning", "p_top", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["n"] == 20
    assert status(["calibrate", str(file), "--p", "confidance", "--y", "right", "--meaning", "p_top"]) == 2
    assert "confidence" in capsys.readouterr().err
    assert status(["datasets", "--json"]) == 0
    assert any("cities" in row["name"] for row in json.loads(capsys.readouterr().out))


def test_calibrate_reads_true_and_false_in_any_case(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "answers.csv"
    asked = ["calibrate", str(file), "--p", "p", "--y", "y", "--meaning", "p_true", "--json"]
    shown = []
    for words in (("1", "0"), ("true", "false"), ("TRUE", "False")):
        file.write_text("p,y\n" + "".join(f"0.7,{words[0]}\n0.2,{words[1]}\n" for _ in range(5)))
        assert status(asked) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1] == shown[2]
    for text, message in (("p,y\n0.7,perhaps\n", "'perhaps' in row 0"), ("", "is empty: write a line")):
        file.write_text(text)
        assert status(asked) == 2
        assert message in capsys.readouterr().err


def test_models_lists_the_catalogue_and_the_families(capsys: pytest.CaptureFixture[str]) -> None:
    assert status(["models", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert any("smollm2-135m" in row["name"] for row in found["models"])
    gguf = {row["family"]: row["gguf"] for row in found["families"]}
    assert (gguf["llama"], gguf["bert"]) == (True, False)
    assert status(["models"]) == 0
    shown = capsys.readouterr().out
    assert "smollm2-135m" in shown
    assert all(family in shown for family in gguf)


def test_an_unforeseen_error_is_status_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def broken() -> None:
        raise RuntimeError("the disk melted")

    monkeypatch.setattr(interp, "models", broken)
    assert status(["models"]) == 1
    assert "RuntimeError: the disk melted" in capsys.readouterr().err
    monkeypatch.setenv("INTERP_DEBUG", "1")
    with pytest.raises(RuntimeError):
        status(["models"])
