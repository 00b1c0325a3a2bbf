"""`interp app`: start the dashboard, for this machine alone or, with a password, for others."""

import contextlib
import errno
import importlib.util
import ipaddress
import os
import re
import signal
import socket
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click
from click.core import ParameterSource

import interp

LOOPBACK = ("127.0.0.1", "localhost", "::1")
WILDCARDS = ("0.0.0.0", "::")
PASSWORD = "INTERP_APP_PASSWORD"
MIN_PASSWORD, MAX_PASSWORD = 12, 256
"""Fewest and most characters of a password."""


@dataclass(frozen=True)
class Access:
    """Where the server listens, and whom it lets in."""

    host: str = "127.0.0.1"
    names: tuple[str, ...] = ()
    """Further host names under which it is reached."""
    remote: bool = False
    """Others than this machine may come."""
    secrets: Path | None = None
    """A secrets.toml with `[auth]`."""


@click.command(epilog="Example: interp app --run runs/demo --port 8600")
@click.option(
    "--run",
    "folder",
    default="runs/demo",
    show_default=True,
    type=click.Path(path_type=Path),
    help="Folder of a finished demo.",
)
@click.option(
    "--workspace",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder with further results, in which jobs write; default: the folder that holds the run.",
)
@click.option(
    "--store", "stores", multiple=True, type=click.Path(path_type=Path), help="A store elsewhere; may be repeated."
)
@click.option("--model", help="Model for typed prompts; default: the run's.")
@click.option("--port", default=8501, show_default=True, help="The next free one is taken.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--allow-remote",
    is_flag=True,
    help=f"Let other machines in. Needs a password of {MIN_PASSWORD} characters in ${PASSWORD}, or --secrets.",
)
@click.option("--name", "names", multiple=True, help="A host name under which others reach it; may be repeated.")
@click.option(
    "--secrets",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A secrets.toml for st.login: [auth], and [interp] allowed = [addresses].",
)
def app(
    folder: Path, workspace: Path | None, stores: tuple[Path, ...], model: str | None, port: int, host: str,
    allow_remote: bool, names: tuple[str, ...], secrets: Path | None,
) -> None:  # fmt: skip
    """Open the dashboard.

    It listens on this machine only. Others come in by --allow-remote, and then everybody has to log in.
    """
    asked = click.get_current_context().get_parameter_source("folder") is ParameterSource.COMMANDLINE
    if asked and model is None and not _is_run(folder):
        raise click.UsageError(
            f"{folder} is no run; make one (interp demo --run {folder}), or give --model for typed prompts"
        )
    serve(folder, model, port, Access(host, names, allow_remote, secrets), workspace=workspace, stores=stores)


def serve(
    folder: Path,
    model: str | None,
    port: int,
    access: Access | None = None,
    *,
    workspace: Path | None = None,
    stores: Sequence[Path] = (),
    background: bool = False,
) -> None:
    """Start the dashboard and open it; `background` returns once it answers and leaves it running.

    Args:
        folder: of the run; it may be missing where something else can be shown.
        model: for typed prompts; None takes the run's, or one that is on this machine.
        port: the next free one is taken.
        access: where it listens and whom it lets in; default: this machine.
        workspace: folder of further results.
        stores: stores that lie elsewhere.
        background: do not wait for its end.

    Raises:
        click.UsageError: nothing to show, or an address without a password.
    """
    access = access or Access()
    must_log_in = check_access(access)
    environment = os.environ | _shown(folder, model, workspace, stores)
    environment.pop("INTERP_APP_LOGIN", None)  # the hash of another server's password
    if must_log_in:
        environment["INTERP_APP_REMOTE"] = "1"  # then the app lets nobody in where what it needs for that is lost
    if not 1 <= port <= 65535:
        raise click.UsageError(f"--port {port} is no port; give 1 to 65535")
    if importlib.util.find_spec("streamlit") is None:
        raise click.ClickException("the dashboard needs Streamlit: pip install 'interp-workbench[app]'")
    port = free_port(access.host, port)
    output = (
        (folder / "app.log").open("ab")
        if background and folder.is_dir()
        else (subprocess.DEVNULL if background else None)
    )
    server = subprocess.Popen(
        command(access, port),
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=background,
    )
    _attend(server, _url("127.0.0.1" if access.host in WILDCARDS else access.host, port), access, port, background)


