"""Which layer, and how strongly: the map to look at before one vector is tuned.

1. At each site a vector is fitted on the fitting pairs, all of them in one pass.
2. At each site and strength its effect is measured on the *selection* pairs, which it has not seen, and the rise of loss on
   other text.
3. `best` takes the cell with the largest effect among those whose damage stays under a bound. It was chosen, so its figure is
   too good: measure the chosen vector on a third set of pairs, by `steering_experiment`.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from interp import artifact, plot
from interp import sites as site_names
from interp.dataset import ContrastPair
from interp.intervene import Steer
from interp.intervene.place import described
from interp.model import HookedTransformer
from interp.plot import Chart
from interp.steering import figures
from interp.steering.damage import DamageTexts, damage_figures
from interp.steering.fit import steering_vectors
from interp.steering.measures import Setup
from interp.steering.measures.passes import preference_sheet, preferences
from interp.steering.runner import refuse_rows
from interp.steering.seen import refuse_seen
from interp.steering.vectors import SteeringVectors

KIND = "steering map"
COLUMNS = ("site", "layer", "strength", "effect", "low", "high", "wrong_way", "n", "loss_rise", "kl_mean")


@dataclass(frozen=True, eq=False)
class StrengthMap:
    """Effect and damage of a vector at each site and strength; made by `steering_map`."""

    table: pd.DataFrame
    """A row for each site and strength: site, layer, strength (typical norms of the site), effect (nats, on the selection
    pairs) with its 95 % interval, wrong_way, n, loss_rise (nats a token) and kl_mean."""
    vectors: SteeringVectors
    """The vectors, one a site."""
    card: dict[str, Any]
    """Provenance."""

    def to_frame(self) -> pd.DataFrame:
        """The table."""
        return self.table

    def best(self, bound: float | Any) -> pd.Series:
        """The row with the largest effect among cells that the search reaches within a bound on the rise of loss.

        At each site strengths are walked outward from 0, and the first over the bound ends the walk.

        Raises:
            ValueError: no text was given for the loss, or no cell stays under the bound.
        """
        if not self.table["loss_rise"].notna().to_numpy().any():
            raise ValueError("the damage was not measured: give texts= to steering_map")
        kept = []
        for _, rows in self.table.groupby("site", sort=False):
            grid, harm = rows["strength"].to_numpy(float), rows["loss_rise"].to_numpy(float)
            for side in (1, -1):
                if (grid * side > 0).any():
                    reached = abs(figures.largest_within(grid, harm, bound, side))
                    kept.append(rows.loc[(grid * side > 0) & (np.abs(grid) <= reached)])
        among = pd.concat(kept)
        if not len(among):
            least = float(self.table["loss_rise"].to_numpy(float).min())
            raise ValueError(
                f"no cell keeps the rise of loss within {bound}: the least is {least:.3f}. Try smaller strengths"
            )
        toward = among["effect"].to_numpy(float) * np.sign(among["strength"].to_numpy(float))
        return among.iloc[int(toward.argmax())]

    def plot(self, bound: float | None = None) -> Chart:
        """Effect over layer and strength; cells over the bound on the rise of loss are muted."""
        return plot.strength_map(self.table, bound=bound)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; what was not measured is null."""
        return {"table": artifact.records(self.table), "vectors": self.vectors.to_dict(), "card": self.card}

    def save(self, path: str | os.PathLike[str]) -> Path:
        """One JSON file; `load_strength_map` reads it."""
        return artifact.write_json(path, {"kind": KIND, "format": 1, **self.to_dict()})


def load_strength_map(path: str | os.PathLike[str]) -> StrengthMap:
    """Read what `StrengthMap.save` wrote. ValueError for another file."""
    found = artifact.read_json(path)
    if not isinstance(found, dict) or found.get("kind") != KIND:
        raise ValueError(f"{path} holds no {KIND}: load it with the function for its kind")
    table = pd.DataFrame(found["table"], columns=pd.Index(COLUMNS))
    numbers = {name: pd.to_numeric(table[name]) for name in COLUMNS if name != "site"}
    return StrengthMap(table.assign(**numbers), SteeringVectors.from_dict(found["vectors"]), found["card"])


def steering_map(
    model: HookedTransformer,
    data: object,
    *,
    pairs: Sequence[ContrastPair] | Any,
    sites: str | Sequence[str] = "resid_post:*",
    strengths: Sequence[float] | Any = (0.05, 0.1, 0.2),
    texts: Sequence[str] | Any = (),
    method: str = "mean_difference",
    tokens: str | None = None,
    where: Any = "all",
    seed: int | Any = 0,
    batch_size: int | Any = 32,
    progress: Callable[[int, int], None] | None = None,
) -> StrengthMap:
    """Fit a vector at each site, and measure it at each strength.

    Args:
        model: any decoder with a tokenizer.
        data: what the vectors are fitted on, as for `steering_vectors`.
        pairs: other pairs, on which a cell is chosen; keep a third set for the figure to report.
        sites: places of width d_model inside the blocks.
        strengths: in typical norms of each site.
        texts: other text, for the damage.
        method, tokens: as in `steering_vector`.
        where: which tokens are steered.
        seed: of intervals, and of methods that draw.
        batch_size: texts in a pass.
        progress: called with (done, total) cells.

    Raises:
        ValueError: pairs that the vectors were fitted on, a site outside the blocks, no strength but 0.
    """
    if not len(pairs):
        raise ValueError("give pairs= that the vectors are not fitted on: the map is measured there")
    grid = sorted({float(strength) for strength in strengths} - {0.0})
    if not grid:
        raise ValueError("give at least one strength that is not 0")
    vectors = steering_vectors(
        data, model=model, sites=sites, method=method, tokens=tokens, batch_size=batch_size, seed=seed
    )
    refuse_seen(vectors.parts[0].card, pairs)
    refuse_rows(where)
    layers = [_layer(vector.site) for vector in vectors]
    sheet = preference_sheet(Setup(model, layers[0], (), batch_size), pairs, layers)
    damage = DamageTexts(model, texts, layers, where, batch_size) if len(texts) else None
    base, groups = preferences(sheet, layers[0], []), [pair.group for pair in pairs]
    rows, total = [], len(vectors) * len(grid)
    for vector, layer in zip(vectors, layers):
        for strength in grid:
            steer = [Steer(vector, strength, where=where)]
            change = figures.mean_change(preferences(sheet, layer, steer), base, strength, groups=groups, seed=seed)
            row = {"site": site_names.short_name(vector.site), "layer": layer, "strength": strength, **vars(change)}
            if damage is not None:
                row |= damage_figures(damage.read(steer, layer), damage.unsteered, seed)
            rows.append(row)
            if progress is not None:
                progress(len(rows), total)
    card = artifact.provenance(
        model=model.cfg.name, fingerprint=model.fingerprint, method=method, n_pairs=len(pairs), n_texts=len(texts),
        where=described(where), seed=seed,
    )  # fmt: skip
    return StrengthMap(pd.DataFrame(rows, columns=pd.Index(COLUMNS)), vectors, card)


def _layer(site: str) -> int:
    layer = site_names.layer_of(site)
    if layer is None:
        raise ValueError(f"{site} lies outside the blocks: a map is over layers")
    return layer
