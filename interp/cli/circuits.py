"""Commands that say which parts of a model matter: heads, attribution, patching, tracing, circuits."""

from pathlib import Path
from typing import Any

import click
import pandas as pd

import interp
from interp import plot
from interp.attribution.direct import WAYS
from interp.circuits.edges import METHODS
from interp.cli.output import json_option, show
from interp.cli.shared import (
    brief,
    file_option,
    html_option,
    out_option,
    pairs_options,
    pairs_source,
    plot_option,
    seed_option,
    show_alignment,
    top_option,
    work_bar,
)
from interp.patching.sweep import BY_HEAD, MODES, STREAM
from interp.patching.tracing import SITES
from interp.task import METRICS

_metric = click.option("--metric", default="logit_diff", type=click.Choice(METRICS), show_default=True)
_window = click.option("--window", default=1, type=click.IntRange(min=1), show_default=True, help="Layers at once.")


@click.command(
    epilog="Example: interp patch smollm2-135m --clean 'The capital of France is' --corrupted 'The capital of Italy is' "
    "--answer ' Paris' --against ' Rome'"
)
@click.argument("model")
@pairs_options
@click.option(
    "--site", "sites", multiple=True, type=click.Choice([*STREAM, *BY_HEAD]), default=("resid_pre",), show_default=True,
    help="What is replaced; may be repeated.",
)  # fmt: skip
@click.option(
    "--by", type=click.Choice(["pos", "head", "head_pos", "layer"]),
    help="Default: by position in the stream, by head elsewhere.",
)  # fmt: skip
@_metric
@click.option("--mode", type=click.Choice(MODES), help="Default: denoise; noise for paths.")
@click.option("--estimate", is_flag=True, help="From one backward pass, with a check against exact patches.")
@click.option(
    "--to",
    "receivers",
    multiple=True,
    help="Paths to these only: logits, q:9.6, k:9.2, v:9.2, mlp_in:9; may be repeated.",
)
@click.option(
    "--from", "senders", default="heads", show_default=True, help="Of paths: heads, mlps, all, z:5.3, mlp_out:4."
)
@top_option
@seed_option
@out_option
@plot_option
@json_option
def patch(
    model: str, sites: tuple[str, ...], by: str | None, metric: str, mode: str | None, estimate: bool,
    receivers: tuple[str, ...], senders: str, top: int, seed: int, out: Path | None, chart: Path | None, as_json: bool,
    **given: Any,
) -> None:  # fmt: skip
    """Which values of MODEL carry the answer: values of one prompt put into the run of another.

    0 is the corrupted run and 1 the clean one. Prompts are a --task, own ones, or a file.
    """
    source = pairs_source(given, metric, seed)
    if len(sites) > 1 and (out is not None or chart is not None):
        raise click.UsageError("--out and --plot take the result of one --site")
    if chart is not None and by == "head_pos":
        raise click.UsageError("--plot has two axes, and --by head_pos has three: take --by head or --by pos")
    if receivers and (estimate or by):
        raise click.UsageError("--to is exact and by sender: it goes without --estimate and --by")
    loaded = interp.load(model)
    pairs = source(loaded)
    if not as_json:
        show_alignment(pairs)
    options: dict[str, Any] = {"metric": metric, "seed": seed}
    options["mode"] = mode or ("noise" if receivers else "denoise")
    results = []
    for site in ("paths",) if receivers else sites:
        with work_bar(site, hidden=as_json) as progress:
            if receivers:
                ends = list(receivers)
                found = interp.path_patch(loaded, pairs, receivers=ends, senders=senders, progress=progress, **options)
            elif estimate:
                found = interp.attribution_patch(loaded, pairs, site=site, by=by, **options)
            else:
                found = interp.patch_sweep(loaded, pairs, site=site, by=by, progress=progress, **options)
        results.append(found)
        if out is not None:
            found.save(out)
        if chart is not None:
            plot.save_chart(found.plot(), chart)
    if as_json:
        alignment = pairs.alignment(0).to_dict("records")
        show({"n": len(pairs), "alignment": alignment, "sweeps": [_sweep_json(each) for each in results]}, as_json)
        return
    for found in results:
        _show_sweep(found, top)


