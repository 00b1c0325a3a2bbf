"""`lint_dataset`: what a data set would do to a probe, before any model is run."""

import os
from typing import Any

import pandas as pd

from interp.artifact import provenance
from interp.dataset import Dataset
from interp.dataset.rows import column
from interp.probe.linting.balance import find_imbalance
from interp.probe.linting.characters import find_characters
from interp.probe.linting.findings import FIGURE_COLUMNS, SEVERITIES, LintReport
from interp.probe.linting.grouping import find_groups
from interp.probe.linting.repeats import find_repeats
from interp.probe.linting.table import make_table, read_source
from interp.probe.linting.wording import find_wording


def lint_dataset(
    source: str | os.PathLike[str] | Dataset | pd.DataFrame | Any,
    *,
    text: str = "text",
    label: str = "label",
    group: str | None = None,
    group_rule: str | None = None,
    pair: str | None = None,
    n_folds: int = 5,
    seed: int = 0,
    n_boot: int = 1000,
) -> LintReport:
    """Look for what would make a probe's figure wrong or empty, and measure it where that needs no model.

    Labels that contradict each other, repeated texts, unbalanced labels, missing and broken groups and pairs, names that
    groups share, words, length and form that tell the label, damaged characters. Each finding says what it does to a
    probe and how to mend it.

    Args:
        source: a bundled name, a CSV, TSV, JSONL, Parquet or text file, a `Dataset` or a table.
        text: the column with the texts. Left at `text` where there is none, it means `statement`.
        label: the column with the labels: 0/1, true/false or yes/no.
        group: the column with the groups; None takes `group` where there is such a column.
        group_rule: where no column says the group: columns ("city", or "n1,n2" in any order), "quoted" (the first word in
            quotation marks), a regular expression with the entity in brackets ("^The city of (.+?) is"), or "rows": each
            row its own group, on purpose.
        pair: the column that joins a negated row to its affirmative one; None takes `pair` where there is such a column.
        n_folds: folds of the text baselines, by group and by row.
        seed: of folds and draws.
        n_boot: draws for each interval, at least 100.

    Raises:
        ValueError: no such file, a damaged one, a named column that is not there, a rule that is none or finds nothing, or
            no row with a text and a label. What is wrong with single rows is a finding.
    """
    if not isinstance(source, str | os.PathLike | Dataset | pd.DataFrame):
        raise ValueError(
            f"cannot lint {type(source).__name__}: pass a bundled name, the path of a file, a Dataset or a table"
        )
    if n_boot < 100:
        raise ValueError(f"n_boot={n_boot} is too few for a 95 % interval: use at least 100, better 1000")
    if n_folds < 2:
        raise ValueError(f"cross-validation needs at least 2 folds, got n_folds={n_folds}")
    name, frame = read_source(source, text, label, group)
    if pair is not None:
        frame = frame.assign(pair=frame[column(list(map(str, frame.columns)), pair, name)])
    table, findings = make_table(name, frame, text, label, group, group_rule, seed, n_folds, n_boot)
    wording, words = find_wording(table)
    findings += [
        *find_repeats(table),
        *find_imbalance(table),
        *find_groups(table),
        *wording,
        *find_characters(table, source),
    ]
    return LintReport(
        name=name,
        n=len(table.texts),
        n_groups=None if table.groups is None else len(set(table.groups)),
        findings=tuple(sorted(findings, key=lambda found: SEVERITIES.index(found.severity))),
        figures=pd.DataFrame(table.figures, columns=FIGURE_COLUMNS),
        words=words,
        not_measured=tuple(table.not_measured),
        card={
            "columns": {"text": text, "label": label, "group": group, "pair": pair},
            "group_rule": group_rule,
            "groups_from": table.groups_from,
            "hash": table.hash,
            "seed": seed,
            "n_folds": n_folds,
            "n_boot": n_boot,
            "provenance": provenance(),
        },
    )
