"""Where texts come from: whatever a caller passes becomes a stream of items, each with the place it stands in.

An item is a text, an `Example`, a row (a mapping) or a conversation (a list of messages); `stream` makes examples of
them. Nothing is read before it is asked for, but what is wrong with the source as a whole (no such file, a folder of
two tables, a collection of splits) is refused at once.
"""

import difflib
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pandas as pd

from interp.content import content_folder
from interp.dataset.files import (
    PIECE_ROWS,
    STREAMED,
    columns_of,
    format_of,
    iter_rows,
    read_document,
    refuse_twice,
)
from interp.dataset.load import LOADERS, bundled_cards, existing_file
from interp.dataset.types import Dataset, Example

log = logging.getLogger("interp.dataset")

Items = Iterator[tuple[str, Any]]
"""(place, item): the place is for messages, "" where the number of the item says it all."""

DOCUMENTS = (".txt", ".md")
"""Endings of the files that are one text each where they lie in a folder."""
ACCEPTED = (
    "a text, an iterable of texts, Examples, rows or conversations, a Dataset, a DataFrame, a Hugging Face dataset, "
    "or the path of a file or folder"
)


def open_items(data: Any, as_text: Sequence[str], limit: int | None) -> Items:
    """The items of whatever `iter_examples` accepts.

    `as_text` are columns of CSV and TSV files that stay text; no more than `limit` rows of a file are looked at.
    """
    if isinstance(data, str):
        return _named(str(data), as_text, limit)
    if isinstance(data, os.PathLike):
        path = Path(os.fsdecode(data)).expanduser()
        return _folder(path, as_text, limit) if path.is_dir() else _file(path, as_text, limit)
    if isinstance(data, Dataset):
        return (("", example) for example in data.examples)
    if isinstance(data, Example):
        return iter([("", data)])
    if isinstance(data, pd.DataFrame):
        try:
            refuse_twice(data.columns)
        except ValueError as error:
            raise ValueError(f"cannot read the DataFrame: {error}") from None
        return _frame_rows(data)
    if isinstance(data, Mapping) and data and all(hasattr(part, "column_names") for part in data.values()):
        raise ValueError(
            f"these are several data sets, {', '.join(map(str, data))}: pass one, as in data[{next(iter(data))!r}]"
        )
    if isinstance(data, bytes | bytearray | Mapping) or not isinstance(data, Iterable):
        one = ": one row goes into a list, [row]" if isinstance(data, Mapping) else ""
        raise ValueError(f"cannot record {type(data).__name__}{one}: pass {ACCEPTED}")
    if isinstance(data, set | frozenset):
        raise ValueError(f"cannot record {type(data).__name__}, which has no order: pass sorted(...) of it")
    if hasattr(data, "column_names") and hasattr(data, "with_format"):
        columns: Any = data  # a Hugging Face data set, which may be set to give tensors
        data = columns.with_format(None)
    return (("", item) for item in data)


# ------------------------------------------------------------------------------------------------------------- strings


def _named(data: str, as_text: Sequence[str], limit: int | None) -> Items:
    """A string is an address, a bundled set, a file or folder that is there, or else a text."""
    if data.startswith("hf:"):
        return (("", row) for row in _hub(data))
    if _is_word(data):
        cards = bundled_cards()
        if data in cards:
            return _bundled(cards[data], as_text, limit)
        if near := difflib.get_close_matches(data, cards, n=1, cutoff=0.7):
            log.warning("%r is taken as a text; a bundled data set is called %r", data, near[0])
    # os.path and not Path: it says no to strings that cannot be a path, where Path raises.
    path = os.path.expanduser(data)
    if os.path.isdir(path):
        log.info("%r is read as the folder of that name; pass [%r] for the text itself", data, data)
        return _folder(Path(path), as_text, limit)
    if os.path.isfile(path):
        try:
            return _file(Path(path), as_text, limit)
        except ValueError as error:
            raise ValueError(f"{error}; pass [{data!r}] if that is the text itself") from None
    if _is_meant_as_path(data):
        kind = "folder" if data.endswith("/") else "file"
        raise ValueError(f"there is no {kind} {data}; pass [{data!r}] if that is the text itself")
    return iter([("", data)])


def _is_meant_as_path(data: str) -> bool:
    """Whether a string is no sentence: it ends as a data file or a folder, and is one word or begins with a folder."""
    words = data.split()
    if len(data) > 1000:
        return False
    ends = data.endswith("/") or format_of(data) is not None or Path(data).suffix.lower() in DOCUMENTS
    return ends and (len(words) == 1 or "/" in words[0])


def folder_of(data: Any) -> Path | None:
    """The folder that `open_items` reads for `data`; None where it reads something else."""
    if isinstance(data, str) and not data.startswith("hf:") and not (_is_word(data) and data in bundled_cards()):
        path = os.path.expanduser(data)
        return Path(path) if os.path.isdir(path) else None
    if isinstance(data, os.PathLike):
        path = Path(os.fsdecode(data)).expanduser()
        return path if path.is_dir() else None
    return None


def _bundled(card: Mapping[str, Any], as_text: Sequence[str], limit: int | None) -> Items:
    name, kind = card["name"], card["kind"]
    if LOADERS[kind] not in ("load_dataset", "load_corpus"):
        raise ValueError(
            f"{name!r} is a bundled set of {kind}, read with {LOADERS[kind]}: make texts of them, or pass [{name!r}] "
            "for the word itself"
        )
    log.info("%r is read as the bundled data set of that name; pass [%r] for the text itself", name, name)
    return _table([content_folder("data") / name / card["file"]], as_text, limit)


