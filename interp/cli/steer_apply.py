"""`interp steer apply`: continue prompts under vectors, and show what was changed."""

from collections.abc import Sequence
from typing import Any

import click
import pandas as pd

import interp
from interp.cli.output import json_option, show
from interp.cli.steer_options import edit_options, place_of, vector_of
from interp.intervene import Steer
from interp.intervene.watch import watch_interventions
from interp.steering.experiment import divergence
from interp.steering.plan import STRENGTHS, USUAL
from interp.steering.vector import refuse_other_model


@click.command(
    epilog="Example: interp steer apply smollm2-135m sentiment.safetensors 'My week has been' --strength 0.1 --show-applied"
)
@click.argument("model")
@click.argument("vector", metavar="FILE[:FACTOR]")
@click.argument("prompts", nargs=-1, required=True)
@click.option(
    "--vector", "more", multiple=True, metavar="FILE[:FACTOR]", help="Another vector at the same time; may be repeated."
)
@click.option(
    "--strength", "strengths", multiple=True, type=float, help="May be repeated; default: -0.1 and 0.1, for ablate 1."
)
@edit_options
@click.option(
    "--tokens", "max_new_tokens", type=click.IntRange(min=1), default=40, show_default=True, help="New tokens."
)
@click.option("--temperature", type=click.FloatRange(min=0), default=0.0, show_default=True, help="0 is greedy.")
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of sampling; the same at each strength."
)
@click.option("--show-applied", is_flag=True, help="Also show, token by token, what was changed and by how much.")
@json_option
def apply(
    model: str, vector: str, prompts: tuple[str, ...], more: tuple[str, ...], strengths: tuple[float, ...], kind: str | None,
    unit: str | None, site: str | None, where: str | None, after: str | None, max_new_tokens: int, temperature: float, seed: int,
    show_applied: bool, as_json: bool,
) -> None:  # fmt: skip
    """Continue PROMPTS without and with a vector, side by side.

    A FACTOR behind a file scales that vector; several vectors are applied one after the other, each at the strength.
    """
    vectors = [vector_of(word) for word in (vector, *more)]
    options: dict[str, Any] = {"kind": kind or "add", "unit": unit, "site": site, "where": place_of(where, after)}
    if kind == "clamp" and not strengths:
        raise click.UsageError("--kind clamp needs --strength, the value to hold along the direction")
    wanted = strengths or USUAL.get(options["kind"], STRENGTHS)
    # Refuses what cannot be applied, before the model is loaded.
    settings = {strength: [Steer(each, strength, **options) for each in vectors] for strength in wanted}
    loaded = interp.load(model)
    for each in vectors:
        refuse_other_model(getattr(each, "card", {}), loaded)
    plain = loaded.generate(list(prompts), max_new_tokens, temperature=temperature, seed=seed)
    rows = _rows(loaded, prompts, None, plain, plain)
    applied: dict[float, Any] = {}
    for strength, steers in settings.items():
        with watch_interventions(loaded, *steers) as applied[strength]:
            found = loaded.generate(list(prompts), max_new_tokens, temperature=temperature, seed=seed)
        rows += _rows(loaded, prompts, strength, found, plain)
    frame = pd.DataFrame(rows).astype({"strength": "Float64", "first_difference": "Int64"})
    if as_json:
        tables = {f"{strength:g}": each.to_frame().to_dict("records") for strength, each in applied.items()}
        show({"generations": frame.to_dict("records"), **({"applied": tables} if show_applied else {})}, as_json)
        return
    show(frame, as_json)
    for strength, each in applied.items() if show_applied else ():
        click.echo(f"Applied at strength {strength:+g}:")
        click.echo(str(each))


def _rows(model: Any, prompts: Sequence[str], strength: float | None, found: Any, plain: Any) -> list[dict[str, Any]]:
    """A row for each continuation; first_difference counts new tokens from 0."""
    rows = []
    for prompt, now, before in zip(prompts, found.rows, plain.rows):
        first, _ = divergence(model.tokenizer, before.tokens, before.text, now.tokens, now.text)
        rows.append({"prompt": prompt, "strength": strength, "first_difference": first, "text": now.text})
    return rows
