"""Conditions on rows: a pandas query over the columns of tokens and of examples, and nothing that could run code.

1. Names in backticks become plain names (columns such as `rule:last` are no Python names), outside of strings.
2. The expression is parsed, and each node must be one that a condition needs: comparisons, arithmetic, `and or not`,
   lists, column names, and the methods `.str.<method>`, `.isin`, `.isna`, `.notna` and `.between`.
3. Only the columns that it names are read. One that asks the examples alone is answered once a text, not once a row.
"""

import ast
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Int

TEXT = "string"
"""Name of the texts' strings in a query; `text` is their number."""

_NODES = (
    ast.Expression, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.Invert, ast.USub, ast.UAdd, ast.BinOp, ast.Add,
    ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.BitAnd, ast.BitOr, ast.Compare, ast.Eq, ast.NotEq, ast.Lt,
    ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn, ast.Name, ast.Load, ast.Constant, ast.List, ast.Tuple, ast.Attribute,
    ast.Call, ast.keyword,
)  # fmt: skip
_METHODS = ("isin", "isna", "notna", "between")
_QUOTED = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|`([^`]*)`""")
_PLAIN = "column_{}_of_query"


def query_columns(tokens: Sequence[str], examples: Sequence[str]) -> dict[str, tuple[str, str]]:
    """What a query may name: name -> ("tokens" or "examples", the column there). Tokens win where both have a name."""
    found = {name: ("tokens", name) for name in tokens}
    for name in examples:
        known = TEXT if name == "text" else name
        taken = known in found or (known == TEXT and name != "text" and "text" in examples)
        found[f"example_{name}" if taken else known] = ("examples", name)
    return found


def matching_rows(
    query: str | Any,
    columns: Mapping[str, tuple[str, str]],
    read: Callable[[str, list[str]], pd.DataFrame],
    text_of_row: Int[np.ndarray, " row"],
) -> Bool[np.ndarray, " row"]:
    """The rows for which a query holds; where its answer is missing (NaN), it does not.

    Args:
        query: for example "label == 1 and position > 3 and string.str.contains('Paris')".
        columns: from `query_columns`.
        read: read(which, names) gives columns: of "tokens" a row per row, of "examples" a row per text, indexed by its
            number.
        text_of_row: number of each row's text.

    Raises:
        ValueError: no condition, an unknown column, anything that is not allowed in a query, or no row at all.
    """
    plain, used = _parse(query, columns)
    wanted = {which: [name for name in used if columns[name][0] == which] for which in ("tokens", "examples")}
    if (wanted["tokens"] == ["text"] and wanted["examples"]) or not wanted["tokens"]:
        frame = _read(read, "examples", wanted["examples"], columns).assign(text=lambda found: found.index)
        of_text = pd.Series(_evaluate(query, plain, frame, used), frame.index)
        chosen = of_text.reindex(text_of_row).to_numpy(dtype=bool)
    else:
        frame = _read(read, "tokens", wanted["tokens"], columns)
        if wanted["examples"]:
            more = _read(read, "examples", wanted["examples"], columns).reindex(text_of_row)
            frame = pd.concat([frame, more.set_axis(frame.index)], axis=1)
        chosen = _evaluate(query, plain, frame, used)
    if not chosen.any():
        raise ValueError(f"no row fulfils {query!r}: {'; '.join(_describe(frame, name) for name in used)}")
    return chosen


def _read(
    read: Callable[[str, list[str]], pd.DataFrame],
    which: str,
    names: Sequence[str],
    columns: Mapping[str, tuple[str, str]],
) -> pd.DataFrame:
    frame = read(which, [columns[name][1] for name in names])
    return frame.set_axis(pd.Index(list(names), dtype=object), axis=1)


def _parse(query: str | Any, columns: Mapping[str, tuple[str, str]]) -> tuple[str, list[str]]:
    """The query with plain names, and the columns that it names, in their order of appearance."""
    if not isinstance(query, str) or not query.strip():
        raise ValueError(f"a query is a condition such as 'label == 1 and position > 3', got {query!r}")
    quoted: list[str] = []

    def plain_name(match: re.Match[str]) -> str:
        if match[1] is None:
            return match[0]
        quoted.append(match[1])
        return _PLAIN.format(len(quoted) - 1)

    plain = _QUOTED.sub(plain_name, query.strip().replace("\n", " "))
    try:
        tree = ast.parse(plain, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _refused(query, f"it cannot be parsed ({error})") from None
    _check(tree, query)
    names = {_PLAIN.format(number): name for number, name in enumerate(quoted)}
    used = dict.fromkeys(names.get(node.id, node.id) for node in ast.walk(tree) if isinstance(node, ast.Name))
    for name in used:
        if name not in columns:
            raise ValueError(f"there is no column {name!r} for the query {query!r}: there is {', '.join(columns)}")
    if not used:
        raise _refused(query, "it names no column")
    return plain, list(used)


def _check(tree: ast.AST, query: str) -> None:
    """Refuse what a condition does not need."""
    nodes = list(ast.walk(tree))
    methods = {part for node in nodes if isinstance(node, ast.Call) for part in _method(node, query)}
    for node in nodes:
        if not isinstance(node, _NODES):
            raise _refused(query, f"{type(node).__name__} is not allowed")
        if isinstance(node, ast.Attribute) and node not in methods:
            raise _refused(query, f"{ast.unparse(node)} is not one of the methods")
        if isinstance(node, ast.Name) and "__" in node.id:
            raise _refused(query, f"the name {node.id!r} is not allowed")


def _method(call: ast.Call, query: str) -> list[ast.AST]:
    """The attributes that a call of an allowed method is written with: `.isin`, or `.str` and `.contains`."""
    method = call.func
    if isinstance(method, ast.Attribute):
        owner = method.value
        if isinstance(owner, ast.Attribute) and owner.attr == "str" and not method.attr.startswith("_"):
            return [method, owner]
        if method.attr in _METHODS:
            return [method]
    raise _refused(query, f"{ast.unparse(method)}() is not one of the methods")


def _refused(query: str, why: str) -> ValueError:
    return ValueError(
        f"the query {query!r} is refused: {why}. A query compares columns with values, joined by and, or, not; of methods "
        f"it may call .str.<method>(), {', '.join(f'.{name}()' for name in _METHODS)}; columns with other signs than "
        "letters, digits and _ stand in backticks"
    )


def _evaluate(query: str, plain: str, frame: pd.DataFrame, used: Sequence[str]) -> Bool[np.ndarray, " row"]:
    quoted = [match[1] for match in _QUOTED.finditer(query) if match[1] is not None]
    named = frame.assign(
        **{_PLAIN.format(number): frame[name] for number, name in enumerate(quoted) if name in frame.columns}
    )
    try:
        found = named.eval(plain, engine="python", parser="pandas")
    except Exception as error:  # pandas raises whatever the columns' types raise
        if lists := [name for name in used if _holds_lists(pd.Series(frame[name]))]:
            raise _refused(query, f"{lists[0]} holds lists, of which only .isna() and .notna() can be asked") from error
        kinds = ", ".join(f"{name} is {frame[name].dtype}" for name in used)
        why = textwrap.shorten(str(error), 200)
        raise ValueError(f"the query {query!r} cannot be answered ({why}): {kinds}") from error
    if not isinstance(found, pd.Series):
        answer = repr(found) if np.isscalar(found) else f"a {type(found).__name__}"
        raise _refused(query, f"its answer is {answer}, not one for each row")
    if found.dtype != bool:
        found = found.astype(object).where(found.notna(), False)
    if pd.api.types.infer_dtype(found, skipna=False) != "boolean":
        raise _refused(query, "its answer is a value, not true or false")
    return found.to_numpy(dtype=bool)


def _holds_lists(column: pd.Series) -> bool:
    return any(isinstance(value, (list, np.ndarray)) for value in column.dropna().iloc[:1])


def _describe(frame: pd.DataFrame, name: str) -> str:
    """What a column holds, in a few words."""
    column = pd.Series(frame[name])
    missing = int(column.isna().sum())
    more = f", {missing} of {len(column)} missing" if missing else ""
    if pd.api.types.is_bool_dtype(column):
        return f"{name} is true in {int(column.sum())} of {len(column)}"
    if pd.api.types.is_numeric_dtype(column) and column.notna().any():
        return f"{name} goes from {column.min()} to {column.max()}{more}"
    kinds = column.dropna().drop_duplicates()
    some = ", ".join(repr(value if len(str(value)) <= 40 else f"{str(value)[:40]}...") for value in kinds[:6])
    return f"{name} holds {some or 'nothing'}{', ...' if len(kinds) > 6 else ''}{more}"
