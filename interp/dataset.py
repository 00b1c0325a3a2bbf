"""Texts with labels and groups: one type, five file formats, the bundled sets, and splits that cannot leak.

1. A `Dataset` is a tuple of `Example`s and a card that says where they come from. Labels are 0 and 1, or absent.
2. Reading: a file becomes rows, the rows are checked (columns, labels, empty texts) and become examples. What is wrong
   is a `ValueError` that names the rows; nothing is dropped or guessed.
3. Rows of one *group* (an entity, a question, a document) share facts, so a split by rows hands the answers to the
   training part. `grouped_split` and `grouped_folds` never divide a group.

`datasets()` lists what is bundled; each set has a card with its source, its licence and its known traps.
"""

import difflib
import io
import json
import math
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from csv import QUOTE_NONNUMERIC
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Int

from interp.artifact import atomic_write, hash_json, read_json
from interp.content import content

FORMATS = (".csv", ".tsv", ".jsonl", ".parquet", ".txt")
_FIXED = ("text", "label", "group", "split")
_LABELS = {"1": 1, "true": 1, "yes": 1, "1.0": 1, "0": 0, "false": 0, "no": 0, "0.0": 0}
_LOADERS = {"statements": "load_dataset", "corpus": "load_corpus", "pairs": "load_pairs", "questions": "load_questions"}
_NUMBERS = ((re.compile(r"-?(0|[1-9]\d{0,15})"), int), (re.compile(r"-?\d+(\.\d+)?([eE][-+]?\d+)?"), float))

Row = dict[str, Any]


class ContradictoryLabelsWarning(UserWarning):
    """The same text stands in a data set once as true and once as false."""


# ------------------------------------------------------------------------------------------------------------- types


@dataclass(frozen=True)
class Example:
    """One text and what is known about it."""

    text: str
    label: int | None = None
    """1 (true, positive), 0, or None where the set has no labels."""
    group: str | None = None
    """Rows with the same group share facts: a split keeps them together."""
    split: str | None = None
    """The part that the file's author put the row in, if any."""
    meta: dict[str, Any] = field(default_factory=dict)
    """Every other column of the file."""


@dataclass(frozen=True)
class ContrastPair:
    """One prompt with two continuations that differ in a concept."""

    prompt: str
    positive: str
    negative: str
    group: str | None = None
    """Pairs with the same group share words."""
    meta: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Question:
    """A multiple-choice question. The options are continuations of the prompt, to be scored as text."""

    prompt: str
    options: tuple[str, ...]
    answer: int
    """Index of the right option."""
    group: str | None = None
    """Questions with the same group share entities or options."""
    meta: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Dataset:
    """Examples in a fixed order, and a card.

    Raises:
        ValueError: no examples, an empty text, labels other than 0 and 1, or labels or groups on some rows only.
    """

    name: str
    examples: tuple[Example, ...]
    card: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.examples:
            raise ValueError(f"data set {self.name!r} has no examples")
        _refuse(self.name, "an empty text", [not e.text.strip() for e in self.examples], "fill or remove them")
        _refuse(
            self.name, "a label that is not 0 or 1", [e.label not in (0, 1, None) for e in self.examples], "mend it"
        )
        for column in ("label", "group"):
            missing = [getattr(e, column) is None for e in self.examples]
            if not all(missing):
                _refuse(self.name, f"no {column}", missing, f"give every row a {column}, or none")

    @property
    def texts(self) -> list[str]:
        """The texts, in order."""
        return [example.text for example in self.examples]

    @property
    def labels(self) -> Int[np.ndarray, " text"] | None:
        """0 or 1 for each text, None for a set without labels."""
        found = [example.label for example in self.examples if example.label is not None]
        return np.array(found, dtype=np.int64) if found else None

    @property
    def groups(self) -> list[str] | None:
        """The group of each text, None for a set without groups."""
        return [example.group for example in self.examples if example.group is not None] or None

    @cached_property
    def hash(self) -> str:
        """Hash of the content, 32 hex digits. The order of the examples counts; name and card do not."""
        return hash_json([[e.text, e.label, e.group, e.split, e.meta] for e in self.examples])

    def to_frame(self) -> pd.DataFrame:
        """A row for each example: text, label, group, split, then the other columns."""
        names = dict.fromkeys(name for example in self.examples for name in example.meta)
        fixed = {name: [getattr(e, name) for e in self.examples] for name in _FIXED}
        others = {name: [e.meta.get(name) for e in self.examples] for name in names}
        return pd.DataFrame({**fixed, **others}, dtype=object).astype({"label": "Int64"})

    def take(self, rows: Iterable[Any]) -> "Dataset":
        """The examples at these row numbers, in the order given; for the parts of `grouped_split`."""
        return Dataset(self.name, tuple(self.examples[int(row)] for row in rows), self.card)

    def select(self, **columns: Any) -> "Dataset":
        """The examples whose columns have these values; a list, tuple or set means any of its members.

        Raises:
            ValueError: an unknown column, or no example left.
        """
        frame = self.to_frame()
        keep = np.ones(len(self), dtype=bool)
        for column, wanted in columns.items():
            _column(list(frame), column, f"data set {self.name!r}")
            choices = list(wanted) if isinstance(wanted, list | tuple | set | frozenset) else [wanted]
            # Missing values are pandas' NA in the label column, and NA has no truth value.
            keep &= [any(value is not pd.NA and value == choice for choice in choices) for value in frame[column]]
            if not keep.any():
                values = ", ".join(map(repr, list(dict.fromkeys(frame[column]))[:8]))
                raise ValueError(f"data set {self.name!r}: no row is left with {column}={wanted!r}; it holds {values}")
        return self.take(np.flatnonzero(keep))

    def __len__(self) -> int:
        return len(self.examples)

    def __iter__(self) -> Iterator[Example]:
        return iter(self.examples)


