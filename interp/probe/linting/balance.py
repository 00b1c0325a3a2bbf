"""How the labels are spread: over the whole set, over topics and polarities, over the rows of the file."""

import math

import numpy as np

from interp.probe.linting.findings import Finding
from interp.probe.linting.table import Table

PARTS = ("topic", "polarity", "language", "split")
"""Columns whose values are parts of a set."""
_WHOLE, _PART = (0.4, 0.6), (0.35, 0.65)
"""Shares of true rows that are balanced: in the set, and in a part of at least `_LEAST` rows."""
_LEAST = 20
_FAR = 4.0  # standard deviations of the number of runs that are no accident


def find_imbalance(table: Table) -> list[Finding]:
    """No labels, one class, a larger class, parts with a larger class, and an order that tells the label."""
    if table.y is None:
        effect = "No probe can be fitted, and only the texts were looked at here."
        mend = (
            f"The columns are {', '.join(map(str, table.frame.columns))}: name the one with the labels (label=..., or --label on "
            "the command line), or add one of 0 and 1."
        )
        return [Finding("no_labels", "error", "The set has no labels.", len(table.texts), effect, mend)]
    if not table.both and table.strange:
        return []  # the other label may be among those that could not be read, which has been said
    if not table.both:
        word, n = ("true" if table.y[0] else "false"), len(table.texts)
        mend = "Add rows of the other label."
        return [
            Finding("one_class", "error", f"All {n:,} labels are {word}.", n, "There is nothing to tell apart.", mend)
        ]
    findings = []
    share = float(table.y.mean())
    if not _WHOLE[0] <= share <= _WHOLE[1]:
        larger = max(share, 1 - share)
        findings.append(
            Finding(
                code="unbalanced_labels",
                severity="warning",
                what=f"{table.y.sum():,} of {len(table.y):,} rows are true, a share of {share:.2f}.",
                count=round(larger * len(table.y)),
                effect=f"Always saying {'true' if share > 0.5 else 'false'} has an accuracy of {larger:.3f}; the AUROC "
                "does not change with the shares, the threshold and the Brier score do.",
                mend="Read the accuracy beside the majority's, or take as many rows of each label.",
                figures={"share_true": share, "majority_accuracy": larger},
            )
        )
    return findings + _parts(table) + _order(table)


def _parts(table: Table) -> list[Finding]:
    assert table.y is not None
    findings = []
    for name in PARTS:
        if name not in table.frame:
            continue
        values, codes = np.unique([str(value) for value in table.frame[name]], return_inverse=True)
        if not 2 <= len(values) <= len(table.texts) / _LEAST:
            continue
        sizes = np.bincount(codes)
        shares = np.bincount(codes, weights=table.y) / sizes
        skewed = np.flatnonzero((sizes >= _LEAST) & ((shares < _PART[0]) | (shares > _PART[1])))
        if not len(skewed):
            continue
        found = table.fitted(f"the {name} alone", texts=[f"value{code}" for code in codes])
        alone = "" if found is None else f" The {name} alone tells the label with AUROC {found.auroc:.3f} (95 % "
        alone += (
            "" if found is None else f"{found.low:.3f} to {found.high:.3f}): a probe that reads it seems to read truth."
        )
        some = ", ".join(f"{values[i]} {shares[i]:.2f} of {sizes[i]:,}" for i in skewed[:5])
        findings.append(
            Finding(
                code=f"unbalanced_{name}",
                severity="warning",
                what=f"The share of true rows depends on the {name}: {some}.",
                count=int(sizes[skewed].sum()),
                effect=f"Within such a part an accuracy is near the majority's.{alone}",
                mend=f"Balance the labels within each {name}, and read the figures by {name}.",
                figures={} if found is None else {"auroc": found.auroc},
            )
        )
    return findings


def _order(table: Table) -> list[Finding]:
    """Runs of equal labels in the order of the rows (Wald & Wolfowitz 1940)."""
    assert table.y is not None
    n, ones = len(table.y), int(table.y.sum())
    runs = 1 + int((np.diff(table.y) != 0).sum())
    expected = 1 + 2 * ones * (n - ones) / n
    z = (runs - expected) / math.sqrt(max((expected - 1) * (expected - 2) / max(n - 1, 1), 1e-12))
    value, low, high = table.direct("row number", np.arange(n))
    if abs(z) < _FAR and not (low > 0.6 or high < 0.4):
        return []
    cut = int(0.8 * n)
    first, rest = table.y[:cut].mean(), table.y[cut:].mean()
    how = "alternate" if z > _FAR else "stand in blocks"
    neighbour = float((table.y[1:] == table.y[:-1]).mean())
    return [
        Finding(
            code="label_order",
            severity="note",
            what=f"The labels {how}: {runs:,} runs where chance order has {expected:,.0f}; the row number has AUROC "
            f"{value:.3f} (95 % {low:.3f} to {high:.3f}, n = {n:,} in {int(table.codes.max()) + 1:,} groups).",
            count=n,
            effect=f"None on folds drawn by group. A cut at 80 % of the rows trains on {first:.2f} true and tests on "
            f"{rest:.2f}; the row before has the same label in {neighbour:.2f}.",
            mend="Nothing here; where another tool cuts by position or batches in order, shuffle the rows, whole groups "
            "at a time.",
            figures={"auroc": value, "low": low, "high": high, "runs": runs, "expected_runs": expected},
        )
    ]
