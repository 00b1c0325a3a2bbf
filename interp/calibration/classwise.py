"""Calibration of every class of a choice, not only of the top one: is what is given 0.1 right one time in ten?

1. Of probabilities [n, class] and labels, the error of each class on its own: its column of probabilities against whether
   that class came, over bins of equal mass and of equal width.
2. *ACE* is the mean of the former over classes (Nixon et al. 2019, "adaptive calibration error"), *SCE* of the latter
   ("static"). Equal probabilities stay in one bin, so where there are ties a bin counts by its rows. Note that a library may
   call something else ACE: an unweighted mean over equal-width bins of the top label is Neumann et al. 2018's.
3. Null bands draw a label for each row from its own probabilities, all classes together; intervals draw rows or groups.

With many classes most columns are close to 0 nearly everywhere, and both errors shrink like 1 / classes whatever the model
does: they compare models on one task, not tasks with each other.
"""

import dataclasses
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse
import torch
from jaxtyping import Float, Int

from interp import artifact
from interp.calibration.checked import group_codes, same_rows, vector
from interp.calibration.figures import CHUNK, Interval, band, equal_mass_bins, equal_width_bins
from interp.calibration.ordering import group_draws
from interp.calibration.report import CalibrationReport, calibration_report

REPORT, FORMAT = "classwise_calibration", 1
SUM_OFF = 1e-3
"""How far from 1 a row of probabilities may sum: what half precision makes of it."""
CLASS_COLUMNS = ("class", "n", "share", "mean_p", "ece", "ece_mass", "null_low", "null_high")


