"""Commands on probes: whole jobs, sweeps of a store, kept probes on new data."""

import contextlib
import json
import re
import tomllib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pandas as pd
from safetensors import SafetensorError, safe_open

import interp
from interp.cli.job_progress import JobProgress, ends_between_tasks
from interp.cli.output import json_option, show
from interp.cli.shared import html_option
from interp.dataset import ContradictoryLabelsWarning
from interp.dataset.truthfulqa import FORMS
from interp.probe.inputs import ROWS
from interp.probe.linting import lint_dataset
from interp.probe.reading import place_name
from interp.probe_job import (
    compare_probe_jobs,
    evaluate_probe,
    load_probe_job_report,
    load_probe_spec,
    run_probe_job,
)
from interp.probe_job.owner import FREE
from interp.probe_job.spec import ProbeSpec, job_names
from interp.probe_job.texts import is_truthfulqa, truthfulqa_statements

_FIGURES = ("auroc", "low", "high", "accuracy", "brier", "n", "n_groups")


@contextlib.contextmanager
def said_plainly() -> Iterator[None]:
    """Warnings about labels as a line each on the error stream."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ContradictoryLabelsWarning)
        yield
    for each in dict.fromkeys(str(each.message) for each in caught):
        click.echo(f"note: {each}", err=True)


@click.group()
def probe() -> None:
    """Probes for a label, split by group."""


def setting_of(word: str) -> tuple[str, Any]:
    """KEY=VALUE of --set. The value is TOML; a word that is none is a text, and words between commas are a list of them.

    A shell takes the quotes out of `kinds=['logistic','ttpd']`, so `[logistic,ttpd]` is read as that list too.
    """
    key, equals, text = word.partition("=")
    if not equals or not key.strip() or not text.strip():
        raise click.BadParameter(f"{word!r} is not KEY=VALUE", param_hint="--set")
    try:
        value = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        value = {"value": _words(text)}
    if set(value) != {"value"}:
        raise click.BadParameter(f"{word!r} holds more than one value", param_hint="--set")
    return key.strip(), value["value"]


def _words(text: str) -> str | list[Any]:
    """A text, or the list of what stands between its commas: numbers stay numbers, and an expression stays a text."""
    inner = text.strip()
    is_list = inner.startswith("[") and inner.endswith("]")
    parts = [part.strip() for part in (inner[1:-1] if is_list else inner).split(",")]
    if not (is_list or len(parts) > 1) or not all(re.fullmatch(r"[\w.:*+-]+", part) for part in parts):
        return text
    return [_number(part) for part in parts]


def _number(word: str) -> Any:
    try:
        return tomllib.loads(f"value = {word}")["value"]
    except tomllib.TOMLDecodeError:
        return word


@probe.command(epilog="Example: interp probe train truth --out runs/truth-two --set kinds=logistic,ttpd")
@click.argument("spec")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Folder of the job; default: runs/NAME, and runs/NAME-HASH where --set, --model or --data change the job.",
)
@click.option("--model", help="Another model than the job's.")
@click.option("--data", help="File of texts, or a bundled set: for a job that asks for one, or in place of its sets.")
@click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Change a value of the job; may be repeated."
)
@click.option("--engine", default="local", show_default=True, help="local or ray.")
@click.option("--no-resume", is_flag=True, help="Refuse a folder that holds a job already.")
@click.option("--replace", is_flag=True, help="In a folder of another job: move its report and probes to earlier/.")
@json_option
def train(
    spec: str, out: Path | None, model: str | None, data: str | None, settings: tuple[str, ...], engine: str, no_resume: bool,
    replace: bool, as_json: bool,
) -> None:  # fmt: skip
    """Run the job SPEC: record what is missing, fit every probe, write the report.

    SPEC is the name of a job that comes with the package (truth, truth-transfer ...) or a TOML file. The same call again,
    after an interruption or not, goes on where it was. A folder that holds another job is refused.

    VALUE of --set is TOML, or words between commas: kinds=logistic,ttpd, folds=3, causal=false, select.polarity=negated.
    """
    values = dict(map(setting_of, settings)) | ({"model": model} if model else {})
    job = load_probe_spec(spec, values)
    if data is not None:
        job = job.with_data(data)
    folder = _default_folder(spec, job, data) if out is None else out
    with JobProgress(quiet=as_json) as progress, ends_between_tasks(progress):
        report = run_probe_job(job, folder, engine=engine, resume=not no_resume, replace=replace, progress=progress)
    if as_json:
        show(interp.artifact.read_json(folder / "report.json"), as_json)
        return
    click.echo(report.job["question"])
    for sentence in report.verdict:
        click.echo(sentence)
    show(_short(report.table()), as_json)
    for sentence in report.notes.get("transfer", ()):
        click.echo(sentence)
    for sentence in report.notes.get("data", ()):
        click.echo(f"Note: {sentence}")
    click.echo(f"Report: {folder / 'report.html'}")


@probe.command(
    epilog="Example: interp probe evaluate runs/truth/probes/logistic.safetensors --data my.csv --model smollm2-135m"
)
@click.argument("file", metavar="PROBE", type=click.Path(path_type=Path))
@click.option("--store", help="Store that holds the probe's site.")
@click.option("--data", help="Bundled set or file of labelled texts, read by --model.")
@click.option("--model", help="The model that the probe was fitted on.")
@click.option("--text", default="text", show_default=True, help="Text column of a file.")
@click.option("--label", default="label", show_default=True, help="Label column of a file.")
@click.option("--group", help="Group column; default: group. 'rows': each row a group of its own, on purpose.")
@click.option(
    "--group-rule", help="Instead: columns (n1,n2), quoted, or a regular expression with the entity in brackets."
)
@click.option("--drop-seen", is_flag=True, help="Leave out rows whose text or group the probe was fitted on.")
@click.option("--seed", default=0, show_default=True)
@json_option
def evaluate(
    file: Path, store: str | None, data: str | None, model: str | None, text: str, label: str, group: str | None,
    group_rule: str | None, drop_seen: bool, seed: int, as_json: bool,
) -> None:  # fmt: skip
    """PROBE on new texts, beside what the texts alone give.

    Texts and groups that the probe was fitted on are refused, or left out by --drop-seen.
    """
    if group is not None and group_rule is not None:
        raise click.UsageError("give --group or --group-rule, not both")
    if (store is None) == (data is None):
        raise click.UsageError("give --store, or --data with --model: one of the two")
    if data is not None and model is None:
        raise click.UsageError("--data needs --model, which reads the texts")
    if store is not None:
        if group_rule is not None:
            raise click.UsageError("--group-rule reads the texts of --data; a store's groups are a column (--group)")
        found = evaluate_probe(file, interp.open_store(store), seed=seed, groups=group, drop_seen=drop_seen)
    else:
        fitted = interp.load_probe(file)
        by_rows = group == ROWS
        with said_plainly():
            texts = interp.load_dataset(
                str(data), text=text, label=label, group=None if by_rows else group, group_rule=group_rule,
                require_labels=True,
            )  # fmt: skip
        if texts.groups is None and not by_rows:
            raise click.UsageError(
                f"{data} has no groups, and rows about the same entity would count as independent: name their column (--group), "
                "a pattern that finds the entity (--group-rule), or say that each row stands alone (--group rows)"
            )
        found = evaluate_probe(
            fitted, texts, interp.load(str(model)), seed=seed, groups=ROWS if by_rows else None, drop_seen=drop_seen
        )
    frame = found.to_frame()
    if as_json:
        parts = found.parts.to_dict("records")
        show({"figures": frame.to_dict("records"), "parts": parts, "card": found.card}, as_json)
        return
    click.echo(found.summary())
    show(frame, as_json)


@probe.command(epilog="Example: interp probe compare runs/truth runs/truth-larger-model")
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option("--seed", default=0, show_default=True, help="Of the bootstrap.")
@json_option
def compare(a: Path, b: Path, seed: int, as_json: bool) -> None:
    """Jobs A and B side by side: on the same texts the paired difference of their AUROCs."""
    found = compare_probe_jobs(a, b, seed=seed)
    if as_json:
        show({"paired": found.paired, "rows": found.to_frame().to_dict("records"), **found.card}, as_json)
        return
    click.echo(found.summary())


@probe.command("list", epilog="Example: interp probe list runs")
@click.argument("folder", default="runs", type=click.Path(path_type=Path))
@json_option
def list_jobs(folder: Path, as_json: bool) -> None:
    """The jobs that come with the package, and the jobs and probes below FOLDER."""
    bundled = [{"job": name, "question": load_probe_spec(name).question} for name in job_names()]
    if not folder.is_dir() and str(folder) != "runs":
        raise ValueError(f"{folder} is a file, not a folder" if folder.exists() else f"there is no folder {folder}")
    rows = [_job_row(path.parent) for path in sorted(folder.rglob("tasks")) if path.is_dir()]
    probes = [row for path in sorted(folder.rglob("*.safetensors")) if (row := _probe_row(path, folder)) is not None]
    if as_json:
        show({"jobs": bundled, "runs": rows, "probes": probes}, as_json)
        return
    show(pd.DataFrame(bundled, columns=pd.Index(["job", "question"])), as_json, title="Jobs: interp probe train NAME")
    for listed, what in ((rows, "Jobs"), (probes, "Probes")):
        if listed:
            frame = pd.DataFrame(listed)
            show(frame.astype({"n": "Int64"}), as_json, title=f"{what} below {folder}")


@probe.command("show", epilog="Example: interp probe show runs/truth/probes/logistic.safetensors")
@click.argument("path", metavar="PROBE", type=click.Path(path_type=Path))
@html_option
@json_option
def show_probe(path: Path, html: Path | None, as_json: bool) -> None:
    """What a PROBE reads and how well; or, given the folder of a job, its verdict and figures."""
    if path.is_dir():
        report = load_probe_job_report(path)
        if html is not None:
            report.write_html(html)
        if as_json:
            show(interp.artifact.read_json(path / "report.json"), as_json)
            return
        click.echo(report.summary())
        show(_short(report.table()), as_json)
        return
    if html is not None:
        raise click.UsageError("--html writes the page of a job: give its folder")
    found = interp.load_probe(path)
    head = getattr(found, "head", None)
    about = {
        "kind": found.kind, "site": None if found.site is None else place_name(found.site), "head": head,
        "tokens": found.card.get("tokens"), "threshold": found.threshold, "n": found.card.get("n"),
        "groups": found.card.get("groups"), "C": found.card.get("C"), "job": found.card.get("job"),
        "figure": _figure_of(found.card.get("figure")), "protocol": found.card.get("protocol"),
        "model": found.card.get("provenance", {}).get("model"),
    }  # fmt: skip
    show(about if as_json else {key: value for key, value in about.items() if value is not None}, as_json)


def _figure_of(figure: dict[str, Any] | None) -> str | None:
    if figure is None:
        return None
    return (
        f"AUROC {figure['auroc']:.3f} (95 % {figure['low']:.3f} to {figure['high']:.3f}), n = {figure['n']:,} in "
        f"{figure['n_groups']:,} groups; permuted labels at most {figure['permuted_max']:.3f}"
    )


def _job_row(folder: Path) -> dict[str, Any]:
    """A job in a line: its answer, or that it is not finished."""
    row: dict[str, Any] = {
        "folder": str(folder),
        "job": None,
        "kind": None,
        "auroc": None,
        "low": None,
        "high": None,
        "n": None,
    }
    try:
        report = load_probe_job_report(folder)
    except (ValueError, KeyError, OSError):
        return {**row, "state": "damaged" if (folder / "report.json").is_file() else "unfinished"}
    first = report.table().iloc[0]
    figures = {name: first[name].item() for name in ("auroc", "low", "high", "n")}
    return {**row, "job": report.job["name"], "kind": first["what"], **figures, "state": "finished"}


def _probe_row(path: Path, folder: Path) -> dict[str, Any] | None:
    """A kept probe in a line; None for files that are none."""
    if {"stores", "tasks"} & set(path.relative_to(folder).parts) or path.name.startswith("."):
        return None
    try:
        with safe_open(path, framework="pt") as file:  # the card alone: other files below may be large
            card = json.loads((file.metadata() or {}).get("card", "{}"))
        if card.get("kind") != "probe":
            return None
        found = interp.load_probe(path)
    except (SafetensorError, ValueError, KeyError, OSError):
        return None
    figure = found.card.get("figure") or {}
    return {
        "probe": str(path), "kind": found.kind, "place": None if found.site is None else place_name(found.site),
        "auroc": figure.get("auroc"), "n": figure.get("n", found.card.get("n")), "job": found.card.get("job"),
    }  # fmt: skip


def _default_folder(spec: str, job: ProbeSpec, data: str | None) -> Path:
    """runs/NAME for a job as its file says it; one that was changed gets a folder of its own, the same each time."""
    plain = load_probe_spec(spec)
    if data is not None and any(each.name is None and each.path is None for each in plain.datasets):
        plain = plain.with_data(data)
    values, own = plain.to_dict(), job.to_dict()
    changed = {key: value for key, value in own.items() if key not in FREE and value != values[key]}
    mark = f"-{interp.artifact.hash_json(changed)[:6]}" if changed else ""
    return Path("runs") / f"{job.name}{mark}"


def _short(table: pd.DataFrame) -> pd.DataFrame:
    """The columns that a person sees first."""
    table = table.loc[:, [name for name in ("what", *_FIGURES, "site", "p_permuted") if name in table]]
    if "site" in table:
        table = table.assign(site=[place_name(site) if isinstance(site, str) else None for site in table["site"]])
    return table


@probe.command(epilog="Example: interp probe lint statements.csv --group-rule 'quoted'")
@click.argument("file")
@click.option("--text", default="text", show_default=True, help="Text column.")
@click.option("--label", default="label", show_default=True, help="Label column.")
@click.option("--group", help="Group column; default: group, where there is one.")
@click.option(
    "--group-rule", help="Instead: columns (n1,n2), quoted, rows, or a regular expression with the entity in brackets."
)
@click.option("--pair", help="Column that joins a negated row to its affirmative one.")
@click.option(
    "--form",
    type=click.Choice(FORMS),
    help="How TruthfulQA's own file is read; default for such a file: statements.",
)
@click.option("--seed", default=0, show_default=True, help="Of folds and draws.")
@json_option
def lint(
    file: str,
    text: str,
    label: str,
    group: str | None,
    group_rule: str | None,
    pair: str | None,
    form: str | None,
    seed: int,
    as_json: bool,
) -> None:
    """What a FILE of labelled texts, or a bundled set, would do to a probe.

    Conflicting, repeated and unbalanced labels, missing groups, wording and length that give the label away. Exit status 1
    if something is an error, so that it can guard a pipeline. TruthfulQA's own files are read as they are.
    """
    source: str | interp.Dataset = file
    if form is not None or is_truthfulqa(file):
        # What stands both as right and as wrong is left out by the reader, which says so.
        with said_plainly():
            source = truthfulqa_statements(Path(file), form or "statements")
    found = lint_dataset(source, text=text, label=label, group=group, group_rule=group_rule, pair=pair, seed=seed)
    if as_json:
        figures = found.figures.to_dict("records")
        show(
            {"ok": found.ok, "n": found.n, "findings": found.to_frame().to_dict("records"), "figures": figures}, as_json
        )
    else:
        click.echo(found.summary())
    if not found.ok:
        raise click.exceptions.Exit(1)


@probe.command(epilog="Example: interp probe sweep runs/demo/stores/capitals --out runs/capitals-probes")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--sites", default="resid_post:*", show_default=True)
@click.option("--kind", "kinds", multiple=True, default=("logistic", "mass_mean"), show_default=True)
@click.option("--group", help="Group column; default: the store's.")
@click.option("--seed", default=0, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), help="Also write the report to this folder.")
@json_option
def sweep(
    path: Path, sites: str, kinds: tuple[str, ...], group: str | None, seed: int, out: Path | None, as_json: bool
) -> None:
    """Fit probes at every site of a store, with nested cross-validation over groups."""
    report = interp.probe_sweep(interp.open_store(path), sites, kinds, seed=seed, groups=group)
    if out is not None:
        report.save(out)
    frame = report.to_frame()
    brief = ["site", "kind", "auroc", "low", "high", "accuracy", "brier", "n", "n_groups"]
    show(frame if as_json else frame.loc[:, brief], as_json)
    if not as_json:
        click.echo(report.summary())


COMMANDS = (probe,)
