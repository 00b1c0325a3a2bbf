"""`SAEFeatures`: the tables of latents and examples with the activations behind them, in memory or in a folder."""

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pandas as pd
import pyarrow as pa

from interp.artifact import atomic_folder, read_json, write_json
from interp.model import HookedTransformer
from interp.sae.features.activations import Activations, StoredActivations, read_table
from interp.sae.features.contexts import windows

KIND = "sae features"
FORMAT = 1
"""Version of the folder's format."""
ARRAYS = ("histogram", "position_counts")
"""Columns of the table of latents that hold an array of one length; other lists are lists."""
_LATENTS_PER_GROUP = 256
_EXAMPLES_PER_GROUP = 8192


@runtime_checkable
class Frames(Protocol):
    """Where the two tables come from."""

    def read(self, name: str, latent: int | None = None) -> pd.DataFrame:
        """The table "features" or "examples"; of one latent, if asked."""
        ...


@dataclass(frozen=True, eq=False)
class FramesInMemory:
    """Both tables at hand."""

    frames: Mapping[str, pd.DataFrame]

    def read(self, name: str, latent: int | None = None) -> pd.DataFrame:
        frame = self.frames[name]
        return frame if latent is None else frame.loc[frame["latent"] == latent]


@dataclass(frozen=True)
class FramesInFolder:
    """Both tables as parquet files, of which one latent's part is read by itself."""

    folder: Path

    def read(self, name: str, latent: int | None = None) -> pd.DataFrame:
        filters = None if latent is None else [("latent", "==", latent)]
        table = read_table(self.folder / f"{name}.parquet", filters=filters)
        frame = table.to_pandas()
        for field in table.schema:
            if pa.types.is_list(field.type) and field.name not in ARRAYS:
                frame[field.name] = pd.Series(table.column(field.name).to_pylist(), index=frame.index, dtype=object)
        return frame


