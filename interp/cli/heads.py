"""`interp heads`: every head's scores, what the model loses without it, and the verdict."""

from pathlib import Path

import click

import interp
from interp import plot
from interp.cli.output import json_option, show
from interp.cli.shared import (
    brief,
    out_option,
    plot_option,
    read_reference,
    read_texts,
    seed_option,
    top_option,
    work_bar,
)
from interp.heads import METRICS
from interp.heads.report import HeadReport, head_report


@click.command(epilog="Example: interp heads smollm2-135m --texts python_docs --top 20")
@click.argument("model")
@click.option("--texts", help="Natural text too: a file or bundled set. Ablated heads then get their mean over it.")
@click.option("--reference", help="Where those means come from instead: a store with z, a file or a bundled set.")
@click.option("--limit", default=16, type=click.IntRange(min=1), show_default=True, help="Most texts of either.")
@click.option("--scores-only", is_flag=True, help="Only where heads look, without ablations: seconds.")
@click.option("--by", default="effect", type=click.Choice(["effect", *METRICS]), show_default=True, help="Order.")
@click.option("--rows", default=4, type=click.IntRange(min=1), show_default=True, help="Sequences for single heads.")
@click.option(
    "--set", "members", default=6, type=click.IntRange(min=1), show_default=True, help="Most heads of the set."
)
@click.option("--random", default=20, type=click.IntRange(min=0), show_default=True, help="Random sets beside it.")
@top_option
@seed_option
@out_option
@plot_option
@json_option
def heads(
    model: str, texts: str | None, reference: str | None, limit: int, scores_only: bool, by: str, rows: int, members: int,
    random: int, top: int, seed: int, out: Path | None, chart: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Score every attention head of MODEL, ablate it, and say what it is.

    On repeated random tokens. Each head is ablated by itself: on two cores a few minutes for a model of 270 heads;
    --scores-only leaves that out.
    """
    if scores_only:
        if texts is not None or reference is not None:
            raise click.UsageError("--texts and --reference are for the ablations, which --scores-only leaves out")
        _scores(model, "induction" if by == "effect" else by, top, seed, out, chart, as_json)
        return
    natural = None if texts is None else read_texts(texts, limit)
    means = None if reference is None else read_reference(reference, limit)
    loaded = interp.load(model)
    with work_bar("ablating", hidden=as_json) as progress:
        report = head_report(
            loaded,
            texts=natural,
            reference=means,
            top=members,
            n_random=random,
            rows=rows,
            seed=seed,
            progress=progress,
        )
    if out is not None:
        report.save(out)
    if chart is not None:
        plot.save_chart(report.plot(), chart)
    _show(report, by, top, as_json)


def _scores(model: str, by: str, top: int, seed: int, out: Path | None, chart: Path | None, as_json: bool) -> None:
    scores = interp.head_scores(interp.load(model), seed=seed)
    if out is not None:
        scores.save(out)
    if chart is not None:
        plot.save_chart(scores.plot(by), chart)
    n = scores.card["n_sequences"]
    title = f"heads by {by}, n = {n} repeated sequences, 95 % over sequences; not ablated"
    show(scores.to_frame() if as_json else scores.top(by, top), as_json, title=title)


def _show(report: HeadReport, by: str, top: int, as_json: bool) -> None:
    frame = report.to_frame()
    if as_json:
        rest = {"set_effect": report.set_effect, "losses": report.losses, "card": report.card}
        show({"summary": report.summary(), **rest, "heads": frame.to_dict("records")}, as_json)
        return
    columns = (
        "layer",
        "head",
        "verdict",
        "role",
        "induction",
        "induction_null",
        "effect",
        "effect_low",
        "effect_high",
        "band",
    )
    extra = () if by in columns else (by,)
    n = report.card["n_sequences_alone"]
    what = f"effect: nats on the second copy when it is ablated alone ({report.card['ablation']})"
    title = f"{min(top, len(frame))} of {len(frame)} heads by {by}; {what}, n = {n} sequences, 95 % over them"
    show(brief(frame.nlargest(top, by), *columns, *extra), as_json, title=title)
    click.echo(report.summary())


COMMANDS = (heads,)
