"""`interp heads`: every head's scores, what the model loses without it, and the verdict."""

from pathlib import Path

import click
import pandas as pd

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
@click.option(
    "--weights", is_flag=True, help="Also what each head copies and which earlier head it reads (K), by weights."
)
@click.option("--by", default="effect", type=click.Choice(["effect", *METRICS]), show_default=True, help="Order.")
@click.option("--rows", default=4, type=click.IntRange(min=2), show_default=True, help="Sequences for single heads.")
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
    model: str, texts: str | None, reference: str | None, limit: int, scores_only: bool, weights: bool, by: str, rows: int,
    members: int, random: int, top: int, seed: int, out: Path | None, chart: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Score every attention head of MODEL, ablate it, and say what it is.

    On repeated random tokens. Each head is ablated by itself: on two cores a few minutes for a model of 270 heads;
    --scores-only leaves that out.
    """
    if scores_only and reference is not None:
        raise click.UsageError("--reference is for the ablations, which --scores-only leaves out")
    natural = None if texts is None else read_texts(texts, limit)
    if scores_only:
        loaded = interp.load(model)
        scores = interp.head_scores(loaded, seed=seed, texts=natural)
        if out is not None:
            scores.save(out)
        by = "induction" if by == "effect" else by
        if chart is not None:
            plot.save_chart(scores.plot(by), chart)
        _show_scores(scores, _by_weights(loaded, seed) if weights else None, by, top, as_json)
        return
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
    _show(report, _by_weights(loaded, seed) if weights else None, by, top, as_json)


WEIGHTS = ("copying", "eigenvalue_share", "reads_head", "reads_excess")
SAID = (
    "copying: sd of the own token's logit; reads_head: the earlier head of the largest K-composition over its baseline"
)


def _by_weights(model: "interp.HookedTransformer", seed: int) -> pd.DataFrame:
    """A row per head: what it does to the logit of the token that it looks at, and the earlier head that its keys read most
    (none in the first layer)."""
    copying = interp.copying_scores(model, basis="embed", seed=seed).to_frame()
    names = {"effect_embed": "copying", "eigen_embed": "eigenvalue_share"}
    frame = copying.rename(columns=names).loc[:, ["layer", "head", *names.values()]]
    pairs = interp.head_composition(model, "K").to_frame()
    best = pairs.loc[pairs.groupby(["later_layer", "later_head"])["excess"].idxmax()]
    reads = pd.DataFrame(
        {
            "layer": best["later_layer"], "head": best["later_head"], "reads_excess": best["excess"],
            "reads_head": [f"L{a}H{b}" for a, b in zip(best["earlier_layer"], best["earlier_head"])],
        }
    )  # fmt: skip
    return frame.merge(reads, on=["layer", "head"], how="left")


def _joined(frame: pd.DataFrame, weights: pd.DataFrame | None) -> pd.DataFrame:
    return frame if weights is None else frame.merge(weights, on=["layer", "head"], how="left")


def _show_scores(scores: "interp.HeadScores", weights: pd.DataFrame | None, by: str, top: int, as_json: bool) -> None:
    n = scores.card["n_sequences"]
    title = f"heads by {by}, n = {n} repeated sequences, 95 % over sequences; not ablated"
    title += "" if weights is None else f"; {SAID}"
    frame = _joined(scores.to_frame(), weights)
    if not as_json:
        natural = f"natural_{by}"
        beside = (natural, f"{natural}_low", f"{natural}_high", f"{natural}_n")
        diffuse = () if by == "entropy_share" else ("entropy_share",)
        shown = ("layer", "head", by, f"{by}_low", f"{by}_high", "n", *beside, *diffuse, *WEIGHTS)
        frame = brief(frame.nlargest(top, by), *shown)
    show(frame, as_json, title=title)


def _show(report: HeadReport, weights: pd.DataFrame | None, by: str, top: int, as_json: bool) -> None:
    frame = _joined(report.to_frame(), weights)
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
        "natural_induction",
        "entropy_share",
        "effect",
        "effect_low",
        "effect_high",
        "band",
    )
    extra = (*(() if by in columns else (by,)), *WEIGHTS)
    n = report.card["n_sequences_alone"]
    what = f"effect: nats on the second copy when it is ablated alone ({report.card['ablation']})"
    title = f"{min(top, len(frame))} of {len(frame)} heads by {by}; {what}, n = {n} sequences, 95 % over them"
    title += "; entropy_share: 1 looks at all tokens alike" + ("" if weights is None else f"; {SAID}")
    show(brief(frame.nlargest(top, by), *columns, *extra), as_json, title=title)
    click.echo(report.summary())


COMMANDS = (heads,)
