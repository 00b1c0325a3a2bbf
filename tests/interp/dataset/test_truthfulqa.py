"""TruthfulQA's own files: both versions, every form, and what is wrong with a file."""

import csv
import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from interp.dataset import ContradictoryLabelsWarning, Dataset, Question, load_truthfulqa

COLUMNS = ["Type", "Category", "Question", "Best Answer", "Correct Answers", "Incorrect Answers", "Source"]
ROW = [
    "Adversarial",
    "Myths",
    "Are bats blind?",
    "No, bats see",
    "No, bats see; They see; They see",
    "Yes; Bats are blind;",
    "",
]
TARGETS = {
    "question": "Are bats blind?",
    "mc0_targets": {"No, bats see": 1, "Yes": 0},
    "mc1_targets": {"No, bats see": 1, "Yes": 0, "": 0, "Bats are blind": 0},
    "mc2_targets": {"They see": 1, "No, bats see": 1, "Yes": 0, "Bats are blind": 0},
}


def csv_file(folder: Path, rows: list[list[str]], columns: list[str] = COLUMNS, encoding: str = "utf-8-sig") -> Path:
    path = folder / "TruthfulQA.csv"
    with path.open("w", encoding=encoding, newline="") as file:
        csv.writer(file).writerows([columns, *rows])
    return path


def json_file(folder: Path, rows: Any) -> Path:
    path = folder / "mc_task.json"
    path.write_text(json.dumps(rows))
    return path


def right(question: Question) -> set[str]:
    return {question.options[place] for place in question.meta["right"]}


# -------------------------------------------------------------------------------------------------- the real files


@pytest.mark.parametrize("name", ["TruthfulQA.csv", "mc_task.json"])
def test_the_published_files_are_read_as_they_are(shared_data: Path, name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ContradictoryLabelsWarning)  # the CSV has `Unknown` on both sides, twice
        read = {form: load_truthfulqa(shared_data / "truthfulqa" / name, form) for form in ("binary", "mc1", "mc2")}
        statements = load_truthfulqa(shared_data / "truthfulqa" / name, "statements")
    for form, questions in read.items():
        assert len(questions) == 790
        assert all(len(set(question.options)) == len(question.options) for question in questions)
        assert all(option.startswith(" ") and option.strip() for question in questions for option in question.options)
        if form != "mc2":
            assert all(question.meta["right"] == [question.answer] for question in questions)
        first = sum(question.answer == 0 for question in questions) / 790
        chance = sum(1 / len(question.options) for question in questions) / 790
        assert form == "mc2" or abs(first - chance) < 0.06  # in the files the right one always stands first
    assert {len(question.options) for question in read["binary"]} == {2}
    # A statement is the prompt with an option behind it: what a probe reads is what multiple choice scores.
    assert isinstance(statements, Dataset)
    assert statements.labels is not None
    assert len(set(statements.groups or [])) == 790
    by_label = {label: {e.text for e in statements if e.label == label} for label in (0, 1)}
    assert by_label[1] == {q.prompt + option for q in read["mc2"] for option in right(q)}
    assert len(by_label[0]) + len(by_label[1]) == len(statements) == sum(len(q.options) for q in read["mc2"])
    topics = {e.meta.get("topic") for e in statements}
    assert len(topics) == (37 if name.endswith("csv") else 1)


def test_both_files_hold_the_same_binary_questions(shared_data: Path) -> None:
    """Whatever is not shuffled away by the order of the file: the prompts, the right and the wrong answers."""
    files = [
        load_truthfulqa(shared_data / "truthfulqa" / name, "binary") for name in ("TruthfulQA.csv", "mc_task.json")
    ]
    a, b = ({q.prompt: (q.options[q.answer], frozenset(q.options)) for q in questions} for questions in files)
    assert a == b
    same = sum(x.options == y.options for x, y in zip(*files))
    assert same == 790  # a question's order depends on the seed and the question alone


# -------------------------------------------------------------------------------------------------- both versions


def test_the_version_of_817_questions_has_no_binary_form(tmp_path: Path) -> None:
    path = csv_file(tmp_path, [ROW])
    for form, options in (("mc1", {" No, bats see", " Yes", " Bats are blind"}), ("mc2", None)):
        (question,) = load_truthfulqa(path, form)
        assert question.prompt == "Q: Are bats blind?\nA:"
        assert question.options[question.answer] == " No, bats see"
        assert question.group == question.meta["question"] == "Are bats blind?"
        assert question.meta["topic"] == "Myths"
        assert set(question.options) == (options or {" No, bats see", " They see", " Yes", " Bats are blind"})
    with pytest.raises(ValueError, match="version of 817 questions, which has no binary form"):
        load_truthfulqa(path, "binary")
    old = {key: value for key, value in TARGETS.items() if key != "mc0_targets"}
    with pytest.raises(ValueError, match=r"has no key 'mc0_targets'.*January 2025"):
        load_truthfulqa(json_file(tmp_path, [old]))
    (question,) = load_truthfulqa(json_file(tmp_path, [old]), "mc1")
    assert sorted(question.options) == [" Bats are blind", " No, bats see", " Yes"]  # the empty answer is none


