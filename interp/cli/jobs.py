"""Background jobs from the shell: the same ones that the dashboard starts."""

import time
from pathlib import Path
from typing import Any

import click
import pandas as pd

from interp import jobs as background
from interp.cli.job_progress import duration
from interp.cli.output import json_option, show

workspace_option = click.option(
    "--workspace",
    default="runs",
    show_default=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the dashboard's results; its jobs lie in jobs/.",
)
FOLDER = "jobs"


@click.group("jobs", epilog="Example: interp jobs list")
def group() -> None:
    """Long work in the background: what runs, how far it is, and how to end it or go on with it."""


@group.command("list", epilog="Example: interp jobs list --workspace runs")
@workspace_option
@json_option
def list_jobs(workspace: Path, as_json: bool) -> None:
    """Every job of a workspace, newest first."""
    rows = [facts(job) for job in background.jobs(workspace / FOLDER)]
    if as_json:
        show({"jobs": rows}, as_json)
    elif rows:
        shown = pd.DataFrame(rows)
        show(shown.loc[:, ["id", "state", "title", "part", "took"]], as_json, title=f"jobs in {workspace / FOLDER}")
    else:
        click.echo(f"no jobs in {workspace / FOLDER}; the dashboard's page Runs starts them")


@group.command("show", epilog="Example: interp jobs show 20261201-101500-a1b2c3")
@click.argument("name", metavar="ID")
@workspace_option
@json_option
def show_job(name: str, workspace: Path, as_json: bool) -> None:
    """How far a job is, and the end of its log."""
    job = background.job(workspace / FOLDER, name)
    said = {**facts(job), "command": ["interp", *job.argv], "log": job.log_tail()}
    if as_json:
        show(said, as_json)
        return
    for key in ("id", "title", "state", "part", "took", "error"):
        if said[key]:
            click.echo(f"{key}: {said[key]}")
    click.echo("command: " + " ".join(said["command"]))
    click.echo(said["log"])


@group.command(epilog="Example: interp jobs cancel 20261201-101500-a1b2c3")
@click.argument("name", metavar="ID")
@workspace_option
def cancel(name: str, workspace: Path) -> None:
    """Ask a job to end; what it has finished is kept."""
    background.cancel(workspace / FOLDER, name)
    click.echo(f"asked {name} to end")


@group.command(epilog="Example: interp jobs again 20261201-101500-a1b2c3")
@click.argument("name", metavar="ID")
@workspace_option
def again(name: str, workspace: Path) -> None:
    """Start a job that is over once more; it goes on where it was."""
    click.echo(f"started {background.again(workspace / FOLDER, name).id}")


def facts(job: background.Job) -> dict[str, Any]:
    """A job in plain values."""
    state = job.status()
    part = f"{state.step} {state.done:,} of {state.total:,}" if state.step and not state.is_over else ""
    return {
        "id": job.id,
        "state": state.state,
        "kind": job.kind,
        "title": job.title,
        "part": part,
        "took": "" if state.seconds is None else duration(state.seconds),
        "submitted": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(job.submitted)),
        "error": state.error,
    }


COMMANDS = (group,)
