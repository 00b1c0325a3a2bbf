"""Groups for a table that has none, by a rule: which rows are about the same thing.

A rule is one of

1. columns, `"city"` or `"n1,n2"`: rows with the same values are a group, in whatever order the values stand;
2. `"quoted"`: the first word or phrase in quotation marks;
3. a regular expression: its first group is the entity, `"^The city of (.+?) is"`.
"""

import re
from collections.abc import Sequence

import pandas as pd

from interp.dataset.rows import column, plain, unknown

QUOTED = "quoted"
_QUOTED = re.compile(r"(?<!\w)['\"‘“«„](.+?)['\"’”“»](?!\w)")


def groups_by_rule(frame: pd.DataFrame, rule: str, text: str = "text") -> list[str | None]:
    """The group of each row; None where the rule finds none.

    `frame.assign(group=groups_by_rule(frame, "quoted"))` is the table with its groups.

    Args:
        frame: a table with the texts.
        rule: columns, "quoted" or a regular expression with one group in brackets.
        text: the column with the texts.

    Raises:
        ValueError: a rule that is none of these, a missing column, or a rule that finds nothing in any row.
    """
    known = list(map(str, frame.columns))
    names = [name.strip() for name in rule.split(",")]
    if all(name in known for name in names):
        found = [_of_columns(values) for values in frame[names].itertuples(index=False)]
    else:
        pattern = _pattern(rule, known)
        matches = [pattern.search(str(value)) for value in frame[column(known, text, "the table")]]
        found = [None if match is None else _fold(match.group(1) or "") or None for match in matches]
    if not any(found):
        raise ValueError(
            f"the rule {rule!r} finds no group in any of {len(frame)} rows: try it on {_first(frame, text)}"
        )
    return found


def _pattern(rule: str, known: Sequence[str]) -> re.Pattern[str]:
    if rule == QUOTED:
        return _QUOTED
    if re.fullmatch(r"[\w ,]+", rule):  # it was meant as columns
        missing = next(name for name in map(str.strip, rule.split(",")) if name not in known)
        raise unknown("the rule names a column that is not there,", missing, known)
    try:
        pattern = re.compile(rule)
    except re.error as error:
        raise ValueError(f"the rule {rule!r} is no regular expression ({error})") from None
    if pattern.groups < 1:
        raise ValueError(f"the rule {rule!r} has no group: put brackets around the entity, '^The city of (.+?) is'")
    return pattern


def _of_columns(values: Sequence[object]) -> str | None:
    """Values in an order of their own, so that (51, 52) and (52, 51) are one group."""
    listed = [plain(value) for value in values]
    return (
        None if any(value in (None, "") for value in listed) else " | ".join(sorted(_fold(str(one)) for one in listed))
    )


def _fold(text: str) -> str:
    """Without what a careless hand changes: space around and within."""
    return " ".join(text.split())


def _first(frame: pd.DataFrame, text: str) -> str:
    return repr(str(frame[text].iloc[0])) if text in frame else "a row of the table"
