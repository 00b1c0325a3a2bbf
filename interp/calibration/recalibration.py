"""Maps from stated to better probabilities, fitted on rows of their own: Platt, isotonic, beta, histogram, temperature.

1. `fit_recalibration` fits one map p -> q on the rows that it is given. q has p's meaning: P(y = 1) for `p_true`, the
   confidence in the answer given for `p_top`.
2. `recalibrate` divides the rows by group, fits every kind on one part and says on the other what each one changed. An
   error on the rows of the fit says nothing: isotonic regression has none there.

| kind | map | rank of p | source |
|---|---|---|---|
| platt | sigmoid(a logit p + b), a >= 0, smoothed targets | kept | Platt 1999 |
| isotonic | steps, least squares | kept, with ties | Zadrozny & Elkan 2002 |
| beta | sigmoid(a ln p - b ln(1 - p) + c), a, b >= 0 | kept | Kull et al. 2017 |
| histogram | the share of y = 1 in bins of equal mass | not kept | Zadrozny & Elkan 2001 |
| temperature | sigmoid(logit p / T), T in 0.05 .. 20 | kept | Guo et al. 2017 |

Temperature divides *logits*. Of two options they are ±logit(p) / 2, and p is enough. Of K > 2 options the softmax at T needs
all K logits: it is no function of the largest probability, and sigmoid(logit p / T) would hold 1/2 fixed, which means nothing
there. So for `p_top` it is refused unless `n_classes=2`; `fit_temperature` takes the logits themselves.
"""

import os
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from sklearn.isotonic import IsotonicRegression

from interp import artifact
from interp.calibration.checked import (
    concordant_pairs,
    group_codes,
    logistic,
    probabilities,
    same_rows,
    sigmoid,
    zero_one,
)
from interp.calibration.figures import equal_mass_bins
from interp.calibration.temperature import fit_temperature

KINDS = ("platt", "isotonic", "beta", "histogram", "temperature")
NEAREST = 1e-6
"""p nearer to 0 or 1 is taken as this far away, where a logarithm is needed."""
ISOTONIC_ROWS = 1000
"""Under so many rows isotonic regression follows the noise (Niculescu-Mizil & Caruana 2005)."""
BIN_ROWS = 20
"""Rows of a bin under which its share is hardly known."""
FILE, FORMAT = "recalibration", 1


