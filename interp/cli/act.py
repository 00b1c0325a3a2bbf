"""Commands that act on a model."""

from pathlib import Path

import click

import interp
from interp.cli.output import json_option, show


@click.group()
def steer() -> None:
    """Steering vectors: make one, apply it."""


@steer.command(
    epilog="Example: interp steer make smollm2-135m sentiment --site resid_post:12 --out sentiment.safetensors"
)
@click.argument("model")
@click.argument("pairs")
@click.option("--site", required=True, help="One place, for example resid_post:12.")
@click.option("--out", required=True, type=click.Path(path_type=Path))
@json_option
def make(model: str, pairs: str, site: str, out: Path, as_json: bool) -> None:
    """Fit a vector from contrast PAIRS: a bundled name, or a JSONL or CSV file (prompt, positive, negative)."""
    vector = interp.steering_vector(interp.load_pairs(pairs), model=interp.load(model), site=site)
    vector.save(out)
    show(
        {
            "file": str(out),
            "site": vector.site,
            "typical norm": vector.typical_norm,
            "fitted norm": vector.raw_norm,
            **vector.card,
        },
        as_json,
    )


@steer.command(
    epilog="Example: interp steer apply smollm2-135m sentiment.safetensors 'My week has been' --strength 0.1"
)
@click.argument("model")
@click.argument("vector", type=click.Path(path_type=Path))
@click.argument("prompt")
@click.option(
    "--strength",
    "strengths",
    multiple=True,
    type=float,
    default=(-0.1, 0.1),
    show_default=True,
    help="In typical norms; may be repeated.",
)
@click.option("--tokens", "max_new_tokens", default=40, show_default=True, help="New tokens.")
@json_option
def apply(
    model: str, vector: Path, prompt: str, strengths: tuple[float, ...], max_new_tokens: int, as_json: bool
) -> None:
    """Continue PROMPT without and with the vector, greedily."""
    found = interp.load_steering_vector(vector)
    report = interp.steering_experiment(
        interp.load(model), found, [prompt], strengths=strengths, max_new_tokens=max_new_tokens
    )
    show(report.generations, as_json)


COMMANDS = (steer,)
