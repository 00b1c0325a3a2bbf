"""`interp behave` and the answers of `interp uncertainty`: thin over the functions; what is wrong is one line and status 2."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tiny import tiny_model

import interp
from interp.artifact import atomic_write, hash_json
from interp.behavior import BehaviorReport, QuestionReport, TraceReport, load_behavior_report
from interp.cli.behave_options import drawn, read_questions
from interp.cli.group import status
from interp.dataset import Question

PROMPT = "Question: 1 + 1?\nAnswer:"


@pytest.fixture(autouse=True)
def tiny_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """`interp.load` gives the tiny model, whatever it is asked for."""
    monkeypatch.setattr(interp, "load", lambda name, **options: tiny_model(), raising=False)


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Questions of ten groups."""
    file = tmp_path_factory.mktemp("behave") / "asked.jsonl"
    rows = [
        {"prompt": f"Question: {group} + {n}?\nAnswer:", "options": [f" {group}", f" {group + 1}"], "answer": n}
        | {"group": f"g{group}"}
        for group in range(10)
        for n in (0, 1)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def run(capsys: pytest.CaptureFixture[str], *words: Any, code: int = 0) -> tuple[str, str]:
    """What a command printed and what it said."""
    found = status([*map(str, words)])
    out, err = capsys.readouterr()
    assert found == code, err
    return out, err


def plain_page(report: BehaviorReport, path: Path) -> Path:
    """In place of `write_html`, whose charts take seconds."""
    return atomic_write(path, hash_json(report.to_dict()))


def test_questions_are_asked_kept_and_shown(
    asked: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(QuestionReport, "write_html", plain_page)
    folder = tmp_path / "job"
    words = [
        "behave",
        "questions",
        "m",
        "--questions",
        asked,
        "--samples",
        2,
        "--shots",
        1,
        "--tokens",
        2,
        "--out",
        folder,
    ]
    out, _ = run(capsys, *words)
    assert "not informative" in out
    assert "report.html" in out
    report = load_behavior_report(folder)
    assert isinstance(report, QuestionReport)
    printed, _ = run(capsys, *words, "--json")
    assert json.loads(printed)["card"] == report.card
    _, err = run(capsys, *words[:-2], "--out", folder, "--seed", 3, code=2)
    assert "seed: 0 -> 3" in err
    out, _ = run(capsys, "behave", "show", folder, "--table", "letters", "--json")
    assert [row["letter"] for row in json.loads(out)] == ["A", "B"]
    _, err = run(capsys, "behave", "show", folder, "--table", "taste", code=2)
    assert "there are signals" in err
    run(capsys, "behave", "show", folder, "--html", tmp_path / "again.html")
    assert (tmp_path / "again.html").read_text() == (folder / "report.html").read_text()


def test_a_gate_is_fitted_to_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    wrong = rng.random(900) < 0.3
    answers = pd.DataFrame(
        {
            "task": "text", "question": range(900), "group": [f"g{i}" for i in range(900)], "prompt": "q", "answer": "a",
            "right": ~wrong, "empty": False, "cut": False, "nll": wrong + 0.2 * rng.random(900), "margin_mean": rng.random(900),
        }
    )  # fmt: skip
    empty = {name: pd.DataFrame(columns=pd.Index(columns)) for name, columns in QuestionReport.TABLES.items()}
    file = QuestionReport(empty | {"answers": answers}, {}, {"model": "tiny"}).save(tmp_path / "answers.json")
    out, _ = run(capsys, "behave", "gate", file, "--signal", "nll", "--risk", 0.2, "--save", tmp_path / "gate.json")
    assert "0.2" in out
    gate = interp.load_gate(tmp_path / "gate.json")
    assert gate(pd.DataFrame({"nll": [0.1, 1.1]})).tolist() == [True, False]
    for words, message in (
        (["--signal", "taste"], "there are nll"), (["--task", "free"], "no answers of the task"), (["--risk", "1"], "risk"),
    ):  # fmt: skip
        _, err = run(capsys, "behave", "gate", file, *words, code=2)
        assert message in err


def test_a_trace_is_printed_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run(capsys, "behave", "trace", "m", PROMPT, "--answer", "two", "--out", tmp_path / "trace.json")
    assert "two" in out
    assert isinstance(load_behavior_report(tmp_path / "trace.json"), TraceReport)
    _, err = run(capsys, "behave", "gate", tmp_path / "trace.json", code=2)
    assert "interp behave questions" in err


def test_text_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["behave", "text", "m", "--texts", "python_docs", "--n-texts", 6, "--max-tokens", 12, "--layers", "none"]
    out, _ = run(capsys, *words, "--json")
    assert "tables" in json.loads(out)
    _, err = run(capsys, *words[:-1], "first", code=2)
    assert "whole numbers between commas" in err


def test_uncertainty_of_answers_and_of_drawn_ones(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run(capsys, "uncertainty", "m", PROMPT, "--answer", "2", "--answer", "3", "--json")
    assert [row["answer"].strip() for row in json.loads(out)] == ["2", "3"]
    out, _ = run(capsys, "uncertainty", "m", PROMPT, "--answer", "2")
    assert "nll_mean" in out
    out, _ = run(capsys, "uncertainty", "m", PROMPT, "--samples", 3, "--tokens", 2)
    assert "nats" in out
    for words in (["--samples", 3, "--answer", "2"], ["--match", "exact"]):
        _, err = run(capsys, "uncertainty", "m", PROMPT, *words, code=2)
        assert "--samples" in err


def test_questions_are_drawn_in_whole_groups() -> None:
    questions = [Question(str(i), (" a", " b"), 0, f"g{i // 2}") for i in range(20)]
    found = drawn(questions, 5, seed=1)
    assert len(found) == 6
    assert [q for q in questions if q in found] == found
    groups = {question.group for question in found}
    assert len([question for question in questions if question.group in groups]) == 6
    assert read_questions("questions", None, "binary", 0) == interp.load_questions("questions")
