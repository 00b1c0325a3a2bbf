"""Commands that read a prediction layer by layer, and those that make a lens."""

from pathlib import Path
from typing import Any

import click
import pandas as pd

import interp
from interp import plot
from interp.cli.output import json_option, show
from interp.cli.shared import (
    brief,
    counts,
    file_option,
    out_option,
    plot_option,
    read_lens,
    read_texts,
    seed_option,
    work_bar,
)

_sites = click.option("--sites", multiple=True, help="Site or pattern, such as 'resid_post:*'; may be repeated.")
_limit = click.option("--limit", default=100, type=click.IntRange(min=1), show_default=True, help="Most texts read.")
_length = click.option("--max-length", type=click.IntRange(min=2), help="Texts are cut after so many tokens.")
_lens = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.command(epilog="Example: interp lens smollm2-135m 'The capital of France is' --answer ' Paris'")
@click.argument("model")
@click.argument("text", required=False)
@click.option(
    "--answer", "answers", multiple=True, help="Token that is followed; may be repeated. Default: the top prediction."
)
@click.option("--pos", default=-1, show_default=True, help="Position in the text; negatives count from the end.")
@click.option("--sites", default=None, help="'all' for the middle of each block too; or a pattern.")
@click.option("--lens", "file", type=_lens, help="Read through a tuned or Jacobian lens.")
@click.option("--store", help="Instead of TEXT: every row of this store, without running the model.")
@out_option
@plot_option
@json_option
def lens(
    model: str, text: str | None, answers: tuple[str, ...], pos: int, sites: str | None, file: Path | None, store: str | None,
    out: Path | None, chart: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """What MODEL would predict after each layer of TEXT."""
    if (text is None) == (store is None):
        raise click.UsageError("Missing argument 'TEXT'." if text is None else "give TEXT or --store, not both")
    through = None if file is None else read_lens(file)
    source: Any = text if store is None else interp.open_store(store)
    result = interp.logit_lens(interp.load(model), source, sites=sites, answer=list(answers) or None, lens=through)
    at = None if store is not None else _position(result, pos)
    if out is not None:
        result.save(out)
    if chart is not None:
        plot.save_chart(_lens_chart(result, at, bool(answers)), chart)
    if at is None:
        frame = result.summary()
        n, n_texts = counts(frame)
        title = f"{result.card['lens']} lens over n = {n} rows of {n_texts} texts"
        show(frame, as_json, title=f"{title}; KL(final || lens), loss and entropy in nats, 95 % over texts")
        return
    settle = int(result.settle_layer[at])
    title = f"after {result.labels[at]!r} (position {at}), {result.card['lens']} lens"
    title += f"; the prediction stays from layer {settle} on; rank 0 is the top, entropy and KL in nats"
    show(_at(result, at), as_json, title=title)


def _position(result: "interp.LensResult", pos: int) -> int:
    n = len(result.pos)
    if not -n <= pos < n:
        raise click.BadParameter(f"the text has positions 0 to {n - 1}", param_hint="--pos")
    return pos % n


def _at(result: "interp.LensResult", pos: int) -> pd.DataFrame:
    """The lines of one position; of several answers each has its probability and rank."""
    frame = result.to_frame()
    frame = frame.loc[frame["pos"] == pos].reset_index(drop=True)
    first = ["layer"] if frame["layer"].is_unique else ["site", "layer"]
    if len(result.answer_ids) < 2:
        return frame.loc[:, [*first, "top1", "p_top1", "target", "p_target", "rank", "entropy", "kl"]]
    table = frame.loc[:, [*first, "top1", "p_top1"]].copy()
    followed = result.followed()
    for answer, lines in followed.loc[followed["pos"] == pos].groupby("answer", sort=False):
        table[f"p {answer}"] = lines["probability"].to_numpy()
        table[f"rank {answer}"] = lines["rank"].to_numpy()
    return table.assign(entropy=frame["entropy"], kl=frame["kl"])


def _lens_chart(result: "interp.LensResult", pos: int | None, followed: bool) -> Any:
    """The grid of a text; its chosen answers by layer; the divergence of a store."""
    if pos is None:
        table = result.summary().rename(columns={"kl_low": "low", "kl_high": "high"})
        return plot.lens_comparison(table.loc[~table["site"].str.startswith("resid_mid")])
    if not followed:
        return result.plot()
    frame = result.followed()
    return plot.followed_tokens(frame.loc[(frame["pos"] == pos) & ~frame["site"].str.startswith("resid_mid")])


@click.command("tune-lens", epilog="Example: interp tune-lens smollm2-135m runs/corpus --out tuned.safetensors")
@click.argument("model")
@click.argument("store")
@file_option("--out", "File of the lens; checkpoints lie beside it until it is whole.", required=True)
@_sites
@click.option("--epochs", default=1, type=click.IntRange(min=1), show_default=True, help="Passes over the rows.")
@click.option("--lr", default=1e-3, show_default=True, help="Learning rate at the first step; it falls to 0.")
@click.option("--batch-size", default=128, type=click.IntRange(min=1), show_default=True, help="Rows in a step.")
@click.option("--rows", type=click.IntRange(min=1), help="Most rows to train on; default: all.")
@click.option("--held-out", default=0.1, show_default=True, help="Share of the texts that only the table sees.")
@click.option("--autocast", is_flag=True, help="The unembedding in bfloat16: faster where the CPU has it.")
@click.option("--fresh", is_flag=True, help="Begin anew, and write over what lies at --out.")
@plot_option
@seed_option
@json_option
def tune_lens(
    model: str, store: str, out: Path, sites: tuple[str, ...], epochs: int, lr: float, batch_size: int, rows: int | None,
    held_out: float, autocast: bool, fresh: bool, chart: Path | None, seed: int, as_json: bool,
) -> None:  # fmt: skip
    """Train a tuned lens on a store of MODEL, and compare it with the logit lens on texts that it did not see.

    Interrupted and started again it goes on where it was.
    """
    config = interp.TunedLensConfig(
        epochs=epochs, lr=lr, batch_size=batch_size, rows=rows, held_out=held_out, autocast=autocast, seed=seed
    )
    recorded, loaded = interp.open_store(store), interp.load(model)
    with work_bar("training", hidden=as_json) as progress:
        tuned = interp.train_tuned_lens(
            loaded, recorded, sites=list(sites) or None, config=config, path=out, resume=not fresh, progress=progress
        )
    if chart is not None:
        plot.save_chart(tuned.plot(), chart)
    frame = tuned.to_frame()
    n, n_texts = counts(frame)
    columns = ("site", "kl", "kl_low", "kl_high", "logit_lens_kl", "gain", "gain_low", "gain_high")
    title = f"{out}: KL(final || lens) in nats on n = {n} rows of {n_texts} held-out texts, 95 % over texts"
    show(frame if as_json else brief(frame, *columns), as_json, title=title)


@click.command(
    "jacobian-lens", epilog="Example: interp jacobian-lens smollm2-135m python_docs --out jacobian.safetensors"
)
@click.argument("model")
@click.argument("texts")
@file_option("--out", "File of the lens.", required=True)
@_sites
@_limit
@click.option("--max-length", default=128, type=click.IntRange(min=2), show_default=True, help="Tokens of a text.")
@click.option("--same-position", is_flag=True, help="The effect on the token's own place alone.")
@plot_option
@seed_option
@json_option
def jacobian_lens(
    model: str, texts: str, out: Path, sites: tuple[str, ...], limit: int, max_length: int, same_position: bool,
    chart: Path | None, seed: int, as_json: bool,
) -> None:  # fmt: skip
    """Fit a Jacobian lens of MODEL on TEXTS, a bundled set or a file.

    It takes d_model backward passes for each batch of texts: on two cores a quarter of an hour and more.
    """
    rows, loaded = read_texts(texts, limit), interp.load(model)
    with work_bar("backward passes", hidden=as_json) as progress:
        fitted = interp.fit_jacobian_lens(
            loaded, rows, sites=list(sites) or None, same_position=same_position, max_length=max_length, seed=seed,
            progress=progress,
        )  # fmt: skip
    fitted.save(out)
    if chart is not None:
        plot.save_chart(fitted.plot(), chart)
    frame = fitted.to_frame()
    n, n_texts = counts(frame)
    title = f"{out}: n = {n} positions of {n_texts} texts"
    show(frame, as_json, title=f"{title}; half_cosine says how far two halves of the texts agree")


@click.command(
    "compare-lenses",
    epilog="Example: interp compare-lenses smollm2-135m python_docs --lens tuned.safetensors --limit 20",
)
@click.argument("model")
@click.argument("texts")
@click.option("--lens", "files", multiple=True, type=_lens, help="Tuned or Jacobian lens; may be repeated.")
@_sites
@_limit
@_length
@click.option("--horizon", default=20, type=click.IntRange(min=1), show_default=True, help="Next tokens of the rank.")
@out_option
@plot_option
@seed_option
@json_option
def compare_lenses(
    model: str, texts: str, files: tuple[Path, ...], sites: tuple[str, ...], limit: int, max_length: int | None, horizon: int,
    out: Path | None, chart: Path | None, seed: int, as_json: bool,
) -> None:  # fmt: skip
    """The logit lens and others on TEXTS that none was fitted on: KL to the final layer, and the rank of what comes."""
    rows, lenses = read_texts(texts, limit), [read_lens(file) for file in files]
    found = interp.compare_lenses(
        interp.load(model), rows, lenses, sites=list(sites) or None, horizon=horizon, max_length=max_length, seed=seed
    )
    if out is not None:
        found.save(out)
    if chart is not None:
        plot.save_chart(found.plot(), chart)
    frame = found.to_frame()
    n, n_texts = counts(frame)
    title = f"n = {n} rows of {n_texts} texts, 95 % over texts; KL(final || lens) in nats"
    show(frame, as_json, title=f"{title}; rank: the best of the next {horizon} tokens, geometric mean")


COMMANDS = (lens, tune_lens, jacobian_lens, compare_lenses)
