"""Commands on answers: errors and their signs, the user's opinion, evidence, and when to withhold an answer."""

from pathlib import Path
from typing import Any

import click
import pandas as pd

import interp
from interp.behavior import gate_report, grounding_report, load_behavior_report, question_report, sycophancy_report
from interp.behavior.questions import QuestionReport
from interp.behavior.questions.tables import oriented_signals
from interp.behavior.questions.work import TEXT
from interp.cli.behave_options import kept, own_folder, printed, read_match, read_questions, report_options
from interp.cli.output import json_option
from interp.cli.shared import file_option, html_option, plot_option, seed_option
from interp.cli.steer_options import Numbers
from interp.dataset.truthfulqa import FORMS
from interp.steer_job import load_vector

_QUESTIONS = (
    click.option("--questions", required=True, help="A bundled set, a file, or TruthfulQA's own file or folder."),
    click.option("--n", type=click.IntRange(min=1), help="About so many, whole groups of them; default: all."),
    click.option(
        "--form", default="binary", type=click.Choice([form for form in FORMS if form != "statements"]), show_default=True,
        help="Of TruthfulQA.",
    ),
    click.option("--own-groups", is_flag=True, help="Take each question without a group as one of its own."),
)  # fmt: skip


_SHARE = click.FloatRange(0, 1, min_open=True, max_open=True)
_NO_BETTER = (
    "The report calls this format not informative: its answers are no better than chance; a gate on them means little."
)


def _asks(command: Any) -> Any:
    for option in reversed(_QUESTIONS):
        command = option(command)
    return command


