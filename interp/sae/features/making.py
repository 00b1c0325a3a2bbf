"""What each latent fires on: one pass over a store, and the tables that are made of its sparse activations.

1. Encode the typical rows, a block of whole texts at a time, and keep what fires: (row, latent, value). With a path
   these go to the disk as they come (`activations`).
2. On the way, add up per latent: counts, sums, maximum, histograms of values and positions, and the summed activation
   of each token (`sums`).
3. Then, some latents at a time: the strongest examples and draws from each interval of the values (`examples`).
4. Which latents belong together: by decoder, and by when they fire (`neighbours`).
5. With a model, the tokens that a latent raises and lowers (`effects`).

No step loops over latents in Python, and none keeps a dense [row latent] array of more than a block.
"""

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import torch
import xxhash
from jaxtyping import Float, Int
from torch import Tensor

from interp import sites as site_names
from interp.artifact import atomic_folder, hash_json, provenance
from interp.model import HookedTransformer
from interp.sae.features.activations import (
    PART_ENTRIES,
    Activations,
    KeptActivations,
    Part,
    Rows,
    SpilledActivations,
    matrix_of,
)
from interp.sae.features.effects import effect_columns, written_directions
from interp.sae.features.examples import example_frame
from interp.sae.features.neighbours import neighbour_columns
from interp.sae.features.sums import LatentSums, position_bins
from interp.sae.features.table import FORMAT, KIND, FramesInMemory, SAEFeatures, load_sae_features, write_tables
from interp.sae.model import SAE
from interp.sae.rows import documents, row_numbers
from interp.store import Store

FEATURES_VERSION = "features-3"
"""Changes whenever the definition of a column does."""


def sae_features(
    sae: SAE,
    store: Store,
    site: str | None = None,
    *,
    rows: Any = None,
    model: HookedTransformer | None = None,
    path: str | os.PathLike[str] | None = None,
    n_examples: int = 10,
    n_intervals: int = 5,
    n_tokens: int = 5,
    n_neighbours: int = 5,
    block_rows: int = 4096,
    seed: int = 0,
) -> SAEFeatures:
    """Describe every latent by the tokens and texts on which it fires, and by the latents that it belongs to.

    Args:
        sae: the SAE, transcoder or crosscoder.
        store: activations of the sites that it reads, of every token.
        site: where it is not the one in the SAE's card.
        rows: numbers, a mask or a slice of store rows, None for all; rows that are not typical at every site that the SAE reads,
            and at those that it writes as far as the store has them, are left out in any case.
        model: adds token texts and the tokens that the latent's decoder row raises and lowers.
        path: a new folder to write everything to, the activations as they come: for stores whose activations do not fit
            into memory (16 bytes for each latent that fires in a row). What is returned reads from there.
        n_examples: strongest examples per latent, and examples drawn per interval.
        n_intervals: intervals of equal width between 0 and a latent's maximum; 0 for the strongest examples only.
        n_tokens: tokens per latent in each list.
        n_neighbours: latents per latent in each list.
        block_rows: rows to encode at a time (more where one text is longer). It does not change the result.
        seed: of the drawn examples.

    Raises:
        ValueError: no site, another width, no typical row, NaN, counts below 1, or a path that exists.
    """
    counts = {"n_examples": n_examples, "n_tokens": n_tokens, "n_neighbours": n_neighbours, "block_rows": block_rows}
    for name, value in counts.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    sae.require_raw()
    if n_intervals < 0:
        raise ValueError(f"n_intervals must be at least 0, got {n_intervals}")
    if model is not None and model.tokenizer is None:
        raise ValueError("this model has no tokenizer, so tokens have no text: leave out model=, or load it with one")
    counts |= {"n_intervals": n_intervals, "seed": seed}
    run = _Run(sae, store, _sites(sae, store, site), rows, model, counts)
    if path is None:
        kept = KeptActivations(run.rows, sae.n_latents)
        sums = run.encode(kept)
        latents, examples, card = run.tables(kept, sums)
        return SAEFeatures(FramesInMemory({"features": latents, "examples": examples}), kept, card)
    with atomic_folder(path) as folder:
        spilled = SpilledActivations(folder / "activations", run.rows, sae.n_latents)
        sums = run.encode(spilled)
        write_tables(folder, *run.tables(spilled.close(), sums))
    return load_sae_features(path)


