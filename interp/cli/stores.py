"""Commands around the activation store: record, look, verify, list, merge, remove."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pandas as pd

import interp
from interp.cli.output import json_option, show
from interp.jobs.progress import VARIABLE, note_progress
from interp.store import as_place
from interp.store.place import names
from interp.store.writer import SHARDS, STORE_CARD


@click.command(
    epilog="Example: interp record smollm2-135m cities.csv --sites 'resid_post:*' --tokens last --out runs/cities"
)
@click.argument("model")
@click.argument("data")
@click.option("--out", help="Folder of the store, or a URL such as s3://bucket/run. Not needed with --plan.")
@click.option(
    "--sites",
    multiple=True,
    default=("resid_post:*",),
    show_default=True,
    help="Site, shorthand or pattern; may be repeated.",
)
@click.option(
    "--tokens",
    multiple=True,
    default=("all",),
    show_default=True,
    help="all, last, first, mean, answer, generated, last:user, positions such as 0,-1 ...; may be repeated.",
)
@click.option("--dtype", default="bfloat16", show_default=True, help="On the disk: bfloat16, float16 or float32.")
@click.option("--text", default="text", show_default=True, help="Text column of a file.")
@click.option("--label", default="label", show_default=True, help="Label column of a file.")
@click.option("--group", help="Group column of a file.")
@click.option("--limit", type=int, help="Most examples to read.")
@click.option("--long", "long_rule", help="Texts over the limit: error, chunk or truncate.")
@click.option("--max-length", type=int, help="Most tokens of a text; default: the model's context.")
@click.option("--stride", type=int, help="Tokens from one piece of a long text to the next; default: no overlap.")
@click.option("--signals", is_flag=True, help="Also each token's logprob, rank and entropy; runs the whole model.")
@click.option(
    "--head-stats", is_flag=True, help="Also every head's attention entropy and attention on the first token."
)
@click.option("--generate", type=int, help="Continue each text by so many tokens, and record them too.")
@click.option("--batch-size", type=int, help="Most texts in a forward pass.")
@click.option("--engine", default="local", show_default=True, help="local or ray.")
@click.option("--workers", type=int, help="Processes, with --engine ray.")
@click.option("--plan", "plan_only", is_flag=True, help="Say what it would take, and do nothing.")
@json_option
def record(
    model: str, data: str, out: str | None, sites: tuple[str, ...], tokens: tuple[str, ...], dtype: str, text: str, label: str,
    group: str | None, limit: int | None, long_rule: str | None, max_length: int | None, stride: int | None, signals: bool,
    head_stats: bool, generate: int | None, batch_size: int | None, engine: str, workers: int | None, plan_only: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Run MODEL over DATA and keep its activations.

    DATA is a bundled set, a CSV, TSV, JSONL, Parquet or text file, a folder of them, or hf:org/name. The same call again
    goes on where it was.
    """
    if out is None and not plan_only:
        raise click.UsageError("give --out, the folder of the store (or --plan, to see what it would take)")
    if workers is not None and engine != "ray":
        raise click.UsageError("--workers goes with --engine ray")
    rules = [_rule(each) for each in tokens]
    options: dict[str, Any] = {
        "sites": list(sites), "tokens": rules[0] if len(rules) == 1 else rules, "path": out, "dtype": dtype, "text": text,
        "label": label, "group": group, "limit": limit, "long": long_rule, "max_length": max_length, "stride": stride,
        "signals": signals, "head_stats": head_stats, "generate": generate, "batch_size": batch_size,
        "engine": interp.RayEngine(workers=workers) if workers is not None else engine,
    }  # fmt: skip
    source, found = _source(data), interp.load(model)
    if plan_only:
        plan = interp.recording_plan(found, source, **options)
        show(plan.to_frame().set_index("quantity")["value"].to_dict() if as_json else _readable(plan), as_json)
        return
    told = _noted() if os.environ.get(VARIABLE) else (False if as_json else None)
    store = interp.record(found, source, **options, progress=told)
    show(store.to_frame(), as_json, title=out)


def _noted() -> Callable[[int, int, int], None]:
    """Progress for the process that watches this one."""
    return lambda done, total, tokens: note_progress("Recording", done, total, f"{tokens:,} tokens computed")


def _rule(word: str) -> Any:
    """A rule as it is typed; positions are numbers with commas between them."""
    parts = word.split(",")
    try:
        return [int(part) for part in parts]
    except ValueError:
        return word