def check_access(access: Access) -> bool:
    """Refuse an address that others could reach without having to log in.

    Returns:
        Whether everybody has to log in.

    Raises:
        click.UsageError: and what to give.
    """
    strangers = [name for name in (access.host, *access.names) if name not in LOOPBACK]
    for name in (access.host, *access.names):
        if not (re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?", name) or _is_address(name)):
            raise click.UsageError(f"{name!r} is no host name or address")
    if strangers and not access.remote:
        raise click.UsageError(
            f"{strangers[0]} would let others in; the dashboard listens on 127.0.0.1 only. To let them in: --allow-remote, "
            f"with a password in ${PASSWORD}"
        )
    if access.host in WILDCARDS and not access.names:
        raise click.UsageError(
            f"--host {access.host} is every address of this machine: say by --name HOST under which name others reach it"
        )
    password = os.environ.get(PASSWORD)
    if password is not None and len(password) < MIN_PASSWORD:
        raise click.UsageError(f"the password in ${PASSWORD} has fewer than {MIN_PASSWORD} characters")
    if password is not None and len(password) > MAX_PASSWORD:
        raise click.UsageError(f"the password in ${PASSWORD} has more than {MAX_PASSWORD} characters")
    login = _has_login(access.secrets)
    if access.remote and password is None and not login:
        raise click.UsageError(
            f"--allow-remote needs a password of {MIN_PASSWORD} characters or more in ${PASSWORD}, or a secrets.toml with "
            "[auth] for st.login (--secrets FILE)"
        )
    if login and importlib.util.find_spec("authlib") is None:
        raise click.UsageError("st.login needs Authlib: pip install Authlib")
    return access.remote or login or password is not None


def command(access: Access, port: int) -> list[str]:
    """How the server is started; what config.toml says of its safety is said again, since a file may be lost."""
    script = interp.content_folder("app") / "main.py"
    public = [name for name in (*access.names, access.host) if name not in (*LOOPBACK, *WILDCARDS)]
    hosts = list(dict.fromkeys(["localhost", "127.0.0.1", *([access.host] if access.host == "::1" else []), *public]))
    words = [
        sys.executable, "-m", "streamlit", "run", str(script), "--server.address", access.host, "--server.port", str(port),
        "--server.headless", "true", "--server.fileWatcherType", "none", "--browser.gatherUsageStats", "false",
        "--server.enableXsrfProtection", "true", "--server.enableCORS", "true", "--server.enableStaticServing", "false",
    ]  # fmt: skip
    for host in hosts:
        words += ["--server.allowedHosts", host]
    if public:
        # Otherwise Streamlit asks a service in the network for its own address, to compare origins with.
        words += ["--browser.serverAddress", public[0]]
    for name in public[1:]:
        words += [
            "--server.corsAllowedOrigins",
            f"http://{name}:{port}",
            "--server.corsAllowedOrigins",
            f"https://{name}",
        ]
    return words if access.secrets is None else [*words, "--secrets.files", str(access.secrets.resolve())]


def free_port(host: str, port: int) -> int:
    """The first free port from `port` on."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for candidate in range(port, min(port + 50, 65536)):
        with socket.socket(family) as probe:
            try:
                probe.bind((host, candidate))
            except socket.gaierror:
                raise click.UsageError(f"--host {host} is no address of this machine") from None
            except OSError as error:
                if error.errno == errno.EADDRNOTAVAIL:
                    raise click.UsageError(f"--host {host} is no address of this machine") from None
                continue
            return candidate
    raise click.ClickException(f"no free port from {port} to {port + 49}; give another by --port")


def wait_until_healthy(url: str, server: "subprocess.Popen[bytes]", seconds: float = 60.0) -> None:
    """Wait for the server to answer; an error if it ends or stays silent."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if server.poll() is not None:
            raise click.ClickException(f"the dashboard stopped with status {server.returncode} before it answered")
        silence = contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError)
        with silence, urllib.request.urlopen(f"{url}/_stcore/health", timeout=2) as answer:
            if answer.status == 200:
                return
        time.sleep(0.2)
    server.terminate()
    raise click.ClickException(f"the dashboard did not answer within {seconds:.0f} s")