def _hub(address: str) -> Iterable[Any]:
    """A data set of the Hugging Face hub, streamed."""
    form = re.fullmatch(r"hf:([\w.-]+/[\w.-]+)(?:/([\w.-]+))?(?:\?(.*))?", address)
    options: dict[str, Any] = dict(parse_qsl(form[3] or "", keep_blank_values=True)) if form else {}
    if form is None or not options.keys() <= {"split", "revision"}:
        raise ValueError(
            f"cannot read {address!r}: write hf:owner/name, hf:owner/name/config, or hf:owner/name?split=train"
        )
    try:
        import datasets
    except ImportError:
        raise ValueError(
            f"{address!r} needs the package `datasets`: pip install 'interp-workbench[datasets]'"
        ) from None
    try:
        # Version 3 asks whether code of the repository may run, and later ones run none; here none runs.
        data: Any = datasets.load_dataset(form[1], form[2], streaming=True, trust_remote_code=False, **options)
    except (ValueError, OSError, RuntimeError) as error:
        raise ValueError(f"cannot read {address!r}: {error}") from error
    if not isinstance(data, Mapping):
        return data
    if len(data) > 1:
        raise ValueError(
            f"{address!r} has the splits {', '.join(map(str, data))}: say which, {address}?split={next(iter(data))}"
        )
    return next(iter(data.values()))


def _is_word(data: str) -> bool:
    return re.fullmatch(r"[\w-]+", data) is not None


# --------------------------------------------------------------------------------------------------- files and folders


def _file(path: Path, as_text: Sequence[str], limit: int | None) -> Items:
    existing_file(path)
    if format_of(path) is None:
        document = "; a folder is read with one document a file, and one text is passed as such, path.read_text()"
        raise ValueError(
            f"cannot read {path.name}: the ending says the format, one of {', '.join(STREAMED)} (also with .gz)"
            f"{document if path.suffix.lower() in DOCUMENTS else ''}"
        )
    return _table([path], as_text, limit)


def _table(paths: Sequence[Path], as_text: Sequence[str], limit: int | None) -> Items:
    """The rows of files that make one table."""
    empty = True
    for path, number, row in iter_rows(paths, as_text, limit):
        empty = False
        yield f"{path.name}, row {number}", row
    if empty:
        raise ValueError(f"{paths[0] if len(paths) == 1 else paths[0].parent} has no rows")


def _folder(folder: Path, as_text: Sequence[str], limit: int | None) -> Items:
    """Documents, one a file, or the parts of one table; hidden files and links that lead out are left alone."""
    inside = _files_in(folder)
    documents = [path for path in inside if Path(path.name.removesuffix(".gz")).suffix.lower() in DOCUMENTS]
    tables = [path for path in inside if format_of(path) is not None and path not in set(documents)]
    kinds = sorted({format_of(path) or "" for path in tables} | ({"texts (.txt, .md)"} if documents else set()))
    if not kinds:
        raise ValueError(f"{folder} has nothing to read: no file in it ends in .md or {', '.join(STREAMED)}")
    if len(kinds) > 1:
        raise ValueError(
            f"{folder} holds {' and '.join(kinds)}, for example {inside[0].name}: a folder is read as documents or as "
            "the parts of one table, so move the others out of it, or pass one file"
        )
    if others := sorted(set(inside).difference(documents, tables)):
        log.warning("%s: %d files with other endings are left out, for example %s", folder, len(others), others[0].name)
    if documents:
        return _documents(folder, documents)
    declared = [(path, columns_of(path)) for path in tables]
    for path, columns in declared:
        if columns is not None and set(columns) != set(declared[0][1] or ()):
            raise ValueError(
                f"{folder} is not one table: {path.name} has the columns {', '.join(columns)}, and {tables[0].name} has "
                f"{', '.join(declared[0][1] or ())}"
            )
    return _table(tables, as_text, limit)


def _documents(folder: Path, paths: Sequence[Path]) -> Items:
    for path in paths:
        name = path.relative_to(folder).as_posix()
        yield name, Example(read_document(path), group=name)


def _files_in(folder: Path) -> list[Path]:
    """Every file below a folder, by its path; no hidden ones, and none that a link outside would bring in."""
    root, found, outside = folder.resolve(), [], []
    for at, folders, names in os.walk(folder):
        links = [name for name in folders if (Path(at) / name).is_symlink()]
        folders[:] = [name for name in folders if not name.startswith(".") and name not in links]
        paths = [Path(at) / name for name in names if not name.startswith(".")]
        outside += [Path(at) / name for name in links]
        outside += [path for path in paths if not path.resolve().is_relative_to(root)]
        found += [path for path in paths if path.resolve().is_relative_to(root) and path.is_file()]
    if outside:
        log.warning("%s: %d links are not followed, for example %s", folder, len(outside), min(outside).name)
    return sorted(found, key=lambda path: path.relative_to(folder).parts)


# ------------------------------------------------------------------------------------------------------------- frames


def _frame_rows(frame: pd.DataFrame) -> Items:
    """The rows of a frame, a piece at a time; its index is no column."""
    for start in range(0, len(frame), PIECE_ROWS):
        for row in frame.iloc[start : start + PIECE_ROWS].to_dict("records"):
            yield "", row
