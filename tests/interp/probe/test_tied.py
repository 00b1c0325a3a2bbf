"""The same text in two groups: the groups are tied, the card says so, and knows what the probe was fitted on."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from planted import MemoryStore, frame_of

from interp.probe import fit_probe, load_probe_report, probe_sweep, probe_transfer
from interp.probe.inputs import tie_texts
from interp.probe.joining import overlap, trained_on
from interp.probe.labelled import BY_TEXTS, Labelled, of_tokens

QUICK: dict[str, Any] = {"kinds": "logistic", "C": 1.0, "n_boot": 100, "n_controls": 1, "n_folds": 4}


def copies(n: int = 60, d: int = 80, seed: int = 0) -> tuple[np.ndarray, np.ndarray, pd.DataFrame]:
    """Noise without a signal; every text stands in two groups, in another case and spacing, with the same activations."""
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.arange(n) % 2)
    X = np.repeat(rng.normal(size=(n, d)), 2, axis=0)
    frame = frame_of(np.repeat(y, 2), np.arange(2 * n))
    return X, np.repeat(y, 2), frame.assign(text=[f"{'Text' if i % 2 else 'text '} {i // 2}" for i in range(2 * n)])


def test_copies_of_a_text_are_never_on_both_sides() -> None:
    X, _, frame = copies()
    report = probe_sweep(MemoryStore([X], frame), **QUICK)
    found = report.selected["logistic"]
    assert abs(found.auroc - 0.5) < 0.2  # untied, each test row has its copy in the training part: about 1
    assert found.n_groups == report.card["n_groups"] == 60
    assert (report.card["texts_in_several_groups"], report.card["groups_tied"]) == (60, [120, 60])
    said = (
        "60 texts stand in more than one group, case and spacing aside: 120 groups that share a text were tied into 60"
    )
    assert said in report.summary()


def test_copies_are_tied_where_rows_are_split_on_purpose() -> None:
    X, _, frame = copies()
    report = probe_sweep(MemoryStore([X], frame.drop(columns="group")), groups="rows", **QUICK)
    found = report.selected["logistic"]
    assert abs(found.auroc - 0.5) < 0.2
    assert found.n_groups == 60
    assert found.control_accuracy is None  # groups of copies are no entities
    assert "60 texts stand in more than one row, case and spacing aside: 120 rows" in report.summary()
    assert report.probe("logistic").card["groups"] == "rows"
    assert report.probe("logistic").card["trained_on"]["groups"] == []


def test_a_transfer_matrix_ties_them_too() -> None:
    X, _, frame = copies()
    frame = frame.assign(topic=["a", "b"] * 60)
    report = probe_transfer(MemoryStore([X], frame), by="topic", kinds="logistic", C=1.0, n_folds=3, n_boot=100)
    across = report.selected.set_index(["train", "test"]).loc[("a", "b"), "auroc"]
    assert abs(float(across) - 0.5) < 0.25
    assert report.card["groups_tied"] == [120, 60]
    assert "120 groups that share a text were tied into 60" in report.summary()


def test_ties_are_transitive_and_keep_the_order_of_groups() -> None:
    codes, repeated, tied = tie_texts(np.array([0, 1, 1, 2, 3, 4, 4]), ["a", "b", "A ", "c", "B", "", ""])
    assert codes.tolist() == [0, 0, 0, 1, 0, 2, 2]  # 0 and 1 share "a", 1 and 3 share "b"
    assert (repeated, tied) == (2, (3, 1))
    untouched = np.array([2, 0, 1, 0])
    codes, repeated, tied = tie_texts(untouched, ["a", "b", "c", "b"])
    assert (codes.tolist(), repeated, tied) == (untouched.tolist(), 0, (0, 0))
    assert tie_texts(np.array([0, 1]), ["", " "])[0].tolist() == [0, 1]  # no text is nothing in common


def test_too_few_groups_after_tying_are_refused_with_the_reason() -> None:
    frame = frame_of(np.arange(12) % 2, np.arange(12), [f"t{i % 4}" for i in range(12)])
    with pytest.raises(
        ValueError, match=r"4 groups are left after .* tied \(4 texts stand in more than one of 12 groups\)"
    ):
        Labelled.of(frame)


def test_tokens_of_equal_texts_are_tied() -> None:
    index = np.repeat(np.arange(12), 3)
    frame = pd.DataFrame(
        {
            "text": [f"t{i % 6}" for i in index],
            "label": index % 2,
            "text_index": index,
            "position": np.tile([1, 2, 3], 12),
        }
    )
    data = of_tokens(frame, "rows", 5)
    assert (data.n_groups, data.repeated, data.groups_from, data.own_names) == (6, 6, BY_TEXTS, None)


# -------------------------------------------------------------------------------------------------- what was trained on


def test_a_kept_probe_names_what_it_was_fitted_on(tmp_path: Any) -> None:
    X, y, frame = copies()
    report = probe_sweep(MemoryStore([X], frame), **QUICK)
    entry = load_probe_report(report.save(tmp_path / "report")).probe("logistic").card["trained_on"]
    assert entry == trained_on(list(frame["text"]), list(frame["group"]))
    assert len(entry["texts"]) == 60
    assert len(entry["groups"]) == 120
    assert not any("text" in each for each in entry["texts"])
    assert overlap(entry, ["TEXT  3", "text 3", "new"], ["entity 7", "entity 700"]) == (1, 1)
    assert "trained_on" not in fit_probe(X, y, C=1.0).card


def test_parts_of_joined_groups_overlap() -> None:
    entry = trained_on(["a"], ["Oslo & Lima"])
    assert overlap(entry, [], ["Lima"]) == (0, 1)
    assert overlap(trained_on(["a"], ["Lima"]), ["b"], ["Oslo & Lima", "Rome"]) == (0, 1)
    assert overlap(trained_on(["a"], None), ["A"], None) == (1, 0)
    assert overlap({}, ["a"], ["b"]) == (0, 0)


# ------------------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (["0", "1"], r"here \[v == '1' for v in y\]"),
        (["False", "True"], r"here \[v == 'True' for v in y\]"),
        (["no", "yes"], r"here \[v == 'yes' for v in y\]"),
        (["cat", "dog"], r"is for you to say: \[v == 'cat' for v in y\] or \[v == 'dog' for v in y\]"),
        (["a", "b", "c"], r"which of 'a', 'b', 'c' is 1 is for you to say"),
    ],
)
def test_labels_that_are_strings_are_not_turned_round(labels: list[str], words: str) -> None:
    X = np.random.default_rng(0).normal(size=(12, 3))
    with pytest.raises(ValueError, match=words):
        fit_probe(X, np.array([labels[i % len(labels)] for i in range(12)]), C=1.0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"C": "a"}, "C must be positive"),
        ({"C": [1.0, None]}, "C must be positive"),
        ({"n_folds": 2.5}, "n_folds must be a whole number from 2 on, got 2.5"),
        ({"seed": "a"}, "seed must be a whole number from 0 on, got 'a'"),
        ({"X": np.array([["a", "b"]] * 12)}, "activations are real numbers"),
        ({"X": np.ones((12, 2), dtype=object)}, "holds values of type object"),
        ({"X": np.ones((12, 2)) * 1j}, "the real part or the modulus"),
        ({"X": torch.ones(12, 2) * 1j}, "the real part or the modulus"),
    ],
)
def test_what_is_no_number_is_refused(change: dict[str, Any], words: str) -> None:
    arguments = {"X": np.random.default_rng(0).normal(size=(12, 2)), "y": np.arange(12) % 2, "groups": "rows", **change}
    with pytest.raises(ValueError, match=words):
        fit_probe(**arguments)


@pytest.mark.parametrize("change", [{"n_folds": 2.5}, {"seed": "a"}, {"n_boot": 150.5}, {"C": "a"}])
def test_sweep_and_transfer_refuse_the_same(change: dict[str, Any]) -> None:
    X, _, frame = copies(20)
    store = MemoryStore([X], frame.assign(topic=["a", "b"] * 20))
    for call in (lambda: probe_sweep(store, **change), lambda: probe_transfer(store, by="topic", **change)):
        with pytest.raises(ValueError, match=f"{next(iter(change))} must be"):
            call()


# ----------------------------------------------------------------------------------------------------------- sentences


def test_a_probe_that_can_memorise_as_well_is_said() -> None:
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(30), 4)
    X = np.repeat(rng.normal(size=(30, 60)), 4, axis=0) + 0.01 * rng.normal(
        size=(120, 60)
    )  # the entity and nothing else
    y = np.tile([0, 1], 60)
    report = probe_sweep(MemoryStore([X], frame_of(y, groups)), **QUICK)
    assert report.selected["logistic"].control_accuracy == 1.0
    assert "it can memorise as well as it reads, so its accuracy is no evidence" in report.summary()


class NamedStore(MemoryStore):
    """Activations of a site that is no residual stream."""

    @property
    def sites(self) -> list[str]:
        return [f"blocks.{layer}.hook_mlp_out" for layer in range(len(self.layers))]


def test_a_store_without_a_stream_is_swept_at_the_sites_that_it_has() -> None:
    X, y, frame = copies()
    X = X + 3.0 * y[:, None]
    report = probe_sweep(NamedStore([X, X], frame), **QUICK)
    assert report.card["sites"] == ["blocks.0.hook_mlp_out", "blocks.1.hook_mlp_out"]
    with pytest.raises(ValueError, match=r"resid_mid.*there are mlp_out:0, mlp_out:1"):
        probe_sweep(NamedStore([X, X], frame), sites="blocks.1.hook_resid_mid")