def _attend(server: "subprocess.Popen[bytes]", url: str, access: Access, port: int, background: bool) -> None:
    """Wait until it answers, say where it is, and end with it."""
    try:
        wait_until_healthy(url, server)
        if background:
            click.echo(f"The dashboard is open at {url} and goes on in the background; to stop it: kill {server.pid}")
            return
        click.echo(f"The dashboard is open at {url}; Ctrl-C stops it.")
        if access.remote:
            names = access.names or (access.host,)
            click.echo(f"Others reach it at {', '.join(_url(name, port) for name in names)} and have to log in.")
            click.echo("The connection is not encrypted: put a TLS proxy or an SSH tunnel in front of it.", err=True)
        else:
            webbrowser.open(url)
        server.wait()
    except KeyboardInterrupt:
        server.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(5)
    if server.returncode not in (0, None, -signal.SIGINT):
        raise click.ClickException(f"the dashboard stopped with status {server.returncode}")


def _shown(folder: Path, model: str | None, workspace: Path | None, stores: Sequence[Path]) -> dict[str, str]:
    """What of the environment tells the app what to show.

    Raises:
        click.UsageError: a store that is none; neither a run nor a model.
    """
    for store in stores:
        if not (store / "store.json").is_file():
            raise click.UsageError(f"{store} is no store; make one by interp record, or see interp store ls FOLDER")
    has_run = _is_run(folder)
    model = model or (None if has_run else _a_model(folder))
    space = workspace or (folder.parent if has_run else Path("runs"))
    found = {"INTERP_WORKSPACE": str(space.absolute())}
    found |= {"INTERP_RUN": str(folder.resolve())} if has_run else {}
    found |= {"INTERP_STORES": os.pathsep.join(str(store.resolve()) for store in stores)} if stores else {}
    return found | ({"INTERP_MODEL": model} if model else {})


def _is_run(folder: Path) -> bool:
    return (folder / "demo.json").is_file()


def _a_model(run: Path) -> str:
    """A language model that is on this machine already: a page never fetches one."""
    known = interp.models()
    here = known.loc[known["cached"].astype(bool)]
    here = here.loc[here["kind"] == "language model"] if "kind" in here else here
    if here.empty:
        raise click.UsageError(
            f"{run} is no run, and no model is on this machine; make one (interp demo --run {run}), or give --model"
        )
    return str(here["name"].iloc[0])


def _has_login(named: Path | None) -> bool:
    """Whether st.login is set up: [auth], and whom to let in.

    Raises:
        click.UsageError: a named file without it, or one that would let in everybody who has an account.
    """
    usual = [place / ".streamlit" / "secrets.toml" for place in (Path.home(), Path.cwd())]
    for path in usual if named is None else [named]:
        if not path.is_file():
            continue
        try:
            held = tomllib.loads(path.read_text("utf-8"))
        except (OSError, ValueError):
            raise click.UsageError(f"{path} is no TOML file that can be read") from None
        if not isinstance(held.get("auth"), dict):
            continue
        section = held.get("interp")
        if not isinstance(section, dict) or not section.get("allowed"):
            raise click.UsageError(
                f'{path} has [auth] and names nobody: add [interp] with allowed = ["ada@lab.org", "@lab.org"]'
            )
        return True
    if named is not None:
        raise click.UsageError(f"{named} has no [auth] section for st.login")
    return False


def _is_address(name: str) -> bool:
    try:
        return bool(ipaddress.ip_address(name))
    except ValueError:
        return False


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


COMMANDS = (app,)
