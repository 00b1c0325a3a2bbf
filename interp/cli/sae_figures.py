"""What the commands on dictionaries share: how one is read, which rows are meant, and figures beside its own."""

from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas as pd
import torch

import interp
from interp.artifact import hash_json
from interp.cli.shared import brief
from interp.sae.evaluate import pca_baseline
from interp.sae.formats import FORMATS, import_sae
from interp.sae.model import SAE
from interp.sae.rows import split_rows
from interp.store import Store

BRIEF = ("fvu", "fvu_low", "fvu_high", "l0", "l0_wanted", "dead_share", "dense_share", "cosine", "fvu_all")
"""Figures that a person sees first."""
_PCA_ROWS = 20_000
_PCA_WIDTH = 2048
"""Widest rows for which components are found in seconds."""


# ------------------------------------------------------------------------------------------------------ what is read

sae_argument = click.argument("sae", type=click.Path(path_type=Path))
store_option = click.option("--store", "store", required=True, help="Store of the activations.")
site_option = click.option("--site", help="What it reads, where its file does not say it.")


def brief_figures(frame: pd.DataFrame, *beside: str) -> pd.DataFrame:
    """The figures of a report that a person sees first, and other columns; under short names, to fit a terminal."""
    return brief(frame, "sae", *BRIEF, *beside).rename(columns={"dead_share": "dead", "dense_share": "dense"})


def read_sae(path: Path, **options: Any) -> SAE:
    """A dictionary of any known format."""
    given = {name: value for name, value in options.items() if value}
    return import_sae(path, **given)


format_choice = click.Choice(list(FORMATS))


# ------------------------------------------------------------------------------------------------------ which rows


def store_identity(store: Store) -> str:
    """What tells the texts of a store from others: a split by seed means the same rows only there."""
    return hash_json([store.card["texts"], store.n_rows])


def chosen_rows(sae: SAE, store: Store, which: str | None, held_out: float | None, seed: int | None) -> tuple[Any, str]:
    """Rows of a store, and what they are in words.

    Args:
        sae: its card says which documents its training held out.
        store: the store.
        which: "held-out", "training" or "all"; None for the held-out rows where they are known, else all.
        held_out, seed: the split, where the card does not say it.

    Raises:
        click.UsageError: a part of a split that is not known.
    """
    card = sae.card.get("split") or {}
    known = card.get("store") == store_identity(store)
    if held_out is None and known:
        held_out, seed = card["held_out"], card["seed"]
    if which == "all" or (which is None and held_out is None):
        trained = which is None and "config" in sae.card
        return None, "all rows" + ("; whether training saw them is not known" if trained else "")
    if held_out is None:
        raise click.UsageError(
            f"--rows {which}: the file does not say how these texts were divided; give --held-out and --seed"
        )
    train, held = split_rows(store, held_out, seed or 0)
    return (train, "rows of the documents that were trained on") if which == "training" else (held, "held-out rows")


# ------------------------------------------------------------------------------------------------------ beside it


def pca_columns(
    store: Store, site: str, train: Any, held: Any, l0: list[float], seed: int
) -> dict[str, list[float] | list[int]]:
    """For each L0 the FVU of as many principal components of typical rows; nothing for rows that are too wide."""
    typical = store.typical(site)
    width = int(np.prod(store.rows(site, [0]).shape[1:]))
    train, held = train[typical[train]], held[typical[held]]
    if width > _PCA_WIDTH or len(held) == 0:
        return {}
    rng = np.random.default_rng(seed)
    parts = [np.sort(rng.permutation(part)[:_PCA_ROWS]) for part in (train, held)]
    ranks = [min(width, max(1, round(each))) for each in l0]
    known, measured = (_batches(store, site, part) for part in parts)
    frame = pca_baseline(known, measured, ranks)
    found = dict(zip(frame["rank"].tolist(), frame["fvu"].tolist(), strict=True))
    return {"pca_rank": ranks, "pca_fvu": [found[rank] for rank in ranks]}


def _batches(store: Store, site: str, rows: Any) -> list[torch.Tensor]:
    return [store.rows(site, rows[start : start + 4096]) for start in range(0, len(rows), 4096)]


def read_directions(path: Path) -> Any:
    """A steering vector or a probe, as the file's card says. ValueError for anything else."""
    try:
        return interp.load_steering_vector(path)
    except ValueError as error:
        if "'probe'" not in str(error):
            raise
    return interp.load_probe(path)
