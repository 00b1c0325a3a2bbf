"""Texts that stand more than once: with both labels, or with the same one, in one group or in several."""

from collections import Counter, defaultdict

import numpy as np

from interp.probe.inputs import tie_texts
from interp.probe.linting.findings import Finding
from interp.probe.linting.table import Table

_FEW = 0.01
"""Share of the rows below which copies move no figure by what could be seen."""


def find_repeats(table: Table) -> list[Finding]:
    """Conflicting labels, and duplicates across and within groups."""
    rows_of: dict[str, list[int]] = defaultdict(list)
    for row, key in enumerate(table.keys):
        rows_of[key].append(row)
    repeated = [rows for rows in rows_of.values() if len(rows) > 1]
    conflicting = [] if table.y is None else [rows for rows in repeated if len(set(table.y[rows])) > 1]
    same = repeated if table.y is None else [rows for rows in repeated if len(set(table.y[rows])) == 1]
    findings = [_conflicts(table, conflicting)] if conflicting else []
    across = [rows for rows in same if len(set(table.codes[rows])) > 1]
    within = [rows for rows in same if len(set(table.codes[rows])) == 1]
    if across:
        findings.append(_across(table, across))
    if within:
        n, extra = len(table.texts), sum(len(rows) - 1 for rows in within)
        findings.append(
            Finding(
                code="duplicates_within_groups",
                severity="note",
                what=f"{len(within):,} texts stand more than once in their group ({extra:,} rows too many).",
                count=extra,
                effect=f"No leak, since a group is never divided, but they count several times: n is {n - extra:,}, "
                f"not {n:,}.",
                mend="Keep one row of each.",
                examples=table.show([row for rows in within for row in rows]),
            )
        )
    return findings


def _conflicts(table: Table, conflicting: list[list[int]]) -> Finding:
    assert table.y is not None
    n, count = len(table.texts), sum(map(len, conflicting))
    lost = sum(min(Counter(table.y[rows].tolist()).values()) for rows in conflicting)
    return Finding(
        code="conflicting_labels",
        severity="error",
        what=f"{len(conflicting):,} texts ({count:,} rows) carry both labels, apart from case and spacing.",
        count=count,
        effect=f"Nothing can be right on all of them: no probe's accuracy is above {1 - lost / n:.4f}, and each such row "
        "that is trained on teaches a contradiction.",
        mend="Decide which label is right, or remove all rows of these texts.",
        examples=table.show([row for rows in conflicting for row in rows]),
        figures={"best_accuracy": 1 - lost / n},
    )


def _across(table: Table, across: list[list[int]]) -> Finding:
    extra, figures = sum(len(rows) - 1 for rows in across), {}
    left = int(tie_texts(table.codes, table.texts)[0].max()) + 1
    effect = (
        f"The sweep ties groups that share a text into one, and {left:,} of {int(table.codes.max()) + 1:,} are left; a split by "
        "the groups as they are has the copies on both sides."
    )
    again = {row for rows in across for row in rows[1:]}
    if table.both and extra >= _FEW * len(table.texts):
        once = np.array([row for row in range(len(table.texts)) if row not in again])
        every, single = table.fitted("words"), table.fitted("words, each text once", rows=once)
        if every is not None and single is not None:
            figures = {"with": every.auroc, "without": single.auroc}
            effect += (
                f" There words alone reach AUROC {every.auroc:.3f} with all rows and {single.auroc:.3f} (95 % "
                f"{single.low:.3f} to {single.high:.3f}) with each of these texts once."
            )
    where = "more than one group" if table.groups is not None else "the set more than once"
    return Finding(
        code="duplicates_across_groups",
        severity="warning",
        what=f"{len(across):,} texts stand in {where} ({extra:,} rows too many).",
        count=extra,
        effect=effect,
        mend="Keep one row of each text, or put all its rows into one group.",
        examples=table.show([row for rows in across for row in rows]),
        figures=figures,
    )
