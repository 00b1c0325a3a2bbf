"""What sweeps of patches give: the metric of every patch and every pair."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy.stats import spearmanr
from torch import Tensor

from interp import artifact
from interp.plot.patching import patch_grid
from interp.task import Effect, mean_effect


@dataclass(frozen=True, eq=False)
class PatchResult:
    """The metric of every patch, on a scale whose 0 is the corrupted run and whose 1 is the clean one."""

    places: pd.DataFrame
    """What each patch replaced, a row each: layer, and pos, head, latent or part."""
    raw: Float[Tensor, "place pair"]
    """The metric itself, fp64."""
    clean: Float[Tensor, "pair"]
    """Its value in the clean run."""
    corrupted: Float[Tensor, "pair"]
    """Its value in the corrupted run."""
    labels: tuple[str, ...]
    """Tokens by position, where pos is a column of the places: as in the first pair, `…` where pairs differ."""
    card: dict[str, Any]
    """Provenance: site, metric, mode, method, pairs, model."""
    checked: pd.DataFrame | None = None
    """For estimates: places whose exact effect was computed too, with both."""

    @property
    def gap(self) -> float:
        """Mean difference between the clean and the corrupted run."""
        return float((self.clean - self.corrupted).mean())

    @property
    def effect(self) -> Effect:
        """Mean over pairs of the normalised metric, [place], with its interval."""
        return mean_effect(self.raw, self.clean, self.corrupted, self.gap, int(self.card["seed"]))

    def to_frame(self) -> pd.DataFrame:
        """A row for each patch: site, the place, token, effect, low, high (95 % over pairs; NaN for one), n."""
        effect = self.effect
        frame = self.places.copy()
        frame.insert(0, "site", self.card["site"])
        if "pos" in frame:
            frame["token"] = [self.labels[pos] for pos in frame["pos"]]
        frame["effect"], frame["low"], frame["high"], frame["n"] = effect.mean, effect.low, effect.high, effect.n
        return frame

    def top(self, n: int = 10) -> pd.DataFrame:
        """The n patches that moved the metric farthest from where it stood without them."""
        frame, start = self.to_frame(), 0.0 if self.card["mode"] == "denoise" else 1.0
        order = np.argsort(-np.abs(frame["effect"].to_numpy() - start), kind="stable")[:n]
        return frame.iloc[order].reset_index(drop=True)

    def grid(self) -> Float[np.ndarray, "layer place"]:
        """Effects by layer and by pos or head (by pos, head in turn where both are there)."""
        rows = self.places.drop(columns="layer")
        return pd.Series(self.effect.mean, pd.MultiIndex.from_frame(self.places)).unstack(list(rows.columns)).to_numpy()

    def agreement(self, other: "PatchResult") -> float:
        """Spearman's rank correlation of the effects with those of another sweep over the same places."""
        keys = list(self.places.columns)
        if set(keys) != set(other.places.columns) or self.card["mode"] != other.card["mode"]:
            raise ValueError("both sweeps must have the same kind of places and the same mode")
        both = self.to_frame().merge(other.to_frame(), on=keys)
        if len(both) < 3:
            raise ValueError(f"the sweeps share {len(both)} places; a rank correlation needs at least 3")
        return rank_agreement(both["effect_x"], both["effect_y"])

    def plot(self) -> alt.LayerChart | alt.Chart:
        """Layers down, positions or heads across. ValueError for latents, of which a grid would show nothing."""
        if "latent" in self.places:
            raise ValueError(f"a grid of {len(self.places)} latents cannot be read: .top(20) names the strongest")
        return patch_grid(self.to_frame(), mode=self.card["mode"])

    def save(self, path: str | Path) -> Path:
        """One safetensors file with a card; `load_patch_result` reads it."""
        tensors = {"raw": self.raw, "clean": self.clean, "corrupted": self.corrupted}
        checked = None if self.checked is None else _table(self.checked)
        card = {"places": _table(self.places), "labels": list(self.labels), "checked": checked}
        return artifact.save_artifact(Path(path), "patch result", tensors, self.card | card)


def load_patch_result(path: str | Path) -> PatchResult:
    """Read what `PatchResult.save` wrote."""
    tensors, card = artifact.load_artifact(Path(path), "patch result")
    checked = card.pop("checked")
    places, labels = pd.DataFrame(**card.pop("places")), tuple(card.pop("labels"))
    return PatchResult(
        places, tensors["raw"], tensors["clean"], tensors["corrupted"], labels, card,
        None if checked is None else pd.DataFrame(**checked),
    )  # fmt: skip


def _table(frame: pd.DataFrame) -> dict[str, Any]:
    """The frame as JSON that keeps the order of its columns."""
    return {"columns": list(frame.columns), "data": frame.to_numpy(object).tolist()}


def rank_agreement(first: Any, second: Any) -> float:
    """Spearman's rank correlation."""
    result: Any = spearmanr(first, second)
    return float(result.statistic)


def shared_labels(rows: list[list[str]]) -> tuple[str, ...]:
    """Tokens by position, `…` where rows differ."""
    width = max(len(row) for row in rows)
    seen = [{row[pos] for row in rows if pos < len(row)} for pos in range(width)]
    return tuple(tokens.pop() if len(tokens) == 1 else "…" for tokens in seen)