class _Run:
    """One pass, and what is made of it."""

    def __init__(
        self,
        sae: SAE,
        store: Store,
        sites: tuple[str, ...],
        rows: Any,
        model: HookedTransformer | None,
        settings: dict[str, int],
    ) -> None:
        self.sae, self.store, self.sites, self.model, self.settings = sae, store, sites, model, settings
        self.masked_at = sites + tuple(name for name in sae.targets if name in store.sites and name not in sites)
        wanted = row_numbers(store, rows)
        typical = np.logical_and.reduce([store.typical(name) for name in self.masked_at])
        chosen = wanted[typical[wanted]]
        self.n_wanted = len(wanted)
        if len(chosen) == 0:
            where = ", ".join(self.masked_at)
            raise ValueError(
                f"none of the {len(wanted)} rows of {where} is typical: there is nothing to describe latents by"
            )
        self.rows = _rows_of_texts(store, chosen)
        self.chosen = chosen
        self.token_ids, self.token = np.unique(self.rows.of_place("token_id"), return_inverse=True)

    def encode(self, sink: KeptActivations | SpilledActivations) -> LatentSums:
        """The pass over the store."""
        sums = LatentSums(self.sae.n_latents, self.token_ids)
        position = self.rows.of_place("position")
        for part in self._parts():
            inside = slice(part.start, part.start + part.n_rows)
            sums.add(part, self.token[inside], position[inside])
            sink.add(part)
        return sums

    @torch.no_grad()
    def _parts(self) -> Iterator[Part]:
        """Blocks, joined until they have PART_ENTRIES entries."""
        values, latents, counts, start, n = [], [], [], 0, 0
        for a, b in blocks_of_texts(self.rows.of_place("text"), self.settings["block_rows"]):
            active = self.sae.active(self._read(self.chosen[a:b]))
            values.append(active.values.float().cpu().numpy())
            latents.append(active.latent.to(torch.int32).cpu().numpy())
            counts.append(active.counts.cpu().numpy())
            n += len(values[-1])
            if n >= PART_ENTRIES or b == len(self.chosen):
                joined = (np.concatenate(parts) for parts in (values, latents, counts))
                yield Part(start, matrix_of(*joined, n_latents=self.sae.n_latents))
                values, latents, counts, start, n = [], [], [], b, 0

    def _read(self, rows: Int[np.ndarray, " row"]) -> Float[Tensor, "row d_in"]:
        found = [self.store.rows(name, rows) for name in self.sites]
        x = self.sae.rows_of(found[0] if len(found) == 1 else torch.cat(found, dim=1))
        bad = (~x.isfinite().all(dim=1)).nonzero()
        if len(bad):
            raise ValueError(
                f"row {rows[int(bad[0])]} of {', '.join(self.sites)} holds NaN or infinity: leave it out by rows=, or "
                "record it again in float32"
            )
        return x.to(self.sae.W_enc.device)

    def tables(self, activations: Activations, sums: LatentSums) -> tuple[pd.DataFrame, pd.DataFrame, dict[str, Any]]:
        """The table of latents, the table of examples, and the card."""
        settings, n_rows = self.settings, len(self.chosen)
        columns = sums.columns(n_rows, settings["n_tokens"])
        columns |= neighbour_columns(self.sae, activations, sums.count, settings["n_neighbours"])
        effects, how = self._effects()
        columns |= effects
        if self.model is not None:
            columns |= _token_texts(columns, self.model)
        examples = example_frame(
            activations,
            sums.max,
            documents(self.store)[self.chosen],
            n=settings["n_examples"],
            n_intervals=settings["n_intervals"],
            seed=settings["seed"],
        )
        positions = np.bincount(position_bins(self.rows.of_place("position")), minlength=sums.positions.shape[1])
        return pd.DataFrame(columns), examples, self._card(how, positions.tolist())

    def _effects(self) -> tuple[dict[str, Any], str]:
        if self.model is None:
            return {}, "no model was given"
        # Of a crosscoder the last of its sites: what the latent has written to the stream when it is complete.
        target = self.sae.targets[-1] if self.sae.targets else self.sites[-1]
        directions, how = written_directions(self.sae, self.model, target)
        return ({} if directions is None else effect_columns(directions, self.model, self.settings["n_tokens"])), how

    def _card(self, effects: str, position_counts: list[int]) -> dict[str, Any]:
        """Everything that tells these features from others. `effects` says what the raised and lowered tokens are of, or
        why there are none; `position_counts` is the column of that name for a latent that fires everywhere."""
        return {
            "kind": KIND,
            "format": FORMAT,
            "sae": fingerprint(self.sae),
            "store": str(self.store.path),
            "store_card": hash_json(self.store.card),
            "model": self.store.model_fingerprint,
            "sites": list(self.sites),
            "typical_at": list(self.masked_at),
            "n_latents": self.sae.n_latents,
            "n_rows": len(self.chosen),
            "left_out": self.n_wanted - len(self.chosen),
            "rows": xxhash.xxh3_128_hexdigest(np.ascontiguousarray(self.chosen, dtype=np.int64).data),
            "effects": effects,
            "position_counts": position_counts,
            "settings": {name: value for name, value in self.settings.items() if name != "block_rows"},
            "features_version": FEATURES_VERSION,
            "provenance": provenance(),
        }


