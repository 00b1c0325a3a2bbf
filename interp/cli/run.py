"""Commands to begin with: the demo, and what is there to be used."""

import json
import sys
from pathlib import Path

import click

import interp
from interp.cli.app import serve
from interp.cli.output import console, json_option, show


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
        serve(folder, None, port, background=not sys.stdout.isatty())


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


COMMANDS = (demo, models, datasets)
