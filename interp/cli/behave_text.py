"""Commands on text: calibration of the next token, how one answer formed, and what a report says."""

from pathlib import Path
from typing import Any

import click

import interp
from interp.behavior import hallucination_trace, load_behavior_report, text_calibration
from interp.cli.behave_options import kept, print_table, printed, report_options
from interp.cli.output import json_option, show
from interp.cli.shared import file_option, html_option, plot_option, read_lens
from interp.probe import load_probe


class Layers(click.ParamType):
    """`all`, `none`, or whole numbers between commas; -1 is the embedding."""

    name = "layers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value in ("all", "none") or isinstance(value, list):
            return value
        try:
            return [int(each) for each in str(value).split(",")]
        except ValueError:
            self.fail(f"{value!r} is not all, none, or whole numbers between commas", param, ctx)


@click.command(
    epilog="Example: interp behave text smollm2-135m --texts python_docs --n-texts 60 --max-tokens 128 --out runs/text"
)
@click.argument("model")
@click.option("--texts", required=True, help="Documents: a bundled set or a file.")
@click.option("--n-texts", type=click.IntRange(min=2), help="Most documents; default: all.")
@click.option("--max-tokens", type=click.IntRange(min=2), help="Read only the first so many tokens of each.")
@click.option("--layers", type=Layers(), default="all", show_default=True, help="all, none, or numbers between commas.")
@click.option(
    "--lens", type=click.Path(path_type=Path, exists=True), help="File of a trained lens; default: the logit lens."
)
@report_options
def text(
    model: str, texts: str, n_texts: int | None, max_tokens: int | None, layers: Any, lens: Path | None, dtype: str,
    chart: Path | None, as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Can MODEL's next-token probabilities be believed on these documents, and those of its layers?"""
    documents = interp.load_corpus(texts)
    if n_texts is not None:
        documents = documents.take(range(min(n_texts, len(documents))))
    translator, loaded = None if lens is None else read_lens(lens), interp.load(model, dtype=dtype)
    out = options["out"]
    with kept("calibration", as_json, options) as arguments:
        report = text_calibration(
            loaded,
            documents,
            layers=None if layers == "none" else layers,
            lens=translator,
            max_tokens=max_tokens,
            **arguments,
        )
    printed(report, chart=chart, as_json=as_json, out=out)


@click.command(
    epilog="Example: interp behave trace smollm2-135m 'Question: What is the capital of Australia?\nAnswer:' --against Canberra "
    "--html trace.html"
)
@click.argument("model")
@click.argument("prompt")
@click.option("--answer", help="The answer to trace; default: what the model says.")
@click.option("--against", multiple=True, help="Another answer, followed beside it; may be repeated.")
@click.option("--subject", help="Words of the prompt to which the share of attention is told.")
@click.option(
    "--tokens", "max_new_tokens", default=8, type=click.IntRange(min=1), show_default=True, help="Most new tokens."
)
@click.option("--probe", "probes", multiple=True, type=click.Path(path_type=Path, exists=True), help="File of a probe.")
@click.option(
    "--lens", type=click.Path(path_type=Path, exists=True), help="File of a trained lens; default: the logit lens."
)
@file_option("--out", "Also write the report as JSON.")
@html_option
@plot_option
@json_option
def trace(
    model: str, prompt: str, answer: str | None, against: tuple[str, ...], subject: str | None, max_new_tokens: int,
    probes: tuple[Path, ...], lens: Path | None, out: Path | None, html: Path | None, chart: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Layer by layer and token by token: how MODEL came to its answer to PROMPT."""
    readers = {path.stem: load_probe(path) for path in probes}
    report = hallucination_trace(
        interp.load(model), prompt, answer=answer, against=list(against) or None, subject=subject, max_new_tokens=max_new_tokens,
        probe=readers or None, lens=None if lens is None else read_lens(lens),
    )  # fmt: skip
    if out is not None:
        report.save(out)
    if html is not None:
        report.write_html(html)
    printed(report, chart=chart, as_json=as_json, out=None)


@click.command("show", epilog="Example: interp behave show runs/answers --html answers.html")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--table", help="Print this table; --json prints all of them.")
@html_option
@plot_option
@json_option
def show_report(path: Path, table: str | None, html: Path | None, chart: Path | None, as_json: bool) -> None:
    """What a report says: PATH is its folder or its JSON file."""
    report = load_behavior_report(path)
    if table is not None and table not in report.tables:
        raise click.UsageError(f"there is no table {table!r}; there are {', '.join(report.tables)}")
    if html is not None:
        report.write_html(html)
    if table is not None:
        if chart is not None:
            interp.plot.save_chart(report.plot(), chart)
        if as_json:
            show(report.tables[table], as_json)
        else:
            print_table(report, table)
        return
    printed(report, chart=chart, as_json=as_json, out=None)
