"""A whole job with a tiny model: its files, its figures, what is done again and what is not."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from filelock import FileLock
from probe_jobs import JOB, finished_bytes, run_small, statements, write_job
from tiny import tiny_model

from interp import artifact
from interp.probe.fit import load_probe
from interp.probe.sweep import probe_sweep
from interp.probe_job import load_probe_job_report, load_probe_spec, run_probe_job
from interp.probe_job.result import FILES, TABLES
from interp.probe_job.verdict import job_verdict
from interp.store import open_store

WHOLE = JOB + "[transfer]\nby = 'polarity'\nkinds = 'logistic'\n[causal]\nask = false\nmax_pairs = 16\n"


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished job with everything in it; its specification lies beside it."""
    folder = tmp_path_factory.mktemp("whole")
    run_small(write_job(folder, WHOLE), folder / "out")
    return folder / "out"


def copy_of(done: Path, folder: Path) -> tuple[Path, Path]:
    """Specification and folder of a copy of the finished job."""
    shutil.copytree(done, folder / "out")
    return write_job(folder, WHOLE), folder / "out"


def steps_of(spec: Path, out: Path, settings: dict[str, Any] | None = None) -> dict[str, int]:
    """The steps that a run took, and how many pieces of work each had."""
    seen: dict[str, int] = {}
    run_small(spec, out, settings, progress=lambda step, done, total: seen.__setitem__(step, total))
    return seen


def test_the_folder_holds_tables_probes_page_and_report(done: Path) -> None:
    names = {path.name for path in done.iterdir()}
    tables = {f"{FILES.get(name, name)}.parquet" for name in TABLES}
    assert tables | {"report.json", "report.html", "probes", "stores", "tasks", "log.jsonl"} <= names
    page = (done / "report.html").read_text("utf-8")
    for words in (
        "Is the label decodable?",
        "The answer",
        "Beside what it must beat",
        "Where",
        "Does it transfer?",
        "Is it used?",
    ):
        assert words in page
    assert "https://" not in page
    content = artifact.read_json(done / "report.json")
    assert content["job"]["name"] == "small"
    assert content["verdict"][0].startswith("Decodable")
    assert str(done) not in (done / "report.json").read_text()


def test_the_figures_are_those_of_a_sweep(done: Path) -> None:
    report = load_probe_job_report(done)
    store = open_store(next((done / "stores").iterdir()))
    kinds = ("logistic", "mass_mean")
    sweep = probe_sweep(store, kinds=kinds, C=(0.01, 0.1), n_folds=3, n_boot=100)
    own = report.to_frame()
    for column in ("auroc", "low", "high", "permuted_max", "control_accuracy", "random_direction_max"):
        np.testing.assert_array_equal(own[column].to_numpy(float), sweep.to_frame()[column].to_numpy(float))
    assert report.table()["auroc"].tolist()[:2] == [sweep.selected[kind].auroc for kind in kinds]
    assert {"bag_of_words", "text_length", "log_likelihood", "majority"} == set(report.baselines["name"])
    assert set(report.parts["part"]) == {"polarity", "topic"}
    assert (report.figures["seed"] == 0).all()


def test_a_kept_probe_quotes_the_nested_figure_and_names_its_groups(done: Path) -> None:
    probe = load_probe(done / "probes" / "logistic.safetensors")
    report = load_probe_job_report(done)
    assert probe.card["figure"]["auroc"] == report.table().iloc[0]["auroc"]
    assert len(probe.card["trained_on"]["groups"]) == 16
    assert report.probe().card == probe.card
    with pytest.raises(ValueError, match="kept no 'lda' probe"):
        report.probe("lda")


def test_transfer_and_use_stand_beside_the_answer(done: Path) -> None:
    report = load_probe_job_report(done)
    assert report.transfer is not None
    assert report.causal is not None
    assert set(report.transfer["train"]) == {"affirmative", "negated", "all"}
    assert any("inverted" in line for line in report.notes["transfer"])
    assert {"effect", "random_low", "random_high", "p"} <= set(report.causal)
    assert "use" in report.verdict[-1]
    assert report.job["question"] in report.summary()


def test_the_same_call_again_does_nothing_and_gives_the_same(done: Path, tmp_path: Path) -> None:
    spec, out = copy_of(done, tmp_path)
    before = finished_bytes(out)
    assert set(steps_of(spec, out)) <= {"record"}
    assert finished_bytes(out) == before


@pytest.mark.slow
def test_another_folder_gives_the_same_bytes(done: Path, tmp_path: Path) -> None:
    run_small(write_job(tmp_path, WHOLE), tmp_path / "elsewhere")
    assert finished_bytes(tmp_path / "elsewhere") == finished_bytes(done)