def test_best_answer_is_the_answer_of_mc2_and_a_best_wrong_one_makes_the_binary_form(tmp_path: Path) -> None:
    (question,) = load_truthfulqa(json_file(tmp_path, [TARGETS]), "mc2")
    assert question.options[question.answer] == " No, bats see"
    assert right(question) == {" They see", " No, bats see"}
    columns = [*COLUMNS[:4], "Best Incorrect Answer", *COLUMNS[4:]]
    (question,) = load_truthfulqa(csv_file(tmp_path, [[*ROW[:4], "Yes", *ROW[4:]]], columns, "utf-8"))
    assert set(question.options) == {" No, bats see", " Yes"}


def test_the_seed_orders_the_options_and_other_questions_do_not(tmp_path: Path) -> None:
    rows = [{**TARGETS, "question": f"Are bats {n}?"} for n in range(40)]
    many = load_truthfulqa(json_file(tmp_path, rows), "mc2", seed=3)
    few = load_truthfulqa(json_file(tmp_path, rows[::-2]), "mc2", seed=3)
    order = {question.prompt: question.options for question in many}
    assert all(order[question.prompt] == question.options for question in few)
    assert len(set(order.values())) > 10
    assert [q.options for q in load_truthfulqa(json_file(tmp_path, rows), "mc2", seed=4)] != list(order.values())
    statements = load_truthfulqa(json_file(tmp_path, rows[:1]), "statements", seed=9)
    assert [e.label for e in statements] == [1, 1, 0, 0]
    assert statements.texts[0] == "Q: Are bats 0?\nA: They see"


# -------------------------------------------------------------------------------------------------------- bad input


def test_an_answer_on_both_sides_is_left_out_with_a_warning(tmp_path: Path) -> None:
    row = [*ROW[:4], "No, bats see; unknown", "Yes; Unknown ", ""]
    with pytest.warns(ContradictoryLabelsWarning, match="1 answers stand both as right and as wrong"):
        statements = load_truthfulqa(csv_file(tmp_path, [row]), "statements")
    assert statements.texts == ["Q: Are bats blind?\nA: No, bats see", "Q: Are bats blind?\nA: Yes"]
    assert statements.card["left_out"] == ["unknown"]


@pytest.mark.parametrize(
    ("change", "form", "message"),
    [
        ({"mc1_targets": {"Yes": 0, "Perhaps": 0}}, "mc1", "1 of 2 rows have no right answer"),
        ({"mc2_targets": {"Yes": 1}}, "statements", "1 of 2 rows have no wrong answer"),
        ({"mc1_targets": {"Yes": 1, "No": 1, "Perhaps": 0}}, "mc1", "more than one right answer.*form='mc2'"),
        ({"mc1_targets": {"Yes": 2, "No": 0}}, "mc1", "mc1_targets that are not such"),
        ({"mc1_targets": ["Yes"]}, "mc1", "mc1_targets that are not such"),
        ({"question": " "}, "mc1", "no question"),
        ({"question": "Are bats blind?"}, "mc1", "a question that stands there before"),
        ({}, "mc3", "unknown form 'mc3'.*'binary', 'mc1', 'mc2', 'statements'"),
    ],
)
def test_what_is_wrong_with_a_json_file_is_named(tmp_path: Path, change: dict, form: str, message: str) -> None:
    path = json_file(tmp_path, [TARGETS, {**TARGETS, "question": "Are cats?", **change}])
    with pytest.raises(ValueError, match=message):
        load_truthfulqa(path, form)


def test_what_is_wrong_with_a_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no file"):
        load_truthfulqa(tmp_path / "none.csv")
    path = tmp_path / "mc_task.json"
    path.write_text(json.dumps([TARGETS])[:80])
    with pytest.raises(ValueError, match=r"not valid JSON.*damaged"):
        load_truthfulqa(path)
    with pytest.raises(ValueError, match="a list of questions with their targets"):
        load_truthfulqa(json_file(tmp_path, {"question": "Are bats blind?"}))
    with pytest.raises(ValueError, match=r"own files are TruthfulQA\.csv and mc_task.json"):
        load_truthfulqa(Path(__file__))
    with pytest.raises(ValueError, match=r"has no column 'Correct Answers'\. Did you mean"):
        load_truthfulqa(csv_file(tmp_path, [ROW], [*COLUMNS[:4], "Correct Answer", *COLUMNS[5:]]), "mc1")
    with pytest.raises(ValueError, match="1 of 2 rows have no Incorrect Answers"):
        load_truthfulqa(csv_file(tmp_path, [ROW, ["", "", "Are cats?", "No", "No", "", ""]]), "mc1")
    with pytest.raises(ValueError, match="1 of 1 rows have no wrong answer"):
        load_truthfulqa(csv_file(tmp_path, [[*ROW[:5], " ; ", ""]]), "mc2")
