"""`interp doctor`: is a loaded model what its checkpoint says?"""

import json
import os
from pathlib import Path

import click

import interp
from interp.cli.output import json_option


@click.command(epilog="Example: interp doctor smollm2-135m --save doctor.json")
@click.argument("model")
@click.option(
    "--only",
    multiple=True,
    help="Run these checks alone: a name, as the report prints it, or a pattern such as 'KV*'; may be repeated.",
)
@click.option("--no-transformers", is_flag=True, help="Leave out the comparison with transformers.")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "float16", "float64"]),
    default="float32",
    show_default=True,
    help="Of the weights.",
)
@click.option("--save", type=click.Path(path_type=Path), help="Write the report to this JSON file as well.")
@json_option
def doctor(
    model: str, only: tuple[str, ...], no_transformers: bool, dtype: str, save: Path | None, as_json: bool
) -> None:
    """Check MODEL against its own definition, against itself, and against transformers where that is installed.

    Each check says what it compared, its figure and its bound. Status 1 if one failed.
    """
    if save is not None:
        _writable(save)
    folder = Path(model) if Path(model).is_dir() else None

    def say(check: object) -> None:
        if not as_json:
            click.echo(str(check))

    report = interp.doctor(
        interp.load(model, dtype=dtype),
        folder=folder,
        transformers=not no_transformers,
        only=only or "*",
        progress=say,
    )
    if save is not None:
        report.save(save)
    if as_json:
        click.echo(json.dumps(report.to_dict(), ensure_ascii=False, allow_nan=False))
    else:
        click.echo(report.summary)
    if not report.ok:
        click.get_current_context().exit(1)


def _writable(path: Path) -> None:
    """Refuse a file that could not be written, before the checks take their time."""
    parents = list(path.absolute().parents)
    nearest = next(parent for parent in parents if parent.exists())
    if path.is_dir():
        why = "is a folder: name a file in it"
    elif not nearest.is_dir():
        why = f"cannot be made: {nearest} is no folder"
    elif not os.access(nearest, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        why = "cannot be written: you may not write there"
    else:
        return
    raise click.BadParameter(f"{path} {why}", param_hint="--save")


COMMANDS = (doctor,)