class Stopped(Exception):
    """Raised by a progress function, as Ctrl-C would be."""


def places_to_fit(spec: Path, out: Path, settings: dict[str, Any]) -> int:
    """How many places a job would fit; it is stopped when it has begun."""

    def stop(step: str, done: int, total: int) -> None:
        if step in ("fit", "figures"):
            raise Stopped(total if step == "fit" else 0)

    with pytest.raises(Stopped) as caught:
        run_small(spec, out, settings, progress=stop, replace=True)
    return int(caught.value.args[0])


@pytest.mark.parametrize(
    ("settings", "fitted"),
    [
        ({"folds": 4}, 2),
        ({"C": [0.1]}, 2),
        ({"seeds": [1]}, 2),
        ({"controls.n": 20}, 2),
        ({"tokens": "mean"}, 2),
        ({"select": {"polarity": "affirmative"}}, 2),
        ({"kinds": ["logistic", "mass_mean", "lda"]}, 2),
        ({"n_boot": 120}, 0),
        ({"kinds": ["mass_mean"]}, 0),
        ({"question": "Or is it?"}, 0),
    ],
)
def test_a_changed_job_fits_again_what_the_change_decides(
    done: Path, tmp_path: Path, settings: dict[str, Any], fitted: int
) -> None:
    spec, out = copy_of(done, tmp_path)
    assert places_to_fit(spec, out, settings) == fitted


