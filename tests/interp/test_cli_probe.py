"""`interp probe`: jobs, kept probes, comparisons; what is wrong is one line and status 2."""

import dataclasses
import json
import re
import signal
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest
from probe_jobs import JOB, run_small, statements, write_job
from tiny import tiny_model

import interp
from interp.cli.group import status
from interp.cli.job_progress import JobProgress, ends_between_tasks
from interp.cli.probe import setting_of
from interp.probe_job import compare_probe_jobs, evaluate_probe


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A specification, and two finished jobs on the same texts: one place, or two."""
    place = tmp_path_factory.mktemp("jobs")
    spec = write_job(place, JOB.replace('"mass_mean"', '"lda"'))
    run_small(spec, place / "both")
    run_small(spec, place / "first", {"sites": "resid_post:0"})
    return place


@pytest.fixture
def tiny_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """`interp.load` gives the tiny model, whatever it is asked for."""
    monkeypatch.setattr("interp.probe_job.run.load", lambda name: tiny_model())
    monkeypatch.setattr(interp, "load", lambda name: tiny_model(), raising=False)


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().out.split())


def test_train_says_the_answer_and_where_the_report_is(
    tmp_path: Path, tiny_loads: None, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ["probe", "train", str(write_job(tmp_path)), "--out", str(tmp_path / "out"), "--set", "sites=resid_post:1"]
    assert status(call) == 0
    out, err = capsys.readouterr()
    assert "Is the label decodable?" in out
    assert "logistic has AUROC" in out
    assert str(tmp_path / "out" / "report.html") in out
    assert "Fitting probes: 1 of 1 places" in err
    assert status([*call, "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["kind"] == "probe job"
    assert err == ""
    assert status([*call, "--no-resume"]) == 2
    assert "holds a job already" in capsys.readouterr().err


def test_train_reads_a_file_in_place_of_the_sets(
    tmp_path: Path, tiny_loads: None, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.csv"
    statements(12, first=50).to_csv(other, index=False)
    out = tmp_path / "out"
    words = ["--set", "sites=resid_post:1", "--set", "kinds=['mass_mean']", "--data", str(other), "--json"]
    assert status(["probe", "train", str(write_job(tmp_path)), "--out", str(out), *words]) == 0
    assert json.loads(capsys.readouterr().out)["card"]["n"] == 48


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "truht"], "Did you mean 'truth'"),
        (["train", "truth", "--set", "fold=3"], "did you mean 'folds'"),
        (["train", "truth", "--set", "folds"], "is not KEY=VALUE"),
        (["train", "truth", "--set", "folds=3\nseeds=4"], "more than one value"),
        (["train", "truth", "--engine", "rya"], "did you mean 'ray'"),
        (["train", "truth", "--data", "nowhere.csv"], "there is no file nowhere.csv"),
        (["train", "truthfulqa"], "--data FILE"),
        (["evaluate", "x.safetensors"], "--store, or --data"),
        (["evaluate", "x.safetensors", "--data", "capitals"], "needs --model"),
        (["evaluate", "x.safetensors", "--store", "nowhere"], "nowhere"),
        (["compare", "nowhere", "nobody"], "there is no folder nowhere"),
        (["show", "."], "holds no probe job"),
        (["list", "nowhere"], "there is no folder nowhere"),
        (["train", "truth", "--data", "capitols"], "did you mean the bundled set 'capitals'?"),
        (["lint", "nowhere.csv", "--form", "mc1"], "nowhere.csv"),
        (["evaluate", "x", "--data", "y", "--model", "z", "--group", "a", "--group-rule", "b"], "not both"),
        (["show", "nowhere.safetensors"], "nowhere.safetensors"),
    ],
)
def test_a_wrong_call_is_status_2(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert status(["probe", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("folds=4", ("folds", 4)),
        ("kinds=['lda', 'ccs']", ("kinds", ["lda", "ccs"])),
        ("kinds=[logistic,ttpd]", ("kinds", ["logistic", "ttpd"])),  # what a shell leaves of ['logistic','ttpd']
        ("kinds=logistic,ttpd", ("kinds", ["logistic", "ttpd"])),
        ("sites=resid_post:3,z:5.*", ("sites", ["resid_post:3", "z:5.*"])),
        ("C=0.1,1", ("C", [0.1, 1])),
        ("question=Is it so, or not?", ("question", "Is it so, or not?")),
        ("causal=false", ("causal", False)),
        ("sites=resid_post:3", ("sites", "resid_post:3")),
        ("controls.n=40", ("controls.n", 40)),
        ("model=a=b", ("model", "a=b")),
    ],
)
def test_a_setting_is_toml_or_a_word(word: str, value: object) -> None:
    assert setting_of(word) == value


def test_list_shows_bundled_jobs_runs_and_unfinished_ones(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "begun" / "tasks").mkdir(parents=True, exist_ok=True)
    assert status(["probe", "list", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert "truth" in [job["job"] for job in found["jobs"]]
    assert [Path(row["folder"]).name for row in found["runs"]] == ["begun", "both", "first"]
    assert [row["state"] for row in found["runs"]] == ["unfinished", "finished", "finished"]
    assert [(row["kind"], row["n"]) for row in found["probes"]] == [("lda", 64), ("logistic", 64)] * 2
    assert status(["probe", "list", str(folder)]) == 0
    text = said(capsys)
    assert "unfinished" in text
    assert "64.0" not in text


def test_show_a_probe_and_a_job(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status(["probe", "show", str(folder / "both" / "probes" / "logistic.safetensors"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["kind"], found["n"], found["job"]) == ("logistic", 64, "small")
    assert re.match(r"AUROC 0\.\d+ \(95 % .* n = 64 in 16 groups", found["figure"])
    page = folder / "page.html"
    assert status(["probe", "show", str(folder / "both"), "--html", str(page)]) == 0
    assert "Is the label decodable?" in said(capsys)
    assert page.read_text() == (folder / "both" / "report.html").read_text()


def test_evaluate_on_new_groups_and_refuse_old_ones(
    folder: Path, tmp_path: Path, tiny_loads: None, capsys: pytest.CaptureFixture[str]
) -> None:
    probe = str(folder / "both" / "probes" / "logistic.safetensors")
    statements(12, first=20).to_csv(tmp_path / "new.csv", index=False)
    call = ["probe", "evaluate", probe, "--model", "tiny", "--data", str(tmp_path / "new.csv")]
    assert status(call) == 0
    text = said(capsys)
    assert "None of the 48 texts, and none of the 12 groups, is among those that the probe was fitted on." in text
    assert "polarity negated: AUROC" in text
    assert "Bag of words of these texts, fitted on them: " in text
    assert status([*call, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)["figures"]
    assert [row["what"] for row in figures] == ["logistic", "bag_of_words", "text_length"]
    assert figures[0]["n"] == 48
    statements(12, first=10).to_csv(tmp_path / "new.csv", index=False)
    assert status(call) == 2
    assert "24 of 48 texts and 6 of 12 groups are among those" in capsys.readouterr().err
    assert status([*call, "--drop-seen"]) == 0
    assert "Their 24 rows were left out: n = 24 of 48 rows are left." in said(capsys)
    statements(12, first=10).assign(group="other " + statements(12)["group"]).to_csv(tmp_path / "new.csv", index=False)
    assert status(call) == 2  # the same texts under other names
    assert "24 of 48 texts and 0 of 12 groups are among those" in capsys.readouterr().err
    store = next((folder / "both" / "stores").iterdir())
    assert status(["probe", "evaluate", probe, "--store", str(store)]) == 2
    assert "16 of 16 groups" in capsys.readouterr().err
    assert status(["probe", "evaluate", probe, "--store", str(store), "--drop-seen"]) == 2
    assert "no row is left" in capsys.readouterr().err


def test_evaluate_needs_groups_or_a_rule(
    folder: Path, tmp_path: Path, tiny_loads: None, capsys: pytest.CaptureFixture[str]
) -> None:
    probe = str(folder / "both" / "probes" / "logistic.safetensors")
    bare = tmp_path / "bare.csv"
    statements(12, first=20).drop(columns=["group", "pair"]).to_csv(bare, index=False)
    call = ["probe", "evaluate", probe, "--model", "tiny", "--data", str(bare)]
    assert status(call) == 2
    assert "--group-rule" in capsys.readouterr().err
    assert status([*call, "--group-rule", r"Item (\d+)"]) == 0
    assert "n = 48 in 12 groups" in said(capsys)
    assert status([*call, "--group", "rows"]) == 0
    assert "n = 48 in 48 groups" in said(capsys)


def test_of_a_store_the_rows_that_were_seen_are_left_out(folder: Path, tmp_path: Path) -> None:
    probe = interp.load_probe(folder / "both" / "probes" / "logistic.safetensors")
    data = interp.load_dataset(_csv(tmp_path, statements(12, first=10)))
    store = interp.record(tiny_model(), data, probe.site, "last", path=tmp_path / "store", progress=False)
    found = evaluate_probe(probe, store, drop_seen=True)
    assert (found.figure.n, found.card["left_out"]) == (24, 24)
    alone = evaluate_probe(probe, store.select(texts=range(24, 48)))
    assert found.figure == alone.figure
    assert found.predictions["text"].tolist() == data.texts[24:]


def test_a_card_that_does_not_say_what_was_seen_is_said_first(folder: Path, tmp_path: Path) -> None:
    probe = interp.load_probe(folder / "both" / "probes" / "logistic.safetensors")
    card = {key: value for key, value in probe.card.items() if key != "trained_on"}
    data = interp.load_dataset(_csv(tmp_path, statements(12)))
    found = evaluate_probe(dataclasses.replace(probe, card=card), data, tiny_model())
    assert "may have been trained on these texts" in found.summary().splitlines()[0]
    old = {**card, "trained_on": {"groups": probe.card["trained_on"]["groups"]}}
    with pytest.raises(ValueError, match="12 of 12 groups"):
        evaluate_probe(dataclasses.replace(probe, card=old), data, tiny_model())


def test_of_parts_that_disagree_the_average_says_nothing(folder: Path, tmp_path: Path) -> None:
    probe = interp.load_probe(folder / "both" / "probes" / "logistic.safetensors")
    frame = statements(24, first=30)
    negated = frame["polarity"] == "negated"
    mixed = frame.assign(label=frame["label"].where(~negated, 1 - frame["label"])).drop(columns=["pair", "topic"])
    found = evaluate_probe(probe, interp.load_dataset(_csv(tmp_path, mixed)), tiny_model())
    parts = found.parts.set_index("value")
    assert parts.loc["affirmative", "low"] > 0.5
    assert parts.loc["negated", "high"] < 0.5
    assert "The parts disagree" in found.summary()
    assert "wrong way round" not in found.summary()


def _csv(folder: Path, frame: pd.DataFrame) -> Path:
    path = folder / "statements.csv"
    frame.to_csv(path, index=False)
    return path


def test_evaluation_is_the_probes_own_and_keeps_its_sign(folder: Path) -> None:
    probe = interp.load_probe(folder / "both" / "probes" / "logistic.safetensors")
    data = interp.Dataset("new", tuple(interp.Example(**row) for row in _rows(statements(12, first=20))))
    found = evaluate_probe(probe, data, tiny_model())
    flipped = interp.Dataset(
        "flipped", tuple(interp.Example(**row) for row in _rows(statements(12, first=20), flip=True))
    )
    other = evaluate_probe(probe, flipped, tiny_model())
    assert other.figure.auroc == pytest.approx(1 - found.figure.auroc)
    assert other.figure.high < 0.5
    assert "wrong way round" in other.summary()
    with pytest.raises(ValueError, match="another model"):
        evaluate_probe(probe, data, tiny_model(seed=1))
    with pytest.raises(ValueError, match="needs the model"):
        evaluate_probe(probe, data)


def _rows(frame: pd.DataFrame, flip: bool = False) -> list[dict[str, object]]:
    labels = frame["label"].tolist()
    return [
        {"text": text, "label": 1 - label if flip else label, "group": group}
        for text, label, group in zip(frame["text"], labels, frame["group"], strict=True)
    ]


def test_compare_two_jobs_on_the_same_texts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = str(folder / "both"), str(folder / "first")
    assert status(["probe", "compare", a, b, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["paired"]
    assert [row["kind"] for row in found["rows"]] == ["lda", "logistic"]
    for row in found["rows"]:
        assert row["difference"] == pytest.approx(row["auroc_a"] - row["auroc_b"])
        assert row["low"] <= row["difference"] <= row["high"]
        assert (row["n"], row["n_groups"]) == (64, 16)
    same = compare_probe_jobs(a, a)
    assert (same.to_frame()[["difference", "low", "high"]] == 0).all(axis=None)
    assert "no difference is shown" in same.summary()
    with pytest.raises(ValueError, match="n_boot"):
        compare_probe_jobs(a, b, n_boot=3)


def test_jobs_on_other_texts_stand_beside_each_other(folder: Path, tmp_path: Path) -> None:
    run_small(write_job(tmp_path, JOB, statements(14)), tmp_path / "out", {"sites": "resid_post:0"})
    found = compare_probe_jobs(folder / "both", tmp_path / "out")
    assert not found.paired
    assert found.to_frame()["kind"].tolist() == ["logistic"]
    assert found.to_frame()["difference"].isna().all()
    assert "judged other texts" in found.summary()
    assert str(tmp_path / "out") in found.summary()
    flipped = statements().assign(label=1 - statements()["label"])
    run_small(write_job(tmp_path / "flipped", JOB, flipped), tmp_path / "flipped" / "out", {"sites": "resid_post:0"})
    asked = compare_probe_jobs(folder / "first", tmp_path / "flipped" / "out")
    assert "the same texts, other labels" in asked.summary()
    assert "kinds: ['logistic', 'lda'] -> ['logistic', 'mass_mean']" in asked.summary()
    settings = {"sites": "resid_post:0", "kinds": ["mass_mean"]}
    other = run_small(tmp_path / "small.toml", tmp_path / "out", settings, replace=True)
    with pytest.raises(ValueError, match="no kind and seed in common"):
        compare_probe_jobs(folder / "both", other)


def test_lint_says_what_a_file_does_to_a_probe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "statements.csv"
    statements().to_csv(file, index=False)
    assert status(["probe", "lint", str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["ok"], found["n"]) == (True, 64)
    assert found["figures"]
    broken = statements()
    broken.loc[1, "text"] = broken.loc[0, "text"]  # one text, both labels
    broken.to_csv(file, index=False)
    assert status(["probe", "lint", str(file)]) == 1
    assert "ERROR" in capsys.readouterr().out
    assert status(["probe", "lint", str(tmp_path / "nowhere.csv")]) == 2


def test_lint_reads_truthfulqa_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    head = "Type,Category,Question,Best Answer,Best Incorrect Answer,Correct Answers,Incorrect Answers,Source\n"
    lines = [f"Adversarial,Things,Is {i} one?,Yes {i},No {i},Yes {i}; Yes so,No {i}; Never,x" for i in range(8)]
    (tmp_path / "TruthfulQA.csv").write_text(head + "\n".join(lines) + "\n")
    assert status(["probe", "lint", str(tmp_path / "TruthfulQA.csv"), "--json"]) in (0, 1)
    assert json.loads(capsys.readouterr().out)["n"] == 32
    rows = [
        {
            "question": f"Is {i} one?",
            "mc1_targets": {f"Yes {i}": 1, "No": 0},
            "mc2_targets": {f"Yes {i}": 1, "No": 0, "Never": 0},
        }
        for i in range(8)
    ]
    (tmp_path / "mc_task.json").write_text(json.dumps(rows))
    assert status(["probe", "lint", str(tmp_path / "mc_task.json"), "--json"]) in (0, 1)
    assert json.loads(capsys.readouterr().out)["n"] == 24
    assert status(["probe", "lint", str(tmp_path / "mc_task.json"), "--form", "mc1", "--json"]) in (0, 1)
    assert json.loads(capsys.readouterr().out)["n"] == 16


def test_a_changed_job_has_a_folder_of_its_own(
    tmp_path: Path, tiny_loads: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    call = ["probe", "train", str(write_job(tmp_path)), "--set", "sites=resid_post:1"]
    assert status([*call, "--set", "kinds=logistic,lda"]) == 0
    assert status([*call, "--set", "kinds=lda"]) == 0
    folders = sorted(path.name for path in Path("runs").iterdir())
    assert len(folders) == 2
    assert all(re.fullmatch("small-[0-9a-f]{6}", name) for name in folders)
    page = next(Path("runs").glob("*/report.html")).read_text()
    assert "--set sites=resid_post:1 --set" in page
    assert status([*call, "--out", f"runs/{folders[0]}"]) == 2
    assert "holds another job" in capsys.readouterr().err


def test_ctrl_c_lets_the_work_under_way_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = write_job(tmp_path)
    seen: list[str] = []

    class Interrupted(JobProgress):
        def __call__(self, step: str, done: int, total: int) -> None:
            seen.append(step)
            if step == "fit":
                signal.raise_signal(signal.SIGINT)
            super().__call__(step, done, total)

    progress = Interrupted(quiet=False)
    with pytest.raises(KeyboardInterrupt), progress, ends_between_tasks(progress):
        run_small(spec, tmp_path / "out", progress=progress)
    assert "stopping after what is under way" in capsys.readouterr().err
    assert seen.count("fit") == 1
    kept = Counter(path.name.split("-")[1] for path in (tmp_path / "out" / "tasks").glob("resid_post-*"))
    assert kept
    assert set(kept.values()) == {2}  # what was under way, whole: both kinds of a place
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    impatient = JobProgress(quiet=True)
    impatient.stop()  # as a first Ctrl-C does
    with pytest.raises(KeyboardInterrupt), ends_between_tasks(impatient):
        signal.raise_signal(signal.SIGINT)


def test_plain_lines_tell_rate_and_time_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 12.0, 24.0, 30.0])
    monkeypatch.setattr("interp.cli.job_progress.time.monotonic", lambda: next(clock))
    with JobProgress(quiet=False) as progress:
        for done in (1, 5, 9, 10):
            progress("fit", done, 10)
    assert capsys.readouterr().err.splitlines() == [
        "Fitting probes: 5 of 10 places; 0.3 places/s, about 15 s left",
        "Fitting probes: 9 of 10 places; 0.3 places/s, about 3 s left",
        "Fitting probes: 10 of 10 places; 0.3 places/s",
    ]
