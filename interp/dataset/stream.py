"""Examples one at a time from any source: files of any size, folders, hub data sets, iterators without an end.

1. `sources` gives items: texts, examples, rows, conversations. A row gives its text, label, group and split to the
   fields of an `Example`; every other column goes to `meta`.
2. Each item is checked as it comes. What is wrong is a `ValueError` that numbers the text, from 0 as the store does, and
   says where it stands; nothing is dropped or guessed.
3. Only the piece at hand is in memory. So what takes the whole set to see (duplicates, labels that contradict each
   other, labels on some texts only) is not seen here; `load_dataset` sees it.
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, time, timedelta
from decimal import Decimal
from itertools import islice
from pathlib import PurePath
from typing import Any
from uuid import UUID

import numpy as np

from interp.dataset.rows import FIXED, plain, unknown
from interp.dataset.sources import open_items
from interp.dataset.types import Example

_WORDS = {"true": 1, "yes": 1, "false": 0, "no": 0}
_MISSING = ("", "nan", "none", "null")
_WHOLE = re.compile(r"[+-]?\d+(\.0*)?")
_TEXT_COLUMNS = ("text", "statement", "messages")
"""What `text` means where it is left at its default: the first of these that there is."""
_WRITTEN = (str, date, time, timedelta, np.datetime64, np.timedelta64, Decimal, UUID, PurePath)
"""Values that are kept as the text that they are written as; that of any other object may be its place in memory."""


def iter_examples(
    data: Any,
    *,
    text: str = "text",
    label: str | None = "label",
    group: str | None = None,
    limit: int | Any | None = None,
) -> Iterator[Example]:
    """Examples from any source, one at a time, with a memory that does not grow with their number.

    Args:
        data: one of

            - a str: the name of a bundled data set; `hf:owner/name`, `hf:owner/name/config` or
              `hf:owner/name?split=train` (a hub data set, streamed; also `&revision=`); a file or folder that is there;
              anything else is one text. `[name]` is the text where a name means something.
            - a path: CSV, TSV, JSONL, JSON (an array of objects), .txt (a text each line that is not blank), all of
              these also with .gz; or Parquet. A folder: .txt and .md files, one text a file, whose group is its path in
              the folder; or the parts of one table, in the order of their paths.
            - a `Dataset`, an `Example`, a DataFrame, a Hugging Face `Dataset` or `IterableDataset`.
            - an iterable or iterator, with or without an end, of texts, `Example`s, rows (dicts) and conversations
              (lists of `{"role": ..., "content": ...}`).
        text: the column with the texts, or with conversations. Left at `text` where the first row has none, it means
            `statement`, else `messages`.
        label: the column with the labels: whole numbers, true/false or yes/no. Left at `label`, it may be absent; None
            reads none. A missing value is no label.
        group: the column with the groups; None reads `group` where there is such a column. A missing value is no group.
        limit: most texts; None for all. A CSV or TSV file is then looked at no further.

    Returns:
        An iterator. A column that is called text, label, group or split and is not read as such goes to `meta` as
        `label_column` and so on. Rows of JSON and dicts have in `meta` only the columns that they have themselves. Dates,
        times, decimals and paths in `meta` are text.

    Raises:
        ValueError: at once for a source that cannot be read or a `limit` below 1; on the way for a damaged file, an
            item that is none of these, an empty text (in a row: a blank one), a missing text column (the message lists
            those present), two columns of one name, a column that is asked for by its name where items have none, a
            label of another kind, a value that is neither text nor number nor made of them, or no text at all.
    """
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise ValueError(f"limit is the most texts to read, at least 1, or None for all; got {limit!r}")
    named = [name for name in (text, label, group) if name is not None]
    items = open_items(data, (*named, *FIXED, *_TEXT_COLUMNS), limit)
    return _examples(islice(items, limit), _Columns(text, label, group))


def _examples(items: Iterator[tuple[str, Any]], columns: "_Columns") -> Iterator[Example]:
    number = -1
    for number, (place, item) in enumerate(items):
        which = f"text {number} ({place})" if place else f"text {number}"
        if columns.asked_for and not isinstance(item, Mapping):
            raise ValueError(
                f"{which} has no columns, so {columns.asked_for} names nothing: leave it out, or pass rows (dicts)"
            )
        if isinstance(item, str):
            example = Example(str(item))
        elif isinstance(item, Example):
            example = _given(item, which)
        elif isinstance(item, Mapping):
            example = columns.example(item, which)
        elif isinstance(item, list | tuple) and all(isinstance(message, Mapping) for message in item):
            example = Example("", messages=_conversation(item, which))
        else:
            raise ValueError(
                f"item {number} is a {type(item).__name__}: pass texts, Examples, rows (dicts) or conversations (lists "
                'of {"role": ..., "content": ...})'
            )
        if not example.text and example.messages is None:
            raise ValueError(f"{which} is empty: drop it")
        yield example
    if number < 0:
        raise ValueError("there is nothing to record: the data has no text")


def _given(example: Example, which: str) -> Example:
    """A caller's example, with fields of the types that they promise."""
    if not isinstance(example.text, str):
        raise ValueError(f"{which} is a {type(example.text).__name__}: write it as text")
    if not isinstance(example.meta, Mapping):
        raise ValueError(f"{which}: its meta is {example.meta!r:.80}: pass a dict, column -> value")
    changed: dict[str, Any] = {}
    if example.messages is not None:
        changed["messages"] = _conversation(example.messages, which)
    if type(example.label) not in (int, type(None)):
        changed["label"] = _label(example.label, "label", which)
    for name in ("group", "split"):
        if type(getattr(example, name)) not in (str, type(None)):
            changed[name] = _name(getattr(example, name), name, which)
    if any(type(name) is not str for name in example.meta):
        changed["meta"] = _with_names(example.meta, which)
    return dataclasses.replace(example, **changed) if changed else example


