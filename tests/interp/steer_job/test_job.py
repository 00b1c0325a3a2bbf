"""A whole sweep with a tiny model: its files, what is done again and what is not, and what it refuses."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from filelock import FileLock
from probe_jobs import finished_bytes
from steer_jobs import JOB, pairs, plain_page, run_small, write_job
from tiny import tiny_model

from interp import artifact
from interp.dataset import load_pairs
from interp.probe import fit_probe
from interp.steer_job import load_steer_job_report, load_steer_spec, load_vector, run_steer_job
from interp.steer_job.inputs import read_inputs
from interp.steering.experiment import steering_experiment
from interp.steering.plan import ExperimentPlan, Setting, SettingResult, run_setting
from interp.steering.report import SteeringReport

WHOLE_PAGE = SteeringReport.write_html


@pytest.fixture(scope="module", autouse=True)
def plain_pages() -> Iterator[None]:
    """Pages without charts, which take seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SteeringReport, "write_html", plain_page)
        yield


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished sweep with everything in it; its specification lies beside it."""
    folder = tmp_path_factory.mktemp("whole")
    run_small(write_job(folder), folder / "out")
    return folder / "out"


def copy_of(done: Path, folder: Path) -> tuple[Path, Path]:
    """Specification and folder of a copy of the finished sweep."""
    shutil.copytree(done, folder / "out")
    return write_job(folder), folder / "out"


def settings_run(spec: Path, out: Path, settings: dict[str, Any] | None = None, **options: Any) -> int:
    """Settings that a run measured."""
    seen: list[str] = []
    run_small(spec, out, settings, progress=lambda step, *_: seen.append(step), **options)
    return seen.count("settings")


def test_the_report_is_that_of_an_experiment(done: Path) -> None:
    report, inputs = load_steer_job_report(done), read_inputs(load_steer_spec(done.parent / "small.toml"))
    model = tiny_model()
    direct = steering_experiment(model, load_vector(done / "vector.safetensors"), **inputs.arguments())
    for name in ("effects", "damage", "values", "generations"):
        pd.testing.assert_frame_equal(getattr(report, name), getattr(direct, name), check_dtype=False)
    assert report.inputs == direct.inputs
    assert set(report.measures) == {"preference", "target tokens", "phrases"}
    assert {"vector", "instruction", "isotropic", "covariance"} == set(report.effects["kind"])
    assert report.damage["accuracy"].notna().any()


def test_the_folder_holds_report_vector_and_a_task_for_each_setting(done: Path) -> None:
    names = {path.name for path in done.iterdir()}
    assert {"report.json", "report.html", "vector.safetensors", "tasks", "job.json", "log.jsonl"} <= names
    # 3 strengths of the vector, 2 random directions at 2, the instruction and its counterpart, the fit.
    assert len(list((done / "tasks").iterdir())) == 3 + 4 + 2 + 1
    content = (done / "report.json").read_text()
    assert str(done.parent) not in content
    assert artifact.read_json(done / "report.json")["card"]["job"]["spec"]["pairs"] == "pairs.csv"


def test_what_the_vector_was_fitted_on_is_not_measured(done: Path) -> None:
    report = load_steer_job_report(done)
    measured = {group for *_, group in report.inputs["pairs"]}
    card = load_vector(done / "vector.safetensors").card
    every = load_pairs(done.parent / "pairs.csv")
    fitted = {pair.group for pair in every if artifact.hash_texts([str(pair.group)]) in card["group_hashes"]}
    assert not measured & fitted
    assert measured | fitted == set(pairs()["group"])
    assert "12 of 16 pairs were left out" in report.card["job"]["notes"][0]


def test_the_same_call_again_does_nothing_and_gives_the_same(done: Path, tmp_path: Path) -> None:
    spec, out = copy_of(done, tmp_path)
    before = finished_bytes(out)
    assert settings_run(spec, out) == 0
    (out / "report.html").unlink()
    assert settings_run(spec, out) == 0
    assert finished_bytes(out) == before


@pytest.mark.parametrize(
    ("change", "measured"),
    [
        ({"question": "Or does it?"}, 0),
        ({"strengths": [-0.5]}, 0),
        ({"strengths": [-0.5, 0.25, 0.5]}, 3),
        ({"n_random": 3}, 2),
        ({"vector.site": "resid_post:1"}, 9),
        ({"where": "generated"}, 9),
    ],
)
def test_a_changed_sweep_measures_what_the_change_decides(
    done: Path, tmp_path: Path, change: dict[str, Any], measured: int
) -> None:
    spec, out = copy_of(done, tmp_path)
    with pytest.raises(ValueError, match=rf"holds another job.*{next(iter(change))}: .*--replace"):
        run_small(spec, out, change)
    assert settings_run(spec, out, change, replace=True) == measured
    earlier = finished_bytes(out / "earlier" / "1")
    assert set(earlier) == {"report.json", "report.html", "vector.safetensors", "job.json"}
    assert earlier["report.json"] == (done / "report.json").read_bytes()


def test_other_pairs_in_the_same_file_are_another_sweep(done: Path, tmp_path: Path) -> None:
    spec, out = copy_of(done, tmp_path)
    frame = pairs()
    frame.loc[0, "positive"] = " fine"
    frame.to_csv(tmp_path / "pairs.csv", index=False)
    with pytest.raises(ValueError, match="what stands in its files"):
        run_small(spec, out)
    with pytest.raises(ValueError, match="the model's weights"):
        run_steer_job(load_steer_spec(done.parent / "small.toml"), out, model=tiny_model(seed=1))


class Stopped(Exception):
    """Raised by a progress function, as Ctrl-C would be."""


def stop_after(count: int) -> Callable[[str, int, int], None]:
    """End a job after so many settings."""

    def tell(step: str, done: int, total: int) -> None:
        if step == "settings" and done == count:
            raise Stopped

    return tell


def test_a_stopped_sweep_goes_on_where_it_was(done: Path, tmp_path: Path) -> None:
    spec, out = write_job(tmp_path), tmp_path / "out"
    with pytest.raises(Stopped):
        run_small(spec, out, progress=stop_after(4))
    with pytest.raises(ValueError, match="is not finished"):
        load_steer_job_report(out)
    with pytest.raises(ValueError, match="holds a job already"):
        run_small(spec, out, resume=False)
    assert settings_run(spec, out) == 5
    assert finished_bytes(out) == finished_bytes(done)


def test_damaged_tasks_are_done_again_and_named(done: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    spec, out = copy_of(done, tmp_path)
    one, other = next((out / "tasks").glob("vector-0.5*")), next((out / "tasks").glob("random-1*"))
    one.write_bytes(one.read_bytes()[:-7])
    other.write_bytes(b"")
    strange = next((out / "tasks").glob("instruction*"))
    tensors, card = artifact.load_artifact(strange, "steering task")
    card["result"]["written"][0]["mood"] = "good"  # a whole file with a field that no continuation has
    artifact.save_artifact(strange, "steering task", tensors, card)
    (out / "report.json").unlink()
    assert settings_run(spec, out) == 3
    for path in (one, other, strange):
        assert f"{path} is damaged" in caplog.text
    after = {name: content for name, content in finished_bytes(out).items() if ".damaged" not in name}
    assert after == finished_bytes(done)


def test_a_folder_is_not_shared(done: Path, tmp_path: Path) -> None:
    spec, out = copy_of(done, tmp_path)
    with FileLock(out / ".lock"), pytest.raises(ValueError, match="another process works in"):
        run_small(spec, out)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match=r"holds something else \(thesis.tex\)"):
        run_small(spec, tmp_path / "other")
    with pytest.raises(ValueError, match="resid_past"):
        run_small(spec, tmp_path / "new", {"vector.site": "resid_past:0"})
    assert not (tmp_path / "new").exists()


def test_a_vector_of_a_range_of_layers_and_one_from_a_file(done: Path, tmp_path: Path) -> None:
    spec = write_job(tmp_path)
    small = {"n_random": 1, "choices": "choices.jsonl", "vector.site": "resid_post:0-1"}
    report = run_small(spec, tmp_path / "range", small)
    assert report.card["sites"] == ["resid_post:0", "resid_post:1"]
    shutil.copy(done / "vector.safetensors", tmp_path / "v.safetensors")
    by_file = JOB[: JOB.index("[vector]")].replace("[vector]", "") + 'vector = "v.safetensors"\n'
    again = run_small(write_job(tmp_path, by_file), tmp_path / "file")
    own = load_steer_job_report(done).effects
    effects = again.effects.set_index(["measure", "direction", "strength"])["effect"]
    known = own[own["measure"] == "preference"].set_index(["measure", "direction", "strength"])["effect"]
    pd.testing.assert_series_equal(effects.sort_index(), known.sort_index(), rtol=1e-3, atol=1e-5)


ONE_FILE = 'model = "tiny"\npairs = "pairs.csv"\nn_random = 0\nstrengths = [0.5]\nvector = "{}"\n'


def test_a_vector_that_lies_in_the_folder_outlives_its_replacement(done: Path, tmp_path: Path) -> None:
    spec, out = copy_of(done, tmp_path)[0], tmp_path / "out"
    spec.write_text(ONE_FILE.format("out/vector.safetensors"))
    known = load_vector(done / "vector.safetensors").to_dict()
    run_small(spec, out, replace=True)
    assert (out / "earlier" / "1" / "vector.safetensors").is_file()
    assert load_vector(out / "vector.safetensors").to_dict() == known
    before = finished_bytes(out)
    assert settings_run(spec, out) == 0
    assert finished_bytes(out) == before


def test_the_vector_that_was_read_is_measured_though_its_file_changes(done: Path, tmp_path: Path) -> None:
    spec, file = write_job(tmp_path, ONE_FILE.format("v.safetensors")), tmp_path / "v.safetensors"
    shutil.copy(done / "vector.safetensors", file)
    vector = load_vector(file)
    report = run_small(spec, tmp_path / "out", progress=lambda *_: (vector * -1).save(file))
    assert report.inputs["vector"] == vector.to_dict()
    assert load_vector(tmp_path / "out" / "vector.safetensors").to_dict() == vector.to_dict()
    with pytest.raises(ValueError, match="what stands in its files"):
        run_small(spec, tmp_path / "out")


def test_a_vector_that_nothing_sees_is_refused_after_one_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, out, asked = write_job(tmp_path), tmp_path / "out", []

    def forgets_the_vector(plan: ExperimentPlan, setting: Setting) -> SettingResult:
        asked.append(setting)
        return run_setting(plan, plan.base)

    monkeypatch.setattr("interp.steer_job.tasks.run_setting", forgets_the_vector)
    for ran in (2, 2):  # what is there already is looked at before anything runs
        with pytest.raises(ValueError, match="does not see the vector"):
            run_small(spec, out)
        assert len(asked) == ran
    next((out / "tasks").glob("vector-0.*")).unlink()
    with pytest.raises(ValueError, match="does not see the vector"):
        run_small(spec, out)
    assert asked[2:] == [Setting("vector", "vector", 0.0)]


def test_the_place_of_a_vector_can_be_another_than_its_own(done: Path, tmp_path: Path) -> None:
    spec = write_job(tmp_path, ONE_FILE.format("v.safetensors").replace("strengths = [0.5]\n", ""))
    shutil.copy(done / "vector.safetensors", tmp_path / "v.safetensors")
    with pytest.raises(ValueError, match="resid_past"):
        run_small(spec, tmp_path / "out", {"site": "resid_past:0"})
    assert not (tmp_path / "out").exists()
    found = run_small(spec, tmp_path / "out", {"site": "writes", "kind": "ablate"})
    assert found.inputs["options"]["site"] == "writes"
    assert set(found.effects["strength"]) == {0.0, 1.0}
    one = run_small(spec, tmp_path / "one", {"kind": "ablate"})
    assert not found.effects["effect"].equals(one.effects["effect"])


def test_another_probe_in_the_same_file_is_another_sweep(done: Path, tmp_path: Path) -> None:
    table = '\n[[measures]]\nprobe = "p.safetensors"\n'
    spec = write_job(tmp_path, 'prompts = ["The item is"]\n' + ONE_FILE.format("v.safetensors") + table)
    shutil.copy(done / "vector.safetensors", tmp_path / "v.safetensors")
    rows, labels = torch.randn(40, 32, generator=torch.Generator().manual_seed(0)), [0, 1] * 20
    for sign in (1, -1):
        fit_probe(sign * rows, labels, "mass_mean", site="resid_post:1").save(tmp_path / "p.safetensors")
        assert settings_run(spec, tmp_path / "out", replace=sign < 0) == 2
    fit_probe(rows + 5, labels, "mass_mean", site="resid_post:1").save(tmp_path / "p.safetensors")
    with pytest.raises(ValueError, match="what stands in its files"):
        run_small(spec, tmp_path / "out")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"strength": [1]}, "unknown key 'strength'; did you mean 'strengths'"),
        ({"vector.stie": "x"}, "did you mean 'site'"),
        ({"strengths": ["much"]}, "strengths must be a number"),
        ({"strengths": [0.1, 0.1]}, "same value twice"),
        ({"kind": "clamp"}, "kind must be add, rotate, piecewise, ablate, got 'clamp'"),
        ({"where": "nowhere"}, "where must be all, prompt, generated"),
        ({"prompts": []}, "give prompts"),
        ({"measures": [{"tokens": "a", "phrases": "b"}]}, "give one of the three"),
        ({"measures": [{"tokens": "a"}, {"tokens": "b"}]}, "two measures are called 'target tokens'"),
        ({"vector.file": "v.safetensors"}, "one of the two"),
        ({"vector.data": "nowhere.csv"}, "nowhere.csv"),
        ({"vector.held_out": 1.5}, "held_out is a share"),
        ({"vector.held_out": 0}, "fitted on all 16 pairs"),
        ({"pairs": "sentimant"}, "sentiment"),
        ({"vector": "pairs.safetensors"}, "there is no file"),
        ({"n_random": -1}, "n_random must be 0 or more"),
    ],
)
def test_what_is_wrong_is_said_before_a_model_is_loaded(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    spec = write_job(tmp_path)
    with pytest.raises(ValueError, match=message):
        run_steer_job(load_steer_spec(spec, change), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_page_has_charts(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SteeringReport, "write_html", WHOLE_PAGE)
        report = run_small(write_job(tmp_path), tmp_path / "out")
    page = (tmp_path / "out" / "report.html").read_text("utf-8")
    assert "<svg" in page
    assert report.card["job"]["notes"][0] in page


@pytest.mark.slow
def test_ray_gives_the_same_bytes(done: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is an extra: pip install 'interp-workbench[ray]'")
    from interp.engine import RayEngine

    run_small(write_job(tmp_path), tmp_path / "out", engine=RayEngine(workers=2))
    assert finished_bytes(tmp_path / "out") == finished_bytes(done)
