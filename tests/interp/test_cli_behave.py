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


@pytest.mark.parametrize(("sums", "said"), [(True, False), (False, True)])
def test_a_gate_on_answers_by_chance_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], sums: bool, said: bool
) -> None:
    wrong = np.random.default_rng(0).random(300) < 0.3
    answers = pd.DataFrame(
        {"task": "text", "group": [f"g{i}" for i in range(300)], "right": ~wrong, "nll": wrong + 0.0}
    )
    formats = pd.DataFrame({"format": "text", "by": ["sum", "pmi"], "informative": [sums, True]})
    tables = {name: pd.DataFrame(columns=pd.Index(columns)) for name, columns in QuestionReport.TABLES.items()}
    tables |= {name: frame.reindex(columns=list(dict.fromkeys([*QuestionReport.TABLES[name], *frame])))
               for name, frame in (("answers", answers), ("formats", formats))}  # fmt: skip
    file = QuestionReport(tables, {}, {"model": "tiny"}).save(tmp_path / "answers.json")
    out, _ = run(capsys, "behave", "gate", file, "--signal", "nll", "--risk", 0.3, "--out", tmp_path / "gate.json")
    assert ("The report calls this format not informative" in out) is said
    assert load_behavior_report(tmp_path / "gate.json").card["informative"] is sums


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


@pytest.mark.parametrize("extra", [[], ["--dense"]])
def test_evidence_is_a_folder_of_texts(
    asked: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, extra: list[str]
) -> None:
    seen: dict[str, Any] = {}

    def report(model: Any, questions: Any, source: Any, **options: Any) -> Any:
        seen["source"] = source
        raise ValueError("seen")

    monkeypatch.setattr("interp.cli.behave_answers.grounding_report", report)
    monkeypatch.setattr(interp, "load_sentence_encoder", lambda: lambda texts: np.eye(len(texts)))
    folder = tmp_path / "evidence"
    (folder / "within").mkdir(parents=True)
    words = ["behave", "ground", "m", "--questions", asked, "--documents", folder, *extra]
    _, err = run(capsys, *words, code=2)
    assert "has no .txt or .md file" in err
    (folder / "b.txt").write_text("Two here. Three there.")
    (folder / "within" / "a.MD").write_text("One.")
    (folder / "c.html").write_text("Left out.")
    _, err = run(capsys, *words, code=2)
    assert "seen" in err
    source = seen["source"]
    passages = source.parts[0].passages if extra else source
    assert [passage.text for passage in passages] == ["Two here.", "Three there.", "One."]
    _, err = run(capsys, *words[: -1 - len(extra)], tmp_path / "none.jsonl", code=2)
    assert "there is no file" in err


def test_a_folder_of_texts_is_evidence_for_a_report(
    asked: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interp, "load", lambda name, **options: tiny_model(n_ctx=512))
    (tmp_path / "sums.md").write_text("".join(f"{n} is a number. " for n in range(10)))
    out, _ = run(capsys, "behave", "ground", "m", "--questions", asked, "--documents", tmp_path, "--n", 4, "--json")
    answers = pd.DataFrame(json.loads(out)["tables"]["answers"])
    assert answers["question"].nunique() == 4
    assert "retrieved" in set(answers["condition"])


def test_a_folder_of_questions_is_truthfulqa(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is a folder without mc_task.json or TruthfulQA.csv: give the file"):
        read_questions(str(tmp_path), None, "mc1", 0)
    columns = "Type,Category,Question,Best Answer,Best Incorrect Answer,Correct Answers,Incorrect Answers,Source\n"
    (tmp_path / "TruthfulQA.csv").write_text(f"{columns}A,B,Csv?,Yes,No,Yes,No,s\n")
    (question,) = read_questions(str(tmp_path), None, "mc1", 0)
    assert "Csv?" in question.prompt
    task = [{"question": "Json?", "mc1_targets": {"Yes.": 1, "No.": 0}, "mc2_targets": {"Yes.": 1, "No.": 0}}]
    (tmp_path / "mc_task.json").write_text(json.dumps(task))
    (question,) = read_questions(str(tmp_path), None, "mc1", 0)
    assert "Json?" in question.prompt


def test_questions_without_groups_get_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "asked.jsonl"
    rows = [{"prompt": f"Question: {n} + 1?\nAnswer:", "options": [" 2", " 3"], "answer": 0} for n in range(6)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = read_questions(str(file), None, "binary", 0, own_groups=True)
    assert [question.group for question in found] == [f"question {n}" for n in range(6)]
    some = read_questions(str(file), 2, "binary", 1, own_groups=True)
    assert len(some) == len(read_questions(str(file), 2, "binary", 1)) == 2
    assert all(question in found for question in some)
    words = ["behave", "sycophancy", "m", "--questions", file, "--no-layers"]
    _, err = run(capsys, *words, code=2)
    assert "question 0 has no group" in err
    out, _ = run(capsys, *words, "--own-groups", "--json")
    assert json.loads(out)["card"]["model"] == "tiny-llama"
    assert {question.group for question in read_questions("questions", None, "binary", 0, own_groups=True)} == {
        question.group for question in interp.load_questions("questions")
    }


def test_questions_are_drawn_in_whole_groups() -> None:
    questions = [Question(str(i), (" a", " b"), 0, f"g{i // 2}") for i in range(20)]
    found = drawn(questions, 5, seed=1)
    assert len(found) == 6
    assert [q for q in questions if q in found] == found
    groups = {question.group for question in found}
    assert len([question for question in questions if question.group in groups]) == 6
    assert read_questions("questions", None, "binary", 0) == interp.load_questions("questions")
