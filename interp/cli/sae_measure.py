"""Commands that measure dictionaries: what they explain, what the model does with them, concepts, other seeds."""

from pathlib import Path
from typing import Any

import click

import interp
from interp.artifact import write_json
from interp.cli.output import json_option, show
from interp.cli.sae_figures import brief_figures, chosen_rows, read_sae, sae_argument, site_option, store_option
from interp.cli.shared import brief, out_option, read_texts, seed_option
from interp.sae.probing import sparse_probing
from interp.sae.stability import matched_cosine


@click.command(
    epilog="Example: interp sae evaluate sae.safetensors --store runs/corpus --model smollm2-135m --texts prose"
)
@sae_argument
@click.option("--store", "place", help="Store to measure on.")
@click.option(
    "--rows", "which", type=click.Choice(["held-out", "training", "all"]),
    help="Rows of the store; default: those that training held out, where the file knows them, else all.",
)  # fmt: skip
@click.option(
    "--held-out", type=click.FloatRange(0, 1, min_open=True, max_open=True),
    help="Share of the documents that training held out, where the file does not say it.",
)  # fmt: skip
@click.option("--split-seed", type=click.IntRange(min=0), help="Which documents these were.  [default: 0]")
@click.option("--model", help="Also put the SAE into this model, and compare the losses on --texts.")
@click.option("--texts", help="Texts that training did not see: a bundled set or a file.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(min=1), help="Most texts read.")
@site_option
@seed_option
@out_option
@json_option
def evaluate(
    sae: Path, place: str | None, which: str | None, held_out: float | None, split_seed: int | None, model: str | None,
    texts: str | None, limit: int, site: str | None, seed: int, out: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """What SAE explains of a store's rows, and what the model loses with it in place of its site."""
    if place is None and model is None:
        raise click.UsageError("give --store, or --model and --texts, or all three")
    if (model is None) != (texts is None):
        raise click.UsageError("--model and --texts go together")
    if place is None and (which is not None or held_out is not None):
        raise click.UsageError("--rows and --held-out choose rows of a --store")
    found = read_sae(sae, site=site)
    results: dict[str, Any] = {}
    if place is not None:
        store = interp.open_store(place)
        rows, what = chosen_rows(found, store, which, held_out, split_seed)
        report = interp.evaluate_sae(found, store, rows=rows, seed=seed)
        results["rows"] = {"of": what, **report.to_frame().to_dict("records")[0]}
        if not as_json:
            title = f"n = {report.n_rows:,} typical rows of {report.n_units:,} texts ({what}), {report.n_left_out:,} left out"
            show(brief_figures(report.to_frame()), as_json=False, title=f"{title}; 95 % over texts")
    if model is not None and texts is not None:
        spliced = interp.evaluate_in_model(found, interp.load(model), read_texts(texts, limit), seed=seed)
        results["in_model"] = spliced.to_frame().to_dict("records")[0]
        if not as_json:
            names = ("delta_loss", "delta_loss_low", "delta_loss_high", "kl", "recovered_zero", "recovered_mean")
            title = f"in the model: n = {spliced.n_tokens:,} tokens of {spliced.n_texts:,} texts, nats; 95 % over texts"
            show(brief(spliced.to_frame(), "loss_clean", "loss_sae", *names), as_json=False, title=title)
    if out is not None:
        write_json(out, {"kind": "sae_evaluation", "sae": str(sae), **results})
    if as_json:
        show(results, as_json=True)


@click.command(epilog="Example: interp sae probe sae.safetensors --store runs/cities")
@sae_argument
@store_option
@click.option(
    "--k", "ks", multiple=True, default=(1, 2, 5), show_default=True, type=click.IntRange(min=1), help="Latents."
)
@click.option(
    "--tokens", default="last", show_default=True, type=click.Choice(["last", "mean"]), help="Row of each text."
)
@site_option
@seed_option
@out_option
@json_option
def probe(
    sae: Path,
    store: str,
    ks: tuple[int, ...],
    tokens: str,
    site: str | None,
    seed: int,
    out: Path | None,
    as_json: bool,
) -> None:
    """How well a few latents tell the label of a store's texts, against as many dimensions and the whole activation."""
    found = sparse_probing(read_sae(sae, site=site), interp.open_store(store), ks=ks, tokens=tokens, seed=seed)
    if out is not None:
        found.save(out)
    show(found.to_frame(), as_json)
    if not as_json:
        click.echo(found.summary())


@click.command(epilog="Example: interp sae compare seed0.safetensors seed1.safetensors")
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option("--store", "place", help="Leave out latents that never fire on its rows: they are as training began.")
@seed_option
@out_option
@json_option
def compare(a: Path, b: Path, place: str | None, seed: int, out: Path | None, as_json: bool) -> None:
    """How far A and B hold the same directions: cosines of their decoder rows, matched one to one."""
    saes = [read_sae(path) for path in (a, b)]
    alive: list[Any] = [None, None]
    if place is not None:
        store = interp.open_store(place)
        alive = [(interp.sae_features(sae, store).latents["n_active"] > 0).to_numpy().copy() for sae in saes]
    match = matched_cosine(saes[0], saes[1], alive_a=alive[0], alive_b=alive[1], seed=seed)
    if out is not None:
        match.save(out)
    show(match.summary(), as_json, title="mean cosine of the pairs, and of random rotations (null)")


COMMANDS = (evaluate, probe, compare)
