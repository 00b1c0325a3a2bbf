"""Specifications: what is wrong is said with the key, the file and the mend."""

from pathlib import Path
from typing import Any

import pytest
from probe_jobs import JOB, write_job

from interp.content import content_folder
from interp.probe_job import CausalSpec, TextSpec, load_probe_spec
from interp.probe_job.spec import job_names


@pytest.mark.parametrize("name", ["truth", "truth-transfer", "truthfulqa", "heads"])
def test_bundled_jobs_state_a_question_and_what_counts_as_an_answer(name: str) -> None:
    spec = load_probe_spec(name)
    assert spec.name == name
    assert spec.question.endswith("?")
    assert len(spec.criterion) > 40
    source = (content_folder("probes") / f"{name}.toml").read_text("utf-8")
    assert source.startswith("# ")
    assert f"| {name} |" in (content_folder("probes") / "README.md").read_text("utf-8")


def test_the_jobs_are_those_of_the_readme() -> None:
    assert job_names() == ["heads", "truth", "truth-transfer", "truthfulqa"]


@pytest.mark.parametrize(
    ("addition", "message"),
    [
        ("kindz = ['lda']", r"small.toml: unknown key 'kindz'; did you mean 'kinds'\?"),
        ("controls = { nn = 20 }", r"small.toml: controls: unknown key 'nn'; did you mean 'n'\?"),
        ("seeds = 'many'", r"small.toml: seeds must be a whole number, got 'many'"),
        ("seeds = [true]", r"seeds must be a whole number, got True"),
        ("max_texts = 2.5", r"max_texts must be a whole number, got 2.5"),
        ("select = 3", r"select must be a table, got 3"),
        ("controls = 3", r"controls must be a table, got 3"),
        ("tokens = ['last']", r"tokens must be a text, got \['last'\]"),
        ("protocol = 'rows'", r"protocol must be nested or split, got 'rows'"),
        ("controls = { n = 3 }", r"n must be 19 or more, got 3"),
        ("seeds = [0, 0]", r"seeds has the same value twice"),
        ("seeds = []", r"seeds is empty"),
        ("seeds = [-1]", r"seeds must be 0 or more"),
        ("keep = ['lda']", r"keep names 'lda', which is not fitted"),
        ("causal = { strengths = [0.0] }", r"strengths must be numbers other than 0"),
        ("transfer = { by = [] }", r"by names the columns"),
        ("transfer = { kinds = ['logistik'] }", r"unknown kind 'logistik': did you mean 'logistic'\?"),
        ("= 3", r"is no TOML"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, addition: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_probe_spec(write_job(tmp_path, JOB + addition + "\n"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"folds": 1}, "folds must be 2 or more"),
        ({"n_boot": 10}, "n_boot must be 100 or more"),
        ({"C": [0.0]}, "C must be over 0"),
        ({"kinds": ["logistic", "logistic"]}, "same value twice"),
        ({"kinds": ["masmean"]}, "did you mean 'mass_mean'"),
        ({"question": " "}, "question is empty"),
        ({"datasets": []}, "datasets is empty"),
        ({"datasets": [{"name": "capitals", "control": True}]}, "every set is a control"),
        ({"datasets": [{"name": "capitals", "group": "a", "group_rule": "b"}]}, "give one of them"),
        ({"datasets": [{"path": "a.csv", "form": "mc3"}]}, "form must be binary, mc1, mc2"),
        ({"folds.n": 3}, "folds is no table"),
        ({"max_texts": 3}, "max_texts must be 10 or more"),
    ],
)
def test_settings_go_through_the_same_checks(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_probe_spec(write_job(tmp_path), settings)


def test_a_missing_key_and_a_missing_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the key 'question' is missing"):
        load_probe_spec(write_job(tmp_path, JOB.replace("question", "# question")))
    with pytest.raises(ValueError, match="cannot be read"):
        load_probe_spec(tmp_path / "nowhere.toml")
    with pytest.raises(ValueError, match=r"there is no job 'truht'. Did you mean 'truth'\?"):
        load_probe_spec("truht")
    with pytest.raises(ValueError, match="there is no job 'demo'"):
        load_probe_spec("demo")


def test_settings_replace_values_and_lead_into_tables(tmp_path: Path) -> None:
    path = write_job(tmp_path, JOB + "[causal]\nn_random = 30\n")
    spec = load_probe_spec(path, {"kinds": "lda", "controls.n": 40, "causal.max_pairs": 7, "C": 1})
    assert spec.kinds == ("lda",)
    assert spec.controls.n == 40
    assert spec.causal == CausalSpec(n_random=30, max_pairs=7)
    assert spec.C == (1.0,)
    assert load_probe_spec(path, {"causal": False}).causal is None


def test_one_table_of_transfer_or_several(tmp_path: Path) -> None:
    one = load_probe_spec(write_job(tmp_path, JOB + "[transfer]\nby = 'polarity'\n"))
    several = load_probe_spec(write_job(tmp_path, JOB + "[[transfer]]\nby = 'polarity'\n[[transfer]]\nkinds = 'lda'\n"))
    assert [each.by for each in one.transfer] == [("polarity",)]
    assert [each.by for each in several.transfer] == [("polarity",), ("topic",)]
    assert several.every_kind == ("logistic", "mass_mean", "lda")


def test_paths_are_relative_to_the_file_and_say_nothing_in_the_report(tmp_path: Path) -> None:
    spec = load_probe_spec(write_job(tmp_path / "jobs"))
    assert spec.datasets[0].path == str(tmp_path / "jobs" / "statements.csv")
    assert spec.to_dict()["datasets"][0]["path"] == "statements.csv"


def test_a_given_file_fills_the_open_place_or_replaces_the_sets(tmp_path: Path) -> None:
    path = write_job(tmp_path)
    file = tmp_path / "statements.csv"
    replaced = load_probe_spec(path).with_data(file)
    assert replaced.datasets == (TextSpec(path=str(file.resolve())),)
    asks = load_probe_spec(path, {"datasets": [{"form": "mc1"}, "capitals"]}).with_data(file)
    assert [(each.form, each.path) for each in asks.datasets] == [("mc1", str(file.resolve())), (None, None)]
    with pytest.raises(ValueError, match="there is no file"):
        asks.with_data(tmp_path / "nowhere.csv")
