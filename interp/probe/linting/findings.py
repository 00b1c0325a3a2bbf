"""What a lint found: `Finding` and `LintReport`."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from interp import artifact

FORMAT = 1
SEVERITIES = ("error", "warning", "note")
"""An error makes figures wrong, a warning makes them say less than they seem to, a note is to be known."""


@dataclass(frozen=True)
class Finding:
    """One thing about a data set that a probe's figure would suffer from."""

    code: str
    """Its name, for filters: conflicting_labels, row_leak ..."""
    severity: str
    """error, warning or note."""
    what: str
    """What is the case, in a sentence."""
    count: int
    """How many rows it concerns."""
    effect: str
    """What it does to a probe, in figures where they can be measured."""
    mend: str
    """What to do about it."""
    examples: tuple[str, ...] = ()
    """Some of the rows; numbers count from 1 and leave out the header."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """What was measured for it, by name."""


@dataclass(frozen=True, eq=False)
class LintReport:
    """Everything that a lint found in one data set; see `lint_dataset`."""

    name: str
    """Name of the set."""
    n: int
    """Rows that were looked at; rows without a text or a usable label are findings and left out of every figure."""
    n_groups: int | None
    """Groups; None without any."""
    findings: tuple[Finding, ...]
    """Errors first, then warnings, then notes."""
    figures: pd.DataFrame = field(repr=False)
    """AUROCs without any model. Columns: what, split (group, row, none), auroc, low, high, n, n_groups."""
    words: pd.DataFrame = field(repr=False)
    """The most label-telling words. Columns: word, true, false (groups that hold it), odds, low, high, z."""
    not_measured: tuple[str, ...]
    """Figures that the set does not allow, and why."""
    card: dict[str, Any] = field(repr=False)
    """Columns, rule, groups_from, hash of the content, seed, folds, draws, provenance."""

    @property
    def ok(self) -> bool:
        """Whether there is no error; warnings and notes are for the reader to weigh."""
        return not any(finding.severity == "error" for finding in self.findings)

    def finding(self, code: str) -> Finding:
        """The finding of this name. ValueError where there is none."""
        for found in self.findings:
            if found.code == code:
                return found
        there = ", ".join(found.code for found in self.findings) or "none at all"
        raise ValueError(f"{self.name} has no finding {code!r}; it has {there}")

    def to_frame(self) -> pd.DataFrame:
        """A row for each finding: severity, code, count, what, effect, mend, examples."""
        columns = ["severity", "code", "count", "what", "effect", "mend", "examples"]
        rows = [
            [*(getattr(found, name) for name in columns[:-1]), "\n".join(found.examples)] for found in self.findings
        ]
        return pd.DataFrame(rows, columns=columns)

    def summary(self) -> str:
        """The report in words: a headline, the figures, and each finding with its effect and its mend."""
        counts = Counter(found.severity for found in self.findings)
        said = ", ".join(f"{counts[severity]} {severity}{'s' * (counts[severity] != 1)}" for severity in SEVERITIES)
        groups = "no groups" if self.n_groups is None else f"{self.n_groups:,} groups ({self.card['groups_from']})"
        lines = [f"{self.name}: {self.n:,} rows, {groups}; {said}."]
        for row in self.figures.to_dict("records"):
            split = "without a fit" if row["split"] == "none" else f"split by {row['split']}"
            lines.append(
                f"  {row['what']}, {split}: AUROC {row['auroc']:.3f} (95 % {row['low']:.3f} to {row['high']:.3f})"
            )
        for found in self.findings:
            lines += ["", f"{found.severity.upper()} {found.code}: {found.what}"]
            lines += [f"    {example}" for example in found.examples]
            lines += [f"  Effect: {found.effect}", f"  Mend: {found.mend}"]
        if self.not_measured:
            lines += ["", *(f"Not measured: {reason}" for reason in self.not_measured)]
        return "\n".join(lines)

    def save(self, path: str | Path) -> Path:
        """Write the report as one JSON file; `load_lint_report` reads it."""
        return artifact.write_json(path, self.to_json())

    def to_json(self) -> dict[str, Any]:
        """The whole report as a JSON value."""
        return {
            "kind": "lint report",
            "format": FORMAT,
            "name": self.name,
            "ok": self.ok,
            "n": self.n,
            "n_groups": self.n_groups,
            "findings": [{**asdict(found), "examples": list(found.examples)} for found in self.findings],
            "figures": self.figures.to_dict("records"),
            "words": self.words.to_dict("records"),
            "not_measured": list(self.not_measured),
            "card": self.card,
        }


FIGURE_COLUMNS = ["what", "split", "auroc", "low", "high", "n", "n_groups"]
WORD_COLUMNS = ["word", "true", "false", "odds", "low", "high", "z"]


def load_lint_report(path: str | Path) -> LintReport:
    """Read what `LintReport.save` wrote. ValueError: no such file, another kind of file, or a newer format."""
    content = artifact.read_json(path)
    if not isinstance(content, dict) or content.get("kind") != "lint report":
        raise ValueError(f"{path} holds no lint report")
    if not isinstance(content.get("format"), int) or content["format"] > FORMAT:
        raise ValueError(f"{path} has format {content.get('format')!r}, newer than {FORMAT}: update interp")
    return LintReport(
        name=content["name"],
        n=content["n"],
        n_groups=content["n_groups"],
        findings=tuple(Finding(**{**one, "examples": tuple(one["examples"])}) for one in content["findings"]),
        figures=pd.DataFrame(content["figures"], columns=FIGURE_COLUMNS),
        words=pd.DataFrame(content["words"], columns=WORD_COLUMNS),
        not_measured=tuple(content["not_measured"]),
        card=content["card"],
    )
