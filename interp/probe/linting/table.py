"""The rows that a lint looks at: read with a lenient eye, since what the readers refuse is what it has to report.

Each problem of a row becomes a finding; the row is then left out of every figure. Row numbers count from 1 and leave out
the header.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Int, Shaped

from interp.artifact import hash_json
from interp.dataset import Dataset, load_dataset
from interp.dataset.files import read_rows
from interp.dataset.group_rule import groups_by_rule
from interp.dataset.load import existing_file
from interp.dataset.rows import FIXED, column, labels, plain
from interp.probe.controls import text_baseline
from interp.probe.figures import ENDS, Figure, Resamples, auroc
from interp.probe.inputs import ROWS, fold
from interp.probe.linting.findings import Finding

SHOWN = 3
"""Rows that a finding shows."""
_CUT = 90  # characters of a text that are shown
_OUT = "These rows are left out of every figure here; `load_dataset` and the sweep refuse the set."


@dataclass(frozen=True, eq=False)
class Table:
    """Texts that can be used, and what is known of them."""

    name: str
    """Of the set."""
    frame: pd.DataFrame
    """Every column of the usable rows."""
    number: Int[np.ndarray, " row"]
    """Each row's number in the source, from 1."""
    texts: list[str]
    """The texts."""
    y: Int[np.ndarray, " row"] | None
    """0 or 1; None where the set has no labels."""
    groups: list[str] | None
    """The group of each row; None where nothing says it."""
    groups_from: str
    """Where the groups come from, in words."""
    seed: int
    n_folds: int
    n_boot: int
    strange: bool = False
    """Whether rows were left out for a label that could not be read."""
    figures: list[dict[str, Any]] = field(default_factory=list)
    """What was measured, in order."""
    not_measured: list[str] = field(default_factory=list)
    """What could not be, and why."""
    _done: dict[tuple[str, str], Figure | None] = field(default_factory=dict, repr=False)

    @cached_property
    def keys(self) -> list[str]:
        """The texts without case and spacing: the same key is the same statement."""
        return [fold(text) for text in self.texts]

    @cached_property
    def codes(self) -> Int[np.ndarray, " row"]:
        """The groups as numbers; each row its own one where there are none."""
        return np.arange(len(self.texts)) if self.groups is None else pd.factorize(np.array(self.groups))[0].astype(int)

    @property
    def grouped(self) -> bool:
        """Whether any two rows share a group."""
        return int(self.codes.max()) + 1 < len(self.texts)

    @cached_property
    def draws(self) -> Resamples:
        """Draws of the groups."""
        return Resamples.of(self.codes, self.n_boot, self.seed)

    @property
    def both(self) -> bool:
        """Whether there are rows of both labels."""
        return self.y is not None and 0 < int(self.y.sum()) < len(self.y)

    def show(self, rows: Sequence[int] | np.ndarray) -> tuple[str, ...]:
        """Some rows as lines."""
        lines = []
        for row in list(rows)[:SHOWN]:
            label = "" if self.y is None else f", {'true' if self.y[row] else 'false'}"
            lines.append(f"row {self.number[row]}{label}: {shortened(self.texts[row])}")
        return tuple(lines)

    def fitted(
        self,
        what: str,
        split: str = "group",
        *,
        texts: list[str] | None = None,
        rows: Int[np.ndarray, " taken"] | None = None,
    ) -> Figure | None:
        """A bag of words over folds by group or by row, kept in `figures`; None where the set does not allow it.

        The name `what` stands for the texts and the rows: a figure is made once for each name and split.
        """
        assert self.y is not None
        split = split if self.grouped else "row"
        if (what, split) not in self._done:
            taken = np.arange(len(self.texts)) if rows is None else rows
            listed = self.texts if texts is None else texts
            groups = ROWS if split == "row" or self.groups is None else [self.groups[i] for i in taken]
            found = None
            try:
                found = text_baseline(
                    [listed[i] for i in taken],
                    self.y[taken],
                    groups,
                    "bag_of_words",
                    self.n_folds,
                    self.seed,
                    self.n_boot,
                )
            except ValueError as error:
                self.not_measured.append(f"{what}, split by {split}: {error}")
            else:
                self._keep(what, split, found.auroc, found.low, found.high, found.n, found.n_groups)
            self._done[what, split] = found
        return self._done[what, split]

    def direct(self, what: str, score: Shaped[np.ndarray, " row"]) -> tuple[float, float, float]:
        """AUROC of a score as it is, nothing fitted, with the interval over groups; kept in `figures`.

        A group that is drawn twice is compared with its own copy, so that pairs within groups count too often in the
        draws. For a score that hardly varies between groups, such as the row number, that moves the interval past the
        figure; the mean of the draws is therefore moved back onto it.
        """
        assert self.y is not None
        values = score.astype(float)
        found, drawn = float(auroc(values, self.y)[0]), self.draws.drawn(values, self.y)
        low, high = np.clip(np.nanquantile(drawn, ENDS) + found - np.nanmean(drawn), 0.0, 1.0).tolist()
        self._keep(what, "none", found, low, high, len(values), int(self.codes.max()) + 1)
        return found, low, high

    def _keep(self, what: str, split: str, found: float, low: float, high: float, n: int, n_groups: int) -> None:
        values = {"auroc": found, "low": low, "high": high, "n": n, "n_groups": n_groups}
        self.figures.append({"what": what, "split": split, **values})

    @cached_property
    def hash(self) -> str:
        """Hash of texts, labels and groups, 32 hex digits."""
        y = None if self.y is None else self.y.tolist()
        return hash_json([self.texts, y, self.groups])


