"""How far two dictionaries hold the same directions: an SAE and one of another seed, or an SAE and a planted truth.

1. Rows of both decoders get length 1; C is the matrix of their cosines.
2. `matched`: the one-to-one assignment with the largest sum of cosines (Hungarian method). No direction is counted twice,
   so a dictionary that holds one direction many times does not look complete.
3. `max`: for each direction the nearest one of the other dictionary, both ways; this is the mean max cosine similarity of
   Sharkey et al. 2022, and forgives doubles. It is high one way and low the other where one dictionary is a part.
4. The null: one dictionary is turned by a random rotation. In few dimensions, or with many directions, strangers match by
   chance as well; a figure means nothing but beside this one.

The sign counts, in contrast to the matched |correlation| of independent components: a latent is never negative, so a
direction and its opposite are two features. Paulo and Belrose 2025 (https://arxiv.org/abs/2501.16615) match the same way,
and call a latent shared from a cosine of 0.7 on.

The assignment of 4,608 latents to 4,608 takes seconds, and grows with their third power.
"""

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Float32, Int64
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from interp.artifact import load_artifact, provenance, save_artifact
from interp.sae.evaluate import METRIC_VERSION
from interp.sae.model import SAE

SHARED = 0.7
"""Cosine from which a direction counts as found in the other dictionary."""


@dataclass(frozen=True, eq=False)
class DictionaryMatch:
    """Two dictionaries side by side."""

    latent_a: Int64[Tensor, " pair"]
    """Directions of the first that have a partner (all, where it is not the larger), ascending."""
    latent_b: Int64[Tensor, " pair"]
    """Their partners."""
    cosine: Float32[Tensor, " pair"]
    """Cosine of each pair."""
    kept_a: Int64[Tensor, " kept_a"] = field(repr=False)
    """Directions of the first that took part."""
    kept_b: Int64[Tensor, " kept_b"] = field(repr=False)
    max_a: Float32[Tensor, " kept_a"] = field(repr=False)
    """Cosine of each of `kept_a` to the nearest direction of the second."""
    max_b: Float32[Tensor, " kept_b"] = field(repr=False)
    """The other way."""
    null_matched: Float32[Tensor, " rotation"]
    """Mean matched cosine after each random rotation."""
    null_max: Float32[Tensor, " rotation"]
    """Mean cosine to the nearest direction, of the first dictionary, after each."""
    card: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def mean_matched(self) -> float:
        """Mean cosine of the pairs (MCC): 1 for the same dictionary in any order."""
        return self.cosine.double().mean().item()

    @property
    def mean_max_a(self) -> float:
        """Mean over the first dictionary of the cosine to the nearest direction of the second."""
        return self.max_a.double().mean().item()

    @property
    def mean_max_b(self) -> float:
        """The other way."""
        return self.max_b.double().mean().item()

    def share_above(self, cosine: float = SHARED) -> float:
        """Share of the pairs that are at least this near."""
        return (self.cosine >= cosine).double().mean().item()

    def to_frame(self) -> pd.DataFrame:
        """A row per pair: latent_a, latent_b, cosine, max_a and max_b (to the nearest of the other dictionary)."""
        at_a = torch.searchsorted(self.kept_a, self.latent_a)
        at_b = torch.searchsorted(self.kept_b, self.latent_b)
        columns = {
            "latent_a": self.latent_a,
            "latent_b": self.latent_b,
            "cosine": self.cosine,
            "max_a": self.max_a[at_a],
            "max_b": self.max_b[at_b],
        }
        return pd.DataFrame({name: column.numpy() for name, column in columns.items()})

    def summary(self) -> pd.DataFrame:
        """One row: mean_matched, share_0.7, share_0.9, mean_max_a, mean_max_b, null_matched, null_max (means over the
        rotations), n_pairs, n_a, n_b."""
        figures = {
            "mean_matched": self.mean_matched,
            "share_0.7": self.share_above(0.7),
            "share_0.9": self.share_above(0.9),
            "mean_max_a": self.mean_max_a,
            "mean_max_b": self.mean_max_b,
            "null_matched": self.null_matched.double().mean().item(),
            "null_max": self.null_max.double().mean().item(),
            "n_pairs": len(self.cosine),
            "n_a": len(self.kept_a),
            "n_b": len(self.kept_b),
        }
        return pd.DataFrame([figures])

    def save(self, path: str | os.PathLike[str]) -> Path:
        """One safetensors file with a card; `load_dictionary_match` reads it."""
        return save_artifact(path, "dictionary_match", {name: getattr(self, name) for name in _TENSORS}, self.card)