def test_a_changed_job_is_not_served_what_is_stale(done: Path, tmp_path: Path) -> None:
    change = {"folds": 4, "kinds": ["mass_mean"], "transfer": False, "causal": False}
    spec, out = copy_of(done, tmp_path)
    run_small(spec, out, change, replace=True)
    run_small(write_job(tmp_path / "new", WHOLE), tmp_path / "new" / "out", change)
    changed, fresh = finished_bytes(out), finished_bytes(tmp_path / "new" / "out")
    own = {name for name in fresh if "/" not in name or name.startswith("probes/")}
    assert {name: changed[name] for name in own} == {name: fresh[name] for name in own}
    assert {name for name in changed if not name.startswith(("tasks/", "stores/", "earlier/"))} == own
    earlier, before = finished_bytes(out / "earlier" / "1"), finished_bytes(done)
    assert {"report.json", "report.html", "probes/logistic.safetensors", "selected.parquet"} <= set(earlier)
    assert all(before[name] == content for name, content in earlier.items())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kinds": ["mass_mean"]}, r"kinds: \['logistic', 'mass_mean'\] -> \['mass_mean'\]"),
        ({"question": "Or is it?"}, r"question: Is the label decodable\? -> Or is it\?"),
        ({"keep": ["logistic"], "controls.n": 20}, r"controls.n: 19 -> 20; keep: none -> \['logistic'\]"),
        ({"select": {"polarity": "affirmative"}, "transfer": False, "causal": False}, "the texts, labels or groups"),
    ],
)
def test_the_folder_of_another_job_is_refused_with_what_differs(
    done: Path, tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    spec, out = copy_of(done, tmp_path)
    before = finished_bytes(out)
    with pytest.raises(ValueError, match=rf"holds another job.*{message}.*--replace"):
        run_small(spec, out, settings)
    (out / "job.json").unlink()  # as in folders of before there was one
    with pytest.raises(ValueError, match=message):
        run_small(spec, out, settings)
    assert {**finished_bytes(out), "job.json": before["job.json"]} == before


def test_a_job_that_was_only_begun_is_not_another_ones_either(tmp_path: Path) -> None:
    spec = write_job(tmp_path)
    places_to_fit(spec, tmp_path / "out", {})
    with pytest.raises(ValueError, match=r"folds: 3 -> 4"):
        run_small(spec, tmp_path / "out", {"folds": 4})
    with pytest.raises(ValueError, match="the model's weights"):
        run_probe_job(load_probe_spec(spec), tmp_path / "out", model=tiny_model(seed=1))


def test_damaged_tasks_are_done_again_and_named(done: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    spec, out = copy_of(done, tmp_path)
    before = finished_bytes(out)
    one = next((out / "tasks").glob("resid_post-0-logistic*"))
    one.write_bytes(one.read_bytes()[:-7])
    other = next((out / "tasks").glob("log-likelihood*"))
    other.write_bytes(b"")
    used = next((out / "tasks").glob("causal*"))
    used.write_text("{")
    matrix = next((out / "tasks").glob("transfer*"))
    next(matrix.glob("*.parquet")).unlink()
    (out / "report.json").unlink()
    run_small(spec, out)
    for path in (one, other, used, matrix):
        assert f"{path} is damaged" in caplog.text
    after = {name: content for name, content in finished_bytes(out).items() if ".damaged" not in name}
    assert after == before


def test_labels_that_contradict_each_other_are_a_note(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    frame = statements()
    again = frame.iloc[[0]].assign(label=1 - frame["label"].iloc[0], pair=None)
    spec = write_job(tmp_path, JOB, pd.concat([frame, again], ignore_index=True))
    report = run_small(spec, tmp_path / "out", {"sites": "resid_post:0"})
    assert "label" in report.notes["data"][0]
    assert sum("labels" in record.getMessage() for record in caplog.records) == 1
    assert report.notes["data"][0] in report.summary()
    assert "Note: " in (tmp_path / "out" / "report.html").read_text()
    assert artifact.read_json(tmp_path / "out" / "report.json")["notes"]["data"] == report.notes["data"]


def test_a_job_that_fails_at_once_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="resid_past"):
        run_small(write_job(tmp_path), tmp_path / "out", {"sites": "resid_past:*"})
    assert not (tmp_path / "out").exists()


def test_one_changed_label_is_another_recording(done: Path, tmp_path: Path) -> None:
    spec, out = copy_of(done, tmp_path)
    frame = statements()
    frame.loc[[0, 1], "label"] = frame.loc[[1, 0], "label"].to_numpy()
    frame.to_csv(tmp_path / "statements.csv", index=False)
    assert places_to_fit(spec, out, {}) == 2
    assert len(list((out / "stores").iterdir())) == 2


def test_a_half_replaced_report_is_found_out_and_made_again(done: Path, tmp_path: Path) -> None:
    spec, out = copy_of(done, tmp_path)
    before = finished_bytes(out)
    pd.read_parquet(out / "selected.parquet").head(1).to_parquet(out / "selected.parquet")
    with pytest.raises(ValueError, match=r"not the table that report\.json tells of"):
        load_probe_job_report(out)
    run_small(spec, out)
    assert finished_bytes(out) == before
    (out / "report.json").unlink()
    with pytest.raises(ValueError, match="is not finished"):
        load_probe_job_report(out)


def test_folders_that_are_something_else_are_refused(done: Path, tmp_path: Path) -> None:
    spec, out = copy_of(done, tmp_path)
    with pytest.raises(ValueError, match="holds a job already"):
        run_small(spec, out, resume=False)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    with pytest.raises(ValueError, match=r"holds something else \(thesis.tex\)"):
        run_small(spec, tmp_path / "other")
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="is a file"):
        run_small(spec, tmp_path / "file")
    with FileLock(out / ".lock"), pytest.raises(ValueError, match="another process works in"):
        run_small(spec, out)
    with pytest.raises(ValueError, match="holds no probe job"):
        load_probe_job_report(tmp_path / "other")


def test_what_a_sweep_would_refuse_is_refused_before_recording(tmp_path: Path) -> None:
    bare = statements().drop(columns=["pair"])
    spec = write_job(tmp_path, JOB.replace('"mass_mean"', '"ccs"'), bare)
    with pytest.raises(ValueError, match="needs the column 'pair'"):
        run_small(spec, tmp_path / "out")
    few = write_job(tmp_path / "few", JOB, statements(3))
    with pytest.raises(ValueError, match="groups"):
        run_small(few, tmp_path / "out")
    with pytest.raises(ValueError, match="needs 13"):
        run_small(write_job(tmp_path / "small", JOB + "[causal]\n", statements(9)), tmp_path / "out")
    with pytest.raises(ValueError, match="engine='rya' is unknown"):
        run_small(spec, tmp_path / "out", engine="rya")
    assert not (tmp_path / "out").exists()


def test_several_seeds_and_a_control_set(tmp_path: Path) -> None:
    likely = statements(16, first=100).query("polarity == 'affirmative'").drop(columns=["pair"]).assign(topic="likely")
    spec = write_job(tmp_path, JOB + "[transfer]\nby = 'topic'\nkinds = 'mass_mean'\n")
    likely.to_csv(tmp_path / "likely.csv", index=False)
    sets = ["statements.csv", {"path": "likely.csv", "control": True}]
    report = run_small(
        spec, tmp_path / "out", {"seeds": [0, 1], "datasets": sets, "sites": "resid_post:1", "keep": ["logistic"]}
    )
    assert report.selected["seed"].tolist() == [0, 0, 1, 1]
    assert set(report.selected["n"]) == {64}
    assert any("Over 2 seeds" in line for line in report.verdict)
    assert list(report.probes) == ["logistic"]
    assert report.transfer is not None
    assert "likely" in set(report.transfer["train"])
    assert any("(a control)" in line for line in report.notes["transfer"])


def test_every_token_and_kinds_without_a_direction(tmp_path: Path) -> None:
    spec = write_job(tmp_path, JOB + "[causal]\nask = false\nmax_pairs = 16\n", statements().drop(columns=["pair"]))
    quick = {"sites": "resid_post:1", "kinds": ["mass_mean"], "tokens": "every", "causal": False}
    every = run_small(spec, tmp_path / "every", quick)
    assert every.card["n"] > 64 * 10
    assert f"{every.card['n']:,} tokens of 64 texts in 16 groups" in every.verdict[0]
    page = (tmp_path / "every" / "report.html").read_text()
    assert "tokens of 64 texts" in page
    assert "every token at" in page
    assert "log_likelihood" in set(every.baselines["name"])
    network = run_small(spec, tmp_path / "network", {"sites": "resid_post:1", "kinds": ["mlp"]})
    assert network.card["n"] == 64
    assert "no kind with a direction" in network.verdict[-1]
    assert network.causal is not None
    assert network.causal.empty


def figures(auroc: float, low: float, high: float, p: float = 0.05) -> dict[str, Any]:
    return {
        "auroc": auroc, "low": low, "high": high, "p_permuted": p, "permuted_max": 0.6, "accuracy": 0.8, "n": 100,
        "n_groups": 50, "seed": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("probe", "words", "starts", "holds"),
    [
        ((0.9, 0.85, 0.95), (0.5, 0.45, 0.55), "Decodable beyond the text", "interval lies above it"),
        ((0.9, 0.85, 0.95), (0.86, 0.8, 0.9), "Not shown beyond the text:", "the intervals overlap"),
        ((0.7, 0.65, 0.75), (0.8, 0.7, 0.9), "Not shown beyond the text:", "no better"),
        ((0.52, 0.45, 0.6), (0.5, 0.45, 0.55), "Not shown to be decodable", "overlap"),
        ((0.9, 0.85, 0.95, 0.3), (0.5, 0.45, 0.55), "Not shown to be decodable", "p = 0.30"),
        ((0.1, 0.05, 0.15, 1.0), (0.5, 0.45, 0.55), "Not shown to be decodable", "no better"),
    ],
)
def test_the_verdict_follows_from_the_figures(probe: Any, words: Any, starts: str, holds: str) -> None:
    selected = pd.DataFrame([{"kind": "logistic", **figures(*probe)}, {"kind": "lda", **figures(0.99, 0.98, 1.0)}])
    baselines = pd.DataFrame(
        [{"name": "bag_of_words", **figures(*words)}, {"name": "majority", **figures(0.5, 0.5, 0.5)}]
    )
    said = job_verdict({"seeds": [0], "kinds": ["logistic", "lda"]}, selected, baselines, None)
    assert said[0].startswith(starts)
    assert holds in " ".join(said)
    assert "was not asked" in said[-1]


def test_a_probe_that_fails_on_one_polarity_is_not_simply_decodable() -> None:
    selected = pd.DataFrame([{"kind": "logistic", **figures(0.8, 0.75, 0.85)}])
    baselines = pd.DataFrame([{"name": "bag_of_words", **figures(0.5, 0.45, 0.55)}])
    baselines.loc[1] = {"name": "log_likelihood", **figures(0.9, 0.85, 0.95)}
    rows = [("affirmative", (0.99, 0.98, 1.0)), ("negated", (0.5, 0.4, 0.6))]
    parts = pd.DataFrame(
        [{"kind": "logistic", "part": "polarity", "value": value, **figures(*found)} for value, found in rows]
    )
    said = job_verdict({"seeds": [0], "kinds": ["logistic"]}, selected, baselines, None, parts=parts)
    assert said[0].startswith("Decodable beyond the text on average, but not on negated statements alone:")
    assert "It is a figure of the model, not of the text alone, and does not lie below" in said[2]


def test_a_likelihood_at_chance_is_no_rival_of_a_weak_probe() -> None:
    selected = pd.DataFrame([{"kind": "logistic", **figures(0.63, 0.55, 0.71)}])
    baselines = pd.DataFrame([{"name": "bag_of_words", **figures(0.5, 0.45, 0.55)}])
    baselines.loc[1] = {"name": "log_likelihood", **figures(0.49, 0.42, 0.56)}
    said = job_verdict({"seeds": [0], "kinds": ["logistic"]}, selected, baselines, None)
    assert "covers 1/2: how likely a text is says nothing of its label here" in said[2]


@pytest.mark.slow
def test_ray_gives_the_same_bytes(done: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is an extra: pip install 'interp-workbench[ray]'")
    from interp.engine import RayEngine

    run_small(write_job(tmp_path, WHOLE), tmp_path / "out", engine=RayEngine(workers=2))
    assert finished_bytes(tmp_path / "out") == finished_bytes(done)
