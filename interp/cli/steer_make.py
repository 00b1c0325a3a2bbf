"""Commands that find a direction: `make`, and `map`, which shows where one works before a layer is chosen."""

from pathlib import Path

import click

import interp
from interp import plot
from interp.cli.output import json_option, show
from interp.cli.shared import file_option, plot_option, read_reference, read_texts, seed_option, work_bar
from interp.cli.steer_options import Numbers, place_of, place_options
from interp.dataset import load_pairs
from interp.steer_job import VectorSpec, fit_vector
from interp.steer_job.inputs import cut
from interp.steer_job.vectors import KEPT_APART, divided, read_source
from interp.steering.methods import METHODS
from interp.steering.strength_map import StrengthMap, steering_map

_FITTED = ("pairs", "texts", "store")
"""Sources for which a site has to be chosen."""
_SELECTION = 0.25
"""Share of the pairs of a map that are measured."""
_TEXT_LENGTH = 400
"""Most characters of a text of a map."""


@click.command(
    epilog="Example: interp steer make smollm2-135m sentiment --site resid_post:12 --out sentiment.safetensors"
)
@click.argument("model")
@click.argument("data")
@click.option(
    "--site", help="A place, such as resid_post:12, or a range of layers for a vector at each: resid_post:8-12."
)
@click.option("--method", type=click.Choice(list(METHODS)), help="Default: mean_difference, and mass_mean for --heads.")
@click.option("--tokens", help="Which tokens are read: response_mean, last or answer; default: what fits DATA.")
@click.option("--C", "C", type=float, help="Strength of a logistic fit; smaller is a stronger penalty.")
@click.option("--heads", type=int, help="Of labelled texts or a store with z: this many heads in place of a site.")
@click.option("--latent", type=click.IntRange(min=0), help="Of an SAE: the latent whose direction is taken.")
@click.option(
    "--held-out",
    type=float,
    default=0.2,
    show_default=True,
    help="Share of the pairs that is kept for measuring, in groups.",
)
@click.option("--reference", help="Store, file or bundled texts that the typical norm comes from, for a probe.")
@seed_option
@file_option("--out", "File of the vector.", required=True)
@json_option
def make(
    model: str, data: str, site: str | None, method: str | None, tokens: str | None, C: float | None,
    heads: int | None, latent: int | None, held_out: float, reference: str | None, seed: int, out: Path, as_json: bool,
) -> None:  # fmt: skip
    """Make a vector of DATA.

    DATA is a bundled set or a file of contrast pairs (prompt, positive, negative) or of labelled texts (text, label), the
    folder of a store, or the file of a probe or an SAE.

    A part of the pairs is held out: `interp steer sweep --pairs` on the same set measures on that part alone.
    """
    spec = VectorSpec(
        data=data,
        site=site,
        method=method,
        tokens=tokens,
        C=C,
        heads=heads,
        latent=latent,
        held_out=held_out,
        seed=seed,
    )
    source = read_source(spec)
    if site is None and heads is None and source.kind in _FITTED:
        raise click.UsageError(
            "--site is missing: a place such as resid_post:12; interp steer map shows where it works"
        )
    if reference is not None and source.kind != "probe":
        raise click.UsageError("--reference goes with a probe; other data brings its own typical norm")
    norms = None if reference is None else read_reference(reference)
    vector = fit_vector(spec, interp.load(model), source, norms)
    vector.save(out)
    if as_json:
        show({"file": str(out), "sites": [target.site for target in vector.targets()], "card": vector.card}, as_json)
        return
    click.echo(vector.card_text())
    if KEPT_APART in vector.card:
        n = vector.card[KEPT_APART]["pairs"]
        click.echo(f"Kept apart: {n} pairs, which interp steer sweep --pairs {data} measures on")
    click.echo(f"Vector: {out}")


@click.command("map", epilog="Example: interp steer map smollm2-135m sentiment --texts python_docs --plot map.svg")
@click.argument("model")
@click.argument("data")
@click.option("--sites", default="resid_post:*", show_default=True, help="Places that are tried.")
@click.option("--strengths", type=Numbers(), default="0.05,0.1,0.2", show_default=True, help="Numbers between commas.")
@click.option("--pairs", "others", help="Pairs that are measured; default: a part of DATA.")
@click.option("--texts", help="Other text, whose rise of loss is the damage: a bundled set or a file.")
@click.option("--n-texts", type=click.IntRange(min=1), default=16, show_default=True, help="Most of these texts.")
@click.option(
    "--bound",
    type=click.FloatRange(min=0),
    default=0.06,
    show_default=True,
    help="Most rise of loss of the best cell, nats a token.",
)
@click.option(
    "--method",
    type=click.Choice(list(METHODS)),
    default="mean_difference",
    show_default=True,
    help="How directions are found.",
)
@click.option(
    "--held-out", type=float, default=0.2, show_default=True, help="Share of DATA that is not touched, as in make."
)
@place_options
@seed_option
@file_option("--out", "Also write the map to this file.")
@plot_option
@json_option
def strength_map(
    model: str, data: str, sites: str, strengths: tuple[float, ...], others: str | None, texts: str | None, n_texts: int,
    bound: float, method: str, held_out: float, where: str | None, after: str | None, seed: int, out: Path | None,
    chart: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Where and how strongly: the effect of a vector of DATA at every place and strength.

    DATA are contrast pairs. At each place a vector is fitted on one part of them and measured on another. A third part, which
    `make` holds out as well, is not touched: it is for `sweep`, for a place that was chosen looks better than it is.
    """
    source = read_source(VectorSpec(data=data, held_out=held_out, seed=seed))
    if source.kind != "pairs":
        raise click.UsageError(f"{data} holds {source.kind}, and a map is made of contrast pairs")
    fit, chosen = divided(source.data, _SELECTION, seed) if others is None else (source.data, load_pairs(others))
    given = [cut(text, _TEXT_LENGTH) for text in read_texts(texts, n_texts)] if texts is not None else []
    loaded = interp.load(model)
    with work_bar("places", hidden=as_json) as move:
        found = steering_map(
            loaded, fit, pairs=chosen, sites=sites, strengths=strengths, texts=given, method=method,
            where=place_of(where, after), seed=seed, progress=move,
        )  # fmt: skip
    if out is not None:
        found.save(out)
    if chart is not None:
        plot.save_chart(found.plot(bound if given else None), chart)
    if as_json:
        show({"card": found.card, "table": found.to_frame().to_dict("records")}, as_json)
        return
    show(found.to_frame(), as_json, title=f"fitted on {len(fit)} pairs, measured on n = {len(chosen)} others")
    if given:
        click.echo(_best(found, bound))


def _best(found: StrengthMap, bound: float) -> str:
    """The cell to try next; that none stays under the bound is an answer too."""
    try:
        best = found.best(bound)
    except ValueError as error:
        return f"No place to choose: {error}"
    return (
        f"Largest effect with a rise of loss up to {bound:g}: {best['site']} at strength {best['strength']:+g}, "
        f"{best['effect']:+.3g} nats. It was chosen: measure it on other pairs (interp steer sweep)"
    )
