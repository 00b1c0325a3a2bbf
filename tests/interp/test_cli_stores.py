"""The verbs around stores: what they write, what they ask, and what they refuse."""

import json
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner
from tiny import tiny_model

import interp
from interp.cli.group import commands, status

TEXTS = [f"the city of {name} is away" for name in ("Rome", "Oslo", "Bern", "Lima") * 3]


@pytest.fixture
def stores(tmp_path: Path) -> Path:
    for name, texts in (("a", TEXTS), ("b", TEXTS[:5])):
        interp.record(tiny_model(), texts, "resid_post:0", path=tmp_path / "runs" / name, progress=False)
    return tmp_path / "runs"


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(interp, "load", lambda name: tiny_model())
    return "tiny"


@pytest.fixture
def facts(tmp_path: Path) -> str:
    file = tmp_path / "facts.csv"
    pd.DataFrame({"statement": TEXTS, "label": [0, 1] * 6, "city": list("abcd") * 3}).to_csv(file, index=False)
    return str(file)


def test_plan_says_what_it_takes_and_writes_nothing(
    model: str, facts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(tmp_path.rglob("*"))
    assert status(["record", model, facts, "--plan", "--out", str(tmp_path / "x")]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "12 from 12 examples" in out
    assert "8 duplicates" in out
    assert "free" in out
    assert status(["record", model, facts, "--plan", "--tokens", "last", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["texts"], plan["rows"], plan["shards"]) == (12, 12, 1)
    assert plan["computed"] < plan["tokens"]
    assert sorted(tmp_path.rglob("*")) == before


def test_record_takes_every_option(model: str, facts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "out")
    call = [
        "record", model, facts, "--out", out, "--sites", "resid_post:*", "--tokens", "last", "--tokens", "0,-2", "--limit", "7",
        "--group", "city", "--signals", "--head-stats", "--batch-size", "2", "--dtype", "float32", "--json",
    ]  # fmt: skip
    assert status(call) == 0
    assert len(json.loads(capsys.readouterr().out)) == 2
    store = interp.open_store(out)
    assert store.card["tokens"] == ["last", "positions[0,-2]"]
    assert (store.n_texts, store.card["run"]["batch_size"], store.dtype) == (7, 2, "float32")
    assert {"rank", "rule:last"} <= set(store.tokens.columns)
    assert store.head_stats(1)["first"].shape == (store.n_rows, 4)
    assert store.examples.group.tolist() == list("abcdabc")
    assert (
        status(
            ["record", model, facts, "--out", out + "2", "--tokens", "generated", "--generate", "3", "--label", "city"]
        )
        == 2
    )
    assert "label" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["facts"], "there is no bundled data set 'facts'"),
        (["no/such/file.csv", "--out", "x"], "no file"),
        (["capitals"], "--out"),
        (["capitals", "--out", "x", "--workers", "2"], "--engine ray"),
        (["capitals", "--out", "x", "--tokens", "lst"], "did you mean"),
        (["capitals", "--out", "x", "--engine", "rya"], "did you mean 'ray'"),
        (["capitals", "--out", "x", "--limit", "0"], "limit"),
    ],
)
def test_a_wrong_call_says_what_to_do(
    model: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    words = [*arguments, *(["--out", "x"] if arguments == ["facts"] else [])]
    assert status(["record", model, *words]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_rm_asks_and_takes_nothing_but_a_store(stores: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runner = CliRunner()
    asked = runner.invoke(commands, ["store", "rm", str(stores / "a")], input="n\n")
    assert asked.exit_code == 1
    assert "12 texts" in asked.stderr
    assert (stores / "a").is_dir()
    assert runner.invoke(commands, ["store", "rm", str(stores / "a")], input="y\n").exit_code == 0
    assert not (stores / "a").exists()
    (stores / "b" / "notes.txt").write_text("mine")
    assert status(["store", "rm", str(stores / "b"), "--yes"]) == 2
    assert "notes.txt" in capsys.readouterr().err
    assert (stores / "b" / "store.json").is_file()
    assert status(["store", "rm", str(stores), "--yes"]) == 2


def test_rm_asks_only_where_there_is_something(stores: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path, message in ((stores / "nope", "there is no store at"), (stores, "holds what does not belong to a store")):
        assert status(["store", "rm", str(path)]) == 2
        said = capsys.readouterr()
        assert message in said.err
        assert "Remove" not in said.err + said.out
    card = stores / "a" / "store.json"
    card.write_text("{")
    runner = CliRunner()
    for answer in ("n\n", ""):  # a person who says no, and nobody to ask
        asked = runner.invoke(commands, ["store", "rm", str(stores / "a")], input=answer)
        assert asked.exit_code == 1
        assert "not removed" in asked.stderr
        assert card.is_file()
    assert runner.invoke(commands, ["store", "rm", str(stores / "a")], input="y\n").exit_code == 0
    assert not (stores / "a").exists()


def test_merge_ls_and_info(stores: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both = stores / "both"
    assert status(["store", "merge", str(both), str(stores / "a"), str(stores / "b"), "--json"]) == 0
    capsys.readouterr()
    assert interp.open_store(both).n_texts == 17
    interp.open_store(stores / "a").add_sites(tiny_model(), "resid_mid:0", progress=False)
    assert status(["store", "ls", str(stores), "--json"]) == 0
    table = {Path(row["store"]).name: row for row in json.loads(capsys.readouterr().out)}
    assert {name: row["texts"] for name, row in table.items()} == {"a": 12, "b": 5, "both": 17}
    assert table["a"]["sites"] == 2
    assert all(row["finished"] == "yes" for row in table.values())
    assert status(["store", "info", str(stores / "a"), "--json"]) == 0
    info = json.loads(capsys.readouterr().out)
    assert {row["site"] for row in info["sites"]} == {"blocks.0.hook_resid_post", "blocks.0.hook_resid_mid"}
    assert (info["texts"], info["tokens"], info["dtype"], info["finished"]) == (12, "all", "bfloat16", True)
    assert info["model"] == "tiny-llama"
    assert status(["store", "info", str(stores / "a")]) == 0
    said = capsys.readouterr().out
    assert f"model tiny-llama ({info['model_fingerprint']}), tokens all" in said
    assert "12 texts" in said
    assert status(["store", "verify", str(both)]) == 0
