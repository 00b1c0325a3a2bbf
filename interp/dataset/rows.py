"""Rows of a table, and the checks that every reader of a whole file shares.

A row is a dict; all rows of a file have the same keys, and every kind of missing value is None. Row numbers in messages
count from 1 and leave out the header.
"""

import difflib
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

Row = dict[str, Any]

FIXED = ("text", "label", "group", "split")
"""Columns that are fields of an `Example`; every other one goes to its `meta`."""

_LABELS = {"1": 1, "true": 1, "yes": 1, "1.0": 1, "0": 0, "false": 0, "no": 0, "0.0": 0}


def plain(value: Any) -> Any:
    """A value that JSON can hold; None for every kind of missing value."""
    if type(value) in (str, int, bool):  # nearly all values of nearly all tables
        return value
    if isinstance(value, np.ndarray):
        return [plain(item) for item in value.tolist()]
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or value is pd.NA or value is pd.NaT or (isinstance(value, float) and math.isnan(value)):
        return None
    return value if isinstance(value, str | int | float | bool | list | dict) else str(value)


# ------------------------------------------------------------------------------------------------------------- checks


def unknown(what: str, name: str, known: Sequence[str]) -> ValueError:
    """The error for a name that is not among the known ones: the nearest first, then all."""
    by_folded = {option.casefold(): option for option in known}
    nearest = [by_folded[near] for near in difflib.get_close_matches(name.casefold(), by_folded, n=3, cutoff=0.5)]
    hint = f" Did you mean {' or '.join(map(repr, nearest))}?" if nearest else ""
    return ValueError(f"{what} {name!r}.{hint} There are: {', '.join(known) or 'none'}")


def column(known: Sequence[str], name: str, where: str) -> str:
    """`name`, if it is one of the columns."""
    if name not in known:
        raise unknown(f"{where} has no column", name, known)
    return name


def refuse(where: str, what: str, bad: Iterable[bool], mend: str) -> None:
    """Raise a ValueError that names the rows where `bad` is true."""
    flags = list(bad)
    rows = [str(number) for number, flag in enumerate(flags, start=1) if flag]
    if rows:
        some = ", ".join(rows[:5]) + (" ..." if len(rows) > 5 else "")
        raise ValueError(f"{where}: {len(rows)} of {len(flags)} rows have {what} (row {some}): {mend}")


def strings(rows: Sequence[Row], name: str, where: str) -> list[str]:
    """The column as texts, none of them missing or empty. Whole numbers are written out, other values refused."""
    values = [row[name] for row in rows]
    refuse(where, f"no {name}", (v is None or not str(v).strip() for v in values), "fill or remove them")
    refuse(where, f"a {name} that is not text", (not isinstance(v, str | int) for v in values), "write it as text")
    return [str(value) for value in values]


def labels(rows: Sequence[Row], name: str, where: str) -> list[int]:
    """The column as 0 and 1; it may be written 0/1, true/false or yes/no."""
    keys = ["" if row[name] is None else str(row[name]).strip().casefold() for row in rows]
    refuse(where, f"no {name}", (key in ("", "nan", "none", "null") for key in keys), "fill or remove them")
    if strange := [key for key in dict.fromkeys(keys) if key not in _LABELS]:
        found = ", ".join(map(repr, list(dict.fromkeys(keys))[:6]))
        raise ValueError(
            f"{where}: column {name!r} holds {len(set(keys))} values ({found}); labels are two classes, written 0/1, "
            f"true/false or yes/no, and {strange[0]!r} is none of these"
        )
    return [_LABELS[key] for key in keys]


def rest(rows: Sequence[Row], used: Iterable[str | None]) -> list[Row]:
    """The rows without these columns."""
    names = [name for name in rows[0] if name not in set(used)]
    return [{name: row[name] for name in names} for row in rows]
