"""The tables of a finished job, for its page and for its result."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from interp.probe.fit import Probe

SHOWN = (
    "what", "kind", "auroc", "low", "high", "accuracy", "brier", "smooth_ece", "n", "n_groups", "site", "p_permuted",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class JobTables:
    """Everything that a job found; see `run_probe_job`."""

    job: dict[str, Any] = field(repr=False)
    """The specification."""
    verdict: tuple[str, ...]
    """The answer in sentences: decodable or not, beside what, used or not."""
    figures: pd.DataFrame = field(repr=False)
    """A row for each place, kind and seed: AUROC with its interval and every control."""
    selected: pd.DataFrame = field(repr=False)
    """A row for each kind and seed: the figures to quote; the place was chosen inside each training part."""
    baselines: pd.DataFrame = field(repr=False)
    """A row for each seed and baseline that needs no probe: words, length, log-likelihood, the larger class."""
    parts: pd.DataFrame = field(repr=False)
    """The selected figures by polarity, topic and other columns, a row for each kind, seed, column and value."""
    predictions: pd.DataFrame = field(repr=False)
    """Held-out predictions of the selected procedure, with the text, its label and its group."""
    probes: dict[str, Probe] = field(repr=False)
    """Kind -> the kept probe; its card quotes the nested figure."""
    card: dict[str, Any] = field(repr=False)
    """Texts, store, folds, provenance."""
    transfer: pd.DataFrame | None = field(default=None, repr=False)
    """A row for each column, kind, train set and test set; None where it was not asked for."""
    causal: pd.DataFrame | None = field(default=None, repr=False)
    """Effects of adding the direction, random ones beside it; None where it was not asked for."""
    notes: dict[str, list[str]] = field(default_factory=dict, repr=False)
    """`transfer`, `causal`: sentences about what the tables show."""

    def table(self) -> pd.DataFrame:
        """The selected figures of the first seed and, under them, what needs no probe.

        Columns: what, kind ("probe" or "baseline"), auroc, low, high, accuracy, brier, smooth_ece, n, n_groups, site,
        p_permuted.
        """
        seed = self.job["seeds"][0]
        probes = rows_where(self.selected, seed=seed).rename(columns={"kind": "what"})
        others = rows_where(self.baselines, seed=seed).rename(columns={"name": "what"})
        frame = pd.concat([probes.assign(kind="probe"), others.assign(kind="baseline")], ignore_index=True)
        return frame.loc[:, [name for name in SHOWN if name in frame]]


def rows_words(figure: Any, card: Mapping[str, Any] | None = None) -> str:
    """`80 texts in 40 groups`; where every token is a row, `508 tokens of 80 texts in 40 groups`."""
    n, n_texts = int(figure["n"]), int((card or {}).get("n_texts") or figure["n"])
    what = f"{n:,} texts" if n == n_texts else f"{n:,} tokens of {n_texts:,} texts"
    return f"{what} in {int(figure['n_groups']):,} groups"


def rows_where(frame: pd.DataFrame, **values: Any) -> pd.DataFrame:
    """The rows whose columns have these values, numbered anew."""
    keep = np.ones(len(frame), dtype=bool)
    for name, value in values.items():
        keep &= frame[name].to_numpy() == value
    return frame.take(np.flatnonzero(keep)).reset_index(drop=True)