def fingerprint(sae: SAE) -> str:
    """A hash of an SAE's tensors and architecture: equal for equal SAEs, wherever they come from."""
    state = {name: value.detach().cpu().contiguous() for name, value in sorted(sae.state_dict().items())}
    digest = {name: _hash_of(value) for name, value in state.items()}
    return hash_json({"architecture": sae.architecture, "k": sae.k, "tensors": digest})


def check_features(features: SAEFeatures, sae: SAE) -> None:
    """ValueError for features of another SAE: their scales and examples are not of its latents."""
    if features.card["sae"] != fingerprint(sae):
        raise ValueError("these features are of another SAE: make them again with sae_features")


def _hash_of(tensor: Tensor) -> str:
    return xxhash.xxh3_128_hexdigest(tensor.flatten().view(torch.uint8).numpy().data)


def blocks_of_texts(text: Int[np.ndarray, " row"], size: int) -> Iterator[tuple[int, int]]:
    """(start, stop) of blocks of whole texts: up to `size` rows, or one longer text."""
    ends = np.append(np.flatnonzero(np.diff(text)) + 1, len(text))
    start = 0
    while start < len(text):
        at = np.searchsorted(ends, start + size, side="right") - 1
        stop = int(ends[at]) if at >= 0 and ends[at] > start else int(ends[at + 1])
        yield start, stop
        start = stop


def _sites(sae: SAE, store: Store, site: str | None) -> tuple[str, ...]:
    """Full names of what the SAE reads."""
    if site is not None and len(sae.sites) > 1:
        raise ValueError(f"the SAE reads {len(sae.sites)} sites, {', '.join(sae.sites)}: leave out site=")
    names = sae.sites if site is None else (site,)
    if not names:
        raise ValueError(f"the SAE does not say its site: give site=..., one of {', '.join(store.sites)}")
    return tuple(site_names.expand(list(names), store.sites)) if site is not None else names


def _rows_of_texts(store: Store, chosen: Int[np.ndarray, " row"]) -> Rows:
    """All rows of the texts of which some were chosen."""
    tokens = store.tokens
    text, position, token_id = (tokens[name].to_numpy() for name in ("text", "position", "token_id"))
    read = np.zeros(len(text), dtype=bool)
    read[chosen] = True
    row = np.flatnonzero(np.isin(text, np.unique(text[chosen])))
    return Rows(row, text[row], position[row], token_id[row], read[row])


def _token_texts(columns: dict[str, Any], model: HookedTransformer) -> dict[str, list[list[str]]]:
    """top_tokens, and up_tokens and down_tokens where there are such: the ids as text."""
    assert model.tokenizer is not None, "checked before the pass"
    ids = {name.removesuffix("_token_ids"): columns[name] for name in columns if name.endswith("_token_ids")}
    text = {
        token: model.tokenizer.decode([token])
        for token in {token for lists in ids.values() for each in lists for token in each}
    }
    return {f"{name}_tokens": [[text[token] for token in each] for each in lists] for name, lists in ids.items()}
