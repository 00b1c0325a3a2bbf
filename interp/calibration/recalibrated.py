"""What recalibration changes: maps fitted on one part of the rows, figures before and after on the other.

1. Groups are divided between the parts, so that no document or entity stands on both sides.
2. Each kind is fitted on the first part; one that cannot be fitted is named with its reason.
3. The second part gets a `CalibrationReport` for p as it was and for each map, and the paired difference of Brier score and
   NLL with an interval over groups. These differences judge a map: a lower ECE alone can come from a map that says the same
   for everybody.
"""

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from interp import artifact
from interp.calibration.checked import group_weights
from interp.calibration.recalibration import KINDS, Recalibration, checked, fit_recalibration, read_kind
from interp.calibration.report import CalibrationReport, calibration_report
from interp.dataset import grouped_split

FILE, FORMAT = "recalibration_report", 1
BEFORE = "none"
"""Name of the probabilities as they were, in the frame."""
FIGURES = ("ece", "ece_mass", "smooth_ece", "brier", "nll", "auroc")
GAINS = ("brier", "nll")


@dataclass(frozen=True, eq=False)
class RecalibrationReport:
    """Calibration before and after each kind of map, on rows that no map saw; made by `recalibrate`."""

    before: CalibrationReport
    """Of p as it was, on the held-out part."""
    after: dict[str, CalibrationReport] = field(repr=False)
    """Of each kind that could be fitted, on the same rows."""
    maps: dict[str, Recalibration] = field(repr=False)
    """The fitted maps."""
    changes: pd.DataFrame = field(repr=False)
    """A row for each kind: kind, brier_change, brier_low, brier_high, nll_change, nll_low, nll_high (after less before, 95 %
    interval over groups; NaN where an NLL is infinite)."""
    card: dict[str, Any] = field(repr=False)
    """n_fit, n_test, groups of each, seed, n_bins."""
    notes: tuple[str, ...] = ()
    """Kinds that could not be fitted and why, and what the maps say about themselves."""

    @property
    def meaning(self) -> str:
        """`p_true` or `p_top`."""
        return self.before.meaning

    @property
    def better(self) -> list[str]:
        """Kinds whose Brier score is lower by more than chance, the largest change first."""
        table = self.changes.loc[self.changes["brier_high"] < 0].sort_values("brier_change")
        return table["kind"].tolist()

    @property
    def verdict(self) -> str:
        """What changed, in a sentence or two."""
        held = f"on {self.before.n} held-out rows in {self.before.n_groups} groups"
        if not self.after:
            return f"No map could be fitted, so nothing changed {held}."
        if not self.better:
            return (
                f"No map changes the Brier score {self.before.brier:.4f} by more than chance {held}; "
                f"before: {self.before.verdict}"
            )
        best = self.better[0]
        row = self.changes.loc[self.changes["kind"] == best].iloc[0]
        return (
            f"{best} changes the Brier score by {row['brier_change']:+.4f} (95 % {row['brier_low']:+.4f} to "
            f"{row['brier_high']:+.4f}) {held}, ECE {self.before.ece:.3f} to {self.after[best].ece:.3f}; "
            f"lower than before by more than chance: {', '.join(self.better)}. "
            "Its figure is a little too good where it was picked as the best of several."
        )

    def to_frame(self) -> pd.DataFrame:
        """A row for p as it was ("none") and for each map: figures, the ECE's null band, changes with intervals, n."""
        rows = []
        for kind, report in {BEFORE: self.before, **self.after}.items():
            values = {name: getattr(report, name) for name in FIGURES}
            low, high = report.null_band or (None, None)
            rows.append({"kind": kind, **values, "ece_null_low": low, "ece_null_high": high})
        frame = pd.DataFrame(rows)
        frame[frame.columns[1:]] = frame[frame.columns[1:]].astype(float)
        frame = frame.merge(self.changes, on="kind", how="left")
        return frame.assign(n=self.before.n, n_groups=self.before.n_groups)

    def bins(self) -> pd.DataFrame:
        """Rows of the reliability diagrams with a column `state`, for `plot.reliability(frame, state="state")`."""
        parts = {"before": self.before, **self.after}
        return pd.concat([report.bins.assign(state=name) for name, report in parts.items()], ignore_index=True)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; `from_dict` reads it."""
        return {
            "before": self.before.to_dict(),
            "after": {kind: report.to_dict() for kind, report in self.after.items()},
            "maps": {kind: fitted.to_dict() for kind, fitted in self.maps.items()},
            "changes": artifact.records(self.changes),
            "card": self.card,
            "notes": list(self.notes),
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "RecalibrationReport":
        """The inverse of `to_dict`. ValueError for anything else."""
        try:
            changes = pd.DataFrame(values["changes"], columns=pd.Index(_COLUMNS))
            changes[changes.columns[1:]] = changes[changes.columns[1:]].astype(float)
            return cls(
                before=CalibrationReport.from_dict(values["before"]),
                after={kind: CalibrationReport.from_dict(report) for kind, report in values["after"].items()},
                maps={kind: Recalibration.from_dict(fitted) for kind, fitted in values["maps"].items()},
                changes=changes,
                card=values["card"],
                notes=tuple(values["notes"]),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"this describes no recalibration report ({error}): make it again") from None

    def save(self, path: str | os.PathLike[str]) -> Path:
        """One JSON file, whole or not at all."""
        made = {"kind": FILE, "format": FORMAT, "provenance": artifact.provenance(), "report": self.to_dict()}
        return artifact.write_json(path, made)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "RecalibrationReport":
        """Read what `save` wrote. ValueError for another kind of file or a newer format."""
        return cls.from_dict(read_kind(path, FILE, FORMAT)["report"])


_COLUMNS = ("kind", *[f"{name}_{end}" for name in GAINS for end in ("change", "low", "high")])


def recalibrate(
    *,
    p_true: Any = None,
    p_top: Any = None,
    y: Any,
    kinds: Iterable[str] | str | None = None,
    groups: Any = None,
    fractions: tuple[float, float] = (0.5, 0.5),
    seed: int = 0,
    n_bins: int = 15,
    n_classes: int | None = None,
    n_boot: int = 1000,
    n_null: int = 1000,
) -> RecalibrationReport:
    """Fit maps on one part of the groups, and say on the other what they change.

    Args:
        p_true: [n] probability that y = 1. Give this or `p_top`.
        p_top: [n] confidence in the answer that was given.
        y: [n] 0/1: the label (`p_true`), or whether the answer was right (`p_top`).
        kinds: of `KINDS`; all that mean something by default (temperature on `p_top` only with n_classes=2).
        groups: [n] which rows belong together; whole groups go to a part. Each row its own by default.
        fractions: of the rows to fit on, and to report on.
        seed: of the division and of the draws.
        n_bins: of the reports and of the histogram.
        n_classes: options that p_top was the largest of.
        n_boot: draws of the intervals; at least 1.
        n_null: draws of the null bands.

    Raises:
        ValueError: what `fit_recalibration` refuses about p, y and groups; an unknown kind; too few groups for two parts with
            both classes. A kind that has no optimum on these rows is left out with a note.
    """
    meaning, p, outcomes, codes = checked(p_true, p_top, y, groups)
    wanted = _kinds(kinds, meaning, n_classes)
    if n_boot < 1:
        raise ValueError(f"n_boot must be at least 1, got {n_boot}: without draws no change can be told from chance")
    if outcomes.min() == outcomes.max():
        raise ValueError(f"all {len(p)} values of y are {int(outcomes[0])}: there is nothing to fit; take more rows")
    try:
        fit, test = grouped_split(codes.tolist(), fractions, seed, labels=outcomes.astype(int).tolist())
    except ValueError as error:
        raise ValueError(f"{len(p)} rows in {codes.max() + 1} groups make no two parts: {error}") from None
    maps, notes = _fits(wanted, meaning, p[fit], outcomes[fit], codes[fit], n_bins, n_classes)
    held: dict[str, Any] = {"y": outcomes[test], "groups": codes[test], "n_bins": n_bins, "seed": seed}
    held |= {"n_boot": n_boot, "n_null": n_null}
    changed = {kind: fitted(p[test]) for kind, fitted in maps.items()}
    after = {kind: calibration_report(**{meaning: q}, **held) for kind, q in changed.items()}
    parts = {"fit": fit, "test": test}
    card: dict[str, Any] = {f"n_{name}": len(rows) for name, rows in parts.items()}
    card |= {f"n_groups_{name}": len(np.unique(codes[rows])) for name, rows in parts.items()}
    if card["n_groups_test"] == 1:
        notes.append(
            "no change has an interval: the part that judges is a single group, so its sampling cannot be seen"
        )
    card |= {"seed": seed, "n_bins": n_bins, "meaning": meaning, "fractions": list(fractions)}
    return RecalibrationReport(
        before=calibration_report(**{meaning: p[test]}, **held),
        after=after,
        maps=maps,
        changes=_changes(changed, p[test], outcomes[test], codes[test], n_boot, seed),
        card=card,
        notes=tuple(notes),
    )


def _kinds(kinds: Iterable[str] | str | None, meaning: str, n_classes: int | None) -> list[str]:
    if kinds is None:
        return [kind for kind in KINDS if kind != "temperature" or meaning == "p_true" or n_classes == 2]
    wanted = [kinds] if isinstance(kinds, str) else list(dict.fromkeys(kinds))
    unknown = [kind for kind in wanted if kind not in KINDS]
    if unknown or not wanted:
        raise ValueError(f"kinds must be some of {', '.join(KINDS)}, got {unknown[0] if unknown else 'none'!r}")
    return wanted


def _fits(
    kinds: list[str],
    meaning: str,
    p: Float[np.ndarray, " row"],
    y: Float[np.ndarray, " row"],
    codes: Int[np.ndarray, " row"],
    n_bins: int,
    n_classes: int | None,
) -> tuple[dict[str, Recalibration], list[str]]:
    maps, notes = {}, []
    for kind in kinds:
        given: dict[str, Any] = {meaning: p, "groups": codes, "n_bins": n_bins, "n_classes": n_classes}
        try:
            maps[kind] = fit_recalibration(y=y, kind=kind, **given)
        except ValueError as error:
            notes.append(f"{kind} could not be fitted: {error}")
            continue
        notes.extend(f"{kind}: {note}" for note in maps[kind].notes)
    return maps, notes


def _changes(
    changed: dict[str, np.ndarray],
    p: Float[np.ndarray, " row"],
    y: Float[np.ndarray, " row"],
    codes: Int[np.ndarray, " row"],
    n_boot: int,
    seed: int,
) -> pd.DataFrame:
    """Mean of each row's score after less before, with percentile intervals; all kinds share the draws of groups."""
    codes = np.unique(codes, return_inverse=True)[1]
    lines = [[kind, name] for kind in changed for name in GAINS]
    if not lines:
        return pd.DataFrame(columns=pd.Index(_COLUMNS))
    with np.errstate(invalid="ignore"):  # two infinite NLLs have no difference, and the column is NaN below
        values = np.stack([_score(name, changed[kind], y) - _score(name, p, y) for kind, name in lines], axis=1)
    values = np.where(np.isfinite(values).all(0), values, np.nan)
    one_group = codes.max() == 0
    draws = [w @ values / w.sum(1, keepdims=True) for w in group_weights(codes, n_boot, np.random.default_rng(seed))]
    ends = np.quantile(np.concatenate(draws), (0.025, 0.975), axis=0)
    found: dict[str, dict[str, Any]] = {kind: {"kind": kind} for kind in changed}
    for at, (kind, name) in enumerate(lines):
        low, high = (math.nan, math.nan) if one_group else (float(ends[0, at]), float(ends[1, at]))
        triple = {"change": float(values[:, at].mean()), "low": low, "high": high}
        found[kind] |= {f"{name}_{end}": value for end, value in triple.items()}
    return pd.DataFrame(list(found.values()), columns=pd.Index(_COLUMNS))


def _score(name: str, p: Float[np.ndarray, " row"], y: Float[np.ndarray, " row"]) -> Float[np.ndarray, " row"]:
    if name == "brier":
        return (p - y) ** 2
    with np.errstate(divide="ignore"):
        return -np.log(np.where(y == 1, p, 1 - p))