@dataclass(frozen=True, eq=False)
class SAEFeatures:
    """The latents of an SAE: what each fires on, what it writes, and which latents it belongs to."""

    frames: Frames
    activations: Activations
    """Which latents fire where."""
    card: Mapping[str, Any]
    """Sites, fingerprint of the SAE, store, counts, settings, versions."""

    @functools.cached_property
    def latents(self) -> pd.DataFrame:
        """A row per latent: latent, n_active (rows in which it fires), density (their share), max, mean_active;
        top_token_ids (by summed activation, strongest first), top_token_shares (of the summed activation, each) and
        top_token_share (the first of them: 1 for a latent of a single token); histogram (counts in the bins of
        HISTOGRAM_EDGES) and position_counts (in bins of powers of 2); decoder_latents and decoder_cosines (nearest by
        decoder), cofiring_latents and cofiring_phi (nearest by when they fire); unless it is a transcoder, also
        encoder_decoder_cosine. With a model also top_tokens, and, where the SAE writes to the residual stream,
        up_tokens, up_token_ids, up_values (logits), and the same for down. A latent that never fires has NaN and empty
        lists."""
        return self.frames.read("features")

    @functools.cached_property
    def examples(self) -> pd.DataFrame:
        """The strongest examples, a row each: latent, rank (0 is the strongest), text (its number in the store),
        position, token_id, value, row (its number in the store). At most one per document and latent."""
        return _strongest(self.frames.read("examples"))

    @functools.cached_property
    def interval_examples(self) -> pd.DataFrame:
        """Examples drawn from intervals of equal width between 0 and the latent's maximum; as `examples`, with interval
        (1 is the weakest). At most one per document, latent and interval; rank 0 is the strongest in its interval."""
        return _of_intervals(self.frames.read("examples"))

    @property
    def n_rows(self) -> int:
        """Typical rows that were read."""
        return self.card["n_rows"]

    @property
    def n_left_out(self) -> int:
        """Rows that were left out, for they are not typical."""
        return self.card["left_out"]

    @property
    def sites(self) -> tuple[str, ...]:
        """Full names of what the SAE reads."""
        return tuple(self.card["sites"])

    @property
    def site(self) -> str | None:
        """The one site that it reads; None where there are several."""
        return self.sites[0] if len(self.sites) == 1 else None

    def __repr__(self) -> str:
        return f"SAEFeatures({self.activations.n_latents} latents of {', '.join(self.sites)} on {self.n_rows} rows)"

    def to_frame(self) -> pd.DataFrame:
        """The row per latent."""
        return self.latents

    def latent(self, latent: int | Any) -> "LatentPage":
        """All about one latent; from a folder, only its part is read. ValueError where there is no such latent."""
        number = self.activations.number(latent)
        row = self.frames.read("features", number).iloc[0]
        examples = self.frames.read("examples", number)
        return LatentPage(number, row.to_dict(), _strongest(examples), _of_intervals(examples), self)

    def contexts(
        self, latent: int | Any, *, before: int = 10, after: int = 10, model: HookedTransformer | None = None
    ) -> pd.DataFrame:
        """The examples of a latent with the tokens around them and its activation on each.

        Args:
            latent: its number.
            before: tokens before the example's, at most; windows end where their text ends.
            after: tokens after it, at most.
            model: adds `token`, what a person sees of each token.

        Returns:
            A row per token: group (0: strongest examples, 1, 2 ...: interval of the value), rank, offset (0 is the
            example's token), row, text, position, token_id, value; 0 where the latent does not fire, NaN where the row
            was left out. ValueError for no such latent.
        """
        number = self.activations.number(latent)
        examples = self.frames.read("examples", number)
        rows = examples["row"].to_numpy()
        frame = windows(self.activations, number, rows, before=before, after=after, model=model)
        example = frame.pop("example").to_numpy()
        for place, name in enumerate(("group", "rank")):
            frame.insert(place, name, examples[name].to_numpy()[example])
        return frame

    def windows(
        self, latent: int | Any, rows: Any, *, before: int = 10, after: int = 10, model: HookedTransformer | None = None
    ) -> pd.DataFrame:
        """As `contexts`, around any rows of the store, such as some in which the latent does not fire.

        Args:
            latent: its number.
            rows: numbers of store rows, of texts that were read.
            before: tokens before each, at most.
            after: tokens after each, at most.
            model: adds `token`.

        Returns:
            As `contexts`, with `example` (place in `rows`) in place of group and rank. ValueError for no such latent or
            row.
        """
        number, wanted = self.activations.number(latent), np.atleast_1d(np.asarray(rows))
        return windows(self.activations, number, wanted, before=before, after=after, model=model)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write features.parquet, examples.parquet (both kinds of examples: `group` is 0 or the interval), activations/
        and card.json into a new folder, which `load_sae_features` reads."""
        with atomic_folder(path) as folder:
            self.activations.write(folder / "activations")
            write_tables(folder, self.frames.read("features"), self.frames.read("examples"), self.card)
        return Path(path)


@dataclass(frozen=True, eq=False)
class LatentPage:
    """All about one latent."""

    latent: int
    row: Mapping[str, Any]
    """Its row of `SAEFeatures.latents`."""
    examples: pd.DataFrame
    """Its strongest examples, as `SAEFeatures.examples`."""
    interval_examples: pd.DataFrame
    """Examples from all over its range, as `SAEFeatures.interval_examples`."""
    features: SAEFeatures
    """What it is a page of."""

    def contexts(self, *, before: int = 10, after: int = 10, model: HookedTransformer | None = None) -> pd.DataFrame:
        """As `SAEFeatures.contexts`."""
        return self.features.contexts(self.latent, before=before, after=after, model=model)


def write_tables(folder: Path, latents: pd.DataFrame, examples: pd.DataFrame, card: Mapping[str, Any]) -> None:
    """Write the two tables and the card, such that one latent is read by itself."""
    latents.to_parquet(folder / "features.parquet", index=False, row_group_size=_LATENTS_PER_GROUP)
    examples.to_parquet(folder / "examples.parquet", index=False, row_group_size=_EXAMPLES_PER_GROUP)
    write_json(folder / "card.json", card)


def load_sae_features(path: str | os.PathLike[str]) -> SAEFeatures:
    """Open a folder that `sae_features(..., path=...)` or `SAEFeatures.save` wrote; tables are read when they are asked for.

    Raises:
        ValueError: no such folder, another kind, or a newer format.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise ValueError(f"{path} is no folder: give one that sae_features wrote (interp sae features makes one)")
    card = read_json(folder / "card.json")
    if not isinstance(card, dict) or card.get("kind") != KIND:
        raise ValueError(f"{path} holds no features of an SAE: give a folder that sae_features wrote")
    if not isinstance(card.get("format"), int) or card["format"] > FORMAT:
        raise ValueError(f"{path} has format {card.get('format')!r}, newer than {FORMAT}: update interp")
    return SAEFeatures(FramesInFolder(folder), StoredActivations(folder / "activations"), card)


def _strongest(examples: pd.DataFrame) -> pd.DataFrame:
    return examples.loc[examples["group"] == 0].drop(columns="group").reset_index(drop=True)


def _of_intervals(examples: pd.DataFrame) -> pd.DataFrame:
    return examples.loc[examples["group"] > 0].rename(columns={"group": "interval"}).reset_index(drop=True)
