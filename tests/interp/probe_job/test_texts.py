"""The texts of a job: joined sets, groups by column or rule, whole groups when there are too many."""

from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from probe_jobs import statements, write_job

from interp.dataset import Dataset
from interp.probe_job import load_probe_spec
from interp.probe_job.texts import asked_rows, control_topics, load_texts

HEADER = "Type,Category,Question,Best Answer,Best Incorrect Answer,Correct Answers,Incorrect Answers,Source\n"


def read(folder: Path, **settings: Any) -> Dataset:
    return load_texts(load_probe_spec(write_job(folder), settings))


def test_sets_are_joined_and_named(tmp_path: Path) -> None:
    bare = statements().drop(columns=["topic"])
    write_job(tmp_path)
    bare.to_csv(tmp_path / "other.csv", index=False)
    data = read(tmp_path, datasets=["statements.csv", {"path": "other.csv", "columns": {"language": "en"}}, "animals"])
    topics = Counter(example.meta["topic"] for example in data)
    assert topics == {"even": 32, "odd": 32, "other": 64, "animals": 600}
    languages = Counter(example.meta["language"] for example in data)
    assert languages == {None: 664, "en": 64}
    # The same entity in two files is one group.
    assert len(set(data.groups or [])) == 16 + 75


def test_rows_are_selected_for_all_sets_or_for_one(tmp_path: Path) -> None:
    assert len(read(tmp_path, select={"polarity": "negated"})) == 32
    both = read(tmp_path, datasets=["statements.csv", {"name": "animals", "select": {"polarity": "negated"}}])
    assert len(both) == 64 + 300
    with pytest.raises(ValueError, match="no row is left"):
        read(tmp_path, select={"polarity": "maybe"})


def test_a_rule_finds_the_group_in_the_text(tmp_path: Path) -> None:
    rule = {"path": "statements.csv", "group_rule": r"Item (\d+)"}
    assert read(tmp_path, datasets=[rule]).groups == [str(i) for i in range(16) for _ in range(4)]
    pairs = read(tmp_path, datasets=[{**rule, "group_rule": "topic"}])
    assert set(pairs.groups or []) == {"even", "odd"}
    with pytest.raises(ValueError, match="finds no group in any"):
        read(tmp_path, datasets=[{**rule, "group_rule": r"Thing (\d+)"}])
    with pytest.raises(ValueError, match=r"finds no group in 8 of 64 rows.*widen the rule"):
        read(tmp_path, datasets=[{**rule, "group_rule": r"Item (\d|1[0-3])( |$)"}])
    with pytest.raises(ValueError, match="has no group"):
        read(tmp_path, datasets=[{**rule, "group_rule": r"Item \d+"}])
    with pytest.raises(ValueError, match="no regular expression"):
        read(tmp_path, datasets=[{**rule, "group_rule": "("}])


def test_texts_without_groups_or_of_one_label_are_refused(tmp_path: Path) -> None:
    write_job(tmp_path)
    statements().drop(columns=["group"]).to_csv(tmp_path / "bare.csv", index=False)
    with pytest.raises(ValueError, match="group_rule"):
        read(tmp_path, datasets=["bare.csv"])
    statements().assign(label=1).to_csv(tmp_path / "one.csv", index=False)
    with pytest.raises(ValueError, match="two classes"):
        read(tmp_path, datasets=["one.csv"])
    with pytest.raises(ValueError, match="give it by --data"):
        read(tmp_path, datasets=[{"text": "text"}])
    with pytest.raises(ValueError, match="no column 'subject'"):
        read(tmp_path, datasets=[{"path": "statements.csv", "topic": "subject"}])


def test_of_too_many_texts_whole_groups_are_drawn(tmp_path: Path) -> None:
    data = read(tmp_path, max_texts=30)
    assert len(data) == 28
    assert set(Counter(data.groups).values()) == {4}
    assert data.texts == read(tmp_path, max_texts=30).texts
    order = statements()["text"].tolist()
    assert [order.index(text) for text in data.texts] == sorted(order.index(text) for text in data.texts)


def test_a_control_takes_no_part_in_what_is_asked(tmp_path: Path) -> None:
    data = read(tmp_path, datasets=["statements.csv", {"name": "animals", "control": True}])
    assert control_topics(data) == ["animals"]
    assert asked_rows(data) == list(range(64))


@pytest.mark.parametrize(("form", "n"), [("statements", 5), ("binary", 2), ("mc1", 4), ("mc2", 5)])
def test_answers_of_truthfulqa_become_statements(tmp_path: Path, form: str, n: int) -> None:
    path = tmp_path / "TruthfulQA.csv"
    lines = [
        f"Adversarial,Things,Is {i} one?,Yes {i},No not {i},Yes {i}; Yes surely {i},No not {i}; Never {i}; Hardly {i},x"
        for i in range(6)
    ]
    path.write_text(HEADER + "\n".join(lines) + "\n")
    spec = load_probe_spec(write_job(tmp_path), {"datasets": [{"form": form}]}).with_data(path)
    data = load_texts(spec)
    frame = data.to_frame()
    assert all("A: " in text and "  " not in text for text in data.texts)
    assert len(frame) == 6 * n
    right = frame[frame["label"] == 1]
    assert right["text"].str.contains("Yes").all()
    assert pd.Series(frame["group"]).nunique() == 6
    assert set(frame["topic"]) == {"Things"}