# ------------------------------------------------------------------------------------------------ loading and writing


def load_dataset(
    name_or_path: str | os.PathLike[str],
    *,
    text: str = "text",
    label: str | None = "label",
    group: str | None = None,
    require_labels: bool = False,
) -> Dataset:
    """Read a bundled set by its name, or a CSV, TSV, JSONL, Parquet or text file (one text a line).

    Args:
        name_or_path: a name of `datasets()`, or a file; the file's ending says its format.
        text: the column with the texts. Left at `text` where there is none, it means `statement`.
        label: the column with the labels: 0/1, true/false or yes/no. Left at `label`, it may be absent; None reads
            none.
        group: the column with the groups; None reads `group` where there is such a column.
        require_labels: refuse a set without labels, or with one class only.

    Every other column goes to `Example.meta`, but one that is called text, label, group or split.

    Raises:
        ValueError: unknown name, no such file, unknown format, damaged or empty file, missing column (the message lists
            those present), an empty text, a missing label, labels other than two classes.

    Warns:
        ContradictoryLabelsWarning: some texts carry both labels.
    """
    path, card = _locate(name_or_path, ("statements", "corpus"))
    where, rows = card["name"], _read_rows(path)
    columns = list(rows[0])
    text = _column(columns, "statement" if text == "text" and "text" not in columns else text, where, wanted=text)
    if label is not None and (label != "label" or label in columns or require_labels):
        labels = _labels(rows, _column(columns, label, where), where)
    else:
        labels = [None] * len(rows)
    if require_labels and len(set(labels)) < 2:
        raise ValueError(f"{where}: two classes of labels are needed, but every label is {labels[0]}")
    texts, groups = _strings(rows, text, where), _groups(rows, group, where)
    splits = [None if row.get("split") in (None, "") else str(row["split"]) for row in rows]
    used = (text, label, group, *_FIXED)
    examples = tuple(map(Example, texts, labels, groups, splits, _rest(rows, used)))
    _warn_contradictions(where, texts, labels)
    return Dataset(where, examples, card)


def load_corpus(name_or_path: str | os.PathLike[str], *, text: str = "text", group: str | None = None) -> Dataset:
    """Read texts without labels; the group is the document or source that a text comes from. Errors: `load_dataset`."""
    return load_dataset(name_or_path, text=text, label=None, group=group)


def load_pairs(
    name_or_path: str | os.PathLike[str],
    *,
    prompt: str = "prompt",
    positive: str = "positive",
    negative: str = "negative",
    group: str | None = None,
) -> list[ContrastPair]:
    """Read contrast pairs: a bundled set, or a file with these columns.

    Raises:
        ValueError: as `load_dataset`, or a pair whose two sides are the same.
    """
    path, card = _locate(name_or_path, ("pairs",))
    where, rows = card["name"], _read_rows(path)
    names = [_column(list(rows[0]), name, where) for name in (prompt, positive, negative)]
    prompts, yes, no = (_strings(rows, name, where) for name in names)
    _refuse(where, "the same text on both sides", [p == n for p, n in zip(yes, no)], "remove them")
    rest = _rest(rows, (*names, group, "group"))
    return list(map(ContrastPair, prompts, yes, no, _groups(rows, group, where), rest))