# --------------------------------------------------------------------------------------------------------------- rows


class _Columns:
    """Which column of a row becomes which field; the first row settles what the defaults mean."""

    def __init__(self, text: str, label: str | None, group: str | None) -> None:
        self.text, self.label, self.group = text, label, group or "group"
        self.named = {name for name in (label if label != "label" else None, group) if name is not None}
        self.settled = False
        asked = {"text": text if text != "text" else None, "label": label if label != "label" else None, "group": group}
        self.asked_for = ", ".join(f"{option}={name!r}" for option, name in asked.items() if name is not None)
        """The columns that a caller named, as in the call."""

    def example(self, item: Mapping[Any, Any], which: str) -> Example:
        row = _with_names(item, which)
        if not self.settled:
            self._settle(row, which)
        if self.text not in row:
            raise unknown(f"{which} has no column", self.text, list(row))
        value, used = row[self.text], {self.text, self.label, self.group, "split"}
        messages = value if isinstance(value, list | tuple) else None
        if messages is None and _is_missing(value) and isinstance(row.get("messages"), list | tuple):
            messages = row["messages"]  # a conversation that `write_dataset` wrote beside its empty text
            used.add("messages")
        return Example(
            "" if messages is not None else _text(value, self.text, which),
            None if self.label is None else _label(row.get(self.label), self.label, which),
            _name(row.get(self.group), self.group, which),
            _name(row.get("split"), "split", which),
            _meta(row, used, which),
            None if messages is None else _conversation(messages, which),
        )

    def _settle(self, row: Mapping[str, Any], which: str) -> None:
        if row.keys() >= {"role", "content"} and self.text not in row:
            raise ValueError(f"{which} is a message, not a conversation: a conversation is a list of messages, [[...]]")
        if self.text == "text":
            self.text = next((name for name in _TEXT_COLUMNS if name in row), "text")
        for name in self.named:
            if name not in row:
                raise unknown(f"{which} has no column", name, list(row))
        self.settled = True


def _with_names(row: Mapping[Any, Any], which: str) -> dict[str, Any]:
    """The row with names that are text."""
    named = {str(name): value for name, value in row.items()}
    if len(named) < len(row):
        twice = next(name for name in named if sum(str(other) == name for other in row) > 1)
        raise ValueError(f"{which} has two columns that are written {twice!r}: rename one of them")
    return named


def _text(value: Any, name: str, which: str) -> str:
    if _is_missing(value) or not str(value).strip():
        raise ValueError(f"{which} is empty, the column {name!r} holds {plain(value)!r}: fill the row or drop it")
    if not isinstance(value, str | int | np.integer):
        raise ValueError(f"{which} is a {type(value).__name__}, the column {name!r} is not text: write it as text")
    return str(value)


def _label(value: Any, name: str, which: str) -> int | None:
    """A whole number of any size, true/false or yes/no as an int; None for a missing value."""
    value = plain(value)
    if value is None:
        return None
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return int(value)
    key = str(value).strip().casefold()
    if isinstance(value, str):
        if key in _MISSING:
            return None
        if key in _WORDS or _WHOLE.fullmatch(key):
            return _WORDS[key] if key in _WORDS else int(key.partition(".")[0])
    raise ValueError(
        f"{which} has {value!r} in its column {name!r}: labels are whole numbers, true/false or yes/no. Map it to "
        "numbers, or pass label=None, which keeps the column beside the text"
    )


def _name(value: Any, column: str, which: str) -> str | None:
    """A group or split as text; None for a missing value."""
    if _is_missing(value):
        return None
    if not isinstance(value, str | int | np.integer):
        raise ValueError(f"{which} has {value!r} in its column {column!r}, which is not text: write it as text")
    return str(value)


def _meta(row: Mapping[str, Any], used: set[str | None], which: str) -> dict[str, Any]:
    meta = {}
    for name, value in row.items():
        if name not in used:
            kept = f"{name}_column" if name in FIXED else name
            if kept != name and kept in row:
                raise ValueError(f"{which} has the columns {name!r} and {kept!r}: rename one of them")
            meta[kept] = plain(value)
            if isinstance(meta[kept], str) and not isinstance(value, _WRITTEN):
                raise ValueError(
                    f"{which} has a {type(value).__name__} in its column {name!r}, which is neither text nor a number nor "
                    "a list or dict of them: write it as one of these, or leave the column out"
                )
    return meta


def _is_missing(value: Any) -> bool:
    return value == "" if isinstance(value, str) else plain(value) is None


# ------------------------------------------------------------------------------------------------------ conversations


def _conversation(messages: Sequence[Any], which: str) -> tuple[dict[str, Any], ...]:
    """Messages with a role and content; keys without a value, which tables fill in, are left out."""
    if not messages:
        raise ValueError(f"{which} is a conversation without messages: drop it")
    checked = []
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise ValueError(
                f'{which}: message {number} is {message!r:.80}, and a message is {{"role": "user", "content": "..."}}'
            )
        kept = {str(key): value for key, value in message.items() if value is not None}
        if not isinstance(kept.get("content", "" if "tool_calls" in kept else None), str):
            raise ValueError(f"{which}: the content of message {number} is {message.get('content')!r:.80}: pass text")
        checked.append(kept)
    return tuple(checked)