_TENSORS = ("latent_a", "latent_b", "cosine", "kept_a", "kept_b", "max_a", "max_b", "null_matched", "null_max")


def load_dictionary_match(path: str | os.PathLike[str]) -> DictionaryMatch:
    """Read what `DictionaryMatch.save` wrote. ValueError for any other file."""
    tensors, card = load_artifact(path, "dictionary_match")
    if set(tensors) != set(_TENSORS):
        raise ValueError(f"{path} is not a whole match of dictionaries: make it again")
    own = {key: value for key, value in card.items() if key not in ("kind", "format")}
    return DictionaryMatch(**tensors, card=own)


def matched_cosine(
    a: SAE | Any, b: SAE | Any, *, alive_a: Any = None, alive_b: Any = None, n_null: int | Any = 1, seed: int = 0
) -> DictionaryMatch:
    """Match the decoder directions of two dictionaries one to one, and say how near the partners are.

    Args:
        a: an SAE, or directions [latent d], of any length but 0.
        b: likewise.
        alive_a: which directions of the first take part: a mask or numbers, None for all. Dead latents keep the
            directions that they started with, and SAEs of one seed share those.
        alive_b: the same for the second.
        n_null: random rotations for the null; each costs as much as the match itself.
        seed: of the rotations.

    Raises:
        ValueError: something else than dictionaries of one width, directions that are zero, NaN or infinite, no direction
            that takes part, or no rotation.
    """
    if not isinstance(n_null, int) or n_null < 1:
        raise ValueError(f"the null takes at least one rotation, got n_null={n_null!r}")
    kept_a, unit_a = _directions(a, alive_a, "a")
    kept_b, unit_b = _directions(b, alive_b, "b")
    if unit_a.shape[1] != unit_b.shape[1]:
        raise ValueError(f"directions of width {unit_a.shape[1]} and {unit_b.shape[1]} are not of one space")
    cosines = unit_a @ unit_b.T
    rows, columns = _assignment(cosines)
    rng = np.random.default_rng(seed)
    null = []
    for _ in range(n_null):
        turned = unit_a @ _rotation(unit_a.shape[1], rng) @ unit_b.T
        null.append((turned[_assignment(turned)].mean(), turned.amax(1).mean()))
    null_matched, null_max = torch.tensor(null, dtype=torch.float32).T
    card = {
        "a": _card_of(a),
        "b": _card_of(b),
        "n_null": n_null,
        "metric_version": METRIC_VERSION,
        "provenance": provenance(seed=seed),
    }
    return DictionaryMatch(
        latent_a=kept_a[rows],
        latent_b=kept_b[columns],
        cosine=cosines[rows, columns],
        kept_a=kept_a,
        kept_b=kept_b,
        max_a=cosines.amax(1),
        max_b=cosines.amax(0),
        null_matched=null_matched,
        null_max=null_max,
        card=card,
    )


def seed_stability(saes: Sequence[SAE] | Any, *, alive: Sequence[Any] | None = None, seed: int = 0) -> pd.DataFrame:
    """`matched_cosine` of every pair of SAEs that differ in their seed alone.

    Args:
        saes: at least two, of one configuration, place and set of rows, as far as their cards say; what differs otherwise is
            compared by `matched_cosine`.
        alive: which latents of each take part, None for all.
        seed: of the rotations for the null.

    Returns:
        A row per pair: a, b (numbers in the list), then the columns of `DictionaryMatch.summary`. Of s SAEs only s - 1
        pairs are independent of each other.

    Raises:
        ValueError: fewer than two SAEs, one that stands twice, SAEs that differ in more than the seed, another number of
            masks, and what `matched_cosine` refuses.
    """
    if isinstance(saes, SAE) or len(saes) < 2:
        raise ValueError(f"stability compares at least two SAEs, got {1 if isinstance(saes, SAE) else len(saes)}")
    masks = [None] * len(saes) if alive is None else list(alive)
    if len(masks) != len(saes):
        raise ValueError(f"there are {len(masks)} masks of live latents for {len(saes)} SAEs")
    _require_seeds(saes)
    found = []
    for i, j in itertools.combinations(range(len(saes)), 2):
        match = matched_cosine(saes[i], saes[j], alive_a=masks[i], alive_b=masks[j], seed=seed)
        found.append(pd.concat([pd.DataFrame({"a": [i], "b": [j]}), match.summary()], axis=1))
    return pd.concat(found, ignore_index=True)


