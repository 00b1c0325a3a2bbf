"""Two jobs side by side: the difference of their AUROCs, where they judged the same texts.

1. Line up the held-out predictions of the selected procedures, kind by kind and seed by seed.
2. On the same rows: draw whole groups, with the same draws for both, and take the difference each time. What the two have
   in common, easy and hard groups, drops out, so this interval is narrower than two intervals suggest.
3. On other rows there is no such difference: the two figures stand beside each other, each with its own interval.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from interp.probe.figures import LEVEL, Resamples, auroc
from interp.probe_job.fields import rows_where
from interp.probe_job.owner import differences
from interp.probe_job.result import ProbeJobReport, load_probe_job_report

COLUMNS = (
    "kind", "seed", "auroc_a", "low_a", "high_a", "auroc_b", "low_b", "high_b", "difference", "low", "high", "n", "n_groups",
)  # fmt: skip

SAME = "the same"
_UNPAIRED = {
    "other texts": "The two judged other texts, so a difference would be one of the texts too, and none is given.",
    "other labels": "The two judged the same texts, other labels: they answer different questions, and no difference is given.",
    "other groups": "The two judged the same texts and labels in other groups, so their intervals cannot share draws, and no "
    "difference is given.",
}


@dataclass(frozen=True, eq=False)
class JobComparison:
    """Job A against job B."""

    frame: pd.DataFrame
    """A row for each kind and seed that both have: both AUROCs with their intervals; difference (A - B) with its paired
    95 % interval, n and n_groups, which are missing where the rows are not the same."""
    paired: bool
    """Whether both judged the same texts with the same labels and groups."""
    card: dict[str, Any] = field(repr=False)
    """Folders, names and models of the jobs; `differs`, the settings that are not the same; `rows_are`, whether the rows are;
    draws and seed."""

    def to_frame(self) -> pd.DataFrame:
        """The table."""
        return self.frame.copy()

    def summary(self) -> str:
        """A sentence for each row."""
        lines = [f"A is {self.card['a']}.", f"B is {self.card['b']}."]
        differs = self.card["differs"]
        lines.append(f"What differs (A -> B): {'; '.join(differs)}." if differs else "Nothing that was set differs.")
        for row in self.frame.to_dict("records"):
            both = f"{row['kind']}, seed {row['seed']}: A {_interval(row, '_a')}, B {_interval(row, '_b')}"
            if not self.paired:
                lines.append(f"{both}.")
                continue
            side = "A reads more" if row["low"] > 0 else "B reads more" if row["high"] < 0 else "no difference is shown"
            lines.append(
                f"{both}; A - B = {row['difference']:+.3f} (95 % {row['low']:+.3f} to {row['high']:+.3f}), n = {row['n']:,} in "
                f"{row['n_groups']:,} groups: {side}."
            )
        if not self.paired:
            lines.append(_UNPAIRED[self.card["rows_are"]])
        return "\n".join(lines)


def compare_probe_jobs(
    a: str | Path | ProbeJobReport, b: str | Path | ProbeJobReport, n_boot: int | Any = 1000, seed: int = 0
) -> JobComparison:
    """Set two finished jobs side by side.

    Args:
        a: folder of a job, or its report.
        b: the other one.
        n_boot: bootstrap draws of groups.
        seed: of the draws.

    Raises:
        ValueError: a job that is not finished, or no kind and seed that both have.
    """
    if not isinstance(n_boot, int) or n_boot < 100:
        raise ValueError(f"n_boot must be 100 or more, got {n_boot!r}")
    one, other = (each if isinstance(each, ProbeJobReport) else load_probe_job_report(each) for each in (a, b))
    keys = _keys(one) & _keys(other)
    if not keys:
        raise ValueError(
            f"the jobs have no kind and seed in common: {_named(one)} against {_named(other)}; fit the same kind with the same "
            "seed in both"
        )
    pairs = [(_rows(one, key), _rows(other, key)) for key in sorted(keys)]
    found = [_rows_are(*pair) for pair in pairs]
    kind_of_rows = next((each for each in found if each != SAME), SAME)
    paired = kind_of_rows == SAME
    rows = [_row(key, pair, one, other, paired, n_boot, seed) for key, pair in zip(sorted(keys), pairs, strict=True)]
    card = {
        "a": _about(a, one), "b": _about(b, other), "differs": differences(_owner(one), _owner(other)), "rows_are": kind_of_rows,
        "n_boot": n_boot, "seed": seed,
    }  # fmt: skip
    return JobComparison(pd.DataFrame(rows, columns=list(COLUMNS)), paired, card)


def _keys(report: ProbeJobReport) -> set[tuple[str, int]]:
    return {(str(kind), int(seed)) for kind, seed in zip(report.selected["kind"], report.selected["seed"])}


def _named(report: ProbeJobReport) -> str:
    return ", ".join(f"{kind} with seed {seed}" for kind, seed in sorted(_keys(report)))


def _rows(report: ProbeJobReport, key: tuple[str, int]) -> pd.DataFrame:
    frame = rows_where(report.predictions, kind=key[0], seed=key[1])
    return frame.sort_values(["text", "row"], ignore_index=True)


def _rows_are(one: pd.DataFrame, other: pd.DataFrame) -> str:
    """The same texts with the same labels, grouped alike; the groups' numbers may differ. Else what is not the same."""
    if sorted(one["text"]) != sorted(other["text"]):
        return "other texts"
    labels = [sorted(zip(each["text"], each["label"])) for each in (one, other)]
    if labels[0] != labels[1]:
        return "other labels"
    groups = pd.DataFrame({"a": one["group"], "b": other["group"]}).drop_duplicates()
    in_order = one[["text", "label"]].equals(other[["text", "label"]])
    return SAME if in_order and groups["a"].is_unique and groups["b"].is_unique else "other groups"