def load_questions(name_or_path: str | os.PathLike[str]) -> list[Question]:
    """Read multiple-choice questions: a bundled set, or a JSONL or Parquet file.

    Columns: prompt, options (a list of at least two texts), answer (index of the right one, from 0), and group where
    there is one; every other column goes to `meta`.

    Raises:
        ValueError: as `load_dataset`, or options or an answer that are not such.
    """
    path, card = _locate(name_or_path, ("questions",))
    where, rows = card["name"], _read_rows(path)
    for name in ("prompt", "options", "answer"):
        _column(list(rows[0]), name, where)
    prompts, options, answers = (
        _strings(rows, "prompt", where),
        *([row[n] for row in rows] for n in ("options", "answer")),
    )
    mend = "options are a list of two or more different texts (CSV cannot hold one, JSONL can)"
    _refuse(where, "options that are not such", [not _is_options(value) for value in options], mend)
    wrong = [type(a) is not int or not 0 <= a < len(o) for a, o in zip(answers, options)]
    _refuse(where, "an answer that is not such", wrong, "the answer is the index of the right option, from 0")
    rest = _rest(rows, ("prompt", "options", "answer", "group"))
    return list(map(Question, prompts, map(tuple, options), answers, _groups(rows, None, where), rest))


def datasets() -> pd.DataFrame:
    """The bundled sets: name, kind (statements, pairs, questions, corpus), rows, groups, source, licence."""
    columns = ["name", "kind", "rows", "groups", "source", "licence"]
    return pd.DataFrame([[card[column] for column in columns] for card in _cards().values()], columns=columns)


def write_dataset(dataset: Dataset, path: str | os.PathLike[str]) -> Path:
    """Write a data set as CSV, TSV, JSONL or Parquet, by the file's ending; atomic, UTF-8.

    Labels are written as 0 and 1; columns that are empty throughout are left out. JSONL keeps every value as it is;
    CSV and TSV know only texts and numbers, so a text that looks like a number comes back as one.

    Raises:
        ValueError: another ending (a plain text file cannot hold labels).
    """
    path = Path(path).expanduser()
    frame = dataset.to_frame().dropna(axis="columns", how="all")
    data: str | bytes
    if path.suffix.lower() in (".csv", ".tsv"):
        data = frame.to_csv(index=False, sep=_separator(path), quoting=QUOTE_NONNUMERIC, lineterminator="\n")
    elif path.suffix.lower() == ".jsonl":
        rows = [{str(name): _plain(value) for name, value in row.items()} for row in frame.to_dict("records")]
        data = "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows)
    elif path.suffix.lower() == ".parquet":
        buffer = io.BytesIO()
        frame.to_parquet(buffer, index=False)
        data = buffer.getvalue()
    else:
        raise ValueError(f"cannot write {path.name}: the ending says the format, .csv, .tsv, .jsonl or .parquet")
    return atomic_write(path, data)


# ------------------------------------------------------------------------------------------------------------- splits


def grouped_split(
    groups: Iterable[Any],
    fractions: Sequence[float] = (0.6, 0.2, 0.2),
    seed: int = 0,
    labels: Iterable[Any] | None = None,
) -> list[Int[np.ndarray, " _part"]]:
    """Divide rows into parts such that no group stands in two of them.

    Groups are taken largest first, equal ones in an order that `seed` shuffles, and each goes to the part that lacks it
    most. The result depends on the groups and their sizes, not on the order of the rows.

    Args:
        groups: one for each row; compared as text.
        fractions: the share of the rows for each part; they sum to 1. Kept to within the size of a group or two.
        labels: one for each row, to keep the classes in proportion as well.

    Returns:
        For each part its row numbers, ascending. No part is empty.

    Raises:
        ValueError: fewer groups than parts, a row without a group, fractions that do not sum to 1, or a part that would
            lack a class.
    """
    shares = np.asarray(fractions, dtype=float)
    if not shares.size or not (shares > 0).all() or not math.isclose(shares.sum(), 1.0, abs_tol=1e-6):
        raise ValueError(f"fractions must be positive and sum to 1, got {list(fractions)}")
    values = [_plain(group) for group in groups]
    _refuse("groups", "no group", [value is None for value in values], "give every row a group")
    keys, group_of_row = np.unique([str(value) for value in values], return_inverse=True)
    if len(keys) < len(shares):
        raise ValueError(f"{len(keys)} groups cannot make {len(shares)} parts: use fewer parts, or smaller groups")
    names = [0] * len(values) if labels is None else [str(_plain(label)) for label in labels]
    if len(names) != len(values):
        raise ValueError(f"there are {len(names)} labels for {len(values)} rows")
    class_of_row = np.unique(names, return_inverse=True)[1]

    counts = np.zeros((len(keys), class_of_row.max() + 1))
    np.add.at(counts, (group_of_row, class_of_row), 1)
    part_of_row = _assign(counts, shares, np.random.default_rng(seed))[group_of_row]
    parts = [np.flatnonzero(part_of_row == part) for part in range(len(shares))]
    if any(len(set(class_of_row[part])) < counts.shape[1] for part in parts):
        raise ValueError("a part would lack a class: use fewer parts, or more groups of the rare class")
    assert sum(len(set(group_of_row[part])) for part in parts) == len(keys), "a group stands in two parts"
    return parts


