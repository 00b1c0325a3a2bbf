"""What the commands of `interp behave` share: where a report goes, how it is gone on with, and how it is printed."""

import contextlib
import dataclasses
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

import interp
from interp.behavior.report import BehaviorReport
from interp.cli.job_progress import JobProgress, ends_between_tasks
from interp.cli.output import console, json_option, show
from interp.cli.shared import plot_option, seed_option
from interp.dataset import Question

ROWS, LONGEST = 20, 24
"""Rows of a table that are printed, and the characters of a cell that count for its width."""
TRUTHFULQA = ("mc_task.json", "TruthfulQA.csv")
"""Files of TruthfulQA; of a folder that holds both, the first is read: published figures go with it."""
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
    print_table(report, next(iter(report.TABLES)))
    for note in report.notes:
        click.echo(f"Note: {note}")
    if out is not None:
        click.echo(f"Report: {out / 'report.html'}")


def print_table(report: BehaviorReport, name: str) -> None:
    """A table's first rows, and as many of its columns as a line holds."""
    frame = report.tables[name]
    if frame.empty:
        return
    head, width, n = frame.head(ROWS), console().width, 0
    for column in head.columns:
        longest = max(len(str(column)), *(min(len(str(value)), LONGEST) for value in head[column]))
        width -= min(longest, LONGEST) + 3
        if width < 0 and n:
            break
        n += 1
    show(head.iloc[:, :n], as_json=False, title=name)
    left = [f"{ROWS} of {len(frame)} rows"] * (len(frame) > ROWS) + [f"{n} of {len(frame.columns)} columns"] * (
        n < len(head.columns)
    )
    if left:
        click.echo(f"{', '.join(left)}; --json prints all")


def read_match(name: str | None) -> Any:
    """What decides that two answers mean the same; None for the default."""
    if name in (None, "exact"):
        return None
    if name == "embedding":
        return interp.EmbeddingMatch(interp.load_sentence_encoder())
    return interp.NLIMatch(interp.load_nli(name))


def own_folder(source: str) -> Path | None:
    """The folder that a user names; None for a file, or for a bundled set, which comes before a folder of its name."""
    path = Path(source).expanduser()
    return path if path.is_dir() and source not in set(interp.datasets()["name"]) else None


def read_questions(source: str, n: int | None, form: str, seed: int, own_groups: bool = False) -> list[Question]:
    """Questions of a bundled set or a file, or TruthfulQA's own; of too many some, drawn by the seed in whole groups.

    Args:
        source: name of the set, or path of the file or of the folder of TruthfulQA.
        n: about how many; None for all.
        form: of TruthfulQA.
        seed: of the draw and of the order of TruthfulQA's options.
        own_groups: give each question without a group the group `question N`, N from 0.

    Raises:
        ValueError: as `load_questions` and `load_truthfulqa`, or a folder without a file of TruthfulQA.
    """
    path, folder = Path(source), own_folder(source)
    if folder is not None:
        there = [folder / name for name in TRUTHFULQA if (folder / name).is_file()]
        if not there:
            raise ValueError(
                f"{source} is a folder without {' or '.join(TRUTHFULQA)}: give the file of the questions, .jsonl or .parquet"
            )
        path = there[0]
    found: list[Any]
    if path.name in TRUTHFULQA:
        found = list(interp.load_truthfulqa(path, form, seed=seed))
    else:
        found = list(interp.load_questions(source))
    if own_groups:
        found = [dataclasses.replace(each, group=_group(i, each)) for i, each in enumerate(found)]
    if n is None or n >= len(found):
        return found
    return drawn(found, n, seed)


def drawn(questions: list[Question], n: int, seed: int) -> list[Question]:
    """About n questions, whole groups of them, in their order; one without a group is drawn alone."""
    own = [_group(index, question) for index, question in enumerate(questions)]
    groups = list(dict.fromkeys(own))
    random.Random(seed).shuffle(groups)
    taken: set[str] = set()
    for group in groups:
        if sum(each in taken for each in own) >= n:
            break
        taken.add(group)
    return [question for question, group in zip(questions, own) if group in taken]


def _group(index: int, question: Question) -> str:
    return f"question {index}" if question.group is None else question.group
