"""Background jobs: what becomes of a command is said, whatever ends it; they take turns, and nothing reads outside."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from interp import artifact, jobs
from interp.cli.group import status
from interp.jobs import background, worker
from interp.jobs.progress import VARIABLE, note_progress

ENDLESS = "import time\nwhile True: time.sleep(0.05)\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "jobs"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], list[str]]:
    """A command that runs a Python text: `python -m interp X` is replaced by a package of that name on the path."""
    package = tmp_path / "path" / "interp"
    real = Path(jobs.__file__).parents[1]
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(f"__path__.append({str(real)!r})\n__version__ = '0'\n")
    (package / "__main__.py").write_text("import sys\nexec(sys.argv[1])\n")
    monkeypatch.chdir(tmp_path / "path")
    return lambda text: [text]


class Ended:
    """A process that is over, with the number of this one."""

    pid = os.getpid()

    def poll(self) -> int:
        return 0


def wait(job: jobs.Job, *states: str, seconds: float = 60) -> jobs.JobState:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        state = job.status()
        if state.state in states:
            return state
        time.sleep(0.05)
    raise AssertionError(f"still {job.status()} after {seconds} s; log: {job.log_tail()}")


def test_a_real_command_runs_and_its_output_is_kept(root: Path) -> None:
    job = jobs.submit(root, ["datasets", "--json"], title="the sets", kind="list")
    state = wait(job, "done", "failed", "lost")
    assert (state.state, state.code, state.error) == ("done", 0, "")
    assert '"capitals"' in (job.path / "log.txt").read_text()
    assert state.seconds is not None
    assert [each.id for each in jobs.jobs(root)] == [job.id]


def test_a_failed_command_says_its_last_line(root: Path, script: Callable[[str], list[str]]) -> None:
    text = "import sys\nprint('first')\nprint('it broke <b>', file=sys.stderr)\nsys.exit(3)"
    state = wait(jobs.submit(root, script(text), title="x", kind="x"), "failed", "done")
    assert (state.state, state.code, state.error) == ("failed", 3, "it broke <b>")


def test_progress_is_read_while_it_runs_and_a_cancel_ends_it(root: Path, script: Callable[[str], list[str]]) -> None:
    text = "from interp.jobs.progress import note_progress\nnote_progress('Fitting', 3, 10, 'so far')\n" + ENDLESS
    job = jobs.submit(root, script(text), title="x", kind="x")
    deadline = time.monotonic() + 60
    while job.status().step != "Fitting" and time.monotonic() < deadline:
        time.sleep(0.05)
    state = job.status()
    assert (state.state, state.step, state.done, state.total, state.message) == ("running", "Fitting", 3, 10, "so far")
    with pytest.raises(ValueError, match="not over yet"):
        jobs.again(root, job.id)
    jobs.cancel(root, job.id)
    assert wait(job, "cancelled", "failed").state == "cancelled"
    assert "KeyboardInterrupt" in job.log_tail()
    jobs.cancel(root, job.id)
    assert job.status().state == "cancelled"


def test_a_command_that_ignores_the_interrupt_is_killed(
    root: Path, script: Callable[[str], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "GRACE_S", 0.3)
    text = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('deaf', flush=True)\n" + ENDLESS
    folder = root / "20260101-000000-abcdef"
    folder.mkdir(parents=True)
    artifact.write_json(
        folder / "spec.json", {"format": 1, "kind": "x", "title": "x", "argv": script(text), "submitted": 1.0}
    )
    log = (folder / "log.txt").open("wb")
    child = subprocess.Popen([sys.executable, "-m", "interp", text], stdout=log, stderr=log, start_new_session=True)
    deadline = time.monotonic() + 30
    while b"deaf" not in (folder / "log.txt").read_bytes() and time.monotonic() < deadline:
        time.sleep(0.05)
    (folder / "cancel").touch()
    assert worker._watch(folder, child) == "cancelled"
    assert child.returncode == -signal.SIGKILL
    log.close()


def test_jobs_take_turns_and_one_that_waits_can_be_cancelled(root: Path, script: Callable[[str], list[str]]) -> None:
    first = jobs.submit(root, script(ENDLESS), title="first", kind="x")
    second = jobs.submit(root, script("print('ran')"), title="second", kind="x")
    third = jobs.submit(root, script("print('ran')"), title="third", kind="x")
    wait(first, "running")
    jobs.cancel(root, second.id)
    assert wait(second, "cancelled").started is None
    assert third.status().state == "queued"
    jobs.cancel(root, first.id)
    wait(first, "cancelled")
    assert wait(third, "done", "failed").state == "done"


def test_a_killed_supervisor_leaves_its_command_and_then_a_lost_job(
    root: Path, script: Callable[[str], list[str]], tmp_path: Path
) -> None:
    go_on = tmp_path / "go on"
    text = f"import time, pathlib\nwhile not pathlib.Path({str(go_on)!r}).exists(): time.sleep(0.05)"
    job = jobs.submit(root, script(text), title="x", kind="x")
    deadline = time.monotonic() + 60
    while "child" not in (held := json.loads((job.path / "status.json").read_text())) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(held["pid"], signal.SIGKILL)
    while "supervisor is gone" not in job.status().message and time.monotonic() < deadline:
        time.sleep(0.05)
    assert job.status().state == "running"  # the command works on: nothing may be started beside it
    with pytest.raises(ValueError, match="not over yet"):
        jobs.again(root, job.id)
    waiting = jobs.submit(root, script("print('next')"), title="next", kind="x")
    assert waiting.status().state == "queued"
    go_on.touch()
    assert wait(job, "lost").error == "its process ended without a word"
    assert wait(waiting, "done", "failed").state == "done"
    once_more = jobs.again(root, job.id)
    assert once_more.argv == job.argv
    assert wait(once_more, "done", "failed").state == "done"


def test_a_killed_command_is_a_failed_job(root: Path, script: Callable[[str], list[str]]) -> None:
    text = "import os, signal\nprint('so far', flush=True)\nos.kill(os.getpid(), signal.SIGKILL)"
    state = wait(jobs.submit(root, script(text), title="x", kind="x"), "failed", "done")
    assert (state.state, state.code, state.error) == ("failed", -signal.SIGKILL, "so far")


def test_a_log_that_grows_without_end_stops_its_job_at_once(
    root: Path, script: Callable[[str], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "MOST_LOG", 2**20)
    folder = root / "20260101-000000-abcdef"
    folder.mkdir(parents=True)
    text = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: print('x' * 1000)"
    with (folder / "log.txt").open("wb") as log:
        child = subprocess.Popen([sys.executable, "-m", "interp", *script(text)], stdout=log, start_new_session=True)
        assert "wrote more to its log" in worker._watch(folder, child)
    assert child.returncode == -signal.SIGKILL


def test_two_jobs_do_not_share_an_output(root: Path, script: Callable[[str], list[str]]) -> None:
    first = jobs.submit(root, [*script(ENDLESS), "--out", "/somewhere/a"], title="x", kind="x")
    with pytest.raises(ValueError, match="writes to a already"):
        jobs.submit(root, [*script(ENDLESS), "--out", "/somewhere/a"], title="x", kind="x")
    wait(first, "running")
    jobs.cancel(root, first.id)
    wait(first, "cancelled")


def test_twenty_who_submit_at_once_get_eight_places(
    root: Path, script: Callable[[str], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "_supervisors", [])
    monkeypatch.setattr(background.subprocess, "Popen", lambda *a, **k: Ended())
    refused: list[str] = []

    def ask(number: int) -> None:
        try:
            jobs.submit(root, ["datasets"], title=str(number), kind="x")
        except ValueError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(jobs.jobs(root)) == background.MOST_WAITING
    assert len(refused) == 20 - background.MOST_WAITING


def test_another_process_with_the_same_number_is_not_taken_for_it() -> None:
    assert background.is_alive(os.getpid(), background.born(os.getpid()))
    assert not background.is_alive(os.getpid(), "1")
    assert not background.is_alive(None, None)


def test_too_many_jobs_and_too_little_disk_are_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []
    monkeypatch.setattr(background, "_supervisors", [])
    monkeypatch.setattr(background.subprocess, "Popen", lambda *a, **k: started.append(a) or Ended())
    for number in range(background.MOST_WAITING):
        jobs.submit(root, ["datasets"], title=str(number), kind="x")
    with pytest.raises(ValueError, match="8 jobs wait or run already"):
        jobs.submit(root, ["datasets"], title="one too many", kind="x")
    monkeypatch.setattr(background, "LEAST_FREE", 2**60)
    with pytest.raises(ValueError, match="GB left, less than"):
        jobs.submit(root / "other", ["datasets"], title="x", kind="x")
    assert len(started) == background.MOST_WAITING


@pytest.mark.parametrize("argv", [[], ["a\x00b"]])
def test_words_that_are_no_text_are_refused(root: Path, argv: list[str]) -> None:
    with pytest.raises(ValueError, match="argv must be a list of texts"):
        jobs.submit(root, argv, title="x", kind="x")


@pytest.mark.parametrize("name", ["..", "../../etc", "", "20260101-000000-zzzzzz", "a/b"])
def test_a_name_is_never_a_path(root: Path, name: str) -> None:
    with pytest.raises(ValueError, match="is no job"):
        jobs.job(root, name)


def test_a_damaged_job_is_left_out_and_a_damaged_status_is_lost(root: Path) -> None:
    for name, spec in (("20260101-000000-aaaaaa", "{"), ("20260101-000000-bbbbbb", '{"argv": 1}')):
        (root / name).mkdir(parents=True)
        (root / name / "spec.json").write_text(spec)
    good = root / "20260101-000000-cccccc"
    good.mkdir()
    artifact.write_json(
        good / "spec.json", {"format": 1, "kind": "x", "title": "<script>", "argv": ["datasets"], "submitted": 1.0}
    )
    (good / "status.json").write_text('{"state": "running", "total": ')
    newer = root / "20260101-000000-dddddd"
    newer.mkdir()
    artifact.write_json(
        newer / "spec.json", {"format": 99, "kind": "x", "title": "x", "argv": ["datasets"], "submitted": 1.0}
    )
    found = jobs.jobs(root)
    assert [each.title for each in found] == ["<script>"]
    assert found[0].status().state == "lost"
    for odd in ({"state": "weird"}, {"state": "done", "done": "x"}, {"state": "done", "started": "x"}, {}):
        artifact.write_json(good / "status.json", odd)
        assert found[0].status() == jobs.JobState("lost", error="its status cannot be read")


def test_no_secret_reaches_a_job(
    root: Path, script: Callable[[str], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERP_APP_PASSWORD", "correct horse battery")
    text = "import os\nprint('INTERP_APP_PASSWORD' in os.environ, 'correct horse' in str(os.environ))"
    job = jobs.submit(root, script(text), title="x", kind="x")
    wait(job, "done", "failed")
    assert job.log_tail().split() == ["False", "False"]


def test_progress_without_the_variable_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    note_progress("x", 1, 2)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "none" / "p.json"))
    note_progress("y", 1, 2)  # a folder that is not there is no reason to fail
    monkeypatch.setenv(VARIABLE, str(tmp_path / "p.json"))
    note_progress("z", 2, 2)
    assert json.loads((tmp_path / "p.json").read_text()) == {"step": "z", "done": 2, "total": 2, "message": ""}


def test_the_commands_list_show_cancel_and_again(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], script: Callable[[str], list[str]]
) -> None:
    job = jobs.submit(root, script("print('hello from the job')"), title="a title", kind="x")
    wait(job, "done")
    space = ["--workspace", str(tmp_path)]
    assert status(["jobs", "list", *space, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["jobs"][0]["title"] == "a title"
    assert status(["jobs", "show", job.id, *space]) == 0
    assert "hello from the job" in capsys.readouterr().out
    assert status(["jobs", "cancel", job.id, *space]) == 0
    assert status(["jobs", "again", job.id, *space]) == 0
    assert status(["jobs", "show", "nonsense", *space]) == 2
    wait(jobs.jobs(root)[0], "done", "failed")
