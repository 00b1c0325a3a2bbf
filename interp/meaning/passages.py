"""Passages: documents cut into pieces that a search can find and a prompt can hold, with the place where each one stands.

1. A document is cut into sentences (or words) by simple rules of spelling.
2. So many of them in a row make a passage, and the next one begins a few before its end, so that what stands across a border
   is whole in one of the two.

Every character but the white space around a passage lies in at least one, and `text[passage.start : passage.end]` is the
passage: nothing is cut off and nothing is rewritten.
"""

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from interp.dataset import Dataset

UNITS = ("sentences", "words")
ENDINGS = (".txt", ".md")
"""Of the files that are read in a folder."""
_END = re.compile(r"[.!?…]+[\"'”’»)\]]*(?=\s)|[。！？]+[」』”’）]*|\n\s*\n")
_SHORT = re.compile(r"(?:^|[\s(])\w{1,2}\.$")


@dataclass(frozen=True)
class Passage:
    """A piece of a document."""

    text: str
    source: str
    """Name of the document: its file, its row in the data set, or its number."""
    start: int
    """First character in the document."""
    end: int
    """One past the last one."""
    group: str | None = None
    """Group of the document, if it has one: a question of this group finds its answer here."""

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; `Passage(**d)` makes it again."""
        return asdict(self)


def passages_of(
    documents: str | os.PathLike[str] | Dataset | Iterable[Any],
    *,
    size: int | Any | None = 3,
    overlap: int | Any = 1,
    by: str | Any = "sentences",
    groups: Sequence[str | None] | Any = None,
) -> list[Passage]:
    """Cut documents into passages.

    Args:
        documents: texts (`str`), files (`Path`; UTF-8 text), folders (`Path`; their .txt and .md files, also those of folders
            within, by name; the others are left out), or a data set, whose groups are taken over.
        size: sentences or words of a passage; None leaves every document whole.
        overlap: how many of them the next passage repeats.
        by: "sentences" (an end mark before white space that closes no word of one or two letters such as "Dr.", a mark of
            East Asian writing, or an empty line) or "words" (what white space parts).
        groups: one for each document, where it is no data set; all files of a folder have the folder's.

    Returns:
        The passages of the first document, of the second, and so on. A sentence is never cut, however long it is.

    Raises:
        ValueError: no documents, an empty one, a file that is not there or no UTF-8, a folder without such files, a text that is
            the path of a file or folder, a size or an overlap that cannot be.
    """
    if by not in UNITS:
        raise ValueError(f"by must be 'sentences' or 'words', got {by!r}")
    if size is not None and (not _whole(size) or size < 1):
        raise ValueError(f"size must be a whole number from 1, or None for whole documents, got {size!r}")
    if size is not None and (not _whole(overlap) or not 0 <= overlap < size):
        raise ValueError(f"overlap must be a whole number from 0 to size - 1 = {size - 1}, got {overlap!r}")
    found: list[Passage] = []
    for text, source, group in _read(documents, groups):
        if not text.strip():
            raise ValueError(f"document {source} is empty: fill it or leave it out")
        spans = [_stripped(text, 0, len(text))] if size is None else _spans(text, by)
        step = 1 if size is None else size - overlap
        for first in range(0, len(spans), step):
            part = spans[first : first + (size or 1)]
            start, end = part[0][0], part[-1][1]
            found.append(Passage(text[start:end], source, start, end, group))
            if first + (size or 1) >= len(spans):
                break
    return found


def sentences(text: str) -> list[str]:
    """The sentences of a text by the rules of `passages_of`, without the white space between them."""
    return [text[start:end] for start, end in _spans(text, "sentences")]


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _spans(text: str, by: str) -> list[tuple[int, int]]:
    """(first character, one past the last) of each sentence or word."""
    if by == "words":
        return [found.span() for found in re.finditer(r"\S+", text)]
    spans, start = [], 0
    for mark in _END.finditer(text):
        # "Dr. Who", "J. R. R. Tolkien": a full stop after one or two letters mostly shortens a word.
        if mark[0] == "." and _SHORT.search(text, max(start, mark.start() - 4), mark.end()):
            continue
        spans.append((start, mark.end()))
        start = mark.end()
    spans.append((start, len(text)))
    stripped = [_stripped(text, *span) for span in spans]
    return [span for span in stripped if span[0] < span[1]]


def _stripped(text: str, start: int, end: int) -> tuple[int, int]:
    part = text[start:end]
    return start + len(part) - len(part.lstrip()), start + len(part.rstrip())


def _read(documents: Any, groups: Any) -> list[tuple[str, str, str | None]]:
    """(text, name, group) of each document."""
    if isinstance(documents, Dataset):
        if groups is not None:
            raise ValueError("a data set brings its own groups: leave groups out")
        own = [example.group for example in documents]
        return [(e.text, f"{documents.name} {i}", g) for i, (e, g) in enumerate(zip(documents, own))]
    given = [documents] if isinstance(documents, str | os.PathLike) else list(documents)
    if not given:
        raise ValueError("there are no documents to cut into passages")
    named = list(groups) if groups is not None else [None] * len(given)
    if len(named) != len(given):
        raise ValueError(f"there are {len(given)} documents and {len(named)} groups: give each document its group")
    found = []
    for number, (document, group) in enumerate(zip(given, named)):
        if isinstance(document, str):
            if os.path.exists(os.path.expanduser(document) if document.startswith("~/") else document):
                raise ValueError(
                    f"document {number} is the path {document!r}, and a str is taken for the text itself: give "
                    f"pathlib.Path({document!r}) to read what it holds, or its text (these very words: add a space behind them)"
                )
            found.append((document, f"document {number}", group))
        elif isinstance(document, os.PathLike):
            path = Path(document).expanduser()
            found += [(_file(each), str(each), group) for each in (_files_in(path) if path.is_dir() else [path])]
        else:
            kind = type(document).__name__
            raise ValueError(f"document {number} is a {kind}: give texts as str and files as pathlib.Path")
    return found


def _files_in(folder: Path) -> list[Path]:
    """The text files of a folder and of those within, sorted."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    found = [path for path in files if path.suffix.lower() in ENDINGS]
    if not found:
        others = ", ".join(sorted({path.suffix or path.name for path in files})[:6]) or "nothing"
        raise ValueError(
            f"the folder {folder} has no {' or '.join(ENDINGS)} file (it holds {others}): convert the documents to plain text "
            "with such an ending, or give a data set, load_corpus(file)"
        )
    return found


def _file(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no UTF-8 text ({error}): convert it to plain text first") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}): give the path of a text file") from None
