"""How commands print: a table for people, one JSON value for machines."""

import json
import math
import sys
from collections.abc import Callable
from typing import Any

import click
import pandas as pd
from rich.console import Console
from rich.table import Table

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON value and nothing else.")


def show(
    value: pd.DataFrame | dict[str, Any], as_json: bool, *, title: str | None = None, limit: int | None = None
) -> None:
    """Print a frame or a dictionary."""
    if as_json:
        rows = value.to_dict("records") if isinstance(value, pd.DataFrame) else value
        click.echo(json.dumps(_plain(rows), ensure_ascii=False, allow_nan=False))
        return
    frame = (
        value
        if isinstance(value, pd.DataFrame)
        else pd.DataFrame({"": list(value), " ": [str(each) for each in value.values()]})
    )
    if title is not None:
        click.echo(title)  # not the table's own, which is folded to the table's width
    table = Table()
    for column in frame.columns:
        table.add_column(
            str(column), justify="right" if pd.api.types.is_numeric_dtype(frame[column]) else "left", overflow="fold"
        )
    shown = frame if limit is None else frame.head(limit)
    for row in shown.itertuples(index=False):
        table.add_row(*(_cell(each) for each in row))
    console().print(table)
    if len(shown) < len(frame):
        click.echo(f"{len(shown)} of {len(frame)} rows; --json prints all")


def console() -> Console:
    """For the standard output; markup in the data is never read."""
    width = None if sys.stdout.isatty() else 140
    return Console(markup=False, highlight=False, emoji=False, width=width)


def _cell(value: Any) -> str:
    if value is None or (not isinstance(value, list | dict) and pd.isna(value)):
        return ""
    if isinstance(value, float):
        return f"{value:.4g}" if value and not 1e-3 <= abs(value) < 1e5 else f"{value:.3f}"
    return str(value)


def _plain(value: Any) -> Any:
    """JSON-ready: NaN and missing values become null, numpy numbers Python's."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    to_python: Callable[[], Any] | None = getattr(value, "item", None)
    if to_python is not None:
        value = to_python()
    if value is None or value is pd.NA or value is pd.NaT or (isinstance(value, float) and not math.isfinite(value)):
        return None
    return value if isinstance(value, str | int | float | bool) else str(value)
