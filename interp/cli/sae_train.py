"""`interp sae train`: one dictionary, or a sweep over the same rows, with figures on texts that training never saw."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas as pd

import interp
from interp.cli.output import json_option, show
from interp.cli.sae_figures import brief_figures, pca_columns, store_identity
from interp.cli.sae_progress import TrainingProgress
from interp.cli.sae_sweep import Pace, Places, setting_of, sweep, width_of
from interp.cli.shared import read_texts
from interp.dataset import grouped_split
from interp.sae.config import KINDS, SAEConfig
from interp.sae.live import live_rows
from interp.sae.rows import split_rows
from interp.sae.tracking import require_trackers, tracker
from interp.sae.train import train_saes
from interp.store import Store
from interp.store.lookup import find_site

_HELD_TEXTS = 200
"""Most held-out texts that the model runs over, where there is no store."""


@dataclass(frozen=True, eq=False)
class Source:
    """Where rows come from."""

    data: Any
    """A store, or live rows."""
    rows: Any
    """Of a store, the numbers of those to train on."""
    sites: list[str]
    target: str | None
    n_rows: int
    """Rows of one epoch."""
    held_texts: list[str]
    """Without a store, texts to measure on."""
    held_rows: Any
    """Of a store, the rows to measure on."""
    card: dict[str, Any]
    """How the texts were divided."""

    def held(self) -> tuple[Store, Any]:
        """A store and its rows that training did not see."""
        if isinstance(self.data, Store):
            return self.data, self.held_rows
        sites = [*self.sites, *([self.target] if self.target else [])]
        model = self.data.job.model
        return interp.record(model, self.held_texts, sites, dtype="float32", label=None, progress=False), None


_OPTIONS = (
    click.argument("place", metavar="[STORE]", required=False),
    click.option("--store", "path", help="Store to train on."),
    click.option("--model", help="Instead of a store: a model, which runs over --texts while the training goes on."),
    click.option("--texts", help="Texts for --model: a bundled set or a file."),
    click.option("--site", "sites", multiple=True, help="What is read; default: the store's only site. Several: crosscoder."),
    click.option("--target", help="What is written, for a transcoder."),
    click.option("--kind", "kinds", multiple=True, default=("topk",), show_default=True, type=click.Choice(list(KINDS))),
    click.option("--k", multiple=True, type=click.IntRange(min=1), help="Active latents a row, topk kinds.  [default: 32]"),
    click.option(
        "--width", "widths", multiple=True, default=("8x",), show_default=True,
        help="Latents: a number, or a multiple of d_model such as 8x.",
    ),
    click.option("--l0", multiple=True, type=float, help="Active latents a row that jumprelu aims at.  [default: 32]"),
    click.option("--l1", multiple=True, type=float, help="Weight of the L1 penalty of gated and standard.  [default: 4]"),
    click.option(
        "--lr", multiple=True, type=float,
        help="Peak learning rate.  [default: by the number of latents and steps]",
    ),
    click.option("--epochs", type=click.IntRange(min=1), help="Times over the rows.  [default: 2, from a million rows on 1]"),
    click.option(
        "--batch-size", type=click.IntRange(min=1), help="Rows a step.  [default: 4,096, less where steps would be few]"
    ),
    click.option("--autocast", is_flag=True, help="Choose the active latents in bfloat16; the rest stays float32."),
    click.option("--skip", is_flag=True, help="A linear path beside the latents, for a transcoder."),
    click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="Any other choice of the configuration."),
    click.option(
        "--held-out", default=0.2, show_default=True, type=click.FloatRange(0, 1, min_open=True, max_open=True),
        help="Share of the documents to measure on.",
    ),
    click.option("--split-seed", default=0, show_default=True, type=click.IntRange(min=0), help="Which documents they are."),
    click.option(
        "--seed", "seeds", multiple=True, default=(0,), show_default=True, type=click.IntRange(min=0),
        help="Of the initial weights; the first one also of the order of the rows.",
    ),
    click.option("--out", required=True, type=click.Path(path_type=Path), help="File; a sweep takes a folder too."),
    click.option("--force", is_flag=True, help="Overwrite what is at --out."),
    click.option("--restart", is_flag=True, help="Begin anew, where a stopped run left a checkpoint."),
    click.option("--tensorboard", type=click.Path(file_okay=False), help="Folder for TensorBoard's event files."),
    click.option("--wandb", help="Project in Weights & Biases."),
    json_option,
)  # fmt: skip


def _with_options(command: Any) -> Any:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command(epilog="Example: interp sae train --store runs/corpus --site resid_post:10 --k 32 --out sae.safetensors")
@_with_options
def train(
    place: str | None, path: str | None, model: str | None, texts: str | None, sites: tuple[str, ...], target: str | None,
    out: Path, force: bool, restart: bool, tensorboard: str | None, wandb: str | None, held_out: float, split_seed: int,
    as_json: bool, **choices: Any,
) -> None:  # fmt: skip
    """Train on a store, or on what a model computes, and measure on documents that training never saw.

    --k, --width, --kind, --l0, --l1, --lr and --seed may be given several times: all combinations are trained in one
    pass over the rows. A run that was stopped goes on when the same command is given again. Started by
    `torchrun --nproc-per-node N -m interp sae train ...`, N processes share the rows.
    """
    names = list(
        _configs(choices, Pace.of(1, 1, 1))
    )  # what is wrong with the choices is said before the model is loaded
    places = Places.of(out, names)
    places.check(force=force)
    require_trackers(tensorboard, wandb)
    source = _source(place, path, model, texts, sites, target, held_out, split_seed)
    pace = Pace.of(source.n_rows, choices["epochs"], choices["batch_size"])
    configs = _configs(choices, pace)
    leads = int(os.environ.get("RANK", "0")) == 0  # torchrun's number of this process: the first one speaks and writes
    if leads and not as_json:
        click.echo(_announcement(source, pace, configs), err=True)
    if leads:
        places.prepare(restart=restart)
    saes = _run(source, configs, places, leads=leads, quiet=as_json or not leads, trackers=(tensorboard, wandb))
    if not leads:
        return
    for sae, file in zip(saes, places.saes.values(), strict=True):
        sae.card["split"] = source.card
        sae.save(file)
    places.checkpoint.unlink(missing_ok=True)
    frame = _figures(saes, places, source, split_seed)
    show(frame if as_json else brief_figures(frame, "pca_rank", "pca_fvu"), as_json, title=_title(places, frame))


def _configs(choices: dict[str, Any], pace: Pace) -> dict[str, SAEConfig]:
    swept = {
        "width": [width_of(word) for word in choices["widths"]],
        **{name: choices[name] for name in ("k", "l0", "l1", "lr")},
        "seed": choices["seeds"],
    }
    common: dict[str, Any] = {"epochs": pace.epochs, "batch_size": pace.batch_size}
    common |= {name: True for name in ("autocast", "skip") if choices[name]}
    settings = dict(map(setting_of, choices["settings"]))
    if taken := sorted(set(settings) & {*swept, *common, "kind"}):
        raise click.BadParameter(f"{', '.join(taken)} has an option of its own", param_hint="--set")
    return sweep(choices["kinds"], swept, {**common, **settings})


def _source(
    place: str | None, path: str | None, model: str | None, texts: str | None, sites: Sequence[str], target: str | None,
    held_out: float, seed: int,
) -> Source:  # fmt: skip
    if sum(each is not None for each in (place, path, model)) != 1 or (model is None) != (texts is None):
        raise click.UsageError("give a store, or --model and --texts: one of the two")
    if model is None:
        return _of_store(interp.open_store(path or place or ""), sites, target, held_out, seed)
    if not sites:
        raise click.UsageError("--site is missing: say what is read, such as resid_post:10")
    given = read_texts(str(texts))
    train, held = grouped_split(given, (1 - held_out, held_out), seed)
    rows = live_rows(interp.load(model), [given[i] for i in train], list(sites), target=target)
    card = {"held_out": held_out, "seed": seed, "texts": len(given)}
    held_texts = [given[i] for i in held[:_HELD_TEXTS]]
    written = rows.targets[0] if target is not None else None
    return Source(rows, None, list(rows.sites), written, rows.n_rows, held_texts, None, card)


def _of_store(store: Store, sites: Sequence[str], target: str | None, held_out: float, seed: int) -> Source:
    written = None if target is None else find_site(target, store.sites)
    read = [find_site(name, store.sites) for name in sites] or [name for name in store.sites if name != written]
    if not sites and len(read) != 1:
        raise click.BadParameter(f"the store has several sites: {', '.join(store.sites)}", param_hint="--site")
    train, held = split_rows(store, held_out, seed)
    typical = np.logical_and.reduce([store.typical(name) for name in {*read, *([written] if written else [])}])
    n_rows = int(np.count_nonzero(typical[train]))
    if n_rows == 0:
        raise click.BadParameter(f"none of the {len(train)} rows is typical: there is nothing to train on")
    card = {"held_out": held_out, "seed": seed, "store": store_identity(store)}
    return Source(store, train, read, written, n_rows, [], held, card)


def _announcement(source: Source, pace: Pace, configs: dict[str, SAEConfig]) -> str:
    where = ", ".join(source.sites) + (f" -> {source.target}" if source.target else "")
    rates = sorted({config.lr for config in configs.values() if config.lr is not None})
    lr = ", ".join(f"{rate:g}" for rate in rates) or "by the configuration's rule"
    what = "1 dictionary" if len(configs) == 1 else f"{len(configs)} dictionaries"
    return (
        f"{what} on {where}: {source.n_rows:,} rows, {pace.epochs} epoch{'s' * (pace.epochs > 1)} in batches of "
        f"{pace.batch_size:,}, about {pace.n_steps:,} steps; learning rate {lr}"
    )


def _run(
    source: Source, configs: dict[str, SAEConfig], places: Places, *, leads: bool, quiet: bool,
    trackers: tuple[str | None, str | None],
) -> list["interp.SAE"]:  # fmt: skip
    names, first = list(configs), next(iter(configs.values()))
    table = TrainingProgress(names, first.batch_size, quiet=quiet)
    with _saying_where_it_stopped(places, table, leads=leads), contextlib.ExitStack() as stack:
        tensorboard, wandb = trackers if leads else (None, None)
        track = stack.enter_context(
            tracker(
                tensorboard, wandb, configs=list(configs.values()), names=names, run_name=places.log.name.split(".")[0]
            )
        )
        stack.enter_context(table)

        def on_metrics(line: dict[str, Any]) -> None:
            track(line)
            table.metrics(line)

        return train_saes(
            source.data, list(configs.values()), target=source.target, rows=source.rows, progress=table.step,
            site=source.sites if len(source.sites) > 1 else source.sites[0], checkpoint=places.checkpoint,
            log=places.log, on_metrics=on_metrics,
        )  # fmt: skip


@contextlib.contextmanager
def _saying_where_it_stopped(places: Places, table: TrainingProgress, *, leads: bool) -> Iterator[None]:
    """One line on a run that was stopped with a checkpoint, in place of a general one; the status is the signal's."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as error:
        if not places.checkpoint.exists():
            raise
        if leads:
            click.echo(
                f"stopped at {table.place}; the checkpoint is {places.checkpoint}; the same command goes on", err=True
            )
        code = 130 if isinstance(error, KeyboardInterrupt) else int(error.code or 0)
        raise click.exceptions.Exit(code) from None


def _figures(saes: Sequence["interp.SAE"], places: Places, source: Source, seed: int) -> pd.DataFrame:
    store, rows = source.held()
    frames = []
    for sae, (name, file) in zip(saes, places.saes.items(), strict=True):
        frame = interp.evaluate_sae(sae, store, rows=rows).to_frame()
        frame.insert(0, "sae", name if len(saes) > 1 else file.name)
        frame.insert(1, "file", str(file))
        frames.append(frame)
    frame = pd.concat(frames, ignore_index=True)
    if source.rows is None or len(source.sites) > 1 or source.target is not None:
        return frame
    return frame.assign(**pca_columns(store, source.sites[0], source.rows, rows, frame["l0"].tolist(), seed))


def _title(places: Places, frame: pd.DataFrame) -> str:
    n, units = int(frame["n_rows"].iloc[0]), int(frame["n_units"].iloc[0])
    title = f"{' '.join(map(str, places.saes.values()))}; n = {n:,} held-out rows of {units:,} texts, 95 % over texts"
    beside = "; pca_fvu: of as many principal components as latents are active"
    return title + (beside if "pca_fvu" in frame else "")
