"""Commands that put everything together: two models side by side, and one prompt looked at in every way."""

from pathlib import Path
from typing import Any

import click

import interp
from interp import plot
from interp.cli.output import json_option, show
from interp.cli.shared import (
    brief,
    counts,
    file_option,
    html_option,
    plot_option,
    read_texts,
    seed_option,
    top_option,
    work_bar,
)
from interp.scan import scan_prompt
from interp.scan.prompt import EFFORTS

TABLES = ("texts", "tokens", "layers", "heads", "scores")


@click.command(epilog="Example: interp diff smollm2-135m --int8 --texts python_docs --limit 20")
@click.argument("model_a")
@click.argument("model_b", required=False)
@click.option("--texts", required=True, help="A file or bundled set.")
@click.option("--int8", is_flag=True, help="Compare MODEL_A with its own int8 form.")
@click.option("--limit", default=50, type=click.IntRange(min=1), show_default=True, help="Most texts.")
@click.option("--max-length", type=click.IntRange(min=2), help="Texts are cut after so many tokens.")
@click.option("--no-scores", is_flag=True, help="Leave out the head scores on repeated tokens.")
@top_option
@seed_option
@file_option("--out", "Also write all tables as JSON.")
@html_option
@plot_option
@json_option
def diff(
    model_a: str, model_b: str | None, texts: str, int8: bool, limit: int, max_length: int | None, no_scores: bool, top: int,
    seed: int, out: Path | None, html: Path | None, chart: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """What MODEL_B does differently from MODEL_A on the same texts: loss, KL by token, layers and heads."""
    if int8 == (model_b is not None):
        raise click.UsageError("give MODEL_B, or --int8 for the int8 form of MODEL_A: one of the two")
    rows, first = read_texts(texts, limit), interp.load(model_a)
    second = interp.quantize_int8(first).model if model_b is None else interp.load(model_b)
    with work_bar("comparing", hidden=as_json) as progress:
        found = interp.model_diff(
            first, second, rows, heads=not no_scores, max_length=max_length, seed=seed, progress=progress
        )
    names = (model_a, "its int8 form" if model_b is None else model_b)
    if out is not None:
        found.save(out)
    if html is not None:
        interp.write_report(html, f"{names[0]} and {names[1]}", found.sections(), found.card)
    if chart is not None:
        plot.save_chart(found.plot("tokens" if found.layers.empty else "layers"), chart)
    if as_json:
        tables = {name: getattr(found, name).to_dict("records") for name in TABLES}
        show({"card": found.card, "summary": found.summary.to_dict("records"), **tables}, as_json)
        return
    _show_diff(found, names, top)


def _show_diff(found: "interp.ModelDiff", names: tuple[str, str], top: int) -> None:
    n, n_texts = counts(found.summary)
    title = f"a: {names[0]}, b: {names[1]}; n = {n} places in {n_texts} texts, 95 % over texts, nats"
    show(brief(found.summary, "metric", "value", "low", "high"), as_json=False, title=title)
    places = brief(found.tokens, "context", "next", "kl", "top_a", "p_a", "top_b", "p_b").head(top)
    show(places, as_json=False, title="places of the largest KL(a || b), and what each expects next")
    if found.card["notes"]:
        click.echo(found.card["notes"])
        return
    heads = found.heads.sort_values("own_output", ascending=False).head(top)
    columns = ("layer", "head", "own_output", "own_output_low", "own_output_high", "output", "pattern")
    title = f"heads that differ most on a's stream (own_output: |a - b| / |a|), n = {n_texts} texts, 95 % over texts"
    show(brief(heads, *columns), as_json=False, title=title)


@click.command(
    epilog="Example: interp scan smollm2-135m --prompt 'The capital of France is' --answer ' Paris' --against ' Rome' "
    "--out scan.html"
)
@click.argument("model")
@click.option("--prompt", required=True, help="The text that is looked at.")
@click.option("--answer", help="Next token, with its space; default: the model's top prediction.")
@click.option("--against", help="Token that the answer is measured against.")
@click.option("--corrupted", help="The same prompt without what matters, in as many tokens: patching needs it.")
@file_option("--out", "Page of its own, which needs no network.")
@file_option("--save", "Also write the report as JSON.")
@click.option(
    "--effort", default="normal", type=click.Choice(list(EFFORTS)), show_default=True, help="How much is run."
)
@seed_option
@json_option
def scan(
    model: str, prompt: str, answer: str | None, against: str | None, corrupted: str | None, out: Path | None,
    save: Path | None, effort: str, seed: int, as_json: bool,
) -> None:  # fmt: skip
    """One prompt looked at in every way, ranked into what a person should see first."""
    if out is None and save is None and not as_json:
        raise click.UsageError("give --out PAGE.html, --save FILE.json or --json: the report is long")
    options: dict[str, Any] = {
        "answer": answer,
        "against": against,
        "corrupted": corrupted,
        "effort": effort,
        "seed": seed,
    }
    loaded = interp.load(model)
    with work_bar("scanning", hidden=as_json) as progress:
        report = scan_prompt(loaded, prompt, progress=lambda step, done, total: progress(done, total, step), **options)
    if out is not None:
        report.write_html(out)
    if save is not None:
        report.save(save)
    if as_json:
        show(report.to_dict(), as_json)
        return
    click.echo(report.summary())
    for path in (out, save):
        if path is not None:
            click.echo(f"written: {path}")


COMMANDS = (diff, scan)