def shortened(value: object) -> str:
    """A value as it would be written in code, at most `_CUT` characters of a text."""
    text = value[: _CUT - 1] + "…" if isinstance(value, str) and len(value) > _CUT else value
    return repr(text) if isinstance(value, str) else f"{text!r:.{_CUT}}"


def told(found: tuple[float, float, float], least: float = 0.05) -> bool:
    """Whether an AUROC with its interval is away from 1/2, and by enough to matter."""
    value, low, high = found
    return (low > 0.5 or high < 0.5) and abs(value - 0.5) >= least


# ------------------------------------------------------------------------------------------------------------ reading


def read_source(
    source: str | os.PathLike[str] | Dataset | pd.DataFrame, text: str, label: str, group: str | None
) -> tuple[str, pd.DataFrame]:
    """Name and rows of whatever `lint_dataset` accepts."""
    if isinstance(source, Dataset):
        return source.name, _without_empty(source.to_frame())
    if isinstance(source, pd.DataFrame):
        if source.empty:
            raise ValueError("the table has no rows")
        return "table", source.rename(columns=str).reset_index(drop=True)
    if isinstance(source, str) and re.fullmatch(r"[\w-]+", source):
        return source, _without_empty(load_dataset(source).to_frame())
    path = existing_file(source)
    kept = [name for name in (text, label, group) if name is not None]
    return path.stem, pd.DataFrame(read_rows(path, as_text=(*kept, *FIXED)), dtype=object)


def _without_empty(frame: pd.DataFrame) -> pd.DataFrame:
    """Without the fixed columns that a data set has nothing for."""
    empty = [name for name in FIXED if name in frame and all(plain(value) is None for value in frame[name])]
    return frame.drop(columns=empty)


def make_table(
    name: str, frame: pd.DataFrame, text: str, label: str, group: str | None, group_rule: str | None, seed: int, n_folds: int,
    n_boot: int,
) -> tuple[Table, list[Finding]]:  # fmt: skip
    """The usable rows, and what is wrong with the others.

    Raises:
        ValueError: a named column that is not there, a rule that is none, or no usable row at all.
    """
    known = list(map(str, frame.columns))
    if text == "text" and "text" not in known and "statement" in known:
        text = "statement"
    column(known, text, name)
    texts = [plain(value) for value in _values(frame, text)]
    has_text = np.array([isinstance(value, str | int) and bool(str(value).strip()) for value in texts])
    findings = _no_text(texts, has_text)
    y, has_label = None, np.ones(len(frame), dtype=bool)
    if label != "label" or label in known:
        y, has_label, found = _labels(_values(frame, column(known, label, name)), name)
        findings += found
    usable = np.flatnonzero(has_text & has_label)
    if not len(usable):
        labelled = f"; the labels are {_some(_values(frame, label))}, and should be 0 and 1" if label in known else ""
        raise ValueError(f"{name}: none of {len(frame)} rows has both a text and a label{labelled}")
    kept = frame.iloc[usable].reset_index(drop=True)
    if text != "text":
        kept = kept.rename(columns={"text": "text_column"}).rename(columns={text: "text"})
    groups, groups_from, found = _groups(kept, known, group, group_rule, name, usable + 1)
    table = Table(
        name=name,
        frame=kept,
        number=usable + 1,
        texts=[str(texts[row]) for row in usable],
        y=None if y is None else y[usable],
        groups=groups,
        groups_from=groups_from,
        seed=seed,
        n_folds=n_folds,
        n_boot=n_boot,
        strange=any(each.code == "strange_label" for each in findings),
    )
    return table, findings + found


