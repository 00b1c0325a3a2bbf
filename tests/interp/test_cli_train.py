"""`interp train-toy`: what it prints, what it leaves, and what it refuses."""

import json
from pathlib import Path

import pytest

import interp
from interp.cli.group import status


def test_induction_prints_a_row_for_each_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "toy"
    arguments = ["train-toy", "induction", "--out", str(out), "--steps", "4", "--every", "2"]
    assert status([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["step"] for row in found["checkpoints"]] == [0, 2, 4]
    columns = {"step", "loss_first_copy", "loss_second_copy", "induction", "induction_head", "previous_token"}
    assert columns <= set(found["checkpoints"][0])
    assert found["steepest"] in (2, 4)
    assert json.loads((out / "induction.json").read_text())["steepest"] == found["steepest"]
    assert interp.load_checkpoint(out).cfg.name == "induction-toy"

    assert status(arguments) == 0
    text = capsys.readouterr().out
    assert "induction_head" in text
    assert "steepest at" in text
    assert status([*arguments[:-3], "6", "--every", "2"]) == 2
    assert "n_steps" in capsys.readouterr().err


def test_overfit_says_when_the_loss_was_below_its_target(capsys: pytest.CaptureFixture[str]) -> None:
    assert status(["train-toy", "overfit", "--steps", "200", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["first loss"] > 4
    assert found["last loss"] < 0.01
    assert 0 < found["below 0.01 at step"] < 200
    assert status(["train-toy", "overfit", "--steps", "3"]) == 2
    assert "not below 0.01" in capsys.readouterr().err


def test_a_place_that_holds_no_run_is_refused_with_the_options_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    places = {
        str(tmp_path): "not empty ('notes.txt' lies there)",
        str(tmp_path / "notes.txt"): "is a file",
        str(tmp_path / "notes.txt" / "run"): "cannot be made",
    }
    for place, message in places.items():
        assert status(["train-toy", "induction", "--out", place, "--steps", "2"]) == 2
        said = capsys.readouterr()
        assert "--out" in said.err
        assert message in said.err
        assert said.err.count("\n") == 1
        assert said.out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("option", ["--steps", "--every", "--seed"])
def test_numbers_out_of_range_are_refused_with_the_options_name(
    tmp_path: Path, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(["train-toy", "induction", "--out", str(tmp_path / "run"), option, "-1"]) == 2
    assert option in capsys.readouterr().err