def grouped_folds(
    groups: Iterable[Any], n: int = 5, seed: int = 0, labels: Iterable[Any] | None = None
) -> list[Int[np.ndarray, " _part"]]:
    """The held-out rows of `n` folds of nearly equal size, no group in two of them. Errors: `grouped_split`."""
    if n < 2:
        raise ValueError(f"cross-validation needs at least 2 folds, got n={n}")
    return grouped_split(groups, [1 / n] * n, seed, labels)


def _assign(counts: np.ndarray, shares: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The part of each group; counts [group, class] are rows, shares [part] the fractions."""
    order = rng.permutation(len(counts))
    order = order[np.argsort(-counts[order].sum(axis=1), kind="stable")]
    target = shares[:, None] * counts.sum(axis=0)  # [part, class]
    filled = np.zeros_like(target)
    part_of_group = np.full(len(counts), -1)
    for position, group in enumerate(order):
        # The rise of sum (filled - target)^2 / target: least for the part that lacks this group most.
        rise = (counts[group] * (2 * (filled - target) + counts[group]) / target).sum(axis=1)
        taken = filled.sum(axis=1) > 0
        if len(order) - position == (~taken).sum():  # only as many groups are left as there are empty parts
            rise[taken] = np.inf
        part_of_group[group] = rise.argmin()
        filled[part_of_group[group]] += counts[group]
    return part_of_group


# --------------------------------------------------------------------------------------------------- files into rows


def _cards() -> dict[str, Row]:
    return {path.parent.name: read_json(path) for path in sorted(content("data").glob("*/card.json"))}


def _locate(name_or_path: str | os.PathLike[str], kinds: tuple[str, ...]) -> tuple[Path, Row]:
    """The file and its card; `kinds` are those of bundled sets that the caller can read."""
    if isinstance(name_or_path, str) and re.fullmatch(r"[\w-]+", name_or_path):
        cards = _cards()
        if name_or_path not in cards:
            message = _unknown("no bundled data set", name_or_path, list(cards))
            raise ValueError(f"{message}. A file is given by its path with its ending ({', '.join(FORMATS)})")
        card = cards[name_or_path]
        if card["kind"] not in kinds:
            raise ValueError(f"{name_or_path!r} holds {card['kind']}: read it with {_LOADERS[card['kind']]}()")
        return content("data") / name_or_path / card["file"], card
    path = Path(name_or_path).expanduser()
    if not path.is_file():
        raise ValueError(f"{path} is a folder, not a file" if path.is_dir() else f"there is no file {path}")
    if path.suffix.lower() not in FORMATS:
        raise ValueError(f"cannot read {path.name}: the ending says the format, one of {', '.join(FORMATS)}")
    return path, {"name": path.stem, "kind": "file", "file": path.name}


def _read_rows(path: Path) -> list[Row]:
    """Every row as a dict with the same keys; missing values are None."""
    kind = path.suffix.lower()
    try:
        if kind == ".parquet":
            rows = pd.read_parquet(path).to_dict("records")
        elif kind == ".jsonl":
            rows = [_json_row(number, line) for number, line in _lines(path)]
        elif kind == ".txt":
            rows = [{"text": line} for _, line in _lines(path)]
        else:
            rows = _separated_rows(path)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 ({error}): save it as UTF-8") from None
    except (ValueError, OSError) as error:  # pandas' and pyarrow's errors for damaged files are of these kinds
        raise ValueError(f"cannot read {path}: {error}") from None
    if not rows:
        raise ValueError(f"{path} has no rows")
    columns = dict.fromkeys(name for row in rows for name in row)
    return [{str(name): _plain(row.get(name)) for name in columns} for row in rows]


def _separated_rows(path: Path) -> list[Row]:
    # Everything is read as text, since pandas would take the text `NA` for a missing one.
    frame = pd.read_csv(path, sep=_separator(path), encoding="utf-8-sig", dtype=str, keep_default_na=False)
    for name in frame.columns.difference(_FIXED):
        values = frame[name].tolist()
        for pattern, number in _NUMBERS:
            if all(isinstance(value, str) and pattern.fullmatch(value) for value in values):
                frame[name] = pd.Series(map(number, values), dtype=object)
                break
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]


def _separator(path: Path) -> str:
    return "\t" if path.suffix.lower() == ".tsv" else ","


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Number and text of each line that is not blank."""
    with path.open(encoding="utf-8-sig") as file:
        yield from ((number, line.strip("\r\n")) for number, line in enumerate(file, start=1) if line.strip())


def _json_row(number: int, line: str) -> Row:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"line {number} is not JSON ({error})") from None
    if not isinstance(row, dict):
        raise ValueError(f"line {number} is a {type(row).__name__}, not an object with columns")
    return row


