"""Commands on steering files: what a vector, a report or a map says, and vectors of other tools."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

import interp
from interp.cli.output import json_option, show
from interp.cli.shared import html_option, read_reference
from interp.intervene.targets import UNITS
from interp.steer_job import load_steer_job_report, load_vector
from interp.steering.formats import load_control_vectors, save_control_vectors
from interp.steering.report import SteeringReport, load_steering_report
from interp.steering.strength_map import KIND as MAP
from interp.steering.strength_map import load_strength_map


@click.command("show", epilog="Example: interp steer show runs/steer-sentiment --html sentiment.html")
@click.argument("path", type=click.Path(path_type=Path))
@html_option
@json_option
def show_steering(path: Path, html: Path | None, as_json: bool) -> None:
    """What a report, a map or a vector says: PATH is the folder of a sweep, or one of these files."""
    if path.is_dir() or _kind(path) not in (None, MAP):
        report = load_steer_job_report(path) if path.is_dir() else load_steering_report(path)
        if html is not None:
            report.write_html(html)
        show_report(report, as_json)
        return
    if html is not None:
        raise click.UsageError("--html writes the page of a report: give its file or the folder of a sweep")
    if _kind(path) == MAP:
        found = load_strength_map(path)
        show(
            {"card": found.card, "table": found.to_frame().to_dict("records")} if as_json else found.to_frame(), as_json
        )
        return
    vector = load_vector(path)
    if as_json:
        show({"sites": [target.site for target in vector.targets()], "card": vector.card}, as_json)
    else:
        click.echo(vector.card_text())


def _kind(path: Path) -> str | None:
    """What a JSON file says that it is; None for any other file."""
    if path.suffix.lower() != ".json":
        return None
    content = interp.artifact.read_json(path)
    return str(content.get("kind")) if isinstance(content, dict) else "none"


def show_report(report: SteeringReport, as_json: bool) -> None:
    """Summary, effects beside the random band, and damage."""
    if as_json:
        show(report.to_dict(), as_json)
        return
    click.echo(report.summary())
    own = report.effects.loc[report.effects["kind"].isin(["vector", "instruction"])]
    if report.measures:
        columns = [
            "measure",
            "unit",
            "direction",
            "strength",
            "effect",
            "low",
            "high",
            "wrong_way",
            "n",
            "loss_rise",
            "kl_mean",
        ]
        show(own.loc[:, columns], as_json, title="Effects")
        if len(report.band):
            show(report.band, as_json, title="Random directions of the same norm")
    for note in report.card.get("job", {}).get("notes", ()):
        click.echo(f"Note: {note}")


@click.command(epilog="Example: interp steer convert sentiment.safetensors sentiment.gguf --strength 0.1")
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("target", type=click.Path(path_type=Path))
@click.option("--model", help="The model of the vector; needed to read GGUF, or to name the architecture in it.")
@click.option(
    "--reference", help="Store, file or bundled texts that typical norms come from, for a GGUF file of another tool."
)
@click.option("--strength", type=float, help="What a GGUF file adds at scale 1; default: 0.1.")
@click.option("--unit", type=click.Choice(UNITS), help="Of that strength; default: typical norms.")
@click.option("--model-hint", help="Word for the architecture in the GGUF file, such as llama.")
@json_option
def convert(
    source: Path, target: Path, model: str | None, reference: str | None, strength: float | None, unit: str | None,
    model_hint: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Turn a vector into a GGUF control vector (llama.cpp, repeng), or one of these into a vector.

    The ending says which: .gguf is a control vector, .safetensors a vector of this library.
    """
    endings = [path.suffix.lower() for path in (source, target)]
    converters: dict[tuple[str, ...], Callable[[], Any]] = {
        (".safetensors", ".gguf"): lambda: _write(source, target, model, model_hint, strength, unit),
        (".gguf", ".safetensors"): lambda: _read(source, target, model, model_hint, reference),
    }
    chosen = converters.get(tuple(endings))
    if chosen is None:
        raise click.UsageError(
            f"{source.name} to {target.name}: give a .safetensors and a .gguf file, in the order from and to"
        )
    if endings[0] == ".gguf" and (strength is not None or unit is not None):
        raise click.UsageError(
            "--strength and --unit say what is written into a GGUF file; a vector takes all that is in it"
        )
    if endings[0] == ".gguf" and model is None:
        raise click.UsageError("--model is missing: a GGUF file is read for a model")
    if endings[0] != ".gguf" and reference is not None:
        raise click.UsageError("--reference is for reading a GGUF file")
    if endings[0] != ".gguf" and model is None and model_hint is None:
        raise click.UsageError("give --model, or the word for its architecture: --model-hint llama")
    vector = chosen()
    about = {"file": str(target), "sites": [target.site for target in vector.targets()]}
    show(about if as_json else {**about, "sites": ", ".join(about["sites"])}, as_json)


def _write(
    source: Path, target: Path, model: str | None, hint: str | None, strength: float | None, unit: str | None
) -> Any:
    vector = load_vector(source)
    loaded = None if model is None else interp.load(model)
    save_control_vectors(
        vector, target, model=loaded, model_hint=hint, strength=0.1 if strength is None else strength, unit=unit
    )
    return vector


def _read(source: Path, target: Path, model: str | None, hint: str | None, reference: str | None) -> Any:
    if not source.is_file():
        raise ValueError(f"there is no file {source}")
    norms = None if reference is None else read_reference(reference)
    vectors = load_control_vectors(source, interp.load(str(model)), reference=norms, model_hint=hint)
    vectors.save(target)
    return vectors