@dataclass(frozen=True)
class ClasswiseCalibration:
    """Calibration of all classes; made by `classwise_calibration`."""

    n: int
    n_groups: int
    n_bins: int
    n_classes: int
    accuracy: float
    """Share of rows whose most probable class is the label; of equally probable ones the first counts."""
    ace: float
    """Mean over classes of the calibration error over bins of equal mass, [0, 1]."""
    sce: float
    """The same over bins of equal width."""
    nll: float
    """-log p(label), nats a row; infinite where a label had probability 0."""
    brier: float
    """Sum over classes of (p - [label])^2, mean over rows, [0, 2]: twice the binary score where there are two classes."""
    top: CalibrationReport
    """Calibration of the most probable class, `p_top`."""
    classes: pd.DataFrame = field(compare=False)
    """class, n and share (rows with that label), mean_p, ece, ece_mass, and the null band of ece_mass (null_low, null_high).
    Of calibrated classes one in twenty lies outside its band."""
    intervals: dict[str, Interval] = field(hash=False)
    """95 % bootstrap intervals of ace, sce, nll, brier and accuracy; those of the errors are mirrored, as `ece_interval`."""
    null_bands: dict[str, Interval] = field(hash=False)
    """Two-sided 95 % bands of ace and sce for a calibrated source with these probabilities."""
    notes: tuple[str, ...] = ()
    """What could not be computed, and why."""

    @property
    def says_miscalibrated(self) -> bool:
        """ACE lies above its null band.

        Raises:
            ValueError: made with n_null=0.
        """
        if "ace" not in self.null_bands:
            raise ValueError("this report has no null band: make it with n_null=1000")
        return self.ace > self.null_bands["ace"][1]

    @property
    def verdict(self) -> str:
        """One plain sentence or two."""
        head = f"ACE {self.ace:.4f} ({self.n_classes} classes, {self.n_bins} bins of equal mass, n = {self.n})"
        if "ace" not in self.null_bands:
            return f"{head}; no null band was computed, so it cannot be told from noise."
        low, high = self.null_bands["ace"]
        where = f"the 95 % band {low:.4f}-{high:.4f} of a calibrated source"
        if self.says_miscalibrated:
            return f"{head} lies above {where}: miscalibrated."
        if self.ace < low:
            return f"{head} lies below {where}: closer than chance allows. Look for rows that repeat."
        return f"{head} lies inside {where}: no sign of miscalibration. An error under {high:.4f} would not show here."

    def to_frame(self) -> pd.DataFrame:
        """A row per figure: figure, value, low, high, null_low, null_high, n, n_groups, n_bins, n_classes."""
        nothing = (math.nan, math.nan)
        rows = [
            (name, getattr(self, name), *self.intervals.get(name, nothing), *self.null_bands.get(name, nothing))
            for name in ("ace", "sce", "nll", "brier", "accuracy")
        ]
        frame = pd.DataFrame(rows, columns=pd.Index(["figure", "value", "low", "high", "null_low", "null_high"]))
        return frame.assign(n=self.n, n_groups=self.n_groups, n_bins=self.n_bins, n_classes=self.n_classes)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dictionary (an infinite NLL is the string "inf"); `from_dict` reads it back."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        values["top"], values["classes"] = self.top.to_dict(), artifact.records(self.classes)
        for name in ("intervals", "null_bands"):
            values[name] = {key: list(ends) for key, ends in values[name].items()}
        return values | {"notes": list(self.notes), "nll": self.nll if math.isfinite(self.nll) else "inf"}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "ClasswiseCalibration":
        """The inverse of `to_dict`.

        Raises:
            ValueError: missing or unknown keys.
        """
        known = {f.name for f in dataclasses.fields(cls)}
        if set(values) != known:
            raise ValueError(f"not a classwise calibration: missing or unknown keys {sorted(set(values) ^ known)}")
        rest = dict(values)
        rest["top"] = CalibrationReport.from_dict(rest["top"])
        frame = pd.DataFrame(rest["classes"], columns=pd.Index(CLASS_COLUMNS))
        rest["classes"] = frame.astype({"null_low": float, "null_high": float})
        for name in ("intervals", "null_bands"):
            rest[name] = {key: (ends[0], ends[1]) for key, ends in rest[name].items()}
        rest["notes"], rest["nll"] = tuple(rest["notes"]), float(rest["nll"])
        return cls(**rest)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write one JSON file, atomically."""
        card = {"kind": REPORT, "format": FORMAT, "provenance": artifact.provenance(), "report": self.to_dict()}
        return artifact.write_json(path, card)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "ClasswiseCalibration":
        """Read what `save` wrote. ValueError for another kind of file, or one of a newer format."""
        card = artifact.read_json(path)
        if not isinstance(card, dict) or card.get("kind") != REPORT:
            raise ValueError(f"{path} holds no classwise calibration")
        if card.get("format") != FORMAT:
            raise ValueError(f"{path} has format {card.get('format')!r}, this version reads {FORMAT}: update interp")
        return cls.from_dict(card["report"])


def classwise_calibration(
    *,
    probabilities: Any,
    labels: Any,
    classes: Sequence[str] | None = None,
    n_bins: int = 15,
    groups: Any = None,
    n_boot: int = 1000,
    n_null: int = 1000,
    seed: int = 0,
) -> ClasswiseCalibration:
    """Calibration of a choice between classes: of each of them, and of the top one.

    Args:
        probabilities: [n, class] rows that sum to 1, within 0.001.
        labels: [n] index of the class that came.
        classes: names of the classes, their numbers by default.
        n_bins: bins of each class. A bin is [low, high), the last one is closed.
        groups: [n] which rows belong together; the bootstrap then draws groups.
        n_boot: bootstrap draws; 0 for no intervals.
        n_null: draws of the null; 0 for no bands.
        seed: of the draws.

    Raises:
        ValueError: shapes that do not fit, NaN, p outside [0, 1], rows that do not sum to 1, a label that is no class.
    """
    same_rows(probabilities=probabilities, labels=labels, groups=groups)
    p, label = _checked(probabilities, labels)
    n, n_classes = p.shape
    codes = group_codes(groups, n)
    names = [str(k) for k in range(n_classes)] if classes is None else [str(name) for name in classes]
    if len(names) != n_classes or len(set(names)) < n_classes:
        raise ValueError(f"give {n_classes} different names of classes, one for each column, got {names}")
    top, best = p.max(1), p.argmax(1)
    report = calibration_report(
        p_top=top, y=best == label, n_bins=n_bins, groups=codes, n_boot=n_boot, n_null=n_null, seed=seed
    )
    boot_rng, null_rng = np.random.default_rng([seed, 1]).spawn(2)
    cells = {"ace": _Cells.of(p, n_bins, equal_mass_bins), "sce": _Cells.of(p, n_bins, equal_width_bins)}
    by_class = {name: each.errors(each.counts(label[None]), n)[0] for name, each in cells.items()}
    with np.errstate(divide="ignore"):
        nll = -np.log(p[np.arange(n), label])
    means = {
        "nll": nll,
        "brier": ((p - np.eye(n_classes)[label]) ** 2).sum(1),
        "accuracy": (best == label).astype(float),
    }
    point = {name: float(each.mean()) for name, each in (by_class | means).items()}
    null_bands, of_classes = _null(p, cells, n_null, null_rng)
    n_groups, tied = int(codes.max()) + 1, int(((p == top[:, None]).sum(1) > 1).sum())
    notes = _notes(n, tied, point["nll"], no_intervals=n_groups == 1 and n_boot > 0)
    counts = np.bincount(label, minlength=n_classes)
    columns = (names, counts, counts / n, p.mean(0), by_class["sce"], by_class["ace"], *of_classes)
    intervals = {}
    if n_boot and n_groups > 1:
        intervals = _intervals(label, cells, means, codes, n_boot, int(boot_rng.integers(2**31)), point, null_bands)
    return ClasswiseCalibration(
        n=n, n_groups=n_groups, n_bins=n_bins, n_classes=n_classes, **point, top=report, intervals=intervals,
        classes=pd.DataFrame(dict(zip(CLASS_COLUMNS, columns))), null_bands=null_bands, notes=notes,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------------------ pieces


@dataclass(frozen=True, eq=False)
class _Cells:
    """Bins of every class: cell k * n_bins + b is bin b of class k."""

    cell: Int[np.ndarray, "row class"]
    """Where each row stands in each class."""
    stated: Float[np.ndarray, " cell"]
    """Sum of p."""
    p: Float[np.ndarray, "row class"]
    n_bins: int

    @classmethod
    def of(cls, p: Float[np.ndarray, "row class"], n_bins: int, bins: Any) -> "_Cells":
        """Bins by a rule of `figures`, of each column on its own."""
        n_classes = p.shape[1]
        cell = np.stack([k * n_bins + bins(p[:, k], n_bins) for k in range(n_classes)], axis=1)
        return cls(cell, np.bincount(cell.ravel(), p.ravel(), minlength=n_classes * n_bins), p, n_bins)

    def counts(self, labels: Int[np.ndarray, "draw row"]) -> Float[np.ndarray, "draw cell"]:
        """How often the class came in each of its bins, for several sets of labels."""
        cells = self.cell[np.arange(len(self.cell)), labels] + len(self.stated) * np.arange(len(labels))[:, None]
        found = np.bincount(cells.ravel(), minlength=len(labels) * len(self.stated))
        return found.reshape(len(labels), -1).astype(float)

    def errors(self, came: Float[np.ndarray, "draw cell"], n: float) -> Float[np.ndarray, "draw class"]:
        """Calibration error of each class."""
        return np.abs(came - self.stated).reshape(len(came), -1, self.n_bins).sum(2) / n

    def residuals(self, labels: Int[np.ndarray, " row"], member: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
        """Sums of [label] - p of each group in each cell."""
        n, n_classes = self.p.shape
        values = (np.eye(n_classes)[labels] - self.p).ravel()
        rows = np.repeat(np.arange(n), n_classes)
        whole = scipy.sparse.coo_array((values, (rows, self.cell.ravel())), shape=(n, len(self.stated)))
        return scipy.sparse.csr_array(member @ whole.tocsr())


def _null(
    p: Float[np.ndarray, "row class"], cells: dict[str, _Cells], n_draws: int, rng: np.random.Generator
) -> tuple[dict[str, Interval], tuple[np.ndarray, np.ndarray]]:
    """Bands of ace and sce, and ends of the band of each class, for labels drawn from the rows of p."""
    n, n_classes = p.shape
    if n_draws == 0:
        return {}, (np.full(n_classes, math.nan), np.full(n_classes, math.nan))
    # Only here are rows made to sum to 1: elsewhere the rounding of a division would part equal probabilities.
    edges = np.cumsum(p / p.sum(1, keepdims=True), axis=1)[:, :-1]
    found: dict[str, list[np.ndarray]] = {name: [] for name in cells}
    for size in _sizes(n_draws, n * n_classes):
        drawn = (rng.random((size, n, 1)) >= edges).sum(2)
        for name, each in cells.items():
            found[name].append(each.errors(each.counts(drawn), n))
    draws = {name: np.concatenate(parts) for name, parts in found.items()}
    each_class = np.array([band(column) for column in draws["ace"].T])
    return {name: band(each.mean(1)) for name, each in draws.items()}, (each_class[:, 0], each_class[:, 1])


def _intervals(
    labels: Int[np.ndarray, " row"],
    cells: dict[str, _Cells],
    means: dict[str, Float[np.ndarray, " row"]],
    codes: Int[np.ndarray, " row"],
    n_boot: int,
    seed: int,
    point: dict[str, float],
    null_bands: dict[str, Interval],
) -> dict[str, Interval]:
    """Bootstrap over groups: percentiles of the means, the errors mirrored, and from 0 where the null band holds them."""
    n_groups = int(codes.max()) + 1
    shape = (n_groups, len(codes))
    member = scipy.sparse.csr_array((np.ones(len(codes)), (codes, np.arange(len(codes)))), shape=shape)
    counts, sizes = group_draws(n_groups, n_boot, seed), member @ np.ones(len(codes))
    drawn: dict[str, np.ndarray] = {}
    total = counts @ sizes
    for name, values in means.items():
        if np.isfinite(values).all():
            drawn[name] = counts @ (member @ values) / total
    for name, each in cells.items():
        residuals, n_classes = each.residuals(labels, member), each.p.shape[1]
        parts, start = [], 0
        for size in _sizes(n_boot, len(each.stated)):
            sums = counts[start : start + size] @ residuals
            parts.append(np.abs(sums).sum(1) / total[start : start + size] / n_classes)
            start += size
        drawn[name] = np.concatenate(parts)
    intervals = {}
    for name, values in drawn.items():
        low, high = (float(end) for end in np.quantile(values, (0.025, 0.975)))
        if name in cells:
            low, high = max(2 * point[name] - high, 0.0), max(2 * point[name] - low, 0.0)
            low = 0.0 if name in null_bands and point[name] <= null_bands[name][1] else low
        intervals[name] = (low, high)
    return intervals


def _checked(probabilities: Any, labels: Any) -> tuple[Float[np.ndarray, "row class"], Int[np.ndarray, " row"]]:
    """Rows that sum to 1, and classes."""
    if isinstance(probabilities, torch.Tensor):
        probabilities = probabilities.detach().to("cpu", torch.float64).numpy()
    try:
        p = np.asarray(probabilities, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"probabilities must be numbers [n, class] ({error})") from None
    if p.ndim != 2 or p.shape[0] < 1 or p.shape[1] < 2:
        raise ValueError(
            f"probabilities must be of shape [n, class] with two classes or more, got {p.shape}; of one number a row "
            "make a calibration_report"
        )
    flat = vector("probabilities", p.ravel())
    sums = p.sum(1)
    odd = (flat < 0).any() or (flat > 1).any()
    off = int(np.abs(sums - 1).argmax())
    if odd or abs(sums[off] - 1) > SUM_OFF:
        raise ValueError(
            f"each row of probabilities must lie in [0, 1] and sum to 1, row {off} sums to {sums[off]:.4g}: pass a softmax over "
            "all classes, not logits or a part of the classes"
        )
    label = vector("labels", labels)
    if len(label) != len(p):
        raise ValueError(
            f"there are {len(p)} rows of probabilities and {len(label)} labels: give one label for each row"
        )
    wrong = np.flatnonzero((label != np.floor(label)) | (label < 0) | (label >= p.shape[1]))
    if len(wrong):
        raise ValueError(f"labels must be 0..{p.shape[1] - 1}, row {wrong[0]} is {label[wrong[0]]:g}")
    return p, label.astype(np.int64)


def _notes(n: int, tied: int, nll: float, *, no_intervals: bool) -> tuple[str, ...]:
    """What could not be computed, and why."""
    notes = []
    if no_intervals:
        notes.append("no intervals: there is one group only, so its sampling cannot be seen")
    if not math.isfinite(nll):
        notes.append("nll is infinite: a label had a probability of exactly 0")
    if tied:
        notes.append(f"in {tied} of {n} rows two classes are equally probable: the first one counts as the top")
    return tuple(notes)


def _sizes(n_draws: int, width: int) -> Iterator[int]:
    """Sizes of chunks of draws."""
    size = max(1, CHUNK // width)
    for start in range(0, n_draws, size):
        yield min(size, n_draws - start)
