"""Commands that train small models."""

import math
from pathlib import Path
from typing import Any

import click

import interp
from interp.cli.output import json_option, show
from interp.train.checkpoint import require_place


def _place(ctx: click.Context, option: click.Parameter, folder: Path) -> Path:  # noqa: ARG001 (click's signature)
    """The folder of --out, made or checked before anything runs."""
    try:
        return require_place(folder)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.group("train-toy")
def train_toy() -> None:
    """Small models from scratch, to watch what they learn."""


@train_toy.command(epilog="Example: interp train-toy induction --out runs/induction")
@click.option(
    "--out",
    default="runs/induction",
    show_default=True,
    type=click.Path(path_type=Path),
    callback=_place,
    help="Folder of the checkpoints and of induction.json.",
)
@click.option("--steps", default=600, type=click.IntRange(min=1), show_default=True, help="Training steps.")
@click.option("--every", default=20, type=click.IntRange(min=1), show_default=True, help="Steps between checkpoints.")
@click.option("--seed", default=0, type=click.IntRange(min=0), show_default=True, help="Of weights and data.")
@json_option
def induction(out: Path, steps: int, every: int, seed: int, as_json: bool) -> None:
    """Watch induction heads form: attention only, two layers, random tokens that repeat; about a minute.

    Interrupted and started again it goes on where it was.
    """
    with click.progressbar(length=steps, label="training", hidden=as_json) as bar:
        toy = interp.train_induction_toy(
            out,
            score=best_heads,
            seed=seed,
            n_steps=steps,
            checkpoint_every=every,
            progress=lambda done, _all: bar.update(done - bar.pos),
        )
    toy.save(out / "induction.json")
    frame, rise, falls = toy.to_frame(), toy.rise(), toy.rise("loss_second_copy")
    if as_json:
        found = {"folder": str(out), "steepest": toy.steepest(), "rise": rise, "loss_falls": falls}
        show({**found, "checkpoints": frame.to_dict("records")}, as_json=True)
        return
    show(frame, as_json=False, title=f"checkpoints in {out}")
    last = frame.iloc[-1]
    click.echo(
        f"The induction score goes from {frame['induction'].iloc[0]:.3f} to {last['induction']:.3f} (head "
        f"{last['induction_head']}): 80 % of that between steps {rise[0]} and {rise[1]}, steepest at {toy.steepest()}; "
        f"the loss on the second copy falls between {falls[0]} and {falls[1]}."
    )


@train_toy.command(epilog="Example: interp train-toy overfit --steps 200")
@click.option("--steps", default=200, type=click.IntRange(min=1), show_default=True, help="Training steps.")
@click.option("--seed", default=0, type=click.IntRange(min=0), show_default=True, help="Of weights and data.")
@json_option
def overfit(steps: int, seed: int, as_json: bool) -> None:
    """Learn one batch by heart to a loss below 0.01: a check of model, gradients and optimizer in one."""
    cfg = interp.ModelConfig(
        n_layers=2, d_model=32, n_heads=4, d_head=8, d_mlp=64, d_vocab=64, n_ctx=32, name="overfit-toy"
    )
    batch = interp.repeated_sequences(4, cfg.n_ctx, cfg.d_vocab, seed)
    with click.progressbar(length=steps, label="training", hidden=as_json) as bar:
        result = interp.overfit_batch(
            interp.HookedTransformer(cfg, seed=seed),
            batch,
            n_steps=steps,
            progress=lambda done, _all: bar.update(done - bar.pos),
        )
    losses = [math.inf if record.loss is None else record.loss for record in result.records]
    below = next((step for step, loss in enumerate(losses, 1) if loss < 0.01), None)
    found = {"first loss": losses[0], "last loss": losses[-1], "below 0.01 at step": below, "steps": steps}
    show(found, as_json, title="one batch of 4 x 32 tokens, learnt by heart")


def best_heads(model: Any, ids: Any) -> dict[str, float | str]:
    """The best heads of a model by induction and by previous token on ids [row pos], as columns of the table."""
    scores = interp.head_scores(model, ids, bos=False)
    columns: dict[str, float | str] = {}
    for metric in ("induction", "previous_token"):
        best = scores.top(metric, 1).iloc[0]
        columns |= {metric: float(best[metric]), f"{metric}_head": f"{int(best['layer'])}.{int(best['head'])}"}
    layer, head = map(int, str(columns["induction_head"]).split("."))
    return columns | {"induction_null": float(scores.null[layer, head])}


COMMANDS = (train_toy,)