def _about(given: str | Path | ProbeJobReport, report: ProbeJobReport) -> str:
    folder = "" if isinstance(given, ProbeJobReport) else f"{given}, "
    return f"{folder}{report.job['name']} on {report.card['model']['name']}"


def _owner(report: ProbeJobReport) -> dict[str, Any]:
    return {"job": report.job, "texts": report.card.get("data"), "model": report.card["model"].get("fingerprint")}


def _row(
    key: tuple[str, int],
    pair: tuple[pd.DataFrame, pd.DataFrame],
    one: ProbeJobReport,
    other: ProbeJobReport,
    paired: bool,
    n_boot: int,
    seed: int,
) -> dict[str, Any]:
    kind, own_seed = key
    found: dict[str, Any] = {"kind": kind, "seed": own_seed}
    for side, report in (("a", one), ("b", other)):
        row = rows_where(report.selected, kind=kind, seed=own_seed).iloc[0]
        found |= {f"{name}_{side}": float(row[name]) for name in ("auroc", "low", "high")}
    found["difference"] = found["low"] = found["high"] = np.nan
    found["n"] = found["n_groups"] = None
    if paired:
        left, right = pair
        groups = np.unique(left["group"].to_numpy(), return_inverse=True)[1]
        y = left["label"].to_numpy()
        resamples = Resamples.of(groups, n_boot, seed)
        weight = resamples.counts[:, groups].astype(float)
        drawn = auroc(left["logit"].to_numpy(), y, weight) - auroc(right["logit"].to_numpy(), y, weight)
        low, high = np.nanquantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        found |= {"difference": found["auroc_a"] - found["auroc_b"], "low": float(low), "high": float(high)}
        found |= {"n": len(y), "n_groups": len(np.unique(groups))}
    return found


def _interval(row: dict[str, Any], side: str) -> str:
    return f"{row[f'auroc{side}']:.3f} ({row[f'low{side}']:.3f} to {row[f'high{side}']:.3f})"
