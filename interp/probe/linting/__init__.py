"""What a data set would do to a probe, before any model is run.

`lint` is the call, `table` the rows that can be used, `findings` the result. The checks: `repeats` (conflicting and
duplicated texts), `balance` (labels over parts and over the file), `grouping` (groups, pairs, shared names), `wording`
(words, length, form) and `characters` (scripts, damage, sizes). Every figure is a text baseline or a plain AUROC with an
interval over groups, as a probe's figure is.
"""

from interp.probe.linting.findings import Finding, LintReport, load_lint_report
from interp.probe.linting.lint import lint_dataset

__all__ = ["Finding", "LintReport", "lint_dataset", "load_lint_report"]
