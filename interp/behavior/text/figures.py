"""From what was read at each place to the tables of a text calibration: every figure with n, bins, null band and interval.

Rows may be grouped by what was known *before* the next token (the position, the token that was predicted, the layer): a
calibrated model is calibrated in each such group. Grouped by the token that then came it is not: of rare tokens fewer are
right than was said, whoever says it. Such groups get accuracy and NLL, and no calibration error; whether rare tokens come as
often as the model says is another question, which the table `events` answers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Int

from interp import sites as site_names
from interp.behavior.text.rows import TextRows
from interp.behavior.text.tokens import ALL_CLASSES, CLASSES, TokenClasses, band_names, band_of
from interp.bootstrap import ratio_interval
from interp.calibration import CalibrationReport, calibration_report

STATES = ("before", "after")
_SIDES = ("", "_low", "_high")
SIZES = ("n", "n_groups")
ACCURACY = tuple(f"accuracy{side}" for side in _SIDES)
ECE = tuple(f"{name}" for s in STATES for name in (f"stated_{s}", f"ece_{s}", f"ece_{s}_low", f"ece_{s}_high",
                                                     f"null_{s}_low", f"null_{s}_high"))  # fmt: skip
NLL = tuple(f"nll_{name}{side}" for name in (*STATES, "gain") for side in _SIDES)
FIT = ("temperature", "temperature_low", "temperature_high", "n_fit", "n_fit_groups")
FIGURES = (*SIZES, "n_bins", *ACCURACY, *ECE, *NLL, "note")
"""Columns of a group of rows. n (tokens), n_groups (documents); accuracy: share of tokens that the most probable one was;
stated: mean probability of the most probable one; ece: error over n_bins equal-width bins, its 95 % interval by document, and
the 95 % band of a calibrated source; nll: nats a token; nll_gain: before less after. `before` is T = 1."""
TABLES = {
    "overall": ("part", *FIT, *FIGURES),
    "layers": ("site", "layer", *FIT, *FIGURES),
    "positions": ("band", "first", "last", *FIGURES),
    "predicted": ("token_class", *FIGURES),
    "events": ("token_class", *SIZES, "n_bins", "share", "share_low", "share_high", *ECE, "note"),
    "targets": ("token_class", *SIZES, *ACCURACY, *(f"stated_{s}" for s in STATES), *NLL, "note"),
    "bins": (
        "table", "part", "state", "low", "high", "n", "confidence", "accuracy", "accuracy_low", "accuracy_high",
    ),
}  # fmt: skip
"""Name of each table -> its columns."""
WORDS = frozenset({"part", "site", "band", "token_class", "note", "table", "state"})
FEW_GROUPS = 10
"""Documents below which an interval by document is a guess."""


@dataclass(frozen=True)
class Draws:
    """How every figure is drawn."""

    n_bins: int
    n_boot: int
    n_null: int
    seed: int


@dataclass(frozen=True, eq=False)
class Said:
    """What was said of some tokens, and what came."""

    p: Mapping[str, np.ndarray]
    """State -> [row] probability; `after` is absent where there is no temperature."""
    y: np.ndarray
    """[row] bool: it came."""
    nll: Mapping[str, np.ndarray]
    """State -> [row] nats of the true token; empty for events."""
    group: Int[np.ndarray, " row"]
    """Document."""

    def of(self, rows: np.ndarray) -> "Said":
        """Some of the rows."""
        p, nll = ({state: values[rows] for state, values in found.items()} for found in (self.p, self.nll))
        return Said(p, self.y[rows], nll, self.group[rows])


def tables(
    rows: TextRows,
    classes: TokenClasses,
    read: Mapping[str, tuple[dict[str, np.ndarray], dict[str, Any]]],
    edges: Sequence[int],
    draws: Draws,
) -> tuple[dict[str, pd.DataFrame], dict[str, CalibrationReport]]:
    """All tables, and the reports of all tokens before and after.

    Args:
        rows: what was read.
        classes: of the vocabulary.
        read: result of `read_place` of the next token ("") and of each site by its full name.
        edges: of the position bands.
        draws: settings of the figures.
    """
    book = _Book(draws)
    told = rows.whole & ~rows.fits
    arrays, fit = read[""]
    said = _top(arrays, rows.group[told])
    overall = book.line("overall", "all", said, fit["note"])
    parts = {
        "overall": [{"part": "all", **_fitted(fit), **overall}],
        "layers": [_layer(book, site, found, rows) for site, found in read.items() if site],
    }
    band = band_of(rows.before[told], edges)
    names = list(enumerate(band_names(edges)))
    parts["positions"] = [
        {"band": name, "first": first, "last": last, **book.line("positions", name, said.of(band == index))}
        for index, (name, first, last) in names
        if (band == index).any()
    ]
    kind, target = classes.kind[arrays["top"]], rows.target[told]
    parts["predicted"] = [
        {"token_class": name, **book.line("predicted", name, said.of(kind == index))}
        for index, name in enumerate(CLASSES)
        if (kind == index).any()
    ]
    events = {name: classes.members(name)[target] for name in ALL_CLASSES}
    parts["events"] = [
        {"token_class": name, **book.event(name, _event(arrays, index, events[name], said.group))}
        for index, name in enumerate(ALL_CLASSES)
        if classes.members(name).any()
    ]
    parts["targets"] = [
        {"token_class": name, **book.target(said.of(came))} for name, came in events.items() if came.any()
    ]
    found: dict[str, Any] = {name: pd.DataFrame(parts[name], columns=pd.Index(TABLES[name])) for name in parts}
    found["bins"] = pd.DataFrame(book.bins, columns=pd.Index(TABLES["bins"]))
    for frame in found.values():
        for column in set(frame) - WORDS:
            frame[column] = pd.to_numeric(frame[column])
    return found, {state: book.reports["overall", "all", state] for state in said.p}


def _top(arrays: Mapping[str, np.ndarray], group: Int[np.ndarray, " row"]) -> Said:
    have = [state for state in STATES if f"p_{state}" in arrays]
    p, nll = ({state: arrays[f"{name}_{state}"] for state in have} for name in ("p", "nll"))
    return Said(p, arrays["right"], nll, group)


def _event(arrays: Mapping[str, np.ndarray], index: int, came: np.ndarray, group: Int[np.ndarray, " row"]) -> Said:
    have = [state for state in STATES if f"class_p_{state}" in arrays]
    return Said({state: arrays[f"class_p_{state}"][:, index] for state in have}, came, {}, group)


def _layer(
    book: "_Book", site: str, found: tuple[dict[str, np.ndarray], dict[str, Any]], rows: TextRows
) -> dict[str, Any]:
    arrays, fit = found
    layer, name = site_names.layer_of(site), site_names.short_name(site)
    said = _top(arrays, rows.group[rows.layered & ~rows.fits])
    line = book.line("layers", name, said, fit["note"])
    return {"site": name, "layer": -1 if layer is None else layer, **_fitted(fit), **line}


def _fitted(fit: Mapping[str, Any]) -> dict[str, Any]:
    ends = {"temperature_low": fit["low"], "temperature_high": fit["high"]}
    return {"temperature": fit["temperature"], **ends, "n_fit": fit["n_fit"], "n_fit_groups": fit["n_fit_groups"]}


class _Book:
    """Makes lines of tables, and keeps the bins behind them."""

    def __init__(self, draws: Draws) -> None:
        self.draws = draws
        self.bins: list[dict[str, Any]] = []
        self.reports: dict[tuple[str, str, str], CalibrationReport] = {}

    def line(self, table: str, part: str, said: Said, note: str = "") -> dict[str, Any]:
        """Accuracy, calibration and NLL of the most probable token."""
        reports = self._reports(table, part, said, "p_top")
        notes = [note, _few(said)]
        first = reports["before"]
        found = {**_sizes(said), "n_bins": first.n_bins, **_shares("accuracy", first), **_errors(reports)}
        return {**found, **self._nll(said), "note": "; ".join(filter(None, notes))}

    def event(self, name: str, said: Said) -> dict[str, Any]:
        """Calibration of the probability that the next token is of a class."""
        reports = self._reports("events", name, said, "p_true")
        first = reports["before"]
        found = {**_sizes(said), "n_bins": first.n_bins, **_shares("share", first), **_errors(reports)}
        return {**found, "note": _few(said)}

    def target(self, said: Said) -> dict[str, Any]:
        """Accuracy and NLL by the token that came."""
        low, high = self._mean(said.y, said.group)
        shares = {"accuracy": said.y.mean(), "accuracy_low": low, "accuracy_high": high}
        stated = {f"stated_{state}": p.mean() for state, p in said.p.items()}
        return {**_sizes(said), **shares, **stated, **self._nll(said), "note": _few(said)}

    def _reports(self, table: str, part: str, said: Said, meaning: str) -> dict[str, CalibrationReport]:
        draws = self.draws
        options: dict[str, Any] = {
            "n_bins": draws.n_bins,
            "n_boot": draws.n_boot,
            "n_null": draws.n_null,
            "seed": draws.seed,
        }
        found = {}
        for state, p in said.p.items():
            options[meaning] = p
            report = calibration_report(y=said.y, groups=said.group, **options)
            self.bins += [
                {"table": table, "part": part, "state": state, **line} for line in report.bins.to_dict("records")
            ]
            found[state] = self.reports[table, part, state] = report
        return found

    def _nll(self, said: Said) -> dict[str, Any]:
        values = dict(said.nll)
        if "after" in values:
            values["gain"] = values["before"] - values["after"]
        found = {}
        for name, each in values.items():
            low, high = self._mean(each, said.group)
            found |= {f"nll_{name}": each.mean(), f"nll_{name}_low": low, f"nll_{name}_high": high}
        return found

    def _mean(self, values: np.ndarray, group: Int[np.ndarray, " row"]) -> tuple[float, float]:
        """Ends of the interval of a mean over rows, documents drawn; NaN for one document."""
        if not self.draws.n_boot:
            return np.nan, np.nan
        codes = np.unique(group, return_inverse=True)[1]
        sums, counts = np.bincount(codes, values), np.bincount(codes)
        low, high = ratio_interval(sums, counts, self.draws.seed, self.draws.n_boot)
        return float(low), float(high)


def _sizes(said: Said) -> dict[str, int]:
    return {"n": len(said.y), "n_groups": len(np.unique(said.group))}


def _shares(name: str, report: CalibrationReport) -> dict[str, float]:
    low, high = report.intervals.get("mean_y", (np.nan, np.nan))
    return {name: report.mean_y, f"{name}_low": low, f"{name}_high": high}


def _errors(reports: Mapping[str, CalibrationReport]) -> dict[str, float]:
    found: dict[str, float] = {}
    for state, report in reports.items():
        found |= {f"stated_{state}": report.mean_p, f"ece_{state}": report.ece}
        for name, ends in ((f"ece_{state}", report.ece_interval), (f"null_{state}", report.null_band)):
            found[f"{name}_low"], found[f"{name}_high"] = ends or (np.nan, np.nan)
    return found


def _few(said: Said) -> str:
    n = len(np.unique(said.group))
    if n == 1:
        return "no interval: all tokens are of one document"
    return f"{n} documents only: the interval is a guess" if n < FEW_GROUPS else ""