def _source(data: str) -> Any:
    """What the library reads; a word that names nothing is an error here, not a text."""
    if data.startswith("hf:") or data in set(interp.datasets()["name"]):
        return data
    if not Path(data).expanduser().exists():
        interp.load_dataset(data)  # raises, and says what is near
    return Path(data).expanduser()


def _readable(plan: "interp.RecordingPlan") -> pd.DataFrame:
    free = "--out tells what is free there" if plan.free_bytes is None else f"{plan.free_bytes / 1e6:,.0f} MB free"
    saved = 1 - plan.computed / plan.tokens
    rows = [
        ("texts", f"{plan.texts:,} from {plan.examples:,} examples, {plan.over_max_length:,} of them over the limit"),
        ("repeated", f"{plan.duplicates:,} duplicates, {plan.contradictions:,} texts with two labels"),
        ("tokens", f"{plan.tokens:,}; {plan.computed:,} are computed ({saved:.0%} shared), {plan.padding:,} padded"),
        ("rows", f"{plan.rows:,} in {plan.shards:,} shards"),
        ("forward passes", f"{plan.forwards:,} through {plan.layers} blocks"),
        ("disk", f"{plan.bytes / 1e6:,.0f} MB ({free}){'' if plan.fits else ': TOO LITTLE ROOM'}"),
        ("memory", f"{plan.memory_bytes / 1e6:,.0f} MB, about"),
        ("time", f"{_duration(plan.seconds)} at {plan.tokens_per_second:,.0f} tokens/s, measured on one small pass"),
    ]
    return pd.DataFrame(rows, columns=pd.Index(["", "what it would take"]))


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"


@click.group()
def store() -> None:
    """Look into a recorded store, check that it is whole, merge or remove stores."""


@store.command(epilog="Example: interp store info runs/demo/stores/capitals")
@click.argument("path")
@json_option
def info(path: str, as_json: bool) -> None:
    """Model, texts and rows, and for each site what the statistics left out."""
    found = interp.open_store(path)
    said, sites = found.summary(), found.to_frame()
    if as_json:
        show({**said, "sites": sites.to_dict("records")}, as_json)
        return
    click.echo(repr(found))
    rules = [said["tokens"]] if isinstance(said["tokens"], str) else said["tokens"]
    click.echo(f"model {said['model']} ({said['model_fingerprint']}), tokens {', '.join(rules)}")
    show(sites, as_json)


@store.command(epilog="Example: interp store verify runs/demo/stores/capitals")
@click.argument("path")
@json_option
def verify(path: str, as_json: bool) -> None:
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
        if "parts" in card.relative_to(folder).parts[:-1] and (card.parents[2] / "store.json").is_file():
            continue  # what was added to the store above
        size = sum(file.stat().st_size for file in card.parent.rglob("*") if file.is_file())
        rows.append((str(card.parent), *_summary(card.parent), round(size / 1e6, 1)))
    columns = ["store", "texts", "rows", "sites", "dtype", "finished", "MB"]
    show(pd.DataFrame(rows, columns=pd.Index(columns)), as_json)


def _summary(path: Path) -> tuple[Any, ...]:
    try:
        found = interp.open_store(path)
    except ValueError as error:
        return None, None, None, f"cannot be read: {error}", None
    return found.n_texts, found.n_rows, len(found.sites), found.dtype, "yes" if found.complete else "no"


@store.command(epilog="Example: interp store merge runs/both runs/a runs/b")
@click.argument("out")
@click.argument("paths", nargs=-1, required=True)
@json_option
def merge(out: str, paths: tuple[str, ...], as_json: bool) -> None:
    """Copy stores of the same model and sites into one at OUT."""
    merged = interp.merge_stores([interp.open_store(path) for path in paths], out)
    show(merged.to_frame(), as_json, title=out)


@store.command(epilog="Example: interp store rm runs/old")
@click.argument("path")
@click.option("--yes", is_flag=True, help="Do not ask.")
def rm(path: str, yes: bool) -> None:
    """Remove a store, after asking; a folder that is none, or holds anything else, is refused."""
    if not yes and not _agreed(path):
        raise click.ClickException(f"not removed: {path}")
    interp.remove_store(path)
    click.echo(f"removed {path}")


def _agreed(path: str) -> bool:
    """Whether a person says that a store may go; where there is none, there is nothing to ask, and removing says so."""
    if not {STORE_CARD, SHARDS} & set(names(as_place(path))):
        return True
    try:
        what = repr(interp.open_store(path))
    except ValueError as error:
        what = f"{path} ({error})"
    try:
        return click.confirm(f"Remove {what}?", err=True)
    except click.Abort:
        return False


COMMANDS = (record, store)