def _sweep_json(found: "interp.PatchResult") -> dict[str, Any]:
    checked = None if found.checked is None else found.checked.to_dict("records")
    return {"card": found.card, "gap": found.gap, "places": found.to_frame().to_dict("records"), "checked": checked}


def _show_sweep(found: "interp.PatchResult", top: int) -> None:
    card, frame = found.card, found.top(top)
    n = card["n_pairs"]
    interval = f"n = {n} pairs, 95 % over pairs" if n > 1 else "n = 1 pair, which has no interval"
    what = "estimates for " if card["method"] == "gradient" else ""
    if found.checked is not None:
        keys = list(found.places.columns)
        frame = frame.merge(found.checked.loc[:, [*keys, "exact"]], on=keys, how="left")
    title = f"{what}{card['site']}, {card['mode']}: {card['metric']}, 0 corrupted, 1 clean (a gap of {found.gap:.3f}); {interval}"
    show(frame.drop(columns=["site", "n"] if n > 1 else ["site", "n", "low", "high"]), as_json=False, title=title)
    click.echo(f"the {len(frame)} of {len(found.places)} places that move it most")
    if "rank_agreement" in card and found.checked is not None:
        strong = sum(found.checked["strongest"].tolist())
        click.echo(
            f"rank agreement with exact patches: {card['rank_agreement']:.2f} over n = {len(found.checked)} places, the "
            f"{strong} strongest and {len(found.checked) - strong} others"
        )


