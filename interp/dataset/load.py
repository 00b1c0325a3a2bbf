"""Bundled sets by name, and files by path: statements, contrast pairs, questions, corpora; and writing them."""

import io
import json
import os
import re
import warnings
from collections.abc import Sequence
from csv import QUOTE_NONNUMERIC
from pathlib import Path

import pandas as pd

from interp.artifact import atomic_write, read_json
from interp.content import content_folder
from interp.dataset.files import FORMATS, read_rows, separator
from interp.dataset.group_rule import groups_by_rule
from interp.dataset.rows import FIXED, Row, column, labels, plain, refuse, rest, strings, unknown
from interp.dataset.types import ContradictoryLabelsWarning, ContrastPair, Dataset, Example, Question

LOADERS = {
    "statements": "load_dataset",
    "paraphrases": "load_dataset",
    "corpus": "load_corpus",
    "pairs": "load_pairs",
    "questions": "load_questions",
}


QUESTION_ROW = {"prompt": "Question: 1 + 1?\nAnswer:", "options": [" 2", " 3"], "answer": 0, "group": "one"}
"""What a row of questions looks like."""


def load_dataset(
    name_or_path: str | os.PathLike[str],
    *,
    text: str = "text",
    label: str | None = "label",
    group: str | None = None,
    group_rule: str | None = None,
    require_labels: bool = False,
) -> Dataset:
    """Read a bundled set by its name, or a CSV, TSV, JSONL, Parquet or text file (one text a line).

    Args:
        name_or_path: a name of `datasets()`, or a file; the file's ending says its format.
        text: the column with the texts. Left at `text` where there is none, it means `statement`.
        label: the column with the labels: 0/1, true/false or yes/no. Left at `label`, it may be absent; None reads
            none.
        group: the column with the groups; None reads `group` where there is such a column.
        group_rule: in place of a column: columns that together name the entity (`n1,n2`, in any order), `quoted` for the
            first quoted words of the text, or a regular expression whose first bracket is the entity.
        require_labels: refuse a set without labels, or with one class only.

    Every other column goes to `Example.meta`, but one that is called text, label, group or split.

    Raises:
        ValueError: unknown name, no such file, unknown format, damaged or empty file, missing column (the message lists
            those present), an empty text, a missing label, labels other than two classes; a group and
            a rule at once, or a text that the rule finds nothing in.

    Warns:
        ContradictoryLabelsWarning: texts that are the same apart from case and spacing carry both labels.
    """
    path, card = _locate(name_or_path, ("statements", "paraphrases", "corpus"))
    where, rows = card["name"], read_rows(path)
    known = list(rows[0])
    if text == "text" and "text" not in known and "statement" in known:
        text = "statement"
    texts, groups = strings(rows, column(known, text, where), where), _groups(rows, group, where)
    if group_rule is not None:
        groups = _groups_by_rule(rows, group_rule, group, text, where)
    found: list[int] | list[None] = [None] * len(rows)
    if label is not None and (label != "label" or label in known or require_labels):
        found = labels(rows, column(known, label, where), where)
    if require_labels and len(set(found)) < 2:
        raise ValueError(f"{where}: two classes of labels are needed, but every label is {found[0]}")
    splits = [None if row.get("split") in (None, "") else str(row["split"]) for row in rows]
    examples = tuple(map(Example, texts, found, groups, splits, rest(rows, (text, label, group, *FIXED))))
    _warn_contradictions(where, texts, found)
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
    where, rows = card["name"], read_rows(path)
    names = [column(list(rows[0]), name, where) for name in (prompt, positive, negative)]
    prompts, yes, no = (strings(rows, name, where) for name in names)
    refuse(where, "the same text on both sides", (p == n for p, n in zip(yes, no)), "remove them")
    meta = rest(rows, (*names, group, "group"))
    return list(map(ContrastPair, prompts, yes, no, _groups(rows, group, where), meta))


def load_questions(name_or_path: str | os.PathLike[str]) -> list[Question]:
    """Read multiple-choice questions: a bundled set, or a JSONL or Parquet file.

    Columns: prompt, options (a list of at least two texts), answer (index of the right one, from 0), and group where
    there is one; every other column goes to `meta`.

    Raises:
        ValueError: as `load_dataset`; fewer than two options, an empty one or two equal ones; an answer that is no whole number
            or out of range.
    """
    path, card = _locate(name_or_path, ("questions",))
    where, rows = path.name if card["kind"] == "file" else card["name"], read_rows(path)
    try:
        for name in ("prompt", "options", "answer"):
            column(list(rows[0]), name, where)
    except ValueError as error:
        raise ValueError(f"{error}. A row of JSONL: {json.dumps(QUESTION_ROW)} (group may be left out)") from None
    _check_options(rows, where)
    mend = "the answer is the index of the right option, from 0"
    refuse(where, "an answer that is a text", (isinstance(row["answer"], str) for row in rows), f"{mend}, not its text")
    refuse(where, "an answer that is no whole number", (type(row["answer"]) is not int for row in rows), mend)
    outside = (not 0 <= row["answer"] < len(row["options"]) for row in rows)
    refuse(where, "an answer out of range", outside, f"{mend} to the number of options less one")
    prompts, groups = strings(rows, "prompt", where), _groups(rows, None, where)
    meta = rest(rows, ("prompt", "options", "answer", "group"))
    return [
        Question(prompt, tuple(row["options"]), row["answer"], group, others)
        for prompt, row, group, others in zip(prompts, rows, groups, meta)
    ]


def read_table(path: str | os.PathLike[str], columns: Sequence[str] = ()) -> pd.DataFrame:
    """Any CSV, TSV, JSONL or Parquet file as a table, for columns that are not texts with labels.

    Raises:
        ValueError: no such file, unknown format, damaged or empty file, or one of `columns` is missing.
    """
    rows = read_rows(existing_file(path), as_text=())
    for name in columns:
        column(list(rows[0]), name, Path(path).name)
    return pd.DataFrame(rows)