def _no_text(texts: list[Any], has_text: Bool[np.ndarray, " row"]) -> list[Finding]:
    bad = np.flatnonzero(~has_text)
    if not len(bad):
        return []
    examples = tuple(f"row {row + 1}: {shortened(texts[row])}" for row in bad[:SHOWN])
    return [
        Finding(
            "no_text", "error", f"{len(bad):,} of {len(texts):,} rows have no text, or something that is none.",
            len(bad), _OUT, "Fill these rows, or remove them.", examples,
        )
    ]  # fmt: skip


def _labels(values: list[Any], name: str) -> tuple[Int[np.ndarray, " row"], Bool[np.ndarray, " row"], list[Finding]]:
    """Labels as 0 and 1, which of them are such, and findings about the others."""
    listed = [plain(value) for value in values]
    read = {value: _label(value, name) for value in dict.fromkeys(map(str, listed))}
    codes = np.array([-1 if (found := read[str(value)]) is None else found for value in listed])
    missing = np.array([value is None or str(value).strip() == "" for value in listed])
    strange = (codes < 0) & ~missing
    findings = []
    for code, bad, what, mend in (
        ("no_label", missing, "no label", "Label these rows, or remove them."),
        (
            "strange_label",
            strange,
            "a label that is neither 0/1, true/false nor yes/no",
            "Map the two classes to 1 and 0, -1 to 0." if "-1" in read else "Map the two classes to 1 and 0.",
        ),
    ):
        rows = np.flatnonzero(bad)
        if len(rows):
            examples = tuple(f"row {row + 1}: {shortened(listed[row])}" for row in rows[:SHOWN])
            what = f"{len(rows):,} of {len(listed):,} rows have {what}."
            findings.append(Finding(code, "error", what, len(rows), _OUT, mend, examples))
    return codes, codes >= 0, findings


def _label(value: str, name: str) -> int | None:
    try:
        return labels([{"label": value}], "label", name)[0]
    except ValueError:  # the reader's own judgement of what a label is
        return None


def _groups(
    frame: pd.DataFrame,
    known: list[str],
    group: str | None,
    rule: str | None,
    name: str,
    number: Int[np.ndarray, " row"],
) -> tuple[list[str] | None, str, list[Finding]]:
    """Groups by the column or the rule, where they come from, and rows without one, which become groups of their own."""
    if group is not None and rule is not None:
        raise ValueError(f"group={group!r} and group_rule={rule!r}: a column or a rule, not both")
    if rule == ROWS:
        return [f"row {one}" for one in number], "every row its own group, said on purpose", []
    if rule is not None:
        found, source = groups_by_rule(frame, rule), f"rule {rule!r}"
    elif group is None and "group" not in known:
        return None, "no groups", []
    else:
        values = map(plain, _values(frame, column(known, group or "group", name)))
        found = [str(value) if value is not None and str(value).strip() else None for value in values]
        source = f"column {group or 'group'!r}"
    bad = [row for row, value in enumerate(found) if value is None]
    groups = [f"row {number[row]}" if value is None else value for row, value in enumerate(found)]
    if not bad:
        return groups, source, []
    examples = tuple(f"row {number[row]}: {shortened(frame['text'].iloc[row])}" for row in bad[:SHOWN])
    what = f"{len(bad):,} of {len(found):,} rows have no group by the {source}."
    effect = "Each is its own group in the figures here; a row about the same thing elsewhere would leak its label."
    mend = "Give each row the entity that it is about, or widen the rule."
    return groups, source, [Finding("no_group", "error", what, len(bad), effect, mend, examples)]


def _values(frame: pd.DataFrame, name: str) -> list[Any]:
    return list(frame[name])


def _some(values: list[Any]) -> str:
    return ", ".join(map(repr, list(dict.fromkeys(map(str, values)))[:5]))
