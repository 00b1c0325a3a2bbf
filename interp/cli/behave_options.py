"""What the commands of `interp behave` share: where a report goes, how it is gone on with, and how it is printed."""

import contextlib
import random
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
def kept(step: str, as_json: bool, options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The arguments of a report that stand for the shared options; Ctrl-C ends it between two pieces of work."""
    with JobProgress(quiet=as_json) as progress, ends_between_tasks(progress):
        yield {
            "out": options["out"],
            "engine": options["engine"],
            "resume": not options["no_resume"],
            "replace": options["replace"],
            "seed": options["seed"],
            "progress": lambda done, total: progress(step, done, total),
        }


def printed(report: BehaviorReport, *, chart: Path | None, as_json: bool, out: Path | None) -> None:
    """Summary, first table and notes, or all of it as JSON; and the chart where one is asked for."""
    if chart is not None:
        interp.plot.save_chart(report.plot(), chart)
    if as_json:
        show(report.to_dict(), as_json)
        return
    click.echo(report.summary())
    frame = report.to_frame()
    if len(frame):
        show(frame, as_json, title=next(iter(report.TABLES)), limit=20)
    for note in report.notes:
        click.echo(f"Note: {note}")
    if out is not None:
        click.echo(f"Report: {out / 'report.html'}")


def read_match(name: str | None) -> Any:
    """What decides that two answers mean the same; None for the default."""
    if name in (None, "exact"):
        return None
    if name == "embedding":
        return interp.EmbeddingMatch(interp.load_sentence_encoder())
    return interp.NLIMatch(interp.load_nli(name))


def read_questions(source: str, n: int | None, form: str, seed: int) -> list[Question]:
    """Questions of a bundled set or a file, or TruthfulQA's own; of too many some, drawn by the seed in whole groups."""
    path = Path(source)
    found: list[Any]
    if path.name in ("TruthfulQA.csv", "mc_task.json"):
        found = list(interp.load_truthfulqa(path, form, seed=seed))
    else:
        found = list(interp.load_questions(source))
    if n is None or n >= len(found):
        return found
    return drawn(found, n, seed)


def drawn(questions: list[Question], n: int, seed: int) -> list[Question]:
    """About n questions, whole groups of them, in their order."""
    groups = list(dict.fromkeys(str(question.group) for question in questions))
    random.Random(seed).shuffle(groups)
    taken: set[str] = set()
    for group in groups:
        if sum(str(question.group) in taken for question in questions) >= n:
            break
        taken.add(group)
    return [question for question in questions if str(question.group) in taken]
