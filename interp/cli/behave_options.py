"""What the commands of `interp behave` share: where a report goes, how it is gone on with, and how it is printed."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

import interp
from interp.behavior.report import BehaviorReport
from interp.cli.job_progress import JobProgress, ends_between_tasks
from interp.cli.output import json_option, show
from interp.cli.shared import plot_option, seed_option
from interp.dataset import Question

DTYPES = ("float32", "bfloat16", "float16", "float64")

_OPTIONS = (
    click.option("--out", type=click.Path(path_type=Path), help="Folder of the report; the same call goes on in it."),
    click.option("--engine", default="local", show_default=True, help="local or ray."),
    click.option("--no-resume", is_flag=True, help="Refuse a folder that holds a report already."),
    click.option("--replace", is_flag=True, help="In a folder of another report: move what it found to earlier/."),
    click.option("--dtype", default="float32", type=click.Choice(DTYPES), show_default=True, help="Of the weights."),
    seed_option,
    plot_option,
    json_option,
)


def report_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of a report that is worked on for a while."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@contextlib.contextmanager
def kept(step: str, options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Takes the shared options out of `options`, and yields the arguments of a report that stand for them."""
    with JobProgress(quiet=options["as_json"]) as progress, ends_between_tasks(progress):
        yield {
            "out": options.pop("out"),
            "engine": options.pop("engine"),
            "resume": not options.pop("no_resume"),
            "replace": options.pop("replace"),
            "seed": options.pop("seed"),
            "progress": lambda done, total: progress(step, done, total),
        }


def printed(report: BehaviorReport, *, chart: Path | None, as_json: bool, out: Path | None, titles: dict[str, str]) -> None:
    """Summary, notes and some tables, or all of it as JSON; and the chart where one is asked for."""
    if chart is not None:
        interp.plot.save_chart(report.plot(), chart)
    if as_json:
        show(report.to_dict(), as_json)
        return
    click.echo(report.summary())
    for name, title in titles.items():
        if len(report.tables[name]):
            show(report.tables[name], as_json, title=title, limit=20)
    for note in report.notes:
        click.echo(f"Note: {note}")
    if out is not None:
        click.echo(f"Report: {out / 'report.html'}")


def read_questions(source: str, n: int | None, form: str, seed: int) -> list[Question]:
    """Questions of a bundled set or a file, or TruthfulQA's own; of too many some, drawn by the seed in whole groups."""
    path = Path(source)
    if path.name in ("TruthfulQA.csv", "mc_task.json"):
        found = list(interp.load_truthfulqa(path, form, seed=seed))
    else:
        found = list(interp.load_questions(source))
    if n is None or n >= len(found):
        return found
    return drawn(found, n, seed)


def drawn(questions: list[Question], n: int, seed: int) -> list[Question]:
    """About n questions, whole groups of them, in their order."""
    import random

    groups = list(dict.fromkeys(str(question.group) for question in questions))
    random.Random(seed).shuffle(groups)
    taken: set[str] = set()
    for group in groups:
        if sum(str(question.group) in taken for question in questions) >= n:
            break
        taken.add(group)
    return [question for question in questions if str(question.group) in taken]
