"""`interp app`: what it shows, where it listens, and whom it refuses."""

import importlib.util
import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import interp
from interp.cli import app
from interp.cli.group import status

PASSWORD = "a long enough password"
AUTH = '[auth]\nredirect_uri = "http://localhost/oauth2callback"\ncookie_secret = "x"\n'


class Started(subprocess.Popen[bytes]):
    """What would have been started."""

    _child_created = False

    def __init__(self, words: list[str], **options: Any) -> None:
        self.words, self.environment = words, options["env"]
        self.returncode, self.pid = 0, 7
        Started.last = self

    last: "Started | None" = None

    def wait(self, timeout: float | None = None) -> int:
        return 0

    def values(self, option: str) -> list[str]:
        """Of an option, as often as it is given."""
        return [self.words[at + 1] for at, word in enumerate(self.words) if word == option]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[Started]:
    """No server starts; a folder to work in, with a run in runs/demo; one model on the machine."""
    Started.last = None
    monkeypatch.setattr(app.subprocess, "Popen", Started)
    monkeypatch.setattr(app, "wait_until_healthy", lambda url, server: None)
    monkeypatch.setattr(app.webbrowser, "open", lambda url: None)
    for name in [name for name in os.environ if name.startswith("INTERP_APP")]:
        monkeypatch.delenv(name)
    for name in ("INTERP_RUN", "INTERP_MODEL", "INTERP_STORES", "INTERP_WORKSPACE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    cached(monkeypatch, ["small"])
    (tmp_path / "runs" / "demo").mkdir(parents=True)
    (tmp_path / "runs" / "demo" / "demo.json").write_text("{}")
    return Started


def cached(monkeypatch: pytest.MonkeyPatch, names: list[str]) -> None:
    frame = pd.DataFrame({"name": ["other", *names], "kind": "language model", "cached": [False, *[True] * len(names)]})
    monkeypatch.setattr(interp, "models", lambda: frame, raising=False)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The message of a call that is refused."""
    assert status(["app", *arguments]) == 2
    assert Started.last is None
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


def server() -> Started:
    assert Started.last is not None
    return Started.last


def test_the_default_is_this_machine_and_the_run(started: type[Started], tmp_path: Path) -> None:
    assert status(["app"]) == 0
    assert server().values("--server.address") == ["127.0.0.1"]
    assert server().values("--server.allowedHosts") == ["localhost", "127.0.0.1"]
    assert server().values("--server.enableXsrfProtection") == ["true"]
    assert server().values("--browser.serverAddress") == []
    told = server().environment
    assert told["INTERP_RUN"] == str(tmp_path / "runs" / "demo")
    assert told["INTERP_WORKSPACE"] == str(tmp_path / "runs")
    assert not {"INTERP_STORES", "INTERP_MODEL", "INTERP_APP_REMOTE", "INTERP_APP_LOGIN"} & set(told)


def test_all_that_can_be_named_reaches_the_app(started: type[Started], tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "store.json").write_text("{}")
    assert status(["app", "--workspace", "all", "--store", "a", "--store", "b", "--model", "gpt2"]) == 0
    told = server().environment
    assert told["INTERP_WORKSPACE"] == str(tmp_path / "all")
    assert told["INTERP_STORES"].split(os.pathsep) == [str(tmp_path / "a"), str(tmp_path / "b")]
    assert told["INTERP_MODEL"] == "gpt2"


def test_without_a_run_it_opens_on_a_model(started: type[Started], tmp_path: Path) -> None:
    (tmp_path / "runs" / "demo" / "demo.json").unlink()
    assert status(["app"]) == 0
    told = server().environment
    assert told["INTERP_MODEL"] == "small"
    assert told["INTERP_WORKSPACE"] == str(tmp_path / "runs")
    assert "INTERP_RUN" not in told


def test_nothing_to_show_is_refused(
    started: type[Started], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "nowhere is no run" in refused(capsys, "--run", "nowhere")
    assert "nowhere is no store" in refused(capsys, "--store", "nowhere")
    cached(monkeypatch, [])
    (tmp_path / "runs" / "demo" / "demo.json").unlink()
    assert "interp demo" in refused(capsys)


@pytest.mark.parametrize("strange", [["--host", "0.0.0.0"], ["--host", "192.0.2.1"], ["--name", "lab.example"]])
def test_others_need_allow_remote(
    started: type[Started], strange: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("INTERP_APP_PASSWORD", PASSWORD)
    assert "--allow-remote" in refused(capsys, *strange)


def test_allow_remote_needs_a_password(
    started: type[Started], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    remote = ["--host", "0.0.0.0", "--name", "lab.example", "--allow-remote"]
    assert "INTERP_APP_PASSWORD" in refused(capsys, *remote)
    monkeypatch.setenv("INTERP_APP_PASSWORD", "short")
    assert "fewer than 12" in refused(capsys, *remote)
    monkeypatch.setenv("INTERP_APP_PASSWORD", "x" * 300)
    assert "more than 256" in refused(capsys, *remote)


def test_every_address_needs_a_name(
    started: type[Started], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("INTERP_APP_PASSWORD", PASSWORD)
    assert "--name" in refused(capsys, "--host", "0.0.0.0", "--allow-remote")
    for name in ("*", "*.example", "a b", "-x", ""):
        assert "no host name" in refused(capsys, "--allow-remote", f"--name={name}")


def test_a_remote_server_checks_its_names(
    started: type[Started], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("INTERP_APP_PASSWORD", PASSWORD)
    assert status(["app", "--host", "0.0.0.0", "--name", "lab.example", "--name", "10.0.0.7", "--allow-remote"]) == 0
    assert server().values("--server.allowedHosts") == ["localhost", "127.0.0.1", "lab.example", "10.0.0.7"]
    assert server().values("--browser.serverAddress") == ["lab.example"]
    assert "https://10.0.0.7" in server().values("--server.corsAllowedOrigins")
    assert server().environment["INTERP_APP_REMOTE"] == "1"
    assert PASSWORD not in " ".join(server().words)
    said = capsys.readouterr()
    assert PASSWORD not in said.out + said.err
    assert "not encrypted" in said.err


def test_secrets_must_say_who_may_come(
    started: type[Started], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(app.importlib.util, "find_spec", lambda name: None if name == "authlib" else found(name))
    secrets = tmp_path / "secrets.toml"
    call = ["--allow-remote", "--name", "lab.example", "--secrets", str(secrets)]
    assert "no [auth]" in refused(capsys, *call)
    secrets.write_text("[auth")
    assert "no TOML" in refused(capsys, *call)
    secrets.write_text(AUTH)
    assert "names nobody" in refused(capsys, *call)
    secrets.write_text(AUTH + '[interp]\nallowed = ["@lab.org"]\n')
    assert "pip install Authlib" in refused(capsys, *call)
    monkeypatch.setattr(app.importlib.util, "find_spec", lambda name: found("json"))
    assert status(["app", *call]) == 0
    assert server().values("--secrets.files") == [str(secrets)]
    assert server().environment["INTERP_APP_REMOTE"] == "1"


def test_a_login_on_this_machine_fails_closed(started: type[Started], monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a proxy the server stands on loopback too: where a login was set up, nothing is shown without one."""
    monkeypatch.setenv("INTERP_APP_PASSWORD", PASSWORD)
    monkeypatch.setenv("INTERP_APP_LOGIN", "of another server")
    assert status(["app"]) == 0
    assert server().environment["INTERP_APP_REMOTE"] == "1"
    assert "INTERP_APP_LOGIN" not in server().environment


def test_a_taken_port_is_passed_over() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        assert app.free_port("127.0.0.1", port) != port


def test_an_address_of_another_machine_is_refused(
    started: type[Started], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("INTERP_APP_PASSWORD", PASSWORD)
    assert "no address of this machine" in refused(capsys, "--host", "192.0.2.1", "--allow-remote")
    assert "no port" in refused(capsys, "--port", "0")
