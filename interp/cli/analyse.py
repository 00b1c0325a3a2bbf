"""Commands that read a model or a store and report."""

from pathlib import Path
from typing import Any

import click
import pandas as pd

import interp
from interp.cli.behave_options import read_match
from interp.cli.output import json_option, show
from interp.cli.shared import seed_option
from interp.uncertainty import SIGNALS


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
@click.option("--answer", multiple=True, help="Take TEXT as a prompt: signs of doubt in this answer; may be repeated.")
@click.option("--samples", type=click.IntRange(min=2), help="Take TEXT as a prompt: so many drawn answers, by meaning.")
@click.option(
    "--tokens", default=8, type=click.IntRange(min=1), show_default=True, help="Most tokens of a drawn answer."
)
@click.option("--match", help="exact (default), embedding, or the folder of an inference model: what means the same.")
@seed_option
@json_option
def uncertainty(
    model: str,
    text: str,
    answer: tuple[str, ...],
    samples: int | None,
    tokens: int,
    match: str | None,
    seed: int,
    as_json: bool,
) -> None:
    """How sure MODEL was of each token of TEXT, in nats; or of an answer to it; or how its drawn answers agree."""
    if answer and samples is not None:
        raise click.UsageError("--answer reads given answers, --samples draws some: give one of the two")
    if samples is None and match is not None:
        raise click.UsageError("--match says which drawn answers mean the same: give --samples too")
    meaning, loaded = read_match(match), interp.load(model)
    if answer:
        signals = interp.answer_signals(loaded, [text] * len(answer), list(answer))
        show(signals if as_json else _by_answer(signals), as_json)
    elif samples is not None:
        found: Any = interp.semantic_entropy(loaded, text, samples, match=meaning, max_new_tokens=tokens, seed=seed)
        show(found.to_dict() if as_json else found.to_frame(), as_json)
        if not as_json:
            click.echo(str(found))
    else:
        show(interp.token_uncertainty(loaded, text).to_frame(), as_json)


def _by_answer(signals: pd.DataFrame) -> pd.DataFrame:
    """A row for each sign of doubt, a column for each answer."""
    names = [name for name in SIGNALS if name in signals]
    values = {str(row["answer"]).strip(): [row[name] for name in names] for row in signals.to_dict("records")}
    doubt = ["higher" if SIGNALS[name].sign > 0 else "lower" for name in names]
    meaning = [SIGNALS[name].text for name in names]
    return pd.DataFrame({"signal": names, **values, "doubtful if": doubt, "meaning": meaning})


@click.command(epilog="Example: interp calibrate answers.csv --p confidence --y right --meaning p_top")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--p", "p_column", required=True, help="Column with the probabilities.")
@click.option("--y", "y_column", required=True, help="Column with 1 and 0, or true and false.")
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
    p, y = frame[p_column].to_numpy(), _outcomes(frame[y_column].tolist(), y_column)
    report = interp.calibration_report(
        p_true=p if meaning == "p_true" else None, p_top=p if meaning == "p_top" else None, y=y, n_bins=bins,
        groups=frame[group].tolist() if group else None,
    )  # fmt: skip
    show(report.to_dict() if as_json else report.to_frame(), as_json)
    if not as_json:
        click.echo(report.verdict)


def _outcomes(values: list[Any], name: str) -> list[Any]:
    """True and false as words, in any case, as 1 and 0; all else as it is."""
    words = {"true": 1, "false": 0, "1": 1, "0": 0}
    found = []
    for row, value in enumerate(values):
        if isinstance(value, str):
            word = value.strip().lower()
            if word not in words:
                raise ValueError(f"the column {name} is {value!r} in row {row}: it must be 1 or 0, or true or false")
            value = words[word]
        found.append(value)
    return found


COMMANDS = (sites, uncertainty, calibrate)
