"""Commands around the activation store: record, look, verify."""

from pathlib import Path

import click
import pandas as pd

import interp
from interp.cli.output import json_option, show


@click.command(
    epilog="Example: interp record smollm2-135m cities --sites 'resid_post:*' --tokens last --out runs/cities"
)
@click.argument("model")
@click.argument("data")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder of the store.")
@click.option(
    "--sites",
    multiple=True,
    default=("resid_post:*",),
    show_default=True,
    help="Site, shorthand or pattern; may be repeated.",
)
@click.option("--tokens", default="all", show_default=True, help="all, last, first or answer.")
@click.option("--dtype", default="bfloat16", show_default=True, help="On the disk: bfloat16, float16 or float32.")
@click.option("--text", default="text", show_default=True, help="Text column of a file.")
@click.option("--label", default="label", show_default=True, help="Label column of a file.")
@click.option("--group", help="Group column of a file.")
@click.option("--long", "long_rule", help="Texts over the limit: error, chunk or truncate.")
@click.option("--max-length", type=int, help="Most tokens of a text; default: the model's context.")
@click.option("--signals", is_flag=True, help="Also each token's logprob and entropy; runs the whole model.")
@json_option
def record(
    model: str, data: str, out: Path, sites: tuple[str, ...], tokens: str, dtype: str, text: str, label: str, group: str | None,
    long_rule: str | None, max_length: int | None, signals: bool, as_json: bool,
) -> None:  # fmt: skip
    """Run MODEL over DATA (a bundled set, or a CSV, JSONL, Parquet or text file) and keep its activations.

    The same call again goes on where it was.
    """
    found = _dataset(data, text, label, group)
    store = interp.record(
        interp.load(model), found, list(sites), tokens, out, dtype, long=long_rule, max_length=max_length, signals=signals,
        progress=False if as_json else None,
    )  # fmt: skip
    show(store.to_frame(), as_json, title=str(out))


def _dataset(data: str, text: str, label: str, group: str | None) -> "interp.Dataset":
    table = interp.datasets()
    if data in set(table.loc[table["kind"] == "corpus", "name"]):
        return interp.load_corpus(data)
    return interp.load_dataset(data, text=text, label=label, group=group)


@click.group()
def store() -> None:
    """Look into a recorded store, or check that it is whole."""


@store.command(epilog="Example: interp store info runs/demo/stores/capitals")
@click.argument("path", type=click.Path(path_type=Path))
@json_option
def info(path: Path, as_json: bool) -> None:
    """Sites, rows, and what the statistics left out."""
    found = interp.open_store(path)
    if not as_json:
        click.echo(repr(found))
    show(found.to_frame(), as_json)


@store.command(epilog="Example: interp store verify runs/demo/stores/capitals")
@click.argument("path", type=click.Path(path_type=Path))
@json_option
def verify(path: Path, as_json: bool) -> None:
    """Hash every file again; exit status 1 if one is damaged."""
    problems = interp.open_store(path).verify()
    if as_json or len(problems):
        show(problems, as_json)
    else:
        click.echo("whole: every file has its recorded size and hash")
    if len(problems):
        raise click.exceptions.Exit(1)


@store.command(epilog="Example: interp store ls runs")
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@json_option
def ls(folder: Path, as_json: bool) -> None:
    """All stores below a folder."""
    rows = []
    for card in sorted(folder.rglob("store.json")):
        try:
            found = interp.open_store(card.parent)
        except ValueError as error:
            rows.append((str(card.parent), None, None, None, f"cannot be read: {error}", None))
            continue
        size = sum(file.stat().st_size for file in card.parent.rglob("*") if file.is_file())
        rows.append(
            (
                str(card.parent),
                len(found.examples),
                len(found.tokens),
                len(found.sites),
                found.dtype,
                round(size / 1e6, 1),
            )
        )
    show(pd.DataFrame(rows, columns=pd.Index(["store", "texts", "rows", "sites", "dtype", "MB"])), as_json)


COMMANDS = (record, store)