def _require_seeds(saes: Sequence[Any]) -> None:
    """ValueError where SAEs differ in more than their seed, or one is another's copy."""
    if odd := [each for each in saes if not isinstance(each, SAE)]:
        raise ValueError(f"seed_stability takes SAEs, got {type(odd[0]).__name__}: for directions see matched_cosine")
    first, *others = map(_setting, saes)
    for number, other in enumerate(others, 1):
        differ = [name for name in first | other if first.get(name) != other.get(name)]
        if differ:
            pairs = "; ".join(f"{name} {first.get(name)!r} and {other.get(name)!r}" for name in differ)
            raise ValueError(
                f"SAEs 0 and {number} differ in more than their seed: {pairs}. matched_cosine compares such"
            )
    for (i, a), (j, b) in itertools.combinations(enumerate(saes), 2):
        if a is b or torch.equal(a.W_dec.cpu(), b.W_dec.cpu()):
            raise ValueError(f"SAEs {i} and {j} are the same one: give SAEs of different seeds")


_OF_NO_EFFECT = ("seed", "log_every", "checkpoint_every")
"""Choices of a training that may differ between seeds."""


def _setting(sae: SAE) -> dict[str, Any]:
    """All that two seeds of one training share, as far as the card says."""
    config = {name: value for name, value in (sae.card.get("config") or {}).items() if name not in _OF_NO_EFFECT}
    what = {
        name: getattr(sae, name) for name in ("architecture", "k", "n_latents", "d_in", "d_out", "sites", "targets")
    }
    # Of rows that a model makes while training goes on, the order decides which are outliers, and what the scale is.
    rows = ("model",) if "live" in sae.card else ("model", "n_rows", "n_steps", "left_out", "scales", "split")
    return {**config, **what, **{name: sae.card.get(name) for name in rows}}


def _directions(source: Any, alive: Any, name: str) -> tuple[Int64[Tensor, " kept"], Float[Tensor, "kept d"]]:
    """Numbers and unit rows of what takes part, on the CPU."""
    W = source.W_dec if isinstance(source, SAE) else source
    if not isinstance(W, Tensor) or W.ndim != 2 or not W.is_floating_point():
        raise ValueError(f"{name} is an SAE or a float tensor [latent d] of directions, got {type(source).__name__}")
    W = W.detach().cpu().float()
    kept = torch.arange(len(W))
    if alive is not None:
        # A copy: torch warns of arrays that must not be written to.
        chosen = alive.cpu() if isinstance(alive, Tensor) else torch.as_tensor(np.array(alive))
        if chosen.dtype == torch.bool and chosen.shape != kept.shape:
            raise ValueError(f"alive_{name} has the shape {list(chosen.shape)} for {len(W)} directions")
        kept = kept[chosen].unique()
    norms = W[kept].norm(dim=1)
    bad = kept[~(norms.isfinite() & (norms > 0))]
    if len(bad):
        raise ValueError(
            f"{len(bad)} directions of {name} are zero, NaN or infinite (the first is {int(bad[0])}): leave them out with "
            f"alive_{name}="
        )
    if len(kept) == 0:
        raise ValueError(f"no direction of {name} takes part")
    return kept, W[kept] / norms[:, None]


def _assignment(cosines: Float[Tensor, "a b"]) -> tuple[Int64[Tensor, " pair"], Int64[Tensor, " pair"]]:
    rows, columns = linear_sum_assignment(cosines.numpy(), maximize=True)
    return torch.from_numpy(rows), torch.from_numpy(columns)


def _rotation(d: int, rng: np.random.Generator) -> Float32[Tensor, "d d"]:
    """Uniform among the orthogonal matrices: Q of a normal matrix, with the signs that make it unique."""
    q, r = np.linalg.qr(rng.standard_normal((d, d)))
    return torch.from_numpy((q * np.sign(np.diag(r))).astype(np.float32))


def _card_of(source: Any) -> dict[str, Any]:
    if not isinstance(source, SAE):
        return {"directions": len(source)}
    seed = (source.card.get("config") or {}).get("seed")
    return {
        "directions": source.n_latents,
        "sites": list(source.sites),
        "model": source.card.get("model"),
        "seed": seed,
    }