def _plain(value: Any) -> Any:
    """A value that JSON can hold; None for every kind of missing value."""
    if isinstance(value, np.ndarray):
        return [_plain(item) for item in value.tolist()]
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or value is pd.NA or value is pd.NaT or (isinstance(value, float) and math.isnan(value)):
        return None
    return value if isinstance(value, str | int | float | bool | list | dict) else str(value)


# ------------------------------------------------------------------------------------------------- checks of the rows


def _column(columns: Sequence[str], name: str, where: str, wanted: str | None = None) -> str:
    if name not in columns:
        raise ValueError(_unknown(f"{where} has no column", wanted or name, columns))
    return name


def _unknown(what: str, name: str, known: Sequence[str]) -> str:
    nearest = difflib.get_close_matches(name.casefold(), [option.casefold() for option in known], n=3, cutoff=0.5)
    hint = [option for match in nearest for option in known if option.casefold() == match]
    meant = f"; did you mean {' or '.join(map(repr, hint))}?" if hint else ""
    return (
        f"{what} {name!r}{meant} There are {', '.join(known)}"
        if meant
        else f"{what} {name!r}; there are {', '.join(known)}"
    )


def _refuse(where: str, what: str, bad: Sequence[bool], mend: str) -> None:
    rows = [str(number) for number, is_bad in enumerate(bad, start=1) if is_bad]
    if rows:
        some = ", ".join(rows[:5]) + (" ..." if len(rows) > 5 else "")
        raise ValueError(f"{where}: {len(rows)} of {len(bad)} rows have {what} (row {some}, counted from 1): {mend}")


def _strings(rows: list[Row], name: str, where: str) -> list[str]:
    values = [row[name] for row in rows]
    _refuse(where, f"no {name}", [v is None or not str(v).strip() for v in values], "fill or remove them")
    _refuse(where, f"a {name} that is not text", [not isinstance(v, str | int) for v in values], "write it as text")
    return [str(value) for value in values]


def _groups(rows: list[Row], name: str | None, where: str) -> list[str] | list[None]:
    if name is None and "group" not in rows[0]:
        return [None] * len(rows)
    return _strings(rows, _column(list(rows[0]), name or "group", where), where)


def _labels(rows: list[Row], name: str, where: str) -> list[int]:
    keys = ["" if row[name] is None else str(row[name]).strip().casefold() for row in rows]
    _refuse(where, f"no {name}", [key in ("", "nan", "none", "null") for key in keys], "fill or remove them")
    if unknown := [key for key in dict.fromkeys(keys) if key not in _LABELS]:
        found = ", ".join(map(repr, list(dict.fromkeys(keys))[:6]))
        raise ValueError(
            f"{where}: column {name!r} must hold two classes, written 0/1, true/false or yes/no; it holds "
            f"{len(set(keys))} values ({found}), of which {unknown[0]!r} is neither"
        )
    return [_LABELS[key] for key in keys]


def _is_options(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) >= 2
        and all(isinstance(v, str) and v.strip() for v in value)
        and (len(set(value)) == len(value))
    )


def _rest(rows: list[Row], used: Iterable[str | None]) -> list[Row]:
    names = set(rows[0]) - set(used)
    return [{name: value for name, value in row.items() if name in names} for row in rows]


def _warn_contradictions(where: str, texts: list[str], labels: Sequence[int | None]) -> None:
    seen: dict[str, set[int | None]] = {}
    for text, label in zip(texts, labels):
        seen.setdefault(text, set()).add(label)
    both = [text for text, found in seen.items() if len(found) > 1]
    if both:
        rows = sum(text in set(both) for text in texts)
        warnings.warn(
            f"{where}: {len(both)} texts ({rows} rows) carry both labels, for example {both[0]!r}; no probe can be "
            "right on them: mend or remove them",
            ContradictoryLabelsWarning,
            stacklevel=3,
        )
