"""Commands that read a model or a store and report."""

from pathlib import Path

import click

import interp
from interp.cli.output import json_option, show


@click.command(epilog="Example: interp sites smollm2-135m")
@click.argument("model")
@click.option("--missing", is_flag=True, help="The kinds of place that MODEL lacks instead, and why.")
@json_option
def sites(model: str, missing: bool, as_json: bool) -> None:
    """The places in MODEL that can be recorded and edited."""
    show(interp.load(model).sites(missing=missing), as_json, limit=40)


@click.group()
def sae() -> None:
    """Sparse autoencoders."""


@sae.command(epilog="Example: interp sae train --store runs/corpus --site resid_post:10 --k 32 --out sae.safetensors")
@click.option("--store", "path", required=True, type=click.Path(path_type=Path), help="Store to train on.")
@click.option("--site", help="Site; default: the store's only one.")
@click.option("--kind", default="topk", show_default=True)
@click.option("--k", default=32, show_default=True, help="Active latents a row.")
@click.option(
    "--width", default="8x", show_default=True, help="Latents: a number, or a multiple of d_model such as 8x."
)
@click.option("--epochs", default=2, show_default=True)
@click.option("--batch-size", default=2048, show_default=True)
@click.option(
    "--lr",
    type=float,
    default=1.5e-3,
    show_default=True,
    help="Peak learning rate; the default suits a few hundred steps.",
)
@click.option("--held-out", default=0.2, show_default=True, help="Share of the documents to measure on.")
@click.option("--seed", default=0, show_default=True)
@click.option("--out", required=True, type=click.Path(path_type=Path))
@json_option
def train(
    path: Path, site: str | None, kind: str, k: int, width: str, epochs: int, batch_size: int, lr: float, held_out: float,
    seed: int, out: Path, as_json: bool,
) -> None:  # fmt: skip
    """Train on a store and measure on documents that training never saw."""
    store = interp.open_store(path)
    if site is None and len(store.sites) > 1:
        raise click.BadParameter(f"the store has several sites: {', '.join(store.sites)}", param_hint="--site")
    site = store.sites[0] if site is None else site
    config = interp.SAEConfig(
        kind=kind,
        k=k,
        width=int(width) if width.isdigit() else width,
        epochs=epochs,
        batch_size=batch_size,
        lr=lr,
        seed=seed,
    )
    rows, held = interp.split_rows(store, held_out, seed)
    with click.progressbar(length=1000, label="training", hidden=as_json) as bar:
        model = interp.train_sae(
            store, config, site=site, rows=rows, progress=lambda done, total: bar.update(1000 * done // total - bar.pos)
        )
    model.save(out)
    show(interp.evaluate_sae(model, store, site=site, rows=held).to_frame(), as_json, title=str(out))


@click.group()
def probe() -> None:
    """Probes for a label, split by group."""


@probe.command(epilog="Example: interp probe sweep runs/demo/stores/capitals --out runs/capitals-probes")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--sites", default="resid_post:*", show_default=True)
@click.option("--kind", "kinds", multiple=True, default=("logistic", "mass_mean"), show_default=True)
@click.option("--group", help="Group column; default: the store's.")
@click.option("--seed", default=0, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), help="Also write the report to this folder.")
@json_option
def sweep(
    path: Path, sites: str, kinds: tuple[str, ...], group: str | None, seed: int, out: Path | None, as_json: bool
) -> None:
    """Fit probes at every site of a store, with nested cross-validation over groups."""
    report = interp.probe_sweep(interp.open_store(path), sites, kinds, seed=seed, groups=group)
    if out is not None:
        report.save(out)
    frame = report.to_frame()
    brief = ["site", "kind", "auroc", "low", "high", "accuracy", "brier", "n", "n_groups"]
    show(frame if as_json else frame.loc[:, brief], as_json)
    if not as_json:
        click.echo(report.summary())


@click.command(epilog="Example: interp uncertainty smollm2-135m 'The capital of France is Paris.'")
@click.argument("model")
@click.argument("text")
@json_option
def uncertainty(model: str, text: str, as_json: bool) -> None:
    """How sure MODEL was of each token of TEXT, in nats."""
    show(interp.token_uncertainty(interp.load(model), text).to_frame(), as_json)


@click.command(epilog="Example: interp calibrate answers.csv --p confidence --y right --meaning p_top")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--p", "p_column", required=True, help="Column with the probabilities.")
@click.option("--y", "y_column", required=True, help="Column with 1 and 0.")
@click.option(
    "--meaning", type=click.Choice(["p_true", "p_top"]), required=True,
    help="p_true: probability that y is 1. p_top: confidence of the answer given, and y whether it was right.",
)  # fmt: skip
@click.option("--bins", default=15, show_default=True)
@click.option("--group", help="Column whose rows belong together; intervals resample it.")
@json_option
def calibrate(
    file: Path, p_column: str, y_column: str, meaning: str, bins: int, group: str | None, as_json: bool
) -> None:
    """Calibration of the probabilities in a CSV, JSONL or Parquet file."""
    frame = interp.read_table(file, columns=[p_column, y_column, *([group] if group else [])])
    p, y = frame[p_column].to_numpy(), frame[y_column].to_numpy()
    report = interp.calibration_report(
        p_true=p if meaning == "p_true" else None, p_top=p if meaning == "p_top" else None, y=y, n_bins=bins,
        groups=frame[group].tolist() if group else None,
    )  # fmt: skip
    show(report.to_dict() if as_json else report.to_frame(), as_json)
    if not as_json:
        click.echo(report.verdict)


COMMANDS = (sites, sae, probe, uncertainty, calibrate)