@click.command(epilog="Example: interp behave questions smollm2-135m --questions questions --out runs/answers")
@click.argument("model")
@_asks
@click.option("--samples", default=10, type=click.IntRange(min=2), show_default=True, help="Drawn answers of each.")
@click.option(
    "--shots", default=3, type=click.IntRange(min=0), show_default=True, help="Answered questions shown before."
)
@click.option(
    "--tokens", default=8, type=click.IntRange(min=1), show_default=True, help="Most tokens of a free answer."
)
@click.option("--no-free", is_flag=True, help="Options alone, no answers in the model's own words.")
@click.option("--match", help="exact (default), embedding, or the folder of an inference model: what means the same.")
@click.option(
    "--grader", default="match", type=click.Choice(["match", "nearest"]), show_default=True, help="Of free answers."
)
@report_options
def questions(
    model: str, questions: str, n: int | None, form: str, own_groups: bool, samples: int, shots: int, tokens: int, no_free: bool,
    match: str | None, grader: str, dtype: str, chart: Path | None, as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Does MODEL know when it is wrong? Accuracy by format, and every sign of doubt by how well it tells errors."""
    asked = read_questions(questions, n, form, options["seed"], own_groups)
    meaning, loaded, out = read_match(match), interp.load(model, dtype=dtype), options["out"]
    with kept("questions", as_json, options) as arguments:
        report = question_report(
            loaded, asked, n_samples=samples, n_shots=shots, max_new_tokens=tokens, free=not no_free, match=meaning,
            grader=grader, **arguments,
        )  # fmt: skip
    printed(report, chart=chart, as_json=as_json, out=out)


@click.command(epilog="Example: interp behave sycophancy smollm2-135m --questions questions --n 100 --out runs/opinion")
@click.argument("model")
@_asks
@click.option("--chat", is_flag=True, help="Ask in the model's chat template.")
@click.option("--no-layers", is_flag=True, help="Leave out where in the model the answer turns.")
@click.option(
    "--vector", type=click.Path(path_type=Path, exists=True), help="File of a steering vector to hold against it."
)
@click.option("--strengths", type=Numbers(), help="Its strengths, numbers between commas.")
@report_options
def sycophancy(
    model: str, questions: str, n: int | None, form: str, own_groups: bool, chat: bool, no_layers: bool, vector: Path | None,
    strengths: Any, dtype: str, chart: Path | None, as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Does MODEL follow what a user thinks, more than it repeats what is merely mentioned?"""
    asked = read_questions(questions, n, form, options["seed"], own_groups)
    if strengths and vector is None:
        raise click.UsageError("--strengths are those of a --vector: give that too")
    steered: dict[str, Any] = {} if vector is None else {"vector": load_vector(vector)}
    steered |= {"strengths": strengths} if strengths else {}
    loaded, out = interp.load(model, dtype=dtype), options["out"]
    with kept("questions", as_json, options) as arguments:
        report = sycophancy_report(loaded, asked, chat=chat, layers=not no_layers, **steered, **arguments)
    printed(report, chart=chart, as_json=as_json, out=out)


@click.command(
    epilog="Example: interp behave ground smollm2-135m --questions questions --documents evidence --n 240 --out runs/evidence"
)
@click.argument("model")
@_asks
@click.option("--documents", required=True, help="A bundled set, a file, or a folder of .txt and .md files.")
@click.option("--k", default=1, type=click.IntRange(min=1), show_default=True, help="Passages in a prompt.")
@click.option(
    "--size",
    default=1,
    type=click.IntRange(min=0),
    show_default=True,
    help="Sentences in a passage; 0: all.",
)
@click.option("--free", is_flag=True, help="Let the model also answer in its own words.")
@click.option("--dense", is_flag=True, help="Search by sentence vectors as well as by words.")
@report_options
def ground(
    model: str, questions: str, n: int | None, form: str, own_groups: bool, documents: str, k: int, size: int, free: bool,
    dense: bool, dtype: str, chart: Path | None, as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """What evidence changes: errors without it, with what a search finds, and with passages that say something else."""
    asked = read_questions(questions, n, form, options["seed"], own_groups)
    folder = own_folder(documents)
    texts: Any = interp.load_corpus(documents) if folder is None else folder
    source: Any = interp.passages_of(texts, size=size or None, overlap=0)
    if dense:
        encoder = interp.load_sentence_encoder()
        source = interp.HybridRetriever([interp.BM25Retriever(source), interp.DenseRetriever(source, encoder)])
    loaded, out = interp.load(model, dtype=dtype), options["out"]
    with kept("questions", as_json, options) as arguments:
        report = grounding_report(loaded, asked, source, k=k, size=size or None, free=free, **arguments)
    printed(report, chart=chart, as_json=as_json, out=out)


@click.command(epilog="Example: interp behave gate runs/answers --task free --risk 0.2 --save gate.json")
@click.argument("report", type=click.Path(path_type=Path))
@click.option(
    "--task", default="text", type=click.Choice(["text", "free"]), show_default=True, help="Answers of the report."
)
@click.option("--signal", "signals", multiple=True, help="Use this signal; may be repeated. Default: all.")
@click.option(
    "--risk", default=0.1, type=click.FloatRange(0, 1, min_open=True, max_open=True), show_default=True, help="To keep."
)
@click.option(
    "--confidence",
    default=0.9,
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    show_default=True,
    help="Of the promise, for selective.",
)
@click.option(
    "--kind",
    default="selective",
    type=click.Choice(["selective", "marginal"]),
    show_default=True,
    help="selective: errors among the answers that are given. marginal: answers that are given and wrong, among all.",
)
@seed_option
@file_option("--save", "Write the gate itself to this file.")
@file_option("--out", "Also write the report as JSON.")
@html_option
@plot_option
@json_option
def gate(
    report: Path, task: str, signals: tuple[str, ...], risk: float, confidence: float, kind: str, seed: int, save: Path | None,
    out: Path | None, html: Path | None, chart: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """When to withhold an answer: a rule over the signals of a REPORT on questions that keeps the error rate you name."""
    found = load_behavior_report(report)
    if not isinstance(found, QuestionReport):
        raise click.UsageError(
            f"{report} holds a report of the kind {found.KIND!r}: a gate needs one of interp behave questions"
        )
    part = found.answers.loc[found.answers["task"] == task]
    if part.empty:
        raise click.UsageError(f"the report has no answers of the task {task!r}: it was made with --no-free")
    table = oriented_signals(part)
    strange = [name for name in signals if name not in table]
    if strange:
        raise click.UsageError(f"there is no signal {strange[0]!r}; there are {', '.join(table)}")
    informative = _informative(found.tables["formats"], task)
    made = gate_report(
        table[list(signals)] if signals else table, ~part["right"].to_numpy(dtype=bool), risk=risk, confidence=confidence,
        kind=kind, groups=part["group"].tolist(), seed=seed, card={**found.card, "task": task, "informative": informative},
        notes=[_NO_BETTER] if informative is False else [],
    )  # fmt: skip
    if save is not None:
        made.gate.save(save)
    if out is not None:
        made.save(out)
    if html is not None:
        made.write_html(html)
    printed(made, chart=chart, as_json=as_json, out=None)


def _informative(formats: pd.DataFrame, task: str) -> bool | None:
    """Whether the report told the answers of a task from chance; None where it does not say."""
    rows = formats.loc[formats["format"] == task]
    if task == TEXT:
        rows = rows.loc[rows["by"] == "sum"]  # the score by which the answers were chosen
    said = rows["informative"].dropna()
    return bool(said.astype(bool).any()) if len(said) else None