def datasets() -> pd.DataFrame:
    """The bundled sets: name, kind (statements, paraphrases, pairs, questions, corpus), rows, groups, source, licence."""
    columns = ["name", "kind", "rows", "groups", "source", "licence"]
    return pd.DataFrame([[card[name] for name in columns] for card in bundled_cards().values()], columns=columns)


def write_dataset(dataset: Dataset, path: str | os.PathLike[str]) -> Path:
    """Write a data set as CSV, TSV, JSONL or Parquet, by the file's ending; atomic, UTF-8.

    Labels are written as 0 and 1; columns that are empty throughout are left out. JSONL keeps every value as it is;
    CSV and TSV know only texts and numbers, so a text that looks like a number comes back as one.

    Raises:
        ValueError: another ending (a plain text file cannot hold labels), or conversations for CSV or TSV.
    """
    path = Path(path).expanduser()
    frame = dataset.to_frame().dropna(axis="columns", how="all")
    data: str | bytes
    if path.suffix.lower() in (".csv", ".tsv"):
        if any(example.messages is not None for example in dataset):
            raise ValueError(f"{path.name} cannot hold conversations: write .jsonl or .parquet")
        data = frame.to_csv(index=False, sep=separator(path), quoting=QUOTE_NONNUMERIC, lineterminator="\n")
    elif path.suffix.lower() == ".jsonl":
        rows = [{str(name): plain(value) for name, value in row.items()} for row in frame.to_dict("records")]
        data = "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows)
    elif path.suffix.lower() == ".parquet":
        buffer = io.BytesIO()
        frame.to_parquet(buffer, index=False)
        data = buffer.getvalue()
    else:
        raise ValueError(f"cannot write {path.name}: the ending says the format, .csv, .tsv, .jsonl or .parquet")
    return atomic_write(path, data)


def bundled_cards() -> dict[str, Row]:
    """The card of each bundled set, by its name."""
    return {path.parent.name: read_json(path) for path in sorted(content_folder("data").glob("*/card.json"))}


def _locate(name_or_path: str | os.PathLike[str], kinds: tuple[str, ...]) -> tuple[Path, Row]:
    """The file and its card; `kinds` are those of bundled sets that the caller can read."""
    if isinstance(name_or_path, str) and re.fullmatch(r"[\w-]+", name_or_path):
        cards = bundled_cards()
        if name_or_path not in cards:
            error = unknown("there is no bundled data set", name_or_path, list(cards))
            raise ValueError(f"{error}. A file is given by its path with its ending ({', '.join(FORMATS)})")
        card = cards[name_or_path]
        if card["kind"] not in kinds:
            raise ValueError(f"{name_or_path!r} holds {card['kind']}: read it with {LOADERS[card['kind']]}")
        return content_folder("data") / name_or_path / card["file"], card
    path = existing_file(name_or_path)
    return path, {"name": path.stem, "kind": "file", "file": path.name}


def existing_file(path: str | os.PathLike[str]) -> Path:
    """The path of a file that is there, `~` being the home folder."""
    path = Path(path).expanduser()
    if not path.is_file():
        raise ValueError(f"{path} is a folder, not a file" if path.is_dir() else f"there is no file {path}")
    return path


def _groups(rows: Sequence[Row], name: str | None, where: str) -> list[str] | list[None]:
    known = list(rows[0])
    if name is None and "group" not in known:
        return [None] * len(rows)
    return strings(rows, column(known, name or "group", where), where)


def _groups_by_rule(rows: Sequence[Row], rule: str, group: str | None, text: str, where: str) -> list[str]:
    if group is not None:
        raise ValueError(f"{where}: group={group!r} and group_rule={rule!r} both say the groups: give one of them")
    found = groups_by_rule(pd.DataFrame(rows), rule, text)
    refuse(where, f"no group by the rule {rule!r}", (each is None for each in found), "widen the rule")
    return [str(each) for each in found]


def _check_options(rows: Sequence[Row], where: str) -> None:
    """Refuse options by their fault; each check relies on those before it."""
    found = [row["options"] for row in rows]
    no_list = (not isinstance(options, list) for options in found)
    refuse(
        where, "options that are no list", no_list, "write a list of texts, which JSONL and Parquet can hold, CSV not"
    )
    refuse(where, "fewer than two options", (len(options) < 2 for options in found), "give two or more different texts")
    not_text = (not all(isinstance(option, str) for option in options) for options in found)
    refuse(where, "an option that is not text", not_text, 'write it as text, " 2" for 2')
    empty = (not all(option.strip() for option in options) for options in found)
    refuse(where, "an empty option", empty, "fill it or leave it out")
    equal = (len(set(options)) < len(options) for options in found)
    refuse(where, "two equal options", equal, "give two or more different texts")


def _warn_contradictions(where: str, texts: Sequence[str], found: Sequence[int | None]) -> None:
    # Without case and spacing: real sets hold `... industry of Banking.` as false and `... of banking.` as true.
    keys = [" ".join(text.casefold().split()) for text in texts]
    seen: dict[str, set[int | None]] = {}
    for key, label in zip(keys, found):
        seen.setdefault(key, set()).add(label)
    rows = [row for row, key in enumerate(keys) if len(seen[key]) > 1]
    if rows:
        warnings.warn(
            f"{where}: {len({keys[row] for row in rows})} texts ({len(rows)} rows) carry both labels, apart from case "
            f"and spacing, for example {texts[rows[0]]!r}; nothing can be right on all of them: mend or remove them",
            ContradictoryLabelsWarning,
            stacklevel=3,
        )
