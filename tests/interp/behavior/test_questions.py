"""Question reports: who is shown and who is measured, grading, ranking of planted signals, and the real model."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tiny import tiny_model

from interp.behavior.questions import QuestionReport, question_report, tables
from interp.behavior.questions.asking import asked, bare, grade, prompt_of
from interp.behavior.questions.work import FREE, TEXT
from interp.dataset import Question, load_questions
from interp.engine import RayEngine
from interp.model import HookedTransformer
from interp.uncertainty.questions import right_options

TOPICS = ("sums", "words")


def made(n_groups: int = 8) -> list[Question]:
    """Two questions a group; topics alternate by group."""
    found = []
    for group in range(n_groups):
        options, meta = (f" {group}", f" {group + 9}"), {"topic": TOPICS[group % 2]}
        found += [
            Question(f"Question: {group} + {part}?\nAnswer:", options, part, f"g{group}", meta) for part in (0, 1)
        ]
    return found


# -------------------------------------------------------------------------------------------------------------- asking


def test_shown_questions_and_their_groups_are_not_measured() -> None:
    questions = made()
    found = asked(questions, 2, seed=3)
    shown = {shot.group for shot in found.shots}
    assert len(shown) == 2
    assert {shot.meta["topic"] for shot in found.shots} == set(TOPICS)
    assert shown.isdisjoint({question.group for question in found.questions})
    assert len(found.questions) + len(found.shots) + found.left_out == len(questions)
    assert asked(questions, 2, seed=3) == found
    assert asked(questions, 0, seed=3).questions == tuple(questions)
    first = found.shots[0]
    assert found.prompt(questions[0]).startswith(f"{first.prompt}{first.options[first.answer]}\n\n")


@pytest.mark.parametrize(
    ("questions", "n_shots", "message"),
    [
        ([], 0, "no questions"),
        ([Question("q", (" a", " b"), 0)], 0, "no group"),
        ([Question("q", (" a", " a"), 0, "g")], 0, "all different"),
        ([Question("q", (" a",), 0, "g")], 0, "at least two"),
        ([Question("q", (" a", " b"), 0, "g", {"right": [0, 1]})], 0, "right and wrong"),
        ([Question("q", (" a", " b"), 0, "g", {"right": [1]})], 0, "must be a right one"),
        ([Question("q", (" a", " b"), 0, "g"), Question("q", (" a", " b"), 0, "h")], 0, "two groups"),
        (made(1), 1, "leave none"),
    ],
)
def test_questions_that_cannot_be_asked_are_refused(questions: list[Question], n_shots: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        asked(questions, n_shots, seed=0)


def test_a_question_without_the_words_around_it() -> None:
    assert bare("Question: What is it?\nAnswer:") == "What is it?"
    assert bare("Q: What is it?\nA:") == "What is it?"
    assert bare("Say: what\nis it?") == "Say: what\nis it?"
    assert prompt_of([("Q: a?\nA:", " b")], "Q: c?\nA:") == "Q: a?\nA: b\n\nQ: c?\nA:"


class Nearest:
    """An encoder for which texts with one first letter are alike."""

    def __call__(self, texts: list[str], truncate: bool = False) -> np.ndarray:
        return np.stack([np.eye(128)[ord(text.strip()[0].lower())] for text in texts])


def test_grading() -> None:
    question = Question("q", (" Paris", " Rome", " Lyon"), 0, "g", {"right": [0, 2]})
    assert right_options(question) == {0, 2}
    assert grade(question, "paris, of course", "match")
    assert grade(question, "Lyon", "match")
    assert not grade(question, "Rome", "match")
    assert not grade(question, "  ", "match")
    nested = Question("q", (" New York", " New York City", " ..."), 0, "g")
    assert grade(nested, "New York, of course", "match")
    assert not grade(nested, "New York City", "match")
    assert grade(question, "Lutetia", "nearest", Nearest())
    assert not grade(question, "Ravenna", "nearest", Nearest())


# ------------------------------------------------------------------------------------------------------------- ranking


def planted(n_groups: int = 60) -> tuple[pd.DataFrame, list[Question]]:
    """Answers of which `nll` knows everything, `margin_mean` the same with the other sign, and `lens_kl` nothing."""
    questions, rng = made(n_groups), np.random.default_rng(0)
    right = rng.random(len(questions)) < 0.6
    columns = {
        "task": TEXT, "question": range(len(questions)), "right": right, "nll": 0.01 * rng.random(len(right)) - right,
        "margin_mean": right + 0.01 * rng.random(len(right)), "lens_kl": rng.random(len(right)), "n_tokens": 1.0,
    }  # fmt: skip
    return pd.DataFrame(columns), questions


def test_planted_signals_are_ranked_and_constant_ones_left_out() -> None:
    answers, questions = planted()
    signals, curves, notes = tables.ranked(answers, questions, [TEXT], n_boot=200, seed=0)
    by_name = signals.set_index("signal")
    assert notes == []
    assert by_name.loc[["nll", "margin_mean"], "auroc"].tolist() == [1.0, 1.0]
    assert by_name.loc["lens_kl", "low"] < 0.5 < by_name.loc["lens_kl", "high"]
    assert "n_tokens" not in by_name.index
    perfect = curves.loc[(curves["signal"] == "nll") & (curves["coverage"] <= answers["right"].mean())]
    assert (perfect["risk"] == 0).all()
    whole = curves.loc[np.isclose(curves["coverage"], 1), "risk"]
    assert np.allclose(whole, 1 - answers["right"].mean())


def test_one_class_of_correctness_is_a_note_and_no_figure() -> None:
    answers, questions = planted()
    signals, curves, notes = tables.ranked(answers.assign(right=True), questions, [TEXT], n_boot=200, seed=0)
    assert signals.empty
    assert curves.empty
    assert len(notes) == 1
    assert "all" in notes[0]


def test_the_inside_is_found_where_it_knows_better() -> None:
    questions = made(40)
    rng = np.random.default_rng(0)
    sizes = [len(question.options) for question in questions]
    right = np.concatenate([np.arange(size) == question.answer for size, question in zip(sizes, questions)])
    stream = rng.normal(size=(len(right), 12)) + 6.0 * right[:, None] * np.eye(12)[0]
    options = pd.DataFrame(
        {
            "question": np.repeat(np.arange(len(questions)), sizes),
            "option": np.concatenate([np.arange(size) for size in sizes]),
            "format": TEXT, "logprob_sum": rng.random(len(right)),
        }
    )  # fmt: skip
    frame, probe, notes = tables.inside(options, questions, {"a": stream}, n_folds=4, n_boot=200, seed=0)
    figures = frame.set_index("figure")["value"]
    assert notes == []
    assert probe is not None
    assert figures["inside right (probe of the option's last token)"] > 0.95
    assert 0.3 < figures["output right"] < 0.7
    assert frame.set_index("figure").loc["inside less output, accuracy", "low"] > 0


def scored(questions: list[Question], picked: list[int]) -> pd.DataFrame:
    """Rows of both formats in which these options are the most probable ones."""
    rows = [
        {
            "question": index, "option": place, "format": format, "logprob_sum": float(place == choice), "logprob_bare": 0.0,
            "logprob_mean": float(place == choice), "n_tokens": 1, "group": question.group,
            "right": place in right_options(question),
        }
        for format in ("text", "letter")
        for index, (question, choice) in enumerate(zip(questions, picked))
        for place in range(len(question.options))
    ]  # fmt: skip
    return pd.DataFrame(rows)


def free_answers(right: list[bool]) -> pd.DataFrame:
    return pd.DataFrame({"task": FREE, "right": right, "self_consistency": 0.5, "sequence_probability": 0.5})


def table_of(questions: list[Question], picked: list[int], answers: pd.DataFrame, **options: Any) -> pd.DataFrame:
    settings: dict[str, Any] = {"grader": "match", "pmi": True, "n_bins": 5, "n_boot": 100, "seed": 0} | options
    frame, _, _ = tables.formats(scored(questions, picked), answers, questions, **settings)
    return frame.set_index(["format", "by"])


def test_any_right_option_is_right() -> None:
    several = [Question(f"q\n{i}", (" a", " b", " c", " d"), 0, f"g{i}", {"right": [0, 2]}) for i in range(40)]
    frame = table_of(several, [2] * 40, free_answers([True] * 40))
    assert frame.loc[("text", "sum"), "accuracy"] == 1
    assert frame.loc[("text", "sum"), "chance"] == 0.5


def test_always_the_same_letter_is_no_knowledge() -> None:
    mostly_first = [Question(f"q\n{i}", (" a", " b", " c", " d"), i % 10 // 8, f"g{i}") for i in range(60)]
    frame = table_of(mostly_first, [0] * 60, free_answers([True] * 60))
    assert frame.loc[("letter", "sum"), "chance"] == 0.8
    assert not frame.loc[("letter", "sum"), "informative"]


def test_the_nearest_option_is_right_by_chance_at_times() -> None:
    questions = [Question(f"q\n{i}", (f" {i}", f" {i}x"), 0, f"g{i}") for i in range(60)]
    half = free_answers([i % 2 == 0 for i in range(60)])
    by_match, nearest = table_of(questions, [0] * 60, half), table_of(questions, [0] * 60, half, grader="nearest")
    assert by_match.loc[(FREE, "probability"), "informative"]
    assert nearest.loc[(FREE, "probability"), "chance"] == 0.5
    assert not nearest.loc[(FREE, "probability"), "informative"]


# -------------------------------------------------------------------------------------------------------------- report


def small(model: HookedTransformer, **options: Any) -> QuestionReport:
    return question_report(
        model, made(), n_samples=3, n_shots=1, max_new_tokens=3, n_boot=100, n_folds=3, seed=1, **options
    )


def test_a_model_that_knows_nothing_is_ranked_on_nothing(tmp_path: Path) -> None:
    model = tiny_model(n_ctx=256)
    report = small(model, out=tmp_path / "job")
    assert report.signals.empty
    assert any("No format is told from chance" in note for note in report.notes)
    assert any("reached 3 tokens" in note for note in report.notes)
    assert set(report.answers["task"]) == {TEXT, FREE}
    assert len(report.answers) == 2 * 14
    assert "not informative" in report.summary()
    with pytest.raises(ValueError, match="nothing to draw"):
        report.plot()
    again = small(model, out=tmp_path / "job")
    assert again.to_dict() == report.to_dict()
    text = (tmp_path / "job" / "report.html").read_text()
    assert "not informative" in text
    assert QuestionReport.load(tmp_path / "job" / "report.json").summary() == report.summary()


def test_the_batch_size_changes_nothing() -> None:
    model = tiny_model("gpt2", n_ctx=256)
    one, many = small(model, batch_size=1).answers, small(model, batch_size=32).answers
    numbers = [name for name in one if name not in QuestionReport.WORDS]
    np.testing.assert_allclose(one[numbers].to_numpy(float), many[numbers].to_numpy(float), atol=2e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_samples": 1}, "n_samples"),
        ({"grader": "taste"}, "grader"),
        ({"n_folds": 2}, "n_folds"),
        ({"seed": 0.5}, "whole number"),
    ],
)
def test_values_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        question_report(tiny_model(), made(), **options)


def test_prompts_of_one_line_have_no_pmi() -> None:
    questions = [Question(f"{i} is", (f" {i}", f" {i + 1}"), i % 2, f"g{i}") for i in range(8)]
    report = question_report(tiny_model(), questions, free=False, p_true=False, n_boot=100, n_folds=3)
    assert "pmi" not in report.formats["by"].tolist()
    assert any("single line" in note for note in report.notes)


@pytest.mark.slow
def test_ray_gives_the_same() -> None:
    pytest.importorskip("ray")
    model = tiny_model(n_ctx=256)
    assert small(model, engine=RayEngine(workers=1)).to_dict() == small(model).to_dict()


@pytest.mark.slow
def test_the_real_model(smollm: HookedTransformer) -> None:
    questions = [
        question for question in load_questions("questions") if question.meta["topic"] in ("capitals", "elements")
    ]
    report = question_report(smollm, questions, n_samples=4, n_boot=200)
    formats = report.formats.set_index(["format", "by"])
    assert formats.loc[("text", "sum"), "informative"]
    assert formats.loc[(FREE, "probability"), "accuracy"] > 0.3
    of_text = report.signals.loc[report.signals["task"] == TEXT].set_index("signal")
    assert of_text.loc["option_entropy", "low"] > 0.5
    assert len(of_text) >= 8
    for name in ("signals", "risk", "reliability"):
        assert report.plot(name).to_dict()