@dataclass(frozen=True, eq=False)
class Recalibration:
    """A map from probabilities to probabilities of the same meaning; made by `fit_recalibration`."""

    kind: str
    """One of `KINDS`."""
    meaning: str
    """`p_true` or `p_top`."""
    n: int
    """Rows of the fit."""
    n_groups: int
    mean_y: float
    """Share of y = 1 in them."""
    parameters: dict[str, list[float]]
    """platt: slope, offset; beta: a, b, c; temperature: temperature; isotonic: p, q (knots, linear between); histogram:
    edges between bins, q."""
    notes: tuple[str, ...] = ()

    @property
    def monotone(self) -> bool:
        """A higher p never gets a lower q."""
        return self.kind != "histogram" or bool((np.diff(self.parameters["q"]) >= 0).all())

    @property
    def card(self) -> dict[str, Any]:
        """JSON-ready description without the parameters."""
        names = ("kind", "meaning", "n", "n_groups", "mean_y")
        return {**{name: getattr(self, name) for name in names}, "notes": list(self.notes)}

    def __call__(self, p: Any) -> Float[np.ndarray, "..."]:
        """Recalibrated probabilities of the shape of p, float64 in [0, 1].

        Raises:
            ValueError: NaN, or p outside [0, 1].
        """
        if isinstance(p, torch.Tensor):
            p = p.detach().to("cpu", torch.float64).numpy()
        shape = np.shape(p)
        if not np.size(p):
            return np.zeros(shape)
        flat = probabilities(self.meaning, np.ravel(p))
        if self.kind == "temperature" and self.meaning == "p_top" and (flat < 0.5).any():
            raise ValueError(f"p_top of two options is at least 0.5, got {flat.min():g}: {_TWO_OPTIONS}")
        return np.clip(self._map(flat), 0.0, 1.0).reshape(shape)

    def _map(self, p: Float[np.ndarray, " row"]) -> Float[np.ndarray, " row"]:
        values = {name: np.asarray(value) for name, value in self.parameters.items()}
        if self.kind == "isotonic":
            return np.interp(p, values["p"], values["q"])
        if self.kind == "histogram":
            return values["q"][np.searchsorted(values["edges"], p, side="right")]
        up, down = _logs(p)
        if self.kind == "platt":
            return sigmoid(values["slope"] * (up + down) + values["offset"])
        if self.kind == "beta":
            return sigmoid(values["a"] * up + values["b"] * down + values["c"])
        return sigmoid((up + down) / values["temperature"])

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, with the parameters; `from_dict` reads it."""
        return {**self.card, "parameters": self.parameters}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Recalibration":
        """The inverse of `to_dict`. ValueError for anything else."""
        try:
            found = cls(**{**values, "notes": tuple(values["notes"])})
        except (KeyError, TypeError) as error:
            raise ValueError(f"this describes no recalibration ({error}): fit it again") from None
        if found.kind not in KINDS:
            raise ValueError(f"the recalibration is of the kind {found.kind!r}, known are {', '.join(KINDS)}")
        return found

    def save(self, path: str | os.PathLike[str]) -> Path:
        """One JSON file, whole or not at all; `load_recalibration` reads it."""
        made = {"kind": FILE, "format": FORMAT, "provenance": artifact.provenance(), "recalibration": self.to_dict()}
        return artifact.write_json(path, made)


def load_recalibration(path: str | os.PathLike[str]) -> Recalibration:
    """Read what `Recalibration.save` wrote. ValueError for another kind of file or a newer format."""
    return Recalibration.from_dict(read_kind(path, FILE, FORMAT)["recalibration"])


def read_kind(path: str | os.PathLike[str], kind: str, newest: int) -> dict[str, Any]:
    """A JSON file that says its kind and format. ValueError for another kind, or one of a newer format."""
    found = artifact.read_json(path)
    if not isinstance(found, dict) or found.get("kind") != kind:
        raise ValueError(f"{path} holds no {kind}: load it with the function for its kind")
    if not isinstance(found.get("format"), int) or found["format"] > newest:
        raise ValueError(f"{path} has format {found.get('format')!r}, this version reads {newest}: update interp")
    return found


# --------------------------------------------------------------------------------------------------------------- fits

_TWO_OPTIONS = "it must be the larger of the two probabilities"
_UNRANKED = "p does not rank y = 1 over y = 0 in these rows: "
_CONSTANT = "the map is one constant, the share of y = 1"
Parameters = tuple[dict[str, list[float]], list[str]]


def fit_recalibration(
    *,
    p_true: Any = None,
    p_top: Any = None,
    y: Any,
    kind: str = "platt",
    groups: Any = None,
    n_bins: int = 15,
    n_classes: int | None = None,
) -> Recalibration:
    """A map from p to better probabilities. Judge it on other rows than these: `recalibrate` does both.

    Args:
        p_true: [n] probability that y = 1. Give this or `p_top`.
        p_top: [n] confidence in the answer that was given.
        y: [n] 0/1: the label (`p_true`), or whether the answer was right (`p_top`).
        kind: "platt", "isotonic", "beta", "histogram" or "temperature" (the module says what each one is).
        groups: [n] which rows belong together. They are counted: 10 documents of 1,000 tokens are 10, and a note says so.
        n_bins: of the histogram, of equal mass; equal p share a bin.
        n_classes: options that p_top was the largest of; temperature needs 2.

    Raises:
        ValueError: what `calibration_report` refuses, y of one class, an unknown kind, temperature for p_top of more than
            two options, or data without an optimum (beta and temperature where p separates y without error).
    """
    meaning, p, outcomes, codes = checked(p_true, p_top, y, groups)
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    if n_bins < 1:
        raise ValueError(f"n_bins must be at least 1, got {n_bins}")
    if outcomes.min() == outcomes.max():
        raise ValueError(f"all {len(p)} values of y are {int(outcomes[0])}: there is nothing to fit; take more rows")
    if kind == "temperature":
        _refuse_more_options(meaning, p, n_classes)
    if kind == "histogram":
        parameters, notes = _histogram(p, outcomes, n_bins)
    else:
        fits = {"platt": _platt, "isotonic": _isotonic, "beta": _beta, "temperature": _temperature}
        parameters, notes = fits[kind](p, outcomes)
    n_groups = int(codes.max()) + 1
    if n_groups < min(30, len(p)):
        notes.append(f"fitted on {n_groups} groups: rows of a group are alike, so this is little to learn a map from")
    return Recalibration(kind, meaning, len(p), n_groups, float(outcomes.mean()), parameters, tuple(notes))


def checked(p_true: Any, p_top: Any, y: Any, groups: Any) -> tuple[str, np.ndarray, np.ndarray, np.ndarray]:
    """Meaning, p, y and codes of groups."""
    if (p_true is None) == (p_top is None):
        raise ValueError("give exactly one of p_true= (probability that y = 1) and p_top= (confidence of the answer)")
    meaning = "p_true" if p_true is not None else "p_top"
    stated = p_true if p_true is not None else p_top
    p = probabilities(meaning, stated)
    same_rows(**{meaning: stated}, y=y, groups=groups)
    mend = "y is 1 where the answer was right, else 0" if meaning == "p_top" else "y is the label, 0 or 1"
    return meaning, p, zero_one("y", y, len(p), mend), group_codes(groups, len(p))


def _refuse_more_options(meaning: str, p: Float[np.ndarray, " row"], n_classes: int | None) -> None:
    if meaning == "p_true":
        return
    if n_classes != 2:
        raise ValueError(
            "temperature divides logits, and the softmax of several options at T is no function of the largest probability: "
            "use fit_temperature(logits, labels), another kind here, or n_classes=2 if there were two options"
        )
    if (p < 0.5).any():
        raise ValueError(f"p_top of two options is at least 0.5, got {p.min():g}: {_TWO_OPTIONS}")


def _platt(p: Float[np.ndarray, " row"], y: Float[np.ndarray, " row"]) -> Parameters:
    positive, negative = y.sum(), (1 - y).sum()
    target = np.where(y == 1, (positive + 1) / (positive + 2), 1 / (negative + 2))
    up, down = _logs(p)
    slope, offset = _least_nll((up + down)[:, None], target)
    return {"slope": [slope], "offset": [offset]}, _told(p, slope)


def _beta(p: Float[np.ndarray, " row"], y: Float[np.ndarray, " row"]) -> Parameters:
    if p.min() < p.max() and p[y == 0].max() <= p[y == 1].min():
        raise ValueError(
            f"p separates y = 0 from y = 1 without an error (n = {len(p)}): the likelihood of beta calibration grows without "
            "end; use kind='platt', whose targets are smoothed, or more rows"
        )
    a, b, c = _least_nll(np.stack(_logs(p), axis=1), y)
    return {"a": [a], "b": [b], "c": [c]}, _told(p, max(a, b))


def _temperature(p: Float[np.ndarray, " row"], y: Float[np.ndarray, " row"]) -> Parameters:
    up, down = _logs(p)
    logits = torch.from_numpy(np.outer(up + down, [-0.5, 0.5]))
    found = fit_temperature(logits, torch.from_numpy(y.astype(np.int64)))
    return {"temperature": [found.temperature]}, _told(p, 1.0)


def _isotonic(p: Float[np.ndarray, " row"], y: Float[np.ndarray, " row"]) -> Parameters:
    fitted = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip").fit(p, y)
    knots, q = np.asarray(fitted.X_thresholds_), np.asarray(fitted.y_thresholds_)
    notes = [f"isotonic regression on {len(p)} rows, under {ISOTONIC_ROWS:,}, follows the noise"]
    told = _unranked(p, y, q) + (notes if len(p) < ISOTONIC_ROWS else []) + _certain(q)
    return {"p": knots.tolist(), "q": q.tolist()}, told


def _histogram(p: Float[np.ndarray, " row"], y: Float[np.ndarray, " row"], n_bins: int) -> Parameters:
    _, code = np.unique(equal_mass_bins(p, n_bins), return_inverse=True)
    n = np.bincount(code)
    q = np.bincount(code, y) / n
    top = np.array([p[code == k].max() for k in range(len(n))])
    bottom = np.array([p[code == k].min() for k in range(len(n))])
    # halfway, but never onto the lower value itself, which rounding could do to neighbouring floats
    edges = np.maximum((top[:-1] + bottom[1:]) / 2, np.nextafter(top[:-1], 2.0))
    few = [f"the smallest bin holds {n.min()} rows, under {BIN_ROWS}: its share is hardly known; take fewer bins"]
    told = _unranked(p, y, q) + (few if n.min() < BIN_ROWS else []) + _certain(q)
    return {"edges": edges.tolist(), "q": q.tolist()}, told


def _unranked(p: Float[np.ndarray, " row"], y: Float[np.ndarray, " row"], q: Float[np.ndarray, " knot"]) -> list[str]:
    """A note where p ranks y = 1 no better than chance: by then these maps are flat, or fall (the histogram)."""
    right, pairs = (float(value[0]) for value in concordant_pairs(p, y, np.ones((1, len(p)))))
    if right > pairs / 2:
        return []
    falls = bool((np.diff(q) < 0).any())
    shape = "falls where p rises" if falls else "is nearly flat"
    return [_UNRANKED + (_CONSTANT if np.ptp(q) == 0 else f"its AUROC is {right / pairs:.3f} and the map {shape}")]


def _certain(q: Float[np.ndarray, " knot"]) -> list[str]:
    sure = [f"{value:.0f}" for value in (0.0, 1.0) if (q == value).any()]
    said = " and ".join(sure)
    return [
        f"it states exactly {said} where the fit saw no other outcome: one error there makes the NLL infinite"
    ] * bool(sure)


def _told(p: Float[np.ndarray, " row"], slope: float) -> list[str]:
    notes = []
    moved = int(((p < NEAREST) | (p > 1 - NEAREST)).sum())
    if moved:
        notes.append(f"{moved} of {len(p)} p lie within {NEAREST:g} of 0 or 1 and were taken as that far away")
    if slope == 0:
        notes.append(_UNRANKED + _CONSTANT)
    return notes


def _least_nll(columns: Float[np.ndarray, "row k"], target: Float[np.ndarray, " row"]) -> list[float]:
    """Weights >= 0 of the columns, and an offset, with the least mean NLL of sigmoid(columns @ weights + offset).

    The NLL is convex, so its least value under the bounds is the least one over the sets of weights that are free, of those
    whose optimum keeps the bounds.
    """
    n, k = columns.shape
    varies = np.ptp(columns, axis=0) > 0  # the deviation of equal numbers from their mean need not be 0
    best: tuple[float, list[float]] | None = None
    for free in product((True, False), repeat=k):
        chosen = np.flatnonzero(np.array(free))
        if not varies[chosen].all():
            continue
        weights = np.zeros(k + 1)
        loss, found = logistic(np.column_stack([columns[:, chosen], np.ones(n)]), target)
        weights[[*chosen, k]] = found
        if (weights[:k] >= 0).all() and (best is None or loss < best[0]):
            best = loss, weights.tolist()
    assert best is not None, "the offset alone keeps the bounds"
    return best[1]


def _logs(p: Float[np.ndarray, " row"]) -> tuple[Float[np.ndarray, " row"], Float[np.ndarray, " row"]]:
    """ln p and -ln(1 - p), both rising in p; their sum is the logit."""
    inside = np.clip(p, NEAREST, 1 - NEAREST)
    return np.log(inside), -np.log1p(-inside)
