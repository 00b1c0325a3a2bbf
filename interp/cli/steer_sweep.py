"""Commands that measure: `sweep`, which can be stopped and gone on with, and `rerun`, which measures a report once more."""

from pathlib import Path
from typing import Any

import click

from interp.cli.job_progress import JobProgress, ends_between_tasks
from interp.cli.output import json_option, show
from interp.cli.probe import setting_of
from interp.cli.shared import file_option, html_option, work_bar
from interp.cli.steer_files import show_report
from interp.cli.steer_options import Numbers, edit_options, sweepable
from interp.probe import load_probe
from interp.steer_job import SteerSpec, load_steer_spec, rerun_steering, run_steer_job
from interp.steer_job.spec import spec_of
from interp.steering.measures import ProbeScore
from interp.steering.plan import RANDOM_STRENGTHS

_MEASURES = ("target", "against", "target_kind", "probe", "phrase")
"""Options that describe a measure."""


@click.command(
    epilog="Example: interp steer sweep smollm2-135m sentiment.safetensors --pairs sentiment --texts python_docs "
    "--strengths=-0.1,-0.05,0.05,0.1 --prompt 'My week has been' --out runs/sentiment"
)
@click.argument("model", metavar="MODEL|SPEC")
@click.argument("vector", required=False)
@click.option("--pairs", help="Contrast pairs whose preference is the effect: a bundled set or a file.")
@click.option("--prompt", "prompts", multiple=True, help="Text that is continued; may be repeated.")
@click.option(
    "--target", multiple=True, metavar="TOKEN", help="Next token after the prompts, with its space; may be repeated."
)
@click.option(
    "--against", multiple=True, metavar="TOKEN", help="Token that targets are measured against; may be repeated."
)
@click.option("--target-kind", help="logit, log_odds (default), log_probability or probability.")
@click.option("--probe", help="File of a probe that reads the prompts.")
@click.option("--phrase", multiple=True, help="Counted where a continuation holds it; may be repeated.")
@click.option("--texts", help="Other text, whose loss and KL are the damage: a bundled set or a file.")
@click.option("--n-texts", type=int, help="Most of these texts; default: 16.")
@click.option("--choices", help="Multiple-choice questions, whose accuracy is damage too: a bundled set or a file.")
@click.option("--n-choices", type=int, help="Most of these questions; default: 60.")
@click.option("--strengths", type=Numbers(), help="Numbers between commas; default: -0.1,0.1, for ablate 1.")
@click.option("--n-random", type=int, help="Random directions of the same norm; default: 19.")
@click.option(
    "--random-strengths", type=click.Choice(RANDOM_STRENGTHS), help="Strengths at which they stand; default: all."
)
@edit_options
@click.option("--instruction", help="What a model would be told instead; it stands beside the vector.")
@click.option("--tokens", "max_new_tokens", type=int, help="New tokens of each continuation; default: 30.")
@click.option("--temperature", type=float, help="Of continuations; default: 0, greedy.")
@click.option("--seed", type=int, help="Of random directions, draws and intervals; default: 0.")
@click.option("--batch-size", type=int, help="Texts in a pass; default: 32.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Change a value of SPEC; may be repeated.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the sweep; default: runs/NAME.")
@click.option("--engine", default="local", show_default=True, help="local or ray.")
@click.option("--no-resume", is_flag=True, help="Refuse a folder that holds a sweep already.")
@click.option("--replace", is_flag=True, help="In a folder of another sweep: move what it found to earlier/.")
@json_option
def sweep(
    model: str, vector: str | None, settings: tuple[str, ...], out: Path | None, engine: str, no_resume: bool, replace: bool,
    as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Effect and damage of a VECTOR at each strength, beside random directions and an instruction.

    The same call again, after an interruption or not, goes on where it was. Or give SPEC, a TOML file that says all of it.
    Of pairs that the vector was made of, those that it was fitted on are left out.
    """
    spec = _spec(model, vector, settings, options)
    folder = Path("runs") / spec.name if out is None else out
    with JobProgress(quiet=as_json) as progress, ends_between_tasks(progress):
        report = run_steer_job(spec, folder, engine=engine, resume=not no_resume, replace=replace, progress=progress)
    if not as_json and spec.question:
        click.echo(spec.question)
    show_report(report, as_json)
    if not as_json:
        click.echo(f"Report: {folder / 'report.html'}")


def _spec(model: str, vector: str | None, settings: tuple[str, ...], options: dict[str, Any]) -> SteerSpec:
    """The sweep, checked before anything is loaded."""
    given = {name: value for name, value in options.items() if value not in (None, ())}
    if Path(model).suffix == ".toml":
        if vector is not None or given:
            what = "VECTOR" if vector is not None else f"--{next(iter(given)).replace('_', '-')}"
            raise click.UsageError(f"{what}: {model} says all of the sweep; change a value with --set KEY=VALUE")
        return load_steer_spec(model, dict(map(setting_of, settings)))
    if vector is None:
        raise click.UsageError("VECTOR is missing: the file that interp steer make wrote")
    if settings:
        raise click.UsageError("--set changes a value of a SPEC file; here every value has its own option")
    sweepable(given.get("kind"))
    measures = _measures(given)
    values = {name: value for name, value in given.items() if name not in _MEASURES}
    name = f"steer-{Path(vector).stem}"
    return spec_of(
        {"model": model, "vector": {"file": vector}, "measures": measures, "name": name, **values}, "interp steer sweep"
    )


def _measures(given: dict[str, Any]) -> list[dict[str, Any]]:
    """Measures as tables of a specification: at most one of each sort."""
    found: list[dict[str, Any]] = []
    if "target" in given:
        table = {"tokens": given["target"], "against": given.get("against"), "kind": given.get("target_kind")}
        found.append({key: value for key, value in table.items() if value is not None})
    elif "against" in given or "target_kind" in given:
        raise click.UsageError("--against and --target-kind say how --target is measured: give that too")
    found += [{key: given[option]} for option, key in (("probe", "probe"), ("phrase", "phrases")) if option in given]
    if found and "prompts" not in given:
        raise click.UsageError("--target, --probe and --phrase are read on prompts: give --prompt, once or more often")
    return found


@click.command(epilog="Example: interp steer rerun runs/sentiment/report.json")
@click.argument("report", type=click.Path(path_type=Path))
@click.argument("model", required=False)
@click.option(
    "--probe", "probes", multiple=True, metavar="NAME=FILE", help="The probe of a measure, by its name in the report."
)
@click.option("--leave-out", is_flag=True, help="Leave out measures that the report does not hold: functions, probes.")
@click.option("--other-model", is_flag=True, help="Allow other weights than those of the report.")
@file_option("--out", "Also write the new report to this file.")
@html_option
@json_option
def rerun(
    report: Path, model: str | None, probes: tuple[str, ...], leave_out: bool, other_model: bool, out: Path | None,
    html: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Run the experiment of a REPORT again, and say of each figure whether it is the same.

    The report holds all that it was made from but own functions and probes. MODEL is what its card names, if it is not given.
    Exit status 1 if a figure lies outside the interval of the report, so that it can guard a pipeline.
    """
    path = report / "report.json" if report.is_dir() else report
    measures = {name: ProbeScore(load_probe(file), name=name) for name, file in map(_named, probes)}
    with work_bar("settings", hidden=as_json) as move:
        found = rerun_steering(
            path, model, measures=measures, leave_out=leave_out, other_model=other_model, progress=move
        )
    if out is not None:
        found.after.save(out)
    if html is not None:
        found.after.write_html(html)
    if as_json:
        show({"moved": found.moved, "notes": found.notes, "figures": found.to_frame().to_dict("records")}, as_json)
    else:
        show(found.to_frame(), as_json)
        click.echo(found.summary())
    if found.moved:
        raise click.exceptions.Exit(1)


def _named(word: str) -> tuple[str, str]:
    name, equals, file = word.partition("=")
    if not equals or not name or not file:
        raise click.BadParameter(f"{word!r} is not NAME=FILE", param_hint="--probe")
    return name, file
