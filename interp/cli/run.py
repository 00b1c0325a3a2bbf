"""Commands that start things: the demo, the dashboard, and what is there to be used."""

import contextlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import webbrowser
from pathlib import Path

import click

import interp
from interp.cli.output import console, json_option, show

LOOPBACK = ("127.0.0.1", "localhost", "::1")


@click.command(epilog="Example: interp demo --no-app")
@click.option(
    "--run",
    "folder",
    default="runs/demo",
    show_default=True,
    type=click.Path(path_type=Path),
    help="Folder of the run.",
)
@click.option(
    "--spec", type=click.Path(path_type=Path), help="Another specification than the bundled probes/demo.toml."
)
@click.option("--no-app", is_flag=True, help="Do not open the dashboard at the end.")
@click.option("--port", default=8501, show_default=True, help="Port of the dashboard; the next free one is taken.")
@json_option
def demo(folder: Path, spec: Path | None, no_app: bool, port: int, as_json: bool) -> None:
    """Record a real model and run every analysis on it; a few minutes on two cores.

    Interrupted and started again it goes on where it was.
    """
    found = interp.run_demo(folder, spec=interp.load_demo_spec(spec), console=None if as_json else console())
    if as_json:
        click.echo(json.dumps(found, ensure_ascii=False))
    elif not no_app:
        serve(folder, None, port, "127.0.0.1", background=not sys.stdout.isatty())


@click.command(epilog="Example: interp app --run runs/demo --port 8600")
@click.option(
    "--run",
    "folder",
    default="runs/demo",
    show_default=True,
    type=click.Path(path_type=Path),
    help="Folder of a finished demo.",
)
@click.option("--model", help="Model for typed prompts; default: the run's.")
@click.option("--port", default=8501, show_default=True, help="The next free one is taken.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; this machine only.")
def app(folder: Path, model: str | None, port: int, host: str) -> None:
    """Open the dashboard."""
    serve(folder, model, port, host)


@click.command(epilog="Example: interp models --json")
@json_option
def models(as_json: bool) -> None:
    """The models that load by name, and the families whose checkpoints load from a folder, a GGUF file or the hub."""
    catalogue, families = interp.models(), interp.families()
    if as_json:
        show({"models": catalogue.to_dict("records"), "families": families.to_dict("records")}, as_json)
        return
    show(catalogue, as_json, title="By name: interp.load(NAME)")
    # Fewer columns than the frame has: a terminal is narrow.
    shown = families[["family", "members", "attention", "positions", "norm", "gguf", "note"]]
    shown = shown.assign(gguf=["yes" if reads else "" for reads in shown["gguf"]])
    show(shown, as_json, title="Families: interp.load(FOLDER | FILE.gguf | ORG/NAME)")


@click.command(epilog="Example: interp datasets")
@json_option
def datasets(as_json: bool) -> None:
    """The data sets that come with the package."""
    show(interp.datasets(), as_json)


def serve(folder: Path, model: str | None, port: int, host: str, *, background: bool = False) -> None:
    """Start the dashboard on this machine and open it; `background` returns once it answers and leaves it running."""
    if host not in LOOPBACK:
        raise click.UsageError(f"--host {host} would let others in; the dashboard listens on 127.0.0.1 only")
    has_run = (folder / "demo.json").is_file()
    if not has_run and model is None:
        raise click.UsageError(
            f"{folder} is no run; make one (interp demo --run {folder}), or give --model for typed prompts"
        )
    if not 1 <= port <= 65535:
        raise click.UsageError(f"--port {port} is no port; give 1 to 65535")
    if importlib.util.find_spec("streamlit") is None:
        raise click.ClickException("the dashboard needs Streamlit: pip install 'interp-workbench[app]'")
    port = free_port(host, port)
    named = {"INTERP_RUN": str(folder.resolve())} if has_run else {}
    environment = os.environ | named | ({"INTERP_MODEL": model} if model else {})
    script = interp.content_folder("app") / "main.py"
    command = [
        sys.executable, "-m", "streamlit", "run", str(script), "--server.address", host, "--server.port", str(port),
        "--server.headless", "true", "--server.fileWatcherType", "none", "--browser.gatherUsageStats", "false",
    ]  # fmt: skip
    url = f"http://{host}:{port}"
    output = (
        (folder / "app.log").open("ab")
        if background and folder.is_dir()
        else (subprocess.DEVNULL if background else None)
    )
    server = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=background
    )
    try:
        wait_until_healthy(url, server)
        if background:
            click.echo(f"The dashboard is open at {url} and goes on in the background; to stop it: kill {server.pid}")
            return
        click.echo(f"The dashboard is open at {url}; Ctrl-C stops it.")
        webbrowser.open(url)
        server.wait()
    except KeyboardInterrupt:
        server.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(5)
    if server.returncode not in (0, None, -signal.SIGINT):
        raise click.ClickException(f"the dashboard stopped with status {server.returncode}")


def free_port(host: str, port: int) -> int:
    """The first free port from `port` on."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for candidate in range(port, min(port + 50, 65536)):
        with socket.socket(family) as probe:
            try:
                probe.bind((host, candidate))
            except OSError:
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


COMMANDS = (demo, app, models, datasets)
