"""Commands that read a model or a store and report."""

from pathlib import Path

import click

import interp
from interp.cli.output import json_option, show


@click.command(epilog="Example: interp sites smollm2-135m")
@click.argument("model")
@click.option("--missing", is_flag=True, help="The kinds of place that MODEL lacks instead, and why.")
@json_option
def sites(model: str, missing: bool, as_json: bool) -> None:
    """The places in MODEL that can be recorded and edited."""
    show(interp.load(model).sites(missing=missing), as_json, limit=40)


@click.command(epilog="Example: interp uncertainty smollm2-135m 'The capital of France is Paris.'")
@click.argument("model")
@click.argument("text")
@json_option
def uncertainty(model: str, text: str, as_json: bool) -> None:
    """How sure MODEL was of each token of TEXT, in nats."""
    show(interp.token_uncertainty(interp.load(model), text).to_frame(), as_json)


@click.command(epilog="Example: interp calibrate answers.csv --p confidence --y right --meaning p_top")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--p", "p_column", required=True, help="Column with the probabilities.")
@click.option("--y", "y_column", required=True, help="Column with 1 and 0.")
@click.option(
    "--meaning", type=click.Choice(["p_true", "p_top"]), required=True,
    help="p_true: probability that y is 1. p_top: confidence of the answer given, and y whether it was right.",
)  # fmt: skip
@click.option("--bins", default=15, show_default=True)
@click.option("--group", help="Column whose rows belong together; intervals resample it.")
@json_option
def calibrate(
    file: Path, p_column: str, y_column: str, meaning: str, bins: int, group: str | None, as_json: bool
) -> None:
    """Calibration of the probabilities in a CSV, JSONL or Parquet file."""
    frame = interp.read_table(file, columns=[p_column, y_column, *([group] if group else [])])
    p, y = frame[p_column].to_numpy(), frame[y_column].to_numpy()
    report = interp.calibration_report(
        p_true=p if meaning == "p_true" else None, p_top=p if meaning == "p_top" else None, y=y, n_bins=bins,
        groups=frame[group].tolist() if group else None,
    )  # fmt: skip
    show(report.to_dict() if as_json else report.to_frame(), as_json)
    if not as_json:
        click.echo(report.verdict)


COMMANDS = (sites, uncertainty, calibrate)