@click.command(
    epilog="Example: interp attribute smollm2-135m 'The capital of France is' --answer ' Paris' --against ' Rome' --by head"
)
@click.argument("model")
@click.argument("text")
@click.option("--answer", help="Token whose logit is divided, with its space; may be left out with --pos.")
@click.option("--against", help="Token whose logit is subtracted.")
@click.option("--by", default="component", type=click.Choice(WAYS), show_default=True)
@click.option("--pos", type=int, help="Position in the text; default: the last. Without --answer: of the next token.")
@click.option("--centred", is_flag=True, help="Less the mean of all logits, which no softmax sees.")
@top_option
@out_option
@plot_option
@json_option
def attribute(
    model: str, text: str, answer: str | None, against: str | None, by: str, pos: int | None, centred: bool, top: int,
    out: Path | None, chart: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """What each part of MODEL adds directly to a logit, or to the difference of two."""
    if answer is None and pos is None:
        raise click.UsageError("Missing option '--answer': at the last position the text has no next token to ask for")
    found = interp.direct_logit_attribution(
        interp.load(model), text, answer, against, by=by, pos=-1 if pos is None else pos, centred=centred
    )
    if out is not None:
        found.save(out)
    if chart is not None:
        plot.save_chart(found.plot(), chart)
    logit, rest = float(found.logit[0]), float(found.residual[0])
    if as_json:
        parts = found.to_frame().drop(columns=["low", "high", "n", "n_texts"]).rename(columns={"mean": "value"})
        asked = {"answer": found.answers[0], "against": None if found.againsts is None else found.againsts[0]}
        where = {"pos": int(found.pos[0]), "logit": logit, "residual": rest, "card": found.card}
        show({**asked, **where, "parts": parts.to_dict("records")}, as_json)
        return
    frame = found.top(top).assign(share=lambda table: table["mean"] / logit).rename(columns={"mean": "logits"})
    if by == "source":
        frame["token"] = [found.tokens[0][pos] if pos >= 0 else "" for pos in frame["source"]]
    what = f"logit of {found.answers[0]!r}" + ("" if found.againsts is None else f" less {found.againsts[0]!r}")
    title = f"{what} at position {int(found.pos[0])} is {logit:.3f}; n = 1 text, no interval"
    show(brief(frame, "part", "token", "logits", "share"), as_json, title=title)
    left = float(found.total[0]) - sum(frame["logits"].tolist())
    click.echo(f"the other {len(found.labels) - len(frame)} parts add {left:+.3f}; all together miss it by {rest:.1e}")


@click.command(epilog="Example: interp circuit smollm2-135m --task indirect_objects --n 32 --out circuit.json")
@click.argument("model")
@pairs_options
@_metric
@click.option(
    "--share", type=click.FloatRange(0, 1), help="Keep this share of the edges; default: search for the size."
)
@click.option(
    "--faithfulness", default=0.9, show_default=True, help="Wished of the circuit on the pairs that choose it."
)
@click.option("--method", default="eap_ig", type=click.Choice(METHODS), show_default=True, help="Of the edge scores.")
@click.option(
    "--off", default="mean", type=click.Choice(["mean", "corrupted"]), show_default=True, help="Ablated values."
)
@click.option("--random", default=20, type=click.IntRange(min=0), show_default=True, help="Random circuits beside it.")
@top_option
@seed_option
@file_option("--out", "Also write the whole report as JSON.")
@html_option
@plot_option
@json_option
def circuit(
    model: str, metric: str, share: float | None, faithfulness: float, method: str, off: str, random: int, top: int, seed: int,
    out: Path | None, html: Path | None, chart: Path | None, as_json: bool, **given: Any,
) -> None:  # fmt: skip
    """The edges of MODEL that do a task, and how much of it is inside and outside of them.

    Half of the pairs choose, the others measure: at least 4 are needed. It takes some minutes on two cores.
    """
    source = pairs_source(given, metric, seed)
    loaded = interp.load(model)
    pairs = source(loaded)
    if not as_json:
        show_alignment(pairs)
    with work_bar("edges, then nodes", hidden=as_json) as progress:
        report = interp.circuit_report(
            loaded, pairs, metric=metric, off=off, n_random=random, seed=seed, progress=progress,
            share=share, faithfulness=faithfulness, method=method,
        )  # fmt: skip
    if out is not None:
        report.save(out)
    if html is not None:
        interp.write_report(html, f"Circuit of {pairs.name} in {loaded.cfg.name}", report.sections(), report.card)
    if chart is not None:
        plot.save_chart(report.plot(), chart)
    if as_json:
        show(report.to_dict(), as_json)
        return
    n = report.circuit.n
    show(report.knocked_out.groupby("what", sort=False)["kept"].agg(["count", "mean", "min", "max"]).reset_index(),
         as_json, title=f"share of the gap that is kept, n = {n} held-out pairs")  # fmt: skip
    title = f"heads and MLPs ablated alone ({off}): change of {metric}, n = {n} held-out pairs, 95 % over pairs"
    show(report.node_effects.head(top), as_json, title=title)
    title = f"strongest of {report.circuit.n_edges:,} kept edges, by score"
    show(report.circuit.to_frame().head(top).loc[:, ["sender", "receiver", "score"]], as_json, title=title)
    click.echo(report.summary())


@click.command(
    epilog="Example: interp trace smollm2-135m 'The Eiffel Tower is located in the city of' --subject 'The Eiffel Tower' "
    "--answer ' Paris'"
)
@click.argument("model")
@click.argument("text")
@click.option("--subject", required=True, help="Words of TEXT that become noise.")
@click.option("--answer", help="Token that is followed; default: the model's top prediction.")
@click.option("--site", "sites", multiple=True, type=click.Choice(SITES), default=("resid_post", "attn_out", "mlp_out"),
              show_default=True, help="What is restored; may be repeated. --plot draws the first.")  # fmt: skip
@click.option("--draws", default=10, type=click.IntRange(min=1), show_default=True, help="Draws of the noise.")
@click.option("--scale", default=3.0, show_default=True, help="Of the noise, in standard deviations of the embeddings.")
@_window
@top_option
@seed_option
@out_option
@plot_option
@json_option
def trace(
    model: str, text: str, subject: str, answer: str | None, sites: tuple[str, ...], draws: int, scale: float, window: int,
    top: int, seed: int, out: Path | None, chart: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Where a fact comes back into runs of MODEL whose subject is noise."""
    loaded = interp.load(model)
    with work_bar("restoring", hidden=as_json) as progress:
        found = interp.causal_trace(
            loaded, text, subject, answer, sites=sites, n_noise=draws, scale=scale, window=window, seed=seed,
            progress=progress,
        )  # fmt: skip
    if out is not None:
        found.save(out)
    if chart is not None:
        plot.save_chart(found.plot(), chart)
    frame, clean, lost = found.to_frame(), float(found.clean[0]), float(found.corrupted[0].mean())
    if as_json:
        show({"clean": clean, "corrupted": lost, "card": found.card, "places": frame.to_dict("records")}, as_json)
        return
    title = (
        f"what restoring one place adds to the answer's probability, n = {draws} draws of the noise, 95 % over draws"
    )
    show(_strongest(frame, top).drop(columns="n"), as_json, title=title)
    click.echo(f"the answer has probability {clean:.3f}, and {lost:.3f} with noise for {subject!r}")


def _span(word: str) -> Any:
    """`3` is a position and `3:6` a span."""
    ends = word.split(":")
    if len(ends) > 2 or not all(end.isdecimal() for end in ends):
        raise click.BadParameter(f"{word!r} is no position such as 3, and no span such as 3:6")
    if len(ends) == 2 and int(ends[0]) >= int(ends[1]):
        raise click.BadParameter(f"{word!r} holds no position: a span ends before its second number")
    return int(word) if len(ends) == 1 else (int(ends[0]), int(ends[1]))


def _queries(ctx: click.Context, option: click.Parameter, words: tuple[str, ...]) -> Any:  # noqa: ARG001 (click's)
    if len(words) < 2 and (words or ("last",))[0] in ("last", "all"):
        return (words or ("last",))[0]
    return [_span(word) for word in words]


def _keys(ctx: click.Context, option: click.Parameter, words: tuple[str, ...]) -> list[Any] | None:  # noqa: ARG001
    return [_span(word) for word in words] or None


@click.command(
    epilog="Example: interp knockout smollm2-135m 'The Eiffel Tower is located in the city of' --answer ' Paris' --window 5"
)
@click.argument("model")
@click.argument("text")
@click.option("--answer", required=True, help="Token that is followed, with its space.")
@click.option("--against", help="Token that the logit difference is measured against.")
@click.option(
    "--queries",
    multiple=True,
    callback=_queries,
    help="Who no longer sees: last (the default), all, a position, or a span 3:6; may be repeated.",
)
@click.option(
    "--keys",
    multiple=True,
    callback=_keys,
    help="Cut this position or span 3:6 alone; may be repeated. Default: each position by itself.",
)
@_window
@top_option
@seed_option
@out_option
@plot_option
@json_option
def knockout(
    model: str, text: str, answer: str, against: str | None, queries: Any, keys: list[Any] | None, window: int, top: int,
    seed: int, out: Path | None, chart: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """What the answer loses when the last token, or --queries, no longer sees another one, layer by layer."""
    loaded = interp.load(model)
    with work_bar("cutting", hidden=as_json) as progress:
        found = interp.knockout_sweep(
            loaded, text, answer, against, queries=queries, keys=keys, window=window, seed=seed, progress=progress
        )
    if out is not None:
        found.save(out)
    if chart is not None:
        plot.save_chart(found.plot(), chart)
    frame = found.to_frame()
    if as_json:
        show({"card": found.card, "places": frame.to_dict("records")}, as_json)
        return
    measure = "probability" if against is None else "logit difference"
    who = {"last": "the last token", "all": "every token"}.get(str(queries), "the queries")
    title = f"change of the answer's {measure} when {who} cannot see a token, n = 1 text, no interval"
    spans = bool((frame["stop"] > frame["pos"] + 1).any())
    show(_strongest(frame, top).drop(columns=["low", "high", "n", *([] if spans else ["stop"])]), as_json, title=title)


def _strongest(frame: pd.DataFrame, top: int) -> pd.DataFrame:
    """The largest effects of either sign."""
    return frame.sort_values("effect", key=abs, ascending=False, kind="stable").head(top).reset_index(drop=True)


COMMANDS = (attribute, patch, trace, knockout, circuit)
